"""The densities of a target as functions for Numba: values in, values out.

Each density is two graphs of PyTensor, the prior and the rest. A graph takes all values of an
evaluation and returns all of them, those that it does not change as they are, so that nothing has
to be wired by hand: what joins the stages of a density is PyTensor.

Numbers are numbers here, not arrays without dimensions. Data, shared variables as well as large
constants, follow the values of an evaluation, so that they need be compiled into no program.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.ops import DeepCopyOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.graph.type import Type
from pytensor.link.numba.dispatch import basic as numba_dispatch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.rewriting.basic import local_scalar_tensor_scalar, local_tensor_scalar_tensor

from pymc_apm._compat import get_shared, numba_function, numba_graph
from pymc_apm.adaptive.factors import summing
from pymc_apm.compiled.fingerprint import walk
from pymc_apm.compiled.vectorised import with_vectorised_math
from pymc_apm.density.evaluate import make_density
from pymc_apm.density.target import Target
from pymc_apm.types import FREE, Evaluation, LogDensity

INLINE_DATA = 64
"""Constants of more elements than this are data."""


class Graph(NamedTuple):
    """A graph from new positions, if there are any, and all values to all values.

    Attributes
    ----------
    inputs, outputs : list of Variable
    """

    inputs: list[Variable]
    outputs: list[Variable]

    def digest(self) -> str | None:
        """Return what tells it from other graphs; None if that cannot be said."""
        return digest_of_graph(self.inputs, self.outputs)


class Densities:
    """The densities of a target for compiled code.

    Parameters
    ----------
    target : Target

    Attributes
    ----------
    data : list
        Arrays, and shared variables that hold arrays, that follow the values of an evaluation.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._variables = [*target.inputs.values()]
        for placed in target.stages:
            self._variables += placed.stage.results
        self._variables += [pt.lvector() for _ in target.constants]
        results = [result for placed in target.stages for result in placed.stage.results]
        self.data = [
            variable
            for variable in graph_inputs(results)
            if (isinstance(variable, SharedVariable) and variable not in self._variables)
            or (isinstance(variable, Constant) and np.size(variable.data) > INLINE_DATA)
        ]

    def graphs(self, *names: str) -> tuple[Graph | None, Graph]:
        """Return the graphs of the prior, if it changes, and of the rest."""
        plan = self._target.plan(*names)
        if not plan.prior:
            return None, self._graph(plan.places, plan.others)
        return self._graph(plan.places, plan.prior), self._graph((), plan.others)

    def _graph(self, positions: Sequence[int], stages: Sequence[int]) -> Graph:
        """Join some stages; new positions come first among the inputs, then all values."""
        computed = [place for number in stages for place in self._target.stages[number].outputs]
        given = [variable.type() for variable in self._variables]
        data = [variable.type() for variable in self.data]
        new = {place: self._variables[place].type() for place in positions}
        replace = {
            variable: new.get(place, given[place])
            for place, variable in enumerate(self._variables)
            if place not in computed and not isinstance(variable, Constant)
        }
        results = clone_replace(
            [self._variables[place] for place in computed],
            replace=replace | dict(zip(self.data, data, strict=True)),
            rebuild_strict=False,
        )
        new |= zip(computed, results, strict=True)
        outputs = [new.get(place, variable) for place, variable in enumerate(given)]
        return Graph([*(new[place] for place in positions), *given, *data], [*outputs, *data])

    def essence(self, *names: str) -> tuple[Any, ...]:
        """Return what tells the density as a function of some inputs from others.

        The same graphs may be another density: what is added up of all that they compute differs.
        """
        plan, sums = self._target.plan(*names), self._target.sums
        return self.graphs(*names), sums, plan.computes_estimate, plan.changes_theta

    def density(self, *names: str) -> LogDensity:
        """Return the log density as a function of some inputs, as functions for Numba."""
        plan = self._target.plan(*names)
        prior_graph, others_graph = self.graphs(*names)
        take = _as_it_is if len(plan.places) > 1 else _in_tuple
        sums = self._target.sums
        others_function = self._function(others_graph)
        log_exact, log_estimate = summing(sums["exact"]), summing(sums["estimate"])

        def clamped_prior(position: Any, evaluation: Evaluation) -> Any:
            return evaluation.log_prior, take(position) + evaluation.values

        def others(values: Any) -> Any:
            made = others_function(*values)
            estimate = log_estimate(made)
            if estimate == math.inf:
                raise FloatingPointError("The log-estimate is +inf.")
            return log_exact(made), estimate, 0, made

        prior = clamped_prior
        if prior_graph is not None:
            prior = self._prior(take, prior_graph)
        return make_density(prior, others, plan.computes_estimate, plan.changes_theta)

    def _prior(self, take: Callable[[Any], Any], graph: Graph) -> Callable[..., Any]:
        function, log_prior = self._function(graph), summing(self._target.sums["prior"])

        def prior(position: Any, evaluation: Evaluation) -> Any:
            made = function(*(take(position) + evaluation.values))
            return log_prior(made), made

        return prior

    def _function(self, graph: Graph) -> Any:
        """Return a graph as a function for Numba."""
        with self._target.model:  # the compiler heeds its check_bounds, also for graphs of ops
            rewritten = numba_graph(graph.inputs, graph.outputs, with_vectorised_math)
            return numba_function(_on_numbers(rewritten))

    # Evaluations

    def to_numba(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation of the target with data, as arguments for Numba."""
        values = [
            _as_type(value, variable)
            for value, variable in zip(evaluation.values, self._variables, strict=True)
        ]
        return evaluation._replace(values=(*values, *(_as_type(_value(d), d) for d in self.data)))

    def example(self) -> Evaluation:
        """Return arguments of the types that :meth:`to_numba` returns."""
        variables = [*self._variables, *self.data]
        values = [_as_type(np.zeros((1,) * v.type.ndim), v) for v in variables]
        return Evaluation(tuple(values), 0.0, 0.0, 0.0, 0.0, FREE, -math.inf)

    def from_numba(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation of the target from what compiled code returned."""
        values = [
            np.asarray(value, dtype=variable.type.dtype)
            for value, variable in zip(evaluation.values, self._variables, strict=False)
        ]
        return evaluation._replace(values=tuple(values))


def _in_tuple(position: Any) -> tuple[Any, ...]:
    return (position,)


def _as_it_is(position: Any) -> Any:
    return position


def _value(item: Any) -> NDArray[Any]:
    return get_shared(item) if isinstance(item, SharedVariable) else np.asarray(item.data)


def _as_type(value: Any, variable: Variable) -> Any:
    """Return a number, or an array of its own, of just the type that was compiled for."""
    dtype = np.dtype(variable.type.dtype)
    return dtype.type(value) if variable.type.ndim == 0 else np.array(value, dtype=dtype, order="C")


class Contiguous(Op):
    """Returns an array whose elements lie one after the other, so that its type is known."""

    __props__ = ()

    def make_node(self, x: Variable) -> Apply:
        """Make a node of the graph."""
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Copy the array if need be."""
        outputs[0][0] = np.ascontiguousarray(inputs[0])


@numba_dispatch.register_funcify_default_op_cache_key(Contiguous)
def _compile_contiguous(op: Op, node: Apply | None = None, **kwargs: Any) -> Any:
    @numba_dispatch.numba_njit
    def contiguous(x: Any) -> Any:
        return np.ascontiguousarray(x)

    return contiguous


def _on_numbers(graph: FunctionGraph) -> FunctionGraph:
    """Let a graph take and return numbers, and arrays as they are or contiguous ones."""
    copies = [node for node in graph.toposort() if isinstance(node.op, DeepCopyOp)]
    for node in copies:  # nobody changes a value, so that it need not be copied
        graph.replace(node.outputs[0], node.inputs[0], import_missing=True)
    inputs = [
        variable.type() if variable.type.ndim else ps.get_scalar_type(variable.type.dtype)()
        for variable in graph.inputs
    ]
    replacements = {
        old: new if old.type.ndim else pt.tensor_from_scalar(new)
        for old, new in zip(graph.inputs, inputs, strict=True)
    }
    results = clone_replace(list(graph.outputs), replace=replacements, rebuild_strict=False)
    same = dict(zip(graph.inputs, inputs, strict=True))
    outputs = [
        same[old] if old in same else _plain(new)
        for old, new in zip(graph.outputs, results, strict=True)
    ]
    made = FunctionGraph(inputs, outputs, clone=False)
    _without_arrays_of_one_number.rewrite(made)
    return made


@node_rewriter([Elemwise])
def _on_one_number(graph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Compute a function of numbers from numbers: an array of one has to be allocated."""
    if any(variable.type.ndim for variable in [*node.inputs, *node.outputs]):
        return None
    numbers = [pt.scalar_from_tensor(variable) for variable in node.inputs]
    return [pt.tensor_from_scalar(o) for o in node.op.scalar_op(*numbers, return_list=True)]


_without_arrays_of_one_number = in2out(
    _on_one_number, local_scalar_tensor_scalar, local_tensor_scalar_tensor, name="numbers"
)


def _plain(output: Variable) -> Variable:
    return pt.scalar_from_tensor(output) if output.type.ndim == 0 else Contiguous()(output)


def digest_of_graph(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> str | None:
    """Return what tells a graph from others: ops, types, constants and how they are joined."""
    number: dict[Variable, int] = {}
    parts = []
    for variable in inputs:
        number[variable] = len(number)
        parts.append(f"input {variable.type!r}")

    def name_of(variable: Variable) -> str:
        if variable in number:
            return str(number[variable])
        if isinstance(variable, Constant):
            return f"constant {variable.type!r} {_digest_of_property(variable.data)}"
        raise _UnknownError

    try:
        for node in toposort(outputs, blockers=inputs):
            parts.append(f"{_digest_of_op(node.op)} of {[name_of(v) for v in node.inputs]}")
            for variable in node.outputs:
                number[variable] = len(number)
                parts.append(f"gives {variable.type!r}")
        parts.append(f"returns {[name_of(variable) for variable in outputs]}")
    except _UnknownError:
        return None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _UnknownError(Exception):
    """Something in a graph of which it cannot be said what tells it from others."""


def _digest_of_op(op: Any) -> str:
    """Return what tells an op from others: its class, its properties, its inner graph."""
    parts = [f"{type(op).__module__}.{type(op).__qualname__}"]
    if type(op).__module__.partition(".")[0] not in KNOWN_OPS:
        raise _UnknownError  # what Numba makes of it may change without notice
    inner = getattr(op, "fgraph", None)
    if inner is not None:
        digest = digest_of_graph(inner.inputs, inner.outputs)
        if digest is None:
            raise _UnknownError
        parts.append(digest)
        for name in ("info", "is_while"):  # how a loop runs its inner graph
            parts.append(_digest_of_property(getattr(op, name, None)))
    elif isinstance(op, ps.ScalarOp):  # which types it gives is said of the outputs of a node
        simple = {name: value for name, value in vars(op).items() if isinstance(value, SIMPLE)}
        parts.append(_digest_of_property(simple))
    elif not hasattr(op, "__props__"):
        raise _UnknownError
    for name in getattr(op, "__props__", None) or ():
        if name != "output_types_preference":
            parts.append(f"{name}={_digest_of_property(getattr(op, name))}")
    return " ".join(parts)


def _digest_of_property(value: Any) -> str:
    if isinstance(value, Op):
        return _digest_of_op(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_digest_of_property, value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _digest_of_property(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=repr)
        return f"{{{', '.join(_digest_of_property(item) for item in items)}}}"
    if isinstance(value, np.ndarray | np.generic | FunctionType):
        digest = walk(value).digest
        if digest is None:
            raise _UnknownError
        return digest
    if value is None or isinstance(value, SIMPLE):
        return f"{type(value).__name__} {value!r}"
    raise _UnknownError


KNOWN_OPS = ("pytensor", "pymc", "pymc_apm")
"""Modules of which the versions are part of every key, so that what their ops do is known."""

SIMPLE = (bool, int, float, complex, str, bytes, type, slice, frozenset, np.dtype, Type)
"""What is told from others by how it is written."""
