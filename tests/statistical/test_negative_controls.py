"""Deliberately broken samplers: each must fail the checks that the real ones pass."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_apm as apm
from pymc_apm.adaptive.report import NOTHING
from tests.statistical.checks import (
    assert_exact,
    assert_not_exact,
    theta_of,
    updates_from_exact_draws,
    z_scores_of_joint,
    z_scores_of_run,
)
from tests.steps.models import sample, toy_gaussian


class RedrawsRandomnessOnRejection(apm.PseudoMarginalMH):
    """Estimates the likelihood of the current parameters anew after each rejection."""

    def build(self, density):
        transition, along_u = super().build(density), density("u")

        def broken(rng, evaluation, options, learnt, tunes):
            evaluation, learnt, report = transition(rng, evaluation, options, learnt, tunes)
            if not report.n_moved:
                fresh = rng.standard_normal(self.target.value(evaluation, "u").size)
                _, evaluation = along_u(fresh, evaluation)
            return evaluation, learnt, report

        return broken


class UsesStaleLogDensity(apm.APMMetropolis):
    """Keeps the log density from before an update of u, until theta moves."""

    def build_u(self, density):
        update_u = super().build_u(density)

        def broken(rng, evaluation):
            before = evaluation.log_density
            evaluation, report = update_u(rng, evaluation)
            return evaluation._replace(log_density=before), report

        return broken


class IgnoresRandomnessOfOthers(apm.APMMetropolis):
    """Goes on with the log density that it knows, though another step has updated u."""

    def step(self, point):
        evaluation = self.chain.evaluation
        if evaluation is not None:
            self.model_u.set_value(self.target.value(evaluation, "u"))
        return super().step(point)

    @property
    def model_u(self):
        (u,) = self.target.randomness
        return u


class AcceptsAllRandomness(apm.APMSlice):
    """Draws u afresh from q(u), whatever the estimate is."""

    def build_u(self, density):
        along_u = density("u")

        def broken(rng, evaluation):
            fresh = rng.standard_normal(self.target.value(evaluation, "u").size)
            _, evaluation = along_u(fresh, evaluation)
            return evaluation, NOTHING

        return broken


BROKEN = {
    "u drawn anew on rejection": lambda: RedrawsRandomnessOnRejection(scaling=0.5),
    "all u accepted": lambda: AcceptsAllRandomness(width=4.0),
    "u of another step ignored": lambda: [
        apm.APMEllipticalU(),
        IgnoresRandomnessOfOthers(u_update=None, scaling=0.85),
    ],
}


@pytest.mark.parametrize("name", ["u drawn anew on rejection", "all u accepted"])
def test_the_check_of_single_updates_notices(name):
    with toy_gaussian():
        step = BROKEN[name]()
    theta, u, _ = updates_from_exact_draws(step, 2500, n_updates=2, seed=1)
    assert_not_exact(z_scores_of_joint(theta, u))


@pytest.mark.slow
def test_the_check_of_whole_runs_notices_a_stale_log_density():
    """A subtle fault: E theta^2 is 1.17 +- 0.02 at this step size instead of 1.

    At a scaling of 0.85 it is 1.04 +- 0.01, which these checks cannot see in a run of this length;
    the exact test of the cached log density in tests/steps is what guards against it.
    """
    model = toy_gaussian()
    with model:
        step = UsesStaleLogDensity(scaling=0.3)
    idata = sample(model, step, draws=15_000, tune=500, chains=6, random_seed=8)
    assert_not_exact(z_scores_of_run(theta_of(idata)))


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_the_check_of_whole_runs_notices(name):
    model = toy_gaussian()
    with model:
        step = BROKEN[name]()
    idata = sample(model, step, draws=4000, tune=500, chains=8, random_seed=2)
    assert_not_exact(z_scores_of_run(theta_of(idata)))


def test_the_checks_pass_what_is_exact():
    """Independent exact draws: the checks do not fail everything."""
    rng = np.random.default_rng(4)
    theta = rng.standard_normal((20_000, 5))
    u = rng.standard_normal((20_000, 5)) - theta
    assert_exact(z_scores_of_joint(theta, u))
    assert_exact(z_scores_of_run(theta.reshape(4, 5000, 5)))


# A potential with noise of its own, which is what apm.Potential is there to prevent


class NoisyLogEstimate(Op):
    """The toy's log-estimate with random numbers that nobody else sees."""

    def __init__(self):
        self.rng = np.random.default_rng(5)

    def make_node(self, theta):
        return Apply(self, [pt.as_tensor_variable(theta)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        (theta,) = inputs
        u = self.rng.standard_normal(theta.shape)
        output_storage[0][0] = np.asarray(-(theta**2).sum() - (u * theta).sum())


@pytest.mark.slow
@pytest.mark.parametrize("make", [pm.Metropolis, pm.Slice])
def test_steps_of_pymc_on_a_potential_with_noise_of_its_own_are_wrong(make):
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=5)
        pm.Potential("noisy", NoisyLogEstimate()(theta))
        # Python code, whatever the default backend is.
        step = make([theta], compile_kwargs={"mode": "FAST_COMPILE"})
    starts = [{"theta": x} for x in np.random.default_rng(6).standard_normal((4, 5))]
    idata = sample(model, step, draws=700, tune=100, chains=4, initvals=starts, random_seed=7)
    assert_not_exact(z_scores_of_run(theta_of(idata)))
