"""Quantiles against distribution functions, far into both tails."""

import numpy as np
import pytest
from scipy import special, stats

from pymc_apm.kernels import quantiles

U = np.array([1e-300, 1e-100, 1e-17, 1e-5, 0.1, 0.5, 0.9, 0.999, 1.0 - 1e-10, 1.0 - 1e-16])
SURVIVAL = 1.0 - U


def is_quantile(k, below, above):
    """Say whether each k is the smallest with so much probability at or below it."""
    reaches = np.where(U < 0.5, below(k) >= U, above(k) <= SURVIVAL)
    k = k - 1.0
    misses = np.where(U < 0.5, below(k) < U, above(k) > SURVIVAL) | (k < 0.0)
    return reaches & misses


@pytest.mark.parametrize("lam", [0.0, 1e-300, 0.01, 1.0, 3.3, 100.0, 9999.0])
def test_poisson_quantiles(lam):
    k = quantiles.poisson(U, lam)
    poisson = stats.poisson(lam)
    assert is_quantile(k, poisson.cdf, poisson.sf).all()
    assert quantiles.poisson(0.0, lam) == 0.0


@pytest.mark.parametrize("n", [0, 1, 10, 1000, 10**6])
@pytest.mark.parametrize("p", [0.0, 1e-4, 0.3, 0.5, 0.9, 1.0])
def test_binomial_quantiles(n, p):
    count, is_missing = quantiles.binomial(U, n, p)
    assert (is_missing == (p > 0.5)).all()
    k = n - count if p > 0.5 else count
    if n * p * (1.0 - p) < quantiles.LARGE_VARIANCE:
        binomial = stats.binom(n, p)
        assert (is_quantile(k, binomial.cdf, binomial.sf) | np.isin(k, [0, n])).all()
    else:
        np.testing.assert_allclose(k[3:7], stats.binom(n, p).ppf(U[3:7]), atol=1.0)


@pytest.mark.parametrize("lam", [1.01e4, 1e6, 3e10, 1e18])
def test_quantiles_of_large_means_agree_with_the_gamma_distribution(lam):
    """A Poisson count is at most k if a gamma number of shape k + 1 exceeds the mean."""
    k = quantiles.poisson(U[2:7], lam)
    step = np.maximum(2.0, 4.0 * np.spacing(lam))
    assert (special.gammaincc(k + step + 1.0, lam) >= U[2:7]).all()
    assert (special.gammaincc(k - step + 1.0, lam) <= U[2:7]).all()


def test_rare_events_in_huge_numbers_of_trials_are_poisson():
    expected = quantiles.poisson(U, 5.0)
    np.testing.assert_array_equal(quantiles.binomial(U, 2**62, 5.0 / 2**62)[0], expected)
    p = 1.0 - 2.0**-53  # 2**62 (1 - p) = 512
    count, is_missing = quantiles.binomial(np.array([0.5]), 2**62, p)
    assert is_missing.all() and count == stats.poisson(512).median()


@pytest.mark.parametrize("shape", [1e-3, 0.1, 1.0, 10.0, 1e5])
def test_gamma_quantiles(shape):
    x = quantiles.gamma(U, shape)
    lower, upper = (U < 0.5) & (x > 1e-290), U >= 0.5
    np.testing.assert_allclose(special.gammainc(shape, x[lower]), U[lower], rtol=1e-5)
    np.testing.assert_allclose(special.gammaincc(shape, x[upper]), SURVIVAL[upper], rtol=1e-5)


def test_gamma_quantiles_of_extreme_shapes():
    shapes = np.array([0.0, 1e-320, 1e-300, np.inf, np.nan, 1e300])
    np.testing.assert_array_equal(
        quantiles.gamma(0.3, shapes), [0.0, 0.0, 0.0, np.inf, np.nan, 1e300]
    )


@pytest.mark.parametrize("shape", [1.01e6, 1e10, 1e20])
def test_gamma_quantiles_of_large_shapes(shape):
    """Wilson and Hilferty: the cube root of a gamma number is normal, as good as."""
    x = quantiles.gamma(U, shape)
    z = special.ndtri(U)
    expected = shape * (1.0 - 1.0 / (9.0 * shape) + z / np.sqrt(9.0 * shape)) ** 3
    np.testing.assert_allclose(x, expected, atol=0.1 * np.sqrt(shape))
    np.testing.assert_allclose(x[3:8], expected[3:8], atol=1e-3 * np.sqrt(shape))


def test_normal_quantiles():
    np.testing.assert_allclose(quantiles.normal(U), stats.norm.ppf(U), rtol=1e-12)
    assert np.isfinite(quantiles.normal(np.array([0.0, 1.0]))).all()
