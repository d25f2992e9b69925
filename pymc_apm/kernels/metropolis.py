"""Metropolis-Hastings updates and the proposals that go into them.

Every proposal here is reversible with respect to the reference measure of its variable (Lebesgue
measure for a random walk, q(u) for independent and for correlated proposals of u), so that the
acceptance ratio is the ratio of the densities with respect to that measure. For u that density is
the estimate itself: the paper's equation for the joint proposal, in which q(u) cancels.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm.kernels.draws import draw_normal
from pymc_apm.kernels.linear import product
from pymc_apm.kernels.normal import normal_cdf, normal_quantile
from pymc_apm.types import FREE, Cost, FloatVector, LogDensity, State, cost_of


class MetropolisInfo(NamedTuple):
    """What happened in one Metropolis update.

    Attributes
    ----------
    accepted : bool
    accept_rate : float
        The probability with which the proposal was to be accepted.
    cost : Cost
        What the evaluation cost.
    """

    accepted: bool
    accept_rate: float
    cost: Cost = FREE


def metropolis(
    rng: np.random.Generator, state: State, log_density: LogDensity, proposal: Any
) -> tuple[State, MetropolisInfo]:
    """Accept or reject a proposal that is reversible with respect to the reference measure.

    Figure 1 of the paper, step 2. The stored log density of the current state is used, never a
    fresh one.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
    proposal : ndarray or tuple of ndarray
        The proposed position.

    Returns
    -------
    state : State
    info : MetropolisInfo
    """
    value, memo = log_density(proposal, state.memo)
    log_ratio = value - state.log_density
    uniform = rng.random()
    if log_ratio >= 0.0:
        accept_rate = 1.0
    else:  # a density that is not a number is none
        accept_rate = math.exp(log_ratio) if log_ratio < 0.0 else 0.0
    if uniform < accept_rate:
        return State(proposal, value, memo), MetropolisInfo(True, accept_rate, cost_of(memo))
    return state, MetropolisInfo(False, accept_rate, cost_of(memo))


def random_walk(
    rng: np.random.Generator,
    position: FloatVector,
    cholesky: FloatVector,
    scaling: float,
    discrete: NDArray[np.bool_] | None = None,
) -> FloatVector:
    """Propose a Gaussian step, ``position + scaling * cholesky @ noise``.

    Parameters
    ----------
    rng : Generator
    position : ndarray
    cholesky : ndarray
        Lower triangular factor of the covariance of the step, before scaling; or some columns of
        it, for a step in a subspace.
    scaling : float
    discrete : ndarray of bool, optional
        Coordinates that hold integers: their step is rounded, which keeps it symmetric.

    Returns
    -------
    ndarray
    """
    step = scaling * product(cholesky, draw_normal(rng, cholesky.shape[1]))
    if discrete is not None:
        step = np.where(discrete, np.rint(step), step)
    return position + step


def random_walk_metropolis(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    cholesky: FloatVector,
    scaling: float,
    discrete: NDArray[np.bool_] | None = None,
) -> tuple[State, MetropolisInfo]:
    """Update the position by one random-walk Metropolis step.

    The ``MH`` of the paper's naming scheme when it updates theta with u clamped. The parameters
    are those of :func:`random_walk`.
    """
    proposal = random_walk(rng, state.position, cholesky, scaling, discrete)
    return metropolis(rng, state, log_density, proposal)


def metropolis_independence(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    draw: Callable[[np.random.Generator, int], FloatVector],
) -> tuple[State, MetropolisInfo]:
    """Propose fresh randomness from q(u), accept by the ratio of the estimates.

    The ``MI`` of the paper's naming scheme: a pseudo-marginal update whose proposal for theta has
    zero width.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
        The log density *with respect to q(u)*: the log-estimate.
    draw : callable
        ``draw(rng, size)`` draws ``size`` numbers from q(u).
    """
    return metropolis(rng, state, log_density, draw(rng, state.position.size))


def make_independence(
    draw: Callable[[np.random.Generator, int], FloatVector],
) -> Callable[[np.random.Generator, State, LogDensity], tuple[State, MetropolisInfo]]:
    """Return :func:`metropolis_independence` for randomness that is drawn in the given way."""

    def independence(
        rng: np.random.Generator, state: State, log_density: LogDensity
    ) -> tuple[State, MetropolisInfo]:
        return metropolis_independence(rng, state, log_density, draw)

    return independence


def correlated_normal(rng: np.random.Generator, u: FloatVector, correlation: float) -> FloatVector:
    """Propose ``rho * u + sqrt(1 - rho^2) * noise``: Crank-Nicolson, reversible under N(0, I).

    Deligiannidis, Doucet and Pitt (2018), "The correlated pseudo-marginal method",
    doi:10.1111/rssb.12280; Dahlin et al. (2015).
    """
    noise = rng.standard_normal(u.size)
    return correlation * u + math.sqrt(1.0 - correlation * correlation) * noise


def correlated_uniform(rng: np.random.Generator, u: FloatVector, correlation: float) -> FloatVector:
    """Propose a correlated move of uniform numbers, reversible under U(0, 1)^n.

    The numbers are taken to the normal scale, moved by :func:`correlated_normal` and taken back:
    a Gaussian copula with the given correlation.
    """
    return normal_cdf(correlated_normal(rng, normal_quantile(u), correlation))
