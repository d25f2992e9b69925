"""Paths of the states that are recorded with draws: exact, with very few points and particles."""

from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from pymc.model.fgraph import clone_model

import pymc_apm as apm
from pymc_apm._compat import dataset_of, result_of
from pymc_apm.errors import ModelError
from tests.modes import interpreted
from tests.state_space.truth import kalman
from tests.statistical.checks import assert_exact, assert_not_exact, z_scores_of_run

Y = np.array([1.9, np.nan, 0.2, -1.1, -2.5, np.nan, -0.4, 1.3, 2.2, 0.1])
ERROR = 0.5


def autoregression(kind: str, points: int, **options: Any) -> pm.Model:
    """Return AR(1) plus noise; of the three kinds a simulator has no density."""
    with pm.Model() as model:
        a, s = pm.Uniform("a", 0, 1), pm.HalfNormal("s", 1)

        def transition(x: Any) -> Any:
            if kind != "simulator":
                return pm.Normal.dist(a * x, s)
            return a * x + pm.Normal.dist(0, 0.6 * s) + pm.Normal.dist(0, 0.8 * s)

        apm.estimators.state_space(
            "y",
            Y,
            initial=pm.Normal.dist(0, 1),
            transition=transition,
            observation=lambda x: pm.Normal.dist(x, ERROR),
            method="pool" if kind == "pool" else "particles",
            points=points,
            **{"record_states": True} | options,
        )
    return model


