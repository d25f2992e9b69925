"""Updates of u in an estimate that is a product of factors, each with its own part of u.

Given theta, the parts of u are independent: the target of u is a product over factors of q(u_g)
times the estimate of factor g. So each of them has an update of its own, with its own height and
its own bracket, however many there are. They are made in lock-step: all factors propose at once,
one evaluation gives the log-estimates of all of them, those whose proposal is accepted stay there,
and the others shrink their brackets and propose again, in the next *round*.

Where to stop. A round costs an evaluation of everything, so it is not worth its cost when few
factors are left; these stay where they were. That is valid. An update of slice sampling is
reversed by the same proposals in the same order: the reverse of an update that accepts a factor in
round r rejects the same points in rounds 1 to r - 1, and comes back in round r. So after each round
as many factors are left in the reverse of an update as in the update itself, and whatever rule
decides by that number, and by random numbers that are drawn ahead of it, stops both after the same
round.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymc_apm.kernels.draws import draw_exponential, draw_normal, draw_uniform
from pymc_apm.types import FREE, Cost, FloatVector, cost_of, plus

LogDensities: TypeAlias = Callable[[Any, Any], tuple[FloatVector, Any]]
"""``log_densities(position, memo) -> (values, new_memo)``: the log density of each factor."""

Merged: TypeAlias = Callable[[Any, Any, NDArray[np.bool_]], Any]
"""``merged(old, new, has_moved)``: the memo where some factors have moved and others have not."""

Paths: TypeAlias = Callable[[FloatVector, FloatVector, FloatVector, NDArray[np.int64]], FloatVector]
"""``path(position, direction, z, factor_of)``: each factor is moved by its own ``z``; 0 is here."""

MAX_ROUNDS = 100
"""A bracket that shrank this often is not worth another evaluation."""


class FactorsState(NamedTuple):
    """A value of u with the log density of each factor.

    Attributes
    ----------
    position : ndarray
    log_densities : ndarray
        That of each factor, as it was computed when the chain came here.
    memo : object
        As that of a :class:`~pymc_apm.types.State`.
    """

    position: FloatVector
    log_densities: FloatVector
    memo: Any


class FactorsInfo(NamedTuple):
    """What happened in one update of all factors.

    Attributes
    ----------
    accepted : float
        The share of the factors that moved.
    accept_rate : float
        The mean of the probabilities with which they were to be accepted.
    n_rounds : int
        Evaluations of all factors.
    cost : Cost
        What the evaluations cost.
    """

    accepted: float
    accept_rate: float
    n_rounds: int
    cost: Cost


class Brackets(NamedTuple):
    """Where each factor is on its path, and how far it may still go.

    Attributes
    ----------
    z : ndarray
        The proposal of each factor; the accepted one, if it has been accepted.
    lower, upper : ndarray
        The bracket of each factor, ``lower <= 0 <= upper``.
    is_left : ndarray of bool
        Whether it has yet to be accepted.
    n_left : int
        How many have.
    """

    z: FloatVector
    lower: FloatVector
    upper: FloatVector
    is_left: NDArray[np.bool_]
    n_left: int


def ellipses(
    u: FloatVector, direction: FloatVector, angles: FloatVector, factor_of: NDArray[np.int64]
) -> FloatVector:
    """Move each factor along the ellipse through its ``u`` (0) and its ``direction`` (pi/2)."""
    return u * np.cos(angles)[factor_of] + direction * np.sin(angles)[factor_of]


def reflected_lines(
    u: FloatVector, direction: FloatVector, z: FloatVector, factor_of: NDArray[np.int64]
) -> FloatVector:
    """Move each factor along a line that is reflected into the unit cube."""
    x = u + direction * z[factor_of]
    return np.abs(x - 2.0 * np.rint(0.5 * x))


def narrowed(
    rng: np.random.Generator, brackets: Brackets, values: FloatVector, log_heights: FloatVector
) -> Brackets:
    """Accept the proposals that are in their slices, and propose again for the factors left.

    Where one value is not a number, none is accepted: see :func:`put_together`.
    """
    z, lower, upper, is_left, _ = brackets
    if not np.isnan(values).any():
        is_left = is_left & ~((values > log_heights) & (values < math.inf))
    lower = np.where(is_left & (z < 0.0), z, lower)
    upper = np.where(is_left & (z >= 0.0), z, upper)
    again = lower + (upper - lower) * draw_uniform(rng, z.size)
    return Brackets(
        np.where(is_left, again, z), lower, upper, is_left, int(np.count_nonzero(is_left))
    )


def all_left(z: FloatVector, lower: FloatVector, upper: FloatVector) -> Brackets:
    """Start with a proposal and a bracket for each factor."""
    return Brackets(z, lower, upper, np.full(z.size, True), z.size)


def shrink_factors(
    rng: np.random.Generator,
    state: FactorsState,
    log_densities: LogDensities,
    merged: Merged,
    factor_of: NDArray[np.int64],
    path: Paths,
    direction: FloatVector,
    log_heights: FloatVector,
    brackets: Brackets,
) -> tuple[FactorsState, FactorsInfo]:
    """Propose for all factors from their brackets, and shrink those of the factors left.

    Parameters
    ----------
    rng : Generator
    state : FactorsState
    log_densities : callable
    merged : callable
    factor_of : ndarray of int
        The factor of each number of u.
    path : callable
        Where ``z`` takes the numbers of u.
    direction : ndarray
    log_heights : ndarray
        The log of the height that defines the slice of each factor.
    brackets : Brackets
        The first proposals.

    Returns
    -------
    state : FactorsState
    info : FactorsInfo
    """
    # Ahead of everything: which share of the factors may be left behind.
    share = tolerated_share(rng)
    cost, n_factors, n_rounds = FREE, log_heights.size, 0
    position, values, memo = state
    while n_rounds < MAX_ROUNDS and brackets.n_left > share * n_factors:
        position = path(state.position, direction, brackets.z, factor_of)
        values, memo = log_densities(position, state.memo)
        cost = plus(cost, cost_of(memo))
        brackets = narrowed(rng, brackets, values, log_heights)
        n_rounds += 1
    n_moved = n_factors - brackets.n_left
    info = FactorsInfo(n_moved / n_factors, 1.0, n_rounds, cost)
    if n_moved == 0:
        return state, info
    if brackets.n_left == 0:
        return FactorsState(position, values, memo), info
    has_moved = ~brackets.is_left
    position = path(state.position, direction, np.where(has_moved, brackets.z, 0.0), factor_of)
    state, more = put_together(state, log_densities, merged, position, values, memo, has_moved)
    return state, FactorsInfo(info.accepted, 1.0, n_rounds, plus(cost, more))


def put_together(
    state: FactorsState,
    log_densities: LogDensities,
    merged: Merged,
    position: FloatVector,
    values: FloatVector,
    memo: Any,
    has_moved: NDArray[np.bool_],
) -> tuple[FactorsState, Cost]:
    """Return the state in which some factors have moved and the others have not, and its cost.

    It is free as a rule. But the proposal of one factor may spoil the values of all: 0, in a matrix
    of which group an element belongs to, times infinity is not a number, and a parameter that is
    out of its range may make the whole density zero. Nothing is accepted in a round in which that
    happens; the proposals that did it are made in the same round on the way back, and do it there
    as well. So factors that were accepted before may have to be evaluated again.
    """
    if np.isnan(values).any() or (has_moved & ~np.isfinite(values)).any():
        values, memo = log_densities(position, state.memo)
        return FactorsState(position, values, memo), cost_of(memo)
    values = np.where(has_moved, values, state.log_densities)
    return FactorsState(position, values, merged(state.memo, memo, has_moved)), FREE


def tolerated_share(rng: np.random.Generator) -> float:
    """Draw the share of the factors that may be left behind by an update.

    As a rule a round for the sake of few factors does not pay. But now and then the share is small,
    so that a factor that needs many rounds moves as well.
    """
    return rng.random()


def elliptical_slice_of_factors(
    rng: np.random.Generator,
    state: FactorsState,
    log_densities: LogDensities,
    merged: Merged,
    factor_of: NDArray[np.int64],
) -> tuple[FactorsState, FactorsInfo]:
    """Update u, N(0, I) times a product of factors, along an ellipse for each factor.

    See :func:`~pymc_apm.kernels.elliptical.elliptical_slice`; the parameters are those of
    :func:`shrink_factors`.
    """
    n_factors = state.log_densities.size
    direction = draw_normal(rng, state.position.size)
    log_heights = state.log_densities - draw_exponential(rng, n_factors)
    angles = 2.0 * math.pi * draw_uniform(rng, n_factors)
    brackets = all_left(angles, angles - 2.0 * math.pi, angles)
    return shrink_factors(
        rng, state, log_densities, merged, factor_of, ellipses, direction, log_heights, brackets
    )


def reflective_slice_of_factors(
    rng: np.random.Generator,
    state: FactorsState,
    log_densities: LogDensities,
    merged: Merged,
    factor_of: NDArray[np.int64],
) -> tuple[FactorsState, FactorsInfo]:
    """Update u, U(0, 1)^n times a product of factors, along a reflected line for each factor.

    See :func:`~pymc_apm.kernels.reflective.reflective_slice`; the parameters are those of
    :func:`shrink_factors`.
    """
    n_factors = state.log_densities.size
    direction = draw_normal(rng, state.position.size)
    log_heights = state.log_densities - draw_exponential(rng, n_factors)
    lower = -draw_uniform(rng, n_factors)
    z = lower + draw_uniform(rng, n_factors)
    brackets = all_left(z, lower, lower + 1.0)
    return shrink_factors(
        rng,
        state,
        log_densities,
        merged,
        factor_of,
        reflected_lines,
        direction,
        log_heights,
        brackets,
    )


def make_independence_of_factors(
    draw: Callable[[np.random.Generator, int], FloatVector],
) -> Callable[..., tuple[FactorsState, FactorsInfo]]:
    """Return the update that proposes fresh randomness for each factor, and accepts it or not.

    See :func:`~pymc_apm.kernels.metropolis.metropolis_independence`.
    """

    def independence_of_factors(
        rng: np.random.Generator,
        state: FactorsState,
        log_densities: LogDensities,
        merged: Merged,
        factor_of: NDArray[np.int64],
    ) -> tuple[FactorsState, FactorsInfo]:
        fresh = draw(rng, state.position.size)
        values, memo = log_densities(fresh, state.memo)
        accept_rates = acceptance(values, state.log_densities)
        has_moved = draw_uniform(rng, values.size) < accept_rates
        n_moved = np.count_nonzero(has_moved)
        info = FactorsInfo(n_moved / values.size, accept_rates.mean(), 1, cost_of(memo))
        if n_moved == 0:
            return state, info
        if n_moved == values.size:
            return FactorsState(fresh, values, memo), info
        position = np.where(has_moved[factor_of], fresh, state.position)
        state, more = put_together(state, log_densities, merged, position, values, memo, has_moved)
        return state, FactorsInfo(info.accepted, info.accept_rate, 1, plus(info.cost, more))

    return independence_of_factors


def acceptance(values: FloatVector, old: FloatVector) -> FloatVector:
    """Return the probability with which the proposal of each factor is to be accepted.

    Where one value is not a number, that is 0 for all: see :func:`put_together`.
    """
    if np.isnan(values).any():
        return np.zeros(values.size)
    is_some = np.isfinite(values)
    return np.where(is_some, np.exp(np.minimum(np.where(is_some, values, 0.0) - old, 0.0)), 0.0)
