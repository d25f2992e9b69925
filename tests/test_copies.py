"""Copies of a model: each has randomness of its own, claims of its own, and samples correctly."""

import copy

import cloudpickle
import numpy as np
import pymc as pm
import pymc.model.transform.optimization as optimization
import pytest
from pymc.model.fgraph import clone_model

import pymc_apm as apm
from pymc_apm.claims import flags_in, randomness_of_model, terms_of
from pymc_apm.errors import ModelError, UnclaimedRandomnessError
from pymc_apm.potential import approximations_in, feeds_potential
from tests.marks import others_are_slow
from tests.models import PYTHON, QUIET
from tests.statistical.checks import assert_exact, z_scores_of_run

FEW = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, "random_seed": 1} | QUIET


def original():
    """Return a model with data and dims whose posterior of theta is N(0, I).

    The estimate N(0 | theta + u, 1) has the mean N(0 | theta, 2) over u, and the prior is N(0, 2).
    """
    with pm.Model(coords={"item": ["a", "b"]}) as model:
        shift = pm.Data("shift", np.zeros(2), dims="item")
        theta = pm.Normal("theta", 0.0, np.sqrt(2.0), dims="item")
        other = pm.Normal("other")
        pm.Normal("y", other, 1.0, observed=0.3)
        u = apm.StandardNormal("u", dims="item")
        apm.Potential("log_lik", -0.5 * ((theta + shift + u) ** 2).sum())
    return model


COPY = {
    "clone_model": clone_model,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "cloudpickle": lambda model: cloudpickle.loads(cloudpickle.dumps(model)),
    "freeze_dims_and_data": lambda model: optimization.freeze_dims_and_data(model),
    "freeze_data": lambda model: optimization.freeze_dims_and_data(model, data=["shift"]),
    "freeze_randomness": lambda model: optimization.freeze_dims_and_data(model, data=["u"]),
    "do": lambda model: pm.do(model, {"shift": np.zeros(2)}),
    "observe": lambda model: pm.observe(model, {"other": 0.1}) if "other" in free(model) else model,
}
if hasattr(optimization, "freeze_model"):
    COPY["freeze_model"] = optimization.freeze_model


def free(model):
    return {rv.name for rv in model.free_RVs}


def flags(model):
    return flags_in(terms_of(model))


@pytest.mark.parametrize("name", COPY)
def test_a_copy_and_a_copy_of_a_copy_have_randomness_and_claims_of_their_own(name):
    first = original()
    second = COPY[name](first)
    third = clone_model(second)
    models = [first, second, third]
    for model in models:
        assert [u.name for u in randomness_of_model(model)] == ["u"]
        assert model["u"] is randomness_of_model(model)[0]
        assert tuple(model.named_vars_to_dims["u"]) == ("item",)
        assert len(flags(model)) == 1
    assert len({id(model["u"].container.storage) for model in models}) == 3
    assert len({id(flags(model)[0].container.storage) for model in models}) == 3
    for model in models:
        with apm.clamped(model):
            claimed = [bool(flags(other)[0].get_value()) for other in models]
        assert claimed == [other is model for other in models]


@pytest.mark.parametrize("name", COPY)
def test_a_copy_made_where_it_is_clamped_is_not(name):
    first = original()
    with apm.clamped(first):
        second = COPY[name](first)
        with pytest.raises(UnclaimedRandomnessError):
            second.compile_logp(**PYTHON)(second.initial_point())


@pytest.mark.parametrize("name", COPY)
def test_sample_without_a_step_gives_a_copy_the_steps_of_the_first(name):
    model = COPY[name](original())
    before = model["u"].get_value()
    idata = pm.sample(model=model, compile_kwargs=PYTHON, **FEW)
    assert {"width", "log_estimate"} <= set(idata.sample_stats.data_vars)
    assert ("tree_depth" in idata.sample_stats) == ("other" in free(model))
    assert not np.array_equal(model["u"].get_value(), before)
    if "constant_data" in idata:
        assert "u" not in idata.constant_data


