"""Steps of PyMC for theta, with u clamped between updates of ours: all of them are exact."""

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from tests.statistical.checks import assert_exact, theta_of, z_scores_of_run
from tests.steps.models import sample, toy_gaussian

PYMC_STEPS = {
    "NUTS": (pm.NUTS, 400),
    "Slice": (pm.Slice, 1000),
    "Metropolis": (pm.Metropolis, 1500),
    "DEMetropolisZ": (pm.DEMetropolisZ, 1500),
}


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
