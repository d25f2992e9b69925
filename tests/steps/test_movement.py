"""How far u went in a draw: exact on known paths, 1 for what is fresh, 0 for what stays."""

import math

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kinds import KINDS
from pymc_apm.steps import movement
from pymc_apm.steps.movement import Movement
from tests.steps.models import run, start_chain, toy_gaussian

ARRAYS = [name for name, kind in KINDS.items() if not kind.is_lazy]


def movement_of(*kinds):
    with pm.Model():
        declare = {"normal": apm.StandardNormal, "uniform": apm.StandardUniform}
        return Movement([declare[k](f"u{i}", shape=3) for i, k in enumerate(kinds)])


@pytest.mark.parametrize("name", ARRAYS)
def test_the_variance_of_a_kind_is_that_of_its_draws(name):
    kind, rng = KINDS[name], np.random.default_rng(1)
    draws = np.concatenate([kind.draw(rng, 10) for _ in range(20_000)])
    scaled = draws / math.sqrt(kind.variance)
    assert abs(scaled.var() - 1.0) < 5.0 * math.sqrt(2.0 / draws.size)


@pytest.mark.parametrize("angle", [1e-6, 0.3, math.pi])
def test_an_angle_on_an_ellipse_is_one_minus_its_cosine(angle):
    u, v = math.sqrt(2) * np.array([1.0, 0.0]), math.sqrt(2) * np.array([0.0, 1.0])
    moved, _ = movement_of("normal").of_draw([u], [ellipse(u, v, angle)])
    assert moved == pytest.approx(1.0 - math.cos(angle), rel=1e-6)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_a_fresh_draw_is_one_on_average(kind):
    rng = np.random.default_rng(1)
    draws = KINDS[kind].draw(rng, 40_000).reshape(2, 20_000)
    assert movement_of(kind).of_draw([draws[0]], [draws[1]])[0] == pytest.approx(1.0, abs=0.05)
    assert movement_of(kind).of_draw([draws[0]], [draws[0]])[0] == 0.0


def test_of_several_u_the_least_counts():
    rng = np.random.default_rng(1)
    u, v, far = rng.standard_normal((3, 50))
    both, alone = movement_of("normal", "normal"), movement_of("normal")
    assert both.of_draw([u, v], [far, v])[0] == 0.0
    nearly = ellipse(v, u, 0.01)
    assert both.of_draw([u, v], [far, nearly])[0] == alone.of_draw([v], [nearly])[0]


def test_the_numbers_of_a_stream_that_one_estimate_alone_used_are_fresh():
    moved = movement_of("normal").of_draw
    u = np.random.default_rng(1).standard_normal(10)
    assert moved([u], [u[:7]])[0] == moved([u[:7]], [u])[0] == 0.3
    assert moved([u[:0]], [u])[0] == 1.0
    assert moved([u[:0]], [u[:0]])[0] == 0.0


def test_many_draws_are_as_one_after_the_other(monkeypatch):
    monkeypatch.setattr(movement, "IN_CACHE", 64)
    rng = np.random.default_rng(1)
    u, v = rng.standard_normal((40, 7)), rng.random((40, 3))
    both = movement_of("normal", "uniform")
    batch = both.of_batch(39, [u[0], v[0]], [u[1:], v[1:]])
    alone = [both.of_draw([u[i], v[i]], [u[i + 1], v[i + 1]]) for i in range(39)]
    np.testing.assert_array_equal(np.transpose(batch), alone)
    assert [column.tolist() for column in both.of_batch(2, [], [])] == [[0.0, 0.0], [0.0, 0.0]]


METHODS = {
    "slice": lambda: apm.APMSlice(compile=False),
    "thinned": lambda: apm.APMMetropolis(thin=3, compile=False),
    "independence": lambda: apm.APMSlice(u_update="independence", compile=False),
    "correlated": lambda: apm.PseudoMarginalMH(correlation=0.99, scaling=0.01, compile=False),
    "blocks": lambda: apm.PseudoMarginalMH(blocks=5, scaling=0.01, compile=False),
    "u alone": apm.APMEllipticalU,
}


@pytest.mark.parametrize("name", METHODS)
def test_what_is_recorded_is_how_far_u_went(name):
    with toy_gaussian(5) as model:
        step = METHODS[name]()
    start_chain(step, 1)
    if step.updated_randomness and not step.vars:
        point = model.initial_point() | {"theta": np.ones(5)}
    else:
        point = model.initial_point()
    before, stats = step.u["u"].copy(), []
    step.stop_tuning()
    direction = np.random.default_rng([movement.SEED, 0]).standard_normal(5)
    for _ in range(40):
        points, more = run(step, point, 1)
        point, after = points[-1], step.u["u"].copy()
        expected = np.square(after - before).mean() / 2.0
        assert more[0]["u_moved"] == pytest.approx(expected, abs=1e-14)
        assert (more[0]["u_moved"] > 0.0) == (more[0]["u_accepted"] > 0.0)
        assert more[0]["u_projection"] == pytest.approx(after @ direction / math.sqrt(5))
        before, stats = after, stats + more
    assert len({stat["u_moved"] for stat in stats}) > 5


@apm.black_box
def of_random_length(theta, rng):
    total = rng.standard_normal()
    while rng.standard_normal() > 0.0:
        total += 0.1 * rng.standard_normal()
    return -0.5 * theta**2 + 0.3 * total


@pytest.mark.parametrize("u_update, least", [("slice", 0.2), ("independence", 0.6)])
def test_streams(u_update, least):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("log_lik", of_random_length(theta, apm.Stream("r")))
        step = apm.APMSlice(u_update=u_update)
    start_chain(step, 1)
    _, stats = run(step, model.initial_point(), 400)
    moved = np.array([stat["u_moved"] for stat in stats])
    accepted = np.array([stat["u_accepted"] for stat in stats]) > 0.0
    assert len({stat["n_random"] for stat in stats}) > 3
    np.testing.assert_array_equal(moved > 0.0, accepted)
    assert least < moved[accepted].mean() < 1.4


def test_a_step_that_moves_no_u_records_that():
    with toy_gaussian(2) as model:
        step = apm.APMSlice(u_update=None, compile=False)
    with apm.clamped(model):
        start_chain(step, 1)
        _, stats = run(step, model.initial_point(), 3)
    assert [(stat["u_moved"], stat["u_projection"]) for stat in stats] == [(0.0, 0.0)] * 3
