"""Geweke's joint test (2004): sample parameters and data in turn, and look at the prior.

The data are regenerated from the distribution that the *estimate* implies given (theta, u), the
mixture over importance samples; with the exact likelihood in its place a correct sampler would
fail. They are a parameter of the model that no step updates, so that a step sees every change.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import ndtri

import pymc_apm as apm
from tests.statistical.checks import assert_exact, assert_not_exact, mcse
from tests.statistical.test_negative_controls import RedrawsRandomnessOnRejection
from tests.steps.models import declare_normal, start_chain

N_DATA, N_SAMPLES = 2, 3


def build(kind: str) -> pm.Model:
    """Build y_i ~ the mean over k of N(theta + 1.5 * u_ki, 1/2), with theta ~ N(0, 1)."""
    with pm.Model() as model:
        y = pm.Flat("y", shape=N_DATA)
        theta = pm.Normal("theta")
        u = declare_normal("u", (N_SAMPLES, N_DATA), kind)
        log_densities = -2.0 * (y - theta - 1.5 * u) ** 2
        apm.Potential("log_lik", pt.logsumexp(log_densities, axis=0))
    return model


def z_scores_of_geweke(step, kind, seed, *, n_chains=4, n_draws=1500, n_updates=4):
    """Run the joint chain; compare theta and u with their priors.

    Several updates between two sets of data add up what a broken one does wrong.
    """
    traces = []
    quantile = normal_scale(kind)
    for chain in range(n_chains):
        rng = np.random.default_rng([seed, chain])
        start_chain(step, [seed + 1, chain])
        point = {"y": np.zeros(N_DATA), "theta": rng.standard_normal(())}
        for i in range(-200, n_draws):
            z = quantile(step.u["u"])
            chosen = z[rng.integers(N_SAMPLES, size=N_DATA), np.arange(N_DATA)]
            y = point["theta"] + 1.5 * chosen + 0.5 * rng.standard_normal(N_DATA)
            point = point | {"y": y}
            for _ in range(n_updates):
                point, _ = step.step(point)
            if i == -1:
                step.stop_tuning()
            if i >= 0:
                traces.append([point["theta"], *quantile(step.u["u"]).ravel()])
    draws = np.reshape(traces, (n_chains, n_draws, 1 + N_SAMPLES * N_DATA))
    theta, u = draws[..., 0], draws[..., 1:]
    should_vanish = [
        theta,
        theta**2 - 1.0,
        u.mean(axis=2),
        (u**2).mean(axis=2) - 1.0,
        theta * u.mean(axis=2),
        theta**2 * (u**2).mean(axis=2) - 1.0,
    ]
    return np.array([x.mean() / mcse(x) for x in should_vanish])


def normal_scale(kind):
    """Return the function that takes u to the normal scale."""
    return ndtri if kind == "uniform" else np.asarray


METHODS = {
    "PM MH": lambda theta: apm.PseudoMarginalMH(theta, scaling=1.0),
    "correlated PM": lambda theta: apm.PseudoMarginalMH(theta, correlation=0.8, scaling=1.0),
    "block PM": lambda theta: apm.PseudoMarginalMH(theta, blocks=2, scaling=1.0),
    "MI+MH": lambda theta: apm.APMMetropolis(theta, u_update="independence"),
    "SS+MH": lambda theta: apm.APMMetropolis(theta),
    "MI+SS": lambda theta: apm.APMSlice(theta, u_update="independence"),
    "SS+SS": lambda theta: apm.APMSlice(theta),
    "SS+SS, stepping out": lambda theta: apm.APMSlice(theta, step_out=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("name", METHODS)
def test_sampling_parameters_and_data_in_turn_keeps_the_prior(name, kind):
    model = build(kind)
    with model:
        step = METHODS[name]([model["theta"]])
    assert_exact(z_scores_of_geweke(step, kind, seed=1))


@pytest.mark.slow
def test_a_broken_sampler_does_not_keep_it():
    model = build("normal")
    with model:
        step = RedrawsRandomnessOnRejection([model["theta"]], scaling=1.0)
    assert_not_exact(z_scores_of_geweke(step, "normal", seed=2))
