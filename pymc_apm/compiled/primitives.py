"""What compiled code does instead of a few functions of numpy and scipy: plain loops.

The update rules call these functions on whole vectors. Numba has no version of some of them, and
of others one that takes long to compile, or allocates memory, or calls a library for five numbers.
Each has a test that compares it with the original.
"""

import math
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable

from pymc_apm import types
from pymc_apm.adaptive import covariance
from pymc_apm.compiled.parts import PartCompiler
from pymc_apm.kernels import blocks, draws, elliptical, linear, normal, reflective, slice

PRIMITIVES = (
    types.cost_of,
    linear.product,
    linear.length,
    linear.solved,
    draws.draw_normal,
    blocks.with_columns,
    slice.line,
    elliptical.ellipse,
    reflective.reflected_line,
    normal.normal_cdf,
    normal.normal_quantile,
    covariance.accumulated,
    covariance.regularised_cholesky,
)
"""The functions that have another source in compiled code, given below in the same order."""

_part: dict[str, Any] = {"pipeline_class": PartCompiler}
_inlined = _part | {"forceinline": True}


@overload(types.cost_of, jit_options=_inlined)
def _cost_of(memo: Any) -> Any:
    def cost_of(memo: Any) -> Any:
        return memo.cost

    return cost_of


@overload(linear.product, jit_options=_inlined)
def _product(matrix: Any, vector: Any) -> Any:
    def product(matrix: Any, vector: Any) -> Any:
        result = np.empty(matrix.shape[0])
        for row in range(matrix.shape[0]):
            total = 0.0
            for column in range(matrix.shape[1]):
                total += matrix[row, column] * vector[column]
            result[row] = total
        return result

    return product


@overload(linear.length, jit_options=_inlined)
def _length(vector: Any) -> Any:
    def length(vector: Any) -> Any:
        total = 0.0
        for i in range(vector.size):
            total += vector[i] * vector[i]
        return math.sqrt(total)

    return length


@overload(linear.solved, jit_options=_inlined)
def _solved(factor: Any, vector: Any) -> Any:
    def solved(factor: Any, vector: Any) -> Any:
        result = np.empty(vector.size)
        for row in range(vector.size):
            rest = vector[row]
            for column in range(row):
                rest -= factor[row, column] * result[column]
            result[row] = rest / factor[row, row]
        return result

    return solved


@overload(draws.draw_normal, jit_options=_inlined)
def _draw_normal(rng: Any, size: Any) -> Any:
    def draw_normal(rng: Any, size: Any) -> Any:
        numbers = np.empty(size)
        for i in range(size):
            numbers[i] = rng.standard_normal()
        return numbers

    return draw_normal


@overload(blocks.with_columns, jit_options=_inlined)
def _with_columns(u: Any, numbers: Any, row: Any, first: Any, last: Any) -> Any:
    def with_columns(u: Any, numbers: Any, row: Any, first: Any, last: Any) -> Any:
        result, width = u.copy(), last - first
        for i in range(numbers.size):
            result[i // width * row + first + i % width] = numbers[i]
        return result

    return with_columns


@overload(slice.line, jit_options=_inlined)
def _line(position: Any, direction: Any, z: Any) -> Any:
    def line(position: Any, direction: Any, z: Any) -> Any:
        result = np.empty(position.size)
        for i in range(position.size):
            result[i] = position[i] + direction[i] * z
        return result

    return line


@overload(elliptical.ellipse, jit_options=_inlined)
def _ellipse(u: Any, direction: Any, angle: Any) -> Any:
    def ellipse(u: Any, direction: Any, angle: Any) -> Any:
        cosine, sine = math.cos(angle), math.sin(angle)
        result = np.empty(u.size)
        for i in range(u.size):
            result[i] = u[i] * cosine + direction[i] * sine
        return result

    return ellipse


@overload(reflective.reflected_line, jit_options=_inlined)
def _reflected_line(u: Any, direction: Any, z: Any) -> Any:
    def reflected_line(u: Any, direction: Any, z: Any) -> Any:
        result = np.empty(u.size)
        for i in range(u.size):
            x = u[i] + direction[i] * z
            result[i] = abs(x - 2.0 * np.rint(0.5 * x))
        return result

    return reflected_line


@overload(normal.normal_cdf, jit_options=_part)
def _normal_cdf(x: Any) -> Any:
    def normal_cdf(x: Any) -> Any:
        result = np.empty(x.size)
        for i in range(x.size):
            result[i] = 0.5 * math.erfc(-x[i] / math.sqrt(2.0))
        return result

    return normal_cdf


@overload(normal.normal_quantile, jit_options=_part)
def _normal_quantile(p: Any) -> Any:
    def normal_quantile(p: Any) -> Any:
        result = np.empty(p.size)
        for i in range(p.size):
            result[i] = one_quantile(p[i])
        return result

    return normal_quantile


@register_jitable(**_part)
def one_quantile(p: float) -> float:
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


@overload(covariance.accumulated, jit_options=_part)
def _accumulated(mean: Any, scatter: Any, draw: Any, n_draws: Any) -> Any:
    def accumulated(mean: Any, scatter: Any, draw: Any, n_draws: Any) -> Any:
        new_mean, new_scatter = np.empty(mean.size), np.empty(scatter.shape)
        for i in range(mean.size):
            new_mean[i] = mean[i] + (draw[i] - mean[i]) / n_draws
        for i in range(mean.size):
            for j in range(mean.size):
                new_scatter[i, j] = scatter[i, j] + (draw[i] - mean[i]) * (draw[j] - new_mean[j])
        return new_mean, new_scatter

    return accumulated


@overload(covariance.regularised_cholesky, jit_options=_part)
def _regularised_cholesky(scatter: Any, n_draws: Any, diagonal: Any) -> Any:
    def regularised_cholesky(scatter: Any, n_draws: Any, diagonal: Any) -> Any:
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

    return regularised_cholesky
