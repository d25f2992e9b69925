"""Chains that start from exact draws of the joint target must keep its distribution.

The family-wise false alarm rate is at most 1/1000: every p-value of every case is compared with
``THRESHOLD``, and ``test_the_false_alarm_rate...`` counts them. A check then fails at 5 standard
errors, so a bias of 0.065 standard deviations in the mean of (the normal score of) a coordinate is
found with probability 1/2 and one of 0.08 with probability 0.9; for a variance the same numbers are
9 and 12 per cent, for a distribution function about 0.035 and 0.045. The drift finds smaller biases
where chains move little. ``test_negative_controls.py`` shows what the checks can see.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

from pymc_apm.kernels import (
    UNLIMITED,
    State,
    correlated_normal,
    correlated_uniform,
    elliptical_slice,
    linear_slice,
    metropolis,
    metropolis_independence,
    random_direction,
    random_walk,
    random_walk_metropolis,
    reflective_slice,
)
from tests.kernels.targets import (
    CORRELATED,
    JOINTS,
    Chain,
    n_checks,
    on_theta,
    on_u,
    p_values,
    run_chains,
)

THRESHOLD = 5e-7
N_CHAINS = 6000
N_ROUNDS = 3


def slice_theta(width, max_step_out=0, cholesky=None):
    def kernel(rng, state, log_density):
        factor = np.eye(state.position.size) if cholesky is None else cholesky
        direction = random_direction(rng, factor)
        return linear_slice(rng, state, log_density, direction, width, max_step_out)

    return on_theta(kernel)


def walk_theta(scaling, cholesky=None, discrete=None):
    def kernel(rng, state, log_density):
        factor = np.eye(state.position.size) if cholesky is None else cholesky
        return random_walk_metropolis(rng, state, log_density, factor, scaling, discrete)

    return on_theta(kernel)


def independent_u(kind):
    def draw(rng, size):
        return rng.standard_normal(size) if kind == "normal" else rng.random(size)

    return on_u(
        lambda rng, state, log_density: metropolis_independence(rng, state, log_density, draw)
    )


def correlated_u(kind, correlation):
    propose = correlated_normal if kind == "normal" else correlated_uniform

    def kernel(rng, state, log_density):
        return metropolis(rng, state, log_density, propose(rng, state.position, correlation))

    return on_u(kernel)


def ellipse_u():
    return on_u(elliptical_slice)


def reflect_u(width):
    return on_u(lambda rng, state, log_density: reflective_slice(rng, state, log_density, width))


def pseudo_marginal(scaling, correlation=None):
    """Figure 1 of the paper: theta and u are proposed together, the position is a tuple."""

    def update(rng, joint, chain):
        theta = random_walk(rng, chain.theta, np.eye(joint.n_theta), scaling)
        if correlation is not None:
            propose = correlated_normal if joint.kind == "normal" else correlated_uniform
            u = propose(rng, chain.u, correlation)
        else:
            u = rng.standard_normal(joint.n_u) if joint.kind == "normal" else rng.random(joint.n_u)
        state, _ = metropolis(
            rng,
            State((chain.theta, chain.u), chain.value),
            lambda position, memo: (joint.log_estimate(*position), memo),
            (theta, u),
        )
        return Chain(*state.position, state.log_density)

    return update


STEP_OUT = [
    (f"step out {limit}, width {width}", "skewed", [slice_theta(width, limit)])
    for limit, width in itertools.product([1, 2, 3, 5], [0.3, 1.5])
]

CASES = [
    # theta given u
    ("no step out, narrow", "toy1", [slice_theta(0.3)]),
    ("no step out, wide", "toy1", [slice_theta(10.0)]),
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
    ("step out 2", "powers", [slice_theta(0.5, 2)]),
    ("no step out", "two_pieces", [slice_theta(0.8)]),
    ("step out 3", "two_pieces", [slice_theta(0.25, 3)]),
    ("step out unlimited", "two_pieces", [slice_theta(0.15, UNLIMITED)]),
    ("random direction", "correlated", [slice_theta(2.0)]),
    ("stretched direction", "correlated", [slice_theta(2.0, 0, CORRELATED)]),
    ("stretched direction, step out 3", "correlated", [slice_theta(0.7, 3, CORRELATED)]),
    ("random walk", "toy1", [walk_theta(1.5)]),
    ("random walk", "skewed", [walk_theta(1.5)]),
    ("random walk", "bounded", [walk_theta(0.4)]),
    ("random walk", "tilted1", [walk_theta(3.0)]),
    ("random walk with a factor", "correlated", [walk_theta(1.2, CORRELATED)]),
    ("rounded random walk", "counts", [walk_theta(1.5, discrete=np.array([True, False]))]),
    # u given theta
    ("ellipse", "toy1", [ellipse_u()]),
    ("ellipse", "toy2", [ellipse_u()]),
    ("ellipse", "skewed", [ellipse_u()]),
    ("ellipse", "two_humps_normal", [ellipse_u()]),
    ("independent", "toy1", [independent_u("normal")]),
    ("independent", "tilted2", [independent_u("uniform")]),
    ("independent", "triangle", [independent_u("uniform")]),
    ("correlated 0.5", "toy2", [correlated_u("normal", 0.5)]),
    ("correlated 0.95", "skewed", [correlated_u("normal", 0.95)]),
    ("correlated 0.5", "powers", [correlated_u("uniform", 0.5)]),
    ("correlated 0.95", "tilted1", [correlated_u("uniform", 0.95)]),
    ("reflected, narrow", "tilted2", [reflect_u(0.2)]),
    ("reflected", "tilted2", [reflect_u(1.0)]),
    ("reflected, wide", "tilted1", [reflect_u(6.0)]),
    ("reflected", "powers", [reflect_u(1.0)]),
    ("reflected", "triangle", [reflect_u(1.0)]),
    ("reflected", "two_humps_uniform", [reflect_u(0.7)]),
    ("reflected, wide", "two_humps_uniform", [reflect_u(4.0)]),
    # both
    ("pseudo-marginal", "toy1", [pseudo_marginal(1.0)]),
    ("pseudo-marginal", "powers", [pseudo_marginal(1.0)]),
    ("pseudo-marginal, correlated", "skewed", [pseudo_marginal(1.0, 0.9)]),
    ("pseudo-marginal, correlated", "tilted2", [pseudo_marginal(1.0, 0.9)]),
    ("MI+MH", "toy2", [independent_u("normal"), walk_theta(0.8)]),
    ("MI+SS", "powers", [independent_u("uniform"), slice_theta(2.0)]),
    ("ESS+MH", "skewed", [ellipse_u(), walk_theta(1.0)]),
    ("ESS+SS", "toy2", [ellipse_u(), slice_theta(2.0)]),
    ("SS+SS", "tilted2", [reflect_u(1.0), slice_theta(2.0, 3)]),
    ("SS+MH", "triangle", [reflect_u(1.0), walk_theta(0.3)]),
]


def test_the_false_alarm_rate_over_all_checks_is_at_most_one_in_a_thousand():
    total = sum(n_checks(JOINTS[name]) for _, name, _ in CASES)
    assert total * THRESHOLD <= 1e-3


@pytest.mark.parametrize(
    ("number", "name", "updates"),
    [
        pytest.param(number, name, updates, id=f"{label} on {name}")
        for number, (label, name, updates) in enumerate(CASES)
    ],
)
def test_kernel_keeps_the_distribution_of_theta_and_u(number, name, updates):
    rng = np.random.default_rng([20160509, number])
    p = p_values(*run_chains(rng, JOINTS[name], updates, N_CHAINS, N_ROUNDS))
    assert len(p) == n_checks(JOINTS[name])
    failed = {check: value for check, value in p.items() if not value > THRESHOLD}
    assert not failed


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
