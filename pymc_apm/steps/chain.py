"""One chain of a step: where it is, what it has learnt, and the draws that are ahead of it.

In Python a chain makes one draw at a time. To call compiled code takes tens of microseconds, so
that it makes a *batch* of draws at a time, which are handed out one by one. If another step, or a
callback, changes the point, u or the data in between, the chain goes back to the last draw that was
handed out and on from there. To go back means to run the batch again from its start, with the
state that the generator had there, as far as it was handed out. So the chain is the same as that of
one transition after the other, and nobody sees a draw before it was handed out.
"""

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from pymc_apm._compat import get_shared, set_shared, storage_of
from pymc_apm.adaptive.transition import Transition, drawing
from pymc_apm.density.target import REST, THETA, Target
from pymc_apm.errors import EstimatorError, see
from pymc_apm.steps.compiling import Compiling
from pymc_apm.steps.movement import Movement
from pymc_apm.steps.statistics import Statistic, row_of, rows_of
from pymc_apm.types import FREE, Cost, Evaluation, FloatVector, Point

if TYPE_CHECKING:
    from pymc_apm.compiled.program import Batch, Program

START_ATTEMPTS = 100
"""How many draws of u are tried at the start of a chain while the estimate is zero."""

SECONDS = 0.02
"""How long a batch takes at the most: progress and Ctrl-C wait for it."""

NEGLIGIBLE = 0.002
"""A batch of so many seconds may be run in vain, where tuning ends or the chain."""

SHARE = 8
"""A longer one has at most one part in this of the draws that were made so far."""

MAX_DRAWS = 2000
"""How many draws a batch has at the most: what is made of more would not stay in the caches."""

MEMORY = 2**24
"""How many bytes the draws of a batch take at the most."""

LARGE = 4096
"""Arrays of more elements are compared by numpy, smaller ones, which is faster, by their bytes."""


Logs: TypeAlias = tuple[float, float, float, float]
"""The logs of an evaluation: the density, the estimate, the prior, the exact likelihood."""


class Evaluated(NamedTuple):
    """Where a chain was evaluated last: all that it takes to evaluate it there again.

    That need not be where the chain is now: another step may have moved the point or u since, and
    to follow it costs an evaluation, which counts.

    Attributes
    ----------
    inputs : dict
        The value of each input of the target.
    logs : tuple of float
        What was computed there.
    """

    inputs: dict[str, FloatVector]
    logs: Logs


class Recipe(NamedTuple):
    """What a step makes its chain from.

    Attributes
    ----------
    build : callable
        ``build(density)`` makes a transition, where ``density(*names)`` is the log density along
        some inputs of the target.
    options : NamedTuple or None
        What the user chose, for the transition.
    start : callable
        ``start()`` returns what is known before anything was learnt.
    freeze : callable
        ``freeze(learnt)`` returns what to use after tuning.
    statistics : dict
        What to record of each draw.
    thin : int
        Transitions for each draw.
    """

    build: Callable[[Callable[..., Any]], Transition]
    options: Any
    start: Callable[[], Any]
    freeze: Callable[[Any], Any]
    statistics: Mapping[str, Statistic]
    thin: int = 1


class _Start(NamedTuple):
    """All that is needed to run a batch again."""

    evaluation: Evaluation
    rng_state: Any
    learnt: Any
    tune: bool


class _Ahead:
    """A batch of draws, of which some were handed out."""

    def __init__(self, start: _Start, batch: "Batch", chain: "Chain", cost: Cost) -> None:
        self.start = start
        self.batch = batch
        self.next = 0
        self.n_draws = len(batch.positions)
        self.points = []
        for name, shape, dtype, first, last in chain.target.layout.entries:
            rows = _rows(batch.positions[:, first:last].astype(dtype), shape)
            self.points.append((name, rows, [row.tobytes() for row in rows]))
        self.us = []
        for variable, where in zip(chain.moved, chain.slices_of_u, strict=True):
            rows = _rows(batch.positions[:, where], variable.type.shape)
            self.us.append((storage_of(variable), rows, [row.tobytes() for row in rows]))
        moved, projection = chain.movement.of_batch(
            self.n_draws,
            [storage[0].reshape(-1) for storage, _, _ in self.us],
            [batch.positions[:, where] for where in chain.slices_of_u],
        )
        self.stats = rows_of(
            chain.recipe.statistics,
            batch.report,
            chain.target.n_fixed,
            batch.log_estimate,
            moved,
            projection,
        )
        if chain.target.has_signs:
            for row, sign in zip(self.stats, batch.sign.tolist(), strict=True):
                row["sign"] = sign
        for name, value in cost._asdict().items():
            self.stats[0][name] += value


