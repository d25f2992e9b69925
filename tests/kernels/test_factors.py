"""Factor by factor, u and the parameters keep their joint distribution.

Chains start from exact draws of a product of targets. Every coordinate of every factor, and every
pair of them, is checked as in ``test_invariance.py``. The rule that stops the rounds couples the
factors: if it were wrong, they would become dependent.
"""

import math

import numpy as np
import pytest

from pymc_apm.adaptive.ellipse import update_by_ellipse
from pymc_apm.adaptive.random_walk import learn_walk, update_by_walk
from pymc_apm.adaptive.slice import learn_slice, update_by_slice
from pymc_apm.adaptive.transition import u_alone, u_then_theta
from pymc_apm.kernels.draws import draw_exponential, draw_normal, draw_uniform
from pymc_apm.kernels.factors import (
    Brackets,
    FactorsInfo,
    FactorsState,
    acceptance,
    all_left,
    ellipses,
    narrowed,
    reflected_lines,
)
from pymc_apm.types import FREE, cost_of, plus
from tests.kernels.products import (
    KERNELS,
    PRODUCTS,
    THETA,
    along_theta,
    along_u,
    factor_by_factor,
    run_product,
    spoilt_along_u,
)
from tests.kernels.runs import compiled, in_python
from tests.kernels.targets import p_values
from tests.kernels.test_invariance import sliced, walked
from tests.marks import others_are_slow

THRESHOLD = 2e-7
N_CHAINS, N_ROUNDS = 3000, 3
RUNNERS = {"python": (in_python, N_CHAINS), "compiled": (compiled, 20_000)}

KINDS = [*KERNELS]
MOVES = ("nothing", "line", "coordinates", "ellipse", "walk")
"""What is done about the parameters after an update of u."""

QUICK = [
    ("normal", "slice", "nothing"),
    ("uniform", "slice", "nothing"),
    ("normal", "independence", "line"),
]


def transition_of(update_u, move, n_theta):
    """Return a transition with its options and what it has learnt."""
    unit = np.eye(n_theta)
    if move == "nothing":
        return u_alone(update_u), *sliced(unit, 1.0)
    if move == "walk":
        options, learnt = walked(unit, 0.5)
        return (
            u_then_theta(update_u, update_by_walk, learn_walk, along_theta, THETA),
            options,
            learnt,
        )
    update_theta = update_by_ellipse if move == "ellipse" else update_by_slice
    transition = u_then_theta(update_u, update_theta, learn_slice, along_theta, THETA)
    if move == "coordinates":
        return transition, *sliced(unit, *np.linspace(0.5, 2.0, n_theta), is_coordinate=True)
    options, learnt = sliced(unit, 2.0)
    if move == "ellipse":
        covariance = learnt.covariance._replace(n_windows=1, center=np.full(n_theta, 0.5))
        learnt = learnt._replace(covariance=covariance)
    return transition, options, learnt


def run(kind, kernel, move="nothing", how=in_python, n_chains=N_CHAINS, density=along_u):
    product = PRODUCTS[kind]
    transition = transition_of(factor_by_factor(kernel, density), move, product.n_theta)
    rng = np.random.default_rng([20261118, n_chains, *map(ord, move)])
    return run_product(rng, product, *transition, n_chains, N_ROUNDS, how)


CASES = [
    (*cell, move, runner)
    for cell in KINDS
    for move in MOVES
    for runner in RUNNERS
    if runner == "python" or move == "ellipse"
]


def n_checks(dim):
    return 5 * dim + dim * (dim - 1) // 2


def test_the_false_alarm_rate_over_all_checks_is_at_most_one_in_a_thousand():
    n_all = sum(n_checks(PRODUCTS[kind].dim) for kind, *_ in [*CASES, *4 * [("uniform",)]])
    assert n_all * THRESHOLD <= 1e-3


