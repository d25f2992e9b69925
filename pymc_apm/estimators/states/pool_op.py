"""The pool estimator as an op: the user's transition density compiled in, with a gradient.

The likelihood of a hidden Markov model whose states are the points of a pool, by the forward
recursion. The densities of transitions between all pairs of points are computed for a chunk of rows
at a time, so that the memory taken does not grow with the product of rows and pairs. The gradient
is Fisher's identity: the mean of the gradient of the log density of transitions and weights, over
pairs of points given all data, by the backward recursion.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedType, grad, grad_undefined
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch import basic as numba_dispatch
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import compile_function, numba_function, numba_graph, with_gradient
from pymc_apm.estimators.states import forward
from pymc_apm.estimators.states.parts import vectorise
from pymc_apm.estimators.states.specification import Specification

CHUNK = 2**14
"""How many pairs of points are looked at in one go: as many as the caches of a processor hold."""

N_OWN = 4
"""The number of inputs of the op before those of the density: those named in `Pool.make_node`."""


def pool_forward(
    specification: Specification,
    log_w: TensorVariable,
    points: TensorVariable,
    compile_kwargs: Mapping[str, Any] | None = None,
) -> tuple[TensorVariable, TensorVariable]:
    """Return the log-estimates of all series, and the logs of the forward weights of all points.

    Parameters
    ----------
    specification : Specification
    log_w : TensorVariable
        The logs of the weights of points without that of transitions, (rows, points).
    points : TensorVariable
        The points, (rows, points, numbers of a state), a function of u alone: no gradient goes
        through them.
    compile_kwargs : dict, optional
        How to compile the density where the op is run by Python.
    """
    density, rows = specification.transition_density(), specification.rows
    n_points = points.type.shape[1]
    bounds, pool = pt.lvector("bounds"), points.type("points")
    chunk = slice(bounds[0], bounds[1])
    before = pool[bounds[0] - 1 : bounds[1] - 1]
    inner: list[TensorVariable] = []
    outer: list[TensorVariable] = []
    if rows.n_series > 1:
        # The first row of a series takes its own points for those before, so that the density,
        # of which no use is made there, is one that can be computed.
        inner.append(pt.lvector("row_before"))
        outer.append(pt.as_tensor_variable(np.arange(len(rows)) - ~rows.is_first))
        before = pool[inner[0][chunk]]
    replace: dict[TensorVariable, TensorVariable] = {}
    for name, batch in specification.split(before[:, :, None, :]).items():
        if name in density.previous:
            replace[density.previous[name]] = batch
    for name, batch in specification.split(pool[chunk][:, None, :, :]).items():
        replace[density.current[name]] = batch
    for name, symbol in density.inputs.items():
        array = pt.as_tensor_variable(specification.row_arrays[name])
        inner.append(array.type(name))
        outer.append(array)
        taken = inner[-1][chunk].astype(symbol.type.dtype)
        replace[symbol] = taken.dimshuffle(0, "x", "x", *range(1, taken.type.ndim))
    (log_f,) = vectorise([density.value], replace)
    if log_f.type.shape[1:] != (n_points, n_points) or log_f.type.shape[0] == 1:
        log_f = pt.broadcast_to(log_f, (bounds[1] - bounds[0], n_points, n_points))
    inputs = [bounds, pool, *inner, *density.closure]
    n_closure = len(density.closure)
    kwargs = compile_kwargs or {"calls_python": True}
    op = Pool(inputs, log_f.astype("float64"), n_closure, kwargs)
    constants = [pt.as_tensor_variable(rows.is_first), pt.as_tensor_variable(rows.series)]
    estimates, log_alpha = op(log_w, points, *constants, *outer, *density.closure.values())
    return pt.specify_shape(estimates, (rows.n_series,)), log_alpha


class ChunkOp(Op):
    """An op with a graph inside, which it runs on chunks of rows.

    Parameters
    ----------
    inputs : sequence of Variable
    outputs : sequence of Variable
    compile_kwargs : dict
        How to compile it where the op is run by Python.

    Attributes
    ----------
    fgraph : FunctionGraph
        The graph inside, of which a copy is made.
    """

    __props__ = ()
    is_compiled = True
    """To compile a chain saves little: most of the time is spent in here, and that is compiled."""

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self.compile_kwargs = dict(compile_kwargs)
        self.fgraph = FunctionGraph(list(inputs), list(outputs), clone=True)
        self._functions: dict[int, Callable[..., Any]] = {}

    # Two of them are the same if they are one.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_functions": {}}

    def graph_of(self, output: int) -> tuple[list[Variable], Variable]:
        """Return the inputs and one of the outputs of the graph inside."""
        return self.fgraph.inputs, self.fgraph.outputs[output]

    def in_python(self, output: int) -> Callable[..., Any]:
        """Return one of the outputs as a function of the inputs."""
        if output not in self._functions:
            inputs, value = self.graph_of(output)
            self._functions[output] = compile_function(inputs, [value], **self.compile_kwargs)
        return self._functions[output]

    def for_numba(self, output: int) -> Any:
        """Return one of the outputs as a function for Numba."""
        from pymc_apm.compiled.vectorised import with_vectorised_math

        inputs, value = self.graph_of(output)
        return numba_function(numba_graph(inputs, [value], with_vectorised_math))

    def cache_key(self) -> str | None:
        """Return what tells its compiled code from that of others; None if that cannot be said."""
        from pymc_apm.compiled.graphs import digest_of_graph

        digest = digest_of_graph(self.fgraph.inputs, self.fgraph.outputs)
        if digest is None:
            return None
        model = pm.Model.get_context(error_if_none=False)
        checks_bounds = model is None or model.check_bounds  # as the compiler does
        sources = inspect.getsource(forward), inspect.getsource(sys.modules[__name__])
        parts = type(self), digest, bool(checks_bounds), *sources
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@with_gradient
class Pool(ChunkOp):
    """The log-estimate of each series by the forward recursion, and the logs of its weights.

    Parameters
    ----------
    inputs : sequence of Variable
        The first row of a chunk, which is not 0, and the row after its last; all points; what else
        the density is a function of.
    log_f : TensorVariable
        The log density of transitions from the row before to a row of the chunk, of shape (rows of
        the chunk, points, points).
    n_closure : int
        How many of the last inputs there may be a gradient with respect to; the rest are data.
    compile_kwargs : dict
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        log_f: TensorVariable,
        n_closure: int,
        compile_kwargs: Mapping[str, Any],
    ) -> None:
        self.n_closure = n_closure
        super().__init__(inputs, [log_f], compile_kwargs)

    def make_node(self, log_w: Variable, points: Variable, *others: Variable) -> Apply:
        """Make a node; after the points come ``is_first`` and ``series``, then other inputs."""
        log_w = pt.as_tensor_variable(log_w).astype("float64")
        outputs = [pt.dvector("estimates"), log_w.type("log_alpha")]
        return Apply(self, [log_w, points, *others], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Run the forward recursion."""
        log_w, points, is_first, series, *others = inputs
        log_w = np.ascontiguousarray(log_w)
        log_alpha, scale = np.empty_like(log_w), np.empty(len(log_w))
        log_alpha[0] = log_w[0]
        scale[0] = forward.normalise(log_alpha[0])
        for start, stop in chunks(*log_w.shape):
            chunk = np.ascontiguousarray(self.transitions(start, stop, points, *others))
            forward.forward_chunk(chunk, log_w, is_first, start, log_alpha, scale)
        outputs[0][0] = forward.totals(log_alpha, scale, is_first, series)
        outputs[1][0] = log_alpha

    def transitions(self, start: int, stop: int, points: Any, *others: Any) -> Any:
        """Return the log densities of transitions to some rows, with the points before first."""
        return self.in_python(0)(np.array([start, stop]), points, *others)[0]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that there is a gradient of the estimates alone."""
        kinds = [variable.type.dtype.startswith("float") for variable in node.inputs]
        return [[is_float, False] for is_float in kinds]

    def vector_jacobian(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], gradients: Sequence[Variable]
    ) -> list[Variable]:
        """Return the gradient, by one op for all inputs."""
        log_w, points, is_first, series, *others = inputs
        moved = [
            place
            for place, variable in enumerate(others)
            if place >= len(others) - self.n_closure
            and variable.type.dtype.startswith("float")
            and not isinstance(variable, Constant | SharedVariable)
        ]
        op = PoolGradient(self, moved)
        gamma, flat = op(gradients[0], outputs[1], log_w, points, is_first, series, *others)
        result: list[Variable] = [gamma, grad_undefined(self, 1, points)]
        result += [DisconnectedType()(), DisconnectedType()()]
        begin: Any = 0
        for place, variable in enumerate(others):
            if place in moved:
                end = begin + variable.size
                result.append(flat[begin:end].reshape(variable.shape).astype(variable.type.dtype))
                begin = end
            elif variable.type.dtype.startswith("float"):
                result.append(pt.zeros_like(variable))
            else:
                result.append(DisconnectedType()())
        return result


