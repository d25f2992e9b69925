"""States, forecasts and predictions against Kalman's smoother."""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from pymc.model.fgraph import clone_model

import pymc_apm as apm
from pymc_apm._compat import result_of
from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.dates import go_on
from tests.modes import interpreted
from tests.state_space.models import MISSING, TIMES, build
from tests.state_space.truth import kalman

pytestmark = [pytest.mark.slow, pytest.mark.in_python]

N = 1500
A, S = 0.7, 0.6
REFERENCE = {"a": 0.5, "s": 0.8}
Z = 4.5
"""Some 40 checks, with a false alarm rate of 7e-6 each."""


def run(**others: Any) -> Any:
    """Return a run whose parameters do not move."""
    values = {"a": np.full((2, N // 2), A), "s": np.full((2, N // 2), S)} | others
    dims = ("chain", "draw")
    coords = {"chain": np.arange(2), "draw": np.arange(N // 2)}
    return result_of({"posterior": xr.Dataset({k: (dims, v) for k, v in values.items()}, coords)})


EXACT = kalman(MISSING, 0.0, 1.0, A, 0.0, S**2, 0.64)


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return build("missing", points=16, reference=REFERENCE)


def check(draws: Any, mean: Any, variance: Any) -> None:
    draws = draws.reshape(-1, *draws.shape[2:])
    z = (draws.mean(axis=0) - mean) / np.sqrt(variance / N)
    assert (np.abs(z) < Z).all()
    # The variance of a variance of normal numbers is twice its square.
    z = (draws.var(axis=0) / variance - 1.0) / np.sqrt(2.0 / N)
    assert (np.abs(z) < Z).all()


def test_smoothed_states(model: pm.Model) -> None:
    found = apm.sample_states(run(), "y", random_seed=1, model=model)
    states = found["smoothed_posterior"]
    assert states.dims == ("chain", "draw", "time", "state")
    check(states.values[..., 0], EXACT.mean, EXACT.variance)
    # Neighbours belong to one path.
    x = states.values[..., 0].reshape(N, 5)
    gain = S**2 + A**2 * EXACT.variance[0]
    assert np.corrcoef(x[:, 0], x[:, 1])[0, 1] > 0.1 * gain
    assert (found["effective_points"] > 2).all() and (found["reached_points"] > 2).all()


def test_filtered_states(model: pm.Model) -> None:
    found = apm.sample_states(run(), "y", kind="filtered", random_seed=2, model=model)
    for t in range(5):
        until = kalman(MISSING[: t + 1], 0.0, 1.0, A, 0.0, S**2, 0.64)
        draws = found["filtered_posterior"].values[:, :, t, 0]
        check(draws[..., None], until.mean[-1:], until.variance[-1:])


def test_forecast(model: pm.Model) -> None:
    found = apm.forecast(run(), "y", periods=3, random_seed=3, model=model)
    longer = np.append(MISSING, [np.nan] * 3)
    ahead = kalman(longer, 0.0, 1.0, A, 0.0, S**2, 0.64)
    check(found["forecast_latent"].values[..., 0], ahead.mean[5:], ahead.variance[5:])
    check(found["forecast_observed"].values, ahead.mean[5:], ahead.variance[5:] + 0.64)
    assert found["time"].values.tolist() == [5.0, 6.0, 7.0]


def test_predictions_and_scores(model: pm.Model) -> None:
    found = apm.predict(run(), "y", random_seed=4, model=model)
    scores = found["log_score"].values.reshape(N, 5)
    np.testing.assert_allclose(scores.sum(axis=1), EXACT.log_likelihood, atol=1e-2)
    assert (np.abs(scores[:, [0, 2]]) < 1e-2).all()  # nothing was observed there
    for t in range(5):
        before = MISSING[: t + 1].copy()
        before[t] = np.nan
        ahead = kalman(before, 0.0, 1.0, A, 0.0, S**2, 0.64)
        draws = found["predicted_observed"].values[:, :, t]
        check(draws[..., None], ahead.mean[-1:], ahead.variance[-1:] + 0.64)


def test_times_covariates_and_dims_of_a_forecast() -> None:
    with pm.Model(coords={"day": np.arange("2024-01-01", "2024-01-06", dtype="datetime64[D]")}):
        a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)
        from tests.state_space.models import with_times

        options = with_times(a, s)
        data = options.pop("data")
        apm.estimators.state_space("y", data, **options, dims="day", reference=REFERENCE)
        ahead = apm.forecast(
            run(), "y", times=[4.5, 6.0], covariates={"rain": [1.0, -1.0]}, random_seed=5
        )
        rain = np.append([1.0, -1.0, 0.5, 2.0, 0.0], [1.0, -1.0])
        noise = S**2 * np.diff(np.append(TIMES, [4.5, 6.0]), prepend=0.0)
        exact = kalman(np.append(data, [np.nan] * 2), 0.0, 1.0, A, 0.3 * rain, noise, 0.64)
        check(ahead["forecast_latent"].values[..., 0], exact.mean[5:], exact.variance[5:])
        assert apm.sample_states(run(), "y", draws=2)["day"].dtype.kind == "M"
        with pytest.raises(ModelError, match="values of rain"):
            apm.forecast(run(), "y", periods=2)
        with pytest.raises(ModelError, match="later than the last"):
            apm.forecast(run(), "y", times=[3.0], covariates={"rain": [1.0]})
        with pytest.raises(ModelError, match="either periods or times"):
            apm.forecast(run(), "y")


@pytest.mark.parametrize("method", ["pool", "particles"])
def test_data_are_those_of_the_model_at_hand(method: Any) -> None:
    """Observed variables have the values that were observed, and copies of a model other data."""
    with interpreted(), pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        shift = pm.Data("shift", np.zeros(3))
        level = pm.Normal("level", a, 1, observed=5.0)
        apm.estimators.state_space(
            "y",
            np.full(3, 5.0),
            initial=pm.Normal.dist(level, 0.3),
            transition=lambda x, shift: pm.Normal.dist(level + shift, 0.3),
            observation=lambda x: pm.Normal.dist(x, 9.0),
            covariates={"shift": shift},
            method=method,
            points=64,
        )
        idata = run()
        for copy in (model, clone_model(model), pm.do(model, {"shift": np.full(3, 0.4)})):
            with copy:
                if copy is not model:
                    pm.set_data({"shift": np.full(3, 0.4)})
                moved = 0.0 if copy is model else 0.4
                states = apm.sample_states(idata, "y", draws=150, random_seed=1)
                rows = states["smoothed_posterior"].values.mean(axis=(0, 1, 3))
                np.testing.assert_allclose(rows, 5.0 + np.array([0.0, moved, moved]), atol=0.12)
                seen = apm.predict(idata, "y", draws=150, random_seed=1)["predicted_observed"]
                assert seen.values.mean() == pytest.approx(5.0 + moved * 2 / 3, abs=2.0)
                ahead = apm.forecast(
                    idata, "y", periods=1, covariates={"shift": [2.0]}, draws=150, random_seed=1
                )
                assert ahead["forecast_latent"].values.mean() == pytest.approx(7.0, abs=0.12)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.arange(3), [3, 4]),
        (np.array([0, 1, 3]), None),
        (np.array(["a", "b", "c"]), None),
        (np.array(["1983", "1984", "1985"], dtype="M8[Y]"), ["1986", "1987"]),
        (
            np.array(["1983-03-01", "1984-03-01", "1985-03-01"], "M8[D]"),
            ["1986-03-01", "1987-03-01"],
        ),
        (
            np.array(["1984-01-31", "1984-02-29", "1984-03-31"], "M8[D]"),
            ["1984-04-30", "1984-05-31"],
        ),
        (
            np.array(["1984-10-01", "1984-11-01", "1984-12-01"], "M8[ns]"),
            ["1985-01-01", "1985-02-01"],
        ),
        (
            np.array(["1987-05-20", "1987-05-21", "1987-05-22"], "M8[us]"),
            ["1987-05-23", "1987-05-24"],
        ),
        (
            np.array(["1987-05-19", "1987-05-21", "1987-05-22"], "M8[D]"),
            ["1987-05-23", "1987-05-24"],
        ),
        (
            np.array(["1987-05-18", "1987-05-20", "1987-05-21", "1987-05-22"], "M8[us]"),
            ["1987-05-25", "1987-05-26"],
        ),
        (
            np.array(["2024-01-01", "2024-01-08", "2024-01-16"], "M8[D]"),
            ["2024-01-23", "2024-01-30"],
        ),
    ],
)
def test_labels_go_on(labels: Any, expected: Any) -> None:
    found = go_on(labels, 2)
    if expected is None:
        assert found is None
    else:
        assert found is not None and found.dtype == labels.dtype
        assert (found == np.array(expected, labels.dtype)).all()


def test_fractions_go_on_whatever_their_rounding() -> None:
    np.testing.assert_allclose(go_on(np.arange(8) * 0.1, 2), [0.8, 0.9])
    assert go_on(np.array([0.0, 0.1, 0.3]), 2) is None


def test_a_forecast_goes_on_by_the_month() -> None:
    """PyMC keeps the dates of pandas as objects."""
    with pm.Model(coords={"month": pd.date_range("2024-01-01", periods=5, freq="MS")}):
        s = pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            MISSING,
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: pm.Normal.dist(x, s),
            observation=lambda x: pm.Normal.dist(x, 0.8),
            dims="month",
            points=8,
            reference={"s": 0.6},
        )
        ahead = apm.forecast(run(), "y", periods=2, draws=2)
    assert (ahead["month"] == np.array(["2024-06", "2024-07"], "M8[ns]")).all()


