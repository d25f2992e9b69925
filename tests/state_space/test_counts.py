"""Quantiles of counts at normal numbers, far into both tails, against distribution functions."""

import math

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

from pymc_apm.errors import ModelError
from pymc_apm.estimators.states import counts
from pymc_apm.estimators.states.quantiles import has_score, quantile_at, score_of
from tests.modes import interpreted

Z = np.array([-37.0, -20.0, -8.0, -3.0, -1.0, -0.1, 0.1, 1.0, 2.9, 3.1, 5.0, 8.5, 15.0, 30.0, 37.0])


def is_quantile(k, distribution, rtol=1e-8):
    """Say whether each k is the smallest count with as much probability as there is below z.

    The tail that is smaller is compared, but for the last digits of those of scipy.
    """
    below, above = stats.norm.cdf(Z), stats.norm.sf(Z)
    more, less = 1.0 + rtol, 1.0 - rtol
    reaches = np.where(
        Z < 0.0, distribution.cdf(k) >= below * less, distribution.sf(k) <= above * more
    )
    k = k - 1.0
    misses = np.where(
        Z < 0.0, distribution.cdf(k) < below * more, distribution.sf(k) > above * less
    )
    return reaches & (misses | (k < 0.0))


@pytest.mark.parametrize("mean", [1e-300, 1e-10, 0.01, 1.0, 3.3, 19.9, 20.1, 100.0, 1e3, 9999.0])
def test_poisson(mean):
    k = np.array([counts.poisson_quantile(z, mean) for z in Z])
    assert is_quantile(k, stats.poisson(mean)).all()


@pytest.mark.parametrize("n", [1, 2, 10, 1000, 10**6, 10**9])
@pytest.mark.parametrize("p", [1e-12, 1e-9, 1e-4, 0.3, 0.5, 0.7, 0.9, 1.0 - 1e-9])
def test_binomial(n, p):
    if n * p * (1.0 - p) < counts.LARGE_VARIANCE:
        k = np.array([counts.binomial_quantile(z, n, p) for z in Z])
        assert is_quantile(k, stats.binom(n, p)).all()


@pytest.mark.parametrize("n", [0.1, 1.0, 3.5, 50.0, 1e4, 1e8])
@pytest.mark.parametrize("mean", [1e-6, 0.1, 1.0, 15.0, 100.0, 1e4])
def test_negative_binomial(n, mean):
    p = n / (n + mean)
    k = np.array([counts.negative_binomial_quantile(z, n, p) for z in Z])
    assert is_quantile(k, stats.nbinom(n, p), rtol=1e-6).all()


def test_large_counts_are_right_to_one():
    z = np.linspace(-6.0, 6.0, 25)
    for found, distribution in [
        ([counts.poisson_quantile(x, 1e6) for x in z], stats.poisson(1e6)),
        ([counts.binomial_quantile(x, 1e7, 0.3) for x in z], stats.binom(10**7, 0.3)),
        ([counts.negative_binomial_quantile(x, 1e9, 0.99) for x in z], stats.nbinom(1e9, 0.99)),
    ]:
        expected = distribution.ppf(stats.norm.cdf(z))
        np.testing.assert_allclose(found, expected, atol=1.0)
    # Skewed ones with a large variance are not nearly normal, and not taken for it.
    found = counts.negative_binomial_quantile(2.0, 0.5, 0.5 / (0.5 + 1e6))
    assert found == pytest.approx(stats.gamma(0.5).ppf(stats.norm.cdf(2.0)) * 2e6, rel=1e-4)


def test_edges():
    for z in (-40.0, -1.0, 0.0, 1.0, 40.0):
        assert counts.poisson_quantile(z, 0.0) == 0.0
        assert counts.binomial_quantile(z, 0.0, 0.4) == 0.0
        assert counts.binomial_quantile(z, 7.0, 0.0) == 0.0
        assert counts.binomial_quantile(z, 7.0, 1.0) == 7.0
        assert counts.negative_binomial_quantile(z, 3.0, 1.0) == 0.0
        assert 0.0 <= counts.binomial_quantile(z, 7.0, 0.3) <= 7.0
        assert counts.binomial_quantile(z, 2.0**60, 1e-300) == 0.0 or z > 37.0
    for bad in (
        counts.poisson_quantile(0.0, -1.0),
        counts.poisson_quantile(0.0, math.inf),
        counts.poisson_quantile(math.nan, 1.0),
        counts.binomial_quantile(0.0, -1.0, 0.5),
        counts.binomial_quantile(0.0, 3.0, 1.1),
        counts.binomial_quantile(0.0, 3.0, math.nan),
        counts.negative_binomial_quantile(0.0, 0.0, 0.5),
        counts.negative_binomial_quantile(0.0, 1.0, 0.0),
    ):
        assert math.isnan(bad)