@pytest.mark.parametrize("name", others_are_slow([], ["freeze_dims_and_data", "do", "cloudpickle"]))
def test_the_posterior_of_a_copy_is_right(name):
    """With a u that stays as it is, theta would have the variance 2/3 and another mean.

    Eight z-scores a run; a false alarm in 1 of 1000 runs of all tests together.
    """
    model = COPY[name](COPY[name](original()))
    idata = pm.sample(
        1500, tune=300, chains=4, cores=1, model=model, random_seed=21, progressbar=False
    )
    assert_exact(z_scores_of_run(idata.posterior["theta"].values))


@pytest.mark.parametrize("name", COPY)
def test_steps_of_pymc_see_the_randomness_of_the_copy(name):
    """Although they were made, and compiled, before the step that updates it."""
    model = COPY[name](COPY[name](original()))
    with model:
        # Those of other parameters come after these, but do not change the estimate.
        steps = [pm.Slice([model["theta"]]), apm.APMEllipticalU(compile_kwargs=PYTHON)]
    logp = model.compile_logp([model["log_lik"]], **PYTHON)
    estimates = []

    def callback(trace, draw):
        (ours,) = [stats for stats in draw.stats if "log_estimate" in stats]
        estimates.append((logp(draw.point), ours["log_estimate"]))

    pm.sample(model=model, step=steps, callback=callback, compile_kwargs=PYTHON, **FEW)
    by_pymc, by_ours = np.transpose(estimates)
    np.testing.assert_allclose(by_pymc, by_ours)
    assert len(set(by_ours)) > 5


def test_an_estimate_may_be_added_to_a_copy():
    first = original()
    second = clone_model(first)
    with second:
        apm.Potential("more", second["other"] * second["u"].sum())
    assert feeds_potential(second["other"])
    assert len(flags(second)) == 2
    with apm.clamped(first), pytest.raises(UnclaimedRandomnessError):
        second.compile_logp(**PYTHON)(second.initial_point())
    pm.sample(model=second, compile_kwargs=PYTHON, **FEW)


def test_parameters_of_an_estimate_that_was_replaced_are_left_to_pymc():
    model = pm.do(original(), {"log_lik": np.array(0.0)})
    idata = pm.sample(model=model, **(FEW | {"draws": 20, "tune": 20}))
    assert "tree_depth" in idata.sample_stats
    assert "log_estimate" not in idata.sample_stats
    assert {"theta", "other"} <= set(idata.posterior.data_vars)


def test_the_first_keeps_its_steps_when_a_copy_loses_its_estimate():
    first = original()
    pm.sample(model=pm.do(first, {"log_lik": np.array(0.0)}), **FEW)
    assert feeds_potential(first["theta"])
    assert "width" in pm.sample(model=first, compile_kwargs=PYTHON, **FEW).sample_stats


def test_randomness_that_was_made_a_constant_on_purpose_is_refused_in_words():
    model = pm.do(original(), {"u": np.zeros(2)})
    with pytest.raises(ModelError, match="randomness 'u' of an estimator has been replaced"):
        pm.sample(model=model, **FEW)
    with pytest.raises(UnclaimedRandomnessError):
        model.compile_logp(**PYTHON)(model.initial_point())


def test_data_of_a_copy_is_frozen_and_randomness_is_not():
    frozen = optimization.freeze_dims_and_data(original())
    assert not hasattr(frozen["shift"], "set_value")
    assert hasattr(frozen["u"], "set_value")


def test_other_models_are_frozen_as_ever():
    with pm.Model(coords={"item": range(3)}) as model:
        x = pm.Data("x", np.arange(3.0), dims="item")
        pm.Normal("y", x, dims="item")
    frozen = optimization.freeze_dims_and_data(model)
    assert not hasattr(frozen["x"], "set_value")
    np.testing.assert_array_equal(frozen["x"].data, np.arange(3.0))


def test_an_approximation_does_not_speak_of_the_parameters_of_another_model():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", -((theta + u) ** 2), approximation=-(theta**2))
    assert approximations_in(model) != [None]
    assert approximations_in(clone_model(model)) == [None]
    copied = cloudpickle.loads(cloudpickle.dumps(model))
    assert approximations_in(copied) != [None]
