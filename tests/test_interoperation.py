"""Estimators that others wrote, or that were written without this package in mind.

They are those of ``examples/black_box.py``. Each is checked for what the method asks of it (the
mean of the estimate is the likelihood) where that is known, and used in a chain.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.integrate import quad_vec

import pymc_apm as apm
from tests.models import QUIET

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def examples():
    """Import the script, which finds its own helpers beside it."""
    pytest.importorskip("matplotlib")
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location(
            "black_box_example", EXAMPLES / "black_box.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLES))
    return module


def assert_unbiased(log_estimates: np.ndarray, log_likelihood: float) -> None:
    """Check a mean of estimates, five standard errors: one false alarm in two million."""
    ratios = np.exp(log_estimates - log_likelihood)
    assert abs(ratios.mean() - 1.0) < 5.0 * ratios.std() / np.sqrt(len(ratios))
    assert ratios.std() / np.sqrt(len(ratios)) < 0.05  # a bias of 25% would be seen


@pytest.mark.slow
def test_the_particle_filter_in_numba_is_unbiased(examples):
    rng = np.random.default_rng(1)
    y = examples.simulate_states(10, rng)
    estimates = [
        examples.bootstrap_filter(y, 0.8, 0.7, rng.standard_normal((10, 32)), rng.random(10))
        for _ in range(4000)
    ]
    assert_unbiased(np.array(estimates), examples.kalman_log_likelihood(y, 0.8, 0.7))


def test_the_simulator_with_a_rejection_loop_is_unbiased(examples):
    rng = np.random.default_rng(2)
    counts, mean = np.array([0, 3, 9]), 0.3
    rates = 4.0 * examples.truncated_normal(mean, 3 * 20_000, rng).reshape(-1, 3)
    estimates = stats.poisson.logpmf(counts, rates).sum(axis=1)

    def integrand(rate):
        density = stats.norm.pdf(rate, mean, 1.0) / stats.norm.cdf(mean)
        return density * stats.poisson.pmf(counts, 4.0 * rate)

    likelihood, _ = quad_vec(integrand, 0.0, 12.0)
    assert_unbiased(estimates, np.log(likelihood).sum())


@pytest.mark.parametrize("name", ["filter", "rejection"])
def test_a_chain_with_code_that_draws_from_a_stream(examples, name, monkeypatch):
    monkeypatch.setattr(examples, "kalman_log_likelihood", lambda *_: 0.0)  # not needed, and slow
    example = examples.EXAMPLES[name](3)
    with example.model:
        idata = pm.sample(30, tune=30, step=apm.APMSlice(), **QUIET)
    stats_of_run = idata.sample_stats
    assert (stats_of_run["u_accepted"] == 1.0).all()
    assert (stats_of_run["accepted"] == 1.0).all()
    n_random = stats_of_run["n_random"].values
    assert n_random.min() >= 20 * 24 if name == "rejection" else (n_random == 50 * 65).all()
    if name == "rejection":
        assert len(np.unique(n_random)) > 10


def test_a_filter_of_the_package_particles_is_clamped_by_a_seed(examples):
    pytest.importorskip("particles")
    example = examples.EXAMPLES["particles"](4)
    with example.model:
        idata = pm.sample(15, tune=5, step=apm.APMSlice(), **QUIET)
    stats_of_run = idata.sample_stats
    assert (stats_of_run["accepted"] == 1.0).all()
    assert 0.0 < stats_of_run["u_accepted"].mean() < 1.0
    assert np.isfinite(stats_of_run["log_estimate"].values).all()
