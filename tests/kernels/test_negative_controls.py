"""Kernels that are deliberately wrong must fail the checks of ``test_invariance.py``.

Each mistake is one that was made somewhere or that is easily made. The margin is wide: a p-value
below 1e-12, where a right kernel has to stay above 3e-7. What Numba can compile is compiled too.
"""

import math

import numpy as np
import pytest

from pymc_apm.kernels import (
    State,
    correlated_normal,
    elliptical_slice,
    linear_slice,
    metropolis,
    random_direction,
    random_walk,
    random_walk_metropolis,
    refresh_block,
)
from pymc_apm.kernels.blocks import choose_block
from pymc_apm.kernels.draws import draw_normal
from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kernels.linear import length
from pymc_apm.kernels.normal import normal_cdf, normal_quantile
from pymc_apm.kernels.reflective import reflected_line
from pymc_apm.kernels.slice import line, shrink
from tests.kernels.runs import Update, compiled, in_python, on_theta, on_u, run_chains
from tests.kernels.targets import JOINTS, log_estimate, p_values
from tests.kernels.test_invariance import INDEPENDENT_NORMAL, N_ROUNDS, THRESHOLD, TWO, walk_theta

FAR_BELOW_THE_THRESHOLD = 1e-12
RUNNERS = {"python": (in_python, 8000), "compiled": (compiled, 20_000)}


def refreshed_on_rejection(rng, state, log_density):
    """Metropolis independence that draws u anew when the proposal is rejected."""
    moved, info = metropolis(rng, state, log_density, draw_normal(rng, state.position.size))
    if info.accepted:
        return moved, info
    fresh = draw_normal(rng, state.position.size)
    value, memo = log_density(fresh, state.memo)
    return State(fresh, value, memo), info


def log_density_of_the_rejected_proposal(rng, state, log_density):
    """The stored value is overwritten by each evaluation, whether or not it is accepted."""
    proposal = random_walk(rng, state.position, np.eye(state.position.size), 1.0)
    moved, info = metropolis(rng, state, log_density, proposal)
    value, _ = log_density(proposal, state.memo)
    return State(moved.position, value, moved.memo), info


def log_density_not_replaced_on_acceptance(rng, state, log_density):
    factor = np.eye(state.position.size)
    moved, info = random_walk_metropolis(rng, state, log_density, factor, 1.0)
    return State(moved.position, state.log_density, moved.memo), info


def log_density_of_the_first_proposal(rng, state, log_density):
    """A slice update that keeps the value of its first proposal, not of the accepted one."""
    values = []

    def recorded(position, memo):
        values.append(log_density(position, memo)[0])
        return values[-1], memo

    moved, info = linear_slice(rng, state, recorded, np.ones(state.position.size), 3.0)
    return State(moved.position, values[0]), info


def estimated_anew_at_the_current_point(rng, evaluation, arguments):
    """Metropolis with fresh noise in both estimates: "Monte Carlo within Metropolis"."""
    number, old, u = evaluation.values
    theta = random_walk(rng, old, np.eye(old.size), 0.4)
    here, there = draw_normal(rng, u.size), draw_normal(rng, u.size)
    value_here, value_there = log_estimate(number, old, here), log_estimate(number, theta, there)
    if math.log(1.0 - rng.random()) < value_there - value_here:
        return theta, there, value_there
    return old, here, value_here


def slice_estimated_anew(rng, evaluation, arguments):
    """Slice sampling of a noisy density: each evaluation draws its own u."""
    number, theta, u = evaluation.values

    def noisy(theta, _):
        fresh = rng.standard_normal(u.size)
        return log_estimate(number, theta, fresh), fresh

    value, fresh = noisy(theta, None)
    state, _ = linear_slice(rng, State(theta, value, fresh), noisy, np.ones(1), 1.0)
    return state.position, state.memo, state.log_density


def slice_along(path):
    """A slice update of u along any path, with a bracket of width 1."""

    def kernel(rng, state, log_density):
        direction = draw_normal(rng, state.position.size)
        log_height = state.log_density - rng.standard_exponential()
        lower = -rng.random()
        z = lower + rng.random()
        return shrink(rng, state, log_density, path, direction, log_height, z, lower, lower + 1.0)

    return kernel


def clipped_line(u, direction, z):
    return np.minimum(np.maximum(u + z * direction, 0.0), 1.0)


def line_without_abs(u, direction, z):
    x = u + z * direction
    return x - 2.0 * np.rint(0.5 * x)


