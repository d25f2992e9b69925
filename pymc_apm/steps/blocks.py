"""Handing out the draws of compiled blocks one at a time.

To call compiled code with a generator takes tens of microseconds, so that it makes many draws at a
time. A block is valid as long as the chain goes on from each of its draws: if another step, or a
callback, changes the point or u in between, the chain goes back to the last draw that was handed
out and on from the point at hand. To go back means to run the block again from its start, with the
state that the generator had there, as far as it was used. So the chain is the same as that of one
transition after the other, and a saved state is that of the last draw.
"""

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm._compat import get_shared, storage_of
from pymc_apm.errors import CompileError, EstimatorError, see
from pymc_apm.kernels.state import FloatVector
from pymc_apm.target import IMPOSSIBLE, THETA, Evaluation
from pymc_apm.updates.random_walk import n_proposals
from pymc_apm.updates.table import LOG_DENSITY, LOG_ESTIMATE, N_UPDATES

if TYPE_CHECKING:
    from pymc_apm.compiled.chain import Block, Chain
    from pymc_apm.steps.compilable import CompilableStep

logger = logging.getLogger("pymc.apm")

SECONDS = 0.02
"""How long a block takes at the most: progress and Ctrl-C wait for it."""

NEGLIGIBLE = 0.002
"""A block of so many seconds may be run in vain, where tuning ends or the chain."""

SHARE = 8
"""A longer one has at most one part in this of the draws that were made so far."""

MAX_DRAWS = 2000
"""How many draws a block has at the most: what is made of more would not stay in the caches."""

MEMORY = 2**24
"""How many bytes the draws of a block take at the most."""

PATIENCE = 3.0
"""Seconds of compilation after which the user is told of it."""

SWITCH = "PYMC_APM_COMPILE"
"""The environment variable that turns ``compile="auto"`` into ``False`` if it is 0."""


class _Start(NamedTuple):
    """All that is needed to run a block again."""

    values: list[FloatVector]
    rng_state: Any
    learnt: Any
    tune: bool


