"""Exact tests of elliptical slice sampling."""

import math

import numpy as np
import pytest

from pymc_apm.kernels import State, elliptical_slice
from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kernels.slice import MAX_SHRINKS
from pymc_apm.types import ONE_EVALUATION, Cost
from tests.kernels.targets import Recorder, Scripted, frozen


def tilt(u):
    return 0.7 * float(np.sum(u))


def test_ellipse_goes_through_u_at_zero_and_through_the_direction_at_a_right_angle():
    u, direction = frozen(1.0, -2.0, 0.3), frozen(0.4, 0.5, -1.5)
    np.testing.assert_array_equal(ellipse(u, direction, 0.0), u)
    np.testing.assert_allclose(ellipse(u, direction, 0.5 * math.pi), direction, atol=1e-15)
    np.testing.assert_allclose(ellipse(u, direction, math.pi), -u, atol=1e-15)
    np.testing.assert_allclose(ellipse(u, direction, 2.0 * math.pi), u, atol=1e-15)


@pytest.mark.parametrize("angle", np.linspace(-6.0, 6.0, 13))
def test_rotation_keeps_the_sum_of_squares_of_u_and_the_direction(angle):
    """The joint density of u and the direction is the same all around: the rotation is rigid."""
    u, direction = frozen(1.0, -2.0, 0.3), frozen(0.4, 0.5, -1.5)
    rotated = ellipse(u, direction, angle)
    rotated_direction = ellipse(u, direction, angle + 0.5 * math.pi)
    total = rotated**2 + rotated_direction**2
    np.testing.assert_allclose(total, u**2 + direction**2, rtol=1e-12)
    np.testing.assert_allclose(ellipse(rotated, rotated_direction, -angle), u, atol=1e-12)


def test_first_proposal_is_taken_if_it_is_under_the_estimate():
    u, direction = frozen(1.0, 0.0), [0.0, 1.0]
    log_density = Recorder(lambda u: 0.0)
    rng = Scripted(random=[0.25], standard_normal=[direction], standard_exponential=[0.1])
    state, info = elliptical_slice(rng, State(u, 0.0, "start"), log_density)
    np.testing.assert_allclose(state.position, [0.0, 1.0], atol=1e-15)
    assert state.memo == log_density.last_memo
    assert info == (True, 1, 0, 0.5 * math.pi, ONE_EVALUATION, 1.0)
    assert rng.exhausted


def test_bracket_is_one_turn_that_ends_at_the_first_proposal_and_shrinks_towards_zero():
    """The angles pi, pi/2 and -pi/2 are rejected, each of them an end of the next bracket."""
    log_density = Recorder(lambda u: 0.0 if u[0] > 0.5 else -10.0)
    rng = Scripted(
        random=[0.5, 0.75, 1.0 / 3.0, 0.25],
        standard_normal=[[0.1]],
        standard_exponential=[0.1],
    )
    state, info = elliptical_slice(rng, State(frozen(2.0), 0.0, "start"), log_density)
    angles = [math.pi, 0.5 * math.pi, -0.5 * math.pi, -0.25 * math.pi]
    expected = [2.0 * math.cos(angle) + 0.1 * math.sin(angle) for angle in angles]
    np.testing.assert_allclose(np.concatenate(log_density.positions), expected, atol=1e-12)
    assert log_density.memos_given == ["start"] * 4
    assert state.position is log_density.positions[-1]
    assert info.n_evals == 4
    assert info.z == pytest.approx(-0.25 * math.pi)
    assert rng.exhausted


def test_height_is_the_stored_log_density_minus_an_exponential():
    """A value at the height itself is rejected, one above it is accepted."""
    for value, n_evals in [(-1.5, 2), (math.nextafter(-1.5, 0.0), 1)]:
        values = iter([value, 0.0])
        rng = Scripted(random=[0.3, 0.5], standard_normal=[[1.0]], standard_exponential=[0.5])
        state = State(frozen(0.0), -1.0)
        _, info = elliptical_slice(rng, state, lambda *_, values=values: (next(values), None))
        assert info.n_evals == n_evals


@pytest.mark.parametrize("seed", range(20))
def test_same_seed_same_update_inputs_unchanged_and_cached_log_density_is_right(seed):
    u = frozen(0.3, -1.2, 2.0)
    start = State(u, tilt(u), "start")
    states = []
    for _ in range(2):
        log_density = Recorder(tilt)
        state, info = elliptical_slice(np.random.default_rng(seed), start, log_density)
        assert state.log_density == tilt(state.position)
        assert state.memo == log_density.last_memo
        assert info.accepted
        assert info.n_evals == len(log_density.positions)
        assert info.n_step_out == 0
        assert not any(np.array_equal(position, u) for position in log_density.positions)
        states.append(state)
    np.testing.assert_array_equal(states[0].position, states[1].position)
    np.testing.assert_array_equal(u, [0.3, -1.2, 2.0])


def test_stored_log_density_that_is_too_high_ends_after_the_bounded_number_of_evaluations():
    log_density = Recorder(tilt)
    start = State(frozen(0.3, -1.2), 1e6, "start")
    state, info = elliptical_slice(np.random.default_rng(4), start, log_density)
    assert state is start
    assert info == (False, MAX_SHRINKS, 0, 0.0, Cost(MAX_SHRINKS, 0, 0, 0), 0.0)
    assert len(log_density.positions) == MAX_SHRINKS


def test_estimate_that_is_positive_at_one_point_alone_leaves_u_where_it_is():
    u = frozen(0.3, -1.2)
    log_density = Recorder(lambda x: 0.0 if np.array_equal(x, u) else -math.inf)
    state, info = elliptical_slice(np.random.default_rng(5), State(u, 0.0, "start"), log_density)
    np.testing.assert_array_equal(state.position, u)
    assert state.log_density == 0.0
    assert not info.accepted
    assert info.n_evals <= MAX_SHRINKS


def test_no_randomness_in_the_estimate_makes_each_update_one_evaluation():
    rng = np.random.default_rng(6)
    state = State(frozen(0.5), 0.0)
    for _ in range(50):
        state, info = elliptical_slice(rng, state, lambda u, memo: (0.0, memo))
        assert info.n_evals == 1