def line_by_remainder(u, direction, z):
    x = (u + z * direction) % 2.0
    return np.minimum(x, 2.0 - x)


def stepped_out(state, log_density, log_height, end, step, limit):
    """Return where the bracket of one parameter ends after some steps at the most."""
    for _ in range(limit):
        value, _ = log_density(state.position + end, state.memo)
        if not value > log_height:
            break
        end += step
    return end


def step_out(split):
    """Slice sampling whose limit on stepping out is divided by ``split(uniform, limit)``."""

    def kernel(rng, state, log_density, width, limit):
        log_height = state.log_density - rng.standard_exponential()
        lower = -width * rng.random()
        upper = lower + width
        below = split(rng.random(), limit)
        above = limit - 1 - below
        lower = stepped_out(state, log_density, log_height, lower, -width, below)
        upper = stepped_out(state, log_density, log_height, upper, width, above)
        z = lower + (upper - lower) * rng.random()
        return shrink(rng, state, log_density, line, np.ones(1), log_height, z, lower, upper)

    return kernel


def split_by_floor(uniform, limit):
    return math.floor(uniform * limit)


def split_by_rounding(uniform, limit):
    return math.floor(uniform * limit + 0.5)


def split_evenly(_, limit):
    return (limit - 1) // 2


def shrunk(keep):
    """Slice sampling that shrinks the bracket by ``keep(lower, upper, rejected)``."""

    def kernel(rng, state, log_density):
        log_height = state.log_density - rng.standard_exponential()
        lower = -rng.random()
        upper = lower + 1.0
        for _ in range(20):
            z = lower + (upper - lower) * rng.random()
            position = state.position + z
            value, memo = log_density(position, state.memo)
            if value > log_height:
                return State(position, value, memo), True
            lower, upper = keep(lower, upper, z)
        return state, False

    return kernel


def side_of_the_current_point(lower, upper, z):
    return (z, upper) if z < 0.0 else (lower, z)


def wrong_side(lower, upper, z):
    return (lower, z) if z < 0.0 else (z, upper)


def written_over_the_current_position(rng, state, log_density):
    """Slice sampling that writes its proposals into the memory of the current position."""
    log_height = state.log_density - rng.standard_exponential()
    lower = -rng.random()
    upper = lower + 1.0
    position = state.position
    for _ in range(200):
        z = lower + (upper - lower) * rng.random()
        position[0] = state.position[0] + z
        value, memo = log_density(position, state.memo)
        if value > log_height:
            return State(position, value, memo), True
        lower, upper = side_of_the_current_point(lower, upper, z)
    return state, False


def ellipse_with(draw_direction, path=ellipse):
    """Elliptical slice sampling whose second axis, or path, may be another one."""

    def kernel(rng, state, log_density):
        direction = draw_direction(rng, state.position.size)
        log_height = state.log_density - rng.standard_exponential()
        z = 2.0 * math.pi * rng.random()
        lower = z - 2.0 * math.pi
        return shrink(rng, state, log_density, path, direction, log_height, z, lower, z)

    return kernel


def always_the_same(rng, size):
    return np.ones(size)


def twice_as_long(rng, size):
    return 2.0 * draw_normal(rng, size)


def ellipse_by_half_angle(u, direction, angle):
    half = math.tan(0.5 * angle)
    return (u * (1.0 - half * half) + 2.0 * direction * half) / (1.0 + half * half)


def about_t_with(exponent_of_t, draw_scale):
    """Slice sampling along an ellipse about a t distribution, whose parts may be wrong."""

    def kernel(rng, state, log_density):
        dof, here = 3.0, state.position - 0.5
        tail = exponent_of_t(0.5 * (dof + here.size))
        square = length(here) ** 2
        direction = draw_scale(rng, square, dof, here.size) * draw_normal(rng, here.size)
        log_height = state.log_density + tail * math.log1p(square / dof)
        log_height -= rng.standard_exponential()
        z = 2.0 * math.pi * rng.random()
        lower, upper = z - 2.0 * math.pi, z
        for _ in range(200):
            there = ellipse(here, direction, z)
            value, memo = log_density(there + 0.5, state.memo)
            if value + tail * math.log1p(length(there) ** 2 / dof) > log_height:
                return State(there + 0.5, value, memo), True
            lower, upper = side_of_the_current_point(lower, upper, z)
            z = lower + (upper - lower) * rng.random()
        return state, False

    return kernel


