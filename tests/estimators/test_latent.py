"""Draws of latent variables after sampling must come from their posterior."""

import functools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pymc.model.fgraph import clone_model
from scipy import stats

import pymc_apm as apm
from pymc_apm.errors import ModelError
from pymc_apm.estimators.latent import pick
from tests.marks import others_are_slow
from tests.modes import interpreted
from tests.statistical.checks import assert_exact, assert_not_exact, z_scores_of_means


@pytest.fixture(autouse=True, scope="module")
def without_a_compiler():
    with interpreted():
        yield


COUNTS = np.array([0, 3, 9])
SD, CORRELATION = 1.3, 0.6
DRAWS = 1500


def posterior_of(**parameters) -> dict[str, xr.Dataset]:
    """Make up a run in which the parameters are known."""
    return {
        "posterior": xr.Dataset(
            {
                name: (("chain", "draw"), np.full((2, DRAWS // 2), value))
                for name, value in parameters.items()
            }
        )
    }


@functools.cache
def vector_model() -> pm.Model:
    """Build a model of three counts whose log-rates are correlated."""
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        cov = sd**2 * ((1 - CORRELATION) * np.eye(3) + CORRELATION)
        apm.estimators.laplace_importance(
            "y",
            lambda f: pm.logp(pm.Poisson.dist(pt.exp(f)), COUNTS),
            cov,
            reference={"sd": 1.0},
        )
    return model


def moments(correlation: float) -> np.ndarray:
    """Return the posterior means of f and f**2, by quadrature."""
    nu = np.linspace(-7.0, 7.0, 71)
    cov = SD**2 * ((1 - correlation) * np.eye(3) + correlation)
    grid = np.stack(np.meshgrid(nu, nu, nu, indexing="ij"), axis=-1)
    f = grid @ np.linalg.cholesky(cov).T
    log_density = stats.poisson.logpmf(COUNTS, np.exp(f)).sum(axis=-1)
    log_density += stats.norm.logpdf(grid).sum(axis=-1)
    weights = np.exp(log_density - log_density.max())[..., None]
    weights /= weights.sum()
    return np.concatenate([(weights * f).sum((0, 1, 2)), (weights * f**2).sum((0, 1, 2))])


def z_scores(latent: np.ndarray, exact: np.ndarray) -> np.ndarray:
    found = np.concatenate([latent, latent**2], axis=1)
    return z_scores_of_means(list((found - exact).T))


def test_draws_of_a_vector():
    model = vector_model()
    drawn = apm.estimators.sample_latent(
        posterior_of(sd=SD), "y", draws=DRAWS, samples=32, random_seed=1, model=model
    )
    assert drawn["latent"].dims == ("sample", "latent_dim_0")
    assert drawn["effective_samples"].min() > 3
    assert_exact(z_scores(drawn["latent"].values, moments(CORRELATION)), 4)
    assert_not_exact(z_scores(drawn["latent"].values, moments(0.3)))  # negative control


@pytest.mark.parametrize("size", others_are_slow([1], [1, 2]))
def test_draws_of_groups(size):
    group = np.arange(3)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")

        def log_lik(f):
            effects = f[group] if size == 1 else f[group].sum(axis=1)
            return pm.logp(pm.Poisson.dist(pt.exp(effects)), COUNTS)

        # Two effects whose sum has the same variance as the one.
        cov = sd**2 if size == 1 else sd**2 / 2 * np.eye(2)
        apm.estimators.laplace_importance(
            "y", log_lik, cov, groups=group, samples=2, reference={"sd": 1.0}
        )
    drawn = apm.estimators.sample_latent(
        posterior_of(sd=SD), "y", draws=DRAWS, samples=32, random_seed=1, model=model
    )
    latent = drawn["latent"].values
    assert latent.shape == ((DRAWS, 3) if size == 1 else (DRAWS, 3, 2))
    latent = latent if size == 1 else latent.sum(axis=2)
    assert_exact(z_scores(latent, moments(0.0)), 4)
    assert_not_exact(z_scores(latent, moments(CORRELATION)))


def test_what_is_drawn_can_be_traced_back_to_the_run():
    idata = posterior_of(sd=SD)
    idata["posterior"]["sd"] = (("chain", "draw"), 1.0 + np.arange(DRAWS).reshape(2, -1) / DRAWS)
    drawn = apm.estimators.sample_latent(
        idata, "y", draws=7, samples=2, random_seed=1, model=vector_model()
    )
    for place in range(7):
        one = drawn.isel(sample=place)
        run = idata["posterior"].isel(chain=int(one["chain"]), draw=int(one["draw"]))
        assert one["sd"] == run["sd"]
    assert drawn["sd"][0] == 1.0
    assert drawn["sd"][-1] == idata["posterior"]["sd"].values[-1, -1]


def test_a_seed_gives_the_same_draws():
    options = {"draws": 5, "samples": 4, "model": vector_model()}
    first = apm.estimators.sample_latent(posterior_of(sd=SD), "y", random_seed=3, **options)
    second = apm.estimators.sample_latent(posterior_of(sd=SD), "y", random_seed=3, **options)
    xr.testing.assert_identical(first, second)


@pytest.mark.parametrize(
    "copy",
    [
        clone_model,
        lambda model: pm.observe(model, {"other": 0.5}),
        lambda model: pm.do(model, {"other": 0.5}),
    ],
    ids=["clone", "observe", "do"],
)
def test_a_copy_of_a_model_makes_the_same_draws(copy):
    """Of the parameters too: they were drawn from the prior."""
    with pm.Model() as model:
        sd, other = pm.HalfNormal("sd"), pm.Normal("other")
        apm.estimators.laplace_importance(
            "y",
            lambda f: pm.logp(pm.Poisson.dist(pt.exp(f + other)), COUNTS),
            sd**2 * np.eye(3),
            reference={"sd": 1.0, "other": 0.5},
        )
    drawn = [
        apm.estimators.sample_latent(
            posterior_of(sd=SD, other=0.5), "y", draws=5, samples=4, random_seed=3, model=one
        )["latent"].values
        for one in (model, copy(model))
    ]
    np.testing.assert_array_equal(*drawn)


def test_draws_without_weight_are_an_error():
    with pytest.raises(ModelError, match="weights of all draws"):
        pick(np.random.default_rng(1), np.array([[0.0, -np.inf], [0.0, -np.inf]]))


def test_bad_input_gets_an_error_in_words():
    model = vector_model()
    with pytest.raises(ModelError, match=r"no estimator 'z' .* There is: y"):
        apm.estimators.sample_latent(posterior_of(sd=SD), "z", model=model)
    with pytest.raises(ModelError, match="no draws of sd"):
        apm.estimators.sample_latent(posterior_of(other=SD), "y", model=model)
    with pytest.raises((TypeError, ValueError), match="draws of sample_latent"):
        apm.estimators.sample_latent(posterior_of(sd=SD), "y", draws=0, model=model)
