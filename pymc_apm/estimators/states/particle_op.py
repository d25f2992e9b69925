"""The particle filter as an op with the user's functions compiled in.

The op runs Python, which calls one function of Numba for all times and particles. Where Numba
cannot compile the functions of a model, or where the user wants nothing compiled, the very same
filter runs in Python, and calls functions that PyTensor made at each time.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from pymc_apm._compat import compile_function, numba_function, numba_graph, with_gradient
from pymc_apm.errors import CompileError, EstimatorError, see
from pymc_apm.estimators.states.conditional import Inverse, make_refresh
from pymc_apm.estimators.states.filter import (
    Before,
    Bounds,
    Filtered,
    ParticleModel,
    make_filter,
    make_piece,
    no_bounds,
    no_lookahead,
    nothing_before,
)
from pymc_apm.estimators.states.particle_draws import make_draw
from pymc_apm.estimators.states.particle_graphs import Graphs
from pymc_apm.estimators.states.sorting import (
    first_coordinate,
    hilbert_keys,
    order_by_key,
    order_by_value,
    order_in_boxes,
)

_log = logging.getLogger("pymc.apm")

# Under Numba it runs in Python, which calls Numba again.
warnings.filterwarnings("ignore", message="Numba will use object mode to run ParticleFilter")


class Engine(NamedTuple):
    """A filter, and the update of its random numbers if there is one, to be called from Python.

    Attributes
    ----------
    run, piece, refresh : callable
        As those of :func:`~pymc_apm.estimators.states.filter.make_filter`,
        :func:`~pymc_apm.estimators.states.filter.make_piece` and
        :func:`~pymc_apm.estimators.states.conditional.make_refresh`.
    draw : callable
        As that of :func:`~pymc_apm.estimators.states.particle_draws.make_draw`.
    """

    run: Callable[..., Any]
    piece: Callable[..., Any]
    refresh: Callable[..., Any] | None
    draw: Callable[..., Any]


class Memo(NamedTuple):
    """The last run of a filter: what it was made from, copies of it, and what it returned."""

    inputs: tuple[NDArray[Any], ...]
    filtered: Filtered

    def is_of(self, inputs: Sequence[NDArray[Any]]) -> bool:
        """Say whether it is the run for some inputs, by their values."""
        return all(map(np.array_equal, self.inputs, inputs))


class Options(NamedTuple):
    """What a filter is made from besides graphs.

    Attributes
    ----------
    n_dims : int
        The length of the vector of all states.
    substeps : int
    resets : tuple of int
    lengths : tuple of int
        The number of rows of each series.
    is_panel : bool
        Whether there is an estimate for each series.
    bounds : {None, "check", "stop"}
        Whether there are upper bounds of the log density of each row, to see that they are, or to
        stop early too.
    order : ndarray of int, optional
        The place of each row in what the user gave, for messages.
    """

    n_dims: int
    substeps: int
    resets: tuple[int, ...]
    lengths: tuple[int, ...]
    is_panel: bool
    bounds: Literal["check", "stop"] | None = None
    order: NDArray[np.int64] | None = None


def _as_is(function: Any) -> Any:
    return function


@with_gradient
class ParticleFilter(Op):
    """The log-estimate of a particle filter, from its random numbers, a table and parameters.

    If the options say so, two more inputs follow: upper bounds of the log density of each row, and
    the limit below which an estimate is of no use, see :mod:`pymc_apm.density.limits`.

    Parameters
    ----------
    graphs : Graphs
    options : Options
    """

    __props__ = ()
    calls_python = True
    u_input = 0
    """The input that the op can refresh by itself, see :meth:`refresh`."""

    n_refresh_evals = 0
    """What a refresh costs, in estimates: that of the new u is known from it, and counts there."""

    def __init__(self, graphs: Graphs, options: Options) -> None:
        self.inputs = graphs.inputs
        self.outputs = graphs.outputs
        self.symbols = list(graphs.closure)
        self.n_moving = graphs.n_moving
        self.options = options
        self._engines: dict[str, Engine] = {}
        self._memos: dict[int, Memo] = {}

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engines": {}, "_memos": {}}

    @property
    def limit_input(self) -> int | None:
        """The input that is the limit below which an estimate is of no use."""
        return -1 if self.options.bounds == "stop" else None

    def make_node(self, u: Variable, table: Variable, *parameters: Variable) -> Apply:
        """Make a node of the graph."""
        n_own = len(self.symbols)
        parameters, bounds = parameters[:n_own], parameters[n_own:]
        shape = (len(self.options.lengths),) if self.options.is_panel else ()
        given = [
            parameter if parameter.type.dtype == symbol.type.dtype else parameter.astype("float64")
            for symbol, parameter in zip(self.symbols, parameters, strict=True)
        ]
        output = pt.tensor(dtype="float64", shape=shape)
        return Apply(self, [u, table, *given, *bounds], [output])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Run the filter of each series."""
        u, table, *others = inputs
        args, bounds = self.split(others)
        logs = np.zeros(len(self.options.lengths))
        for number, piece in enumerate(self._pieces(u, table)):
            own = bounds.less(float(logs.sum()))
            logs[number] = self._filtered(number, piece, args, own).log_estimate
            if logs[number] == -np.inf and own.limit > -np.inf:
                logs[:] = -np.inf  # whatever the other series are
                break
        outputs[0][0] = logs if self.options.is_panel else np.array(logs[0])

    def split(self, others: Sequence[Any]) -> tuple[tuple[Any, ...], Bounds]:
        """Return the parameters, and the bounds of all rows, from the inputs after the table."""
        n_own = len(self.symbols)
        args, given = tuple(others[:n_own]), others[n_own:]
        if not given:
            return args, no_bounds()
        each, limit = np.ascontiguousarray(given[0]), float(given[1])
        later = np.append(np.cumsum(each[:0:-1])[::-1], 0.0)
        return args, Bounds(each, later, limit, self.options.bounds == "check")

    def run_rows(
        self, start: int, own: Any, rows: Any, args: Any, keeps: bool, before: Any, bounds: Bounds
    ) -> tuple[Filtered, Before]:
        """Run the filter of some rows, with the bounds of all; an error says if one is none."""
        ours = slice(start, start + len(own))
        own_bounds = bounds._replace(each=bounds.each[ours], later=bounds.later[ours])
        made = self.engine.piece(own, rows, args, keeps, before, own_bounds)
        if made[0].is_above:
            number = start + made[0].n_times - 1
            row = number if self.options.order is None else self.options.order[number]
            raise EstimatorError(
                f"The log density of row {row} of the data is at least {made[0].log_estimate:.6g} "
                f"at one of the particles, above its bound, {bounds.each[number]:.6g}, by which "
                "estimates stop early: give another bound= of state_space, or early_exit=False. "
                f"{see('particles')}"
            )
        return made

    def _run(
        self, number: int, piece: Sequence[Any], args: Any, keeps: bool, bounds: Bounds
    ) -> Filtered:
        """Run the filter of a series."""
        if self.options.bounds is None:
            return self.engine.run(*piece, args, keeps)
        own, rows = piece
        start, before = sum(self.options.lengths[:number]), nothing_before(own.shape[2])
        return self.run_rows(start, own, rows, args, keeps, before, bounds)[0]

    def _filtered(self, number: int, piece: Sequence[Any], args: Any, bounds: Bounds) -> Filtered:
        """Return what the filter of a series makes of some inputs; the last is remembered.

        So to refresh u does not begin with a run of the filter, and does not end with one.
        """
        if not self.can_refresh:
            return self._run(number, piece, args, False, bounds)
        memo, inputs = self._memos.get(number), (*piece, *args)
        if memo is None or not memo.is_of(inputs):
            filtered = self._run(number, piece, args, True, bounds)
            if filtered.log_estimate == -np.inf and bounds.limit > -np.inf:
                return filtered  # with another limit it may be something else
            memo = self._remember(number, inputs, filtered)
        return memo.filtered

    def _remember(self, number: int, inputs: Sequence[Any], filtered: Filtered) -> Memo:
        # Copies: PyTensor may use the memory of its inputs again.
        memo = self._memos[number] = Memo(tuple(np.array(value) for value in inputs), filtered)
        return memo

    def vector_jacobian(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], gradients: Sequence[Variable]
    ) -> list[Variable]:
        """Refuse: there is no gradient."""
        raise NotImplementedError(
            "A particle filter has no gradient with respect to the parameters, which steps like "
            "pm.NUTS need. Use a step that needs none, such as apm.APMSlice() or "
            "apm.APMMetropolis(), for all parameters that it depends on. " + see("particles")
        )

    @property
    def can_refresh(self) -> bool:
        """Whether the op can draw its random numbers afresh by conditional SMC."""
        return "unmove" in self.outputs

    def refresh(
        self, rng: np.random.Generator, u: NDArray[np.float64], table: Any, *parameters: Any
    ) -> NDArray[np.float64] | None:
        """Draw u afresh by conditional SMC, which leaves the target invariant.

        Parameters
        ----------
        rng : Generator
        u, table, *parameters
            The values of the inputs of the op.

        Returns
        -------
        ndarray or None
            The new u; None if it could not be drawn, and is to stay as it is.
        """
        refresh = self.engine.refresh
        assert refresh is not None
        new = rng.standard_normal(u.shape)  # also what is beyond the end of shorter series
        n_uniform, (args, bounds) = 1 + u.shape[-2], self.split(parameters)
        for number, (old, rows) in enumerate(self._pieces(u, table)):
            fresh, _ = self._pieces(new, table)[number]
            _, states, log_weights, *_ = self._filtered(number, (old, rows), args, bounds)
            uniforms = rng.random((len(rows), n_uniform))
            refreshed = refresh(states, log_weights, fresh, uniforms, rows, args)
            if not refreshed.has_moved:
                return None
            fresh[...] = refreshed.u
            self._remember(number, (fresh, rows, *args), refreshed.filtered)
        return new

    def draw(
        self, rng: np.random.Generator, u: NDArray[np.float64], table: Any, *parameters: Any
    ) -> tuple[NDArray[np.float64], ...] | None:
        """Draw states from the particles that u makes; None if the estimate is zero.

        Returns
        -------
        tuple of ndarray, or None
            The parts of :class:`~pymc_apm.estimators.states.particle_draws.Drawn` but the last,
            with the rows of all series along the first axis.
        """
        made, (args, bounds) = [], self.split(parameters)
        for number, (own, rows) in enumerate(self._pieces(u, table)):
            filtered = self._run(number, (own, rows), args, True, bounds)
            if not np.isfinite(filtered.log_estimate):
                return None
            *parts, has_path = self.engine.draw(filtered, rng.random((len(rows), 2)), rows, args)
            if not has_path:
                return None
            made.append(parts)
        return tuple(np.concatenate(column) for column in zip(*made, strict=True))

    def _pieces(self, u: Any, table: Any) -> list[tuple[Any, Any]]:
        """Return what belongs to each series: views."""
        pieces, start = [], 0
        for number, length in enumerate(self.options.lengths):
            own = u[number, :length] if self.options.is_panel else u
            pieces.append((own, table[start : start + length]))
            start += length
        return pieces

    @property
    def engine(self) -> Engine:
        """The filter, compiled when it is first needed."""
        is_interpreted = pytensor.config.mode == "FAST_COMPILE"
        name = "python" if is_interpreted else "numba"
        if name not in self._engines:
            self._engines[name] = self._make_engine(is_interpreted)
        return self._engines[name]

    def _make_engine(self, is_interpreted: bool) -> Engine:
        if not is_interpreted:
            try:
                return self._compiled_engine()
            except CompileError as error:
                _log.info("A particle filter runs in Python, not in Numba: %s", error)
        functions = {
            name: _in_python(self.inputs[name], self.symbols, output)
            for name, output in self.outputs.items()
        }
        return self._engine(functions, _as_is)

    def _compiled_engine(self) -> Engine:
        import numba

        functions = {
            name: _in_numba(self.inputs[name], self.symbols, output)
            for name, output in self.outputs.items()
        }
        return self._engine(functions, numba.njit)

    def _engine(self, functions: dict[str, Any], jit: Callable[[Any], Any]) -> Engine:
        """Make a filter from functions, each of its own inputs and a tuple of parameters."""
        log_weights = functions["log_weights"]

        def moved_log_weights(before: Any, x: Any, row: Any, args: Any) -> Any:
            return log_weights(x, row, args)

        guided = functions.get("guided", jit(moved_log_weights))
        by_value = order_by_value if jit is _as_is else order_in_boxes
        is_simple = self.options.n_dims == 1 and "keys" not in functions
        model = ParticleModel(
            functions["start"],
            functions["move"],
            log_weights,
            guided,
            lookahead=functions.get("lookahead", no_lookahead),
            keys=functions.get("keys", first_coordinate if is_simple else hilbert_keys),
            order=by_value if is_simple else order_by_key,
            substeps=self.options.substeps,
            size=self.n_moving,
            resets=self.options.resets,
        )
        run, piece = jit(make_filter(model, jit)), jit(make_piece(model, jit))
        refresh = None
        draw = jit(make_draw(functions.get("log_transition"), jit))
        if self.can_refresh:
            inverse = Inverse(
                *[functions[name] for name in ("log_transition", "unstart", "unmove")]
            )
            refresh = jit(make_refresh(model, inverse, jit))
        return Engine(run, piece, refresh, draw)


def _in_python(
    inputs: Sequence[Variable], symbols: Sequence[Variable], output: Variable
) -> Callable[..., Any]:
    """Return a graph as a function of Python, whose last argument is a tuple of parameters."""
    function = compile_function([*inputs, *symbols], [output])

    def call(*arguments: Any) -> Any:
        return function(*arguments[:-1], *arguments[-1])[0]

    return call


def _in_numba(
    inputs: Sequence[Variable], symbols: Sequence[Variable], output: Variable
) -> Callable[..., Any]:
    """Return a graph as a function for Numba, whose last argument is a tuple of parameters."""
    import numba

    graph = numba_graph([*inputs, *symbols], [output], _as_is)
    function = numba_function(graph)
    if len(inputs) == 2:

        def call_2(first: Any, second: Any, args: Any) -> Any:
            return function(first, second, *args)[0]

        return numba.njit(call_2)
    if len(inputs) == 3:

        def call_3(first: Any, second: Any, third: Any, args: Any) -> Any:
            return function(first, second, third, *args)[0]

        return numba.njit(call_3)

    def call_4(first: Any, second: Any, third: Any, fourth: Any, args: Any) -> Any:
        return function(first, second, third, fourth, *args)[0]

    return numba.njit(call_4)
