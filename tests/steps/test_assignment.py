"""``pm.sample()`` without a step: estimators' parameters get our steps, all others PyMC's own."""

import importlib

import numpy as np
import pymc as pm
import pymc.step_methods
import pytest
from pymc.sampling.mcmc import assign_step_methods

import pymc_apm as apm
from tests.modes import interpreted
from tests.steps.models import mixed_model, sample, toy_gaussian


@pytest.fixture(autouse=True, scope="module")
def without_a_compiler():
    with interpreted():
        yield


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


def test_what_is_chosen_is_told_in_one_line(caplog):
    with pm.Model():
        theta = pm.Normal("theta", shape=3)
        u = apm.StandardNormal("u", shape=(4, 3))
        v = apm.StandardUniform("v", shape=2)
        apm.Potential("first", -((theta + u) ** 2).sum(axis=0))
        apm.Potential("second", theta.sum() * v.mean())
        with caplog.at_level("INFO", logger="pymc.apm"):
            apm.APMSlice()
            apm.APMSlice(directions="random")
            apm.APMSlice(width=2.0)
    assert caplog.messages == [
        "APMSlice: u in 3 factors; v as one; parameters along ellipses, 2 times for each update "
        "of u.",
        "APMSlice: u in 3 factors; v as one; parameters along random lines.",
    ]


@pytest.mark.parametrize(
    ("options", "directions", "theta_updates"),
    [
        ({}, "ellipse", 1),
        ({"theta_updates": 3}, "ellipse", 3),
        ({"width": 1.0}, "random", 1),
        ({"step_out": 3}, "random", 1),
        ({"width": 1.0, "directions": "coordinate"}, "coordinate", 1),
        ({"directions": "adaptive"}, "adaptive", 1),
    ],
)
def test_what_the_user_says_wins(options, directions, theta_updates):
    with toy_gaussian(dim=2):
        step = apm.APMSlice(**options)
    assert (step.directions, step.options.theta_updates) == (directions, theta_updates)


def with_many_parameters(dim, kind="normal"):
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=dim)
        scale = pm.HalfNormal("scale")
        declare = apm.StandardNormal if kind == "normal" else apm.StandardUniform
        u = declare("u", shape=3)
        apm.Potential("log_lik", -((theta.mean() + u) ** 2) * scale)
        pm.Normal("other")
    return model


def names_of_steps(model, monkeypatch, **options):
    """Return the steps with which ``pm.sample`` would sample."""
    found = []
    monkeypatch.setattr(
        "pymc.sampling.mcmc._print_step_hierarchy", lambda step, *_: found.append(step)
    )
    with model:
        pm.sample(3, tune=3, chains=1, cores=1, progressbar=False, random_seed=1, **options)
    steps = getattr(found[0], "methods", [found[0]])
    return {
        type(step).__name__: sorted(v.name for v in step.vars) for step in steps if step is not None
    }


def test_many_parameters_of_a_differentiable_estimate_are_left_to_nuts(monkeypatch):
    names = ["other", "scale_log__", "theta"]
    found = names_of_steps(with_many_parameters(30), monkeypatch)
    assert found == {"APMEllipticalU": [], "NUTS": names}
    found = names_of_steps(with_many_parameters(30, "uniform"), monkeypatch)
    assert found == {"APMReflectiveU": [], "NUTS": names}


def test_few_parameters_are_not(monkeypatch):
    found = names_of_steps(with_many_parameters(10), monkeypatch)
    assert found == {"APMSlice": ["scale_log__", "theta"], "NUTS": ["other"]}


def test_nor_are_many_if_the_user_says_otherwise(monkeypatch):
    model = with_many_parameters(30)
    names = ["scale_log__", "theta"]
    found = names_of_steps(model, monkeypatch)
    found = names_of_steps(model, monkeypatch, apm_slice={"theta_updates": 2})
    assert found["APMSlice"] == names
    with model:
        step = apm.APMSlice(model.free_RVs[:2])
    assert names_of_steps(model, monkeypatch, step=step)["APMSlice"] == names


def test_what_was_chosen_for_one_run_is_not_for_the_next(monkeypatch):
    model = with_many_parameters(30)
    names_of_steps(model, monkeypatch)
    with model:
        step = pm.Metropolis([model["other"]])
    found = names_of_steps(model, monkeypatch, step=step)
    assert found == {"APMSlice": ["scale_log__", "theta"], "Metropolis": ["other"]}


def test_nor_are_many_parameters_of_a_black_box(monkeypatch):
    estimate = apm.black_box(lambda theta, u: -float(np.sum((theta + u) ** 2)))
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=30)
        apm.Potential("log_lik", estimate(theta, apm.StandardNormal("u", shape=30)))
    assert names_of_steps(model, monkeypatch) == {"APMSlice": ["theta"]}


def test_a_simulator_is_not_sent_far_out_along_ellipses():
    estimate = apm.black_box(lambda theta, rng: -float(theta**2) - rng.random())
    with pm.Model():
        theta = pm.Normal("theta")
        apm.Potential("log_lik", estimate(theta, apm.Stream("stream")))
        step = apm.APMSlice()
    with toy_gaussian(dim=2):
        other = apm.APMSlice()
    assert step.directions == other.directions == "ellipse"
    assert step.options.dof > other.options.dof