def right_exponent(exponent):
    return exponent


def no_exponent(exponent):
    return 0.0


def scale_given_the_position(rng, square, dof, dim):
    return math.sqrt(0.5 * (dof + square) / rng.standard_gamma(0.5 * (dof + dim)))


def scale_not_given_the_position(rng, square, dof, dim):
    return math.sqrt(0.5 * dof / rng.standard_gamma(0.5 * dof))


def scale_without_the_dimension(rng, square, dof, dim):
    return math.sqrt(0.5 * (dof + square) / rng.standard_gamma(0.5 * dof))


def prior_counted_twice(rng, state, log_density):
    """Elliptical slice sampling of the estimate *times* the density of u."""

    def with_prior(u, memo):
        value, memo = log_density(u, memo)
        return value - 0.5 * float(np.dot(u, u)), memo

    start = State(state.position, with_prior(state.position, state.memo)[0], state.memo)
    moved, info = elliptical_slice(rng, start, with_prior)
    return State(moved.position, log_density(moved.position, state.memo)[0]), info


def direction_that_depends_on_the_position(rng, state, log_density):
    direction = random_direction(rng, np.eye(2)) * (0.2 + np.abs(state.position))
    return linear_slice(rng, state, log_density, direction, 1.0)


def walk_rounded_down(rng, state, log_density):
    """An integer step that is not symmetric."""
    proposal = random_walk(rng, state.position, np.eye(2), 1.5)
    proposal[0] = math.floor(proposal[0])
    return metropolis(rng, state, log_density, proposal)


def copula_with(quantile):
    """A correlated move of uniform numbers on the scale of another quantile function."""

    def kernel(rng, state, log_density):
        moved = correlated_normal(rng, quantile(state.position), 0.95)
        return metropolis(rng, state, log_density, normal_cdf(moved))

    return kernel


def quantile_too_large(p):
    return 1.1 * normal_quantile(p)


def quantile_by_symmetry(p):
    return -normal_quantile(1.0 - p)


def refreshing(choose, draw):
    """Refresh one of the numbers of u, which ``choose(rng, u)`` chooses."""

    def kernel(rng, state, log_density):
        block = choose(rng, state.position)
        n_blocks = state.position.size
        proposal = refresh_block(rng, state.position, draw, n_blocks, n_blocks, block)
        return metropolis(rng, state, log_density, proposal)

    return kernel


def at_random(rng, u):
    return choose_block(rng, u.size)


def largest(rng, u):
    return int(np.argmax(np.abs(u)))


def correlated_by(choose):
    """A correlated move whose correlation ``choose(u)`` chooses."""

    def kernel(rng, state, log_density):
        proposal = correlated_normal(rng, state.position, choose(state.position))
        return metropolis(rng, state, log_density, proposal)

    return kernel


def by_the_position(u):
    return 0.9 if u[0] > 0.0 else 0.1


def always_half(u):
    return 0.5


CLIPPED = on_u(slice_along(clipped_line))()
ROUNDED = on_theta(step_out(split_by_rounding))(0.4, 3)

BROKEN = {
    "u refreshed on rejection": ("toy1", on_u(refreshed_on_rejection)()),
    "value of the rejected proposal": ("toy1", on_theta(log_density_of_the_rejected_proposal)()),
    "value not replaced": ("toy2", on_theta(log_density_not_replaced_on_acceptance)(), 12),
    "value of the first proposal": ("skewed", on_theta(log_density_of_the_first_proposal)()),
    "clipped instead of reflected": ("tilted1", CLIPPED),
    "clipped in two dimensions": ("tilted2", CLIPPED),
    "reflected line without abs": ("tilted2", on_u(slice_along(line_without_abs))()),
    "rounded split": ("toy1", ROUNDED),
    "rounded split, skewed": ("skewed", ROUNDED),
    "even split": ("skewed", on_theta(step_out(split_evenly))(0.4, 4)),
    # Where the slice is one interval a bracket without the current point only wastes the update:
    # these mistakes take a slice of two pieces to show.
    "shrunk to the wrong side": ("two_pieces", on_theta(shrunk(wrong_side))()),
    "proposals over the current position": (
        "two_pieces",
        on_theta(written_over_the_current_position)(),
    ),
    "direction not redrawn": ("toy2", on_u(ellipse_with(always_the_same))()),
    "direction of the wrong norm": ("toy1", on_u(ellipse_with(twice_as_long))()),
    "quantile too large": ("tilted2", on_u(copula_with(quantile_too_large))()),
    "about t without the t": (
        "toy2",
        on_theta(about_t_with(no_exponent, scale_given_the_position))(),
    ),
    "about t, scale whatever the position": (
        "correlated",
        on_theta(about_t_with(right_exponent, scale_not_given_the_position))(),
        12,
    ),
    "about t, scale of the wrong shape": (
        "toy2",
        on_theta(about_t_with(right_exponent, scale_without_the_dimension))(),
    ),
    "block of the largest number": ("toy2", on_u(refreshing(largest, draw_normal))()),
    "block of the wrong distribution": ("toy2", on_u(refreshing(at_random, twice_as_long))()),
    "correlation depends on u": ("toy2", on_u(correlated_by(by_the_position))()),
    "prior counted twice": ("toy1", on_u(prior_counted_twice)()),
    "direction depends on the position": (
        "correlated",
        on_theta(direction_that_depends_on_the_position)(),
    ),
    "integers rounded down": ("counts", on_theta(walk_rounded_down)()),
}

