"""A filter in segments of time is the same function of its numbers, and begins where one moved."""

import logging
from typing import Any

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm._compat import dataset_of
from pymc_apm.density.target import Target
from pymc_apm.errors import ModelError
from pymc_apm.estimators.states import segments
from tests.modes import interpreted
from tests.state_space.particle_models import ar, sir
from tests.state_space.test_guided import ar as guided


@pytest.fixture(autouse=True)
def in_python() -> Any:
    with interpreted():
        yield


def log_estimate(model: pm.Model, u: np.ndarray, point: dict[str, float]) -> Any:
    us = [v for v in model.data_vars if hasattr(v.tag, "apm_randomness")]
    for variable in us:
        own, u = u[: variable.type.shape[0]], u[variable.type.shape[0] :]
        variable.set_value(own)
    assert u.size == 0
    with apm.clamped(model):
        return model.compile_logp(model.potentials[0])(
            {name: np.asarray(value) for name, value in point.items()}
        )


@pytest.mark.parametrize(
    ("make", "point"),
    [
        (ar, {"a": 0.8, "s": 1.0}),
        (sir, {"beta_log__": 0.3}),
        (lambda **given: guided("proposal", "lookahead", **given), {"a": 0.8, "s": 1.0}),
    ],
    ids=["bootstrap", "simulator", "guided"],
)
@pytest.mark.parametrize("n", [2, 5])
def test_it_is_the_same_function_of_its_numbers(make: Any, point: Any, n: int) -> None:
    whole, pieces = make(), make(segments=n)
    (u,) = [v for v in whole.data_vars if hasattr(v.tag, "apm_randomness")]
    assert len(pieces.data_vars) == n
    rng = np.random.default_rng(1)
    for _ in range(3):
        numbers = rng.standard_normal(u.type.shape)
        expected = log_estimate(whole, numbers, point)
        assert np.isfinite(expected)
        np.testing.assert_array_equal(log_estimate(pieces, numbers, point), expected)


def test_what_is_before_the_piece_that_moved_is_not_computed_again(monkeypatch: Any) -> None:
    seen: list[int] = []
    original = segments.FilterSegment.perform

    def perform(op: Any, *others: Any) -> None:
        seen.append(op.start)
        original(op, *others)

    monkeypatch.setattr(segments.FilterSegment, "perform", perform)
    model = ar(segments=5)
    target = Target(model, model.value_vars, model.initial_point())
    rng = np.random.default_rng(1)
    us = {u.name: u.tag.apm_randomness.draw(rng) for u in target.randomness}
    theta = target.layout.ravel({"a": np.array(0.8), "s": np.array(1.0)})
    evaluation = target.start({":theta": theta, ":rest": np.zeros(0)} | us)
    seen.clear()
    target.along("y_u_3")(us["y_u_3"] + 0.1, evaluation)
    assert seen == [3, 4]
    assert not target.own_updates


def test_a_run_moves_all_of_them_and_records_states() -> None:
    with sir(segments=2, record_states=True) as model:
        idata = pm.sample(15, tune=5, chains=1, progressbar=False, random_seed=1)
    stats = dataset_of(idata, "sample_stats")
    assert (stats["u_accepted"] > 0.0).any()
    paths = stats["cases_states"].values
    assert paths.shape == (1, 15, 5, 3) and np.isfinite(paths).all()
    assert (paths[..., 0] + paths[..., 1] <= 10.0).all()  # a path of that epidemic
    drawn = apm.sample_states(idata, "cases", kind="filtered", draws=3, model=model)
    assert np.isfinite(drawn["filtered_posterior"].values).all()


def test_zero_stays_zero() -> None:
    with pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        apm.estimators.state_space(
            "y",
            np.array([9.0, 1.0, 1.0]),
            initial=3,
            transition=lambda x: x + pm.Poisson.dist(0.1),
            observation=lambda x: pm.Binomial.dist(x, p),
            method="particles",
            points=3,
            segments=3,
        )
    numbers = np.random.default_rng(1).standard_normal((3, 2, 3))
    assert log_estimate(model, numbers, {"p_logodds__": 0.0}) == -np.inf


def test_what_makes_no_sense_is_refused(caplog: Any) -> None:
    with pytest.raises(ModelError, match="5 rows"):
        ar(segments=6)
    with pytest.raises(ModelError, match="one series"):
        ar(segments=2, series=np.array([0, 0, 1, 1, 1]))
    with pytest.raises(ModelError, match="segments"):
        ar(segments=0)
    with caplog.at_level(logging.INFO, "pymc.apm"):
        ar(segments=2)
    assert "leave segments out" in caplog.text
