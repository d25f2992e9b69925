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

METHODS = {
    "SS+SS": apm.APMSlice,
    "SS+MH": apm.APMMetropolis,
    "PM MH": apm.PseudoMarginalMH,
    "PM MH, tuned on the approximation": lambda: apm.PseudoMarginalMH(tune_on="approximation"),
}


def model_of(likelihood: str, power: float = 2.0, **options) -> pm.Model:
    """Build a model whose scale is unknown; a power other than 2 is a covariance that is wrong."""
    with pm.Model() as model:
        log_scale = pm.Normal("theta")
        shape = np.exp(-0.5 * ((X[:, None] - X) / REFERENCE["length"]) ** 2)
        apm.estimators.laplace_importance(
            "y",
            lambda f: LIKELIHOODS[likelihood](f, REFERENCE["spread"]),
            pt.exp(power * log_scale) * shape,
            REFERENCE["level"],
            **options,
        )
    return model


@pytest.fixture(scope="module")
def exact_moments():
    """Return the posterior mean and variance of the log of the scale, by likelihood."""
    moments = {}
    for likelihood in ("probit", "student t"):
        grid = np.linspace(-4.0, 4.0, 81)
        others = {name: value for name, value in REFERENCE.items() if name != "scale"}
        density = np.array(
            [
                np.exp(-0.5 * x**2) * exact_likelihood(likelihood, scale=np.exp(x), **others)
                for x in grid
            ]
        )
        density /= density.sum()
        mean = (density * grid).sum()
        moments[likelihood] = mean, (density * (grid - mean) ** 2).sum()
    return moments


def draws_of(model, make_step) -> np.ndarray:
    with model:
        step = make_step()
    idata = sample(model, step, draws=4000, tune=500, chains=4, random_seed=1)
    return idata["posterior"]["theta"].values


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["probit", "student t"])
@pytest.mark.parametrize("method", METHODS)
def test_the_posterior_is_exact(method, likelihood, exact_moments):
    draws = draws_of(model_of(likelihood), METHODS[method])
    assert_exact(z_scores_of_run(draws[..., None], *exact_moments[likelihood]))


@pytest.mark.slow
def test_the_published_form_has_the_exact_posterior(exact_moments):
    draws = draws_of(model_of("probit", formulation="published"), apm.APMMetropolis)
    assert_exact(z_scores_of_run(draws[..., None], *exact_moments["probit"]))


@pytest.mark.slow
def test_a_wrong_covariance_is_noticed(exact_moments):
    """Negative control."""
    draws = draws_of(model_of("probit", power=1.0), apm.APMSlice)
    assert_not_exact(z_scores_of_run(draws[..., None], *exact_moments["probit"]))
