"""Steps of PyMC for theta, with u clamped between updates of ours: all of them are exact."""

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.compound import CompoundStep

import pymc_apm as apm
from tests.statistical.checks import assert_exact, theta_of, z_scores_of_run
from tests.steps.models import sample, start_chain, toy_gaussian

PYMC_STEPS = {
    "NUTS": (pm.NUTS, 400),
    "Slice": (pm.Slice, 1000),
    "Metropolis": (pm.Metropolis, 1500),
    "DEMetropolisZ": (pm.DEMetropolisZ, 1500),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PYMC_STEPS)
def test_a_step_of_pymc_after_elliptical_u(name):
    make, draws = PYMC_STEPS[name]
    model = toy_gaussian(dim=2)
    with model:
        step = [apm.APMEllipticalU(), make([model["theta"]])]
    idata = sample(model, step, draws=draws, tune=500, chains=4, random_seed=11)
    assert_exact(z_scores_of_run(theta_of(idata)))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (apm.APMReflectiveU, "uniform"),
        (apm.APMIndependenceU, "uniform"),
        (apm.APMIndependenceU, "normal"),
    ],
)
def test_slice_sampling_by_pymc_after_other_updates_of_u(make, kind):
    model = toy_gaussian(dim=2, kind=kind)
    with model:
        step = [make(), pm.Slice([model["theta"]])]
    idata = sample(model, step, draws=1000, tune=200, chains=4, random_seed=12)
    assert_exact(z_scores_of_run(theta_of(idata)))


@pytest.mark.parametrize("make", [pm.Metropolis, pm.Slice, pm.NUTS])
def test_the_order_of_the_steps_and_several_steps_of_pymc_are_possible(make):
    with pm.Model() as model:
        first = pm.Normal("first")
        second = pm.HalfNormal("second")
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", -0.1 * ((first + second * u) ** 2).sum())
        step = [make([first]), apm.APMEllipticalU(), pm.Metropolis([second])]
    idata = sample(model, step, draws=30, tune=30)
    for name in ("first", "second"):
        assert np.unique(idata.posterior[name]).size > 10
    stats = idata.sample_stats
    assert stats["u_accepted"].shape == (2, 30)
    assert (stats["n_evals"].values >= 1).all()


def test_nuts_in_child_processes_sees_the_u_that_our_step_updates():
    model = toy_gaussian(dim=1)
    runs = []
    for options in ({"cores": 1}, {"cores": 2, "mp_ctx": "fork"}):
        with model:
            step = [apm.APMEllipticalU(), pm.NUTS([model["theta"]])]
        runs.append(sample(model, step, tune=200, draws=400, random_seed=13, **options))
    for idata in runs:
        theta = theta_of(idata)[..., 0]
        # Were u stuck, theta would have variance 1/2 about -u/2.
        assert 0.7 < theta.var() < 1.4
        assert np.abs(theta.mean(axis=1)).max() < 0.5


@pytest.mark.parametrize("n_before", [1, 20])
def test_a_restored_state_counts_the_evaluations_of_a_chain_that_went_on(n_before):
    """To follow a step of PyMC costs an evaluation, also for the first draw after a restart."""
    model = toy_gaussian(dim=2)
    with model:
        steps = [
            CompoundStep([apm.APMEllipticalU(), pm.Metropolis([model["theta"]])]) for _ in range(2)
        ]
    counts = []
    with apm.clamped(model):
        first, second = steps
        for step in steps:
            start_chain(step, 3)
        point = model.initial_point()
        for _ in range(n_before):
            point, _ = first.step(point)
        second.sampling_state = first.sampling_state
        u = model["u"].get_value()
        for step in steps:
            model["u"].set_value(u)
            _, stats = step.step(point)
            counts.append([stats[0][name] for name in ("n_evals", "n_theta_evals")])
    assert counts[0] == counts[1]
    assert counts[0][1] > 0


def test_what_a_restored_state_was_made_from_is_told():
    model = toy_gaussian(dim=2)
    with model:
        step = apm.APMSlice(compile=False)
    with apm.clamped(model):
        start_chain(step, 4)
        step.step(model.initial_point())
        assert step.chain.find_again() is None
        step.sampling_state = step.sampling_state
        before, now = step.chain.find_again()
        assert before == pytest.approx(now, rel=1e-12)
        assert step.chain.find_again() is None
        state = step.sampling_state
        inputs, logs = state.evaluated
        state.evaluated = state.evaluated._replace(logs=(logs[0] + 1.0, *logs[1:]))
        step.sampling_state = state
        before, now = step.chain.find_again()
        assert before[0] == pytest.approx(now[0] + 1.0)
        assert set(inputs) == {":theta", ":rest", "u"}
