"""The plain loops that replace functions of numpy in compiled code compute what these do."""

import numba
import numpy as np
import pytest
from scipy import special

from pymc_apm import types
from pymc_apm.adaptive import covariance
from pymc_apm.adaptive import factors as by_factor
from pymc_apm.compiled.primitives import PRIMITIVES
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

N_INPUTS = 30


def scatter(rng, dim, n_draws):
    return np.cov(rng.standard_normal((dim, n_draws)) * 10.0 ** rng.uniform(-3, 3)) * (n_draws - 1)


def path_inputs(rng, dim):
    return rng.random(dim), rng.standard_normal(dim), 3.0 * rng.standard_normal()


def column_inputs(rng, dim):
    row = dim + 1
    first = int(rng.integers(row))
    last = int(rng.integers(first, row + 1))
    return rng.random(3 * row), rng.random(3 * (last - first)), row, first, last


def cholesky_inputs(rng, dim):
    n_draws = int(rng.integers(2, 200))
    matrix = np.atleast_2d(scatter(rng, dim, n_draws))
    if rng.random() < 0.3:
        matrix[-1, -1] = rng.choice([0.0, np.inf, np.nan])
    return matrix, n_draws, bool(rng.random() < 0.5)


def odd_numbers(rng, size):
    """Draw numbers, some of them such as a log-estimate should not be."""
    odd = rng.choice([-np.inf, np.inf, np.nan][: rng.integers(2, 4)], size)
    return np.where(rng.random(size) < 0.2, odd, rng.standard_normal(size))


def factor_inputs(rng, dim):
    n_numbers = 4 * dim
    z, factor_of = 3.0 * rng.standard_normal(dim), rng.integers(dim, size=n_numbers)
    return rng.random(n_numbers), rng.standard_normal(n_numbers), z, factor_of


def bracket_inputs(rng, dim):
    lower, is_left = -rng.random(dim), rng.random(dim) < 0.7
    z = lower + rng.random(dim)
    brackets = factors.Brackets(z, lower, lower + 1.0, is_left, int(is_left.sum()))
    return rng.spawn(1)[0], brackets, odd_numbers(rng, dim), rng.standard_normal(dim)


def values_by_factor(rng, dim):
    return odd_numbers(rng, 4 * dim), rng.integers(-1, dim, size=4 * dim)


def old_and_new(rng, dim):
    """Draw values, of which a check may have spoilt those of a factor of -1 too."""
    new, factor_of = values_by_factor(rng, dim)
    old = odd_numbers(rng, new.size)
    shape = (4, dim) if rng.random() < 0.5 else (4 * dim,)
    return old.reshape(shape), new.reshape(shape), factor_of, rng.random(dim) < 0.5


def evaluation_with_a_cost(rng, dim):
    cost = types.Cost(*rng.integers(100, size=4).tolist())
    return (types.Evaluation((rng.standard_normal(dim),), 0.1, 0.2, 0.3, 0.4, cost, -np.inf),)


INPUTS = {
    types.cost_of: evaluation_with_a_cost,
    # Of what kernels may be given here, the memo that no height goes into.
    types.reaching: lambda rng, dim: (types.Cost(*rng.integers(9, size=4).tolist()), 0.5),
    linear.product: lambda rng, dim: (rng.standard_normal((dim, 3)), rng.standard_normal(3)),
    linear.solved: lambda rng, dim: (
        np.tril(rng.standard_normal((dim, dim))) + 3.0 * np.eye(dim),
        rng.standard_normal(dim),
    ),
    linear.length: lambda rng, dim: (rng.standard_normal(dim),),
    draws.draw_normal: lambda rng, dim: (rng.spawn(1)[0], dim),
    blocks.with_columns: column_inputs,
    slice.line: path_inputs,
    elliptical.ellipse: path_inputs,
    reflective.reflected_line: path_inputs,
    normal.normal_cdf: lambda rng, dim: (rng.uniform(-8.0, 8.0, dim),),
    normal.normal_quantile: lambda rng, dim: (rng.random(dim),),
    covariance.accumulated: lambda rng, dim: (
        rng.standard_normal(dim),
        scatter(rng, dim, 20) * np.ones((dim, dim)),
        rng.standard_normal(dim),
        int(rng.integers(1, 100)),
    ),
    covariance.regularised_cholesky: cholesky_inputs,
    types.summed: lambda rng, dim: (odd_numbers(rng, dim),),
    factors.ellipses: factor_inputs,
    factors.reflected_lines: factor_inputs,
    factors.narrowed: bracket_inputs,
    factors.acceptance: lambda rng, dim: (odd_numbers(rng, dim), rng.standard_normal(dim)),
    by_factor.added: lambda rng, dim: (rng.standard_normal(dim), *values_by_factor(rng, dim)),
    by_factor.chosen: old_and_new,
}
"""Functions that draw arguments for each function, for a given dimension."""

