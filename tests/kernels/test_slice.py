"""Exact tests of slice sampling along a straight line."""

import math

import numpy as np
import pytest

from pymc_apm.kernels import UNLIMITED, State, linear_slice, random_direction
from pymc_apm.kernels.slice import MAX_SHRINKS, line, shrink
from pymc_apm.types import ONE_EVALUATION
from tests.kernels.targets import Recorder, Scripted, frozen

N_REJECTED = 5


def log_normal_density(x):
    return -0.5 * float(np.dot(x, x))


def flat(x):
    return 0.0


def test_line_goes_through_the_position_and_along_the_direction():
    position, direction = frozen(1.0, 2.0), frozen(0.5, -1.0)
    np.testing.assert_array_equal(line(position, direction, 0.0), position)
    np.testing.assert_array_equal(line(position, direction, 2.0), [2.0, 0.0])


@pytest.mark.parametrize("dim", [1, 2, 7])
def test_random_direction_has_unit_length_before_it_is_stretched(dim):
    rng = np.random.default_rng(21)
    direction = random_direction(rng, np.eye(dim))
    assert np.dot(direction, direction) == pytest.approx(1.0)
    cholesky = np.tril(rng.standard_normal((dim, dim))) + 3.0 * np.eye(dim)
    stretched = random_direction(np.random.default_rng(22), cholesky)
    unstretched = random_direction(np.random.default_rng(22), np.eye(dim))
    np.testing.assert_allclose(np.linalg.solve(cholesky, stretched), unstretched)


def test_random_direction_is_uniform_on_the_sphere():
    """Six numbers, each within 4.5 standard errors: a bias of 0.03 is seen."""
    rng = np.random.default_rng(23)
    draws = np.array([random_direction(rng, np.eye(3)) for _ in range(10_000)])
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=4.5 / math.sqrt(3 * 10_000))
    # the square of a coordinate has mean 1/3 and variance 1/5 - 1/9
    np.testing.assert_allclose((draws**2).mean(axis=0), 1 / 3, atol=4.5 * math.sqrt(4 / 45 / 1e4))


def test_first_proposal_is_taken_if_it_is_under_the_density():
    log_density = Recorder(flat)
    rng = Scripted(random=[0.25, 0.5], standard_exponential=[0.1])
    start = State(frozen(1.0, 1.0), 0.0, "start")
    state, info = linear_slice(rng, start, log_density, frozen(1.0, -2.0), width=4.0)
    # the bracket is (-1, 3) and the proposal its middle
    np.testing.assert_array_equal(state.position, [2.0, -1.0])
    assert state.memo == log_density.last_memo
    assert info == (True, 1, 0, 1.0, ONE_EVALUATION, 1.0)
    assert rng.exhausted


def test_rejections_shrink_the_bracket_towards_zero_on_either_side():
    log_density = Recorder(lambda x: 0.0 if abs(x[0]) < 0.5 else -10.0)
    rng = Scripted(random=[0.5, 0.875, 0.2, 0.5], standard_exponential=[0.1])
    start = State(frozen(0.0), 0.0, "start")
    state, info = linear_slice(rng, start, log_density, frozen(1.0), width=4.0)
    # (-2, 2): 1.5 rejected; (-2, 1.5): -1.3 rejected; (-1.3, 1.5): 0.1 accepted
    np.testing.assert_allclose(np.concatenate(log_density.positions), [1.5, -1.3, 0.1])
    assert log_density.memos_given == ["start"] * 3
    assert state.position is log_density.positions[-1]
    assert state.memo == log_density.last_memo
    assert info.accepted
    assert (info.n_evals, info.n_step_out) == (3, 0)
    assert info.z == pytest.approx(0.1)
    assert rng.exhausted


