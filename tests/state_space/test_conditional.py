"""Conditional SMC leaves f_hat(u) q(u) invariant; broken variants do not.

Chains start from draws u of q, each with the weight f_hat(u): that is the target. An update keeps
it if the weighted means of functions h of u are the same before and after, so that
f_hat(u) (h(u') - h(u)) is zero on average.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from scipy import stats

from pymc_apm.estimators.states.conditional import (
    Inverse,
    draw_index,
    make_refresh,
    place_path,
)
from pymc_apm.estimators.states.counts import normal_quantile
from pymc_apm.estimators.states.filter import ParticleModel, ancestors_of, make_filter
from tests.state_space.linear import AR, AR_INVERSE, Args

# To compile it takes half a minute. Quick tests of the same are in test_particles.py.
pytestmark = pytest.mark.slow

Y = np.array([[1.5], [1.5], [-1.0]])
BASE = Args(a=0.95, s=0.5, r=1.0)
N_TIMES, N = 3, 3
N_CHAINS = 40_000
Z_BOUND = 5.0
"""About 50 z-scores in each of 4 tests that must pass: one false alarm in 5000 runs."""

REDRAWN = np.full(N_TIMES, -1.0)

OPTIONS = {
    "bootstrap": BASE,
    "guided": BASE._replace(guide=0.5),
    "auxiliary": BASE._replace(eta=0.8),
    "guided and auxiliary": BASE._replace(guide=0.4, eta=0.5),
}


class Compiled(NamedTuple):
    """A filter and its update, repeated for many u."""

    update: Any
    log_estimates: Any


@numba.njit
def maybe_wrong(weights, k, v, uniform):
    """Place the path; from 2 on, the number of its slot stays as it was drawn."""
    if uniform < 2.0:
        return place_path(weights, k, v, uniform)
    slot, _, _ = place_path(weights, k, v, uniform - 2.0)
    ancestors = ancestors_of(weights, v)
    ancestors[slot] = k
    return slot, v.copy(), ancestors


@pytest.fixture(scope="module")
def compiled():
    run = numba.njit(make_filter(AR, numba.njit))
    refresh = numba.njit(make_refresh(AR, AR_INVERSE, numba.njit, maybe_wrong))

    @numba.njit
    def update(rng, us, data, args, slots):
        """Update each u; where ``slots`` is positive, it is what says where the path goes."""
        new, paths = np.empty(us.shape), np.empty((len(us), N_TIMES))
        n_moved = 0
        for i in range(len(us)):
            uniforms = rng.random((N_TIMES, 3))
            for t in range(N_TIMES):
                if slots[t] >= 2.0:
                    uniforms[t, 1] += 2.0
                elif slots[t] >= 0.0:
                    uniforms[t, 1] = slots[t]
            fresh = rng.standard_normal(us[i].shape)
            filtered = run(us[i], data, args, True)
            states, log_weights = filtered.states, filtered.log_weights
            refreshed = refresh(states, log_weights, fresh, uniforms, data, args)
            new[i], paths[i] = refreshed.u, refreshed.path[:, 0]
            n_moved += int(refreshed.has_moved)
        return new, paths, n_moved

    @numba.njit
    def log_estimates(us, data, args):
        return np.array([run(u, data, args, False).log_estimate for u in us])

    return Compiled(update, log_estimates)


def draws(seed):
    return np.random.default_rng(seed).standard_normal((N_CHAINS, N_TIMES, 2, N))


def functions_of(u, log_estimates):
    """Return functions of u: its numbers, their squares and products, the estimate."""
    flat = u.reshape(len(u), -1)
    made = [flat, flat**2, np.exp(log_estimates)[:, None] * flat, np.exp(log_estimates)[:, None]]
    made += [u[:, t, 0, slot : slot + 1] * u[:, t + 1, 1] for t in (0, 1) for slot in range(N)]
    return np.concatenate(made, axis=1)


def largest_z(functions, args, slots=REDRAWN, **changes):
    """Return the largest z-score of a comparison of u before and after an update."""
    before = draws(1)
    broken = args._replace(**changes)
    after, _, n_moved = functions.update(np.random.default_rng(3), before, Y, broken, slots)
    logs = [functions.log_estimates(u, Y, args) for u in (before, after)]
    weights = np.exp(logs[0])[:, None]
    differences = weights * (functions_of(after, logs[1]) - functions_of(before, logs[0]))
    z = differences.mean(0) / (differences.std(0) / math.sqrt(N_CHAINS))
    return np.abs(z).max(), n_moved


@pytest.mark.parametrize("name", OPTIONS)
def test_it_leaves_the_target_invariant(compiled, name):
    z, n_moved = largest_z(compiled, OPTIONS[name])
    assert z < Z_BOUND
    assert n_moved == N_CHAINS


SLOTS = {
    "first slot not redrawn": [0.0, -1.0, -1.0],
    "later slots not redrawn": [-1.0, 0.999, 0.999],
    "number of the slot not conditioned": [-1.0, 2.0, 2.0],
}


@pytest.mark.parametrize("name", SLOTS)
def test_a_path_that_is_placed_wrongly_is_noticed(compiled, name):
    assert largest_z(compiled, BASE, np.array(SLOTS[name]))[0] > 2.0 * Z_BOUND


def test_backward_weights_without_the_transition_are_noticed(compiled):
    assert largest_z(compiled, BASE, backward=0.0)[0] > 2.0 * Z_BOUND


def test_the_path_is_an_exact_draw_of_the_states(compiled):
    """Of the smoothing distribution, which is normal."""
    args, before = BASE, draws(4)
    _, paths, _ = compiled.update(np.random.default_rng(5), before, Y, args, REDRAWN)
    lags = np.abs(np.subtract.outer(np.arange(N_TIMES), np.arange(N_TIMES)))
    cov = args.s**2 / (1.0 - args.a**2) * args.a**lags
    gain = cov @ np.linalg.inv(cov + args.r**2 * np.eye(N_TIMES))
    mean, posterior = gain @ Y[:, 0], cov - gain @ cov
    errors = paths - mean
    products = errors[:, :, None] * errors[:, None, :] - posterior
    weights = np.exp(compiled.log_estimates(before, Y, args))
    for deviations in (errors, products.reshape(N_CHAINS, -1)):
        weighted = weights[:, None] * deviations
        z = weighted.mean(0) / (weighted.std(0) / math.sqrt(N_CHAINS))
        assert np.abs(z).max() < Z_BOUND


def in_python(functions):
    return [f.py_func if hasattr(f, "py_func") else f for f in functions]


def test_the_filter_gives_the_same_estimate_to_the_last_bit():
    model, inverse = ParticleModel(*in_python(AR)), Inverse(*in_python(AR_INVERSE))
    refresh, run = make_refresh(model, inverse), make_filter(model)
    rng = np.random.default_rng(6)
    args, n_times = Args(guide=0.3, eta=0.4), 20
    data = rng.standard_normal((n_times, 1))
    filtered = run(rng.standard_normal((n_times, 2, 7)), data, args, True)
    for _ in range(20):
        uniforms, fresh = rng.random((n_times, 3)), rng.standard_normal((n_times, 2, 7))
        given = *filtered[1:3], fresh, uniforms
        copies = [array.copy() for array in given]
        refreshed = refresh(*given, data, args)
        for array, copy in zip(given, copies, strict=True):
            np.testing.assert_array_equal(array, copy)
        filtered = run(refreshed.u, data, args, True)
        for found, expected in zip(refreshed.filtered, filtered, strict=True):
            np.testing.assert_array_equal(found, expected)
        nearest = np.abs(filtered.states[:, 0] - refreshed.path).min(axis=1)
        assert nearest.max() < 1e-12


def test_it_stays_where_there_is_no_path():
    model, inverse = ParticleModel(*in_python(AR)), Inverse(*in_python(AR_INVERSE))
    nowhere = inverse._replace(
        log_transition=lambda before, x, row, args: np.full(x.shape[1], -math.inf)
    )
    rng = np.random.default_rng(7)
    u = rng.standard_normal((3, 2, 4))
    filtered = make_filter(model)(u, Y, Args(), True)
    given = *filtered[1:3], rng.standard_normal(u.shape), rng.random((3, 3)), Y, Args()
    assert make_refresh(model, inverse)(*given).has_moved
    assert not make_refresh(model, nowhere)(*given).has_moved


def test_a_path_is_placed_where_its_slot_takes_it():
    rng = np.random.default_rng(8)
    slots = np.zeros(5)
    for _ in range(3000):
        weights = np.array([0.1, 0.0, 0.45, 0.25, 0.2])
        slot, v, ancestors = place_path(weights, 2, rng.standard_normal(5), rng.random())
        assert ancestors[slot] == 2
        np.testing.assert_array_equal(ancestors, ancestors_of(weights, v))
        slots[slot] += 1.0 / 3000
    # The particle has the weight from 0.1 to 0.55: half of slot 0, all of 1, three quarters of 2.
    np.testing.assert_allclose(slots, np.array([0.5, 1.0, 0.75, 0.0, 0.0]) / 2.25, atol=0.05)


def test_no_index_is_drawn_from_nothing():
    assert draw_index(np.full(3, -math.inf), 0.3) == -1
    logs = np.log(np.array([1e-300, 1.0, 3.0]))
    assert draw_index(logs, 1.0 - 2.0**-53) == 2
    assert draw_index(np.array([-math.inf, 0.0, -math.inf]), 0.0) == 1


def test_normal_quantiles():
    p = np.array([1e-299, 1e-100, 1e-17, 1e-5, 0.1, 0.3, 0.5, 0.7, 0.999, 1.0 - 1e-10])
    found = [normal_quantile(x) for x in p]
    np.testing.assert_allclose(found, stats.norm.ppf(p), rtol=1e-12, atol=1e-15)
    assert np.isfinite([normal_quantile(0.0), normal_quantile(1.0)]).all()