class PoolGradient(ChunkOp):
    """The gradient of the sum of weighted log-estimates.

    Parameters
    ----------
    pool : Pool
    moved : sequence of int
        With respect to which of the other inputs, besides ``log_w``, to differentiate.
    """

    def __init__(self, pool: Pool, moved: Sequence[int]) -> None:
        (bounds, points, *others), (log_f,) = pool.fgraph.inputs, pool.fgraph.outputs
        pairs = pt.tensor("pairs", dtype="float64", shape=log_f.type.shape)
        flat = pt.zeros(0)
        if moved:
            slopes = grad(
                None,
                [others[place] for place in moved],
                known_grads={log_f: pairs},
                disconnected_inputs="ignore",
            )
            flat = pt.concatenate([slope.astype("float64").ravel() for slope in slopes])
        inputs = [bounds, pairs, points, *others]
        super().__init__(inputs, [log_f, flat], pool.compile_kwargs)

    def make_node(self, weight: Variable, log_alpha: Variable, *others: Variable) -> Apply:
        """Make a node: the weight of each series, ``log_alpha``, and the inputs of a pool."""
        weight = pt.as_tensor_variable(weight).astype("float64")
        outputs = [log_alpha.type("gamma"), pt.dvector("slopes")]
        return Apply(self, [weight, log_alpha, *others], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Run the backward recursion."""
        weight, log_alpha, log_w, points, is_first, series, *others = inputs
        log_f, slopes = self.in_python(0), self.in_python(1)
        weight, log_w = weight[series], np.ascontiguousarray(log_w)
        log_beta, total = np.zeros_like(log_w), None
        for start, stop in reversed(chunks(*log_w.shape)):
            bounds = np.array([start, stop])
            pairs = np.zeros((stop - start, log_w.shape[1], log_w.shape[1]))
            (chunk,) = log_f(bounds, pairs, points, *others)
            chunk = np.ascontiguousarray(chunk)
            forward.backward_chunk(
                chunk, log_w, is_first, start, log_alpha, log_beta, weight, pairs
            )
            (flat,) = slopes(bounds, pairs, points, *others)
            total = np.array(flat) if total is None else total + flat
        if total is None:  # there are no transitions
            bounds, pairs = np.array([0, 0]), np.zeros((0, log_w.shape[1], log_w.shape[1]))
            total = np.array(slopes(bounds, pairs, points, *others)[0])
        outputs[0][0] = forward.marginals(log_alpha, log_beta, weight)
        outputs[1][0] = total


def chunks(n_rows: int, n_points: int) -> list[tuple[int, int]]:
    """Return the first row of each chunk, and the row after its last; row 0 is in none."""
    length = max(CHUNK // n_points**2, 1)
    return [(start, min(start + length, n_rows)) for start in range(1, n_rows, length)]


@numba_dispatch.register_funcify_and_cache_key(Pool)
def _compile_pool(op: Pool, node: Apply | None = None, **kwargs: Any) -> Any:
    log_f, size = op.for_numba(0), CHUNK
    normalise, run, totals = forward.normalise, forward.forward_chunk, forward.totals

    @numba_dispatch.numba_njit
    def pool(log_w: Any, points: Any, is_first: Any, series: Any, *others: Any) -> Any:
        n_rows, n_points = log_w.shape
        log_w = np.ascontiguousarray(log_w)
        log_alpha, scale = np.empty((n_rows, n_points)), np.empty(n_rows)
        log_alpha[0] = log_w[0]
        scale[0] = normalise(log_alpha[0])
        length = max(size // n_points**2, 1)
        for start in range(1, n_rows, length):
            bounds = np.array([start, min(start + length, n_rows)])
            chunk = log_f(bounds, points, *others)[0]
            run(np.ascontiguousarray(chunk), log_w, is_first, start, log_alpha, scale)
        return totals(log_alpha, scale, is_first, series), log_alpha

    return pool, op.cache_key()


@numba_dispatch.register_funcify_and_cache_key(PoolGradient)
def _compile_gradient(op: PoolGradient, node: Apply | None = None, **kwargs: Any) -> Any:
    log_f, slopes, size = op.for_numba(0), op.for_numba(1), CHUNK
    run, marginals = forward.backward_chunk, forward.marginals

    @numba_dispatch.numba_njit
    def gradient(
        of_series: Any,
        log_alpha: Any,
        log_w: Any,
        points: Any,
        is_first: Any,
        series: Any,
        *others: Any,
    ) -> Any:
        n_rows, n_points = log_w.shape
        log_w = np.ascontiguousarray(log_w)
        log_alpha = np.ascontiguousarray(log_alpha)
        weight = np.empty(n_rows)
        for row in range(n_rows):
            weight[row] = of_series[series[row]]
        log_beta = np.zeros((n_rows, n_points))
        length = max(size // n_points**2, 1)
        n_chunks = (n_rows - 2) // length + 1 if n_rows > 1 else 0
        pairs = np.zeros((0, n_points, n_points))
        total = np.zeros(slopes(np.array([0, 0]), pairs, points, *others)[0].size)
        for number in range(n_chunks - 1, -1, -1):
            start = 1 + number * length
            stop = min(start + length, n_rows)
            bounds = np.array([start, stop])
            pairs = np.zeros((stop - start, n_points, n_points))
            chunk = np.ascontiguousarray(log_f(bounds, pairs, points, *others)[0])
            run(chunk, log_w, is_first, start, log_alpha, log_beta, weight, pairs)
            total += slopes(bounds, pairs, points, *others)[0]
        return marginals(log_alpha, log_beta, weight), total

    return gradient, op.cache_key()
