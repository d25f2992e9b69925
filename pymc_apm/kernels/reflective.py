"""Slice sampling in the unit cube with reflections: the update of uniform randomness.

The paper's section "Slice Sampling auxiliary u variables": a line in a random direction that is
reflected where it meets the boundary of the cube. Reflections have unit Jacobian, so slice sampling
along the folded line leaves the target invariant.
"""

import numpy as np

from pymc_apm.kernels.draws import draw_normal
from pymc_apm.kernels.slice import SliceInfo, shrink
from pymc_apm.types import FloatVector, LogDensity, State


def reflect(x: FloatVector) -> FloatVector:
    """Fold the real line into the unit interval: the paper's Reflect(x).

    That is the distance to the nearest even number.
    """
    return np.abs(x - 2.0 * np.rint(0.5 * x))


def reflected_line(u: FloatVector, direction: FloatVector, z: float) -> FloatVector:
    """Return the point at ``z`` on the line through ``u``, reflected into the unit cube."""
    return reflect(u + direction * z)


def reflective_slice(
    rng: np.random.Generator, state: State, log_density: LogDensity, width: float = 1.0
) -> tuple[State, SliceInfo]:
    """Update u, whose distribution is U(0, 1)^n times a likelihood, along a reflected line.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
        The log density with respect to U(0, 1)^n: the log-estimate.
    width : float
        Width of the bracket in units of a direction with N(0, 1) elements; the paper uses 1.

    Returns
    -------
    state : State
    info : SliceInfo
    """
    direction = draw_normal(rng, state.position.size)
    log_height = state.log_density - rng.standard_exponential()
    lower = -width * rng.random()
    upper = lower + width
    proposal = lower + width * rng.random()
    return shrink(
        rng, state, log_density, reflected_line, direction, log_height, proposal, lower, upper
    )
