"""The order of particles, in which resampling keeps neighbours together.

Where particles are in order, a small change of the parameters or of u changes which of them are
resampled by one neighbour, and the estimate by little. States of one dimension are sorted by
value, others by a key: a number that the user computes from a state, or its place on a Hilbert
curve. Equal keys are sorted by the states themselves, and equal states by their number, so that the
order is a function of the particles and nothing else.

States are the columns of a matrix. The functions run in Python as well as compiled.

References
----------
Skilling, J. (2004). Programming the Hilbert curve. doi:10.1063/1.1751381.
"""

import math
from typing import Any

import numpy as np
from numba.extending import register_jitable

from pymc_apm.types import FloatVector

MAX_BITS = 52
"""A key has so many bits at the most, so that it is exact as a float."""

BITS = 16
"""So many of them for each dimension at the most."""

CROWD = 8
"""How many numbers are in the box of a number on average, before they are merged instead."""


@register_jitable
def order_by_value(x: Any, keys: FloatVector) -> Any:
    """Return the order of particles by their keys alone, which are their values."""
    return np.argsort(keys, kind="mergesort")


@register_jitable
def order_in_boxes(x: Any, keys: FloatVector) -> Any:
    """Return the same as :func:`order_by_value`, in less time where it is compiled.

    Keys are put into as many boxes as there are of them, and then to their places by insertion.
    That takes time in proportion to how many there are, unless they crowd in few of the boxes, as
    where one is far away: then they are merged.
    """
    n = keys.size
    least, most = np.min(keys), np.max(keys)
    scale = (n - 1) / (most - least) if most > least else math.nan
    if not 0.0 < scale < math.inf:  # also where a number is infinite or NaN
        return np.argsort(keys, kind="mergesort")
    boxes, ends = np.empty(n, np.int64), np.zeros(n + 1, np.int64)
    crowd = 0
    for j in range(n):
        box = int((keys[j] - least) * scale)
        boxes[j] = box
        ends[box + 1] += 1
        crowd += ends[box + 1]
    if crowd > CROWD * n:
        return np.argsort(keys, kind="mergesort")
    for box in range(n):
        ends[box + 1] += ends[box]
    order, values = np.empty(n, np.int64), np.empty(n)
    for j in range(n):
        place = ends[boxes[j]]
        ends[boxes[j]] = place + 1
        order[place], values[place] = j, keys[j]
    for place in range(1, n):
        number, value = order[place], values[place]
        other = place
        while other > 0 and values[other - 1] > value:
            order[other], values[other] = order[other - 1], values[other - 1]
            other -= 1
        order[other], values[other] = number, value
    return order


@register_jitable
def order_by_key(x: Any, keys: FloatVector) -> Any:
    """Return the order of particles by their keys, then by their states: by merging."""
    n = keys.size
    order, other = np.arange(n), np.empty(n, np.int64)
    width = 1
    while width < n:
        for start in range(0, n, 2 * width):
            middle, stop = min(start + width, n), min(start + 2 * width, n)
            i, j = start, middle
            for place in range(start, stop):
                if i < middle and (j >= stop or not _is_before(x, keys, order[j], order[i])):
                    other[place] = order[i]
                    i += 1
                else:
                    other[place] = order[j]
                    j += 1
        order, other = other, order
        width *= 2
    return order


@register_jitable
def _is_before(x: Any, keys: FloatVector, first: int, second: int) -> bool:
    if keys[first] != keys[second]:
        return keys[first] < keys[second]
    for i in range(x.shape[0]):
        if x[i, first] != x[i, second]:
            return x[i, first] < x[i, second]
    return False


@register_jitable
def first_coordinate(x: Any, row: Any, args: Any) -> FloatVector:
    """Return the values of particles of one dimension: the key by which these are sorted."""
    return x[0]


@register_jitable
def hilbert_keys(x: Any, row: Any, args: Any) -> FloatVector:
    """Return the places of particles on a Hilbert curve.

    The curve runs through a cube, into which each coordinate is taken by a sigmoid function after
    it is standardised.
    """
    dim, n = x.shape
    bits = max(min(BITS, MAX_BITS // dim), 1)
    side = 2.0**bits
    corners = np.empty((dim, n), np.int64)
    for i in range(dim):
        mean = np.sum(x[i]) / n
        sd = math.sqrt(np.sum((x[i] - mean) ** 2) / n)
        for j in range(n):
            z = (x[i, j] - mean) / sd if sd > 0.0 else 0.0
            share = 1.0 / (1.0 + math.exp(-1.702 * min(max(z, -40.0), 40.0)))
            corners[i, j] = int(min(share * side, side - 1.0))
    keys = np.empty(n)
    point = np.empty(dim, np.int64)
    for j in range(n):
        for i in range(dim):
            point[i] = corners[i, j]
        keys[j] = _place_on_curve(point, bits)
    return keys


@register_jitable
def _place_on_curve(point: Any, bits: int) -> float:
    """Return the place of a point with integer coordinates, which are lost: Skilling's method."""
    dim = point.size
    bit = 1 << (bits - 1)
    while bit > 1:
        mask = bit - 1
        for i in range(dim):
            if point[i] & bit:
                point[0] ^= mask
            else:
                swapped = (point[0] ^ point[i]) & mask
                point[0] ^= swapped
                point[i] ^= swapped
        bit >>= 1
    for i in range(1, dim):
        point[i] ^= point[i - 1]
    flipped = 0
    bit = 1 << (bits - 1)
    while bit > 1:
        if point[dim - 1] & bit:
            flipped ^= bit - 1
        bit >>= 1
    for i in range(dim):
        point[i] ^= flipped
    place = 0.0
    for k in range(bits - 1, -1, -1):
        for i in range(dim):
            place = 2.0 * place + float((point[i] >> k) & 1)
    return place
