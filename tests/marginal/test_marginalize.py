"""What a marginalised model keeps of the model that it was made from, and how it is sampled."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from pymc.model.fgraph import clone_model

import pymc_apm as apm
from pymc_apm.density.target import Target
from pymc_apm.marginal.record import record_of
from tests.marginal.brute import Estimator, by_brute_force, parameters_of, z_score
from tests.marginal.models import (
    COUNTS,
    GROUP,
    X,
    Y,
    data_and_dims,
    intercept,
    made,
    partly,
    two_latents,
)
from tests.models import PYTHON, QUIET

Z = 4.8
FEW = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, "random_seed": 1} | QUIET


def whole_model(initval=None):
    coords = {"group": ["a", "b", "c"], "obs": list("uvwxyz")}
    with pm.Model(coords=coords) as model:
        group = pm.Data("group_of", GROUP, dims="obs")
        x = pm.Data("x", X, dims="obs")
        mu = pm.Normal("mu", 0.0, 1.0, initval=initval)
        sigma = pm.HalfNormal("sigma", 1.0)
        rho = pm.Uniform("rho", -1.0, 1.0)
        pm.Deterministic("variance", sigma**2)
        b = pm.Normal("b", mu, sigma, dims="group")
        pm.Deterministic("twice", 2 * b, dims="group")
        pm.Potential("soft", -(rho**2))
        pm.Normal("z", rho, 1.0, observed=[0.1, 0.3])
        pm.Poisson("y", pm.math.exp(b[group] + rho * x), observed=COUNTS, dims="obs")
    return model


def test_all_that_does_not_depend_on_the_latents_is_kept():
    model = whole_model(initval=0.25)
    before = set(model.named_vars)
    marginal = apm.marginalize(model, ["b"])
    assert set(model.named_vars) == before
    assert {rv.name for rv in marginal.free_RVs} == {"mu", "sigma", "rho"}
    assert {rv.name for rv in marginal.observed_RVs} == {"z"}
    assert {v.name for v in marginal.deterministics} == {"variance"}
    assert {v.name for v in marginal.potentials} == {"soft", "b_marginal"}
    assert {v.name for v in marginal.data_vars} == {"group_of", "x", "b_u"}
    assert dict(marginal.coords) == dict(model.coords)
    assert {v.name for v in marginal.value_vars} == {v.name for v in model.value_vars} - {"b"}
    for name in ("mu", "sigma", "rho"):
        kinds = [type(m.rvs_to_transforms[m[name]]) for m in (model, marginal)]
        assert kinds[0] is kinds[1]
    assert marginal.initial_point()["mu"] == 0.25
    point = marginal.initial_point()
    with apm.clamped(marginal):
        kept = marginal.compile_logp([marginal["z"], marginal["rho"]], **PYTHON)(point)
    whole = model.initial_point()
    assert kept == model.compile_logp([model["z"], model["rho"]], **PYTHON)(whole)


@pytest.mark.parametrize("build", [intercept, two_latents, data_and_dims], ids=lambda b: b.__name__)
def test_a_sampler_finds_the_same_factors(build):
    names = [name for name in ("a", "b") if name in made(build).named_vars]
    marginal = apm.marginalize(made(build), names, samples=8)
    target = Target(marginal, marginal.value_vars, marginal.initial_point(), PYTHON)
    assert {places.n_factors for places in target.factors.values()} == {3}


COPIES = {
    "clone_model": clone_model,
    "cloudpickle": lambda model: cloudpickle.loads(cloudpickle.dumps(model)),
    "do": lambda model: pm.do(model, {"rho": 0.3}),
    "observe": lambda model: pm.observe(model, {"rho": 0.3}),
}


@pytest.mark.slow
@pytest.mark.in_python
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_sampled_and_knows_its_latents(name):
    marginal = COPIES[name](apm.marginalize(whole_model(), "b", samples=8, proposal="prior"))
    with marginal:
        idata = pm.sample(compile_kwargs=PYTHON, **FEW)
        latent = apm.sample_latent(idata, samples=20, random_seed=1)
        apm.log_likelihood(idata, max_samples=20, random_seed=1)
        predicted = apm.sample_posterior_predictive(idata, samples=20, random_seed=1)
    assert latent.posterior["b"].dims == ("chain", "draw", "group")
    assert list(latent.posterior["group"].values) == ["a", "b", "c"]
    assert idata.log_likelihood["y"].shape == (1, 5, 3)
    assert predicted.posterior_predictive["y"].shape == (1, 5, 6)


@pytest.mark.parametrize("copy", [lambda m: pm.do(m, {"rho": 0.3}), clone_model])
def test_a_copy_can_be_marginalised(copy):
    model = made(intercept)
    marginal = apm.marginalize(copy(model) if copy is clone_model else model, "b")
    assert {rv.name for rv in marginal.free_RVs} == {"mu", "sigma"}


def test_observed_after_the_fact():
    with pm.Model() as generative:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        b = pm.Normal("b", mu, sigma, shape=3)
        pm.Normal("y", b[GROUP], 1.0)
    marginal = apm.marginalize(pm.observe(generative, {"y": Y}), "b")
    assert marginal["b_marginal"].type.shape == (3,)


def test_missing_observations_are_left_to_predictions():
    observed = np.where(X > 0.5, np.nan, Y)
    with pytest.warns(match="missing values"), pm.Model() as model:
        b = pm.Normal("b", pm.Normal("mu"), 1.0, shape=3)
        pm.Normal("y", b[GROUP], 1.0, observed=observed)
    marginal = apm.marginalize(model, "b")
    assert {rv.name for rv in marginal.free_RVs} == {"mu"}
    with marginal:
        idata = pm.sample(compile_kwargs=PYTHON, **FEW)
        predicted = apm.sample_posterior_predictive(idata, samples=20, random_seed=1)
    assert "y_unobserved" in predicted.posterior_predictive


@pytest.mark.parametrize("kind", ["student", "of parameters"])
def test_a_proposal_of_the_users_own(kind):
    model = made(intercept)
    if kind == "student":
        proposal = pm.StudentT.dist(nu=4, mu=0.5, sigma=1.5, shape=3)
    else:
        proposal = pm.Normal.dist(model["mu"] + 0.3, 1.5 * model["sigma"], shape=3)
    marginal = apm.marginalize(model, "b", samples=16, proposal={"b": proposal})
    assert record_of(marginal).structure.n_factors == 3
    theta = parameters_of(model, ["b"], seed=3)
    rng = np.random.default_rng(5)
    estimator = Estimator(marginal, theta)
    logs = np.array([estimator.fresh(rng)[0].sum() for _ in range(300)])
    assert abs(z_score(logs, by_brute_force(model, ["b"], theta, 3000, seed=4))) < Z


def test_a_proposal_that_leaves_the_support():
    """Where the density of the latent variable is zero, that of the observations is no number."""
    with pm.Model() as model:
        b = pm.Gamma("b", 2.0, 2.0, shape=3)
        pm.Normal("y", pm.math.sqrt(b)[GROUP], 1.0, observed=Y)
    proposal = pm.Normal.dist(1.0, 2.0, shape=3)
    marginal = apm.marginalize(model, "b", samples=16, proposal={"b": proposal})
    rng = np.random.default_rng(5)
    estimator = Estimator(marginal, {})
    logs = np.array([estimator.fresh(rng)[0].sum() for _ in range(300)])
    assert abs(z_score(logs, by_brute_force(model, ["b"], {}, 3000, seed=4))) < Z


def test_a_latent_variable_that_depends_on_what_was_observed():
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu"), 1.0, observed=X[:3])
        b = pm.Normal("b", x, 0.7, shape=3)
        pm.Normal("y", b[GROUP], 1.0, observed=Y)
    marginal = apm.marginalize(model, "b", samples=16, proposal="prior")
    rng = np.random.default_rng(5)
    estimator = Estimator(marginal, {"mu": np.array(0.2)})
    logs = np.array([estimator.fresh(rng)[0].sum() for _ in range(300)])
    exact = by_brute_force(model, ["b"], {"mu": np.array(0.2), "x": X[:3]}, 3000, seed=4)
    assert abs(z_score(logs, exact)) < Z


def slopes_and_lognormal():
    """Two integrals, of which one has two latent variables and the other a single one."""
    mu, sigma = pm.Normal("mu", 0.0, 0.5), pm.Gamma("sigma", 20, 20)
    a = pm.Normal("a", mu, sigma, shape=2)
    b = pm.LogNormal("b", -1.0, 0.5)
    eta = pm.math.stack([a[0], a[0] + b, a[1], a[1], 0.1 + 0 * mu])
    pm.Poisson("y", pm.math.exp(eta), observed=COUNTS[:5])


@pytest.mark.slow
def test_a_laplace_proposal_for_blocks_of_different_sizes():
    model = made(slopes_and_lognormal)
    latents = ["a", "b"]
    marginal = apm.marginalize(model, latents, samples=4, proposal="laplace")
    assert record_of(marginal).structure.n_factors == 3
    assert marginal["a_b_marginal"].type.shape == (2,)
    theta = parameters_of(model, latents, seed=3)
    rng = np.random.default_rng(5)
    estimator = Estimator(marginal, theta)
    found = [estimator.fresh(rng) for _ in range(300)]
    logs = np.array([estimates.sum() + rest for estimates, rest in found])
    exact = by_brute_force(model, latents, theta, 20_000, seed=4)
    assert abs(z_score(logs, exact)) < Z
    assert logs.std() < 0.5


def test_what_is_chosen_is_told(caplog):
    caplog.set_level("INFO", logger="pymc.apm")
    apm.marginalize(made(intercept), "b")
    assert "b: 3 independent integrals of 1 dimension, estimated by 64 draws from the prior" in (
        caplog.text
    )
    with pm.Model() as model:
        k = pm.Bernoulli("k", pm.Beta("p", 1, 1), shape=6)
        pm.Normal("y", k, 1.0, observed=Y)
    apm.marginalize(model, "k")
    assert "pymc_extras" in caplog.text


@pytest.mark.slow
@pytest.mark.in_python
@pytest.mark.parametrize("proposal", ["prior", "laplace"])
def test_a_model_of_single_precision(proposal):
    """The estimates agree with those of double precision: u is the same."""
    values = []
    for dtype in ("float64", "float32"):
        with pytensor.config.change_flags(floatX=dtype, warn_float64="ignore"):
            marginal = apm.marginalize(made(partly), "b", proposal=proposal, samples=4)
            for variable in marginal.data_vars:
                shape = variable.get_value().shape
                variable.set_value(np.random.default_rng(1).standard_normal(shape))
            with apm.clamped(marginal):
                point = marginal.initial_point()
                values.append(float(marginal.compile_logp(mode="FAST_COMPILE")(point)))
    assert values[0] == pytest.approx(values[1], abs=1e-3)
