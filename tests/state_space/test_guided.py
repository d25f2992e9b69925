"""Guided and auxiliary particle filters, as users ask for them: unbiased, and more precise."""

import logging
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.density.target import Target
from pymc_apm.errors import ModelError
from tests.modes import interpreted
from tests.state_space.linear import Args, kalman
from tests.state_space.test_particles import (
    Z_BOUND,
    estimates,
    numbers_and_estimate,
    weighted_change,
    z_score,
)

Y = np.array([0.5, -1.2, np.nan, 0.3, 0.8])
POINT = {"a": 0.8, "s": 1.0}
REPETITIONS = 1500


@pytest.fixture(autouse=True)
def in_python() -> Any:
    with interpreted():
        yield


def ar(*asked: str, points: int = 4, y: Any = Y, **options: Any) -> pm.Model:
    """Return AR(1) plus noise, with a proposal that is not the best, a look-ahead, or both."""
    with pm.Model() as model:
        a, s = (
            pm.Uniform("a", -1, 1, default_transform=None),
            pm.HalfFlat("s", default_transform=None),
        )
        known: dict[str, Any] = {
            "proposal": lambda x, y: pm.Normal.dist(0.5 * a * x + 0.5 * y, 1.1 * s),
            "best": lambda x, y: pm.Normal.dist(
                (a * x / s**2 + y / 0.49) / (1 / s**2 + 1 / 0.49), (1 / s**2 + 1 / 0.49) ** -0.5
            ),
            "lookahead": lambda x, y, dt: -0.3 * dt * (y - a * x) ** 2,
        }
        given = {"proposal" if name == "best" else name: known[name] for name in asked}
        apm.estimators.state_space(
            "y",
            y,
            initial=lambda: pm.Normal.dist(0.0, s / pt.sqrt(1.0 - a**2)),
            transition=lambda x: pm.Normal.dist(a * x, s),
            observation=lambda x: pm.Normal.dist(x, 0.7),
            points=points,
            **{"method": "particles"} | given | options,
        )
    return model


BOTH = ("proposal", "lookahead")


@pytest.mark.slow
@pytest.mark.in_python
@pytest.mark.parametrize("points", [2, 4])
@pytest.mark.parametrize("asked", [BOTH[:1], BOTH[1:], BOTH])
def test_it_is_unbiased(asked: tuple[str, ...], points: int) -> None:
    logs = estimates(ar(*asked, points=points), POINT, REPETITIONS)
    assert abs(z_score(logs, kalman(Y, Args()))) < Z_BOUND


@pytest.mark.slow
@pytest.mark.in_python
def test_a_weight_without_the_proposal_is_noticed(monkeypatch: Any) -> None:
    from pymc_apm.estimators.states import particle_graphs

    monkeypatch.setattr(particle_graphs._Maker, "_guided_log_weights", lambda maker, logs: logs)
    logs = estimates(ar("proposal"), POINT, REPETITIONS)
    assert abs(z_score(logs, kalman(Y, Args()))) > 2.0 * Z_BOUND


@pytest.mark.slow
def test_a_look_ahead_that_is_not_taken_back_is_noticed(monkeypatch: Any) -> None:
    from pymc_apm.estimators.states import filter as filters

    original = filters.make_step

    def broken(model: Any) -> Any:
        step = original(model)
        return lambda first, before, ahead, *others: step(first, before, 0.0 * ahead, *others)

    monkeypatch.setattr(filters, "make_step", broken)
    logs = estimates(ar("lookahead"), POINT, REPETITIONS)
    assert abs(z_score(logs, kalman(Y, Args()))) > 2.0 * Z_BOUND


def test_the_best_proposal_makes_less_noise() -> None:
    y = np.array([2.0, -1.5, 1.0, 2.5, -2.0])
    noise = [estimates(ar(*asked, y=y, points=10), POINT, 150).std() for asked in ((), ("best",))]
    assert noise[1] < 0.8 * noise[0]


@pytest.mark.slow
def test_conditional_smc_leaves_the_target_invariant() -> None:
    z = weighted_change(ar(*BOTH), POINT, numbers_and_estimate, 1200)
    assert np.abs(z).max() < 4.8


def own_updates(model: pm.Model) -> Any:
    return Target(model, model.value_vars, model.initial_point()).own_updates