@pytest.mark.parametrize(
    ("kind", "update", "move", "runner"),
    [
        pytest.param(
            *case, marks=[] if case[3] == "python" and case[:3] in QUICK else pytest.mark.slow
        )
        for case in CASES
    ],
)
def test_all_factors_keep_their_joint_distribution(kind, update, move, runner):
    how, n_chains = RUNNERS[runner]
    result, error = run(kind, KERNELS[kind, update], move, how, n_chains)
    p = p_values(result.before, result.after)
    assert len(p) == n_checks(PRODUCTS[kind].dim)
    assert not {check: value for check, value in p.items() if not value > THRESHOLD}
    assert error < 1e-12  # what is handed on is what would be computed
    assert result.moved["u"] > 0.4
    assert (result.moved["theta"] > 0.1) == (move != "nothing")


@pytest.mark.parametrize("update", ["slice", "independence"])
def test_a_factor_that_spoils_the_others_does_no_harm(update):
    """An estimate of zero for one factor makes those of all others NaN."""
    result, error = run("uniform", KERNELS["uniform", update], density=spoilt_along_u)
    p = p_values(result.before, result.after)
    assert not {check: value for check, value in p.items() if not value > THRESHOLD}
    assert error < 1e-12
    assert result.moved["u"] > 0.2


# Mistakes


def slice_update(path, shrink):
    """The elliptical update, or the reflective one, with another way to shrink brackets."""

    def kernel(rng, state, log_densities, merged, factor_of):
        n_factors = state.log_densities.size
        direction = draw_normal(rng, state.position.size)
        log_heights = state.log_densities - draw_exponential(rng, n_factors)
        if path is ellipses:
            z = 2.0 * math.pi * draw_uniform(rng, n_factors)
            brackets = all_left(z, z - 2.0 * math.pi, z)
        else:
            lower = -draw_uniform(rng, n_factors)
            brackets = all_left(lower + draw_uniform(rng, n_factors), lower, lower + 1.0)
        return shrink(
            *(rng, state, log_densities, merged, factor_of, path, direction, log_heights, brackets)
        )

    return kernel


def shrinking(
    narrow=narrowed,
    heights=lambda log_heights: log_heights,
    gives_up=lambda log_densities: np.zeros(log_densities.size, dtype=bool),
    stays=0.0,
):
    """A copy of ``shrink_factors``, with fewer rounds, in which one part can be replaced."""

    def shrink(
        rng, state, log_densities, merged, factor_of, path, direction, log_heights, brackets
    ):
        share = 0.3 * rng.random()
        log_heights = heights(log_heights)
        cost = FREE
        for _ in range(20):
            is_over = brackets.is_left & gives_up(state.log_densities)
            brackets = brackets._replace(z=np.where(is_over, 0.0, brackets.z))
            position = path(state.position, direction, brackets.z, factor_of)
            values, memo = log_densities(position, state.memo)
            cost = plus(cost, cost_of(memo))
            brackets = narrow(rng, brackets, values, log_heights)
            if brackets.n_left <= share * log_heights.size:
                break
        has_moved = ~brackets.is_left
        z = np.where(has_moved, brackets.z, stays * brackets.z)
        position = path(state.position, direction, z, factor_of)
        if stays:  # evaluated where it is, so that nothing else is wrong
            values, memo = log_densities(position, state.memo)
        elif brackets.n_left:
            memo = merged(state.memo, memo, has_moved)
            values = np.where(has_moved, values, state.log_densities)
        return FactorsState(position, values, memo), FactorsInfo(
            float(has_moved.mean()), 1.0, 1, cost
        )

    return shrink


def one_height_for_all(rng, brackets, values, log_heights):
    """All factors are accepted or rejected together, by their sum."""
    total = np.full(values.size, values.sum() - log_heights.sum())
    return narrowed(rng, brackets, total, np.zeros(values.size))


