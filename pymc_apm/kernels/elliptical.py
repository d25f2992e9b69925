"""Elliptical slice sampling: the update of Gaussian randomness (Murray, Adams and MacKay, 2010).

The method has no free parameter. A proposal lies on the ellipse through the current u and a fresh
draw from N(0, I), on which every point has the prior's distribution; the first one is as good as
independent of u, and each rejection brings the next one closer.

Murray, I., Adams, R. P. and MacKay, D. J. C. (2010), "Elliptical slice sampling", AISTATS.
"""

import math

import numpy as np

from pymc_apm.kernels.draws import draw_normal
from pymc_apm.kernels.slice import SliceInfo, shrink
from pymc_apm.types import FloatVector, LogDensity, State


def ellipse(u: FloatVector, direction: FloatVector, angle: float) -> FloatVector:
    """Return the point at ``angle`` on the ellipse through ``u`` (0) and ``direction`` (pi/2)."""
    return u * math.cos(angle) + direction * math.sin(angle)


def elliptical_slice(
    rng: np.random.Generator, state: State, log_density: LogDensity
) -> tuple[State, SliceInfo]:
    """Update u, whose distribution is N(0, I) times a likelihood, along a random ellipse.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
        The log density with respect to N(0, I): the log-estimate, without the density of u.

    Returns
    -------
    state : State
    info : SliceInfo
    """
    direction = draw_normal(rng, state.position.size)
    log_height = state.log_density - rng.standard_exponential()
    angle = 2.0 * math.pi * rng.random()
    lower = angle - 2.0 * math.pi
    return shrink(
        rng, state, log_density, ellipse, direction, log_height, angle, lower, upper=angle
    )
