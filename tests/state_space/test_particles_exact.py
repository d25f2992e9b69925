"""Whole runs with few particles against the exact posterior, and how fast u forgets."""

import math

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm._compat import dataset_of
from pymc_apm.density.target import Target
from tests.state_space.linear import Args, kalman
from tests.state_space.particle_models import sir, sir_log_likelihood
from tests.statistical.checks import assert_exact, assert_not_exact, mcse

pytestmark = pytest.mark.slow


def simulated(n_times, a=0.9, s=1.0, r=1.0, seed=1):
    rng = np.random.default_rng(seed)
    x, y = s / math.sqrt(1.0 - a**2) * rng.standard_normal(), np.empty(n_times)
    for t in range(n_times):
        x = a * x + s * rng.standard_normal() if t else x
        y[t] = x + r * rng.standard_normal()
    return y


def ar(y, points):
    with pm.Model() as model:
        a, s = pm.Uniform("a", 0, 1), pm.HalfNormal("s", 2)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(0.0, s / pt.sqrt(1.0 - a**2)),
            transition=lambda x: pm.Normal.dist(a * x, s),
            observation=lambda x: pm.Normal.dist(x, 1.0),
            method="particles",
            points=points,
        )
    return model


def moments_on_grid(axes, log_density):
    """Return means and second moments of each coordinate by quadrature."""
    grid = np.meshgrid(*axes, indexing="ij")
    logs = np.vectorize(log_density)(*grid)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    means = [np.sum(weights * x) for x in grid]
    return means, [np.sum(weights * (x - m) ** 2) for x, m in zip(grid, means, strict=True)]


def z_scores(idata, names, means, variances):
    posterior = dataset_of(idata, "posterior")
    scores = []
    for name, mean, variance in zip(names, means, variances, strict=True):
        draws = (posterior[name].to_numpy() - mean) / math.sqrt(variance)
        for values in (draws, draws**2 - 1.0):
            scores.append(values.mean() / mcse(values))
    return np.array(scores)


Y = simulated(100)


@pytest.fixture(scope="module")
def model():
    return ar(Y, points=20)


@pytest.fixture(scope="module")
def exact():
    compiled = numba.njit(kalman)

    def log_density(a, s):
        return compiled(Y, Args(a, s, 1.0)) - 0.5 * (s / 2.0) ** 2

    axes = np.linspace(0.3, 0.9999, 250), np.linspace(0.3, 2.5, 250)
    return moments_on_grid(axes, log_density)


@pytest.mark.parametrize(
    ("u_update", "draws"), [("auto", 3000), ("slice", 6000)], ids=["conditional SMC", "ellipses"]
)
def test_twenty_particles_are_exact(model, exact, u_update, draws):
    with model:
        idata = pm.sample(
            draws,
            tune=500,
            chains=2,
            cores=1,
            step=apm.APMSlice(u_update=u_update),
            progressbar=False,
            random_seed=3,
        )
    assert_exact(z_scores(idata, ["a", "s"], *exact), 4.0)


def test_u_that_is_drawn_afresh_for_each_draw_is_noticed(model, exact):
    """What others do wrong: the estimate at the current point is made anew at each step."""

    class Fresh(apm.APMMetropolis):
        def brings_update(self, variable):
            return True

    with model:
        step = Fresh(u_update="auto")
        step.target.refreshing = lambda name: (
            lambda rng, evaluation: (
                rng.standard_normal(step.target.value(evaluation, name).shape),
                evaluation.cost,
            )
        )
        idata = pm.sample(6000, tune=500, chains=1, step=step, progressbar=False, random_seed=3)
    assert_not_exact(z_scores(idata, ["a", "s"], *exact))


def test_a_small_epidemic_is_exact():
    grid = np.exp(np.linspace(-4.0, 4.0, 161))
    logs = [sir_log_likelihood(beta) - 0.5 * (math.log(beta) / 0.7) ** 2 for beta in grid]
    weights = np.exp(np.array(logs) - np.max(logs))
    weights /= weights.sum()
    mean = np.sum(weights * np.log(grid))
    variance = np.sum(weights * (np.log(grid) - mean) ** 2)
    with sir(points=6):
        idata = pm.sample(5000, tune=500, chains=2, cores=1, progressbar=False, random_seed=4)
    draws = (np.log(dataset_of(idata, "posterior")["beta"].to_numpy()) - mean) / math.sqrt(variance)
    assert_exact(np.array([v.mean() / mcse(v) for v in (draws, draws**2 - 1.0)]), 4.0)


