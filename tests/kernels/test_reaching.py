"""Slice updates say what height they need, and a density may be zero below it."""

import math

import numpy as np
import pytest

from pymc_apm.kernels import (
    State,
    elliptical_slice,
    elliptical_t_slice,
    linear_slice,
    metropolis,
    reflective_slice,
)
from pymc_apm.types import FREE, Evaluation, reaching

DIM = 3


def log_density(position):
    return -2.0 * float(np.sum((position - 0.4) ** 2) ** 1.5)


def whole(position, memo):
    value = log_density(position)
    return value, Evaluation((position,), value, value, 0.0, 0.0, FREE, -math.inf)


def stopping(n_stopped, slack=1e-12):
    def density(position, memo):
        value, new = whole(position, memo)
        if value < memo.log_height - slack:
            n_stopped.append(1)
            return -math.inf, new._replace(log_density=-math.inf)
        return value, new

    return density


def linear(rng, state, density, **options):
    return linear_slice(rng, state, density, rng.standard_normal(DIM), 5.0, **options)


KERNELS = {
    "line": linear,
    "stepping out": lambda *args: linear(*args, max_step_out=6),
    "ellipse": elliptical_slice,
    "reflections": lambda rng, state, density: reflective_slice(rng, state, density),
    "ellipse about t": lambda rng, state, density: elliptical_t_slice(
        rng, state, density, np.zeros(DIM), np.eye(DIM), 3.0
    ),
}


def chain(kernel, density, n=200):
    rng = np.random.default_rng(1)
    value, memo = whole(np.full(DIM, 0.5), None)
    state, made = State(np.full(DIM, 0.5), value, memo), []
    for _ in range(n):
        state, info = kernel(rng, state, density)
        assert state.memo.log_height == -math.inf
        made.append((*state.position, state.log_density, *info[:3], info.accept_rate))
    return np.array(made)


@pytest.mark.parametrize("name", KERNELS)
def test_the_chain_is_the_same_with_a_density_that_stops(name):
    n_stopped = []
    stopped = chain(KERNELS[name], stopping(n_stopped))
    np.testing.assert_array_equal(stopped, chain(KERNELS[name], whole))
    assert len(n_stopped) > 20


@pytest.mark.parametrize("name", KERNELS)
def test_a_density_that_stops_too_early_makes_another_chain(name):
    stopped = chain(KERNELS[name], stopping([], slack=-0.5))
    assert not np.array_equal(stopped, chain(KERNELS[name], whole))


def test_metropolis_needs_all_densities_for_the_acceptance_rate():
    def walk(rng, state, density):
        state, info = metropolis(rng, state, density, state.position + rng.standard_normal(DIM))
        return state, (info.accepted, info.accept_rate, 0.0)

    def checking(position, memo):
        assert memo.log_height == -math.inf
        return whole(position, memo)

    rng = np.random.default_rng(2)
    value, memo = whole(np.zeros(DIM), None)
    state = State(np.zeros(DIM), value, memo)
    for _ in range(20):
        state, _ = walk(rng, state, checking)


def test_other_memos_stay_as_they_are():
    memo = object()
    assert reaching(memo, 1.0) is memo
    assert reaching(None, 1.0) is None
