"""The paper's toy Gaussian in five dimensions, where everything is known exactly."""

import numpy as np
import pytest
from scipy.stats import t

import pymc_apm as apm
from tests.marks import others_are_slow
from tests.statistical.checks import (
    assert_exact,
    theta_of,
    updates_from_exact_draws,
    z_scores_of_joint,
    z_scores_of_run,
)
from tests.steps.models import sample, toy_gaussian

METHODS = {
    "PM MH": lambda: apm.PseudoMarginalMH(scaling=0.5),
    "PM MH, coordinates": lambda: apm.PseudoMarginalMH(scaling=0.5, directions="coordinate"),
    "correlated PM": lambda: apm.PseudoMarginalMH(correlation=0.95, scaling=0.5),
    "correlated PM, auto": lambda: apm.PseudoMarginalMH(correlation="auto", scaling=0.5),
    "block PM": lambda: apm.PseudoMarginalMH(blocks=3, scaling=0.5),
    "MI+MH": lambda: apm.APMMetropolis(u_update="independence", scaling=0.85, factorwise=False),
    "MI+MH, factors": lambda: apm.APMMetropolis(u_update="independence", scaling=0.85),
    "SS+MH": lambda: apm.APMMetropolis(scaling=0.85, factorwise=False),
    "SS+MH, coordinates": lambda: apm.APMMetropolis(scaling=0.85, directions="coordinate"),
    "MI+SS": lambda: apm.APMSlice(u_update="independence", width=4.0, factorwise=False),
    "SS+SS": lambda: apm.APMSlice(width=4.0, factorwise=False),
    "SS+SS, factors": lambda: apm.APMSlice(width=4.0),
    "SS+SS, stepping out": lambda: apm.APMSlice(width=1.0, step_out=True),
    "SS+SS, stepping out with a limit": lambda: apm.APMSlice(width=0.5, step_out=3),
    "SS+SS, coordinates": lambda: apm.APMSlice(width=4.0, directions="coordinate"),
    "SS+SS, adaptive": lambda: apm.APMSlice(directions="adaptive"),
    "SS+SS, ellipse": lambda: apm.APMSlice(directions="ellipse"),
    "SS+SS, three updates of theta": lambda: apm.APMSlice(width=4.0, theta_updates=3),
}

EVALUATIONS = {"PM MH": 1.0, "MI+MH": 2.0, "MI+SS": 3.03, "SS+MH": 4.18, "SS+SS": 5.22}
"""Mean evaluations per draw (EXPERIMENTS.md)."""

DRAWS = {
    "PM MH": 15_000,
    "correlated PM": 10_000,
    "correlated PM, auto": 10_000,
    "block PM": 10_000,
    "MI+MH": 8_000,
    "MI+SS": 8_000,
    "SS+MH": 4_000,
    "SS+SS": 4_000,
    "SS+SS, factors": 4_000,
    "MI+MH, factors": 6_000,
    "SS+SS, coordinates": 2_000,
    "SS+SS, adaptive": 4_000,
    "SS+SS, ellipse": 4_000,
}
"""By how well the method mixes, from an autocorrelation time of about 1000 down to 20."""


@pytest.fixture(scope="module", params=others_are_slow(["normal"], ["normal", "uniform"]))
def toy(request):
    return toy_gaussian(kind=request.param), request.param


@pytest.mark.parametrize("name", METHODS)
def test_one_update_keeps_the_exact_joint_distribution(toy, name):
    """Chains from exact draws of (theta, u) are independent, and need no standard error of MCMC."""
    model, kind = toy
    with model:
        step = METHODS[name]()
    theta, u, _ = updates_from_exact_draws(step, 1500, kind=kind, n_updates=2, seed=1)
    assert_exact(z_scores_of_joint(theta, u))


# Acceptance rates and costs


@pytest.mark.slow
def test_acceptance_of_pseudo_marginal_mh_with_a_tiny_step_is_bounded_by_the_noise():
    with toy_gaussian():
        step = apm.PseudoMarginalMH(scaling=1e-3)
    _, _, stats = updates_from_exact_draws(step, 60_000, seed=2)
    assert t.sf(np.sqrt(2.5), 5) * 2 == pytest.approx(0.17469, abs=1e-5)
    assert stats["accept_rate"].mean() == pytest.approx(0.1747, abs=0.005)
    assert stats["accepted"].mean() == pytest.approx(0.1747, abs=0.0075)
    assert (stats["n_evals"] == 2).all()  # one of them for the start


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [0.1, 0.85])
def test_acceptance_of_auxiliary_pseudo_marginal_mh(scaling):
    """That of u does not depend on the step of theta, that of theta not on the noise."""
    with toy_gaussian():
        step = apm.APMMetropolis(u_update="independence", scaling=scaling, factorwise=False)
    _, _, stats = updates_from_exact_draws(step, 60_000, seed=3)
    exact = 2 * t.sf(scaling * np.sqrt(2.5), 5)
    assert stats["u_accepted"].mean() == pytest.approx(0.1747, abs=0.005)
    assert stats["accept_rate"].mean() == pytest.approx(exact, abs=0.005)
    if scaling == 0.85:
        assert exact == pytest.approx(0.2367, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scaling, rate", [(0.5, 0.131), (0.85, 0.084)])
def test_acceptance_of_pseudo_marginal_mh_with_larger_steps(scaling, rate):
    with toy_gaussian():
        step = apm.PseudoMarginalMH(scaling=scaling)
    _, _, stats = updates_from_exact_draws(step, 30_000, seed=4)
    assert stats["accept_rate"].mean() == pytest.approx(rate, abs=0.006)


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_per_draw(name):
    with toy_gaussian():
        step = METHODS[name]()
    # The second update starts where the first one ended: it needs no evaluation to start.
    _, _, stats = updates_from_exact_draws(step, 4000, n_updates=2, seed=5)
    assert stats["n_evals"].mean() == pytest.approx(EVALUATIONS[name], abs=0.1)


# Whole runs


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_a_whole_run_has_the_right_mean_and_variance(name):
    model = toy_gaussian()
    check_run(model, name, DRAWS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PM MH", "correlated PM", "MI+SS", "SS+MH", "SS+SS"])
def test_a_whole_run_with_uniform_randomness_has_the_right_mean_and_variance(name):
    model = toy_gaussian(dim=2, kind="uniform")
    check_run(model, name, 2_500)


def check_run(model, name, draws):
    with model:
        step = METHODS[name]()
    dim = model["theta"].type.shape[0]
    chains = 8
    starts = [{"theta": x} for x in np.random.default_rng(6).standard_normal((chains, dim))]
    idata = sample(
        model, step, draws=draws, tune=1000, chains=chains, initvals=starts, random_seed=7
    )
    assert_exact(z_scores_of_run(theta_of(idata)))
    if name in ("MI+MH", "SS+MH", "SS+SS") and dim == 5:
        n_evals = idata.sample_stats["n_evals"].values.mean()
        assert n_evals == pytest.approx(EVALUATIONS[name], abs=0.1)
