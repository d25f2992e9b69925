"""Expectations from draws with signs: what they are, how certain, who refuses to ignore them."""

import numpy as np
import pytest
from scipy import stats

import pymc_apm as apm
from pymc_apm.diagnostics.problems import problems
from pymc_apm.errors import ModelError
from tests.diagnostics.runs import CONTAINERS, as_idata

# Draws x ~ N(0, 1) with P(sign = -1 | x) = p(x) stand for a posterior with the density
# N(x | 0, 1) (1 - 2 p(x)), up to a constant.
GRID = np.linspace(-9.0, 9.0, 20_001)


def negative(x):
    return 0.3 / (1.0 + np.exp(-2.0 * x))


WEIGHTS = stats.norm.pdf(GRID) * (1.0 - 2.0 * negative(GRID))
WEIGHTS /= WEIGHTS.sum()
MEAN = float((WEIGHTS * GRID).sum())
SD = float(np.sqrt((WEIGHTS * (GRID - MEAN) ** 2).sum()))


def made_up(rng, shape=(2, 2000), container=CONTAINERS[0]):
    x = rng.standard_normal(shape)
    sign = np.where(rng.random(shape) < negative(x), -1.0, 1.0)
    values = {"x": x, "xy": np.stack([x, rng.standard_normal(shape)], axis=-1)}
    counts = {"n_evals": np.ones(shape), "log_estimate": np.zeros(shape), "sign": sign}
    return as_idata(values, counts, container)


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_table_has_the_numbers_of_the_posterior(container):
    found = apm.signed(made_up(np.random.default_rng(1), (4, 50_000), container))
    row = found.table.loc["x"]
    assert abs(row["mean"] - MEAN) < 4 * row["mcse_mean"]
    assert abs(row["sd"] - SD) < 4 * row["mcse_sd"]
    below = np.cumsum(WEIGHTS)
    for probability in (0.05, 0.5, 0.95):
        expected = GRID[np.searchsorted(below, probability)]
        assert row[f"{100 * probability:g}%"] == pytest.approx(expected, abs=0.03)
    assert list(found.table.index) == ["x", "xy[0]", "xy[1]"]
    assert found.n_effective == pytest.approx(200_000 * found.mean_sign**2)
    assert found.warnings == []
    assert "Mean sign 0.699" in repr(found)
    assert "<table" in found._repr_html_()
    # The mean of the draws themselves is 0, which is far from it.
    assert abs(MEAN) > 20 * row["mcse_mean"]


def test_standard_errors_are_those_of_repeated_runs():
    rng = np.random.default_rng(2)
    scores = []
    for _ in range(250):
        row = apm.signed(made_up(rng, (2, 400)), "x").table.loc["x"]
        scores.append([(row["mean"] - MEAN) / row["mcse_mean"], (row["sd"] - SD) / row["mcse_sd"]])
    # The sd of 250 normal numbers has a standard error of 0.045.
    np.testing.assert_allclose(np.std(scores, axis=0), 1.0, atol=4 * 0.045)
    np.testing.assert_allclose(np.mean(scores, axis=0), 0.0, atol=4 * 0.07)


def test_standard_errors_know_of_autocorrelation():
    rng = np.random.default_rng(3)
    once, often = made_up(rng, (2, 500)), None
    values = {"x": np.repeat(once.posterior["x"].values, 10, axis=1)}
    counts = {"sign": np.repeat(once.sample_stats["sign"].values, 10, axis=1)}
    often = as_idata(values, counts)
    errors = [apm.signed(idata).table.loc["x", "mcse_mean"] for idata in (once, often)]
    assert errors[1] == pytest.approx(errors[0], rel=0.25)


def test_expectations_of_functions():
    found = apm.signed(made_up(np.random.default_rng(4), (2, 20_000)))
    mean, mcse = found.expectation(lambda posterior: posterior["x"] > 0)
    assert abs(mean - WEIGHTS[GRID > 0].sum()) < 4 * mcse
    whole = found.expectation(lambda posterior: posterior["xy"])
    np.testing.assert_allclose(whole.mean, found.table.loc[["xy[0]", "xy[1]"], "mean"])
    np.testing.assert_allclose(whole.mcse, found.table.loc[["xy[0]", "xy[1]"], "mcse_mean"])
    with pytest.raises(ModelError, match="dimensions chain and draw"):
        found.expectation(lambda posterior: posterior["x"].mean())
    with pytest.raises(ModelError, match="an array of xarray"):
        found.expectation(lambda posterior: posterior)