def accepted_move_again(rng, brackets, values, log_heights):
    """An accepted factor goes on proposing, and is left where it is last."""
    is_left = ~((values > log_heights) & (values < math.inf))
    new = narrowed(rng, brackets._replace(is_left=np.full(values.size, True)), values, log_heights)
    is_ever_left = brackets.is_left & is_left
    again = new.lower + (new.upper - new.lower) * rng.random(values.size)
    return Brackets(
        np.where(is_ever_left, new.z, np.where(brackets.is_left, brackets.z, again)),
        *(new.lower, new.upper, is_ever_left, int(is_ever_left.sum())),
    )


def shrunk_past_zero(rng, brackets, values, log_heights):
    """The bracket shrinks towards the last proposal, not towards zero."""
    new = narrowed(rng, brackets, values, log_heights)
    lower = np.where(new.is_left & (brackets.z >= 0.0), 0.5 * brackets.z, new.lower)
    again = lower + (new.upper - lower) * rng.random(values.size)
    return new._replace(z=np.where(new.is_left, again, new.z), lower=lower)


def where_it_is_likely(log_densities):
    """Factors with a large density stay where they are: not so on the way back."""
    return log_densities > 0.3


def brackets_used_again(rng, state, log_densities, merged, factor_of):
    """A second update, along the same lines, starts from the brackets that the first one left."""
    n_factors = state.log_densities.size
    direction = draw_normal(rng, state.position.size)
    lower = -draw_uniform(rng, n_factors)
    upper = lower + 1.0
    for _ in range(3):
        brackets = all_left(lower + (upper - lower) * rng.random(n_factors), lower, upper)
        log_heights = state.log_densities - draw_exponential(rng, n_factors)
        while brackets.n_left:
            position = reflected_lines(state.position, direction, brackets.z, factor_of)
            values, memo = log_densities(position, state.memo)
            brackets = narrowed(rng, brackets, values, log_heights)
        state = FactorsState(position, values, memo)
        lower, upper = brackets.lower - brackets.z, brackets.upper - brackets.z
    return state, FactorsInfo(1.0, 1.0, 3, FREE)


def same_for_all(log_heights):
    """All factors are given the height of the first."""
    return np.full(log_heights.size, log_heights[0])


def independence_by_the_first(rng, state, log_densities, merged, factor_of):
    """All factors are accepted by the ratio of the first."""
    fresh = draw_normal(rng, state.position.size)
    values, memo = log_densities(fresh, state.memo)
    has_moved = rng.random(values.size) < acceptance(values, state.log_densities)[0]
    memo = merged(state.memo, memo, has_moved)
    return FactorsState(fresh, values, memo), FactorsInfo(0.5, 0.5, 1, FREE)


BROKEN = {
    "one height for all": ("normal", slice_update(ellipses, shrinking(one_height_for_all))),
    "the height of the first": ("normal", slice_update(ellipses, shrinking(heights=same_for_all))),
    "an accepted factor moves again": (
        "normal",
        slice_update(ellipses, shrinking(accepted_move_again)),
    ),
    "brackets are used again": ("uniform", brackets_used_again),
    "shrunk past zero": ("uniform", slice_update(reflected_lines, shrinking(shrunk_past_zero))),
    "left behind where it was rejected": ("normal", slice_update(ellipses, shrinking(stays=1.0))),
    "stopped by where the factor is": (
        "normal",
        slice_update(ellipses, shrinking(gives_up=where_it_is_likely)),
    ),
    "accepted by the first": ("normal", independence_by_the_first),
}

FAR_BELOW_THE_THRESHOLD = 1e-10


@pytest.mark.parametrize(
    "mistake", others_are_slow(["the height of the first", "accepted by the first"], BROKEN)
)
def test_a_broken_update_is_found(mistake):
    result, _ = run(*BROKEN[mistake], n_chains=4000)
    assert min(p_values(result.before, result.after).values()) < FAR_BELOW_THE_THRESHOLD


@pytest.mark.parametrize(("kind", "path"), [("normal", ellipses), ("uniform", reflected_lines)])
def test_the_copy_in_which_mistakes_are_made_is_right(kind, path):
    result, error = run(kind, slice_update(path, shrinking()))
    assert min(p_values(result.before, result.after).values()) > THRESHOLD
    assert error < 1e-12