@pytest.mark.parametrize("value", [-1.5, -math.inf, math.nan])
def test_proposal_at_the_height_or_without_a_density_is_rejected(value):
    """The height is -1 - 0.5; a value of -1.5 is not above it."""
    values = iter([value, math.nextafter(-1.5, 0.0)])
    rng = Scripted(random=[0.5, 0.9, 0.9], standard_exponential=[0.5])
    state, info = linear_slice(
        rng, State(frozen(0.0), -1.0), lambda *_: (next(values), None), frozen(1.0)
    )
    assert info.n_evals == 2
    assert state.log_density > -1.5


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("uniform", [0.0, 0.19, 0.34, 0.5, 0.66, 0.81, 1.0 - 2.0**-53])
def test_limit_is_split_by_floor_between_the_two_ends(limit, uniform):
    """Under a flat density all steps are taken: floor(U m) below, m - 1 less that above."""
    log_density = Recorder(flat)
    rng = Scripted(random=[0.25, uniform, 0.0], standard_exponential=[1.0])
    state, info = linear_slice(
        rng, State(frozen(0.0), 0.0, "start"), log_density, frozen(1.0), 2.0, limit
    )
    below = math.floor(uniform * limit)
    above = limit - 1 - below
    assert 0 <= below <= limit - 1
    ends = [-0.5 - 2.0 * i for i in range(below)] + [1.5 + 2.0 * i for i in range(above)]
    *evaluated, accepted = np.concatenate(log_density.positions)
    np.testing.assert_allclose(evaluated, ends)
    assert accepted == state.position[0] == -0.5 - 2.0 * below  # the lower end, as scripted
    assert (info.n_evals, info.n_step_out) == (limit, limit - 1)
    assert set(log_density.memos_given) == {"start"}
    assert state.memo == log_density.last_memo
    assert rng.exhausted


def test_stepping_out_ends_where_the_density_is_at_or_below_the_height():
    """The slice is (-2.2, 1.2); the height itself counts as outside."""
    log_density = Recorder(lambda x: 0.0 if -2.2 < x[0] < 1.2 else -0.5)
    rng = Scripted(random=[0.5, 0.5, 0.5], standard_exponential=[0.5])
    _, info = linear_slice(rng, State(frozen(0.0), 0.0), log_density, frozen(1.0), 1.0, UNLIMITED)
    expected = [-0.5, -1.5, -2.5, 0.5, 1.5, -0.5]  # and the middle of (-2.5, 1.5)
    np.testing.assert_allclose(np.concatenate(log_density.positions), expected)
    assert (info.n_evals, info.n_step_out) == (6, 5)
    assert rng.exhausted


def test_no_uniform_is_spent_on_the_split_without_stepping_out():
    rng = Scripted(random=[0.5, 0.5], standard_exponential=[0.5])
    linear_slice(rng, State(frozen(0.0), 0.0), Recorder(flat), frozen(1.0), 1.0, 0)
    assert rng.exhausted


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_bracket_is_never_longer_than_the_limit_times_the_width(limit):
    """On a wide density the bracket has full length, wherever the uniform numbers put it."""
    rng = np.random.default_rng(24)
    farthest = 0.0
    for _ in range(500):
        log_density = Recorder(flat)
        _, info = linear_slice(rng, State(frozen(0.0), 0.0), log_density, frozen(1.0), 0.5, limit)
        reach = np.concatenate(log_density.positions)
        assert np.ptp(reach) <= limit * 0.5
        assert info.n_step_out <= limit - 1
        farthest = max(farthest, np.abs(reach).max())
    assert farthest > 0.4 * limit * 0.5


def test_stepping_out_without_a_limit_covers_the_whole_slice():
    rng = np.random.default_rng(25)
    for _ in range(50):
        log_density = Recorder(lambda x: 0.0 if -10.0 < x[0] < 10.0 else -math.inf)
        _, info = linear_slice(
            rng, State(frozen(3.0), 0.0), log_density, frozen(1.0), 1.0, UNLIMITED
        )
        reach = np.concatenate(log_density.positions[: info.n_step_out])
        assert reach.min() <= -10.0
        assert reach.max() >= 10.0


