"""Counts with a random intercept for each group: an exact answer by quadrature to compare with."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import gammaln, logsumexp

import pymc_apm as apm
from tests.statistical.checks import assert_exact, z_scores_of_run
from tests.steps.models import declare_normal, sample

COUNTS = np.random.default_rng(1).poisson(
    np.exp(0.3 + 0.7 * np.random.default_rng(2).standard_normal((8, 1))), size=(8, 4)
)
"""Four counts in each of eight groups."""


def random_effects(kind: str = "normal", n_samples: int = 8) -> pm.Model:
    """Build y_ij ~ Poisson(exp(mu + sigma * effect_i)), each effect averaged over samples."""
    totals, size = COUNTS.sum(axis=1), COUNTS.shape[1]
    constants = -gammaln(COUNTS + 1.0).sum(axis=1)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        sigma = pm.HalfNormal("sigma")
        u = declare_normal("u", (n_samples, len(COUNTS)), kind)
        log_rate = mu + sigma * u
        log_weights = totals * log_rate - size * pm.math.exp(log_rate) + constants
        apm.Potential("log_lik", pt.logsumexp(log_weights, axis=0) - np.log(n_samples))
    return model


def exact_moments() -> tuple[np.ndarray, np.ndarray]:
    """Integrate the effects by Gauss-Hermite, mu and log(sigma) on a grid.

    Returns
    -------
    means, variances : ndarray
        Of mu and sigma.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    log_weights = np.log(weights) - 0.5 * np.log(2 * np.pi)
    mu = np.linspace(-2.5, 2.5, 201)[:, None, None, None]
    log_sigma = np.linspace(-9.0, 1.6, 400)[None, :, None, None]
    log_rate = mu + np.exp(log_sigma) * nodes
    totals, size = COUNTS.sum(axis=1)[:, None], COUNTS.shape[1]
    log_lik = np.zeros((201, 400))
    for total in totals:
        log_terms = total * log_rate - size * np.exp(log_rate) + log_weights
        log_lik += logsumexp(log_terms, axis=3)[..., 0]
    mu, log_sigma = mu[..., 0, 0], log_sigma[..., 0, 0]
    log_prior = -0.5 * mu**2 - 0.5 * np.exp(2 * log_sigma) + log_sigma
    density = np.exp(log_lik + log_prior - (log_lik + log_prior).max())
    density /= density.sum()
    values = [np.broadcast_to(x, density.shape) for x in (mu, np.exp(log_sigma))]
    means = np.array([(density * x).sum() for x in values])
    squares = np.array([(density * x**2).sum() for x in values])
    return means, squares - means**2


METHODS = {
    "SS+SS": (lambda: apm.APMSlice(), 3000),
    "SS+SS, coordinates": (lambda: apm.APMSlice(directions="coordinate"), 2000),
    "SS+SS, as one": (lambda: apm.APMSlice(directions="random", factorwise=False), 3000),
    "SS+MH": (lambda: apm.APMMetropolis(), 4000),
    "PM MH": (lambda: apm.PseudoMarginalMH(), 6000),
    "correlated PM": (lambda: apm.PseudoMarginalMH(correlation=0.9), 6000),
    "u by us, theta by NUTS": (lambda: [apm.APMEllipticalU(), pm.NUTS()], 600),
}


def check(model, step, draws):
    idata = sample(model, step, draws=draws, tune=1500, chains=6, random_seed=3)
    mu, sigma = idata.posterior["mu"].values, idata.posterior["sigma"].values
    assert_exact(z_scores_of_run(np.stack([mu, sigma], axis=2), *exact_moments()))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_posterior_of_a_random_effects_model_is_that_of_quadrature(name):
    model = random_effects()
    make, draws = METHODS[name]
    with model:
        step = make()
    check(model, step, draws)


@pytest.mark.slow
def test_the_same_with_uniform_randomness():
    model = random_effects("uniform")
    with model:
        step = apm.APMSlice()
    check(model, step, 3000)


@pytest.mark.slow
def test_the_answer_does_not_depend_on_how_noisy_the_estimate_is():
    """With two samples instead of eight the noise is large, and the posterior the same."""
    model = random_effects(n_samples=2)
    with model:
        step = apm.APMSlice()
    check(model, step, 4000)


def test_the_quadrature_agrees_with_a_brute_force_average_of_the_estimate():
    """The estimate with very many samples is the likelihood, up to its small noise."""
    rng = np.random.default_rng(4)
    log_rate = 0.2 + 0.5 * rng.standard_normal((200_000, 1))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    exact_log_rate = 0.2 + 0.5 * nodes
    for total in COUNTS.sum(axis=1):
        sampled = np.exp(total * log_rate - 4 * np.exp(log_rate))
        values = np.exp(total * exact_log_rate - 4 * np.exp(exact_log_rate))
        exact = (weights * values).sum() / np.sqrt(2 * np.pi)
        assert abs(sampled.mean() - exact) < 5 * sampled.std() / np.sqrt(sampled.size)
