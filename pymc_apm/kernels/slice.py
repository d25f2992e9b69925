"""Slice sampling along a path through the current position (Neal, 2003).

Neal, R. M. (2003), "Slice sampling", Annals of Statistics 31, doi:10.1214/aos/1056562461. All slice
updates of the paper are one procedure on a scalar ``z``: a height under the density at the current
position (``z = 0``), a bracket that contains 0, and proposals from the bracket, which shrinks
towards 0 until one is under the density. They differ in the path along which ``z`` moves the
position: a straight line here (Figure 2 of the paper), an ellipse for Gaussian and a reflected line
for uniform randomness in the files beside this one.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from pymc_apm.kernels.draws import draw_normal
from pymc_apm.kernels.linear import length, product
from pymc_apm.types import FREE, Cost, FloatVector, LogDensity, State, cost_of, plus, reaching

Path: TypeAlias = Callable[[FloatVector, FloatVector, float], FloatVector]
"""``path(position, direction, z)`` is the position at ``z``; 0 is here."""

MAX_SHRINKS = 200
"""A bracket that shrank this often has no width left in double precision."""

UNLIMITED = 1_000_000
"""The number of intervals that stands for stepping out without a limit: no loop is endless."""


class SliceInfo(NamedTuple):
    """What happened in one slice update.

    Attributes
    ----------
    accepted : bool
        Whether the position moved. It always does where the density is continuous.
    n_evals : int
        Evaluations of the log density, stepping out included.
    n_step_out : int
        Evaluations of the log density for stepping out alone.
    z : float
        How far along the path the position moved.
    cost : Cost
        What the evaluations cost.
    accept_rate : float
        1 as a rule: proposals are made until one is accepted.
    """

    accepted: bool
    n_evals: int
    n_step_out: int
    z: float
    cost: Cost = FREE
    accept_rate: float = 1.0


def line(position: FloatVector, direction: FloatVector, z: float) -> FloatVector:
    """Return the point at ``z`` on the straight line through ``position`` along ``direction``."""
    return position + direction * z


def differ(first: FloatVector, second: FloatVector) -> bool:
    """Say whether two vectors differ: as a rule their last elements do, which is soon found."""
    is_elsewhere = first.size > 0 and second.size > 0 and first[-1] != second[-1]
    return bool(is_elsewhere) or not np.array_equal(first, second)


def random_direction(rng: np.random.Generator, cholesky: FloatVector) -> FloatVector:
    """Draw a direction uniformly from the unit sphere, stretched by ``cholesky``."""
    noise = draw_normal(rng, len(cholesky))
    return product(cholesky, noise) * (1.0 / length(noise))


def shrink(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    path: Path,
    direction: FloatVector,
    log_height: float,
    proposal: float,
    lower: float,
    upper: float,
) -> tuple[State, SliceInfo]:
    """Propose from the bracket, and shrink it towards 0 after each rejection.

    Steps 4 to 9 of Figure 2 of the paper.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
    path : callable
        Where ``z`` takes the position.
    direction : ndarray
        The direction of the path.
    log_height : float
        The log of the height that defines the slice.
    proposal : float
        The first value of ``z`` to try.
    lower, upper : float
        The bracket, ``lower <= 0 <= upper``.

    Returns
    -------
    state : State
    info : SliceInfo
    """
    z = proposal
    cost, here = FREE, reaching(state.memo, log_height)
    for attempt in range(1, MAX_SHRINKS + 1):
        position = path(state.position, direction, z)
        value, memo = log_density(position, here)
        cost = cost_of(memo) if attempt == 1 else plus(cost, cost_of(memo))
        if value > log_height:
            moved = attempt == 1 or differ(position, state.position)
            return State(position, value, memo), SliceInfo(moved, attempt, 0, z, cost, 1.0)
        if z < 0.0:
            lower = z
        else:
            upper = z
        z = lower + (upper - lower) * rng.random()
    return state, SliceInfo(False, MAX_SHRINKS, 0, 0.0, cost, 0.0)


def linear_slice(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    direction: FloatVector,
    width: float = 1.0,
    max_step_out: int = 0,
) -> tuple[State, SliceInfo]:
    """Update the position by slice sampling along a straight line.

    Figure 2 of the paper; the ``SS`` of its naming scheme when it updates theta.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
    direction : ndarray
        The direction to move along, of any length; it must not depend on the position.
    width : float
        Width of the initial bracket in units of ``direction``.
    max_step_out : int
        0 leaves the bracket as it is. A limit ``m`` steps out until both ends are outside of the
        slice or the bracket is ``m`` widths long, split between the two ends at random as Neal
        (2003, Figure 3) does. ``UNLIMITED`` is no limit for all practical purposes.

    Returns
    -------
    state : State
    info : SliceInfo
    """
    log_height = state.log_density - rng.standard_exponential()
    lower = -width * rng.random()
    upper = lower + width
    n_step_out = 0
    cost, here = FREE, reaching(state.memo, log_height)
    if max_step_out > 0:
        steps_below = math.floor(max_step_out * rng.random())
        steps_above = max_step_out - 1 - steps_below
        while steps_below > 0:
            value, memo = log_density(line(state.position, direction, lower), here)
            cost = plus(cost, cost_of(memo))
            n_step_out += 1
            if not value > log_height:
                break
            lower -= width
            steps_below -= 1
        while steps_above > 0:
            value, memo = log_density(line(state.position, direction, upper), here)
            cost = plus(cost, cost_of(memo))
            n_step_out += 1
            if not value > log_height:
                break
            upper += width
            steps_above -= 1
    proposal = lower + (upper - lower) * rng.random()
    state, info = shrink(
        rng, state, log_density, line, direction, log_height, proposal, lower, upper
    )
    if n_step_out == 0:
        return state, info
    return state, SliceInfo(
        info.accepted,
        info.n_evals + n_step_out,
        n_step_out,
        info.z,
        plus(cost, info.cost),
        info.accept_rate,
    )