COMPILED = [
    "u refreshed on rejection",
    "value not replaced",
    "clipped in two dimensions",
    "reflected line without abs",
    "rounded split, skewed",
    "shrunk to the wrong side",
    "proposals over the current position",
    "direction of the wrong norm",
    "quantile too large",
    "block of the largest number",
]
"""Mistakes that are compiled too: it takes some seconds each."""

RIGHT = {
    "reflected line": ("tilted2", on_u(slice_along(reflected_line))()),
    "reflected by the remainder": ("tilted2", on_u(slice_along(line_by_remainder))()),
    "floor split": ("skewed", on_theta(step_out(split_by_floor))(0.4, 3)),
    "right side": ("two_pieces", on_theta(shrunk(side_of_the_current_point))()),
    "ellipse": ("toy1", on_u(ellipse_with(draw_normal))()),
    "ellipse by half of the angle": (
        "toy1",
        on_u(ellipse_with(draw_normal, ellipse_by_half_angle))(),
    ),
    "about t": ("toy2", on_theta(about_t_with(right_exponent, scale_given_the_position))()),
    "quantile by symmetry": ("tilted2", on_u(copula_with(quantile_by_symmetry))()),
    "block at random": ("toy2", on_u(refreshing(at_random, draw_normal))()),
    "correlation does not depend on u": ("toy2", on_u(correlated_by(always_half))()),
    "u not refreshed": ("toy1", INDEPENDENT_NORMAL),
    "value replaced": ("toy2", walk_theta(1.0, TWO), 12),
}


def smallest_p_value(runner, name, update, n_rounds=N_ROUNDS, checks=""):
    how, n_chains = RUNNERS[runner]
    rng = np.random.default_rng(20160510)
    before, after, moved = run_chains(rng, JOINTS[name], [update], n_chains, n_rounds, how)
    assert {part for part, rate in moved.items() if rate > 0.0} == update.moves
    p = p_values(before, after)
    return np.min([value for check, value in p.items() if check.endswith(checks)])


LONG = ["proposals over the current position"]


@pytest.mark.parametrize(
    ("runner", "mistake"),
    [
        pytest.param("python", mistake, marks=pytest.mark.slow if mistake in LONG else [])
        for mistake in BROKEN
    ]
    + [pytest.param("compiled", mistake, marks=pytest.mark.slow) for mistake in COMPILED],
)
def test_broken_kernel_fails_the_invariance_checks_by_a_wide_margin(runner, mistake):
    assert smallest_p_value(runner, *BROKEN[mistake]) < FAR_BELOW_THE_THRESHOLD


@pytest.mark.parametrize("function", [estimated_anew_at_the_current_point, slice_estimated_anew])
def test_estimating_the_current_point_anew_biases_theta_and_not_only_u(function):
    """Here u is fresh in each update, so what counts is the distribution of theta alone."""
    update = Update(function, frozenset({"theta", "u"}))
    p = smallest_p_value("python", "bounded", update, checks="of z0")
    assert p < FAR_BELOW_THE_THRESHOLD


@pytest.mark.parametrize("runner", ["python", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kernel", RIGHT)
def test_the_same_kernel_without_the_mistake_passes(kernel, runner):
    """What fails above is the mistake, not the way in which the test writes the kernel."""
    assert smallest_p_value(runner, *RIGHT[kernel]) > THRESHOLD
