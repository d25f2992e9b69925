"""Kernels that are deliberately wrong must fail the checks of ``test_invariance.py``.

Each mistake is one that was made somewhere or that is easily made. The margin is wide: a p-value
below 1e-12, where a right kernel has to stay above 5e-7.
"""

import math

import numpy as np
import pytest

from pymc_apm.kernels import (
    State,
    elliptical_slice,
    linear_slice,
    metropolis,
    random_direction,
    random_walk,
    random_walk_metropolis,
)
from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kernels.reflective import reflected_line
from pymc_apm.kernels.slice import line, shrink
from tests.kernels.targets import JOINTS, Chain, at, on_theta, on_u, p_values, run_chains

FAR_BELOW_THE_THRESHOLD = 1e-12
N_CHAINS = 8000


def refreshed_on_rejection(rng, state, log_density):
    """Metropolis independence that draws u anew when the proposal is rejected."""
    moved, info = metropolis(rng, state, log_density, rng.standard_normal(state.position.size))
    if info.accepted:
        return moved, info
    fresh = rng.standard_normal(state.position.size)
    return State(fresh, *log_density(fresh, state.memo)), info


def log_density_of_the_rejected_proposal(rng, state, log_density):
    """The stored value is overwritten by each evaluation, whether or not it is accepted."""
    proposal = random_walk(rng, state.position, np.eye(state.position.size), 1.0)
    moved, info = metropolis(rng, state, log_density, proposal)
    return State(moved.position, log_density(proposal, None)[0]), info


def log_density_not_replaced_on_acceptance(rng, state, log_density):
    factor = np.eye(state.position.size)
    moved, info = random_walk_metropolis(rng, state, log_density, factor, 1.0)
    return State(moved.position, state.log_density), info


def log_density_of_the_first_proposal(rng, state, log_density):
    """A slice update that keeps the value of its first proposal, not of the accepted one."""
    values = []

    def recorded(position, memo):
        values.append(log_density(position, memo)[0])
        return values[-1], memo

    moved, info = linear_slice(rng, state, recorded, np.ones(state.position.size), 3.0)
    return State(moved.position, values[0]), info


def estimated_anew_at_the_current_point(rng, joint, chain):
    """Metropolis with fresh noise in both estimates: "Monte Carlo within Metropolis"."""
    theta = random_walk(rng, chain.theta, np.eye(joint.n_theta), 0.4)
    here, there = rng.standard_normal((2, joint.n_u))
    value_here, value_there = (
        joint.log_estimate(chain.theta, here),
        joint.log_estimate(theta, there),
    )
    if math.log(1.0 - rng.random()) < value_there - value_here:
        return Chain(theta, there, value_there)
    return Chain(chain.theta, here, value_here)


def slice_estimated_anew(rng, joint, chain):
    """Slice sampling of a noisy density: each evaluation draws its own u."""

    def noisy(theta, _):
        u = rng.standard_normal(joint.n_u)
        return joint.log_estimate(theta, u), u

    value, u = noisy(chain.theta, None)
    state, _ = linear_slice(rng, State(chain.theta, value, u), noisy, np.ones(1), 1.0)
    return Chain(state.position, state.memo, state.log_density)


def slice_along(path, width=1.0):
    """A slice update in the unit cube along another path than the reflected line."""

    def kernel(rng, state, log_density):
        direction = rng.standard_normal(state.position.size)
        log_height = state.log_density - rng.standard_exponential()
        lower = -width * rng.random()
        z = lower + width * rng.random()
        return shrink(rng, state, log_density, path, direction, log_height, z, lower, lower + width)

    return kernel


def clipped_line(u, direction, z, out):
    np.clip(u + z * direction, 0.0, 1.0, out=out)


def step_out(split, width, limit):
    """Slice sampling whose limit on stepping out is divided by ``split(uniform, limit)``."""

    def kernel(rng, state, log_density):
        direction = np.ones(1)
        log_height = state.log_density - rng.standard_exponential()

        def inside(z):
            return log_density(at(line, state.position, direction, z), None)[0] > log_height

        lower = -width * rng.random()
        upper = lower + width
        below, above = split(rng.random(), limit)
        for _ in range(below):
            lower -= width * inside(lower)
        for _ in range(above):
            upper += width * inside(upper)
        z = lower + (upper - lower) * rng.random()
        return shrink(rng, state, log_density, line, direction, log_height, z, lower, upper)

    return kernel


def split_by_floor(uniform, limit):
    below = math.floor(uniform * limit)
    return below, limit - 1 - below


def split_by_rounding(uniform, limit):
    below = round(uniform * limit)
    return below, limit - 1 - below


def split_evenly(_, limit):
    return (limit - 1) // 2, limit - 1 - (limit - 1) // 2


def shrunk(keep):
    """Slice sampling that shrinks the bracket by ``keep(lower, upper, rejected)``."""

    def kernel(rng, state, log_density, width=1.0):
        log_height = state.log_density - rng.standard_exponential()
        lower = -width * rng.random()
        upper = lower + width
        for _ in range(20):
            z = lower + (upper - lower) * rng.random()
            position = at(line, state.position, np.ones(1), z)
            value, memo = log_density(position, state.memo)
            if value > log_height:
                return State(position, value, memo), None
            lower, upper = keep(lower, upper, z)
        return state, None

    return kernel