class Chain:
    """A chain of (theta, u) on a target.

    Parameters
    ----------
    target : Target
    moved : list of SharedVariable
        The randomness that the chain moves.
    recipe : Recipe
    compiling : Compiling
        Whether and when to compile.

    Attributes
    ----------
    rng : Generator
    n_tune, n_draws : int
        How many draws there will be; 0 if that is not known.
    tune : bool
    is_started : bool
        Whether the chain has a valid starting point.
    """

    n_tune = 0
    n_draws = 0

    def __init__(
        self,
        target: Target,
        moved: Sequence[SharedVariable],
        recipe: Recipe,
        compiling: Compiling,
    ) -> None:
        self.target = target
        self.moved = list(moved)
        self.recipe = recipe
        self.compiling = compiling
        self._rng = np.random.default_rng()
        sizes = [u.tag.apm_randomness.size or 0 for u in self.moved]
        stops = np.cumsum([target.layout.size, *sizes]).tolist()
        self.slices_of_u = [slice(*ends) for ends in itertools.pairwise(stops)]
        self.movement = Movement(self.moved)
        self._max_length = max(min(MEMORY // (8 * stops[-1] + 1), MAX_DRAWS), 1)
        self.restart()

    @functools.cached_property
    def _draw(self) -> Transition:
        """The transitions of a draw, in Python."""
        return drawing(self.recipe.build(functools.cache(self.target.along)))

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to this process and to the chain it runs."""
        self.go_back()
        left = {"_draw", "_evaluation", "_ahead", "_seen_data", "_program"}
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.forget()

    # Its state

    def restart(self) -> None:
        """Forget everything, and what was learnt too."""
        self.forget()
        self.is_started = False
        self._tune = True
        self._learnt = self.recipe.start()

    def forget(self) -> None:
        """Forget where the chain is: it is told again by the next point."""
        self._evaluation: Evaluation | None = None
        self._seen_theta: list[bytes] = []
        self._ahead: _Ahead | None = None
        self._seen_data: list[tuple[list[Any], Any]] = []
        self._program: Program | None = None
        self._expected: Evaluated | None = None
        self._length = 1
        self._n_made = 0
        self._n_in_python = 0
        self._failure: Exception | None = None
        self.compiling.restart()

    def expect(self, evaluated: Evaluated | None) -> None:
        """Take it that the target was evaluated last at some place."""
        self._expected = evaluated

    def find_again(self) -> tuple[Logs, Logs] | None:
        """Evaluate the target of a chain that was restored where it was evaluated last.

        Returns
        -------
        before, now : tuple of float
            The log density and its parts as they were computed there once, and now. None if the
            chain was not restored, or has moved on.
        """
        expected = self._expected
        if expected is None or self._evaluation is not None:
            return None
        evaluation = self.target.start(expected.inputs)
        self._see_data()
        now: Logs = evaluation[1:5]
        if np.allclose(now, expected.logs, rtol=1e-8):
            # Compiled code and Python differ in the last digit, and a chain that is restored is to
            # be the same to the last one.
            evaluation = Evaluation(
                evaluation.values, *expected.logs, evaluation.cost, evaluation.log_height
            )
        self._evaluation = evaluation
        self._seen_theta = self._bytes_of_theta(self.target.layout.unravel(expected.inputs[THETA]))
        self._expected = None
        return expected.logs, now

    def _see_data(self) -> None:
        """Take note of the data, if they leave the factors of the estimate as they are."""
        self.target.check_factors()
        self._seen_data = [(storage_of(data), get_shared(data)) for data in self.target.data]

    @property
    def rng(self) -> np.random.Generator:
        """The generator, as the last draw left it."""
        self.go_back()
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        self.go_back()
        self._rng = rng

    @property
    def tune(self) -> bool:
        """Whether the chain is tuning."""
        return self._tune

    @tune.setter
    def tune(self, tune: bool) -> None:
        self.go_back()
        self._tune = tune

    @property
    def learnt(self) -> Any:
        """What was learnt by the last draw."""
        self.go_back()
        return self._learnt

    @learnt.setter
    def learnt(self, learnt: Any) -> None:
        self.go_back()
        self._learnt = learnt

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of the target at the last draw, if there is one."""
        self.go_back()
        return self._evaluation

    @property
    def evaluated(self) -> Evaluated | None:
        """Where the target was evaluated last, also of a chain that was restored."""
        evaluation = self.evaluation
        if evaluation is None:
            return self._expected
        inputs = {name: self.target.value(evaluation, name) for name in self.target.inputs}
        return Evaluated(inputs, evaluation[1:5])

    @property
    def is_compiled(self) -> bool:
        """Whether draws are made by compiled code."""
        return self._program is not None or self.compiling.is_wanted

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        self.learnt = self.recipe.freeze(self.learnt)
        self.tune = False

    def draw_u(self, variables: Sequence[SharedVariable]) -> None:
        """Draw some randomness afresh from q(u)."""
        for variable in variables:
            randomness = variable.tag.apm_randomness
            set_shared(variable, randomness.as_array(randomness.draw(self._rng)))

    # Draws

    def advance(self, point: Point) -> tuple[Point, dict[str, Any]]:
        """Make one draw from the point at hand, or hand out one that was made before."""
        ahead = self._ahead
        cost = FREE
        if ahead is None or not self._is_where_it_was(ahead, point):
            self.go_back()
            evaluation, cost = self._come_to(point)
            if evaluation is not self._evaluation:
                self._evaluation, self._seen_theta = evaluation, self._bytes_of_theta(point)
            ahead = None
        elif ahead.next < ahead.n_draws:
            return self._hand_out(ahead, point)
        if self._program is None and self.compiling.is_due:
            self._program = self.compiling.program(self)
        if self._program is None or self._n_in_python > 0:
            return self._advance_in_python(point, cost)
        ahead = self._advance_in_batch(ahead, point, cost)
        if ahead is None:
            return self._advance_in_python(point, cost)
        return self._hand_out(ahead, point)

    def _come_to(self, point: Point) -> tuple[Evaluation, Cost]:
        """Return the evaluation at a point and the current u: as a rule the last one.

        What has changed is found by value: with several cores the arrays of a point are views of
        memory that PyMC overwrites.
        """
        self.find_again()
        target, evaluation = self.target, self._evaluation
        if evaluation is None or self._is_other_data():
            is_first = evaluation is None
            theta, rest = target.layout.ravel(point), target.rest.ravel(point)
            if not self.is_started:
                evaluation, cost = self._check_start(theta, rest), FREE
            else:
                evaluation = target.start(self.values_of_inputs(theta, rest))
                cost = FREE if is_first else evaluation.cost
            self._see_data()
        else:
            changed: dict[str, FloatVector] = {}
            # As it was handed out, where theta may have been rounded to another type.
            if self._bytes_of_theta(point) != self._seen_theta:
                changed[THETA] = target.layout.ravel(point)
            if target.rest.size:
                rest = target.rest.ravel(point)
                if not _same(rest, target.value(evaluation, REST)):
                    changed[REST] = rest
            for variable in target.randomness:
                u = get_shared(variable).reshape(-1)
                if not _same(u, target.value(evaluation, variable.name)):
                    changed[variable.name] = u.copy()
            if not changed:
                return evaluation, FREE
            position = tuple(changed.values())
            density = target.along(*changed)
            _, evaluation = density(position if len(changed) > 1 else position[0], evaluation)
            cost = evaluation.cost
        if not evaluation.log_density > -np.inf:
            raise EstimatorError(
                "The estimate is zero at the point at which another step, or a callback, left the "
                f"chain: {self._describe(target.layout.ravel(point), target.rest.ravel(point))}."
            )
        return evaluation, cost

    def _advance_in_python(self, point: Point, cost: Cost) -> tuple[Point, dict[str, Any]]:
        evaluation = self._evaluation
        assert evaluation is not None
        self._ahead = None
        failure, self._failure = self._failure, None  # Python may raise it too
        target, before = self.target, self._numbers_of_u(evaluation)
        began = time.perf_counter()
        evaluation, self._learnt, report = self._draw(
            self._rng, evaluation, self.recipe.options, self._learnt, self._tune, self.recipe.thin
        )
        self._evaluation = evaluation
        self._n_made += 1
        self._n_in_python = max(self._n_in_python - 1, 0)
        if self._n_in_python > 0:
            self._failure = failure
        elif failure is not None:
            self._program = None
            self.compiling.give_up(failure)
        for variable in self.moved:
            u = target.value(evaluation, variable.name)
            # A copy, so that a change in place from outside is seen.
            set_shared(variable, variable.tag.apm_randomness.as_array(u.copy()))
        stats = row_of(
            self.recipe.statistics,
            report,
            target.n_random(evaluation),
            evaluation.log_estimate,
            *self.movement.of_draw(before, self._numbers_of_u(evaluation)),
        )
        if target.has_signs:
            stats["sign"] = target.sign(evaluation)
        if cost is not FREE:
            stats["n_evals"] += cost.n_evals
            stats["n_theta_evals"] += cost.n_theta_evals
            stats["n_nan"] += cost.n_nan
            stats["n_cubic"] += cost.n_cubic
        point = point.copy()
        point.update(target.layout.unravel(target.value(evaluation, THETA)))
        self._seen_theta = self._bytes_of_theta(point)
        if self._program is None and self.compiling.is_open:
            self.compiling.note(time.perf_counter() - began, self._n_left(), cost is not FREE)
        return point, stats

    def _numbers_of_u(self, evaluation: Evaluation) -> list[FloatVector]:
        return [self.target.numbers(evaluation, variable.name) for variable in self.moved]

    def _bytes_of_theta(self, point: Point) -> list[bytes]:
        return [point[entry.name].tobytes() for entry in self.target.layout.entries]

    def _n_left(self) -> int:
        """Return how many draws there will be; as many again if that is not known."""
        n_announced = self.n_tune + self.n_draws
        return n_announced - self._n_made if n_announced else self._n_made

    # Batches

    def arguments(self, n_draws: int, evaluation: Evaluation, learnt: Any, tune: bool) -> Any:
        """Return the arguments of a compiled program."""
        recipe = self.recipe
        return self._rng, evaluation, recipe.options, learnt, tune, recipe.thin, n_draws

    def _advance_in_batch(
        self, ahead: "_Ahead | None", point: Point, cost: Cost
    ) -> "_Ahead | None":
        """Make the next batch: from the end of the last one, or from where the chain came to."""
        assert self._program is not None
        if ahead is None:
            assert self._evaluation is not None
            self._length = 1
            evaluation = self._program.densities.to_numba(self._evaluation)
        else:
            evaluation, self._learnt = ahead.batch.evaluation, ahead.batch.learnt
            self._length = self._next_length()
        start = _Start(evaluation, self._rng.bit_generator.state, self._learnt, self._tune)
        began = time.perf_counter()
        try:
            batch = self._program.run(
                *self.arguments(self._length, evaluation, self._learnt, self._tune)
            )
            self.target.checked_signs(batch.sign)
        except BaseException as error:
            # Go on in Python, where the error is raised at its draw and can be explained.
            self._rng.bit_generator.state = start.rng_state
            self._evaluation = self._program.densities.from_numba(evaluation)
            self._seen_theta = self._bytes_of_theta(point)
            self._ahead = None
            self._n_in_python = self._length
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            self._failure = error
            return None
        self._seconds_per_draw = (time.perf_counter() - began) / self._length
        self._n_made += self._length
        self._ahead = _Ahead(start, batch, self, cost)
        if ahead is None:
            target = self.target
            self._seen_rest = [(e.name, point[e.name].tobytes()) for e in target.rest.entries]
            others = [storage_of(u) for u in target.randomness if u not in self.moved]
            self._seen_u = [(storage, storage[0].tobytes()) for storage in others]
        return self._ahead

    def _next_length(self) -> int:
        affordable = SECONDS / self._seconds_per_draw
        expendable = max(NEGLIGIBLE / self._seconds_per_draw, self._n_made / SHARE)
        length = int(min(2 * self._length, affordable, expendable, self._max_length))
        n_left = self.n_tune - self._n_made
        if n_left <= 0:
            n_left += self.n_draws
        return max(min(length, n_left) if n_left > 0 else length, 1)

    def _hand_out(self, ahead: _Ahead, point: Point) -> tuple[Point, dict[str, Any]]:
        number = ahead.next
        ahead.next = number + 1
        point = point.copy()
        for name, values, _ in ahead.points:
            point[name] = values[number]
        for storage, values, _ in ahead.us:
            storage[0] = values[number]
        return point, ahead.stats[number]

    def _is_where_it_was(self, ahead: _Ahead, point: Point) -> bool:
        """Say whether the chain is where the last draw that was handed out left it.

        By their bytes, as arrays may be changed in place.
        """
        number = ahead.next - 1
        for name, _, seen in ahead.points:
            if point[name].tobytes() != seen[number]:
                return False
        for storage, _, seen in ahead.us:
            if storage[0].tobytes() != seen[number]:
                return False
        for name, value in self._seen_rest:
            if point[name].tobytes() != value:
                return False
        for storage, value in self._seen_u:
            if storage[0].tobytes() != value:
                return False
        return not self._is_other_data()

    def _is_other_data(self) -> bool:
        for storage, value in self._seen_data:
            if storage[0] is not value:
                return True
        return False

    def go_back(self) -> None:
        """Take back all that was computed ahead of the last draw that was handed out."""
        ahead, program = self._ahead, self._program
        if ahead is None:
            return
        assert program is not None
        batch = ahead.batch
        if ahead.next < ahead.n_draws:
            start = ahead.start
            self._rng.bit_generator.state = start.rng_state
            batch = program.run(
                *self.arguments(ahead.next, start.evaluation, start.learnt, start.tune)
            )
            self._n_made -= ahead.n_draws - ahead.next
        self._evaluation = program.densities.from_numba(batch.evaluation)
        self._seen_theta = [seen[ahead.next - 1] for _, _, seen in ahead.points]
        self._learnt = batch.learnt
        self._ahead = None

    # The start of a chain

    def values_of_inputs(self, theta: FloatVector, rest: FloatVector) -> dict[str, FloatVector]:
        """Return the value of each input of the target, with u as it is now."""
        us = {u.name: get_shared(u).reshape(-1).copy() for u in self.target.randomness}
        return {THETA: theta, REST: rest, **us}

    def _check_start(self, theta: FloatVector, rest: FloatVector) -> Evaluation:
        """Check all that can be checked where a chain starts; draw u again where that helps."""
        target = self.target
        evaluation = target.start(self.values_of_inputs(theta, rest))
        if not evaluation.log_prior > -np.inf:
            raise EstimatorError(
                f"The prior is zero at the starting point: {self._describe(theta, rest)}. Give "
                "other initvals to pm.sample."
            )
        for _ in range(START_ATTEMPTS - 1):
            if evaluation.log_estimate > -np.inf:
                break
            # All of it, also what other steps update: it may be theirs that makes it zero.
            self.draw_u(target.randomness)
            evaluation = target.start(self.values_of_inputs(theta, rest))
        if not evaluation.log_estimate > -np.inf:
            raise EstimatorError(
                f"The estimate of {', '.join(target.estimates)} is zero at the starting point for "
                f"each of {START_ATTEMPTS} draws of its randomness: {self._describe(theta, rest)}. "
                "Give other initvals to pm.sample, or improve the estimator, for example by more "
                f"importance samples. {see('estimators')}"
            )
        if not evaluation.log_density > -np.inf:
            raise EstimatorError(
                "The likelihood of the observed variables is zero at the starting point: "
                f"{self._describe(theta, rest)}. Give other initvals to pm.sample."
            )
        self._check_clamped(evaluation, target.start(self.values_of_inputs(theta, rest)))
        target.check_declared_factors(evaluation)
        self.is_started = True
        return evaluation

    def _check_clamped(self, first: Evaluation, second: Evaluation) -> None:
        if not np.isclose(first.log_estimate, second.log_estimate, rtol=1e-8, atol=1e-10):
            names = [str(node.op) for node in self.target.black_boxes]
            raise EstimatorError(
                f"The estimate of {', '.join(self.target.estimates)} differs between two "
                "computations for the same parameters and the same randomness "
                f"({first.log_estimate} and {second.log_estimate}): "
                f"{' or '.join(names) or 'the estimator'} draws random numbers of its own. Let it "
                "take all of them from its declared randomness: an apm.Stream or an apm.Seed "
                f"arrives as a generator to draw from. {see('estimators')}"
            )

    def _describe(self, theta: FloatVector, rest: FloatVector) -> str:
        return self.target.describe([theta, rest])


def _same(first: FloatVector, second: FloatVector) -> bool:
    """Say whether two vectors have the same elements, to the last bit for small ones."""
    if first.size > LARGE:
        return np.array_equal(first, second)
    return first.tobytes() == second.tobytes()


def _rows(values: FloatVector, shape: tuple[int, ...]) -> list[Any]:
    """Return the rows of a table as arrays of the given shape, not copies of them."""
    if shape == ():
        return [values[i, 0, ...] for i in range(len(values))]
    return list(values.reshape(len(values), *shape))