def test_series() -> None:
    model = build("panel", points=16, reference=REFERENCE)
    states = apm.sample_states(run(), "y", random_seed=6, model=model)
    assert states["series"].values.tolist() == ["b", "a", "b", "a", "b"]
    from tests.state_space.models import SERIES, Y

    for code, label in enumerate(("a", "b")):
        exact = kalman(Y[label == SERIES], 0.0, 1.0, A, 0.5 * code, S**2, 0.64)
        own = states["smoothed_posterior"].values[..., 0][:, :, label == SERIES]
        check(own, exact.mean, exact.variance)
    ahead = apm.forecast(run(), "y", periods=2, draws=3, model=model)
    assert ahead["forecast_observed"].dims == ("chain", "draw", "series", "time")
    assert ahead["forecast_observed"].shape == (2, 3, 2, 2)
    assert ahead["time_ahead"].values.tolist() == [[2.0, 3.0], [3.0, 4.0]]
    axis = apm.plot_states(states.isel(row=SERIES == "b"), forecast=ahead.sel(series="b"))
    x = [line.get_xdata().tolist() for line in axis.get_lines()]
    assert x == [[0.0, 1.0, 2.0], [3.0, 4.0]]


def test_names_of_several_data_and_states() -> None:
    model = build("named", points=16, reference=REFERENCE)
    found = apm.predict(run(), "y", draws=2, model=model)
    assert found["predicted_observed"].shape == (2, 2, 5, 2)
    assert found["observed_state"].values.tolist() == ["first", "second"]
    states = apm.sample_states(run(), "y", draws=2, model=model)
    assert states["state"].values.tolist() == ["x", "v"]


