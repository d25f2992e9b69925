"""Compiled chains that start from exact draws of the joint target must keep its distribution.

The checks of ``tests/kernels/test_invariance.py``, for the kernels as Numba compiles them and with
all chains of a case in one compiled function. The family-wise false alarm rate is at most 1/1000:
every p-value of every right kernel is compared with ``THRESHOLD``, and a test counts them. A check
then fails at 4.9 standard errors, so that with ``N_CHAINS`` chains a bias of 0.035 standard
deviations in the mean of (the normal score of) a coordinate is found with probability 1/2 and one
of 0.044 with probability 0.9; for a variance the same numbers are 5 and 6 per cent, for a
distribution function about 0.019 and 0.024. Kernels that are deliberately wrong have to fail by a
wide margin.
"""

import functools
import math
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from pymc_apm.compiled import jit
from pymc_apm.compiled.jit import Static
from pymc_apm.compiled.substitutes import SUBSTITUTES, _normal_quantile
from pymc_apm.kernels import (
    UNLIMITED,
    SliceInfo,
    State,
    coordinate_slice,
    correlated_normal,
    correlated_uniform,
    elliptical_slice,
    linear_slice,
    metropolis,
    metropolis_independence,
    random_direction,
    random_walk,
    reflective_slice,
)
from pymc_apm.kernels.draws import draw_normal, draw_uniform
from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kernels.normal import normal_quantile
from pymc_apm.kernels.reflective import reflected_line
from pymc_apm.kernels.slice import line, shrink
from pymc_apm.updates.random_walk import WalkOptions, propose_jointly, update_by_random_walk
from pymc_apm.updates.slice import SliceOptions, update_by_slice
from tests.kernels.targets import CORRELATED, JOINTS, n_checks, p_values

THRESHOLD = 1e-6
FAR_BELOW_THE_THRESHOLD = 1e-12
N_CHAINS = 20_000
N_ROUNDS = 3

# The log-estimates of the targets


@numba.njit
def tilted_by(value, shift, u):
    return value + shift * u[0] - 0.5 * shift * shift


@numba.njit
def toy2(theta, u):
    return -(theta[0] * (theta[0] + u[0]) + theta[1] * (theta[1] + u[1]))


@numba.njit
def skewed(theta, u):
    if not theta[0] > 0.0:
        return -math.inf
    log_theta = math.log(theta[0])
    return tilted_by(log_theta - theta[0], log_theta, u)


@numba.njit
def bounded(theta, u):
    if not 0.0 < theta[0] < 1.0:
        return -math.inf
    return tilted_by(math.log(theta[0]), 3.0 * theta[0], u)


@numba.njit
def two_pieces(theta, u):
    if 0.0 < theta[0] < 0.05:
        return tilted_by(math.log(10.0), theta[0], u)
    if 0.7 < theta[0] < 1.0:
        return tilted_by(-math.log(0.6), theta[0], u)
    return -math.inf


@numba.njit
def correlated(theta, u):
    first = theta[0]
    second = (theta[1] - 1.8 * first) / 0.6
    return tilted_by(-0.5 * (first * first + second * second), theta[0] - theta[1], u)


@numba.njit
def counts(theta, u):
    k, x = theta[0], theta[1]
    if k < 0.0 or k != math.floor(k):
        return -math.inf
    log_density = k * math.log(3.0) - math.lgamma(k + 1.0) - 0.5 * (x - 0.5 * k) ** 2
    return tilted_by(log_density, x, u)


@numba.njit
def powers(theta, u):
    product = u[0] * (1.0 - u[1])
    if not theta[0] > 0.0 or product <= 0.0:
        return -math.inf
    log_density = math.log(theta[0]) - theta[0]
    return log_density + 2.0 * math.log1p(theta[0]) + theta[0] * math.log(product)


@numba.njit
def tilted2(theta, u):
    t = theta[0]
    log_mean = math.log(math.expm1(t) / t) if t != 0.0 else 0.0
    return -0.125 * t * t + t * (u[0] + u[1]) - 2.0 * log_mean


