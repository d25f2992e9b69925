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
            table = batch.positions[:, first:last].astype(dtype)
            self.points.append((name, _rows(table, shape), [row.tobytes() for row in table]))
        self.us = []
        for variable, where in zip(chain.moved, chain.slices_of_u, strict=True):
            table = batch.positions[:, where]
            self.us.append((storage_of(variable), _rows(table, variable.type.shape), table))
        self.stats = rows_of(
            chain.recipe.statistics, batch.report, batch.log_estimate, chain.target.n_fixed
        )
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
        self._ahead: _Ahead | None = None
        self._seen_data: list[tuple[list[Any], Any]] = []
        self._program: Program | None = None
        self._expected: Logs | None = None
        self._length = 1
        self._n_made = 0
        self._n_in_python = 0
        self.compiling.restart()

    def expect(self, logs: Logs | None) -> None:
        """Take the log density and its parts, as they were computed once, where they are again.

        Compiled code and Python differ in the last digit, and a chain that is restored is to be the
        same to the last one.
        """
        self._expected = logs

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
    def logs(self) -> Logs | None:
        """The log density at the last draw and its parts, also of a chain that was restored."""
        evaluation = self.evaluation
        return self._expected if evaluation is None else evaluation[1:5]

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
            self._evaluation, cost = self._come_to(point)
            ahead = None
        elif ahead.next < ahead.n_draws:
            return self._hand_out(ahead, point)
        if self._program is None and self.compiling.is_due:
            self._program = self.compiling.program(self)
        if self._program is None or self._n_in_python > 0:
            return self._advance_in_python(point, cost)
        ahead = self._advance_in_batch(ahead, cost)
        if ahead is None:
            return self._advance_in_python(point, cost)
        return self._hand_out(ahead, point)

    def _come_to(self, point: Point) -> tuple[Evaluation, Cost]:
        """Return the evaluation at a point and the current u: as a rule the last one.

        What has changed is found by value: with several cores the arrays of a point are views of
        memory that PyMC overwrites.
        """
        target, evaluation = self.target, self._evaluation
        theta, rest = target.layout.ravel(point), target.rest.ravel(point)
        is_other_data = any(storage[0] is not value for storage, value in self._seen_data)
        if evaluation is None or is_other_data:
            is_first = evaluation is None
            self._seen_data = [(storage_of(data), get_shared(data)) for data in target.data]
            if not self.is_started:
                return self._check_start(theta, rest), FREE
            evaluation = target.start(self.values_of_inputs(theta, rest))
            if self._expected and np.allclose(evaluation[1:5], self._expected, rtol=1e-8):
                evaluation = Evaluation(evaluation.values, *self._expected, evaluation.cost)
            self._expected = None
            cost = FREE if is_first else evaluation.cost
        else:
            changed: dict[str, FloatVector] = {}
            if not _same(theta, target.value(evaluation, THETA)):
                changed[THETA] = theta
            if rest.size and not _same(rest, target.value(evaluation, REST)):
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
                f"chain: {self._describe(theta, rest)}."
            )
        return evaluation, cost

    def _advance_in_python(self, point: Point, cost: Cost) -> tuple[Point, dict[str, Any]]:
        evaluation = self._evaluation
        assert evaluation is not None
        self._ahead = None
        began = time.perf_counter()
        evaluation, self._learnt, report = self._draw(
            self._rng, evaluation, self.recipe.options, self._learnt, self._tune, self.recipe.thin
        )
        self._evaluation = evaluation
        self._n_made += 1
        self._n_in_python = max(self._n_in_python - 1, 0)
        target = self.target
        for variable in self.moved:
            u = target.value(evaluation, variable.name)
            # A copy, so that a change in place from outside is seen.
            set_shared(variable, variable.tag.apm_randomness.as_array(u.copy()))
        stats = row_of(
            self.recipe.statistics, report, evaluation.log_estimate, target.n_random(evaluation)
        )
        if cost is not FREE:
            stats["n_evals"] += cost.n_evals
            stats["n_theta_evals"] += cost.n_theta_evals
            stats["n_nan"] += cost.n_nan
            stats["n_cubic"] += cost.n_cubic
        point = point.copy()
        point.update(target.layout.unravel(target.value(evaluation, THETA)))
        if self._program is None:
            self.compiling.note(time.perf_counter() - began, self._n_left(), cost is not FREE)
        return point, stats

    def _n_left(self) -> int:
        """Return how many draws there will be; as many again if that is not known."""
        n_announced = self.n_tune + self.n_draws
        return n_announced - self._n_made if n_announced else self._n_made

    # Batches

    def arguments(self, n_draws: int, evaluation: Evaluation, learnt: Any, tune: bool) -> Any:
        """Return the arguments of a compiled program."""
        recipe = self.recipe
        return self._rng, evaluation, recipe.options, learnt, tune, recipe.thin, n_draws

    def _advance_in_batch(self, ahead: "_Ahead | None", cost: Cost) -> "_Ahead | None":
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
        except BaseException as error:
            # Go on in Python, where the error is raised at its draw and can be explained.
            self._rng.bit_generator.state = start.rng_state
            self._evaluation = self._program.densities.from_numba(evaluation)
            self._ahead = None
            self._n_in_python = self._length
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            return None
        self._seconds_per_draw = (time.perf_counter() - began) / self._length
        self._n_made += self._length
        self._ahead = _Ahead(start, batch, self, cost)
        if ahead is None:
            self._seen_rest = [
                (entry.name, self.target.value(start.evaluation, REST)[entry.start : entry.stop])
                for entry in self.target.rest.entries
            ]
            self._seen_u = [
                (storage_of(u), self.target.value(start.evaluation, u.name))
                for u in self.target.randomness
                if u not in self.moved
            ]
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
            storage[0] = values[number].copy()  # so that a change in place from outside is seen
        return point, ahead.stats[number]

    def _is_where_it_was(self, ahead: _Ahead, point: Point) -> bool:
        """Say whether the chain is where the last draw that was handed out left it."""
        number = ahead.next - 1
        for name, _, seen in ahead.points:
            if point[name].tobytes() != seen[number]:
                return False
        for storage, _, table in ahead.us:
            if not _same(storage[0].reshape(-1), table[number]):
                return False
        for name, value in self._seen_rest:
            if not _same(np.ravel(point[name]).astype(np.float64), value):
                return False
        for storage, u in self._seen_u:
            if not _same(storage[0].reshape(-1), u):
                return False
        return all(storage[0] is value for storage, value in self._seen_data)

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
