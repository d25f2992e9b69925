"""Chains of streams that start from exact draws of the joint target must keep its distribution.

The estimator draws K = ceil(n * uniform) and then K normal numbers x, and log f_hat is the sum of
t * x - t^2 / 2 over these. As each factor has mean 1, the joint target given (t, n) is known: K is
uniform on 1, ..., n, and the K numbers that are used are independent N(t, 1). ``THRESHOLD`` bounds
the p-value of each check: with at most 200 checks, a right kernel fails one in 1000 times.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from pymc_apm.kernels import State, linear_slice, metropolis, metropolis_independence
from pymc_apm.kernels.slice import shrink
from pymc_apm.kernels.stream import (
    HEADER,
    Reader,
    correlated_normal_stream,
    correlated_uniform_stream,
    draw_seed,
    elliptical_slice_of_stream,
    fresh_stream,
    make_scratch,
    reflective_slice_of_stream,
    settled,
    stream_ellipse,
    stream_reflected_line,
)
from tests.kernels.targets import p_values

THRESHOLD = 5e-6
N_CHAINS = 2000
N_ROUNDS = 3
SCRATCH = make_scratch()


class Lazy(NamedTuple):
    """What an evaluation remembers: the numbers that it used, and all that were realised."""

    used: np.ndarray
    realised: np.ndarray


def estimate(vector, is_normal, tilt=1.0, largest=10):
    """Return log f_hat of a stream, and what was used of it."""
    reader = Reader(vector, is_normal, SCRATCH)
    first = reader.take_one()
    n = max(math.ceil(largest * (ndtr(first) if is_normal else first)), 1)
    x = reader.take(n)
    x = x if is_normal else ndtri(x)
    value = tilt * float(x.sum()) - 0.5 * tilt * tilt * n
    return value, Lazy(reader.used(), reader._numbers.copy())


def exact_numbers(rng, is_normal, tilt=1.0, largest=10):
    """Draw the numbers that are used from the joint target."""
    first = rng.random()
    x = tilt + rng.standard_normal(max(math.ceil(largest * first), 1))
    return np.append(ndtri(first), x) if is_normal else np.append(first, ndtr(x))


def scores(used, is_normal, tilt=1.0):
    """Turn used numbers into quantities that are independent N(0, 1) under the joint target."""
    normal = used if is_normal else ndtri(used)
    x = normal[1:] - tilt
    return normal[0], x.sum() / math.sqrt(x.size)


def checks(before, after, is_normal):
    """Return the p-values of all that is known of the numbers that are used."""
    first = np.array([scores(used, is_normal) for used in before])
    last = np.array([scores(used, is_normal) for used in after])
    p = p_values(first, last)
    counts = np.bincount([used.size - 1 for used in after], minlength=11)[1:]
    p["K"] = stats.chisquare(counts).pvalue
    normal = [used[1:] if is_normal else ndtri(used[1:]) for used in after]
    squares = [stats.chi2.cdf(np.sum((x - 1.0) ** 2), x.size) for x in normal]
    p["squares"] = stats.kstest(squares, "uniform", method="asymp").pvalue
    p["last number"] = stats.kstest([x[-1] - 1.0 for x in normal], "norm").pvalue
    return p


def run_chains(update, settle, is_normal, target, n_chains=N_CHAINS, n_rounds=N_ROUNDS):
    """Start from exact draws, settle and update; return the numbers used before and after.

    The log-estimate is computed for the start alone; from there on it is what kernels return.
    """
    estimate, exact_numbers = target
    rng = np.random.default_rng(20160510)
    before, after = [], []
    for _ in range(n_chains):
        used = exact_numbers(rng, is_normal)
        position = settled(rng, used)
        state = State(position, *estimate(position, is_normal))
        before.append(used)
        for _ in range(n_rounds):
            state = State(settle(rng, state), state.log_density, state.memo)
            state, _ = update(rng, state, lambda u, memo: estimate(u, is_normal))
        after.append(state.memo.used)
    return before, after


def settle_used(rng, state):
    return settled(rng, state.memo.used)


def independence(rng, state, log_density):
    return metropolis_independence(rng, state, log_density, fresh_stream)


def correlated(propose, correlation):
    def kernel(rng, state, log_density):
        return metropolis(rng, state, log_density, propose(rng, state.position, correlation))

    return kernel


KERNELS = {
    "elliptical": (elliptical_slice_of_stream, True),
    "reflective": (reflective_slice_of_stream, False),
    "reflective, wide": (
        lambda rng, state, log_density: reflective_slice_of_stream(rng, state, log_density, 5.0),
        False,
    ),
    "independence, normal": (independence, True),
    "independence, uniform": (independence, False),
    "correlated normal": (correlated(correlated_normal_stream, 0.7), True),
    "correlated uniform": (correlated(correlated_uniform_stream, 0.7), False),
}


@pytest.mark.parametrize("name", KERNELS)
def test_updates_of_a_stream_leave_the_numbers_that_are_used_invariant(name):
    update, is_normal = KERNELS[name]
    before, after = run_chains(update, settle_used, is_normal, (estimate, exact_numbers))
    p = checks(before, after, is_normal)
    assert min(p.values()) > THRESHOLD, {key: value for key, value in p.items() if value < 0.001}
    moved = np.mean([not np.array_equal(a, b) for a, b in zip(before, after, strict=True)])
    assert moved > 0.2


# Updates of theta: its value decides how many numbers are used, out of a stream that has moved.


def largest_of(theta):
    return 5 if theta < 1.0 else 10


def with_theta(theta, vector, is_normal):
    value, memo = estimate(vector, is_normal, float(theta[0]), largest_of(theta[0]))
    return value - 2.0 * float(theta[0] - 1.0) ** 2, memo


@pytest.mark.parametrize("is_normal", [True, False], ids=["normal", "uniform"])
@pytest.mark.parametrize("slice_u", [True, False], ids=["slice", "independence"])
def test_updates_of_theta_and_the_stream_leave_their_joint_target_invariant(is_normal, slice_u):
    rng = np.random.default_rng(20160511)
    on_stream = elliptical_slice_of_stream if is_normal else reflective_slice_of_stream
    on_stream = on_stream if slice_u else independence
    before, after = [], []
    for _ in range(N_CHAINS):
        theta = np.array([1.0 + 0.5 * rng.standard_normal()])
        used = exact_numbers(rng, is_normal, theta[0], largest_of(theta[0]))
        vector = settled(rng, used)
        value, memo = with_theta(theta, vector, is_normal)
        before.append((2.0 * (theta[0] - 1.0), *scores(used, is_normal, theta[0])))
        for _ in range(N_ROUNDS):
            clamped_theta = theta
            state = State(settled(rng, memo.used), value, memo)
            state, _ = on_stream(
                rng, state, lambda u, memo, t=clamped_theta: with_theta(t, u, is_normal)
            )
            vector = state.position  # not settled here: theta sees the sequence as it was moved
            state, _ = linear_slice(
                rng,
                State(theta, state.log_density, state.memo),
                lambda t, memo, u=vector: with_theta(t, u, is_normal),
                np.ones(1),
                1.0,
            )
            theta, value, memo = state
        after.append((2.0 * (theta[0] - 1.0), *scores(memo.used, is_normal, theta[0])))
    p = p_values(np.array(before), np.array(after))
    assert min(p.values()) > THRESHOLD, {key: value for key, value in p.items() if value < 0.001}


# Mistakes, on a target that shows them. The first number is in a narrow range around the middle. If
# it is above, a second number is drawn, and the estimate is zero unless that one lies in a fifth of
# its distribution: five times as large where it does. So half of the exact draws use two numbers.


def branching(vector, is_normal):
    reader = Reader(vector, is_normal, SCRATCH)
    first = reader.take_one() - (0.0 if is_normal else 0.5)
    value = -0.5 * (first / 0.03) ** 2
    if first > 0.0:
        second = reader.take_one()
        is_hit = (ndtr(second) if is_normal else second) < 0.2
        value = value + math.log(5.0) if is_hit else -math.inf
    return value, Lazy(reader.used(), reader._numbers.copy())


def exact_branching(rng, is_normal):
    if is_normal:
        first = rng.standard_normal() / math.hypot(1.0, 1.0 / 0.03)
    else:
        first = 0.5 + 0.03 * rng.standard_normal()
    second = 0.2 * (1.0 - rng.random())
    is_above = first > (0.0 if is_normal else 0.5)
    return np.array([first, ndtri(second) if is_normal else second][: 1 + is_above])


def z_of_branches(update, settle, is_normal, n_chains=1500, n_rounds=12):
    """Return by how many standard errors the number of draws of two numbers changed."""
    target = branching, exact_branching
    before, after = run_chains(update, settle, is_normal, target, n_chains, n_rounds)
    change = [b.size - a.size for a, b in zip(before, after, strict=True)]
    return abs(np.sum(change)) / np.linalg.norm(change)


def settle_all_that_was_realised(rng, state):
    """Numbers that are not used are kept if they happen to be known, and are redrawn if not.

    To keep *all* of an accepted sequence would be right, and to redraw all that is not used is
    right. To redraw or to keep according to the history is not: what is known comes from estimates
    that used it, and is not distributed as q(u).
    """
    return settled(rng, state.memo.realised)


def settle_with_the_same_tail(rng, state):
    """The tail is kept by its seed, as it was before the move."""
    vector = settled(rng, state.memo.used)
    vector[0] = state.position[0]
    return vector


def settle_with_the_direction_as_tail(rng, state):
    """Not a mistake, as it happens: tails and directions of the same seed are independent."""
    vector = settled(rng, state.memo.used)
    vector[0] = state.position[1] or vector[0]
    return vector


def settle_without_the_last_number(rng, state):
    return settled(rng, state.memo.used[:-1])


def slice_along(path, width):
    """A slice update of a stream along ``path(rng, position, direction, z)``."""

    def kernel(rng, state, log_density):
        size = state.position.size - HEADER
        direction = np.concatenate([[draw_seed(rng)], rng.standard_normal(size)])
        log_height = state.log_density - rng.standard_exponential()
        lower = -width * rng.random()
        bracket = lower + width * rng.random(), lower, lower + width
        move = functools.partial(path, rng)
        return shrink(rng, state, log_density, move, direction, log_height, *bracket)

    return kernel


def one_sequence(path):
    return lambda rng, position, direction, z: path(position, direction, z)


def tail_redrawn_for_each_proposal(path):
    def move(rng, position, direction, z):
        stream = path(position, direction, z)
        stream[0] = draw_seed(rng)
        return stream

    return move


SLICES = {
    "elliptical": (elliptical_slice_of_stream, stream_ellipse, 2.0 * math.pi, True),
    "reflective": (reflective_slice_of_stream, stream_reflected_line, 1.0, False),
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize(
    ("settle", "n_chains"),
    [
        # A small bias, which takes many chains to show.
        pytest.param(settle_all_that_was_realised, 2500, marks=pytest.mark.slow),
        (settle_with_the_same_tail, 1000),
    ],
    ids=["as far as it is known", "by its seed"],
)
def test_keeping_the_unused_tail_fails_by_a_wide_margin(name, settle, n_chains):
    kernel, *_, is_normal = SLICES[name]
    assert z_of_branches(kernel, settle, is_normal, n_chains) > 6.0


@pytest.mark.slow  # as above
def test_redrawing_the_tail_within_an_update_fails_by_a_wide_margin():
    _, path, width, is_normal = SLICES["elliptical"]
    kernel = slice_along(tail_redrawn_for_each_proposal(path), width)
    assert z_of_branches(kernel, settle_used, is_normal, n_chains=2500) > 6.0


@pytest.mark.parametrize("is_normal", [True, False], ids=["normal", "uniform"])
def test_dropping_a_number_that_was_used_fails_by_a_wide_margin(is_normal):
    propose = correlated_normal_stream if is_normal else correlated_uniform_stream
    target = estimate, exact_numbers
    settle = settle_without_the_last_number
    before, after = run_chains(correlated(propose, 0.97), settle, is_normal, target, 4000)
    assert min(checks(before, after, is_normal).values()) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize(
    "settle", [settle_used, settle_with_the_direction_as_tail], ids=lambda f: f.__name__
)
def test_the_same_update_without_the_mistake_passes(name, settle):
    """What fails above is the mistake, not the way in which the test writes the kernel."""
    _, path, width, is_normal = SLICES[name]
    assert z_of_branches(slice_along(one_sequence(path), width), settle, is_normal) < 4.5
