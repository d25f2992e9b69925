"""Is a function continuous along a line? Look where it changes abruptly, closer and closer.

The increments of a continuous function over ever shorter intervals go to zero. Where a function
jumps, they do not: cutting the interval again and again, and keeping the part whose increment is
least like the others', closes in on the jump, and the increment that is left is its size.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

INTERVALS = 32
"""Into how many intervals a line is cut at first."""

CANDIDATES = 3
"""How many of them are looked at closely."""

CUTS = 15
"""How often an interval is cut into four."""

LOOK_BACK = 5
"""Over how many cuts the increment of a continuous function must have shrunk."""

SMALLEST = 1e-3
"""Smaller jumps of a log-estimate are of no importance."""

EVALUATIONS = INTERVALS + 1 + CANDIDATES * CUTS * 3
"""How often a function is called for one line, at most."""


class Jump(NamedTuple):
    """The largest jump that was found.

    Attributes
    ----------
    size : float
        How much the function changes there; 0 if none was found, infinite if it drops to zero on
        the natural scale.
    place : float
        Where on the line, between 0 and 1.
    """

    size: float
    place: float


NO_JUMP = Jump(0.0, np.nan)


def largest_jump(function: Callable[[float], float]) -> Jump:
    """Look for jumps of a function on [0, 1]; where it is NaN it is not defined.

    Examples
    --------
    >>> round(largest_jump(lambda t: 5.0 * t + (t > 0.3)).size, 6)
    1.0
    >>> largest_jump(lambda t: abs(t - 0.3) ** 0.5).size
    0.0
    """
    places = np.linspace(0.0, 1.0, INTERVALS + 1)
    values = np.array([function(place) for place in places])
    found = [_zoom(function, places[i : i + 2], values[i : i + 2]) for i in _candidates(values)]
    return max(found, key=lambda jump: jump.size, default=NO_JUMP)


def _candidates(values: NDArray[np.float64]) -> list[int]:
    """Return the interval with the largest increment, and those least like their neighbours.

    Where a function is steep, the latter show a jump that the former hides.
    """
    increments = _increments(values)
    with np.errstate(invalid="ignore"):
        padded = np.pad(increments, 1, mode="reflect", reflect_type="odd")
        unlike = np.abs(increments - (padded[:-2] + padded[2:]) / 2)
    unlike = np.where(np.isnan(unlike), np.inf, unlike)
    order = [int(np.argmax(np.abs(increments))), *np.argsort(-unlike, kind="stable")]
    chosen = dict.fromkeys(
        int(i) for i in order if abs(increments[i]) > SMALLEST or unlike[i] > SMALLEST
    )
    return list(chosen)[:CANDIDATES]


def _increments(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        change = np.diff(values)
    return np.where(np.isnan(change), 0.0, change)  # not defined, or zero on both sides


def _zoom(
    function: Callable[[float], float], ends: NDArray[np.float64], at_ends: NDArray[np.float64]
) -> Jump:
    sizes = []
    for _ in range(CUTS):
        places = np.linspace(ends[0], ends[1], 5)
        inside = [function(place) for place in places[1:-1]]
        values = np.array([at_ends[0], *inside, at_ends[1]])
        increments = _increments(values)
        if np.abs(increments).max() <= SMALLEST:
            return NO_JUMP
        # Smooth parts have much the same increment, near the median. No change is no jump.
        unlike = np.abs(increments - np.median(increments))
        part = int(np.argmax(np.where(np.abs(increments) > SMALLEST, unlike, -1.0)))
        ends, at_ends = places[part : part + 2], values[part : part + 2]
        sizes.append(abs(float(increments[part])))
    is_jump = np.isinf(sizes[-1]) or sizes[-1] > max(SMALLEST, 0.5 * sizes[-1 - LOOK_BACK])
    return Jump(sizes[-1], float(ends.mean())) if is_jump else NO_JUMP
