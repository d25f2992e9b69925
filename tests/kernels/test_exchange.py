"""The exchange algorithm on models whose normaliser is known, but not to it.

Theta > 0 is drawn from Gamma(2, 1), and one or four observations from the exponential
distribution with that rate. The update of theta must keep the joint distribution of parameters and
data, by the checks of ``test_invariance.py`` (46 more p-values), which broken updates must fail by
a wide margin.
"""

import math

import numpy as np
import pytest
from scipy import special

from pymc_apm.kernels import ExchangeInfo, State, exchange, random_walk
from tests.kernels.runs import Update, run_chains
from tests.kernels.targets import (
    Joint,
    Recorder,
    Scripted,
    frozen,
    gamma2_from_normal,
    gamma2_to_normal,
    log_estimate_of_rate,
    log_gamma2,
    n_checks,
    normal_score,
    p_values,
)
from tests.kernels.test_invariance import N_CHAINS, N_ROUNDS, THRESHOLD
from tests.kernels.test_negative_controls import FAR_BELOW_THE_THRESHOLD


def rate_and_data(n_data: int) -> Joint:
    """Draw a rate from Gamma(2, 1) and data from the exponential distribution with that rate."""

    def from_normal(z):
        theta = gamma2_from_normal(z[:, :1])
        return theta, -special.log_ndtr(z[:, 1:]) / theta

    def to_normal(theta, y):
        return np.column_stack([gamma2_to_normal(theta), normal_score(np.exp(-theta * y))])

    name = f"rate{n_data}"
    return Joint(name, "data", 1, n_data, from_normal, to_normal, log_estimate_of_rate)


JOINTS = {joint.name: joint for joint in [rate_and_data(1), rate_and_data(4)]}


def log_prior(theta, memo):
    return log_gamma2(theta), theta


def log_g(data, theta):
    return -float(theta[0] * data.sum())


def sample_of_size(n_data):
    return lambda theta, rng: rng.exponential(1.0 / theta[0], size=n_data)


def by_exchange(log_density=log_prior, log_g=log_g, make_sample=sample_of_size, kernel=exchange):
    """Return an update of theta that has the data for u."""

    def update(rng, evaluation, arguments):
        _, theta, data = evaluation.values
        state = State(theta, evaluation.log_density, theta)
        proposal = random_walk(rng, theta, np.eye(1), 1.0)
        sample = make_sample(data.size)
        state, _ = kernel(rng, state, log_density, log_g, sample, data, proposal)
        return state.position, data, state.log_density

    return Update(update, frozenset({"theta"}))


def p_values_of(joint, update):
    rng = np.random.default_rng(5)
    before, after, _ = run_chains(rng, JOINTS[joint], [update], N_CHAINS, N_ROUNDS)
    return p_values(before, after)


@pytest.mark.parametrize("joint", JOINTS)
def test_parameters_and_data_keep_their_joint_distribution(joint):
    p = p_values_of(joint, by_exchange())
    assert len(p) == n_checks(JOINTS[joint])
    assert min(p.values()) > THRESHOLD, p


# Negative controls


def drawn_at_the_old_parameters(rng, state, log_density, log_g, sample, observed, proposal):
    """Draw the auxiliary data at the parameters that the chain comes from."""
    old = state.memo
    return exchange(
        rng, state, log_density, log_g, lambda new, rng: sample(old, rng), observed, proposal
    )


def without_exchange(rng, state, log_density, log_g, sample, observed, proposal):
    """Leave the normaliser out: the auxiliary data say nothing."""

    def blind(data, memo):
        return log_g(data, memo) if data is observed else 0.0

    return exchange(rng, state, log_density, blind, sample, observed, proposal)


def upside_down(rng, state, log_density, log_g, sample, observed, proposal):
    """Take the ratio of the auxiliary data the wrong way round."""

    def swapped(data, memo):
        return log_g(data, memo) if data is observed else -log_g(data, memo)

    return exchange(rng, state, log_density, swapped, sample, observed, proposal)


BROKEN = {
    "data drawn at the old parameters": by_exchange(kernel=drawn_at_the_old_parameters),
    "no exchange": by_exchange(kernel=without_exchange),
    "the wrong way round": by_exchange(kernel=upside_down),
    "a sample that is not exact": by_exchange(
        make_sample=lambda n_data: lambda theta, rng: rng.exponential(0.5 / theta[0], size=n_data)
    ),
    "no prior": by_exchange(lambda theta, memo: (0.0 if theta[0] > 0.0 else -math.inf, theta)),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_broken_updates_are_noticed(mistake):
    assert min(p_values_of("rate4", BROKEN[mistake]).values()) < FAR_BELOW_THE_THRESHOLD


# Branches


def scripted(uniform, proposal, log_density, x=0.5, y=2.0):
    """Make one update from theta = 1 with data y, offered x."""
    rng = Scripted(random=[uniform])
    drawn = []

    def sample(memo, rng):
        drawn.append(memo)
        return frozen(x)

    def log_g(data, memo):
        return -float(data[0]) * (1.0 if memo == "start" else float(proposal[0]))

    start = State(frozen(1.0), -0.25, "start")
    state, info = exchange(rng, start, log_density, log_g, sample, frozen(y), proposal)
    assert rng.exhausted
    return start, state, info, drawn


@pytest.mark.parametrize(("uniform", "accepted"), [(0.999, False), (0.001, True)])
def test_the_ratio_is_that_of_the_paper(uniform, accepted):
    prior = Recorder(lambda theta: -1.0)
    start, state, info, drawn = scripted(uniform, frozen(1.5), prior)
    # p(theta') / p(theta), then y at the new and old parameters, then x at the old and new ones
    rate = math.exp((-1.0 + 0.25) + (-2.0 * 1.5 + 2.0 * 1.0) + (-0.5 * 1.0 + 0.5 * 1.5))
    assert info == ExchangeInfo(accepted, pytest.approx(rate), 1)
    assert drawn == [prior.last_memo]  # at the proposal, and once
    assert prior.memos_given == ["start"]
    if accepted:
        assert state == State(prior.positions[0], -1.0, prior.last_memo)
    else:
        assert state is start


def test_nothing_is_drawn_where_the_prior_is_zero():
    start, state, info, drawn = scripted(0.0, frozen(-1.0), lambda *_: (-math.inf, "new"))
    assert state is start and drawn == []
    assert info == ExchangeInfo(False, 0.0, 0)


def test_a_ratio_that_is_not_a_number_is_never_accepted():
    start, state, info, _ = scripted(0.0, frozen(1.5), lambda *_: (-1.0, "new"), x=math.nan)
    assert state is start and not info.accepted


def test_same_seed_same_step_and_inputs_unchanged():
    start = State(frozen(1.0), log_gamma2([1.0]), frozen(1.0))
    states = [
        exchange(
            np.random.default_rng(3),
            start,
            log_prior,
            log_g,
            sample_of_size(2),
            frozen(0.3, 0.4),
            frozen(1.2),
        )
        for _ in range(2)
    ]
    assert states[0] == states[1]
    assert start.position[0] == 1.0
