"""Random-walk Metropolis with a scale and a covariance that are learnt while tuning."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm.adaptive.correlation import Correlation, freeze_correlation, start_correlation
from pymc_apm.adaptive.covariance import Covariance, learn_covariance, start_covariance
from pymc_apm.adaptive.pilot import (
    Pilot,
    covariance_of_pilot,
    is_over,
    start_pilot,
    update_in_pilot,
)
from pymc_apm.adaptive.report import Report, theta_report
from pymc_apm.adaptive.tuning import Scale, freeze_scale, tune_scale
from pymc_apm.kernels.linear import length
from pymc_apm.kernels.metropolis import metropolis, random_walk
from pymc_apm.types import FREE, FloatVector, LogDensity, State, plus


class WalkOptions(NamedTuple):
    """What the user of a step has chosen.

    Attributes
    ----------
    is_coordinate : bool
        Whether to propose one parameter after the other, not all together.
    theta_updates : int
        Updates for each update of u.
    discrete : ndarray of bool or None
        Which parameters are integers, if any are.
    target_accept : (float, float)
        As for :func:`~pymc_apm.adaptive.tuning.tune_scale`.
    default_scaling : float
        The scale to start with where a covariance has been learnt.
    tunes_correlation, tunes_scale, learns_covariance, has_pilot : bool
        What to learn while tuning.
    """

    is_coordinate: bool
    theta_updates: int
    discrete: NDArray[np.bool_] | None
    target_accept: tuple[float, float]
    default_scaling: float
    tunes_correlation: bool
    tunes_scale: bool
    learns_covariance: bool
    has_pilot: bool


class WalkLearnt(NamedTuple):
    """What is learnt while tuning.

    The correlation is that of a joint proposal of u with the u at hand; others have no use for it.
    """

    pilot: Pilot
    covariance: Covariance
    scale: Scale
    correlation: Correlation


def start_walk(cholesky: FloatVector, scaling: float, correlation: float = 0.0) -> WalkLearnt:
    """Start with what the user gave, or with values to learn better ones from."""
    return WalkLearnt(
        start_pilot(len(cholesky)),
        start_covariance(cholesky),
        Scale(scaling, 0, 0.0, 0.0),
        start_correlation(correlation),
    )


def n_proposals(options: WalkOptions, dim: int) -> int:
    """Return how many proposals an update of all parameters makes."""
    return dim if options.is_coordinate else 1


def propose(
    rng: np.random.Generator,
    theta: FloatVector,
    options: WalkOptions,
    learnt: WalkLearnt,
    number: int,
) -> FloatVector:
    """Make one of the proposals of an update: for all parameters, or for that of its number."""
    cholesky, scaling = learnt.covariance.cholesky, learnt.scale.scaling
    if options.is_coordinate:
        column = np.zeros((theta.size, 1))
        column[number, 0] = length(cholesky[number])
        return random_walk(rng, theta, column, scaling, options.discrete)
    return random_walk(rng, theta, cholesky, scaling, options.discrete)


def update_by_walk(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: WalkOptions,
    learnt: WalkLearnt,
    tunes: bool,
) -> tuple[State, WalkLearnt, Report]:
    """Update the parameters once, and learn from it if told so."""
    pilot, covariance, scale = learnt.pilot, learnt.covariance, learnt.scale
    if tunes and options.has_pilot and not is_over(pilot):
        state, pilot, report = update_in_pilot(rng, state, log_density, pilot)
        if is_over(pilot):
            covariance = covariance_of_pilot(pilot)
        learnt = WalkLearnt(pilot, covariance, scale, learnt.correlation)
        return state, learnt, _with_scale(report, scale.scaling)
    n_updates = n_proposals(options, state.position.size)
    n_moved, accept_rate, cost = 0, 0.0, FREE
    for number in range(n_updates):
        proposal = propose(rng, state.position, options, learnt, number)
        state, info = metropolis(rng, state, log_density, proposal)
        n_moved += int(info.accepted)
        accept_rate += info.accept_rate
        cost = plus(cost, info.cost)
    report = theta_report(cost, n_updates, n_moved, accept_rate, scale.scaling)
    if tunes and options.tunes_scale:
        scale = tune_scale(scale, accept_rate / n_updates, options.target_accept)
    return state, WalkLearnt(pilot, covariance, scale, learnt.correlation), report


def learn_walk(options: WalkOptions, learnt: WalkLearnt, theta: FloatVector) -> WalkLearnt:
    """Learn from the parameters of a draw."""
    is_in_pilot = options.has_pilot and not is_over(learnt.pilot)
    if not options.learns_covariance or is_in_pilot:
        return learnt
    covariance, changed = learn_covariance(learnt.covariance, theta, False)
    scale = Scale(options.default_scaling, 0, 0.0, 0.0) if changed else learnt.scale
    return WalkLearnt(learnt.pilot, covariance, scale, learnt.correlation)


def freeze_walk(options: WalkOptions, learnt: WalkLearnt) -> WalkLearnt:
    """Return what to use after tuning."""
    scale, correlation = learnt.scale, learnt.correlation
    if options.tunes_scale:
        scale = freeze_scale(scale, options.target_accept)
    if options.tunes_correlation:
        correlation = freeze_correlation(correlation)
    return WalkLearnt(learnt.pilot, learnt.covariance, scale, correlation)


def _with_scale(report: Report, scale: float) -> Report:
    """Report the scale of the random walk while the pilot, which has widths, is under way."""
    return Report(
        report.n_evals,
        report.n_theta_evals,
        report.n_nan,
        report.n_cubic,
        report.n_rounds,
        report.n_updates,
        report.n_moved,
        report.accept_rate,
        scale,
        report.n_u_updates,
        report.n_u_moved,
        report.u_accept_rate,
        report.correlation,
    )