def exact() -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance of each state, over the posterior of the parameters."""
    weights, firsts, seconds = [], [], []
    for a in np.linspace(0.005, 0.995, 60):
        for s in np.linspace(0.02, 4.0, 90):
            smoothed = kalman(Y, 0.0, 1.0, a, 0.0, s**2, ERROR**2)
            weights.append(smoothed.log_likelihood - 0.5 * s**2)
            firsts.append(smoothed.mean)
            seconds.append(smoothed.variance + smoothed.mean**2)
    w = np.exp(np.array(weights) - max(weights))
    first, second = (w @ np.array(moments) / w.sum() for moments in (firsts, seconds))
    return first, second - first**2


SETTINGS = {"tune": 400, "cores": 1, "chains": 2, "progressbar": False, "random_seed": 3}


def scores(kind: str, points: int, draws: int) -> np.ndarray:
    with autoregression(kind, points):
        idata = pm.sample(draws, **SETTINGS)
        states = apm.sample_states(idata, "y")["smoothed_posterior"]
    return z_scores_of_run(states.values, *exact())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "points", "draws"),
    [("pool", 4, 1500), ("particles", 5, 3000), ("simulator", 12, 3000)],
)
def test_recorded_states_are_exact(kind: str, points: int, draws: int) -> None:
    assert_exact(scores(kind, points, draws), 4.0)


@pytest.mark.slow
def test_that_u_is_that_of_the_chain_matters(monkeypatch: Any) -> None:
    """Paths from filters of so few particles with random numbers of their own are not exact."""
    from pymc_apm.steps import recording

    rng = np.random.default_rng(1)
    monkeypatch.setattr(recording, "get_shared", lambda u: rng.standard_normal(u.type.shape))
    assert_not_exact(scores("particles", 5, 3000))


QUICK: Any = {"draws": 6, "tune": 3, "chains": 2, "cores": 1, "progressbar": False}


def quick_run(model: pm.Model, **options: Any) -> Any:
    with model:
        return pm.sample(**QUICK | {"random_seed": 2} | options)


@pytest.fixture(params=["pool", "particles", "simulator"])
def kind(request: Any) -> Any:
    with interpreted():
        yield request.param


def test_paths_are_statistics_and_leave_the_chain_as_it_is(kind: str) -> None:
    model = autoregression(kind, 5)
    idata = quick_run(model)
    paths = dataset_of(idata, "sample_stats")["y_states"].values
    assert paths.shape == (2, 6, 10, 1) and np.isfinite(paths).all()
    assert np.unique(paths).size > 20
    states = apm.sample_states(idata, "y", draws=3, model=model)["smoothed_posterior"]
    np.testing.assert_array_equal(states.values, paths[:, [0, 2, 5]])
    stats, draws = (dataset_of(idata, group) for group in ("sample_stats", "posterior"))
    thinned = result_of({"posterior": draws.isel(draw=[1, 4]), "sample_stats": stats})
    states = apm.sample_states(thinned, "y", model=model)["smoothed_posterior"]
    np.testing.assert_array_equal(states.values, paths[:, [1, 4]])
    other = quick_run(autoregression(kind, 5, record_states=False))
    assert "y_states" not in dataset_of(other, "sample_stats")
    a, b = (dataset_of(one, "posterior")["a"].values for one in (idata, other))
    np.testing.assert_array_equal(a, b)
    filtered = apm.sample_states(idata, "y", kind="filtered", model=model)
    assert "effective_points" in filtered


@pytest.mark.slow
@pytest.mark.in_python
def test_copies_and_two_cores_record_the_same(kind: str) -> None:
    model = autoregression(kind, 5)
    first = dataset_of(quick_run(model), "sample_stats")["y_states"].values
    copies = [cloudpickle.loads(cloudpickle.dumps(model))]
    found = [quick_run(model, cores=2), *map(quick_run, copies)]
    for idata in found:
        paths = dataset_of(idata, "sample_stats")["y_states"].values
        np.testing.assert_array_equal(paths, first)


def test_copies_of_a_model_with_other_variables() -> None:
    with interpreted():
        model = autoregression("particles", 5)
        for copy in (clone_model(model), pm.do(model, {"a": 0.5})):
            stats = dataset_of(quick_run(copy), "sample_stats")
            has_paths = "y_states" in stats
            assert has_paths == hasattr(copy["y"].tag, "apm_states")
            if has_paths:
                assert np.isfinite(stats["y_states"].values).all()


def test_series_and_several_states_are_in_the_order_of_the_data() -> None:
    """What is seen without noise tells which row is which."""
    series = np.array(["b", "a", "b", "a"])
    data = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])
    with interpreted(), pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            data,
            series=series,
            initial=pm.Normal.dist(data[0] + [0.5, 5.0], [1.0, 10.0]),
            transition=lambda x: pm.Normal.dist(x + np.array([2.0, 20.0]), s + 0.1),
            observation=lambda x: pm.Normal.dist(x, 0.3),
            method="particles",
            points=40,
            record_states=True,
        )
        paths = dataset_of(quick_run(model), "sample_stats")["y_states"].values
    assert np.abs(paths.mean(axis=(0, 1)) - data).max() < 1.0


@pytest.mark.slow
@pytest.mark.in_python
def test_the_step_that_records_has_to_be_the_last() -> None:
    with interpreted():
        model = autoregression("pool", 16)
        with pytest.raises(ModelError, match="records the states of y"):
            quick_run(model, step=[apm.APMIndependenceU(model=model), pm.NUTS(model=model)])
        steps = [pm.NUTS(model=model), apm.APMIndependenceU(model=model)]
        paths = dataset_of(quick_run(model, step=steps), "sample_stats")["y_states"].values
    assert paths.shape == (2, 6, 10, 1) and np.isfinite(paths).all()


def test_of_several_steps_that_move_u_the_last_one_counts() -> None:
    with interpreted():
        model = autoregression("particles", 5)
        a, s = model["a"], model["s"]
        steps = [apm.APMSlice([a], model=model), apm.APMSlice([s], model=model)]
        idata = quick_run(model, step=steps)
        states = apm.sample_states(idata, "y", model=model)
        paths = dataset_of(idata, "sample_stats")["y_states"].values
    assert paths.shape == (2, 6, 10, 1, 2)
    np.testing.assert_array_equal(states["smoothed_posterior"].values, paths[..., 1])


def test_a_store_has_them_too(tmp_path: Any) -> None:
    with interpreted(), autoregression("particles", 5):
        idata = apm.sample(store=tmp_path / "run", **QUICK, random_seed=2)
        states = apm.sample_states(idata, "y")
    assert np.isfinite(dataset_of(idata, "sample_stats")["y_states"].values).all()
    assert "effective_points" not in states


def test_paths_of_a_model_in_a_model() -> None:
    with interpreted(), pm.Model() as model:
        with pm.Model(name="inner"):
            a = pm.Uniform("a", 0, 1)
            apm.estimators.state_space(
                "y",
                Y[:3],
                initial=pm.Normal.dist(0, 1),
                transition=lambda x: pm.Normal.dist(a * x, 1),
                observation=lambda x: pm.Normal.dist(x, ERROR),
                method="particles",
                points=3,
                record_states=True,
            )
        idata = pm.sample(5, tune=5, chains=1, progressbar=False, random_seed=1)
        states = apm.sample_states(idata, "inner::y", model=model)
    recorded = dataset_of(idata, "sample_stats")["inner::y_states"].values.astype(float)
    assert (states["smoothed_posterior"].values == recorded).all()