class Blocks:
    """The compiled side of a step.

    Parameters
    ----------
    step : CompilableStep
    chain : Chain
        Its transitions, compiled.

    Attributes
    ----------
    n_suspended : int
        How many draws are to be made in Python, because something went wrong in compiled code: the
        error is raised where it can be explained.
    """

    def __init__(self, step: "CompilableStep", chain: "Chain") -> None:
        self._chain = chain
        self._target = target = step.target
        self._entries = [
            (name, shape, dtype, slice(start, stop))
            for name, shape, dtype, start, stop in target.layout.entries
        ]
        self._moved = [block.variable for block in step._u_blocks]
        self._others = [u for u in target.randomness if u not in self._moved]
        n_numbers = target.layout.size + sum(get_shared(u).size for u in self._moved)
        self._max_length = max(min(MEMORY // (8 * n_numbers), MAX_DRAWS), 1)
        self.forget()

    def forget(self) -> None:
        """Forget the chain."""
        self.n_suspended = 0
        self._block: Block | None = None
        self._length = 1
        self._n_made = 0
        self._next = 0
        self._n_draws = 0
        self._is_ahead = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave the chain behind."""
        kept = ("_chain", "_target", "_entries", "_moved", "_others", "_max_length")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.forget()

    # Draws

    def next_draw(
        self, step: "CompilableStep", point: dict[str, NDArray[Any]]
    ) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]] | None:
        """Hand out the next draw, or nothing where it is to be made in Python."""
        # Whether the chain is where the last draw left it is found by value: with several cores
        # the arrays of a point are memory that PyMC overwrites.
        number = self._next
        goes_on = number > 0
        if goes_on:
            for name, _, seen in self._points:
                if point[name].tobytes() != seen[number - 1]:
                    goes_on = False
            for name, value in self._seen_rest:
                if point[name].tobytes() != value:
                    goes_on = False
            for storage, values in self._us:
                if storage[0] is not values[number - 1]:
                    goes_on = False
            for storage, u in self._seen_u:
                if storage[0] is not u:
                    goes_on = False
        if not goes_on or number == self._n_draws:
            if goes_on:
                self._continue(step)
            elif not self.n_suspended:
                self._begin(step, point)
            if self.n_suspended:
                return None
            number = 0
        self._next = number + 1
        point = point.copy()
        for name, values, _ in self._points:
            point[name] = values[number]
        for storage, values in self._us:
            storage[0] = values[number]
        return point, [self._stats[number]]

    def _continue(self, step: "CompilableStep") -> None:
        """Run the next block, from the last draw of this one."""
        self.go_back_to_last_draw(step)
        self._n_made += self._n_draws
        affordable = SECONDS / self._seconds_per_draw
        expendable = max(NEGLIGIBLE / self._seconds_per_draw, self._n_made / SHARE)
        longest = min(2 * self._length, affordable, expendable, self._max_length)
        self._length = max(int(longest), 1)
        n_left = step.n_tune - self._n_made
        if n_left <= 0:
            n_left += step.n_draws
        if n_left > 0:  # PyMC has announced how many draws there will be
            self._length = min(self._length, n_left)
        self._run(step, self._values_at_last_draw())

    def _begin(self, step: "CompilableStep", point: dict[str, NDArray[Any]]) -> None:
        """Run a block from the point at hand, whoever left the chain there."""
        target = self._target
        n_evals = n_theta_evals = 0
        theta, rest = target.layout.ravel(point), target.rest.ravel(point)
        if self._block is None:
            if not step.is_started:
                step.check_start(theta, rest)
            values = step.values_of_blocks(theta, rest)
        else:
            self.go_back_to_last_draw(step)
            values = step.values_of_blocks(theta, rest)
            last = dict(zip(target.places, self._values_at_last_draw(), strict=True))
            changed = [name for name in values if not np.array_equal(values[name], last[name])]
            if changed:
                plan = target.plan(*changed)
                n_evals, n_theta_evals = plan.computes_estimate, plan.changes_theta
        self._seen_rest = [
            (entry.name, point[entry.name].tobytes()) for entry in target.rest.entries
        ]
        self._seen_u = [(storage_of(u), get_shared(u)) for u in self._others]
        self._length, self._n_made = 1, 0
        # Copies, because a block that is run again must start from the same values.
        self._run(step, [values[n].copy() for n in target.places], n_evals, n_theta_evals)

    def _run(
        self,
        step: "CompilableStep",
        values: list[FloatVector],
        n_evals: int = 0,
        n_theta_evals: int = 0,
    ) -> None:
        """Run a block; the first draw may have cost some evaluations already."""
        self._start = _Start(values, step.rng.bit_generator.state, step.learnt, step.tune)
        began = time.perf_counter()
        block = self._repeat(step, self._length)
        self._seconds_per_draw = (time.perf_counter() - began) / self._length
        if block is None or block.n_draws < self._length:
            self._suspend(step, block)
            return
        self._block, self._n_draws, self._next = block, block.n_draws, 0
        self._is_ahead = True
        self._points = []
        for name, shape, dtype, where in self._entries:
            table = block.thetas[:, where].astype(dtype)
            seen = [row.tobytes() for row in table]
            self._points.append((name, _rows(table, shape), seen))
        self._us = [
            (storage_of(variable), _rows(u, variable.type.shape))
            for variable, u in zip(self._moved, block.us, strict=True)
        ]
        self._make_stats(step, block.table, n_evals, n_theta_evals)

    def _repeat(self, step: "CompilableStep", n_draws: int) -> "Block | None":
        """Run the current block, or its beginning again; nothing if there was an exception."""
        start = self._start
        step.rng.bit_generator.state = start.rng_state
        try:
            return self._chain.run(
                start.tune, step.rng, n_draws, step.thin, start.values, step.options, start.learnt
            )
        except Exception:
            return None

    def _suspend(self, step: "CompilableStep", block: "Block | None") -> None:
        """Go back to the start of a block in which something went wrong, and on in Python."""
        start = self._start
        step.rng.bit_generator.state = start.rng_state
        step.learnt = start.learnt
        n_draws = self._length
        self.forget()
        if block is not None and step.is_started and not block.start[0] > -np.inf:
            raise EstimatorError(
                "The estimate is zero at the point at which another step, or a callback, left the "
                f"chain: {step.target.describe(start.values)}."
            )
        self.n_suspended = n_draws

    def go_back_to_last_draw(self, step: "CompilableStep") -> None:
        """Take back all that was computed ahead of the last draw that was handed out."""
        if self._block is None or not self._is_ahead:
            return
        if self._next < self._n_draws:
            block = self._repeat(step, self._next)
            assert block is not None and block.n_draws == self._next, "a block differs from itself"
            self._block, self._n_draws = block, self._next
        step.learnt = self._block.learnt
        self._is_ahead = False

    def _values_at_last_draw(self) -> list[FloatVector]:
        """Return the value of each block of the target at the last draw."""
        assert self._block is not None
        values = list(self._start.values)
        places = self._target.places
        values[places[THETA]] = self._block.thetas[self._next - 1]
        for variable, u in zip(self._moved, self._block.us, strict=True):
            values[places[variable.name]] = u[self._next - 1]
        return values

    def _make_stats(
        self, step: "CompilableStep", table: FloatVector, n_evals: int, n_theta_evals: int
    ) -> None:
        """Make the statistics of each draw, as PyMC wants them."""
        counts = table[:, :3].astype(np.int64)
        counts[0, :2] += n_evals, n_theta_evals
        is_joint = step.proposes_jointly(self._start.tune)
        dim = step.target.layout.size
        n_u_updates = n_proposals(step.options, dim) if is_joint else len(self._moved)
        n_updates, n_moved, accept_rate, scale, n_u_moved = table[:, N_UPDATES:].T
        stats = step.make_stats(
            n_updates, n_moved, accept_rate, scale, step.thin * n_u_updates, n_u_moved
        )
        stats["log_estimate"] = table[:, LOG_ESTIMATE]
        columns = {name: column.tolist() for name, column in stats.items()}
        columns["n_evals"], columns["n_theta_evals"], columns["n_nan"] = counts.T.tolist()
        columns["n_random"] = [step.target.n_fixed] * len(table)
        columns["n_cubic"] = [0] * len(table)
        self._stats = list(map(_row_maker(tuple(columns)), *columns.values()))

    # What a step wants to know

    def evaluate(self, step: "CompilableStep", values: dict[str, FloatVector]) -> Evaluation:
        """Evaluate the target from scratch."""
        target = self._target
        given = [values[name] for name in target.places]
        try:
            block = self._chain.run(True, step.rng, 0, step.thin, given, step.options, step.learnt)
        except Exception:
            return target.start(values)
        log_density, log_estimate, log_prior, log_exact, is_infinite = block.start.tolist()
        if is_infinite:
            return target.start(values)
        if not log_prior > -np.inf:
            return IMPOSSIBLE
        return Evaluation(tuple(given), log_density, log_estimate, log_prior, log_exact)

    def evaluation(self) -> Evaluation | None:
        """Return the evaluation at the last draw, computed anew in Python."""
        if self._block is None:
            return None
        target = self._target
        return target.start(dict(zip(target.places, self._values_at_last_draw(), strict=True)))

    def log_density(self) -> float:
        """Return the log density at the last draw."""
        assert self._block is not None
        return float(self._block.table[self._next - 1, LOG_DENSITY])


def _rows(values: NDArray[Any], shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Return the rows of a table as arrays of the given shape, not copies of them."""
    if shape == ():
        return [values[i, 0, ...] for i in range(len(values))]
    return list(values.reshape(len(values), *shape))


@functools.cache
def _row_maker(names: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """Return a function that makes a dict from its values.

    A display with fixed keys takes half as long as to put keys and values together each time.
    """
    items = ", ".join(f"{name!r}: {name}" for name in names)
    make_row: Callable[..., dict[str, Any]] = eval(f"lambda {', '.join(names)}: {{{items}}}")
    return make_row


def make_blocks(step: "CompilableStep", compile: Literal["auto"] | bool) -> Blocks | None:
    """Compile the transitions of a step, if that is wanted and possible."""
    name = type(step).__name__
    if compile is False or (compile == "auto" and os.environ.get(SWITCH) == "0"):
        return None
    obstacle = step.obstacle_to_compilation(compile == "auto")
    if obstacle is None:
        try:
            with _patience(name) as seconds:
                blocks = Blocks(step, _compiled_chain(step))
            logger.info(f"{name} is compiled, in {seconds():.1f} s.")
            return blocks
        except CompileError as error:
            obstacle = str(error)
        except Exception as error:  # PyTensor and Numba have many ways to say no
            if compile is True:
                raise
            obstacle = f"There was an error: {error!r}."
    if compile is True:
        raise CompileError(f"{name} cannot be compiled. {obstacle} {see('compiled')}")
    logger.info(f"{name} runs in Python. {obstacle}")
    return None


def _compiled_chain(step: "CompilableStep") -> "Chain":
    # numba takes long to import, so it is done here.
    from pymc_apm.compiled.chain import Chain
    from pymc_apm.compiled.rules import Rules, UMove

    is_slice = step.u_update == "slice"
    moves = []
    for block in step._u_blocks:
        kind = block.variable.tag.apm_randomness
        kernel = kind.slice_kernel if is_slice else None
        moves.append(UMove(block.variable.name, kernel, kind.draw_elements, kind.correlated_kernel))
    rules = Rules(
        moves,
        type(step).learn_theta,
        type(step).update_theta,
        (step.proposes_jointly(True), step.proposes_jointly(False)),
        step.correlation,
    )
    values = step.values_of_blocks(
        np.zeros(step.target.layout.size), np.zeros(step.target.rest.size)
    )
    chain = Chain(step.target, rules)
    chain.compile(list(values.values()), step.options, step.learnt)
    return chain


@contextmanager
def _patience(name: str) -> Iterator[Callable[[], float]]:
    """Tell the user what is going on, if it takes long; measure how long it takes."""
    began = time.perf_counter()
    text = f"Compiling {name} for this model; the result is kept for the next time."
    timer = threading.Timer(PATIENCE, lambda: logger.warning(text))
    timer.daemon = True
    timer.start()
    try:
        yield lambda: time.perf_counter() - began
    finally:
        timer.cancel()