def test_what_cannot_be(model: pm.Model) -> None:
    with pytest.raises(ModelError, match=r"no state-space model 'z'. There is: y"):
        apm.sample_states(run(), "z", model=model)
    with pytest.raises(ModelError, match="kind of sample_states"):
        apm.sample_states(run(), "y", kind="predicted", model=model)  # type: ignore[arg-type]
    heavy = build("heavy", points=8, reference=REFERENCE)
    with pytest.raises(ModelError, match="nothing can be drawn"):
        apm.predict(run(), "y", model=heavy)
    assert "forecast_observed" not in apm.forecast(run(), "y", periods=1, draws=2, model=heavy)


def test_figure(model: pm.Model) -> None:
    import matplotlib

    matplotlib.use("Agg")
    states = apm.sample_states(run(), "y", draws=20, model=model)
    ahead = apm.forecast(run(), "y", periods=3, draws=20, model=model)
    axis = apm.plot_states(states, forecast=ahead, data=MISSING)
    assert len(axis.collections) == 4  # two bands each
    with pytest.raises(ModelError, match="knows x"):
        apm.plot_states(states, state="z")
    with pytest.raises(ModelError, match=r"needs what apm.sample_states returned"):
        apm.plot_states(ahead)


def test_few_points_where_filtered_states_are_a_warning(caplog: Any) -> None:
    """First rows are missing: given all data states are known, given those before they are not."""
    with interpreted(), pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            np.array([np.nan, np.nan, 0.3, 0.5]),
            initial=pm.Normal.dist(0, 100),
            transition=lambda x: pm.Normal.dist(x, s),
            observation=lambda x: pm.Normal.dist(x, 0.5),
            points=16,
            reference={"s": S},
        )
        apm.sample_states(run(), "y", draws=50, random_seed=1, model=model)
        assert "in effect" not in caplog.text
        ahead = apm.predict(run(), "y", draws=50, random_seed=1, model=model)
    assert "in effect" in caplog.text
    assert ahead["effective_points"].shape == (2, 50)