MAY_CHANGE = {draws.draw_normal: 0, factors.narrowed: 0}
"""The argument that a function may change: a generator moves on."""


def called_from_compiled_code(function):
    called = function if function in PRIMITIVES else numba.njit(function)

    @numba.njit
    def call(*arguments):
        return called(*arguments)

    return call


def copied(arguments):
    return [
        argument.copy() if isinstance(argument, np.ndarray) else copied_generator(argument)
        for argument in arguments
    ]


def copied_generator(argument):
    if not isinstance(argument, np.random.Generator):
        return argument
    other = np.random.default_rng()
    other.bit_generator.state = argument.bit_generator.state
    return other


def results(function, arguments):
    """Return what a function returns, as a list, and what its arguments are then."""
    arguments = copied(arguments)
    result = function(*arguments)
    return list(result) if isinstance(result, tuple) else [result], arguments


def assert_agrees(function, compiled, arguments):
    with np.errstate(all="ignore"):
        expected, _ = results(function, arguments)
    got, arguments_after = results(compiled, arguments)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
    if function is covariance.regularised_cholesky:
        assert got[1] == expected[1]
        if not expected[1]:  # then the factor is of no use
            return
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=2e-16)
    for i, argument in enumerate(arguments):
        if i != MAY_CHANGE.get(function) and not isinstance(argument, tuple):  # a value
            np.testing.assert_array_equal(arguments_after[i], argument)


def random_inputs(function):
    rng = np.random.default_rng(20160512)
    return [INPUTS[function](rng, dim) for dim in [1, 2, 5] * N_INPUTS]


def test_all_primitives_are_compared():
    assert set(INPUTS) == set(PRIMITIVES)


@pytest.mark.parametrize("function", PRIMITIVES, ids=lambda function: function.__name__)
def test_primitive_agrees_with_the_function_that_it_replaces(function):
    compiled = called_from_compiled_code(function)
    for arguments in random_inputs(function):
        assert_agrees(function, compiled, arguments)


def test_factors_are_compared_with_and_without_a_coordinate_that_has_not_moved():
    inputs = random_inputs(covariance.regularised_cholesky)
    with np.errstate(all="ignore"):
        has_moved = [covariance.regularised_cholesky(*arguments)[1] for arguments in inputs]
    assert {True, False} == set(has_moved)


def test_drawn_numbers_leave_the_generator_where_it_would_be():
    call = called_from_compiled_code(draws.draw_normal)
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    np.testing.assert_array_equal(call(one, 1000), draws.draw_normal(other, 1000))
    assert one.bit_generator.state == other.bit_generator.state


def probabilities():
    """Probabilities from 1e-300 up to one, with many in both tails and about 1/2."""
    rng = np.random.default_rng(20160513)
    tail = np.exp(rng.uniform(np.log(1e-300), np.log(0.5), 20_000))
    near_one = 1.0 - np.exp(rng.uniform(np.log(1e-16), np.log(0.5), 20_000))
    middle = 0.5 + 10.0 ** rng.uniform(-16.0, -1.0, 2000) * rng.choice([-1.0, 1.0], 2000)
    ends = [0.0, 1.0, 0.5, 1e-300, 1.0 - 1e-16, np.nextafter(0.5, 0.0), np.nextafter(0.5, 1.0)]
    return np.concatenate([tail, near_one, middle, ends, rng.random(20_000)])


