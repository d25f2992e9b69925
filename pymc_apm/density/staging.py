"""Cutting a log density into stages by what each part of it depends on.

The terms of a log density are functions of several *inputs*: the parameters, and each
piece of randomness. A stage is the part of the graph that depends on one particular set of inputs.
What a stage computes and a later one needs is exported from it, so that after a change of one input
only the stages that depend on it have to run.

Terms of the prior form stages of their own, ahead of everything else, because an estimator must not
be called where the prior is zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import graph_inputs
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.basic import Alloc, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor

TermKind: TypeAlias = Literal["prior", "exact", "estimate", "sign"]

VIEWS = (
    Alloc,
    DimShuffle,
    MakeVector,
    Reshape,
    ScalarFromTensor,
    Shape,
    Shape_i,
    SpecifyShape,
    Subtensor,
    TensorFromScalar,
)
"""Operations that cost no more than handing their result from one stage to the next."""

SMALL = 64
"""Element-wise operations and sums on this few elements cost less than a call of a stage."""


class Term(NamedTuple):
    """One summand of the log density: a scalar or, of an estimate, a vector of factors.

    The signs of estimates, a vector too, are cut like a term but not added up.

    A vector may come with another one, ``depends_like``: each entry of the term is known to depend
    on no other random numbers than the entry of that one does.
    """

    kind: TermKind
    value: Variable
    depends_like: Variable | None = None

    @property
    def dependence(self) -> Variable:
        """What to look at to see which random numbers an entry depends on."""
        return self.value if self.depends_like is None else self.depends_like


class Stage(NamedTuple):
    """A part of the log density that is computed in one go.

    Attributes
    ----------
    is_prior : bool
        Whether it is needed for the prior.
    depends_on : frozenset of str
        The inputs of the density that it depends on.
    inputs : tuple of Variable
        Inputs of the density, exports of earlier stages, and limits.
    exports : tuple of Variable
        What later stages need.
    sums : dict
        The sum of the scalar terms that end in this stage, by kind.
    vectors : tuple of Term
        Estimates that end in this stage and are vectors, and signs.
    """

    is_prior: bool
    depends_on: frozenset[str]
    inputs: tuple[Variable, ...]
    exports: tuple[Variable, ...]
    sums: dict[TermKind, Variable]
    vectors: tuple[Term, ...]

    @property
    def results(self) -> list[Variable]:
        """All that it computes: its exports, then its sums, then its vectors."""
        return [*self.exports, *self.sums.values(), *(term.value for term in self.vectors)]


class _Key(NamedTuple):
    """Identifies a stage; sorts after everything it can depend on."""

    after_prior: bool
    n_inputs: int
    names: tuple[str, ...]


def cut(
    terms: Sequence[Term],
    inputs: Mapping[str, Variable],
    reports: Sequence[Variable] = (),
    limits: Iterable[Variable] = (),
) -> tuple[list[Stage], list[Variable]]:
    """Cut the graph of some terms into stages, in an order in which they can run.

    Parameters
    ----------
    terms : sequence of Term
        Functions of the inputs, of shared variables and of constants.
    inputs : dict
        The inputs by which the graph is cut. Shared variables count as fixed: what depends on
        nothing else is computed when a chain starts.
    reports : sequence of Variable
        What else to export, for whoever wants to know it.
    limits : iterable of Variable
        Inputs of stages by which nothing is cut.

    Returns
    -------
    stages : list of Stage
    reports : list of Variable
        The reports as they are named among the exports.
    """
    graph, terms, reports = _simplify(terms, inputs, reports)
    depends_on = _dependencies(graph.toposort(), inputs)
    prior_nodes = _nodes_above(term.value for term in terms if term.kind == "prior")

    def key_of(variable: Variable, after_prior: bool) -> _Key:
        found = depends_on.get(variable, frozenset())
        return _Key(after_prior, len(found), tuple(sorted(found)))

    def stage_of(variable: Variable) -> _Key:
        return key_of(variable, variable.owner not in prior_nodes)

    ending: dict[_Key, dict[TermKind, Variable]] = {}
    vectors: dict[_Key, list[Term]] = {}
    for term in terms:
        key = key_of(term.value, term.kind != "prior")
        sums = ending.setdefault(key, {})
        if term.value.type.ndim > 0:
            vectors.setdefault(key, []).append(term)
        else:
            sums[term.kind] = sums[term.kind] + term.value if term.kind in sums else term.value

    # From the last stage to the first, so that all that is needed of a stage is known before it.
    keys = sorted(
        {stage_of(output) for node in graph.apply_nodes for output in node.outputs} | set(ending)
    )
    needed: dict[_Key, dict[Variable, None]] = {key: {} for key in keys}
    for report in reports:
        needed[stage_of(report)][report] = None
    input_variables = {*inputs.values(), *limits}
    stages = []
    for key in reversed(keys):
        exports = tuple(needed[key])
        sums, ends = ending.get(key, {}), tuple(vectors.get(key, ()))
        if not exports and not sums and not ends:
            continue
        takes: dict[Variable, None] = {}
        seen: set[Variable] = set()
        stack = [*exports, *sums.values(), *(term.value for term in ends)]
        while stack:
            variable = stack.pop()
            if variable in seen:
                continue
            seen.add(variable)
            if variable in input_variables:
                takes[variable] = None
            elif variable.owner is None:
                continue
            elif (
                variable not in depends_on  # a sum made above
                or stage_of(variable) == key
                or _is_cheap(variable.owner)
            ):
                stack.extend(variable.owner.inputs)
            else:
                takes[variable] = None
                needed[stage_of(variable)][variable] = None
        stages.append(
            Stage(not key.after_prior, frozenset(key.names), tuple(takes), exports, sums, ends)
        )
    return stages[::-1], reports


def _simplify(
    terms: Sequence[Term], inputs: Mapping[str, Variable], reports: Sequence[Variable]
) -> tuple[FunctionGraph, list[Term], list[Variable]]:
    """Merge what is written twice and put the graph into its stable form before it is cut.

    A rewrite like log(exp(a) + exp(b)) must see both sides, which may end up in different stages.
    """
    values = [*(term.value for term in terms), *reports]
    variables = dict.fromkeys(
        [*inputs.values(), *(v for v in graph_inputs(values) if not isinstance(v, Constant))]
    )
    graph = FunctionGraph(list(variables), values, clone=False)
    rewrite_graph(graph, include=("canonicalize", "stabilize"), clone=False)
    for node in graph.toposort():
        shape = node.inputs[0].type.shape if isinstance(node.op, Shape | Shape_i) else (None,)
        if None not in shape:  # then it is computed without the array, which is of another stage
            known = np.array(shape, dtype=np.int64)
            known = known if isinstance(node.op, Shape) else known[node.op.i]
            graph.replace(node.outputs[0], pt.constant(known), import_missing=True)
    simplified = [
        term._replace(value=value) for term, value in zip(terms, graph.outputs, strict=False)
    ]
    return graph, simplified, graph.outputs[len(terms) :]


def _dependencies(
    nodes: Iterable[Apply], inputs: Mapping[str, Variable]
) -> dict[Variable, frozenset[str]]:
    """Map each variable to the names of the inputs among its ancestors."""
    depends_on = {variable: frozenset([name]) for name, variable in inputs.items()}
    for node in nodes:
        found = frozenset().union(*(depends_on.get(source, ()) for source in node.inputs))
        depends_on.update(dict.fromkeys(node.outputs, found))
    return depends_on


def _nodes_above(outputs: Iterable[Variable]) -> set[Apply]:
    nodes: set[Apply] = set()
    stack = [output.owner for output in outputs]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            stack.extend(source.owner for source in node.inputs)
    return nodes


def _is_cheap(node: Apply) -> bool:
    """Say whether to compute a node again rather than to hand its result on."""
    if isinstance(node.op, VIEWS) or not all(_is_array(output) for output in node.outputs):
        return True
    return isinstance(node.op, Elemwise | CAReduce) and all(
        _is_small(variable) for variable in [*node.inputs, *node.outputs]
    )


def _is_array(variable: Variable) -> bool:
    """Say whether a function can return the variable: a slice or a scalar of C code it cannot."""
    return hasattr(variable.type, "dtype") and not isinstance(variable.type, ScalarType)


def _is_small(variable: Variable) -> bool:
    size = 1
    for length in variable.type.shape:
        if length is None:
            return False
        size *= length
    return size <= SMALL
