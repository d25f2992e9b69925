"""Arithmetic in plain loops, for Numba.

The few functions of numpy and scipy that the update rules call on whole vectors: Numba has no
version of some of them, and of others one that takes long to compile, or allocates memory, or calls
a library for five numbers.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_apm import adaptation
from pymc_apm.kernels import draws, elliptical, linear, normal, reflective, slice
from pymc_apm.kernels.state import FloatVector


def _product(matrix: FloatVector, vector: FloatVector) -> FloatVector:
    result = np.empty(matrix.shape[0])
    for row in range(matrix.shape[0]):
        total = 0.0
        for column in range(matrix.shape[1]):
            total += matrix[row, column] * vector[column]
        result[row] = total
    return result


def _length(vector: FloatVector) -> float:
    total = 0.0
    for i in range(vector.size):
        total += vector[i] * vector[i]
    return math.sqrt(total)


def _normal_cdf(x: FloatVector) -> FloatVector:
    result = np.empty(x.size)
    for i in range(x.size):
        result[i] = 0.5 * math.erfc(-x[i] / math.sqrt(2.0))
    return result


def _normal_quantile(p: FloatVector) -> FloatVector:
    result = np.empty(p.size)
    for i in range(p.size):
        result[i] = _one_quantile(p[i])
    return result


def _one_quantile(p: float) -> float:
    """Refine a rational approximation of the quantile by three steps of Halley's method.

    The approximation is 26.2.23 of Abramowitz and Stegun (1964), with an error below 4.5e-4.
    """
    if not 0.0 < p < 1.0:
        return -math.inf if p == 0.0 else math.inf if p == 1.0 else math.nan
    tail = min(p, 1.0 - p)
    t = math.sqrt(-2.0 * math.log(tail))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    x = top / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t  # below zero
    for _ in range(3):
        error = 0.5 * math.erfc(-x / math.sqrt(2.0)) - tail
        step = error * math.sqrt(2.0 * math.pi) * math.exp(0.5 * x * x)
        x -= step / (1.0 + 0.5 * x * step)
    return x if p < 0.5 else -x


def _accumulated(
    mean: FloatVector, scatter: FloatVector, draw: FloatVector, n_draws: int
) -> tuple[FloatVector, FloatVector]:
    new_mean, new_scatter = np.empty(mean.size), np.empty(scatter.shape)
    for i in range(mean.size):
        new_mean[i] = mean[i] + (draw[i] - mean[i]) / n_draws
    for i in range(mean.size):
        for j in range(mean.size):
            new_scatter[i, j] = scatter[i, j] + (draw[i] - mean[i]) * (draw[j] - new_mean[j])
    return new_mean, new_scatter


def _regularised_cholesky(
    scatter: FloatVector, n_draws: int, diagonal: bool
) -> tuple[FloatVector, bool]:
    dim = len(scatter)
    factor = np.zeros((dim, dim))
    for i in range(dim):
        if not 0.0 < scatter[i, i] < math.inf:
            return factor, False
    for i in range(dim):
        for j in range(i + 1):
            if i != j and diagonal:
                continue
            rest = scatter[i, j] / (n_draws - 1)
            if i != j:
                rest *= 1.0 - 1.0 / n_draws
            for k in range(j):
                rest -= factor[i, k] * factor[j, k]
            factor[i, j] = math.sqrt(rest) if i == j else rest / factor[j, j]
    return factor, True


def _stretched(cholesky: FloatVector, noise: FloatVector, scale: float) -> FloatVector:
    for row in range(noise.size - 1, -1, -1):
        total = 0.0
        for column in range(row + 1):
            total += cholesky[row, column] * noise[column]
        noise[row] = total * scale
    return noise


def _draw_normal(rng: np.random.Generator, size: int) -> FloatVector:
    numbers = np.empty(size)
    for i in range(size):
        numbers[i] = rng.standard_normal()
    return numbers


def _another(vector: FloatVector) -> FloatVector:
    return vector


def _line(position: FloatVector, direction: FloatVector, z: float, out: FloatVector) -> None:
    for i in range(position.size):
        out[i] = position[i] + direction[i] * z


def _ellipse(u: FloatVector, direction: FloatVector, angle: float, out: FloatVector) -> None:
    cosine, sine = math.cos(angle), math.sin(angle)
    for i in range(u.size):
        out[i] = u[i] * cosine + direction[i] * sine


def _reflected_line(u: FloatVector, direction: FloatVector, z: float, out: FloatVector) -> None:
    for i in range(u.size):
        x = u[i] + direction[i] * z
        out[i] = abs(x - 2.0 * np.rint(0.5 * x))


SUBSTITUTES: dict[Callable[..., Any], Callable[..., Any]] = {
    linear.product: _product,
    linear.stretched: _stretched,
    linear.another: _another,
    draws.draw_normal: _draw_normal,
    slice.line: _line,
    elliptical.ellipse: _ellipse,
    reflective.reflected_line: _reflected_line,
    linear.length: _length,
    normal.normal_cdf: _normal_cdf,
    normal.normal_quantile: _normal_quantile,
    adaptation.accumulated: _accumulated,
    adaptation.regularised_cholesky: _regularised_cholesky,
}
"""Functions that have another source for Numba, and that source."""