@numba.njit
def triangle(theta, u):
    return 0.0 if 0.0 < u[0] < theta[0] < 1.0 else -math.inf


@numba.njit
def two_humps(theta, size):
    return -0.5 * theta[0] ** 2 + (2.0 * math.log(size) if size > 0.0 else -math.inf)


@numba.njit
def two_humps_normal(theta, u):
    return two_humps(theta, abs(u[0]))


@numba.njit
def two_humps_uniform(theta, u):
    return two_humps(theta, abs(2.0 * u[0] - 1.0))


LOG_ESTIMATES = {
    function.__name__: function
    for function in [
        *[toy2, skewed, bounded, two_pieces, correlated, counts],
        *[powers, tilted2, triangle, two_humps_normal, two_humps_uniform],
    ]
}
NUMBER = {name: number for number, name in enumerate(LOG_ESTIMATES)}


def one_for_all_targets():
    """Return a function that is told the number of the target, so that it is compiled once."""
    lines = ["def log_estimate(target, theta, u):"]
    for name, number in NUMBER.items():
        lines += [f"    if target == {number}:", f"        return {name}(theta, u)"]
    lines += ["    return math.nan"]
    namespace = {"math": math, **LOG_ESTIMATES}
    exec("\n".join(lines), namespace)
    return numba.njit(namespace["log_estimate"])


log_estimate = one_for_all_targets()


# The harness


@Static
@numba.njit
def along_theta(theta, memo):
    target, u = memo
    return log_estimate(target, theta, u), memo


@Static
@numba.njit
def along_u(u, memo):
    target, theta = memo
    return log_estimate(target, theta, u), memo


@Static
@numba.njit
def along_both(position, target):
    return log_estimate(target, position[0], position[1]), target


def on_theta(kernel):
    """Apply ``kernel(rng, state, log_density, *arguments)`` to theta while u stays."""
    kernel = jit.jitted(kernel)

    @numba.njit
    def update(rng, target, theta, u, value, arguments):
        state, _ = kernel(rng, State(theta, value, (target, u)), along_theta, *arguments)
        return state.position, u, state.log_density

    return update


def on_u(kernel):
    """Apply ``kernel(rng, state, log_density, *arguments)`` to u while theta stays."""
    kernel = jit.jitted(kernel)

    @numba.njit
    def update(rng, target, theta, u, value, arguments):
        state, _ = kernel(rng, State(u, value, (target, theta)), along_u, *arguments)
        return theta, state.position, state.log_density

    return update


def on_both(kernel):
    """Apply ``kernel(rng, state, log_density, *arguments)`` to the tuple of theta and u."""
    kernel = jit.jitted(kernel)

    @numba.njit
    def update(rng, target, theta, u, value, arguments):
        state, _ = kernel(rng, State((theta, u), value, target), along_both, *arguments)
        return state.position[0], state.position[1], state.log_density

    return update


