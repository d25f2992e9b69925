"""The recursions of a hidden Markov model whose states are points of a pool, compiled by Numba.

All are in logs, and every sum is taken relative to its largest term, so that nothing underflows.
``log_f[c, i, j]`` is the log density of the transition from point i of a row to point j of the
next, for some rows in a chunk; ``log_w[r, j]`` is the rest of the weight of point j of row r, which
in the first row of a series includes that of its initial distribution. Rows of ``log_alpha`` and
``log_beta`` have the maximum 0.
"""

import math

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

FAST = {"reassoc", "contract", "nsz"}
"""The order of additions is up to the compiler, which may then add several numbers at a time."""


@numba.njit(forceinline=True, fastmath=False, error_model="numpy")
def _exp(x: float) -> float:
    """Return the exponential of a number that is not positive, to 13 digits.

    It is the 1024th power of that of x / 1024, without branches or calls, so that the compiler can
    work on several numbers at a time.
    """
    r = (-708.0 if x < -708.0 else x) * 0.0009765625
    r2 = r * r
    low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0))
    middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0))
    high = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (1.0 / 3628800.0 + r * (1.0 / 39916800.0))
    r4 = r2 * r2
    power = low + r4 * (middle + r4 * high)
    power *= power
    power *= power
    power *= power
    power *= power
    power *= power
    power *= power
    power *= power
    power *= power
    power *= power
    power *= power
    return 0.0 if x < -708.0 else power


@numba.njit(cache=True, error_model="numpy", fastmath=FAST)
def forward_chunk(
    log_f: Floats, log_w: Floats, is_first: Booleans, start: int, log_alpha: Floats, scale: Floats
) -> None:
    """Fill in ``log_alpha``, and the logs of what its rows were divided by, for rows of a chunk."""
    n = log_w.shape[1]
    largest, total = np.empty(n), np.empty(n)
    for c in range(len(log_f)):
        row = start + c
        if is_first[row]:
            new = log_w[row].copy()
        else:
            before = log_alpha[row - 1]
            largest[:] = -np.inf
            for i in range(n):
                for j in range(n):
                    term = before[i] + log_f[c, i, j]
                    largest[j] = term if term > largest[j] else largest[j]
            for j in range(n):
                largest[j] = largest[j] if largest[j] > -np.inf else 0.0
            total[:] = 0.0
            for i in range(n):
                for j in range(n):
                    total[j] += _exp(before[i] + log_f[c, i, j] - largest[j])
            new = log_w[row] + largest + np.log(total)
        scale[row] = normalise(new)
        log_alpha[row] = new


@numba.njit(cache=True, error_model="numpy")
def normalise(logs: Floats) -> float:
    """Subtract the largest of some numbers from all of them, if it is finite, and return it."""
    largest = -np.inf
    for value in logs:
        if value > largest or value != value:
            largest = value
    if largest == -np.inf:
        return largest
    logs -= largest
    return largest


@numba.njit(cache=True, error_model="numpy")
def log_sum_exp(logs: Floats) -> float:
    """Return the log of a sum."""
    largest = logs.max()
    if largest == -np.inf:
        return -np.inf
    return largest + math.log(np.sum(np.exp(logs - largest)))


@numba.njit(cache=True, error_model="numpy")
def totals(log_alpha: Floats, scale: Floats, is_first: Booleans, series: Integers) -> Floats:
    """Return the log-estimate of each series."""
    result = np.zeros(series[-1] + 1)
    for row in range(len(log_alpha)):
        result[series[row]] += scale[row]
        if row + 1 == len(log_alpha) or is_first[row + 1]:
            if result[series[row]] > -np.inf:
                result[series[row]] += log_sum_exp(log_alpha[row])
    return result


