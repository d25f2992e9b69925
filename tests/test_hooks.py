"""What importing the package does to PyMC, and that it does nothing else."""

import importlib
import inspect
import logging
import os
import subprocess
import sys
import textwrap
from unittest.mock import MagicMock

import numpy as np
import pymc as pm
import pymc.sampling.mcmc
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm import _hooks
from pymc_apm.errors import ModelError, UnclaimedRandomnessError
from tests.models import PYTHON, mixed_toy, toy_gaussian

SHORT = {"draws": 20, "tune": 5, "chains": 1, "cores": 1, "random_seed": 1, "progressbar": False}


def test_sample_is_wrapped_wherever_it_can_be_found_and_looks_as_before():
    assert pm.sample is pymc.sampling.sample is pymc.sampling.mcmc.sample
    original = pm.sample.apm_original
    assert original.__module__ == pm.sample.__module__ == "pymc.sampling.mcmc"
    assert pm.sample.__doc__ == original.__doc__
    assert inspect.signature(pm.sample) == inspect.signature(original)


def test_nothing_is_wrapped_twice():
    importlib.reload(apm)
    assert not hasattr(pm.sample.apm_original, "apm_original")
    assert not hasattr(pm.Model.point_logps.apm_original, "apm_original")
    assert pm.sample is pymc.sampling.sample is pymc.sampling.mcmc.sample


def test_models_without_randomness_go_straight_through():
    with pm.Model() as model:
        pm.Normal("x")
    options = {"model": model, "step": "whatever", "nuts_sampler": "nutpie", "cores": 2}
    returned = _hooks._sample(lambda *args, **kwargs: (args, kwargs), 5, **options)
    assert returned == ((5,), options)


def test_without_a_model_pymc_complains():
    with pytest.raises(TypeError, match=r"[Nn]o model on context stack"):
        pm.sample()


@pytest.mark.parametrize("sampler", ["nutpie", "numpyro", "blackjax"])
def test_samplers_that_know_nothing_of_u_are_refused_in_words(sampler):
    with toy_gaussian(2), pytest.raises(UnclaimedRandomnessError, match=f"nuts_sampler='{sampler}"):
        pm.sample(nuts_sampler=sampler)


# Looking at a model


MODELS = {
    "scalar": lambda: toy_gaussian(2),
    "mixed": mixed_toy,
    "vector": lambda: vector_model(),
    "black box": lambda: black_box_model(),
}


def vector_model():
    with pm.Model(coords={"group": range(3)}) as model:
        theta = pm.Normal("theta", dims="group")
        u = apm.StandardNormal("u", dims="group")
        apm.Potential("log_lik", -((theta + u) ** 2), dims="group")
    return model


def black_box_model():
    with pm.Model() as model:
        box = apm.black_box(lambda theta, rng: -(float(theta - rng.normal()) ** 2))
        apm.Potential("log_lik", box(pm.Normal("theta"), apm.Stream("u")))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_can_be_drawn(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", MagicMock())
    model = MODELS[name]()
    pm.model_to_graphviz(model)
    plates = pm.model_graph.ModelGraph(model).get_plates()
    drawn = {node.var.name for plate in plates for node in plate.variables}
    assert {"theta", "u", "log_lik"} <= drawn
    with pytest.raises(UnclaimedRandomnessError):
        model.compile_logp(**PYTHON)(model.initial_point())


@pytest.mark.parametrize("name", MODELS)
def test_point_logps_are_those_of_the_current_randomness(name):
    model = MODELS[name]()
    found = model.point_logps(round_vals=10)
    with apm.clamped(model):
        expected = model.compile_logp([model["log_lik"]])(model.initial_point())
    np.testing.assert_allclose(found["log_lik"], expected, atol=1e-9)
    assert set(found) == {"theta", "log_lik"}


@pytest.mark.parametrize("fn", ["logp", "dlogp", "random"])
@pytest.mark.parametrize("name", ["scalar", "vector"])
def test_a_model_can_be_debugged(name, fn, capsys):
    model = MODELS[name]()
    potentials = list(model.potentials)
    model.debug(fn=fn)
    assert "No problems found" in capsys.readouterr().out
    assert model.potentials == potentials


def test_debugging_finds_what_is_wrong_with_an_estimate(capsys):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("log_lik", pt.log(theta) + 0.0 * apm.StandardNormal("u"))
    model.debug()
    assert (
        "The logp of the potential log_lik is not finite: [array(-inf)]" in capsys.readouterr().out
    )
    model.debug({"theta": np.array(1.0)})
    assert "potential" not in capsys.readouterr().out


def test_debugging_tells_of_an_exception_in_an_estimate(capsys):
    def broken(theta, rng):
        raise RuntimeError("no luck")

    with pm.Model() as model:
        apm.Potential("log_lik", apm.black_box(broken)(pm.Normal("theta"), apm.Seed("u")))
    model.debug()
    assert "no luck" in capsys.readouterr().out


def test_other_models_are_debugged_as_ever(capsys):
    with pm.Model() as model:
        pm.Normal("x", 0.0, -1.0)
    model.debug()
    assert "does not respect one of the following constraints" in capsys.readouterr().out


# What is said at the end


def nan_model():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardUniform("u")
        apm.Potential("log_lik", pt.switch(u < 0.5, np.nan, 0.0) + 0.0 * theta)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compute_convergence_checks": False},
        {"return_inferencedata": False},
        {"return_inferencedata": False, "compute_convergence_checks": False},
    ],
    ids=lambda options: " ".join(options) or "default",
)
@pytest.mark.filterwarnings("ignore:.*return_inferencedata=False")
def test_nan_estimates_are_told_of_once_whatever_else_is_checked(options, caplog):
    model = nan_model()
    with caplog.at_level(logging.WARNING):
        step = apm.APMSlice(model=model, compile_kwargs=PYTHON)
        result = pm.sample(model=model, step=step, **(SHORT | options))
    lines = [record for record in caplog.records if "not a number (NaN)" in record.message]
    assert len(lines) == 1
    assert lines[0].name == "pymc.stats.convergence"
    assert lines[0].levelno == logging.WARNING
    if "return_inferencedata" in options:
        assert any("NaN" in warning.message for warning in result.report._warnings)


