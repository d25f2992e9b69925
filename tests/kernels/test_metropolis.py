"""Exact tests of the Metropolis updates and of their proposals."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

import pymc_apm.kernels
from pymc_apm.kernels import (
    State,
    correlated_normal,
    correlated_uniform,
    metropolis,
    metropolis_independence,
    random_walk,
    random_walk_metropolis,
)
from pymc_apm.types import ONE_EVALUATION
from tests.kernels.targets import Recorder, Scripted, frozen


def log_normal_density(x):
    return -0.5 * float(np.dot(x, x))


def test_kernels_import_nothing_but_numpy_scipy_types_and_each_other():
    allowed = {"math", "typing", "collections", "numpy", "scipy"}
    files = sorted(Path(pymc_apm.kernels.__file__).parent.glob("*.py"))
    assert len(files) >= 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, file.name
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                inside = name.startswith("pymc_apm.kernels") or name == "pymc_apm.types"
                assert inside or name.split(".")[0] in allowed, f"{file.name} imports {name}"


def test_proposal_with_higher_density_is_accepted_whatever_the_uniform():
    log_density = Recorder(log_normal_density)
    proposal = frozen(0.5)
    rng = Scripted(random=[0.999999])
    state, info = metropolis(rng, State(frozen(2.0), -2.0, "start"), log_density, proposal)
    assert state == State(proposal, -0.125, log_density.last_memo)
    assert info == (True, 1.0, ONE_EVALUATION)
    assert rng.exhausted


def test_proposal_with_equal_density_is_accepted():
    state = State(frozen(1.0), -0.5)
    moved, info = metropolis(
        Scripted(random=[0.999999]), state, Recorder(log_normal_density), frozen(-1.0)
    )
    assert moved.position[0] == -1.0
    assert info == (True, 1.0, ONE_EVALUATION)


@pytest.mark.parametrize(
    ("below_the_rate", "accepted"), [(1e-9, True), (0.0, False), (-1e-9, False)]
)
def test_proposal_with_lower_density_is_accepted_if_the_uniform_is_below_the_ratio(
    below_the_rate, accepted
):
    log_density = Recorder(log_normal_density)
    start, proposal = State(frozen(1.0), -0.5, "start"), frozen(2.0)
    rate = math.exp(-1.5)
    rng = Scripted(random=[rate - below_the_rate])
    state, info = metropolis(rng, start, log_density, proposal)
    assert info == (accepted, rate, ONE_EVALUATION)
    assert rng.exhausted
    if accepted:
        assert state == State(proposal, -2.0, log_density.last_memo)
    else:
        assert state is start


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_proposal_without_a_density_is_never_accepted(value):
    start = State(frozen(1.0), -0.5, "start")
    rng = Scripted(random=[0.0])
    state, info = metropolis(rng, start, lambda *_: (value, "other"), frozen(2.0))
    assert state is start
    assert not info.accepted
    assert rng.exhausted


def test_log_density_is_evaluated_once_at_the_proposal_and_is_given_the_memo_of_the_state():
    log_density = Recorder(log_normal_density)
    proposal = frozen(2.0)
    metropolis(Scripted(random=[0.5]), State(frozen(1.0), -0.5, "start"), log_density, proposal)
    assert len(log_density.positions) == 1
    assert log_density.positions[0] is proposal
    assert log_density.memos_given == ["start"]


def test_stored_log_density_decides_and_not_a_fresh_one():
    """With a stored value that is far too high the proposal cannot be accepted."""
    start = State(frozen(1.0), 1e6)
    state, info = metropolis(
        Scripted(random=[0.0]), start, Recorder(log_normal_density), frozen(0.0)
    )
    assert state is start
    assert info == (False, 0.0, ONE_EVALUATION)


def test_position_may_be_a_tuple_of_arrays():
    start = State((frozen(1.0), frozen(2.0, 3.0)), -7.0)
    proposal = (frozen(0.0), frozen(0.0, 1.0))
    state, info = metropolis(
        Scripted(random=[0.5]),
        start,
        Recorder(lambda position: sum(log_normal_density(part) for part in position)),
        proposal,
    )
    assert state.position is proposal
    assert state.log_density == -0.5
    assert info.accepted


def test_random_walk_adds_the_scaled_and_rotated_noise():
    cholesky = np.array([[2.0, 0.0], [1.0, 3.0]])
    rng = Scripted(standard_normal=[[1.0, -1.0]])
    proposal = random_walk(rng, frozen(10.0, 20.0), cholesky, 0.5)
    np.testing.assert_allclose(proposal, [11.0, 19.0])


@pytest.mark.parametrize(("noise", "step"), [(0.4, 0.0), (0.6, 1.0), (-0.4, 0.0), (-0.6, -1.0)])
def test_step_of_a_discrete_coordinate_is_rounded_and_symmetric(noise, step):
    rng = Scripted(standard_normal=[[noise, noise]])
    proposal = random_walk(rng, frozen(7.0, 7.0), np.eye(2), 1.0, np.array([True, False]))
    assert proposal[0] == 7.0 + step
    assert proposal[1] == 7.0 + noise


def test_random_walk_metropolis_proposes_by_the_random_walk_and_decides_by_metropolis():
    cholesky, discrete = np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([False, True])
    start = State(frozen(0.3, 1.0), log_normal_density(frozen(0.3, 1.0)))
    log_density = Recorder(log_normal_density)
    state, info = random_walk_metropolis(
        np.random.default_rng(3), start, log_density, cholesky, 0.4, discrete
    )
    rng = np.random.default_rng(3)
    proposal = random_walk(rng, start.position, cholesky, 0.4, discrete)
    expected, expected_info = metropolis(rng, start, log_density, proposal)
    np.testing.assert_array_equal(log_density.positions[0], log_density.positions[1])
    np.testing.assert_array_equal(state.position, expected.position)
    assert state.log_density == expected.log_density
    assert info == expected_info


def test_independence_update_proposes_what_draw_returns():
    def draw(rng, size):
        return rng.random(size)

    fresh = np.array([0.25, 0.75])
    rng = Scripted(random=[fresh, 0.0])
    state, info = metropolis_independence(
        rng, State(frozen(0.5, 0.5), -0.25), Recorder(log_normal_density), draw
    )
    assert state.position is fresh
    assert info.accepted
    assert rng.exhausted


@pytest.mark.parametrize("seed", range(20))
def test_same_seed_same_step_inputs_unchanged_and_cached_log_density_is_right(seed):
    start = State(frozen(0.5, -1.0), log_normal_density(frozen(0.5, -1.0)), "start")
    cholesky = np.eye(2)
    cholesky.setflags(write=False)
    states = []
    for _ in range(2):
        log_density = Recorder(log_normal_density)
        rng = np.random.default_rng(seed)
        state, info = random_walk_metropolis(rng, start, log_density, cholesky, 1.0)
        assert state.log_density == log_normal_density(state.position)
        assert state.memo == (log_density.last_memo if info.accepted else "start")
        states.append(state)
    np.testing.assert_array_equal(states[0].position, states[1].position)
    np.testing.assert_array_equal(start.position, [0.5, -1.0])


def test_correlated_normal_has_the_exact_mean_and_standard_deviation():
    u = frozen(1.0, -2.0, 0.5)
    still = correlated_normal(Scripted(standard_normal=[[0.0, 0.0, 0.0]]), u, 0.6)
    np.testing.assert_allclose(still, 0.6 * u)
    moved = correlated_normal(Scripted(standard_normal=[[1.0, -1.0, 2.0]]), u, 0.6)
    np.testing.assert_allclose(moved - still, [0.8, -0.8, 1.6])


def test_correlation_zero_is_an_independent_draw():
    u = frozen(0.3, 0.9)
    noise = np.array([0.7, -1.1])
    normal = correlated_normal(Scripted(standard_normal=[noise]), u, 0.0)
    np.testing.assert_array_equal(normal, noise)
    uniform = correlated_uniform(Scripted(standard_normal=[noise]), u, 0.0)
    np.testing.assert_allclose(uniform, special.ndtr(noise))


def test_correlation_one_proposes_the_current_point():
    u = frozen(0.3, 0.9)
    noise = [[0.7, -1.1]]
    np.testing.assert_array_equal(correlated_normal(Scripted(standard_normal=noise), u, 1.0), u)
    proposal = correlated_uniform(Scripted(standard_normal=noise), u, 1.0)
    np.testing.assert_allclose(proposal, u, rtol=1e-14)


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.5, 0.9, 0.99])
def test_correlated_uniform_is_a_gaussian_copula_inside_of_the_unit_interval(correlation):
    """P-values of four checks at five correlations: a false alarm in fewer than 1 of 1000 runs."""
    rng = np.random.default_rng(17)
    u = rng.random(20_000)
    u.setflags(write=False)
    proposal = correlated_uniform(rng, u, correlation)
    assert ((proposal > 0.0) & (proposal < 1.0)).all()
    before, after = special.ndtri(u), special.ndtri(proposal)
    residual = (after - correlation * before) / math.sqrt(1.0 - correlation**2)
    for sample in [after, residual]:
        assert stats.kstest(sample, "norm", method="asymp").pvalue > 2e-5
    z = np.dot(residual, before) / math.sqrt(len(u))
    assert abs(z) < 4.3
    # the rank correlation of a Gaussian copula, to five standard errors of an independent sample
    rank = stats.spearmanr(u, proposal).statistic
    assert rank == pytest.approx(6.0 / math.pi * math.asin(0.5 * correlation), abs=0.035)


def test_correlated_uniform_stays_in_the_unit_interval_near_its_ends():
    u = frozen(5e-324, 1e-300, 1e-12, 1.0 - 1e-12)
    for noise in [-3.0, 0.0, 3.0]:
        rng = Scripted(standard_normal=[np.full(4, noise)])
        proposal = correlated_uniform(rng, u, 0.9)
        assert ((proposal > 0.0) & (proposal < 1.0)).all()
