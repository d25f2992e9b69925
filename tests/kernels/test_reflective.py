"""Exact tests of slice sampling in the unit cube with reflections."""

import math

import numpy as np
import pytest

from pymc_apm.kernels import State, reflect, reflective_slice
from pymc_apm.kernels.reflective import reflected_line
from pymc_apm.kernels.slice import MAX_SHRINKS
from pymc_apm.types import ONE_EVALUATION, Cost
from tests.kernels.targets import Recorder, Scripted, frozen


def tilt(u):
    return 2.0 * float(np.sum(u))


REAL_LINE = np.concatenate(
    [
        np.random.default_rng(8).normal(scale=4.0, size=2000),
        np.arange(-6.0, 6.5, 0.5),
        [1e-300, -1e-300, 1e-17, -1e-17, 1.0 + 2e-16, 1e6 + 0.25, -1e6 - 0.25],
    ]
)
REAL_LINE.setflags(write=False)


def test_reflect_is_the_formula_of_the_paper():
    """With m = mod(x, 2): m where m < 1, and 2 - m elsewhere."""
    m = np.mod(REAL_LINE, 2.0)
    np.testing.assert_allclose(reflect(REAL_LINE), np.where(m < 1.0, m, 2.0 - m), atol=1e-15)


def test_reflect_stays_in_the_unit_interval():
    folded = reflect(REAL_LINE)
    assert ((folded >= 0.0) & (folded <= 1.0)).all()


def test_reflect_is_the_identity_inside_of_the_unit_interval():
    inside = np.concatenate([np.random.default_rng(9).random(1000), [0.0, 5e-324, 0.5, 1.0]])
    np.testing.assert_array_equal(reflect(inside), inside)


def test_reflect_twice_is_reflect_once():
    np.testing.assert_array_equal(reflect(reflect(REAL_LINE)), reflect(REAL_LINE))


def test_reflect_is_even_about_both_walls_and_has_period_two():
    folded = reflect(REAL_LINE)
    np.testing.assert_allclose(reflect(-REAL_LINE), folded, atol=1e-9)
    np.testing.assert_allclose(reflect(2.0 - REAL_LINE), folded, atol=1e-9)
    np.testing.assert_allclose(reflect(REAL_LINE + 2.0), folded, atol=1e-9)


def test_reflect_is_continuous_and_keeps_lengths():
    """Unit Jacobian: no step of the folded line is longer or, off the walls, shorter."""
    x = np.linspace(-3.2, 3.2, 6401)
    steps = np.abs(np.diff(reflect(x)))
    assert steps.max() <= 0.001 + 1e-12
    near_a_wall = np.abs(x[1:] - np.rint(x[1:])) < 0.0015
    np.testing.assert_allclose(steps[~near_a_wall], 0.001, atol=1e-12)


@pytest.mark.parametrize(
    ("u", "speed", "expected"),
    [(0.8, 0.5, 0.7), (0.2, -0.5, 0.3), (0.8, 1.5, 0.3), (0.2, -1.5, 0.7), (0.4, 0.5, 0.9)],
)
def test_line_bounces_off_the_walls(u, speed, expected):
    np.testing.assert_allclose(reflected_line(frozen(u), frozen(speed), 1.0), [expected])


def test_way_back_along_the_folded_line_ends_at_the_start():
    """From where z leads, the same line with its direction folded along leads back at -z."""
    rng = np.random.default_rng(10)
    for _ in range(200):
        u, direction, z = rng.random(3), rng.standard_normal(3), 3.0 * rng.standard_normal()
        unfolded = u + z * direction
        turned = np.where(np.mod(np.floor(unfolded), 2.0) == 1.0, -direction, direction)
        there = reflected_line(u, direction, z)
        np.testing.assert_allclose(reflected_line(there, turned, -z), u, atol=1e-12)


def test_first_proposal_is_taken_if_it_is_under_the_estimate():
    log_density = Recorder(lambda u: 0.0)
    rng = Scripted(random=[0.25, 0.875], standard_normal=[[1.0, -0.5]], standard_exponential=[0.1])
    state, info = reflective_slice(rng, State(frozen(0.5, 0.1), 0.0, "start"), log_density, 2.0)
    # the bracket is (-0.5, 1.5), the proposal z = 1.25, and both coordinates are reflected
    np.testing.assert_allclose(state.position, [0.25, 0.525])
    assert state.memo == log_density.last_memo
    assert info == (True, 1, 0, 1.25, ONE_EVALUATION, 1.0)
    assert rng.exhausted


def test_rejections_shrink_the_bracket_towards_zero_on_either_side():
    log_density = Recorder(lambda u: 0.0 if 0.45 < u[0] < 0.55 else -10.0)
    rng = Scripted(
        random=[0.5, 0.9, 0.125, 0.5], standard_normal=[[1.0]], standard_exponential=[0.1]
    )
    state, info = reflective_slice(rng, State(frozen(0.5), 0.0, "start"), log_density, 0.8)
    # (-0.4, 0.4): 0.32 rejected; (-0.4, 0.32): -0.31 rejected; (-0.31, 0.32): 0.005 accepted
    np.testing.assert_allclose(np.concatenate(log_density.positions), [0.82, 0.19, 0.505])
    assert log_density.memos_given == ["start"] * 3
    assert state.position is log_density.positions[-1]
    assert info.n_evals == 3
    assert rng.exhausted


@pytest.mark.parametrize("seed", range(20))
def test_same_seed_same_update_inputs_unchanged_and_cached_log_density_is_right(seed):
    u = frozen(0.3, 0.99, 0.01)
    start = State(u, tilt(u), "start")
    states = []
    for _ in range(2):
        log_density = Recorder(tilt)
        state, info = reflective_slice(np.random.default_rng(seed), start, log_density, 1.5)
        assert state.log_density == tilt(state.position)
        assert state.memo == log_density.last_memo
        assert info.accepted
        assert info.n_evals == len(log_density.positions)
        assert info.n_step_out == 0
        for position in log_density.positions:
            assert not np.array_equal(position, u)
            assert ((position >= 0.0) & (position <= 1.0)).all()
        states.append(state)
    np.testing.assert_array_equal(states[0].position, states[1].position)
    np.testing.assert_array_equal(u, [0.3, 0.99, 0.01])


def test_width_is_one_by_default_as_in_the_paper():
    u = frozen(0.3, 0.6)
    updates = [
        reflective_slice(np.random.default_rng(12), State(u, tilt(u)), Recorder(tilt), *width)
        for width in [(), (1.0,)]
    ]
    np.testing.assert_array_equal(updates[0][0].position, updates[1][0].position)


def test_stored_log_density_that_is_too_high_ends_after_the_bounded_number_of_evaluations():
    log_density = Recorder(tilt)
    start = State(frozen(0.3, 0.6), 1e6, "start")
    state, info = reflective_slice(np.random.default_rng(4), start, log_density)
    assert state is start
    assert info == (False, MAX_SHRINKS, 0, 0.0, Cost(MAX_SHRINKS, 0, 0, 0), 0.0)
    assert len(log_density.positions) == MAX_SHRINKS


def test_estimate_that_is_positive_at_one_point_alone_leaves_u_where_it_is():
    u = frozen(0.3, 0.6)
    log_density = Recorder(lambda x: 0.0 if np.array_equal(x, u) else -math.inf)
    state, info = reflective_slice(np.random.default_rng(5), State(u, 0.0, "start"), log_density)
    np.testing.assert_array_equal(state.position, u)
    assert not info.accepted
    assert info.n_evals <= MAX_SHRINKS