def test_quantile_over_its_whole_range():
    """About 1/2 the quantile goes through zero: there its error is that of the probability."""
    p = probabilities()
    quantile = called_from_compiled_code(normal.normal_quantile)(p)
    expected = special.ndtri(p)
    assert quantile[p == 0.0] == -np.inf
    assert (quantile[p == 1.0] == np.inf).all()
    np.testing.assert_allclose(quantile, expected, rtol=1e-13, atol=2e-16)
    away = np.abs(p - 0.5) > 1e-3
    np.testing.assert_allclose(quantile[away], expected[away], rtol=1e-13)


def test_quantile_of_what_is_no_probability_is_not_a_number():
    p = np.array([-1e-300, 1.0 + 1e-15, np.nan, np.inf])
    assert np.isnan(called_from_compiled_code(normal.normal_quantile)(p)).all()


def test_distribution_function_far_in_the_tails():
    """The square of a rounded number is in the exponent: digits are lost on both sides."""
    x = np.concatenate([np.linspace(-37.5, 37.5, 5001), [-np.inf, np.inf, np.nan, -50.0]])
    cdf = called_from_compiled_code(normal.normal_cdf)(x)
    np.testing.assert_allclose(cdf, special.ndtr(x), rtol=1e-12)


def quantile_that_is_slightly_off(p):
    return normal.normal_quantile(p) * (1.0 + 1e-12)


def distribution_function_of_another_dtype(x):
    return normal.normal_cdf(x).astype(np.float32)


def distribution_function_of_another_shape(x):
    return normal.normal_cdf(x).reshape((1, x.size))


def product_with_the_columns_reversed(matrix, vector):
    result = np.zeros(matrix.shape[0])
    for row in range(matrix.shape[0]):
        for column in range(matrix.shape[1]):
            result[row] += matrix[row, column] * vector[vector.size - 1 - column]
    return result


def line_written_over_the_position(position, direction, z):
    for i in range(position.size):
        position[i] += direction[i] * z
    return position


def numbers_in_another_order(rng, size):
    numbers = np.empty(size)
    for i in range(size):
        numbers[size - 1 - i] = rng.standard_normal()
    return numbers


def scatter_about_the_old_mean(mean, scatter, draw, n_draws):
    new_mean, new_scatter = np.empty(mean.size), np.empty(scatter.shape)
    for i in range(mean.size):
        new_mean[i] = mean[i] + (draw[i] - mean[i]) / n_draws
        for j in range(mean.size):
            new_scatter[i, j] = scatter[i, j] + (draw[i] - mean[i]) * (draw[j] - mean[j])
    return new_mean, new_scatter


WRONG = {
    quantile_that_is_slightly_off: normal.normal_quantile,
    distribution_function_of_another_dtype: normal.normal_cdf,
    distribution_function_of_another_shape: normal.normal_cdf,
    product_with_the_columns_reversed: linear.product,
    line_written_over_the_position: slice.line,
    numbers_in_another_order: draws.draw_normal,
    scatter_about_the_old_mean: covariance.accumulated,
}
"""Functions that are deliberately wrong, and what they would replace."""


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_wrong_primitive_does_not_agree(wrong):
    compiled = called_from_compiled_code(wrong)
    *_, arguments = random_inputs(WRONG[wrong])
    with pytest.raises(AssertionError):
        assert_agrees(WRONG[wrong], compiled, arguments)


@pytest.mark.parametrize("function", [types.summed, by_factor.added, by_factor.chosen])
def test_numbers_are_taken_as_arrays_of_one_element_are(function):
    compiled = called_from_compiled_code(function)
    factor_of, has_moved = np.array([1]), np.array([True, False])
    arguments = {
        types.summed: (2.5,),
        by_factor.added: (np.array([0.5, 1.0]), 2.5, factor_of),
        by_factor.chosen: (1.5, 2.5, factor_of, has_moved),
    }[function]
    np.testing.assert_allclose(compiled(*arguments), function(*arguments))
