"""Chains that start from exact draws of the joint target must keep its distribution.

Each case is run by Python and, with more chains, as Numba compiles it. The family-wise false alarm
rate is at most 1/1000: every p-value of every right kernel is compared with ``THRESHOLD``, and
``test_the_false_alarm_rate...`` counts them. A check then fails at 5 standard errors, so a bias of
0.065 standard deviations in the mean of (the normal score of) a coordinate is found with
probability 1/2 and one of 0.08 with probability 0.9; for a variance the same numbers are 9 and 12
per cent, for a distribution function about 0.035 and 0.045. With the chains of compiled code all
these numbers are half as large. The drift finds smaller biases where chains move little.
``test_negative_controls.py`` shows what the checks can see.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from pymc_apm.adaptive.all_u import all_u_together, proposing_a_block
from pymc_apm.adaptive.pilot import update_along_axes
from pymc_apm.adaptive.random_walk import WalkOptions, learn_walk, start_walk, update_by_walk
from pymc_apm.adaptive.slice import SliceOptions, learn_slice, start_slice, update_by_slice
from pymc_apm.adaptive.transition import (
    jointly,
    proposing_u,
    settled,
    u_then_theta,
    updating_u,
)
from pymc_apm.adaptive.tuning import start_widths
from pymc_apm.kernels import (
    UNLIMITED,
    correlated_normal,
    correlated_uniform,
    elliptical_slice,
    elliptical_t_slice,
    linear_slice,
    make_independence,
    metropolis,
    random_direction,
    random_walk_metropolis,
    reflective_slice,
)
from pymc_apm.kernels.draws import draw_normal, draw_uniform
from tests.kernels.runs import (
    THETA,
    U,
    along_both,
    along_theta,
    along_u,
    compiled,
    compute_log_estimates,
    in_python,
    on_both,
    on_theta,
    on_u,
    run_chains,
)
from tests.kernels.targets import CORRELATED, JOINTS, n_checks, p_values

THRESHOLD = 3e-7
N_CHAINS = 6000
N_ROUNDS = 3
RUNNERS = {"python": (in_python, N_CHAINS), "compiled": (compiled, 20_000)}
"""What runs the kernels, and how many chains there are."""

PLAIN = ("toy1", "toy2", "tilted2")
"""Targets on which every kernel is tried; those that are made to be difficult are slow tests."""

ONE, TWO = np.eye(1), np.eye(2)


# Updates of theta


def slice_along_line(rng, state, log_density, factor, width, max_step_out):
    direction = random_direction(rng, factor)
    return linear_slice(rng, state, log_density, direction, width, max_step_out)


def slice_along_axes(rng, state, log_density, widths, max_step_out):
    widths = start_widths(widths)
    state, _, report = update_along_axes(rng, state, log_density, widths, max_step_out, False)
    return state, report


ALONG_LINE = on_theta(slice_along_line)
ALONG_AXES = on_theta(slice_along_axes)
WALK = on_theta(random_walk_metropolis)
ABOUT_T = on_theta(elliptical_t_slice)


def slice_theta(width, max_step_out=0, factor=ONE):
    return ALONG_LINE(factor, width, max_step_out)


def slice_coordinates(*widths, max_step_out=0):
    return ALONG_AXES(np.array(widths), max_step_out)


def walk_theta(scaling, factor=ONE, discrete=None):
    return WALK(factor, scaling, discrete)


# Updates of u


def moving_by(propose):
    def kernel(rng, state, log_density, correlation):
        return metropolis(rng, state, log_density, propose(rng, state.position, correlation))

    return kernel


ELLIPSE = on_u(elliptical_slice)()
REFLECTED = on_u(reflective_slice)
INDEPENDENT_NORMAL = on_u(make_independence(draw_normal))()
INDEPENDENT_UNIFORM = on_u(make_independence(draw_uniform))()
CORRELATED_NORMAL = on_u(moving_by(correlated_normal))
CORRELATED_UNIFORM = on_u(moving_by(correlated_uniform))


# Transitions


def fresh_normal(rng, u, correlation):
    return draw_normal(rng, u.size)


def fresh_uniform(rng, u, correlation):
    return draw_uniform(rng, u.size)


def joint_proposal(propose):
    return on_both(jointly(proposing_u([propose]), along_both, [THETA, U], settled))


JOINT_NORMAL, JOINT_UNIFORM = joint_proposal(fresh_normal), joint_proposal(fresh_uniform)
JOINT_CORRELATED_NORMAL = joint_proposal(correlated_normal)
JOINT_CORRELATED_UNIFORM = joint_proposal(correlated_uniform)


def joint_proposal_of_a_block(draw, n_u, n_blocks=2):
    propose_u = proposing_a_block([draw], [n_u], n_blocks)
    return on_both(jointly(propose_u, along_both, [THETA, U], settled))


BLOCK_OF_NORMAL = joint_proposal_of_a_block(draw_normal, 2)
BLOCK_OF_UNIFORM = joint_proposal_of_a_block(draw_uniform, 2)
SOMETIMES_NO_BLOCK = joint_proposal_of_a_block(draw_normal, 1)


def clamped_proposal(propose_u):
    update = on_both(all_u_together(propose_u, along_u, [U], settled))
    return lambda *arguments: update(*arguments)._replace(moves=frozenset({"u"}))


CLAMPED_CORRELATED_NORMAL = clamped_proposal(proposing_u([correlated_normal]))
CLAMPED_BLOCK_OF_UNIFORM = clamped_proposal(proposing_a_block([draw_uniform], [2], 2))


def u_and_theta(kernel, update_theta, learn):
    update_u = updating_u(kernel, along_u, U)
    return on_both(u_then_theta(update_u, update_theta, learn, along_theta, THETA))


ESS_THEN_SLICE = u_and_theta(elliptical_slice, update_by_slice, learn_slice)
SS_THEN_SLICE = u_and_theta(reflective_slice, update_by_slice, learn_slice)
SS_THEN_WALK = u_and_theta(reflective_slice, update_by_walk, learn_walk)


def sliced(factor, *widths, is_coordinate=False, max_step_out=0, length=0.0):
    options = SliceOptions(is_coordinate, 2, max_step_out, length, False, False, False, False)
    return options, start_slice(factor, np.array(widths))


def walked(factor, scaling, is_coordinate=False, correlation=0.9):
    options = WalkOptions(*(is_coordinate, 2, None, (0.3, 0.3), 1.0), False, False, False, False)
    return options, start_walk(factor, scaling, correlation)


STEP_OUT = [
    (f"step out {limit}, width {width}", "skewed", [slice_theta(width, limit)])
    for limit, width in itertools.product([1, 2, 3, 5], [0.3, 1.5])
]

CASES = [
    # theta given u
    ("no step out, narrow", "toy1", [slice_theta(0.3)]),
    ("no step out, wide", "toy1", [slice_theta(10.0)]),
    ("no step out", "toy2", [slice_theta(0.6, 0, TWO)]),
    ("no step out, narrow", "skewed", [slice_theta(0.5)]),
    ("no step out, wide", "skewed", [slice_theta(20.0)]),
    *STEP_OUT,
    ("step out 3, narrow", "toy1", [slice_theta(0.4, 3)]),
    ("step out unlimited, narrow", "toy1", [slice_theta(0.3, UNLIMITED)]),
    ("step out unlimited, narrow", "skewed", [slice_theta(0.4, UNLIMITED)]),
    ("step out unlimited, wide", "skewed", [slice_theta(8.0, UNLIMITED)]),
    ("no step out", "bounded", [slice_theta(0.7)]),
    ("step out unlimited", "bounded", [slice_theta(0.1, UNLIMITED)]),
    ("step out 2", "triangle", [slice_theta(0.3, 2)]),
    ("step out 3", "triangle", [slice_theta(0.2, 3)]),
    ("step out 2", "powers", [slice_theta(0.5, 2)]),
    ("step out 3", "powers", [slice_theta(0.5, 3)]),
    ("no step out", "two_pieces", [slice_theta(0.8)]),
    ("step out 3", "two_pieces", [slice_theta(0.25, 3)]),
    ("step out unlimited", "two_pieces", [slice_theta(0.15, UNLIMITED)]),
    ("random direction", "correlated", [slice_theta(2.0, 0, TWO)]),
    ("stretched direction", "correlated", [slice_theta(2.0, 0, CORRELATED)]),
    ("stretched direction, step out 3", "correlated", [slice_theta(0.7, 3, CORRELATED)]),
    ("stretched direction, unlimited", "correlated", [slice_theta(0.5, UNLIMITED, CORRELATED)]),
    ("coordinates", "toy2", [slice_coordinates(0.5, 3.0)]),
    ("coordinates, step out 3", "correlated", [slice_coordinates(0.4, 1.5, max_step_out=3)]),
    ("coordinates", "bounded", [slice_coordinates(0.7)]),
    ("about t", "toy1", [ABOUT_T(0.3 * np.ones(1), 0.7 * ONE, 3.0)]),
    ("about t", "toy2", [ABOUT_T(np.array([0.5, -1.0]), CORRELATED, 3.0)]),
    ("about t", "skewed", [ABOUT_T(2.0 * np.ones(1), 1.5 * ONE, 3.0)]),
    ("about t, nearly normal", "skewed", [ABOUT_T(np.ones(1), ONE, 30.0)]),
    ("about t", "bounded", [ABOUT_T(0.6 * np.ones(1), 0.3 * ONE, 3.0)]),
    ("about t", "two_pieces", [ABOUT_T(0.4 * np.ones(1), 0.5 * ONE, 1.0)]),
    ("about t", "correlated", [ABOUT_T(np.zeros(2), CORRELATED, 8.0)]),
    ("about t", "banana", [ABOUT_T(np.array([0.0, 1.0]), TWO, 3.0)]),
    ("about t", "heavy", [ABOUT_T(np.zeros(1), 2.0 * ONE, 3.0)]),
    ("about t, narrow", "heavy", [ABOUT_T(np.ones(1), 0.3 * ONE, 8.0)]),
    ("random walk", "toy1", [walk_theta(1.5)]),
    ("random walk", "toy2", [walk_theta(1.0, TWO)]),
    ("random walk", "skewed", [walk_theta(1.5)]),
    ("random walk", "bounded", [walk_theta(0.4)]),
    ("random walk", "tilted1", [walk_theta(3.0)]),
    ("random walk", "tilted2", [walk_theta(3.0)]),
    ("random walk with a factor", "correlated", [walk_theta(1.2, CORRELATED)]),
    ("rounded random walk", "counts", [walk_theta(1.5, TWO, np.array([True, False]))]),
    # u given theta
    ("ellipse", "toy1", [ELLIPSE]),
    ("ellipse", "toy2", [ELLIPSE]),
    ("ellipse", "skewed", [ELLIPSE]),
    ("ellipse", "two_humps_normal", [ELLIPSE]),
    ("independent", "toy1", [INDEPENDENT_NORMAL]),
    ("independent", "toy2", [INDEPENDENT_NORMAL]),
    ("independent", "two_humps_normal", [INDEPENDENT_NORMAL]),
    ("independent", "tilted2", [INDEPENDENT_UNIFORM]),
    ("independent", "triangle", [INDEPENDENT_UNIFORM]),
    ("correlated 0.5", "toy2", [CORRELATED_NORMAL(0.5)]),
    ("correlated 0.95", "skewed", [CORRELATED_NORMAL(0.95)]),
    ("correlated 0.5", "powers", [CORRELATED_UNIFORM(0.5)]),
    ("correlated 0.95", "tilted1", [CORRELATED_UNIFORM(0.95)]),
    ("correlated 0.95", "tilted2", [CORRELATED_UNIFORM(0.95)]),
    ("reflected, narrow", "tilted2", [REFLECTED(0.2)]),
    ("reflected", "tilted2", [REFLECTED(1.0)]),
    ("reflected, wide", "tilted1", [REFLECTED(6.0)]),
    ("reflected, wide", "tilted2", [REFLECTED(6.0)]),
    ("reflected", "powers", [REFLECTED(1.0)]),
    ("reflected", "triangle", [REFLECTED(1.0)]),
    ("reflected, narrow", "two_humps_uniform", [REFLECTED(0.3)]),
    ("reflected", "two_humps_uniform", [REFLECTED(0.7)]),
    ("reflected, wide", "two_humps_uniform", [REFLECTED(4.0)]),
    # both
    ("pseudo-marginal", "toy1", [JOINT_NORMAL(*walked(ONE, 1.0))]),
    ("pseudo-marginal", "powers", [JOINT_UNIFORM(*walked(ONE, 1.0))]),
    ("pseudo-marginal", "triangle", [JOINT_UNIFORM(*walked(ONE, 0.4))]),
    ("pseudo-marginal, correlated", "skewed", [JOINT_CORRELATED_NORMAL(*walked(ONE, 1.0))]),
    (
        "pseudo-marginal, correlated",
        "correlated",
        [JOINT_CORRELATED_NORMAL(*walked(CORRELATED, 1.0))],
    ),
    (
        "pseudo-marginal, correlated, coordinates",
        "correlated",
        [JOINT_CORRELATED_NORMAL(*walked(TWO, 1.0, is_coordinate=True))],
    ),
    ("pseudo-marginal, correlated", "tilted2", [JOINT_CORRELATED_UNIFORM(*walked(ONE, 1.0))]),
    ("pseudo-marginal, blocks", "toy2", 2 * [BLOCK_OF_NORMAL(*walked(TWO, 0.6))]),
    ("pseudo-marginal, blocks", "tilted2", 2 * [BLOCK_OF_UNIFORM(*walked(ONE, 1.0))]),
    ("pseudo-marginal, empty blocks", "skewed", 2 * [SOMETIMES_NO_BLOCK(*walked(ONE, 1.0))]),
    (
        "pseudo-marginal, blocks, coordinates",
        "toy2",
        [BLOCK_OF_NORMAL(*walked(TWO, 1.0, is_coordinate=True))],
    ),
    ("all u, correlated", "toy2", [CLAMPED_CORRELATED_NORMAL(*walked(TWO, 1.0))]),
    ("all u, blocks", "tilted2", [CLAMPED_BLOCK_OF_UNIFORM(*walked(ONE, 1.0))]),
    ("MI+MH", "toy2", [INDEPENDENT_NORMAL, walk_theta(0.8, TWO)]),
    ("MI+SS", "powers", [INDEPENDENT_UNIFORM, slice_theta(2.0)]),
    ("ESS+MH", "skewed", [ELLIPSE, walk_theta(1.0)]),
    ("ESS+SS", "toy2", [ESS_THEN_SLICE(*sliced(TWO, 2.0, length=0.7))]),
    (
        "ESS+SS, coordinates",
        "correlated",
        [ESS_THEN_SLICE(*sliced(TWO, 0.5, 2.0, is_coordinate=True, max_step_out=3))],
    ),
    ("SS+SS", "tilted2", [SS_THEN_SLICE(*sliced(ONE, 2.0, max_step_out=3))]),
    ("SS+MH", "triangle", [SS_THEN_WALK(*walked(ONE, 0.3))]),
    ("SS+MH, coordinates", "tilted2", [SS_THEN_WALK(*walked(2.0 * ONE, 1.0, is_coordinate=True))]),
]


def test_the_false_alarm_rate_over_all_checks_is_at_most_one_in_a_thousand():
    from tests.kernels.test_exchange import JOINTS as WITH_DATA
    from tests.kernels.test_negative_controls import RIGHT

    names = [name for _, name, _ in CASES] + [name for name, *_ in RIGHT.values()]
    n_all = len(RUNNERS) * sum(n_checks(JOINTS[name]) for name in names)
    n_all += sum(map(n_checks, WITH_DATA.values()))
    assert n_all * THRESHOLD <= 1e-3


@pytest.mark.parametrize(
    ("number", "name", "updates", "runner"),
    [
        pytest.param(
            number,
            name,
            updates,
            runner,
            id=f"{label} on {name}-{runner}",
            marks=[] if runner == "python" and name in PLAIN else pytest.mark.slow,
        )
        for number, (label, name, updates) in enumerate(CASES)
        for runner in RUNNERS
    ],
)
def test_kernel_keeps_the_distribution_of_theta_and_u(number, name, updates, runner):
    how, n_chains = RUNNERS[runner]
    rng = np.random.default_rng([20160509, number, n_chains])
    before, after, moved = run_chains(rng, JOINTS[name], updates, n_chains, N_ROUNDS, how)
    p = p_values(before, after)
    assert len(p) == n_checks(JOINTS[name])
    failed = {check: value for check, value in p.items() if not value > THRESHOLD}
    assert not failed
    # A kernel that never moves keeps every distribution.
    expected = frozenset.union(*[update.moves for update in updates])
    assert {part for part, rate in moved.items() if rate > 0.0} == expected
    assert all(moved[part] > 0.4 for part in expected)


def points_to_compare(joint):
    """Draw from a target, and away from it."""
    rng = np.random.default_rng(3)
    thetas, us = joint.from_normal(rng.standard_normal((400, joint.dim)))
    thetas = thetas.copy()
    thetas[200:] += np.rint(4.0 * rng.standard_normal(thetas[200:].shape)) / 4.0
    return thetas, np.array(us, order="C")


@pytest.mark.parametrize("name", JOINTS)
def test_compiled_log_estimate_is_that_of_python(name):
    joint = JOINTS[name]
    thetas, us = points_to_compare(joint)
    values, expected = np.empty(400), np.empty(400)
    compiled(compute_log_estimates)(joint.number, thetas, us, values)
    compute_log_estimates(joint.number, thetas, us, expected)
    assert np.isfinite(values[:200]).all()
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-13)
    one_by_one = [joint.log_estimate(theta, u) for theta, u in zip(thetas, us, strict=True)]
    np.testing.assert_array_equal(expected, one_by_one)


def test_targets_outside_of_their_support_are_among_those_compared():
    outside = {"skewed": -1.0, "bounded": 1.5, "two_pieces": 0.3, "counts": 0.5, "triangle": 2.0}
    for name, theta in outside.items():
        joint, values = JOINTS[name], np.empty(1)
        thetas, us = np.full((1, joint.n_theta), theta), np.full((1, joint.n_u), 0.5)
        compiled(compute_log_estimates)(joint.number, thetas, us, values)
        assert values[0] == joint.log_estimate(thetas[0], us[0]) == -math.inf


@pytest.mark.parametrize("name", JOINTS)
def test_target_goes_to_normal_numbers_and_back(name):
    joint = JOINTS[name]
    z = np.random.default_rng(1).standard_normal((500, joint.dim))
    theta, u = joint.from_normal(z)
    assert theta.shape == (500, joint.n_theta)
    assert u.shape == (500, joint.n_u)
    back = joint.to_normal(theta, u)
    if name == "counts":  # the score of an integer is random within its jump
        back[:, 0] = z[:, 0]
    np.testing.assert_allclose(back, z, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in JOINTS if name != "counts"])
def test_log_estimate_of_target_is_the_density_of_its_draws(name):
    """The change of variables, with a numerical Jacobian, up to one constant per target."""
    joint = JOINTS[name]
    z = 0.8 * np.random.default_rng(2).standard_normal((40, joint.dim))
    step = 1e-5
    constants = []
    for row in z:
        shifts = step * np.vstack([np.eye(joint.dim), -np.eye(joint.dim)])
        moved = np.column_stack(joint.from_normal(row + shifts))
        jacobian = (moved[: joint.dim] - moved[joint.dim :]) / (2.0 * step)
        log_density = stats.norm.logpdf(row).sum() - np.linalg.slogdet(jacobian)[1]
        theta, u = joint.from_normal(row[None])
        log_q = stats.norm.logpdf(u).sum() if joint.kind == "normal" else 0.0
        constants.append(joint.log_estimate(theta[0], u[0]) + log_q - log_density)
    np.testing.assert_allclose(constants, constants[0], atol=1e-6)
