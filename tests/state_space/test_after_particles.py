"""States, forecasts and predictions after particle filters, against exact smoothers.

Parameters do not move here, so that all draws are independent.
"""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_apm as apm
from pymc_apm._compat import result_of
from pymc_apm.errors import EstimatorError
from tests.modes import interpreted
from tests.state_space.models import MISSING, PAIRS
from tests.state_space.particle_models import (
    CASES,
    SEEN,
    hidden_markov,
    hidden_markov_log_likelihood,
    sir,
    sir_log_likelihood,
)
from tests.state_space.truth import kalman

A, S = 0.7, 0.6
N = 300
Z = 4.5
"""Some 100 checks, with a false alarm rate of 7e-6 each."""

EXACT = kalman(MISSING, 0.0, 1.0, A, 0.0, S**2, 0.64)


def run(n: int = N, **values: float) -> Any:
    """Return a run whose parameters do not move."""
    dims, coords = ("chain", "draw"), {"chain": np.arange(2), "draw": np.arange(n // 2)}
    draws = {name: (dims, np.full((2, n // 2), value)) for name, value in values.items()}
    return result_of({"posterior": xr.Dataset(draws, coords)})


AR = run(a=A, s=S)


def autoregression(y: Any = MISSING, is_simulator: bool = False, **options: Any) -> pm.Model:
    """Return AR(1) plus noise; the transition of a simulator has no density."""
    with pm.Model(coords={"day": np.arange(10, 15)}) as model:
        a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)

        def transition(x: Any) -> Any:
            if not is_simulator:
                return pm.Normal.dist(a * x, s)
            return a * x + pm.Normal.dist(0, 0.6 * s) + pm.Normal.dist(0, 0.8 * s)

        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(0, 1),
            transition=transition,
            observation=lambda x: pm.Normal.dist(x, 0.8),
            method="particles",
            **{"points": 80, "dims": "day"} | options,
        )
    return model


def check(draws: Any, mean: Any, variance: Any, n: int = N) -> None:
    draws = draws.reshape(n, -1)
    z = (draws.mean(axis=0) - mean) / np.sqrt(variance / n)
    assert (np.abs(z) < Z).all(), z
    # The variance of a variance of normal numbers is twice its square.
    z = (draws.var(axis=0) / variance - 1.0) / np.sqrt(2.0 / n)
    assert (np.abs(z) < Z).all(), z


def check_mean(draws: Any, mean: Any) -> None:
    draws = draws.reshape(-1)
    assert abs(draws.mean() - mean) < Z * draws.std() / np.sqrt(draws.size) + 1e-9


@pytest.fixture(params=[False, True], ids=["backwards", "ancestors"], scope="module")
def model(request: Any) -> Any:
    with interpreted():
        yield autoregression(is_simulator=request.param)


def test_states_are_those_of_the_exact_smoother(model: pm.Model) -> None:
    found = apm.sample_states(AR, "y", random_seed=1, model=model)
    states = found["smoothed_posterior"]
    assert states.dims == ("chain", "draw", "day", "state")
    assert states["day"].values.tolist() == [10, 11, 12, 13, 14]
    check(states.values, EXACT.mean, EXACT.variance)
    # Neighbours belong to one path.
    x = states.values.reshape(N, 5)
    assert np.corrcoef(x[:, 0], x[:, 1])[0, 1] > 0.1
    assert (found["effective_points"] > 10).all() and (found["reached_points"] > 2).all()


@pytest.mark.slow
def test_filtered_states_predictions_and_scores(model: pm.Model) -> None:
    states = apm.sample_states(AR, "y", kind="filtered", random_seed=2, model=model)
    ahead = apm.predict(AR, "y", random_seed=3, model=model)
    scores = ahead["log_score"].values.reshape(N, 5).cumsum(axis=1)
    for t in range(5):
        until = kalman(MISSING[: t + 1], 0.0, 1.0, A, 0.0, S**2, 0.64)
        check(states["filtered_posterior"].values[:, :, t], until.mean[-1:], until.variance[-1:])
        check_mean(np.exp(scores[:, t] - until.log_likelihood), 1.0)
        before = np.append(MISSING[:t], np.nan)
        exact = kalman(before, 0.0, 1.0, A, 0.0, S**2, 0.64)
        draws = ahead["predicted_observed"].values[:, :, t]
        check(draws, exact.mean[-1:], exact.variance[-1:] + 0.64)


def test_forecast(model: pm.Model) -> None:
    found = apm.forecast(AR, "y", periods=3, random_seed=4, model=model)
    ahead = kalman(np.append(MISSING, [np.nan] * 3), 0.0, 1.0, A, 0.0, S**2, 0.64)
    check(found["forecast_latent"].values, ahead.mean[5:], ahead.variance[5:])
    check(found["forecast_observed"].values, ahead.mean[5:], ahead.variance[5:] + 0.64)
    assert found["day"].values.tolist() == [15, 16, 17]


def test_that_weights_matter_is_noticed(monkeypatch: Any) -> None:
    """Filtered states are drawn as if particles had none."""
    from pymc_apm.estimators.states import particle_draws

    monkeypatch.setattr(
        particle_draws, "draw_index", lambda logs, v: min(int(v * logs.size), logs.size - 1)
    )
    with interpreted():
        model = autoregression()
        found = apm.sample_states(AR, "y", kind="filtered", random_seed=2, model=model)
    until = kalman(MISSING[:2], 0.0, 1.0, A, 0.0, S**2, 0.64)
    with pytest.raises(AssertionError):
        check(found["filtered_posterior"].values[:, :, 1], until.mean[-1:], until.variance[-1:])


def test_series_have_their_own_states() -> None:
    series = np.array(["b", "a", "b", "a", "b"])
    with interpreted():
        model = autoregression(np.array([0.3, -0.5, 1.2, 0.7, -0.1]), series=series)
        states = apm.sample_states(AR, "y", random_seed=5, model=model)
        ahead = apm.forecast(AR, "y", periods=2, draws=3, model=model)
    assert ahead["forecast_observed"].dims == ("chain", "draw", "series", "day")
    for label, y in (("b", [0.3, 1.2, -0.1]), ("a", [-0.5, 0.7])):
        exact = kalman(np.array(y), 0.0, 1.0, A, 0.0, S**2, 0.64)
        own = states["smoothed_posterior"].values[:, :, label == series]
        check(own, exact.mean, exact.variance)


@pytest.mark.slow
def test_categories_are_those_of_the_forward_backward_algorithm() -> None:
    idata, model = run(2000, sd=0.6), hidden_markov(points=60)
    states = apm.sample_states(idata, "y", random_seed=6, model=model)
    ahead = apm.forecast(idata, "y", periods=2, random_seed=7, model=model)
    longer = np.append(SEEN, [np.nan] * 2)
    total = hidden_markov_log_likelihood(0.6)
    for t in range(6):
        mean = np.exp(hidden_markov_log_likelihood(0.6, longer, tilt=t) - total)
        found = states["smoothed_posterior"] if t < 4 else ahead["forecast_latent"]
        check_mean(found.values[:, :, t % 4], mean)


@pytest.mark.slow
def test_an_epidemic_with_substeps_is_that_of_the_forward_algorithm() -> None:
    idata, model = run(2000, beta=1.3), sir(points=60)
    states = apm.sample_states(idata, "cases", random_seed=8, model=model)
    ahead = apm.forecast(idata, "cases", periods=2, random_seed=9, model=model)
    scores = apm.predict(idata, "cases", random_seed=10, model=model)["log_score"].values
    longer = np.append(CASES, [np.nan] * 2)
    total = sir_log_likelihood(1.3)
    check_mean(np.exp(scores.sum(axis=-1) - total), 1.0)
    # The forward algorithm takes seconds: not all times and states.
    for t, place in ((1, 1), (3, 2), (6, 2)):
        mean = np.exp(sir_log_likelihood(1.3, longer[: max(t + 1, 5)], tilt=(t, place)) - total)
        found = states["smoothed_posterior"] if t < 5 else ahead["forecast_latent"]
        check_mean(found.values[:, :, t % 5, place], mean)
    check_mean(ahead["forecast_observed"].values[:, :, 1], 0.7 * mean + 0.1)
    assert states["state"].values.tolist() == ["S", "I", "new"]


def test_fixed_vectors_and_counts_of_what_states_are() -> None:
    """A start that is no draw, of a vector; and data that are binomial, of a state that is not."""
    with interpreted(), pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        apm.estimators.state_space(
            "y",
            np.array([2.0, np.nan, 3.0]),
            initial=np.array([5.0, 1.0]),
            transition=lambda x: x + pt.stack([1.0, pm.Poisson.dist(1.0)]),
            observation=lambda x: pm.Binomial.dist(x[0], p),
            method="particles",
            points=5,
        )
        found = apm.predict(run(20, p=0.5), "y", random_seed=1, model=model)
        states = apm.sample_states(run(20, p=0.5), "y", random_seed=1, model=model)
    assert (found["predicted_observed"].values[..., 2] <= 7).all()
    assert (states["smoothed_posterior"].values[..., 0] == [5.0, 6.0, 7.0]).all()


def test_several_states_and_vectors_of_data() -> None:
    with interpreted(), pm.Model() as model:
        a = pm.Uniform("a", -1, 1)
        apm.estimators.state_space(
            "y",
            PAIRS,
            initial=pm.MvNormal.dist(np.zeros(2), np.eye(2)),
            transition=lambda x: pm.MvNormal.dist(a * x, np.eye(2)),
            observation=lambda x: pm.Normal.dist(x, 0.8),
            method="particles",
            points=20,
        )
        found = apm.predict(run(4, a=0.5), "y", model=model)
        states = apm.sample_states(run(4, a=0.5), "y", model=model)
    assert found["predicted_observed"].shape == (2, 2, 5, 2)
    assert states["state"].values.tolist() == ["x[0]", "x[1]"]


def test_states_of_an_estimate_that_is_zero_are_an_error_in_words() -> None:
    with interpreted(), pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        apm.estimators.state_space(
            "y",
            np.array([9.0, 9.0]),
            initial=3,
            transition=lambda x: x + pm.Poisson.dist(0.1),
            observation=lambda x: pm.Binomial.dist(x, p),
            points=3,
        )
        with pytest.raises(EstimatorError, match="give more points"):
            apm.sample_states(run(2, p=0.5), "y", model=model)