def recording_model(what):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=2)
        log_lik = apm.Potential("log_lik", -((theta - u) ** 2).sum())
        pm.Deterministic("recorded", {"u": theta + u, "estimate": log_lik}[what])
    return model


@pytest.mark.parametrize("what", ["u", "estimate"])
def test_what_depends_on_u_is_not_recorded_where_that_is_another_one(what):
    model = recording_model(what)
    step = apm.APMSlice(model=model, compile_kwargs=PYTHON)
    parallel = SHORT | {"chains": 2, "cores": 2}
    with pytest.raises(ModelError, match="recorded cannot be recorded where chains run in para"):
        pm.sample(model=model, step=step, **parallel)
    idata = pm.sample(model=model, step=step, **parallel, var_names=["theta"])
    assert list(idata.posterior.data_vars) == ["theta"]


def test_what_depends_on_u_is_recorded_as_it_is_in_each_draw():
    model = recording_model("estimate")
    step = apm.APMSlice(model=model, compile_kwargs=PYTHON)
    idata = pm.sample(model=model, step=step, **SHORT | {"chains": 2})
    np.testing.assert_allclose(idata.posterior["recorded"], idata.sample_stats["log_estimate"])


def test_a_quiet_run_says_nothing(caplog):
    model = nan_model()
    with caplog.at_level(logging.WARNING):
        step = apm.APMSlice(model=model, compile_kwargs=PYTHON)
        pm.sample(model=model, step=step, quiet=True, **SHORT)
    assert not [record for record in caplog.records if "NaN" in record.message]


def test_a_run_is_not_lost_because_it_cannot_be_looked_at(caplog, monkeypatch):
    def fail(idata):
        raise RuntimeError("a defect")

    monkeypatch.setattr(_hooks, "problems", fail)
    model = toy_gaussian(2)
    step = apm.APMSlice(model=model, compile_kwargs=PYTHON)
    assert pm.sample(model=model, step=step, **SHORT).posterior.sizes["draw"] == 20
    assert "could not be checked" in caplog.text


# Without the hooks


def python(code, **environment):
    """Run a program in a process of its own; return what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


RUNS = """
    import warnings
    import pymc as pm, pymc.backends.arviz, pymc.sampling.mcmc, pymc.step_methods
    from pymc import sample
    before = sample, list(pymc.step_methods.STEP_METHODS), pm.Model.debug
    import pymc_apm as apm
    from pymc_apm.errors import ModelError, UnclaimedRandomnessError

    short = dict(draws=5, tune=5, chains=1, cores=1, progressbar=False, quiet=True)
    python = {"mode": "FAST_COMPILE"}
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", -(theta + u) ** 2)
        print((pm.sample, list(pymc.step_methods.STEP_METHODS), pm.Model.debug) == before)
        idata = sample(step=apm.APMSlice(compile_kwargs=python), **short)
        print(idata.posterior.sizes["draw"])
        steps = [apm.APMEllipticalU(compile_kwargs=python), pm.Metropolis(compile_kwargs=python)]
        try:
            sample(step=steps, **short)
        except UnclaimedRandomnessError as error:
            print("imported by name before pymc_apm" in str(error))
        with apm.clamped():
            print(sample(step=steps, **short).posterior.sizes["draw"])
"""


def test_the_switch_leaves_pymc_alone():
    assert python(RUNS, PYMC_APM_HOOKS="0") == ["True", "5", "True", "5"]


def test_sample_that_was_imported_before_works_with_our_steps_and_is_not_silently_wrong():
    assert python(RUNS, PYMC_APM_HOOKS="1") == ["False", "5", "True", "5"]