@numba.njit(cache=True, error_model="numpy", fastmath=FAST)
def backward_chunk(
    log_f: Floats,
    log_w: Floats,
    is_first: Booleans,
    start: int,
    log_alpha: Floats,
    log_beta: Floats,
    weight: Floats,
    pairs: Floats,
) -> None:
    """Fill in ``log_beta`` of the rows before those of a chunk, and the weights of all pairs.

    ``log_beta`` of the last row of each series, and of the last row of the chunk, must be known.
    ``pairs[c, i, j]`` is the probability of points i and j given all data, times the ``weight`` of
    row c.
    """
    n = log_w.shape[1]
    after, largest, total = np.empty(n), np.empty(n), np.empty(n)
    for c in range(len(log_f) - 1, -1, -1):
        row = start + c
        if is_first[row]:
            pairs[c] = 0.0
            continue
        after[:] = log_w[row] + log_beta[row]
        for i in range(n):
            most = -np.inf
            for j in range(n):
                term = log_f[c, i, j] + after[j]
                most = term if term > most else most
            most = most if most > -np.inf else 0.0
            added = 0.0
            for j in range(n):
                power = _exp(log_f[c, i, j] + after[j] - most)
                pairs[c, i, j] = power
                added += power
            largest[i], total[i] = most, added
        new = largest + np.log(total)
        joint = log_alpha[row - 1] + new
        log_total = log_sum_exp(joint)
        for i in range(n):
            factor = math.exp(log_alpha[row - 1, i] + largest[i] - log_total) * weight[row]
            for j in range(n):
                pairs[c, i, j] *= factor
        normalise(new)
        log_beta[row - 1] = new


@numba.njit(cache=True, error_model="numpy")
def marginals(log_alpha: Floats, log_beta: Floats, weight: Floats) -> Floats:
    """Return the probabilities of all points given all data, times the weights of rows."""
    result = np.empty_like(log_alpha)
    for row in range(len(log_alpha)):
        logs = log_alpha[row] + log_beta[row]
        result[row] = np.exp(logs - log_sum_exp(logs)) * weight[row]
    return result


@numba.njit(cache=True, error_model="numpy")
def draw_chunk(
    log_f: Floats,
    is_last: Booleans,
    start: int,
    log_alpha: Floats,
    u: Floats,
    chosen: Integers,
    reached: Floats,
) -> None:
    """Choose a point of each of the rows before those of a chunk, given that of the next row.

    Those of the last rows of series, and of the last row of the chunk, must be known. Count, too,
    the effective number of points of a row that the transition from the one before reaches.
    """
    for c in range(len(log_f) - 1, -1, -1):
        row = start + c - 1
        if not is_last[row]:
            logs = log_alpha[row] + log_f[c, :, chosen[row + 1]]
            chosen[row] = choose(logs, u[row])
            density = np.exp(log_f[c, chosen[row]] - log_f[c, chosen[row]].max())
            reached[row + 1] = density.sum() ** 2 / (density**2).sum()


@numba.njit(cache=True, error_model="numpy")
def choose(logs: Floats, u: float) -> int:
    """Choose one of some numbers with the logs of their probabilities, but for a constant."""
    weights = np.cumsum(np.exp(logs - logs.max()))
    return min(np.searchsorted(weights, u * weights[-1]), len(weights) - 1)


@numba.njit(cache=True, error_model="numpy")
def predict_chunk(
    log_f: Floats, log_w: Floats, is_first: Booleans, start: int, log_alpha: Floats, score: Floats
) -> None:
    """Fill in the log density of each row of a chunk given those before it."""
    for c in range(len(log_f)):
        row = start + c
        if is_first[row]:
            score[row] = log_sum_exp(log_w[row])
            continue
        before = log_alpha[row - 1] - log_sum_exp(log_alpha[row - 1])
        ahead = np.empty(log_w.shape[1])
        for j in range(log_w.shape[1]):
            ahead[j] = log_sum_exp(before + log_f[c, :, j]) + log_w[row, j]
        score[row] = log_sum_exp(ahead)