DRAWS = {
    "normal": lambda: pm.Normal.dist(1.0, 2.0),
    "log-normal": lambda: pm.LogNormal.dist(0.3, 0.4),
    "exponential": lambda: pm.Exponential.dist(2.0),
    "gamma": lambda: pm.Gamma.dist(2.0, 3.0),
    "beta": lambda: pm.Beta.dist(2.0, 3.0),
    "Student": lambda: pm.StudentT.dist(nu=4.0, mu=1.0, sigma=2.0),
    "Poisson": lambda: pm.Poisson.dist(4.2),
    "large Poisson": lambda: pm.Poisson.dist(420.0),
    "binomial": lambda: pm.Binomial.dist(12, 0.7),
    "large binomial": lambda: pm.Binomial.dist(1200, 0.3),
    "negative binomial": lambda: pm.NegativeBinomial.dist(mu=4.0, alpha=1.5),
    "Bernoulli": lambda: pm.Bernoulli.dist(0.3),
    "categorical": lambda: pm.Categorical.dist([0.2, 0.5, 0.1, 0.2]),
    "geometric": lambda: pm.Geometric.dist(0.3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_made_and_found_again(name):
    """Normal numbers make draws of the distribution; those that make a draw are found again."""
    draw = DRAWS[name]()
    is_discrete = draw.type.dtype.startswith("int")
    rng = np.random.default_rng(9)
    z = rng.standard_normal(400)
    z_in, value_in, jitter_in = pt.dscalar(), draw.type(), pt.dscalar()
    assert has_score(draw)
    with interpreted():
        make = pytensor.function([z_in], quantile_at(draw, z_in))
        find = pytensor.function(
            [value_in, jitter_in], score_of(draw, value_in, jitter_in), on_unused_input="ignore"
        )
        log_below = pytensor.function([value_in], pm.logcdf(draw, value_in))
    made = np.array([make(x) for x in z]).astype(draw.type.dtype)
    below = np.exp([log_below(value) for value in made])
    probability = stats.norm.cdf(z)
    if is_discrete:
        before = np.exp([log_below(value - 1) for value in made])
        assert (probability <= below + 1e-9).all() and (probability >= before - 1e-9).all()
        found = [find(value, rng.random()) for value in made]
        # Drawn given the count, they are normal again.
        assert stats.kstest(found, "norm").pvalue > 1e-5
        np.testing.assert_array_equal([make(x) for x in found], made)
    else:
        np.testing.assert_allclose(below, probability, atol=1e-9)
        np.testing.assert_allclose([find(value, 0.5) for value in made], z, atol=1e-7)


def test_a_normal_vector_is_made_and_found_again():
    cov = np.array([[2.0, 0.6], [0.6, 1.0]])
    draw = pm.MvNormal.dist(np.array([1.0, -1.0]), cov)
    z, value = pt.vector(shape=(2,)), pt.vector(shape=(2,))
    with interpreted():
        make = pytensor.function([z], quantile_at(draw, z))
        find = pytensor.function([value], score_of(draw, value, z), on_unused_input="ignore")
    numbers = np.array([0.3, -1.7])
    made = make(numbers)
    np.testing.assert_allclose(made, [1.0, -1.0] + np.linalg.cholesky(cov) @ numbers)
    np.testing.assert_allclose(find(made), numbers)


def test_a_distribution_without_quantiles_is_named():
    with pytest.raises(ModelError, match="wald"):
        quantile_at(pm.Wald.dist(1.0, 2.0), pt.dscalar())


@pytest.mark.parametrize("score", ["poisson", "binomial", "negative_binomial"])
def test_counts_in_the_tails_are_found_again(score):
    parameters = {"poisson": (5.0,), "binomial": (40.0, 0.2), "negative_binomial": (2.0, 0.3)}
    make, find = getattr(counts, f"{score}_quantile"), getattr(counts, f"{score}_score")
    for z in (-8.0, -4.0, 4.0, 8.0, 12.0):
        k = make(z, *parameters[score])
        for jitter in (1e-6, 0.3, 1.0 - 1e-6):
            assert make(find(jitter, k, *parameters[score]), *parameters[score]) == k
