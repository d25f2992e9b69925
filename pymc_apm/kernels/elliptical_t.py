"""Elliptical slice sampling of the parameters, about a multivariate t distribution.

Nishihara, Murray and Adams (2014), "Parallel MCMC with generalized elliptical slice sampling",
JMLR 15. The target is written as a t distribution times what is left of it. A t distribution is a
mixture of normal ones, N(mean, s Sigma) with an inverse gamma distribution for s: so s is drawn
given the position, and then the position is moved along an ellipse under N(mean, s Sigma), with the
target over the t density in the place of the likelihood. There is no scale to tune, and where the t
distribution is close to the target the first point on the ellipse is as good as accepted.
"""

import math

import numpy as np

from pymc_apm.kernels.draws import draw_normal
from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kernels.linear import length, product, solved
from pymc_apm.kernels.slice import MAX_SHRINKS, SliceInfo
from pymc_apm.types import FREE, FloatVector, LogDensity, State, cost_of, plus, reaching


def elliptical_t_slice(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    mean: FloatVector,
    cholesky: FloatVector,
    dof: float,
) -> tuple[State, SliceInfo]:
    """Update the position along a random ellipse about the mean of a t distribution.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
    mean : ndarray
    cholesky : ndarray
        The lower triangular factor of the scale matrix.
    dof : float
        The degrees of freedom. The fewer there are, the less it matters if the target has heavier
        tails than a normal distribution.

    Returns
    -------
    state : State
    info : SliceInfo
    """
    here = solved(cholesky, state.position - mean)
    exponent = 0.5 * (dof + here.size)
    square = length(here) ** 2
    scale = math.sqrt(0.5 * (dof + square) / rng.standard_gamma(exponent))
    direction = scale * draw_normal(rng, here.size)
    log_height = state.log_density + exponent * math.log1p(square / dof)
    log_height -= rng.standard_exponential()
    angle = 2.0 * math.pi * rng.random()
    lower, upper = angle - 2.0 * math.pi, angle
    cost = FREE
    for attempt in range(1, MAX_SHRINKS + 1):
        there = ellipse(here, direction, angle)
        position = mean + product(cholesky, there)
        over_t = exponent * math.log1p(length(there) ** 2 / dof)
        value, memo = log_density(position, reaching(state.memo, log_height - over_t))
        cost = plus(cost, cost_of(memo))
        if value + over_t > log_height:
            return State(position, value, memo), SliceInfo(True, attempt, 0, angle, cost, 1.0)
        if angle < 0.0:
            lower = angle
        else:
            upper = angle
        angle = lower + (upper - lower) * rng.random()
    return state, SliceInfo(False, MAX_SHRINKS, 0, 0.0, cost, 0.0)