def test_a_proposal_that_cannot_be_inverted_says_so(caplog: Any) -> None:
    """It takes two draws, so that conditional SMC does not know which made what."""
    with caplog.at_level(logging.INFO, "pymc.apm"), pm.Model() as model:
        s = pm.HalfNormal("s")
        apm.estimators.state_space(
            "y",
            Y,
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: pm.Normal.dist(x, s),
            observation=lambda x: pm.Normal.dist(x, 0.7),
            proposal=lambda x, y: 0.5 * (x + y) + pm.Normal.dist(0, 2 * s),
            points=3,
        )
    assert not own_updates(model)
    assert "not by conditional SMC" in caplog.text
    assert np.isfinite(estimates(model, {"s_log__": 0.1}, 3)).all()
    assert own_updates(ar(*BOTH))


def test_series_and_dicts_of_data_have_their_own() -> None:
    """Series that are alike have estimates of one mean; data are asked for by their names."""
    with pm.Model() as model:
        s = pm.HalfFlat("s", default_transform=None)
        y = np.tile([0.5, -1.2, 0.3], 2)
        apm.estimators.state_space(
            "y",
            {"first": y, "second": y + 0.1},
            series=np.repeat([0, 1], 3),
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: pm.Normal.dist(x, s),
            observation=lambda x: {
                "first": pm.Normal.dist(x, 0.7),
                "second": pm.Normal.dist(x, 0.7),
            },
            proposal=lambda x, first, second: pm.Normal.dist(0.4 * x + 0.3 * (first + second), s),
            points=40,
        )
    logs = estimates(model, {"s": 1.0}, 200)
    # Two observations of one state are one of their mean, but for a constant.
    mean = y[:3] + 0.05
    constant = 3 * (-0.5 * np.log(2 * np.pi * 0.49 * 2) - 0.5 * 0.1**2 / (2 * 0.49))
    from tests.state_space.truth import kalman as exact

    truth = exact(mean, 0.0, 1.0, 1.0, 0.0, 1.0, 0.245).log_likelihood + constant
    assert (np.abs(np.exp(logs - truth).mean(axis=0) - 1.0) < 0.2).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proposal": lambda x, z: pm.Normal.dist(x, 1.0)}, "asks for z"),
        ({"proposal": lambda x: x + 1.0}, "no density"),
        ({"proposal": lambda x: pm.Normal.dist(x, 1.0), "substeps": 2}, "substeps"),
        ({"proposal": lambda x: pm.Normal.dist(x, 1.0), "accumulate": "x"}, "accumulate"),
        ({"lookahead": lambda x: pm.Normal.dist(x, 1.0)}, "without a draw"),
        ({"lookahead": lambda x, y: pt.stack([x, y])}, "must be a number"),
        ({"lookahead": lambda x: x, "method": "pool"}, "lookahead"),
    ],
)
def test_what_makes_no_sense_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ar(**options)


def test_a_name_of_two_things_is_refused() -> None:
    y = np.array([0.5, -1.2, 0.3])
    for option in ("proposal", "bound"):
        given = {
            "proposal": lambda x, flow: pm.Normal.dist(x + flow, 1.0),
            "bound": lambda flow: -flow,
        }
        with pm.Model(), pytest.raises(ModelError, match="asks for flow, which is data as well"):
            apm.estimators.state_space(
                "y",
                {"flow": y, "level": y},
                initial=pm.Normal.dist(0, 1),
                transition=lambda x, flow: pm.Normal.dist(x + flow, 1.0),
                observation=lambda x: {
                    "flow": pm.Normal.dist(x, 1.0),
                    "level": pm.Normal.dist(x, 1.0),
                },
                covariates={"flow": y[::-1]},
                method="particles",
                **{option: given[option]},
            )


def test_a_covariate_that_has_the_name_of_data() -> None:
    y = np.array([0.5, -1.2, 0.3])

    def estimate(name: str) -> float:
        transitions = {
            "flow": lambda x, flow: pm.Normal.dist(x + flow, 1.0),
            "other": lambda x, other: pm.Normal.dist(x + other, 1.0),
        }
        with pm.Model() as model:
            apm.estimators.state_space(
                "y",
                {"flow": y, "level": y},
                initial=pm.Normal.dist(pm.Flat("a"), 1),
                transition=transitions[name],
                observation=lambda x: {
                    "flow": pm.Normal.dist(x, 1.0),
                    "level": pm.Normal.dist(x, 1.0),
                },
                covariates={name: 3.0 * y[::-1]},
                method="particles",
                points=3,
            )
        with apm.clamped(model):
            model["y_u"].set_value(np.random.default_rng(1).standard_normal((3, 2, 3)))
            return float(model.compile_logp()({"a": np.array(0.3)}))

    assert estimate("flow") == estimate("other")
