"""Is a function continuous along a line? Look where it changes most, closer and closer.

The increments of a continuous function over ever shorter intervals go to zero. Where a function
jumps, they do not: bisecting the interval towards its larger increment closes in on the jump, and
the increment that is left is its size.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

INTERVALS = 32
"""Into how many intervals a line is cut at first."""

CANDIDATES = 3
"""How many of them are looked at closely."""

HALVINGS = 30
"""How often an interval is bisected."""

LOOK_BACK = 10
"""Over how many halvings the increment of a continuous function must have shrunk."""

SMALLEST = 1e-3
"""Smaller jumps of a log-estimate are of no importance."""

EVALUATIONS = INTERVALS + 1 + CANDIDATES * HALVINGS
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
    >>> largest_jump(lambda t: 5.0 * t + (t > 0.3)).size
    1.0
    >>> largest_jump(lambda t: abs(t - 0.3) ** 0.5).size
    0.0
    """
    places = np.linspace(0.0, 1.0, INTERVALS + 1)
    values = np.array([function(place) for place in places])
    found = [
        _zoom(function, places[i], places[i + 1], values[i], values[i + 1])
        for i in _candidates(values)
    ]
    return max(found, key=lambda jump: jump.size, default=NO_JUMP)


def _candidates(values: NDArray[np.float64]) -> list[int]:
    """Return the intervals with the largest increment, and with those least like their neighbours'.

    Where a function is steep, the latter show a jump that the former hide.
    """
    increments = _increment(values[:-1], values[1:])
    with np.errstate(invalid="ignore"):
        padded = np.pad(increments, 1, mode="edge")
        unlike = np.abs(increments - (padded[:-2] + padded[2:]) / 2)
    unlike = np.where(np.isnan(unlike), np.inf, unlike)
    order = [int(np.argmax(increments)), *np.argsort(-unlike, kind="stable")]
    chosen = dict.fromkeys(int(i) for i in order if increments[i] > SMALLEST)
    return list(chosen)[:CANDIDATES]


def _increment(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        change = np.abs(right - left)
    return np.where(np.isnan(change), 0.0, change)  # not defined, or zero on both sides


def _zoom(
    function: Callable[[float], float], left: float, right: float, at_left: float, at_right: float
) -> Jump:
    sizes = []
    for _ in range(HALVINGS):
        middle = (left + right) / 2
        at_middle = function(middle)
        to_left, to_right = _increment(
            np.array([at_left, at_middle]), np.array([at_middle, at_right])
        )
        if to_left >= to_right:
            right, at_right = middle, at_middle
        else:
            left, at_left = middle, at_middle
        sizes.append(float(max(to_left, to_right)))
        if sizes[-1] <= SMALLEST:
            return NO_JUMP
    is_jump = np.isinf(sizes[-1]) or sizes[-1] > 0.5 * sizes[-1 - LOOK_BACK]
    return Jump(sizes[-1], (left + right) / 2) if is_jump else NO_JUMP