def substituted(on, kernel, function, other):
    """Compile an update whose kernel calls, however deep, another function in place of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SUBSTITUTES, function, other)
        patch.setattr(jit, "jitted", functools.cache(jit.jitted.__wrapped__))
        return on(kernel)


@numba.njit
def stay(rng, target, theta, u, value, arguments):
    return theta, u, value


@functools.cache
def compiled_chains(first, second):
    """Return a function that makes rounds of two updates, for all chains one after the other.

    The log-estimate is computed for the start alone: from there on chains live on what the kernels
    hand back, so that a wrong one shows.
    """

    @numba.njit
    def run(rng, target, n_rounds, thetas, us, first_arguments, second_arguments):
        for i in range(len(thetas)):
            theta, u = thetas[i].copy(), us[i].copy()
            value = log_estimate(target, theta, u)
            for _ in range(n_rounds):
                theta, u, value = first(rng, target, theta, u, value, first_arguments)
                theta, u, value = second(rng, target, theta, u, value, second_arguments)
            for j in range(theta.size):
                thetas[i, j] = theta[j]
            for j in range(u.size):
                us[i, j] = u[j]

    return run


class Update(NamedTuple):
    """A compiled update of a chain, and what else its kernel is called with."""

    function: Any
    arguments: tuple[Any, ...] = ()


def invariance(rng, name, updates, n_rounds=N_ROUNDS):
    """Return the p-values of all checks for chains on a target, and what they moved.

    A kernel that never moves keeps every distribution.
    """
    joint = JOINTS[name]
    starts = joint.from_normal(rng.standard_normal((N_CHAINS, joint.dim)))
    thetas, us = (np.array(start, order="C") for start in starts)
    first, second = [*updates, Update(stay)][:2]
    run = compiled_chains(first.function, second.function)
    run(rng, NUMBER[name], n_rounds, thetas, us, first.arguments, second.arguments)
    p = p_values(joint.to_normal(*starts), joint.to_normal(thetas, us))
    assert len(p) == n_checks(joint)
    rates = {"theta": np.mean(thetas != starts[0]), "u": np.mean(us != starts[1])}
    assert all(rate == 0.0 or rate > 0.4 for rate in rates.values())
    return p, {name for name, rate in rates.items() if rate > 0.0}


# The kernels


def slice_along_line(rng, state, log_density, factor, width, max_step_out):
    direction = random_direction(rng, factor)
    return linear_slice(rng, state, log_density, direction, width, max_step_out)


def walk(rng, state, log_density, factor, scaling, discrete):
    proposal = random_walk(rng, state.position, factor, scaling, discrete)
    return metropolis(rng, state, log_density, proposal)


def independent_normal_u(rng, state, log_density):
    return metropolis_independence(rng, state, log_density, draw_normal)


def independent_uniform_u(rng, state, log_density):
    return metropolis_independence(rng, state, log_density, draw_uniform)


def correlated_normal_u(rng, state, log_density, correlation):
    proposal = correlated_normal(rng, state.position, correlation)
    return metropolis(rng, state, log_density, proposal)


def correlated_uniform_u(rng, state, log_density, correlation):
    proposal = correlated_uniform(rng, state.position, correlation)
    return metropolis(rng, state, log_density, proposal)


def fresh_uniform(rng, us):
    return (draw_uniform(rng, us[0].size),)


def moved_normal(rng, us):
    return (correlated_normal(rng, us[0], 0.9),)


fresh_u, moved_u = (Static(jit.jitted(function)) for function in (fresh_uniform, moved_normal))


def pseudo_marginal(rng, state, log_density, options, factor, scaling):
    return propose_jointly(rng, state, log_density, options, factor, scaling, fresh_u, 0)


def pseudo_marginal_with_correlated_u(rng, state, log_density, options, factor, scaling):
    return propose_jointly(rng, state, log_density, options, factor, scaling, moved_u, 0)


LINE, COORDINATES, WALK = map(on_theta, [slice_along_line, coordinate_slice, walk])
SLICE_STEP, WALK_STEP = map(on_theta, [update_by_slice, update_by_random_walk])
ELLIPSE, REFLECTED = map(on_u, [elliptical_slice, reflective_slice])
INDEPENDENT_NORMAL, INDEPENDENT_UNIFORM = map(on_u, [independent_normal_u, independent_uniform_u])
CORRELATED_NORMAL, CORRELATED_UNIFORM = map(on_u, [correlated_normal_u, correlated_uniform_u])
JOINT, JOINT_CORRELATED = map(on_both, [pseudo_marginal, pseudo_marginal_with_correlated_u])

ONE, TWO = np.eye(1), np.eye(2)


def slices(factor, width, max_step_out=0):
    return Update(LINE, (factor, width, max_step_out))


def coordinates(*widths, max_step_out=0):
    return Update(COORDINATES, (np.array(widths), max_step_out))


def walks(factor, scaling, discrete=None):
    return Update(WALK, (factor, scaling, discrete))


def slice_step(factor, *widths, is_coordinate=False, max_step_out=0, length=0.0):
    options = SliceOptions(is_coordinate, 2, max_step_out, length, False, False, False, False)
    return Update(SLICE_STEP, (options, factor, np.array(widths)))


def walk_options(is_coordinate=False):
    return WalkOptions(is_coordinate, 2, None, (0.3, 0.3), 1.0, False, False, False)


def walk_step(factor, scaling, is_coordinate=False):
    return Update(WALK_STEP, (walk_options(is_coordinate), factor, scaling))


def proposals(function, factor, scaling):
    return Update(function, (walk_options(), factor, scaling))


def reflected(width):
    return Update(REFLECTED, (width,))


THETA_CASES = [
    ("no step out", "toy2", [slices(TWO, 0.6)]),
    ("no step out, narrow", "skewed", [slices(ONE, 0.5)]),
    ("no step out, wide", "skewed", [slices(ONE, 20.0)]),
    ("step out 3", "skewed", [slices(ONE, 0.4, 3)]),
    ("step out unlimited", "skewed", [slices(ONE, 0.4, UNLIMITED)]),
    ("no step out", "bounded", [slices(ONE, 0.7)]),
    ("step out unlimited", "bounded", [slices(ONE, 0.1, UNLIMITED)]),
    ("no step out", "two_pieces", [slices(ONE, 0.8)]),
    ("step out 3", "two_pieces", [slices(ONE, 0.25, 3)]),
    ("step out unlimited", "two_pieces", [slices(ONE, 0.15, UNLIMITED)]),
    ("step out 3", "triangle", [slices(ONE, 0.2, 3)]),
    ("step out 3", "powers", [slices(ONE, 0.5, 3)]),
    ("random direction", "correlated", [slices(TWO, 2.0)]),
    ("stretched direction", "correlated", [slices(CORRELATED, 2.0)]),
    ("stretched direction, step out 3", "correlated", [slices(CORRELATED, 0.7, 3)]),
    ("stretched direction, unlimited", "correlated", [slices(CORRELATED, 0.5, UNLIMITED)]),
    ("coordinates", "toy2", [coordinates(0.5, 3.0)]),
    ("coordinates, step out 3", "correlated", [coordinates(0.4, 1.5, max_step_out=3)]),
    ("coordinates", "bounded", [coordinates(0.7)]),
    ("random walk", "toy2", [walks(TWO, 1.0)]),
    ("random walk", "skewed", [walks(ONE, 1.5)]),
    ("random walk", "bounded", [walks(ONE, 0.4)]),
    ("random walk", "tilted2", [walks(ONE, 3.0)]),
    ("random walk with a factor", "correlated", [walks(CORRELATED, 1.2)]),
    ("rounded random walk", "counts", [walks(TWO, 1.5, np.array([True, False]))]),
]

U_CASES = [
    ("ellipse", "toy2", [Update(ELLIPSE)]),
    ("ellipse", "skewed", [Update(ELLIPSE)]),
    ("ellipse", "two_humps_normal", [Update(ELLIPSE)]),
    ("reflected, narrow", "tilted2", [reflected(0.2)]),
    ("reflected", "tilted2", [reflected(1.0)]),
    ("reflected, wide", "tilted2", [reflected(6.0)]),
    ("reflected", "powers", [reflected(1.0)]),
    ("reflected", "triangle", [reflected(1.0)]),
    ("reflected, narrow", "two_humps_uniform", [reflected(0.3)]),
    ("reflected, wide", "two_humps_uniform", [reflected(4.0)]),
    ("independent", "toy2", [Update(INDEPENDENT_NORMAL)]),
    ("independent", "two_humps_normal", [Update(INDEPENDENT_NORMAL)]),
    ("independent", "tilted2", [Update(INDEPENDENT_UNIFORM)]),
    ("independent", "triangle", [Update(INDEPENDENT_UNIFORM)]),
    ("correlated 0.5", "toy2", [Update(CORRELATED_NORMAL, (0.5,))]),
    ("correlated 0.95", "skewed", [Update(CORRELATED_NORMAL, (0.95,))]),
    ("correlated 0.5", "powers", [Update(CORRELATED_UNIFORM, (0.5,))]),
    ("correlated 0.95", "tilted2", [Update(CORRELATED_UNIFORM, (0.95,))]),
]

CASES_OF_BOTH = [
    ("pseudo-marginal", "powers", [proposals(JOINT, ONE, 1.0)]),
    ("pseudo-marginal", "triangle", [proposals(JOINT, ONE, 0.4)]),
    ("pseudo-marginal, correlated", "skewed", [proposals(JOINT_CORRELATED, ONE, 1.0)]),
    ("pseudo-marginal, correlated", "correlated", [proposals(JOINT_CORRELATED, CORRELATED, 1.0)]),
    ("SS+SS", "toy2", [Update(ELLIPSE), slice_step(TWO, 2.0, length=0.7)]),
    (
        "SS+SS, coordinates",
        "correlated",
        [Update(ELLIPSE), slice_step(TWO, 0.5, 2.0, is_coordinate=True, max_step_out=3)],
    ),
    ("SS+SS", "tilted2", [reflected(1.0), slice_step(ONE, 2.0, max_step_out=3)]),
    ("SS+MH", "triangle", [reflected(1.0), walk_step(ONE, 0.3)]),
    ("SS+MH", "tilted2", [reflected(1.0), walk_step(2.0 * ONE, 1.0, is_coordinate=True)]),
]

CASES = [
    *((*case, {"theta"}) for case in THETA_CASES),
    *((*case, {"u"}) for case in U_CASES),
    *((*case, {"theta", "u"}) for case in CASES_OF_BOTH),
]
"""A label, a target, the updates of a round and what they move."""


# Kernels that are wrong, and the same ones without the mistake


def refreshed_on_rejection(rng, state, log_density):
    """Metropolis independence that draws u anew when the proposal is rejected."""
    moved, info = metropolis(rng, state, log_density, draw_normal(rng, state.position.size))
    if info.accepted:
        return moved, info
    fresh = draw_normal(rng, state.position.size)
    value, memo = log_density(fresh, state.memo)
    return State(fresh, value, memo), info


def log_density_not_replaced(rng, state, log_density, factor, scaling):
    proposal = random_walk(rng, state.position, factor, scaling)
    moved, info = metropolis(rng, state, log_density, proposal)
    return State(moved.position, state.log_density, moved.memo), info


def slice_with_split(rng, state, log_density, width, max_step_out, is_rounded):
    """Slice sampling of one parameter whose limit on stepping out is split by rounding or not."""
    log_height = state.log_density - rng.standard_exponential()
    lower = -width * rng.random()
    upper = lower + width
    split = max_step_out * rng.random()
    below = math.floor(split + 0.5 if is_rounded else split)
    above = max_step_out - 1 - below
    end = np.empty(1)
    while below > 0:
        end[0] = state.position[0] + lower
        value, _ = log_density(end, state.memo)
        if not value > log_height:
            break
        lower -= width
        below -= 1
    while above > 0:
        end[0] = state.position[0] + upper
        value, _ = log_density(end, state.memo)
        if not value > log_height:
            break
        upper += width
        above -= 1
    z = lower + (upper - lower) * rng.random()
    return shrink(rng, state, log_density, line, np.ones(1), log_height, z, lower, upper)


def slice_that_shrinks(rng, state, log_density, width, to_wrong_side):
    """Slice sampling of one parameter that shrinks its bracket to the wrong side or not."""
    log_height = state.log_density - rng.standard_exponential()
    lower = -width * rng.random()
    upper = lower + width
    for attempt in range(1, 21):
        z = lower + (upper - lower) * rng.random()
        position = np.empty(1)
        position[0] = state.position[0] + z
        value, memo = log_density(position, state.memo)
        if value > log_height:
            return State(position, value, memo), SliceInfo(True, attempt, 0, z)
        if (z < 0.0) != to_wrong_side:
            lower = z
        else:
            upper = z
    return state, SliceInfo(False, 20, 0, 0.0)


def shrink_in_place(rng, state, log_density, path, direction, log_height, proposal, lower, upper):
    """Write proposals over the current position, not into memory of their own."""
    z, position = proposal, state.position
    for attempt in range(1, 201):
        path(state.position, direction, z, position)
        value, memo = log_density(position, state.memo)
        if value > log_height:
            return State(position, value, memo), SliceInfo(True, attempt, 0, z)
        if z < 0.0:
            lower = z
        else:
            upper = z
        z = lower + (upper - lower) * rng.random()
    return state, SliceInfo(False, 200, 0, 0.0)


def clipped_line(u, direction, z, out):
    for i in range(u.size):
        out[i] = min(max(u[i] + direction[i] * z, 0.0), 1.0)


def line_without_abs(u, direction, z, out):
    for i in range(u.size):
        x = u[i] + direction[i] * z
        out[i] = x - 2.0 * np.rint(0.5 * x)


def line_by_remainder(u, direction, z, out):
    for i in range(u.size):
        x = (u[i] + direction[i] * z) % 2.0
        out[i] = min(x, 2.0 - x)


def ellipse_of_wrong_norm(u, direction, angle, out):
    for i in range(u.size):
        out[i] = u[i] * math.cos(angle) + 2.0 * direction[i] * math.sin(angle)


def ellipse_by_half_angle(u, direction, angle, out):
    half = math.tan(0.5 * angle)
    for i in range(u.size):
        out[i] = (u[i] * (1.0 - half * half) + 2.0 * direction[i] * half) / (1.0 + half * half)


def quantile_too_large(p):
    return 1.1 * _normal_quantile(p)


def quantile_by_symmetry(p):
    return -_normal_quantile(1.0 - p)


CLIPPED = substituted(on_u, reflective_slice, reflected_line, clipped_line)
WITHOUT_ABS = substituted(on_u, reflective_slice, reflected_line, line_without_abs)
BY_REMAINDER = substituted(on_u, reflective_slice, reflected_line, line_by_remainder)
WRONG_NORM = substituted(on_u, elliptical_slice, ellipse, ellipse_of_wrong_norm)
BY_HALF_ANGLE = substituted(on_u, elliptical_slice, ellipse, ellipse_by_half_angle)
TOO_LARGE = substituted(on_u, correlated_uniform_u, normal_quantile, quantile_too_large)
BY_SYMMETRY = substituted(on_u, correlated_uniform_u, normal_quantile, quantile_by_symmetry)
IN_PLACE = substituted(on_theta, slice_along_line, shrink, shrink_in_place)
REFRESHED = on_u(refreshed_on_rejection)
NOT_REPLACED = on_theta(log_density_not_replaced)
SPLIT, SHRUNK = map(on_theta, [slice_with_split, slice_that_shrinks])

BROKEN = {
    "clipped instead of reflected": ("tilted2", Update(CLIPPED, (1.0,))),
    "reflected line without abs": ("tilted2", Update(WITHOUT_ABS, (1.0,))),
    "direction of the wrong norm": ("toy2", Update(WRONG_NORM)),
    "quantile too large": ("tilted2", Update(TOO_LARGE, (0.95,))),
    "rounded split": ("skewed", Update(SPLIT, (0.4, 3, True))),
    # Where the slice is one interval a bracket without the current point only wastes the update:
    # this mistake takes a slice of two pieces to show.
    "shrunk to the wrong side": ("two_pieces", Update(SHRUNK, (1.0, True))),
    "proposals over the current position": ("two_pieces", Update(IN_PLACE, (ONE, 1.0, 0))),
    "u refreshed on rejection": ("toy2", Update(REFRESHED)),
    "value not replaced": ("toy2", Update(NOT_REPLACED, (TWO, 1.0)), 12),
}

RIGHT = {
    "reflected by the remainder": ("tilted2", Update(BY_REMAINDER, (1.0,))),
    "ellipse by half of the angle": ("toy2", Update(BY_HALF_ANGLE)),
    "quantile by symmetry": ("tilted2", Update(BY_SYMMETRY, (0.95,))),
    "split by the floor": ("skewed", Update(SPLIT, (0.4, 3, False))),
    "shrunk to the right side": ("two_pieces", Update(SHRUNK, (1.0, False))),
    "u not refreshed": ("toy2", Update(INDEPENDENT_NORMAL)),
    "value replaced": ("toy2", walks(TWO, 1.0), 12),
}


def smallest_p_value(name, update, n_rounds=N_ROUNDS):
    p, moved = invariance(np.random.default_rng(20160510), name, [update], n_rounds)
    assert len(moved) == 1
    return np.min(list(p.values()))


def test_the_false_alarm_rate_over_all_checks_is_at_most_one_in_a_thousand():
    targets = [name for _, name, *_ in CASES] + [name for name, *_ in RIGHT.values()]
    assert sum(n_checks(JOINTS[name]) for name in targets) * THRESHOLD <= 1e-3


@pytest.mark.parametrize(
    ("number", "name", "updates", "expected"),
    [
        pytest.param(number, name, updates, expected, id=f"{label} on {name}")
        for number, (label, name, updates, expected) in enumerate(CASES)
    ],
)
def test_compiled_kernel_keeps_the_distribution_of_theta_and_u(number, name, updates, expected):
    p, moved = invariance(np.random.default_rng([20160511, number]), name, updates)
    assert moved == expected
    failed = {check: value for check, value in p.items() if not value > THRESHOLD}
    assert not failed


@pytest.mark.parametrize("mistake", BROKEN)
def test_broken_compiled_kernel_fails_the_invariance_checks_by_a_wide_margin(mistake):
    assert smallest_p_value(*BROKEN[mistake]) < FAR_BELOW_THE_THRESHOLD


@pytest.mark.parametrize("kernel", RIGHT)
def test_the_same_compiled_kernel_without_the_mistake_passes(kernel):
    """What fails above is the mistake, not the way in which it gets into the kernel."""
    assert smallest_p_value(*RIGHT[kernel]) > THRESHOLD


@numba.njit
def log_estimates(target, thetas, us, values):
    for i in range(len(thetas)):
        values[i] = log_estimate(target, thetas[i], us[i])


@pytest.mark.parametrize("name", LOG_ESTIMATES)
def test_compiled_log_estimate_is_that_of_the_target(name):
    joint = JOINTS[name]
    rng = np.random.default_rng(3)
    thetas, us = joint.from_normal(rng.standard_normal((400, joint.dim)))
    thetas, us = thetas.copy(), us.copy()
    thetas[200:] += np.rint(4.0 * rng.standard_normal(thetas[200:].shape)) / 4.0
    values = np.empty(400)
    log_estimates(NUMBER[name], thetas, us, values)
    expected = [joint.log_estimate(theta, u) for theta, u in zip(thetas, us, strict=True)]
    assert np.isfinite(values[:200]).all()
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-13)


def test_targets_outside_of_their_support_are_among_those_compared():
    outside = {"skewed": -1.0, "bounded": 1.5, "two_pieces": 0.3, "counts": 0.5, "triangle": 2.0}
    for name, theta in outside.items():
        joint, values = JOINTS[name], np.empty(1)
        thetas, us = np.full((1, joint.n_theta), theta), np.full((1, joint.n_u), 0.5)
        log_estimates(NUMBER[name], thetas, us, values)
        assert values[0] == joint.log_estimate(thetas[0], us[0]) == -math.inf
