"""Random-walk Metropolis with a scale and a covariance that are learnt while tuning."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm.adaptation import (
    Covariance,
    Pilot,
    Scale,
    covariance_of_pilot,
    is_over,
    learn_covariance,
    learn_from_pilot,
    tune_scale,
)
from pymc_apm.kernels.linear import length
from pymc_apm.kernels.metropolis import MetropolisInfo, metropolis, random_walk
from pymc_apm.kernels.slice import coordinate_slice
from pymc_apm.kernels.state import FloatVector, LogDensity, State
from pymc_apm.updates.report import Report
from pymc_apm.updates.slice import count_moved


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
        As for :func:`~pymc_apm.adaptation.tune_scale`.
    default_scaling : float
        The scale to start with where a covariance has been learnt.
    tunes_scale, learns_covariance, has_pilot : bool
        What to learn while tuning.
    """

    is_coordinate: bool
    theta_updates: int
    discrete: NDArray[np.bool_] | None
    target_accept: tuple[float, float]
    default_scaling: float
    tunes_scale: bool
    learns_covariance: bool
    has_pilot: bool


class WalkLearnt(NamedTuple):
    """What is learnt while tuning."""

    pilot: Pilot
    covariance: Covariance
    scale: Scale


def n_proposals(options: WalkOptions, dim: int) -> int:
    """Return how many proposals an update of all parameters makes."""
    return dim if options.is_coordinate else 1


def propose(
    rng: np.random.Generator,
    theta: FloatVector,
    options: WalkOptions,
    cholesky: FloatVector,
    scaling: float,
    number: int,
) -> FloatVector:
    """Make one of the proposals of an update: for all parameters, or for that of its number."""
    if options.is_coordinate:
        column = np.zeros((theta.size, 1))
        column[number, 0] = length(cholesky[number])
        return random_walk(rng, theta, column, scaling, options.discrete)
    return random_walk(rng, theta, cholesky, scaling, options.discrete)


def update_by_random_walk(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: WalkOptions,
    cholesky: FloatVector,
    scaling: float,
) -> tuple[State, Report]:
    """Update the parameters as often as the options say, with all that was learnt frozen."""
    n_updates, n_moved, accept_rate = 0, 0, 0.0
    for _ in range(options.theta_updates):
        state, report = _walk(rng, state, log_density, options, cholesky, scaling)
        n_updates += report.n_updates
        n_moved += report.n_moved
        accept_rate += report.accept_rate
    return state, Report(n_updates, n_moved, accept_rate, scaling)


def learn_by_random_walk(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: WalkOptions,
    learnt: WalkLearnt,
) -> tuple[State, WalkLearnt, Report]:
    """Update the parameters as often as the options say, and learn from it."""
    pilot, covariance, scale = learnt.pilot, learnt.covariance, learnt.scale
    is_in_pilot = options.has_pilot and not is_over(pilot)
    scaling = scale.scaling
    n_updates, n_moved, accept_rate = 0, 0, 0.0
    for _ in range(options.theta_updates):
        if is_in_pilot:
            state, infos = coordinate_slice(rng, state, log_density, pilot.widths.width, 0)
            report = Report(len(infos), count_moved(infos), float(len(infos)), scaling)
            pilot = learn_from_pilot(pilot, infos)
            is_in_pilot = not is_over(pilot)
            if not is_in_pilot:
                covariance = covariance_of_pilot(pilot)
        else:
            state, report = _walk(
                rng, state, log_density, options, covariance.cholesky, scale.scaling
            )
            if options.tunes_scale:
                rate = report.accept_rate / report.n_updates
                scale = tune_scale(scale, rate, options.target_accept)
        n_updates += report.n_updates
        n_moved += report.n_moved
        accept_rate += report.accept_rate
    if options.learns_covariance and not is_in_pilot:
        covariance, changed = learn_covariance(covariance, state.position, False)
        if changed:
            scale = Scale(options.default_scaling, 0, 0.0, 0.0)
    report = Report(n_updates, n_moved, accept_rate, scaling)
    return state, WalkLearnt(pilot, covariance, scale), report


def _walk(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: WalkOptions,
    cholesky: FloatVector,
    scaling: float,
) -> tuple[State, Report]:
    """Propose and accept or reject, for all parameters together or for one after the other."""
    n_updates = n_proposals(options, state.position.size)
    n_moved, accept_rate = 0, 0.0
    for number in range(n_updates):
        proposal = propose(rng, state.position, options, cholesky, scaling, number)
        state, info = metropolis(rng, state, log_density, proposal)
        n_moved += int(info.accepted)
        accept_rate += info.accept_rate
    return state, Report(n_updates, n_moved, accept_rate, scaling)


def propose_jointly(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: WalkOptions,
    cholesky: FloatVector,
    scaling: float,
    propose_u: Callable[[np.random.Generator, tuple[FloatVector, ...]], tuple[FloatVector, ...]],
    number: int,
) -> tuple[State, MetropolisInfo]:
    """Propose parameters and u together: Figure 1 of the paper, one of the proposals of an update.

    The position is a tuple of the parameters and of each u.
    """
    theta, u = state.position[0], state.position[1:]
    new_theta = propose(rng, theta, options, cholesky, scaling, number)
    proposal = (new_theta,) + propose_u(rng, u)  # noqa: RUF005  # Numba knows no other way
    return metropolis(rng, state, log_density, proposal)