def side_of_the_current_point(lower, upper, z):
    return (z, upper) if z < 0.0 else (lower, z)


def wrong_side(lower, upper, z):
    return (lower, z) if z < 0.0 else (z, upper)


def ellipse_with(draw_direction):
    """Elliptical slice sampling whose second axis does not come from N(0, I)."""

    def kernel(rng, state, log_density):
        direction = draw_direction(rng, state.position.size)
        log_height = state.log_density - rng.standard_exponential()
        z = 2.0 * math.pi * rng.random()
        lower = z - 2.0 * math.pi
        return shrink(rng, state, log_density, ellipse, direction, log_height, z, lower, z)

    return kernel


def prior_counted_twice(rng, state, log_density):
    """Elliptical slice sampling of the estimate *times* the density of u."""

    def with_prior(u, memo):
        value, memo = log_density(u, memo)
        return value - 0.5 * float(np.dot(u, u)), memo

    start = State(state.position, with_prior(state.position, None)[0])
    moved, info = elliptical_slice(rng, start, with_prior)
    return State(moved.position, log_density(moved.position, None)[0]), info


def direction_that_depends_on_the_position(rng, state, log_density):
    direction = random_direction(rng, np.eye(2)) * (0.2 + np.abs(state.position))
    return linear_slice(rng, state, log_density, direction, 1.0)


def walk_rounded_down(rng, state, log_density):
    """An integer step that is not symmetric."""
    proposal = random_walk(rng, state.position, np.eye(2), 1.5)
    proposal[0] = math.floor(proposal[0])
    return metropolis(rng, state, log_density, proposal)


BROKEN = {
    "u refreshed on rejection": ("toy1", on_u(refreshed_on_rejection)),
    "value of the rejected proposal": ("toy1", on_theta(log_density_of_the_rejected_proposal)),
    "value not replaced": ("toy2", on_theta(log_density_not_replaced_on_acceptance), 12),
    "value of the first proposal": ("skewed", on_theta(log_density_of_the_first_proposal)),
    "clipped instead of reflected": ("tilted1", on_u(slice_along(clipped_line))),
    "clipped in two dimensions": ("tilted2", on_u(slice_along(clipped_line))),
    "rounded split": ("toy1", on_theta(step_out(split_by_rounding, 0.4, 3))),
    "rounded split, skewed": ("skewed", on_theta(step_out(split_by_rounding, 0.4, 3))),
    "even split": ("skewed", on_theta(step_out(split_evenly, 0.4, 4))),
    # Where the slice is one interval a bracket without the current point only wastes the update:
    # this mistake takes a slice of two pieces to show.
    "shrunk to the wrong side": ("two_pieces", on_theta(shrunk(wrong_side))),
    "direction not redrawn": ("toy2", on_u(ellipse_with(lambda rng, size: np.ones(size)))),
    "direction of the wrong norm": (
        "toy1",
        on_u(ellipse_with(lambda rng, size: 2.0 * rng.standard_normal(size))),
    ),
    "prior counted twice": ("toy1", on_u(prior_counted_twice)),
    "direction depends on the position": (
        "correlated",
        on_theta(direction_that_depends_on_the_position),
    ),
    "integers rounded down": ("counts", on_theta(walk_rounded_down)),
}

RIGHT = {
    "reflected line": ("tilted2", on_u(slice_along(reflected_line))),
    "floor split": ("skewed", on_theta(step_out(split_by_floor, 0.4, 3))),
    "right side": ("two_pieces", on_theta(shrunk(side_of_the_current_point))),
    "ellipse": ("toy1", on_u(ellipse_with(lambda rng, size: rng.standard_normal(size)))),
}


def smallest_p_value(name, update, n_rounds=3, checks=""):
    rng = np.random.default_rng(20160510)
    p = p_values(*run_chains(rng, JOINTS[name], [update], N_CHAINS, n_rounds))
    return min(value for check, value in p.items() if check.endswith(checks))


@pytest.mark.parametrize("mistake", BROKEN)
def test_broken_kernel_fails_the_invariance_checks_by_a_wide_margin(mistake):
    assert smallest_p_value(*BROKEN[mistake]) < FAR_BELOW_THE_THRESHOLD


@pytest.mark.parametrize("update", [estimated_anew_at_the_current_point, slice_estimated_anew])
def test_estimating_the_current_point_anew_biases_theta_and_not_only_u(update):
    """Here u is fresh in each update, so what counts is the distribution of theta alone."""
    assert smallest_p_value("bounded", update, checks="of z0") < FAR_BELOW_THE_THRESHOLD


@pytest.mark.parametrize("kernel", RIGHT)
def test_the_same_kernel_without_the_mistake_passes(kernel):
    """What fails above is the mistake, not the way in which the test writes the kernel."""
    assert smallest_p_value(*RIGHT[kernel]) > 1e-5
