"""Measuring an estimator: what it gives, what it costs, how it changes along lines."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc_apm.density.target import REST, THETA, Target
from pymc_apm.diagnostics.points import Point, ToVector
from pymc_apm.diagnostics.runs import FloatArray
from pymc_apm.errors import ModelError, see
from pymc_apm.kernels.stream import draw_seed
from pymc_apm.types import Evaluation

TIMED = 25
"""How often a stage is run to time it, at most; the median counts."""

TIMED_SECONDS = 0.5
"""After this long, it is not run again."""

NEAR = 0.2
"""The angle at which a line in u begins: so near to the start that a correlation is inexact."""


class Sample(NamedTuple):
    """Log-estimates at one point for fresh draws of u; ``-inf`` for zero and for NaN."""

    log_estimates: FloatArray
    n_nan: int


class Probe:
    """The staged log density of a model, for looking at its estimators.

    Neither the model nor the randomness that it holds is changed.

    Attributes
    ----------
    target : Target
    u_names : list of str
        The randomness of the model.
    paths : list of str
        That part of it which can move a little at a time: all but seeds.
    """

    def __init__(self, model: Any, compile_kwargs: dict[str, Any] | None = None) -> None:
        if not isinstance(model, pm.Model):
            raise ModelError(f"A pm.Model is needed here, got {type(model).__name__}.")
        self.target = Target(model, model.value_vars, model.initial_point(), compile_kwargs)
        if not self.target.randomness:
            raise ModelError(
                "The model has no estimator to look at: declare randomness with apm.StandardNormal "
                "or its kin and add a log-estimate with apm.Potential."
            )
        if self.target.has_signs:
            raise ModelError(
                f"An estimate of the model may be negative ({', '.join(self.target.estimates)}), "
                "and the noise of its log says nothing about how often it is. Look at the mean "
                f"sign of a short run instead: apm.signed(idata). {see('series')}"
            )
        self._randomness = {u.name: u.tag.apm_randomness for u in self.target.randomness}
        self.u_names = list(self._randomness)
        self.paths = [name for name, u in self._randomness.items() if u.kind.correlated is not None]
        self._u_density = self.target.along(*self.u_names)
        self._theta_density = self.target.along(THETA)
        self.to_vector = ToVector(model, self.target.layout, compile_kwargs)

    def start(self, point: Point, rng: np.random.Generator) -> Evaluation | None:
        """Evaluate at a point with a fresh u; return None if the prior is zero."""
        theta = self.to_vector(point)
        parameters = {THETA: theta, REST: np.zeros(0)}
        evaluation = self.target.start(
            parameters | dict(zip(self.u_names, self._draw(rng), strict=True))
        )
        return evaluation if evaluation.log_prior > -math.inf else None

    def _draw(self, rng: np.random.Generator) -> list[FloatArray]:
        return [u.draw(rng) for u in self._randomness.values()]

    def fresh_u(self, evaluation: Evaluation, rng: np.random.Generator) -> Evaluation:
        """Evaluate at the same parameters with a fresh u: their stages do not run again."""
        u = self._draw(rng)
        _, new = self._u_density(u[0] if len(u) == 1 else tuple(u), evaluation)
        return new

    def at(self, evaluation: Evaluation, theta: FloatArray) -> Evaluation:
        """Evaluate at other parameters, given as a vector, with the same u."""
        _, new = self._theta_density(theta, evaluation)
        return new

    def sample(self, evaluation: Evaluation, draws: int, rng: np.random.Generator) -> Sample:
        """Estimate again and again with fresh u at the same parameters."""
        drawn = [self.fresh_u(evaluation, rng) for _ in range(draws)]
        n_nan = sum(one.cost.n_nan for one in drawn)
        return Sample(np.array([one.log_estimate for one in drawn]), n_nan)

    def sample_ratios(
        self, evaluation: Evaluation, theta: FloatArray, draws: int, rng: np.random.Generator
    ) -> FloatArray:
        """Return log ratios of the estimates at other parameters and at these, with the same u."""
        drawn = [self.fresh_u(evaluation, rng) for _ in range(draws)]
        logs = [(self.at(one, theta).log_estimate, one.log_estimate) for one in drawn]
        return np.array([there - here for there, here in logs if min(there, here) > -math.inf])

    def is_clamped(self, evaluation: Evaluation) -> bool:
        """Say whether the same parameters and the same u give the same estimate again."""
        u = [self.target.value(evaluation, name) for name in self.u_names]
        _, again = self._u_density(u[0] if len(u) == 1 else tuple(u), evaluation)
        first, second = evaluation.log_estimate, again.log_estimate
        return first == second or math.isclose(first, second, rel_tol=1e-8, abs_tol=1e-10)

    # Cost

    def seconds_of_changes(
        self, evaluation: Evaluation, rng: np.random.Generator
    ) -> dict[str, float]:
        """Time an evaluation after a change of the parameters, and of u."""
        theta = self.target.value(evaluation, THETA)
        return {
            "theta": _median_time(lambda: self.at(evaluation, theta)),
            "u": _median_time(lambda: self.fresh_u(evaluation, rng)),
        }

    def seconds_of_stages(self, evaluation: Evaluation) -> dict[str, float]:
        """Time each stage of the log density by itself, by what it depends on."""
        return self.target.time_stages(evaluation, _median_time)

    # Lines

    def along_u(
        self, evaluation: Evaluation, name: str, rng: np.random.Generator
    ) -> Callable[[float], float]:
        """Return the log-estimate along a random line of one u, as a function on [0, 1].

        The line is the path of a correlated proposal, from one u nearly to an independent one.
        """
        randomness = self._randomness[name]
        if randomness.kind.is_lazy:
            evaluation = self.target.settle(evaluation, name, rng)
        density = self.target.along(name)
        u = self.target.value(evaluation, name)
        seed = draw_seed(rng)
        correlated = randomness.kind.correlated
        assert correlated is not None, f"{name} has no line"

        def log_estimate(t: float) -> float:
            correlation = math.cos(NEAR + t * (math.pi / 2 - NEAR))
            moved = correlated(np.random.default_rng(seed), u, correlation)
            return density(moved, evaluation)[1].log_estimate

        return log_estimate

    def along_theta(self, evaluation: Evaluation, other: FloatArray) -> Callable[[float], float]:
        """Return the log-estimate on the line to other parameters, with the same u.

        Integer parameters stay as they are. Where the prior is zero, the result is NaN.
        """
        theta = self.target.value(evaluation, THETA)
        direction = np.where(self.target.layout.discrete, 0.0, other - theta)

        def log_estimate(t: float) -> float:
            moved = self.at(evaluation, theta + t * direction)
            return moved.log_estimate if moved.log_prior > -math.inf else math.nan

        return log_estimate


def _median_time(work: Callable[[], Any]) -> float:
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < TIMED and time.perf_counter() - started < TIMED_SECONDS:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))
