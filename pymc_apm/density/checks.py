"""Checks whose failure makes an estimate zero, and why they do not tie factors together.

PyMC checks the parameters of a distribution and, in compiled code, has -inf for *all* log
probabilities where one parameter of one of them is wrong: ``switch(all(is_valid), log_p, -inf)``.
Where the parameters depend on u, every factor then depends on all of u, though only on whether it
is valid. That is no obstacle to updating factors separately if

1. each of the conditions that must hold together depends on one factor alone, so that the set of
   valid u is a product, and so is the density;
2. where one fails, every term that is affected is zero (-inf) or NaN, so that nothing of the
   proposal can be accepted on the grounds of a wrong value;
3. the factor of each condition has such a term, so that it never accepts what is not valid.

Then all that happens is that a proposal for one factor that is not valid has the others refuse
theirs too. The state before and the state after an update are valid in all factors, so the way back
is refused at the same proposals, and the update is as reversible as without the check.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import AND, Second, Switch
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pymc_apm._compat import INDEXED_UPDATES, INDEXING
from pymc_apm.density.labels import UnknownError, Walk, may_be_zero, nodes_to, places_of

MOVES = (*INDEXING, Alloc, CheckAndRaise, DeepCopyOp, DimShuffle, Reshape, SpecifyShape, ViewOp)
MOVES = (*MOVES, ScalarFromTensor, TensorFromScalar)
"""Operations that hand on elements of their first input as they are."""

PROBES = np.random.default_rng(0).choice([-1e3, -2.5, -0.5, 0.0, 0.5, 1.0, 3.0, 1e3], (64, 8))
"""Finite numbers, to see whether a result depends on them."""


def conjunctions(
    nodes: Sequence[Apply], outputs: Iterable[Variable], mixing: Iterable[Apply]
) -> set[Apply]:
    """Return the nodes that put conditions together, with *and*, for checks and for nothing else.

    Those of checks in `mixing` are left out.
    """
    kept = set(outputs)
    for check in mixing:
        kept.update(check.inputs)
    found: set[Apply] = set()
    for node in reversed(nodes):
        if isinstance(node.op, CheckAndRaise):
            kept.add(node.inputs[0])
        elif _is_conjunction(node) and kept.isdisjoint(node.outputs):
            found.add(node)
        elif not isinstance(node.op, Shape | Shape_i):
            # The first input of Second gives the second one its shape.
            is_second = isinstance(getattr(node.op, "scalar_op", None), Second)
            kept.update(node.inputs[1:] if is_second else node.inputs)
    return found


def _is_conjunction(node: Apply) -> bool:
    op: Any = node.op
    if isinstance(op, CAReduce | Elemwise):
        return isinstance(op.scalar_op, AND | Second) and node.outputs[0].type.dtype == "bool"
    return isinstance(op, (Alloc, DimShuffle, Join, MakeVector, ScalarFromTensor, TensorFromScalar))


def ties_factors(
    check: Apply, nodes: Sequence[Apply], terms: Sequence[Variable], walk: Walk
) -> bool:
    """Say whether a failure of a check may tie factors together; see the module.

    Parameters
    ----------
    check : Apply
    nodes : sequence of Apply
        The graph, in order.
    terms : sequence of Variable
    walk : Walk
        After a walk that skipped the conjunctions.
    """
    if not may_be_zero(check):
        return False
    conditions = [leaf for leaf in _leaves(check.inputs[1:], walk) if leaf in walk.depends]
    if not conditions:
        return False
    covered = np.zeros(len(walk.joined.component), dtype=bool)
    for value in (-np.inf, np.nan):
        outcome = _follow(nodes, {check.outputs[0]: value}, walk)
        affected = [term for term in terms if term in outcome]
        if not all(_is_refused(outcome[term]) for term in affected):
            return True
        for term in affected:
            covered[walk.joined.component[walk.labels_of(term)]] = True
    covered[walk.joined.component[-1]] = True
    needed = (walk.joined.component[walk.labels_of(condition)] for condition in conditions)
    return not all(covered[component].all() for component in needed)


def hidden_products(
    nodes: Sequence[Apply],
    walk: Walk,
    is_hidden: Callable[[Mapping[Variable, float | None]], bool],
) -> set[Apply]:
    """Return the products of zero and maybe infinity whose result, NaN, may be hidden.

    Parameters
    ----------
    nodes : sequence of Apply
        The graph, in order.
    walk : Walk
        After a walk along it.
    is_hidden : callable
        Says of what becomes of all that depends on a product whether it hides that NaN.
    """
    found = {
        product
        for product in walk.products
        if is_hidden(_follow(nodes, dict.fromkeys(product.outputs, np.nan), walk))
    }
    for node, inside in walk.inside.items():
        is_hidden_outside = functools.partial(_is_hidden_outside, nodes, walk, is_hidden, node)
        found |= hidden_products(nodes_to(node.op.inner_outputs), inside, is_hidden_outside)
    return found


def _is_hidden_outside(
    nodes: Sequence[Apply],
    walk: Walk,
    is_hidden: Callable[[Mapping[Variable, float | None]], bool],
    node: Any,
    inside: Mapping[Variable, float | None],
) -> bool:
    """Go on from the outputs of a graph that an op is made of."""
    outputs = zip(node.op.inner_outputs, node.outputs, strict=True)
    given = {outer: inside[inner] for inner, outer in outputs if inner in inside}
    return is_hidden(_follow(nodes, given, walk))


def _leaves(conditions: Sequence[Variable], walk: Walk) -> Iterator[Variable]:
    for condition in conditions:
        if condition.owner in walk.skipped:
            yield from _leaves(condition.owner.inputs, walk)
        else:
            yield condition


def _is_refused(value: float | None) -> bool:
    return value is not None and (np.isnan(value) or value == -np.inf)


def _follow(
    nodes: Iterable[Apply], given: Mapping[Variable, float | None], walk: Walk
) -> dict[Variable, float | None]:
    """Return what becomes of all that depends on some variables whose elements have one value each.

    What is not among these variables is taken for finite. The result has one value for all elements
    of a variable, or None if it cannot be told.
    """
    outcome = dict(given)
    for node in nodes:
        if isinstance(node.op, Shape | Shape_i) or not outcome.keys().isdisjoint(node.outputs):
            continue
        if not outcome.keys().isdisjoint(node.inputs):
            outcome.update(zip(node.outputs, _outcomes(node, outcome, walk), strict=True))
    return outcome


def _outcomes(
    node: Apply, outcome: Mapping[Variable, float | None], walk: Walk
) -> Sequence[float | None]:
    op: Any = node.op
    unknown = [None] * len(node.outputs)
    if isinstance(op, OpFromGraph):
        inputs = zip(op.inner_inputs, node.inputs, strict=True)
        inner = {inside: outcome[outside] for inside, outside in inputs if outside in outcome}
        found = _follow(nodes_to(op.inner_outputs), inner, walk)
        return [found.get(output) for output in op.inner_outputs]
    if len(node.outputs) > 1:
        return unknown
    if isinstance(op, Elemwise):
        return [_of_elements(node, outcome, walk)]
    values = [outcome.get(source) for source in node.inputs]
    if isinstance(op, MOVES) and outcome.keys().isdisjoint(node.inputs[1:]):
        return values[:1]
    if isinstance(op, Join | MakeVector):
        joined = (
            values
            if isinstance(op, MakeVector)
            else [v for v, s in zip(values, node.inputs, strict=True) if s.type.ndim]
        )
        return joined[:1] if all(_same(value, joined[0]) for value in joined) else unknown
    if isinstance(op, CAReduce):
        return values if _same(_apply(op.scalar_op, values * 2), values[0]) else unknown
    if isinstance(op, Dot) or (isinstance(op, Blockwise) and isinstance(op.core_op, Dot)):
        place = 0 if node.inputs[0] in outcome else 1
        value, matrix = values[place], node.inputs[1 - place]
        if value is None or matrix in outcome or not _is_refused(value):
            return unknown
        # Sums of -inf are -inf, but for those of zeros times -inf, which are NaN: the other case.
        constant = _constant(matrix, walk)
        is_weight = constant is not None and (constant >= 0).all()
        return [value] if is_weight or np.isnan(value) else unknown
    if isinstance(op, INDEXED_UPDATES) and node.inputs[1] in outcome:
        return [_of_update(node, outcome, walk)]
    return unknown


def _of_update(node: Apply, outcome: Mapping[Variable, float | None], walk: Walk) -> float | None:
    """Return the outcome of an update that reaches all elements of an array."""
    if not outcome.keys().isdisjoint([node.inputs[0], *node.inputs[2:]]):
        return None
    try:
        places = places_of(node.op, node, walk)
    except UnknownError:
        return None
    is_all = len(np.unique(places)) == walk.labels_of(node.inputs[0]).size
    value = outcome[node.inputs[1]]
    return value if is_all and _is_refused(value) else None


def _of_elements(node: Apply, outcome: Mapping[Variable, float | None], walk: Walk) -> float | None:
    """Return the outcome for each element, if it does not depend on what is not known."""
    arguments: list[Any] = []
    for place, source in enumerate(node.inputs):
        if source in outcome:
            arguments.append(outcome[source])
            continue
        constant = _constant(source, walk)
        if constant is not None and constant.size and (constant == constant.flat[0]).all():
            arguments.append(float(constant.flat[0]))
        else:
            arguments.append(PROBES[:, place % 8].astype(source.type.dtype))
    if isinstance(node.op.scalar_op, Switch) and isinstance(arguments[0], float):
        chosen = arguments[1 if arguments[0] else 2]
        arguments = [arguments[0], chosen, chosen]
    if any(argument is None for argument in arguments):
        return None
    rows = np.broadcast_arrays(*arguments)
    results = [
        _apply(node.op.scalar_op, row) for row in zip(*map(np.atleast_1d, rows), strict=True)
    ]
    return results[0] if all(_same(result, results[0]) for result in results) else None


def _constant(variable: Variable, walk: Walk) -> NDArray[Any] | None:
    try:
        return np.asarray(walk.value_of(variable))
    except UnknownError:
        return None


def _apply(scalar_op: Any, arguments: Sequence[Any]) -> float | None:
    if any(argument is None for argument in arguments):
        return None
    with np.errstate(all="ignore"):
        try:
            return float(scalar_op.impl(*map(np.asarray, arguments)))
        except (ArithmeticError, TypeError, ValueError, NotImplementedError):
            return None


def _same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return False
    return first == second or (np.isnan(first) and np.isnan(second))
