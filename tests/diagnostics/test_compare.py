import time
import warnings

import arviz
import numpy as np
import pytest
from scipy.signal import lfilter

import pymc_apm as apm
from pymc_apm.errors import ModelError
from tests.diagnostics.runs import CONTAINERS, as_idata, in_container, sampled


@pytest.fixture(scope="module")
def runs():
    return {name: sampled(name) for name in ("PM MH", "SS+SS")}


def quietly(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return apm.compare(*arguments, **options)


def number(value):
    return float(np.squeeze(value))


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_table_is_what_arviz_says(runs, container):
    table = quietly({name: in_container(idata, container) for name, idata in runs.items()})
    assert list(table.index) == ["PM MH", "SS+SS"]
    for name, idata in runs.items():
        row = table.loc[name]
        theta = np.moveaxis(idata.posterior["theta"].values, -1, 0)
        bulk = [number(arviz.ess(x)) for x in theta]
        assert (row["chains"], row["draws"]) == (2, 3000)
        assert row["cost"] == int(idata.sample_stats["n_evals"].sum())
        assert row["acceptance"] == pytest.approx(float(idata.sample_stats["accepted"].mean()))
        assert row["u_acceptance"] == pytest.approx(float(idata.sample_stats["u_accepted"].mean()))
        assert row["ess_bulk"] == pytest.approx(min(bulk))
        tails = [number(arviz.ess(x, method="tail", prob=(0.05, 0.95))) for x in theta]
        assert row["ess_tail"] == pytest.approx(min(tails))
        assert row["ess_per_cost"] == pytest.approx(min(bulk) / row["cost"])
        assert row["rhat"] == pytest.approx(max(number(arviz.rhat(x)) for x in theta))
        assert row["worst"] == f"theta[{np.argmin(bulk)}]"
        assert row["mcse"] == pytest.approx(number(arviz.mcse(theta[np.argmin(bulk)])))


def test_what_stuck_and_for_how_long(runs):
    with pytest.warns(UserWarning, match="PM MH: theta did not move"):
        table = apm.compare(runs)
    assert table["stuck"].tolist() == ["theta, u", ""]
    assert table.loc["PM MH", "longest_run"] > 100
    assert table.loc["SS+SS", ["longest_run", "longest_run_u"]].tolist() == [0, 0]


def test_no_warning_where_nothing_sticks(runs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apm.compare({"SS+SS": runs["SS+SS"]})


def test_costs(runs):
    idata = runs["SS+SS"]
    stats = idata.sample_stats
    assert quietly(idata, cost="n_theta_evals")["cost"].item() == int(stats["n_theta_evals"].sum())
    assert quietly(idata, cost="time")["cost"].item() == idata.posterior.attrs["sampling_time"]
    assert quietly(idata, cost="n_random")["cost"].item() == int(stats["n_random"].sum())


def test_leapfrog_steps_of_nuts_are_evaluations():
    x = np.random.default_rng(1).random((2, 100))
    stats = {"n_evals": np.full((2, 100), 2), "n_steps": np.full((2, 100), 3.0)}
    assert quietly(as_idata({"x": x}, stats))["cost"].item() == 1000


def test_acceptance_where_it_is_not_recorded():
    x = np.repeat(np.arange(50.0), 2)[None]
    stats = {"n_evals": np.ones((1, 100))}
    row = quietly(as_idata({"x": x}, stats)).iloc[0]
    assert row["acceptance"] == pytest.approx(49 / 99)
    assert np.isnan(row["u_acceptance"]) and np.isnan(row["longest_run_u"])
    stats["acceptance_rate"] = np.full((1, 100), 0.8)
    assert quietly(as_idata({"x": x}, stats)).iloc[0]["acceptance"] == pytest.approx(0.8)


def test_one_chain_has_no_rhat():
    idata = as_idata(
        {"x": np.random.default_rng(1).random((1, 100))}, {"n_evals": np.ones((1, 100))}
    )
    row = quietly({"one": idata}).loc["one"]
    assert np.isnan(row["rhat"])
    assert row["ess_bulk"] > 50


def test_too_few_draws_for_arviz():
    idata = as_idata({"x": np.random.default_rng(1).random((2, 3))}, {"n_evals": np.ones((2, 3))})
    assert np.isnan(quietly(idata)["ess_bulk"].item())


def test_by_variable(runs):
    table = quietly(runs, by_variable=True)
    assert table.shape[0] == 16
    assert table.loc[("SS+SS", "theta[3]"), "ess_bulk"] == pytest.approx(
        number(arviz.ess(runs["SS+SS"].posterior["theta"].values[..., 3]))
    )


def test_variables_and_coords(runs):
    table = quietly(runs, var_names="theta", coords={"theta_dim_0": [2]}, by_variable=True)
    assert table.index.get_level_values("variable").tolist() == ["theta[2]", "theta[2]"]


def test_only_what_all_runs_have():
    rng = np.random.default_rng(1)
    stats = {"n_evals": np.ones((1, 50))}
    first = as_idata({"x": rng.random((1, 50)), "y": rng.random((1, 50))}, stats)
    second = as_idata({"z": rng.random((1, 50)), "x": rng.random((1, 50))}, stats)
    assert set(quietly({"a": first, "b": second})["worst"]) == {"x"}


X = as_idata({"x": np.ones((1, 9))}, {"n_evals": np.ones((1, 9)), "name": np.full((1, 9), "a")})
Y = as_idata({"y": np.ones((1, 9))})


@pytest.mark.parametrize(
    "runs, options, message",
    [
        ({}, {}, "nothing to compare"),
        (7, {}, "InferenceData or a DataTree"),
        ({1: X}, {}, "named by strings, got the key 1"),
        ({"a": X, "b": "file.nc"}, {}, "The run 'b': .* but got builtins.str"),
        ({"a": X, "b": Y}, {}, "no variable in common"),
        ({"a": X, "b": Y}, {"var_names": "x"}, "no variable 'x'; it has 'y'"),
        (X, {"cost": "n_cubic"}, "one of n_evals; got 'n_cubic'"),
        (X, {"cost": "name"}, "a statistic that is a number"),
        (X, {"cost": 3}, "must be the name of a statistic"),
        (Y, {}, "the run has none"),
        (X, {"cost": "time"}, "needs the attribute sampling_time"),
        (as_idata({"x": np.ones((1, 9))}, {"n_evals": np.zeros((1, 9))}), {}, "adds up to 0"),
    ],
)
def test_bad_input(runs, options, message):
    with pytest.raises(ModelError, match=message):
        apm.compare(runs, **options)


def autoregressive(rng, shape, correlation):
    """Return correlated draws with the shape (chain, draw, element)."""
    noise = np.sqrt(1 - correlation**2) * rng.standard_normal(shape)
    return lfilter([1.0], [1.0, -correlation], noise, axis=1)


@pytest.mark.slow
def test_a_large_run_takes_less_than_five_seconds():
    """4 chains of 100,000 draws of 5 parameters that move rarely and slowly."""
    rng = np.random.default_rng(1)
    theta = np.repeat(autoregressive(rng, (4, 25_000, 5), 0.995), 4, axis=1)
    moved = (np.arange(100_000) % 4 == 0).astype(float)
    stats = {"n_evals": np.ones((4, 100_000), int), "u_accepted": np.tile(moved, (4, 1))}
    idata = as_idata({"theta": theta}, stats)
    for work in (apm.sticking, apm.compare):
        start = time.process_time()
        work(idata)
        assert time.process_time() - start < 5.0
