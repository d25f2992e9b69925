"""The recursions of :mod:`pymc_apm.estimators.states.forward` for standard normal transitions.

The density of the transition from point i of a row to point j of the next is, but for a constant,
``exp(-0.5 * sum((where[r, :, j] - centres[r, :, i])**2))``, which is at most 1. So sums over points
are taken of numbers, not of logs, in one pass over all pairs that keeps none of them; where such a
sum is too small for that, it is computed again by way of logs.
"""

import math

import numba
import numpy as np

from pymc_apm.estimators.states.forward import (
    FAST,
    Booleans,
    Floats,
    _exp,
    log_sum_exp,
    normalise,
)

TINY = 1e-240
"""A sum from which on what underflows in it is lost in rounding: a term below 1e-307 is zero."""


@numba.njit(error_model="numpy", fastmath=FAST, forceinline=True)
def _squares(where: Floats, centres: Floats, i: int, squares: Floats) -> None:
    """Fill in half the squared distances of one centre from all places."""
    n_dims, n = where.shape
    for j in range(n):
        z = where[0, j] - centres[0, i]
        squares[j] = 0.5 * z * z
    for k in range(1, n_dims):
        for j in range(n):
            z = where[k, j] - centres[k, i]
            squares[j] += 0.5 * z * z


@numba.njit(cache=True, error_model="numpy")
def _half_square(where: Floats, centres: Floats, i: int, j: int) -> float:
    """Return half the squared distance of a centre from a place."""
    square = 0.0
    for k in range(len(where)):
        square += (where[k, j] - centres[k, i]) ** 2
    return 0.5 * square


@numba.njit(cache=True, error_model="numpy", fastmath=FAST)
def normal_forward(
    log_w: Floats,
    where: Floats,
    centres: Floats,
    is_first: Booleans,
    log_alpha: Floats,
    scale: Floats,
) -> None:
    """Fill in ``log_alpha``, and the logs of what its rows were divided by."""
    (n_rows, n), n_dims = log_w.shape, where.shape[1]
    alpha, total, squares = np.empty(n), np.empty(n), np.empty(n)
    for row in range(n_rows):
        new, own = log_alpha[row], log_w[row]
        if is_first[row]:
            new[:] = own
        else:
            before, to, of = log_alpha[row - 1], where[row], centres[row]
            for i in range(n):
                alpha[i] = _exp(before[i])
            total[:] = 0.0
            for i in range(n):
                factor = alpha[i]
                if n_dims == 1:  # the same in one loop, which is faster
                    centre, line = of[0, i], to[0]
                    for j in range(n):
                        z = line[j] - centre
                        total[j] += factor * _exp(-0.5 * z * z)
                else:
                    _squares(to, of, i, squares)
                    for j in range(n):
                        total[j] += factor * _exp(-squares[j])
            for j in range(n):
                if total[j] < TINY:
                    for i in range(n):
                        squares[i] = before[i] - _half_square(to, of, i, j)
                    new[j] = own[j] + log_sum_exp(squares)
                else:
                    new[j] = own[j] + math.log(total[j])
        scale[row] = normalise(new)


@numba.njit(cache=True, error_model="numpy", fastmath=FAST)
def normal_backward(
    log_w: Floats,
    where: Floats,
    centres: Floats,
    is_first: Booleans,
    log_alpha: Floats,
    weight: Floats,
    gamma: Floats,
    by_where: Floats,
    by_centres: Floats,
) -> None:
    """Fill in the gradient by ``log_w``, ``where`` and ``centres``, arrays of zeros.

    It is the mean of that of the log density of pairs of points given all data, times the
    ``weight`` of their row.
    """
    (n_rows, n), n_dims = log_w.shape, where.shape[1]
    value, squares, power = np.empty(n), np.empty(n), np.empty(n)
    after, new, column = np.empty(n), np.zeros(n), np.empty(n)
    for row in range(n_rows - 1, -1, -1):
        if row + 1 == n_rows or is_first[row + 1]:
            new[:] = 0.0  # the log of beta
            for j in range(n):
                gamma[row, j] = _exp(log_alpha[row, j])
            gamma[row] *= weight[row] / np.sum(gamma[row])
        if is_first[row]:
            continue
        before, to, of = log_alpha[row - 1], where[row], centres[row]
        on_where, on_centres, on_point = by_where[row], by_centres[row], gamma[row - 1]
        after[:] = log_w[row] + new
        normalise(after)
        for j in range(n):
            value[j] = _exp(after[j])
            on_point[j] = _exp(before[j])
        column[:] = 0.0
        for i in range(n):
            factor, total = on_point[i], 0.0
            if n_dims == 1:  # the same in one loop, which is faster
                centre, line, on_line, moment = of[0, i], to[0], on_where[0], 0.0
                for j in range(n):
                    z = line[j] - centre
                    one = value[j] * _exp(-0.5 * z * z)
                    total += one
                    one = one * z if one > 0.0 else 0.0  # also where a mean is infinite
                    moment += one
                    on_line[j] -= factor * one
                on_centres[0, i] = factor * moment
            else:
                _squares(to, of, i, squares)
                for j in range(n):
                    power[j] = value[j] * _exp(-squares[j])
                    total += power[j]
                if total > 0.0:  # else a mean may be infinite
                    for j in range(n):
                        column[j] += factor * power[j]
                    for k in range(n_dims):
                        moment, centre = 0.0, factor * of[k, i]
                        for j in range(n):
                            moment += power[j] * to[k, j]
                            on_where[k, j] += centre * power[j]
                        on_centres[k, i] = factor * moment - centre * total
            new[i] = total
            on_point[i] = factor * total
        if n_dims > 1:
            on_where -= column * to
        norm = np.sum(on_point)
        for i in range(n):
            if new[i] < TINY:
                for j in range(n):
                    squares[j] = after[j] - _half_square(to, of, i, j)
                new[i] = log_sum_exp(squares)
            else:
                new[i] = math.log(new[i])
        if norm < TINY:
            norm = _by_logs(before, after, to, of, new, on_point, on_where, on_centres)
        on_point *= weight[row] / norm
        on_where *= weight[row] / norm
        on_centres *= weight[row] / norm
        normalise(new)


@numba.njit(cache=True, error_model="numpy")
def _by_logs(
    before: Floats,
    after: Floats,
    to: Floats,
    of: Floats,
    log_beta: Floats,
    on_point: Floats,
    on_where: Floats,
    on_centres: Floats,
) -> float:
    """Make the parts of the gradient again by logs, and return what to divide them by."""
    log_norm = log_sum_exp(before + log_beta)
    on_point[:], on_where[:], on_centres[:] = 0.0, 0.0, 0.0
    for i in range(len(before)):
        for j in range(len(after)):
            log_pair = before[i] + after[j] - _half_square(to, of, i, j)
            probability = math.exp(log_pair - log_norm)
            on_point[i] += probability
            for k in range(len(to)):
                one = probability * (to[k, j] - of[k, i]) if probability > 0.0 else 0.0
                on_centres[k, i] += one
                on_where[k, j] -= one
    return 1.0
