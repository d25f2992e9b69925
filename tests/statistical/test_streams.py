"""The estimator that draws K = ceil(10 * uniform) and then K normal numbers, with every method.

Its log has a standard deviation of 2.5 in the noise: PM MH sticks, and needs many draws.
"""

import resource

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

import pymc_apm as apm
from pymc_apm.kernels.stream import Reader, make_scratch
from tests.statistical.checks import assert_exact, assert_not_exact, theta_of, z_scores_of_run
from tests.steps.models import sample, start_chain
from tests.stream_models import MEAN, SD, exact_lazy_draw, lazy_log_estimate, lazy_model

METHODS = {
    "PM MH": lambda: apm.PseudoMarginalMH(scaling=0.6),
    "correlated PM": lambda: apm.PseudoMarginalMH(correlation=0.95, scaling=0.4),
    "MI+MH": lambda: apm.APMMetropolis(u_update="independence", scaling=0.7),
    "SS+MH": lambda: apm.APMMetropolis(scaling=0.7),
    "MI+SS": lambda: apm.APMSlice(u_update="independence", width=2.0),
    "SS+SS": lambda: apm.APMSlice(width=2.0),
}

DRAWS = {"PM MH": 40_000, "correlated PM": 20_000}
"""By how well the method mixes; others need fewer."""

QUICK = ("correlated PM", "SS+SS")


def scores_of(theta, streams, is_normal):
    """Compare ends of independent chains with the joint target of theta and the used numbers."""
    used = []
    for vector in streams:
        reader = Reader(vector, is_normal, make_scratch())
        first = reader.take_one()
        uniform = stats.norm.cdf(first) if is_normal else first
        noise = reader.take(max(int(np.ceil(10.0 * uniform)), 1))
        used.append((uniform, noise if is_normal else ndtri(noise)))
    z = np.column_stack(
        [
            (theta - MEAN) / SD,
            ndtri([uniform for uniform, _ in used]),
            [(noise - 1.0).sum() / np.sqrt(noise.size) for _, noise in used],
        ]
    )
    n = len(z)
    products = [z[:, i] * z[:, j] for i in range(z.shape[1]) for j in range(i)]
    means = z.sum(axis=0) / np.sqrt(n)
    variances = (z**2 - 1.0).sum(axis=0) / np.sqrt(2.0 * n)
    return np.concatenate([means, variances, np.sum(products, axis=1) / np.sqrt(n)])


def ends_of_chains(step, kind, n_chains, n_updates=2):
    """Start chains from exact draws of (theta, u); return theta and the stream where they end."""
    rng = np.random.default_rng(20160510)
    start_chain(step, 1)
    step.step({"theta": np.full(2, MEAN)})
    step.stop_tuning()
    thetas, streams = [], []
    for _ in range(n_chains):
        point, step.u = exact_lazy_draw(rng, kind)
        for _ in range(n_updates):
            point, _ = step.step(point)
        thetas.append(point["theta"])
        streams.append(step.u["u"].copy())
    return np.array(thetas), streams


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in METHODS]
)
def test_updates_keep_the_exact_joint_distribution_of_theta_and_the_stream(name, kind):
    with lazy_model(kind):
        step = METHODS[name]()
    theta, streams = ends_of_chains(step, kind, 1500)
    assert_exact(scores_of(theta, streams, kind == "normal"))


def test_an_estimate_that_is_not_unbiased_is_noticed():
    """Half of the variance is not subtracted: the used numbers are right, K is not."""

    def biased(theta, rng):
        n = max(int(np.ceil(10.0 * rng.random())), 1)
        noise = rng.standard_normal(n)
        return -0.5 * np.sum(((theta - MEAN) / SD) ** 2) + noise.sum() - 0.25 * n

    with lazy_model("normal", fn=biased):
        step = METHODS["SS+SS"]()
    theta, streams = ends_of_chains(step, "normal", 1000, n_updates=4)
    assert_not_exact(scores_of(theta, streams, True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "uniform", "seed"])
@pytest.mark.parametrize("name", METHODS)
def test_known_moments_are_recovered_within_four_standard_errors(name, kind):
    if (name, kind) == ("correlated PM", "seed"):
        pytest.skip("there is no correlated proposal for a seed")
    model = lazy_model(kind)
    with model:
        step = METHODS[name]()
    rng = np.random.default_rng(3)
    starts = [{"theta": rng.normal(MEAN, SD, 2)} for _ in range(4)]
    draws = DRAWS.get(name, 8_000)
    idata = sample(model, step, draws=draws, tune=500, chains=4, initvals=starts, random_seed=4)
    assert_exact(z_scores_of_run(theta_of(idata), MEAN, SD**2), z=4.0)
    assert idata.sample_stats["n_random"].values.std() > 1.0 or kind == "seed"


@pytest.mark.slow
def test_pymc_chooses_steps_that_recover_the_known_moments():
    idata = sample(lazy_model("uniform"), draws=8_000, tune=1_000, chains=4, random_seed=5)
    assert_exact(z_scores_of_run(theta_of(idata), MEAN, SD**2), z=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_streams_of_up_to_ten_thousand_numbers_leak_no_memory(kind):
    lengths = []

    def long_estimate(theta, rng):
        lengths.append(int(rng.integers(1, 10_001)))
        del lengths[:-1]
        return lazy_log_estimate(theta, rng) + 0.1 * np.mean(rng.standard_normal(lengths[0]))

    model = lazy_model(kind, fn=long_estimate)
    with model:
        step = apm.APMSlice(width=2.0)
    start_chain(step, 6)
    point = model.initial_point()
    seen = set()

    def run(n_updates):
        nonlocal point
        for _ in range(n_updates):
            point, (stat,) = step.step(point)
            seen.add(stat["n_random"] // 1000)

    run(2_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(20_000)
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(seen) >= 10
    assert growth < 50 * 1024, f"{growth / 1024:.0f} MB"