SIGNAL = np.array([0.1, -0.3, 2.2, 1.7, 2.4, 0.9, 1.1, 0.2, np.nan, 2.6, 2.0, 0.4, 0.0, -0.2, 1.2])


def hidden_markov_density(p, sd, tilt=None):
    """Return the log-likelihood of SIGNAL: three states that stay as they are, or go anywhere.

    With ``tilt`` plus the log of the mean of the state at that time, given the data.
    """
    matrix = p * np.eye(3) + (1.0 - p) / 3.0
    alpha, total = np.full(3, 1.0 / 3.0), 0.0
    for t, y in enumerate(SIGNAL):
        alpha = alpha if t == 0 else alpha @ matrix
        if not math.isnan(y):
            alpha = alpha * np.exp(-0.5 * ((y - np.arange(3)) / sd) ** 2) / sd
        alpha = alpha * np.arange(3) if t == tilt else alpha
        total += math.log(alpha.sum())
        alpha = alpha / alpha.sum()
    return total


def test_a_hidden_markov_model_and_its_states_are_exact():
    with pm.Model():
        p, sd = pm.Beta("p", 2, 2), pm.HalfNormal("sd", 1)
        matrix = p * np.eye(3) + (1.0 - p) / 3.0
        apm.estimators.state_space(
            "y",
            SIGNAL,
            initial=pm.Categorical.dist(np.full(3, 1.0 / 3.0)),
            transition=lambda x: pm.Categorical.dist(matrix[x]),
            observation=lambda x: pm.Normal.dist(x, sd),
            points=6,
            record_states=True,
        )
        idata = pm.sample(700, tune=150, chains=2, cores=1, progressbar=False, random_seed=5)
        states = apm.sample_states(idata, "y")["smoothed_posterior"].values[..., 0]

    def log_density(p, sd, tilt=None):
        return hidden_markov_density(p, sd, tilt) + math.log(p * (1.0 - p)) - 0.5 * sd**2

    axes = np.linspace(0.01, 0.99, 30), np.linspace(0.05, 3.0, 45)
    assert_exact(z_scores(idata, ["p", "sd"], *moments_on_grid(axes, log_density)), 4.0)
    grid = np.meshgrid(*axes, indexing="ij")
    total = np.exp(np.vectorize(log_density)(*grid)).sum()
    for t in (0, 5, 8, 14):
        mean = np.exp(np.vectorize(lambda p, sd, t=t: log_density(p, sd, t))(*grid)).sum() / total
        values = states[:, :, t] - mean
        assert abs(values.mean()) < 4.0 * mcse(values)


def autocorrelation_time(values):
    """Return the sum of autocorrelations, by Geyer's initial positive sequence."""
    centred = values - values.mean()
    n = centred.size
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    correlations = np.fft.irfft(spectrum)[:n]
    correlations /= correlations[0]
    pairs = correlations[0 : n - 1 : 2] + correlations[1:n:2]
    return 2.0 * pairs[: np.argmax(pairs < 0.0)].sum() - 1.0


def test_u_forgets_quickly_however_long_the_series_is():
    model = ar(simulated(1000), points=100)
    target = Target(model, model.value_vars, model.initial_point())
    refresh, density = target.refreshing("y_u"), target.along("y_u")
    rng = np.random.default_rng(5)
    theta = target.layout.ravel({"a_interval__": np.array(math.log(9.0)), "s_log__": np.array(0.0)})
    u = rng.standard_normal(target.randomness[0].type.shape).ravel()
    evaluation = target.start({":theta": theta, ":rest": np.zeros(0), "y_u": u})
    logs = []
    for _ in range(420):
        new, _ = refresh(rng, evaluation)
        _, evaluation = density(new, evaluation)
        logs.append(evaluation.log_estimate)
    assert autocorrelation_time(np.array(logs[20:])) < 4.0
