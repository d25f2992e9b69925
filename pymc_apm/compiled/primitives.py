"""What compiled code does instead of a few functions of numpy and scipy: plain loops.

The update rules call these functions on whole vectors. Numba has no version of some of them, and
of others one that takes long to compile, or allocates memory, or calls a library for five numbers.
Each has a test that compares it with the original.
"""

import math
from typing import Any

import numpy as np
from numba import types as numba_types
from numba.extending import overload, register_jitable

from pymc_apm import types
from pymc_apm.adaptive import covariance
from pymc_apm.adaptive import factors as by_factor
from pymc_apm.compiled.parts import PartCompiler
from pymc_apm.kernels import (
    blocks,
    draws,
    elliptical,
    factors,
    linear,
    normal,
    reflective,
    slice,
)

PRIMITIVES = (
    types.cost_of,
    types.reaching,
    types.summed,
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
    factors.ellipses,
    factors.reflected_lines,
    factors.narrowed,
    factors.acceptance,
    by_factor.added,
    by_factor.chosen,
)
"""The functions that have another source in compiled code, given below in the same order."""

_part: dict[str, Any] = {"pipeline_class": PartCompiler}
_inlined = _part | {"forceinline": True}


@overload(types.cost_of, jit_options=_inlined)
def _cost_of(memo: Any) -> Any:
    def cost_of(memo: Any) -> Any:
        return memo.cost

    return cost_of


@overload(types.reaching, jit_options=_inlined)
def _reaching(memo: Any, log_height: Any) -> Any:
    def reaching(memo: Any, log_height: Any) -> Any:
        return memo  # what can stop is an op in Python, with which nothing is compiled

    return reaching


@overload(types.summed, jit_options=_inlined)
def _summed(value: Any) -> Any:
    def summed(value: Any) -> Any:
        total, is_infinite = 0.0, False
        for i in range(value.size):
            total += value[i]
            is_infinite |= value[i] == math.inf
        return math.inf if is_infinite else total

    def as_it_is(value: Any) -> Any:
        return value

    return summed if isinstance(value, numba_types.Array) else as_it_is


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


@overload(factors.ellipses, jit_options=_part)
def _ellipses(u: Any, direction: Any, angles: Any, factor_of: Any) -> Any:
    def ellipses(u: Any, direction: Any, angles: Any, factor_of: Any) -> Any:
        cosines, sines = np.cos(angles), np.sin(angles)
        result = np.empty(u.size)
        for i in range(u.size):
            factor = factor_of[i]
            result[i] = u[i] * cosines[factor] + direction[i] * sines[factor]
        return result

    return ellipses


@overload(factors.reflected_lines, jit_options=_part)
def _reflected_lines(u: Any, direction: Any, z: Any, factor_of: Any) -> Any:
    def reflected_lines(u: Any, direction: Any, z: Any, factor_of: Any) -> Any:
        result = np.empty(u.size)
        for i in range(u.size):
            x = u[i] + direction[i] * z[factor_of[i]]
            result[i] = abs(x - 2.0 * np.rint(0.5 * x))
        return result

    return reflected_lines


@overload(factors.narrowed, jit_options=_part)
def _narrowed(rng: Any, brackets: Any, values: Any, log_heights: Any) -> Any:
    def narrowed(rng: Any, brackets: Any, values: Any, log_heights: Any) -> Any:
        z, is_left = brackets.z.copy(), brackets.is_left.copy()
        lower, upper = brackets.lower.copy(), brackets.upper.copy()
        n_left, is_spoilt = 0, np.isnan(values).any()
        for g in range(z.size):
            is_left[g] &= is_spoilt or not log_heights[g] < values[g] < math.inf
            uniform = rng.random()
            if is_left[g]:
                n_left += 1
                if z[g] < 0.0:
                    lower[g] = z[g]
                else:
                    upper[g] = z[g]
                z[g] = lower[g] + (upper[g] - lower[g]) * uniform
        return factors.Brackets(z, lower, upper, is_left, n_left)

    return narrowed


@overload(factors.acceptance, jit_options=_part)
def _acceptance(values: Any, old: Any) -> Any:
    def acceptance(values: Any, old: Any) -> Any:
        result = np.zeros(values.size)
        is_spoilt = np.isnan(values).any()
        for g in range(values.size):
            if not is_spoilt and -math.inf < values[g] < math.inf:
                result[g] = math.exp(min(values[g] - old[g], 0.0))
        return result

    return acceptance


@overload(by_factor.added, jit_options=_part)
def _added(totals: Any, values: Any, factor_of: Any) -> Any:
    def added(totals: Any, values: Any, factor_of: Any) -> Any:
        result = totals.copy()
        for i in range(factor_of.size):
            if factor_of[i] >= 0 or np.isnan(values[i]):
                result[max(factor_of[i], 0)] += values[i]
        return result

    def added_number(totals: Any, values: Any, factor_of: Any) -> Any:
        result = totals.copy()
        if factor_of[0] >= 0 or np.isnan(values):
            result[max(factor_of[0], 0)] += values
        return result

    return added if isinstance(values, numba_types.Array) else added_number


@overload(by_factor.chosen, jit_options=_part)
def _chosen(old: Any, new: Any, factor_of: Any, has_moved: Any) -> Any:
    def chosen(old: Any, new: Any, factor_of: Any, has_moved: Any) -> Any:
        result = new.copy()
        for i in range(factor_of.size):
            if factor_of[i] < 0 or not has_moved[factor_of[i]]:
                result.flat[i] = old.flat[i]
        return result

    def chosen_number(old: Any, new: Any, factor_of: Any, has_moved: Any) -> Any:
        return new if factor_of[0] >= 0 and has_moved[factor_of[0]] else old

    return chosen if isinstance(new, numba_types.Array) else chosen_number
