"""The posterior of a latent Gaussian model, against quadrature over all its variables."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from tests.estimators.test_laplace import (
    LIKELIHOODS,
    REFERENCE,
    X,
    exact_likelihood,
)
from tests.statistical.checks import assert_exact, assert_not_exact, z_scores_of_run
from tests.steps.models import sample

RANGE = -2.0, 1.0
"""Of the log of the scale, whose prior is uniform."""

METHODS = {
    "SS+SS": apm.APMSlice,
    "SS+MH": apm.APMMetropolis,
    "PM MH": apm.PseudoMarginalMH,
    "PM MH, tuned on the approximation": lambda: apm.PseudoMarginalMH(tune_on="approximation"),
}


def model_of(likelihood: str, power: float = 2.0, **options) -> pm.Model:
    """Build a model whose scale is unknown; a power other than 2 is a covariance that is wrong."""
    with pm.Model() as model:
        log_scale = pm.Uniform("theta", *RANGE, default_transform=None)
        shape = np.exp(-0.5 * ((X[:, None] - X) / REFERENCE["length"]) ** 2)
        apm.estimators.laplace_importance(
            "y",
            lambda f: LIKELIHOODS[likelihood](f, REFERENCE["spread"]),
            pt.exp(power * log_scale) * shape,
            mean=REFERENCE["level"],
            **options,
        )
    return model


@pytest.fixture(scope="module")
def exact_moments():
    """Return the posterior mean and variance of the log of the scale, by likelihood."""
    moments = {}
    nodes, weights = np.polynomial.legendre.leggauss(16)
    grid = np.mean(RANGE) + 0.5 * np.diff(RANGE) * nodes
    others = {name: value for name, value in REFERENCE.items() if name != "scale"}
    for likelihood in ("poisson", "student t"):
        density = weights * [exact_likelihood(likelihood, np.exp(x), **others) for x in grid]
        density /= density.sum()
        mean = (density * grid).sum()
        moments[likelihood] = mean, (density * (grid - mean) ** 2).sum()
    return moments


def draws_of(model, make_step) -> np.ndarray:
    with model:
        step = make_step()
    idata = sample(model, step, draws=2000, tune=500, chains=4, random_seed=1)
    return idata["posterior"]["theta"].values


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["poisson", "student t"])
@pytest.mark.parametrize("method", METHODS)
def test_the_posterior_is_exact(method, likelihood, exact_moments):
    draws = draws_of(model_of(likelihood), METHODS[method])
    assert_exact(z_scores_of_run(draws[..., None], *exact_moments[likelihood]))


@pytest.mark.slow
def test_the_published_form_has_the_exact_posterior(exact_moments):
    draws = draws_of(model_of("poisson", formulation="published"), apm.APMMetropolis)
    assert_exact(z_scores_of_run(draws[..., None], *exact_moments["poisson"]))


@pytest.mark.slow
def test_a_wrong_covariance_is_noticed(exact_moments):
    """Negative control."""
    draws = draws_of(model_of("poisson", power=1.0), apm.APMSlice)
    assert_not_exact(z_scores_of_run(draws[..., None], *exact_moments["poisson"]))