def test_quantiles_do_not_depend_on_the_order_of_draws_that_are_the_same():
    """Half of the draws at 0 are negative, so that all of the posterior is at 1."""
    k = np.repeat([[0, 0, 1]], 100, axis=1)
    sign = np.repeat([[1.0, -1.0, 1.0]], 100, axis=1)
    found = apm.signed(as_idata({"k": k}, {"sign": sign}))
    assert (found.table.loc["k", ["5%", "50%", "95%"]] == 1.0).all()


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_resampled_is_the_posterior(container):
    found = apm.signed(made_up(np.random.default_rng(5), (2, 10_000), container), "x")
    kept = found.resample(random_seed=1)
    x = kept["posterior"]["x"].values
    assert x.shape == (1, int(found.sign.sum()))
    assert kept["posterior"]["xy"].dims[:2] == ("chain", "draw")
    # Far from that of all draws, and of those with a positive sign; near to what it should be.
    distances = [
        stats.kstest(draws, lambda at: np.interp(at, GRID, np.cumsum(WEIGHTS))).statistic
        for draws in (x.ravel(), found._posterior["x"].values.ravel())
    ]
    assert distances[0] < 0.02
    assert distances[1] > 0.06


def test_a_mean_sign_near_zero_is_a_warning():
    rng = np.random.default_rng(6)
    shape = (2, 1000)
    sign = np.where(rng.random(shape) < 0.48, -1.0, 1.0)
    idata = as_idata({"x": rng.standard_normal(shape)}, {"sign": sign})
    with pytest.warns(UserWarning, match="positive and negative draws cancel"):
        apm.signed(idata)
    with pytest.warns(UserWarning, match="has a negative mean"):
        apm.signed(as_idata({"x": rng.standard_normal(shape)}, {"sign": -np.ones(shape)}))
    few = as_idata({"x": rng.standard_normal((2, 3))}, {"sign": np.ones((2, 3))})
    assert np.isnan(apm.signed(few).table.loc["x", "mcse_mean"])
    nothing = as_idata({"x": rng.standard_normal((2, 8))}, {"sign": np.tile([1.0, -1.0], (2, 4))})
    with pytest.warns(UserWarning, match="cancel"):
        found = apm.signed(nothing)
    assert np.isnan(found.table.loc["x", "mean"])
    with pytest.raises(ModelError, match="nothing left to show"):
        found.resample()


def test_summaries_refuse_to_ignore_signs():
    idata = made_up(np.random.default_rng(7))
    for refuse in (apm.compare, lambda run: apm.compare({"a": run}), apm.plot_cost_autocorr):
        with pytest.raises(ModelError, match="have a negative sign"):
            refuse(idata)
    with pytest.raises(ModelError, match="have a negative sign"):
        apm.plot_compare({"a": idata})
    with pytest.raises(ModelError, match="have a negative sign"):
        apm.plot_acceptance({0.1: idata})
    with pytest.warns(UserWarning, match="have a negative sign"):
        found = apm.sticking(idata)
    assert not found.table["stuck"].any()
    (text,) = problems(idata)
    assert "averages of the draws" in text
    assert "apm.signed" in text


def test_a_run_whose_signs_are_all_positive_is_as_any_other():
    rng = np.random.default_rng(8)
    counts = {"n_evals": np.ones((2, 100)), "log_estimate": np.zeros((2, 100))}
    idata = as_idata({"x": rng.standard_normal((2, 100))}, counts | {"sign": np.ones((2, 100))})
    assert apm.compare(idata).loc["run", "draws"] == 200
    assert problems(idata) == []
    found = apm.signed(idata).table.loc["x"]
    draws = idata.posterior["x"].values
    assert found["mean"] == pytest.approx(draws.mean())
    assert found["sd"] == pytest.approx(draws.std())


def test_signs_of_other_draws_are_refused():
    idata = as_idata({"x": np.zeros((2, 10))}, {"sign": np.ones((2, 5))})
    with pytest.raises(ModelError, match="select from both groups alike"):
        apm.signed(idata)
