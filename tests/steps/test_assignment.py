"""``pm.sample()`` without a step: estimators' parameters get our steps, all others PyMC's own."""

import importlib

import numpy as np
import pymc as pm
import pymc.step_methods
import pytest
from pymc.sampling.mcmc import assign_step_methods

import pymc_apm as apm
from tests.steps.models import mixed_model, sample, toy_gaussian


def model_of_all_kinds() -> pm.Model:
    """Continuous and discrete parameters, each with and without a way into an estimate."""
    with pm.Model() as model:
        mean = pm.Normal("mean")
        scale = pm.HalfNormal("scale")
        count = pm.Poisson("count", 3.0)
        other = pm.Normal("other")
        pm.Bernoulli("other_switch", 0.5)
        pm.Normal("observed", other, 1.0, observed=np.zeros(2))
        total = pm.Deterministic("total", mean + 0.1 * count)
        u = apm.StandardNormal("u", shape=3)
        apm.Potential("log_lik", -((total + scale * u) ** 2).sum())
    return model


def assigned(model: pm.Model, step=None) -> dict[str, set[str]]:
    """Ask PyMC which step it would give to which variable."""
    _, selected = assign_step_methods(model, step)
    return {method.__name__: {v.name for v in variables} for method, variables in selected.items()}


EXPECTED = {
    "APMSlice": {"mean", "scale_log__"},
    "APMMetropolis": {"count"},
    "NUTS": {"other"},
    "BinaryGibbsMetropolis": {"other_switch"},
}


def test_parameters_of_estimators_get_our_steps_and_others_those_of_pymc():
    assert assigned(model_of_all_kinds()) == EXPECTED


def test_assignment_does_not_need_an_open_model_context():
    model = model_of_all_kinds()
    with model:
        inside = assigned(model)
    assert inside == assigned(model) == EXPECTED


def test_a_step_that_is_given_keeps_its_variables():
    model = model_of_all_kinds()
    with model:
        step = apm.APMMetropolis([model["mean"]])
    assert assigned(model, step)["APMSlice"] == {"scale_log__"}


def test_a_model_without_estimators_is_none_of_our_business():
    with pm.Model() as model:
        pm.Normal("x")
        pm.Poisson("n", 2.0)
    assert assigned(model) == {"NUTS": {"x"}, "Metropolis": {"n"}}


def test_hierarchical_parameters_that_feed_an_estimate_only_through_others_are_left_to_pymc():
    with pm.Model() as model:
        top = pm.Normal("top")
        theta = pm.Normal("theta", top, 1.0)
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", -((theta + u) ** 2).sum())
    assert assigned(model) == {"NUTS": {"top"}, "APMSlice": {"theta"}}


def test_sample_without_a_step_samples_everything():
    idata = sample(model_of_all_kinds(), draws=30, tune=30)
    assert {"mean", "scale", "count", "other", "other_switch"} <= set(idata.posterior.data_vars)
    assert {"n_evals", "log_estimate", "width", "scaling"} <= set(idata.sample_stats.data_vars)
    assert "tree_depth" in idata.sample_stats
    assert all(np.unique(idata.posterior[name]).size > 1 for name in ("mean", "scale", "count"))


def test_sample_without_a_step_outside_of_a_model_context():
    idata = pm.sample(
        draws=20, tune=20, chains=1, model=toy_gaussian(2), progressbar=False, random_seed=1
    )
    assert "width" in idata.sample_stats
    assert np.unique(idata.posterior["theta"].values).size == 40


def test_sample_without_a_step_where_kinds_of_u_are_mixed():
    idata = sample(mixed_model(), draws=20, tune=20)
    assert (idata.sample_stats["u_accepted"].values > 0).all()


def test_options_of_our_steps_can_be_given_to_sample():
    model = toy_gaussian(dim=2)
    fixed = sample(model, apm_slice={"width": 2.0, "u_update": "independence"})
    assert np.allclose(fixed.sample_stats["width"], 2.0)
    assert fixed.sample_stats["u_accepted"].values.mean() < 1.0
    with pm.Model() as discrete:
        count = pm.Poisson("count", 3.0)
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", -0.1 * ((u - count) ** 2).sum())
    fixed = sample(discrete, apm_metropolis={"scaling": 1.5})
    assert np.allclose(fixed.sample_stats["scaling"], 1.5)


def test_compile_kwargs_given_to_sample_reach_a_step_that_was_assigned():
    idata = sample(toy_gaussian(dim=2), draws=5, tune=5, compile_kwargs={"mode": "FAST_COMPILE"})
    assert idata.posterior["theta"].shape == (2, 5, 2)


def test_registration_happens_once_however_often_the_package_is_imported():
    before = list(pymc.step_methods.STEP_METHODS)
    assert before.count(apm.APMSlice) == 1
    assert before.count(apm.APMMetropolis) == 1
    importlib.reload(apm)
    assert list(pymc.step_methods.STEP_METHODS) == before
    assert assigned(model_of_all_kinds()) == EXPECTED


@pytest.mark.parametrize("step", [apm.APMSlice, apm.APMMetropolis])
def test_the_registered_steps_have_names_for_options(step):
    assert step.name == {"APMSlice": "apm_slice", "APMMetropolis": "apm_metropolis"}[step.__name__]
