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
from pymc_apm.kernels.linear import another, length, stretched
from pymc_apm.kernels.state import FloatVector, LogDensity, State

Path: TypeAlias = Callable[[FloatVector, FloatVector, float, FloatVector], None]
"""``path(position, direction, z, out)`` writes the position at ``z`` into ``out``; 0 is here."""

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
    """

    accepted: bool
    n_evals: int
    n_step_out: int
    z: float


def line(position: FloatVector, direction: FloatVector, z: float, out: FloatVector) -> None:
    """Find the point at ``z`` on the straight line through ``position`` along ``direction``."""
    np.multiply(direction, z, out=out)
    out += position


def random_direction(rng: np.random.Generator, cholesky: FloatVector) -> FloatVector:
    """Draw a direction uniformly from the unit sphere, stretched by ``cholesky``."""
    noise = draw_normal(rng, len(cholesky))
    return stretched(cholesky, noise, 1.0 / length(noise))


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
    position = np.empty(state.position.size)
    for attempt in range(1, MAX_SHRINKS + 1):
        path(state.position, direction, z, position)
        value, memo = log_density(position, state.memo)
        if value > log_height:
            # One element that differs is enough; all are compared only if the last one does not.
            moved = (
                attempt == 1
                or position[-1] != state.position[-1]
                or not np.array_equal(position, state.position)
            )
            return State(position, value, memo), SliceInfo(moved, attempt, 0, z)
        if z < 0.0:
            lower = z
        else:
            upper = z
        z = lower + (upper - lower) * rng.random()
        position = another(position)
    return state, SliceInfo(False, MAX_SHRINKS, 0, 0.0)


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
    if max_step_out > 0:
        steps_below = math.floor(max_step_out * rng.random())
        steps_above = max_step_out - 1 - steps_below
        end = np.empty(state.position.size)
        while steps_below > 0:
            line(state.position, direction, lower, end)
            value, _ = log_density(end, state.memo)
            end = another(end)
            n_step_out += 1
            if not value > log_height:
                break
            lower -= width
            steps_below -= 1
        while steps_above > 0:
            line(state.position, direction, upper, end)
            value, _ = log_density(end, state.memo)
            end = another(end)
            n_step_out += 1
            if not value > log_height:
                break
            upper += width
            steps_above -= 1
    proposal = lower + (upper - lower) * rng.random()
    state, info = shrink(
        rng, state, log_density, line, direction, log_height, proposal, lower, upper
    )
    return state, SliceInfo(info.accepted, info.n_evals + n_step_out, n_step_out, info.z)


def coordinate_slice(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    widths: FloatVector,
    max_step_out: int = 0,
) -> tuple[State, list[SliceInfo]]:
    """Update the coordinates of the position one after the other by slice sampling.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
    widths : ndarray
        Width of the initial bracket for each coordinate.
    max_step_out : int
        As for :func:`linear_slice`.

    Returns
    -------
    state : State
    infos : list of SliceInfo
        One for each coordinate.
    """
    infos = []
    for coordinate, width in enumerate(widths):
        direction = np.zeros(state.position.size)
        direction[coordinate] = 1.0
        state, info = linear_slice(rng, state, log_density, direction, width, max_step_out)
        infos.append(info)
    return state, infos