@pytest.mark.parametrize("limit", [0, 1, 3, UNLIMITED])
@pytest.mark.parametrize("seed", range(5))
def test_same_seed_same_update_inputs_unchanged_and_cached_log_density_is_right(seed, limit):
    position, direction = frozen(0.3, -1.2), frozen(1.0, 0.5)
    start = State(position, log_normal_density(position), "start")
    states = []
    for _ in range(2):
        log_density = Recorder(log_normal_density)
        rng = np.random.default_rng(seed)
        state, info = linear_slice(rng, start, log_density, direction, 0.8, limit)
        assert state.log_density == log_normal_density(state.position)
        assert state.memo == log_density.last_memo
        assert set(log_density.memos_given) == {"start"}
        assert info.accepted
        assert info.n_evals == len(log_density.positions)
        np.testing.assert_allclose(state.position, position + info.z * direction)
        assert not any(np.array_equal(x, position) for x in log_density.positions)
        states.append(state)
    np.testing.assert_array_equal(states[0].position, states[1].position)
    np.testing.assert_array_equal(position, [0.3, -1.2])


@pytest.mark.parametrize("limit", [0, 3, UNLIMITED])
def test_stored_log_density_that_is_too_high_ends_after_the_bounded_number_of_evaluations(limit):
    log_density = Recorder(log_normal_density)
    start = State(frozen(0.3, -1.2), 1e6, "start")
    state, info = linear_slice(
        np.random.default_rng(4), start, log_density, frozen(1.0, 1.0), 1.0, limit
    )
    assert state is start
    assert not info.accepted
    assert info.z == 0.0
    assert info.n_evals - info.n_step_out == MAX_SHRINKS
    assert info.n_step_out <= 2
    assert info.n_evals == len(log_density.positions)


@pytest.mark.parametrize("position", [0.0, 0.3, -1.2])
def test_density_that_is_positive_at_one_point_alone_leaves_the_position_where_it_is(position):
    log_density = Recorder(lambda x: 0.0 if x[0] == position else -math.inf)
    start = State(frozen(position), 0.0, "start")
    state, info = linear_slice(np.random.default_rng(5), start, log_density, frozen(1.0))
    assert state.position[0] == position
    assert state.log_density == 0.0
    assert not info.accepted
    assert info.n_evals <= MAX_SHRINKS


def test_position_that_comes_back_unchanged_from_a_collapsed_bracket_did_not_move():
    """Here z is below the spacing of the floats about 1, and so the position stays at 1."""
    values = iter([-10.0] * N_REJECTED + [0.0])
    state, info = shrink(
        Scripted(random=[0.5] * N_REJECTED),
        State(frozen(1.0), 0.0),
        lambda *_: (next(values), None),
        line,
        frozen(1.0),
        -1.0,
        1e-20,
        -1e-20,
        1e-20,
    )
    assert state.position[0] == 1.0
    assert info.n_evals == N_REJECTED + 1
    assert not info.accepted


@pytest.mark.parametrize(("position", "width"), [(1.0, 1e-6), (1e8, 1.0), (1e8, 1e-3)])
def test_no_move_is_reported_wherever_the_bracket_collapses_onto_the_position(position, width):
    rng = np.random.default_rng(27)

    def only_here(x, memo):
        return (0.0 if x[0] == position else -math.inf), memo

    for _ in range(100):
        state = State(frozen(position), 0.0)
        _, info = linear_slice(rng, state, only_here, frozen(1.0), width)
        assert not info.accepted


def test_late_acceptance_counts_as_a_move_where_the_position_changed():
    values = iter([-10.0] * N_REJECTED + [0.0])
    state, info = shrink(
        Scripted(random=[0.9] * N_REJECTED),
        State(frozen(0.0), 0.0),
        lambda *_: (next(values), None),
        line,
        frozen(1.0),
        -1.0,
        1.0,
        0.0,
        1.0,
    )
    assert info.accepted
    assert state.position[0] == pytest.approx(0.9**N_REJECTED)
