"""The estimates of marginalised models: unbiased, and independent where they are said to be."""

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.errors import ModelError
from pymc_apm.marginal.record import record_of
from tests.marginal.brute import (
    Estimator,
    by_brute_force,
    parameters_of,
    wrong_factors,
    z_score,
)
from tests.marginal.models import FACTORS, PAIRED, TIED, abundance, made
from tests.marks import others_are_slow

Z = 4.8
"""See ``tests/statistical/checks.py``: one comparison here for each model."""

EXPECTED = FACTORS | {build: (names, 1) for build, names in TIED.items()} | PAIRED

QUICK = set(list(EXPECTED)[::3]) - {abundance}


@pytest.mark.in_python
@pytest.mark.parametrize(
    "build",
    others_are_slow(QUICK, EXPECTED),
    ids=lambda build: build.__name__,
)
def test_estimates_are_unbiased_and_factors_independent(build):
    """The mean of products of estimates is the integral of PyMC's joint density."""
    latents, n_factors = EXPECTED[build]
    model = made(build)
    marginal = apm.marginalize(model, latents, samples=16, proposal="prior")
    assert record_of(marginal).structure.n_factors == n_factors
    assert not {*latents, "y"} & set(marginal.named_vars)
    theta = parameters_of(model, latents, seed=3)
    rng = np.random.default_rng(5)
    assert wrong_factors(marginal, theta, rng) == []
    estimator = Estimator(marginal, theta)
    found = [estimator.fresh(rng) for _ in range(300)]
    logs = np.array([estimates.sum() + rest for estimates, rest in found])
    exact = by_brute_force(model, latents, theta, 3000, seed=4)
    assert abs(z_score(logs, exact)) < Z


def test_a_latent_scale_that_is_negative_has_no_weight():
    """PyMC's density is zero there; but from a negative scale draws could be made as well."""
    with pm.Model() as model:
        scale = pm.Normal("scale", 0.3, 0.5, shape=2)
        b = pm.Normal("b", 0.0, scale, shape=2)
        pm.Normal("y", b, 1.0, observed=[0.4, -2.0])
    estimator = Estimator(apm.marginalize(model, ["scale", "b"], samples=16), {})
    rng = np.random.default_rng(7)
    logs = np.array([estimator.fresh(rng)[0].sum() for _ in range(300)])
    scale = rng.normal(0.3, 0.5, size=(20_000, 2))
    variance = 1.0 + scale**2
    log_p = -0.5 * np.array([0.4, -2.0]) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    exact = np.where(scale > 0, log_p, -np.inf).sum(axis=1)
    assert abs(z_score(logs, exact)) < Z
    assert abs(z_score(logs, log_p.sum(axis=1))) > Z  # this is noticed


def test_parameters_that_are_integers():
    """The inverse of a rate is not zero, as it is for numpy."""
    with pm.Model() as model:
        a, b = pm.Gamma("a", 2, 2), pm.Gamma("b", 3, 2)
        pm.Poisson("y", a + b, observed=2)
    estimator = Estimator(apm.marginalize(model, ["a", "b"], samples=64), {})
    rng = np.random.default_rng(7)
    logs = np.array([estimator.fresh(rng)[0].sum() for _ in range(100)])
    rate = rng.gamma(5.0, 0.5, size=20_000)
    exact = 2 * np.log(rate) - rate - np.log(2.0)
    assert abs(z_score(logs, exact)) < Z


def test_a_latent_variable_that_is_truncated_on_one_side():
    """All of its quantiles are numbers: what is none would count as a draw of weight zero."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        b = pm.TruncatedNormal("b", mu, 1.0, lower=0.5, shape=3)
        pm.Normal("y", b, 1.0, observed=[1.0, 2.0, 0.5])
    try:
        marginal = apm.marginalize(model, "b", samples=64)
    except ModelError:
        pytest.skip("this PyMC has no quantiles of it")
    theta = {"mu": np.array(1.0)}
    estimator, rng = Estimator(marginal, theta), np.random.default_rng(1)
    logs = np.array([estimator.fresh(rng)[0].sum() for _ in range(300)])
    assert abs(z_score(logs, by_brute_force(model, ["b"], theta, 3000, seed=4))) < Z


def test_a_quantile_that_is_rounded_to_zero_does_not_make_the_density_zero():
    """That of a gamma distribution of small shape: the density is infinite there."""
    with pm.Model() as model:
        shape = pm.Gamma("shape", 2, 2)
        rate = pm.Gamma("rate", shape, 1.0)
        pm.Exponential("y", rate + 1.0, observed=0.5)
    estimator = Estimator(apm.marginalize(model, "rate", samples=64), {"shape": np.array(1e-3)})
    estimates, _ = estimator.fresh(np.random.default_rng(1))
    assert abs(estimates.sum() + 0.5) < 0.05  # nearly all of the mass is at zero


def test_a_laplace_draw_whose_density_is_not_a_number_has_no_weight():
    """It must not spoil the others of an estimate, of which the mean would be too small."""
    y = np.array([0.3, -0.2, 0.6, 0.1, 0.4])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.5, 0.5)
        b = pm.Normal("b", mu, 0.6)
        pm.Normal("y", pm.math.sqrt(b), 1.0, observed=y)
    estimator = Estimator(apm.marginalize(model, "b", proposal="laplace"), {"mu": np.array(0.5)})
    rng = np.random.default_rng(7)
    logs = np.array([estimator.fresh(rng)[0].sum() for _ in range(300)])
    assert not np.isnan(logs).any()
    grid = np.linspace(0.0, 5.0, 20_001)
    squares = (grid - 0.5) ** 2 / 0.36 + ((y[:, None] - np.sqrt(grid)) ** 2).sum(axis=0)
    exact = np.trapezoid(np.exp(-0.5 * squares), grid) / (0.6 * (2 * np.pi) ** 3)
    estimates = np.exp(logs) / exact
    assert abs(estimates.mean() - 1.0) < Z * estimates.std() / np.sqrt(300)


@pytest.mark.parametrize("change", [0.7, 1.4])
def test_the_comparison_notices_a_biased_estimate(change):
    """Of a third in each of three factors."""
    (build, (latents, _)) = next(iter(FACTORS.items()))
    model = made(build)
    marginal = apm.marginalize(model, latents, samples=16, proposal="prior")
    theta = parameters_of(model, latents, seed=3)
    rng = np.random.default_rng(5)
    estimator = Estimator(marginal, theta)
    logs = np.array([(estimator.fresh(rng)[0] + np.log(change)).sum() for _ in range(300)])
    assert abs(z_score(logs, by_brute_force(model, latents, theta, 3000, seed=4))) > Z
