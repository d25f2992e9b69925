"""The exchange algorithm: exact, and well behaved as a step of PyMC."""

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators import Ising, Unnormalised, doubly_intractable
from tests.modes import interpreted
from tests.statistical.checks import assert_exact, assert_not_exact, z_scores_of_means
from tests.steps.models import run, same_draws, sample, start_chain


@pytest.fixture(autouse=True, scope="module")
def without_a_compiler():
    with interpreted():
        yield


LATTICE = Ising.lattice(2, 3)
REFERENCE = {"coupling": 0.0, "field": 0.0}
SCALES = np.array([0.25, 0.4])
"""Prior standard deviations of coupling and field, roughly."""


def build(family=LATTICE, y=None, **options):
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", -0.4, 0.4, default_transform=None)
        field = pm.Normal("field", 0.0, 0.4)
        y = np.ones(LATTICE.n_sites) if y is None else y
        doubly_intractable("y", family, [coupling, field], y, reference=REFERENCE, **options)
    return model


def make_step(model, **options):
    with model:
        return apm.ExchangeMH(**options)


# Exactness; tests/kernels/test_exchange.py has more of it


def changes_after_updates(family, directions="all", n_chains=4000, n_updates=3):
    """Draw parameters from the prior and data given them, and update the parameters.

    Parameters and data then have their joint distribution before and after, and the changes of
    any function of both have mean zero. Chains are independent.
    """
    step = make_step(build(family), scaling=0.8, covariance=SCALES**2, directions=directions)
    (estimator,) = step._estimators
    rng = np.random.default_rng(1)
    start_chain(step, 2)
    changes = []
    for _ in range(n_chains):
        before = np.array([rng.uniform(-0.4, 0.4), rng.normal(0.0, 0.4)])
        estimator.observed = LATTICE.sample(*before, rng)
        statistics = np.array(LATTICE.statistics(estimator.observed))
        point = {"coupling": np.array(before[0]), "field": np.array(before[1])}
        points, _ = run(step, point, n_updates)
        after = np.array([points[-1]["coupling"], points[-1]["field"]])
        functions = [
            np.concatenate((theta, theta**2, theta * statistics, [theta[0] * statistics[1] ** 2]))
            for theta in (before, after)
        ]
        changes.append(functions[1] - functions[0])
    return z_scores_of_means(np.transpose(changes))


@pytest.mark.slow
@pytest.mark.parametrize("directions", ["all", "coordinate"])
def test_updates_keep_the_joint_distribution_of_parameters_and_data(directions):
    assert_exact(changes_after_updates(LATTICE, directions))


def sample_without_coupling(coupling, field, rng):
    return LATTICE.sample(0.0, field, rng)


@pytest.mark.slow
def test_a_sample_that_is_not_exact_is_noticed():
    family = Unnormalised(LATTICE.log_g, sample_without_coupling)
    assert_not_exact(changes_after_updates(family))


# The protocol


def test_statistics_and_counts():
    model = build()
    idata = sample(model, make_step(model), draws=30, tune=20)
    stats = idata.sample_stats
    assert {"n_evals", "n_theta_evals", "accepted", "accept_rate", "scaling"} <= set(stats)
    moved = np.diff(idata.posterior["field"].values, axis=1) != 0
    np.testing.assert_array_equal(stats["accepted"].values[:, 1:], moved)
    assert set(np.unique(stats["n_evals"].values)) <= {0, 1}


def sampled(seed=1, **options):
    model = build()
    return sample(model, make_step(model), random_seed=seed, **options)


def test_a_seed_fixes_the_draws():
    assert same_draws(sampled(), sampled())
    assert not same_draws(sampled(), sampled(seed=2))


def test_draws_do_not_depend_on_the_number_of_processes():
    assert same_draws(sampled(cores=1), sampled(cores=2))


def test_a_state_that_is_restored_makes_the_same_next_draw():
    step = make_step(build())
    start_chain(step, 3)
    points, _ = run(step, {"coupling": np.array(0.1), "field": np.array(0.0)}, 150)
    state = step.sampling_state
    first, _ = run(step, points[-1], 20)
    other = make_step(build())
    other.sampling_state = state
    second, _ = run(other, points[-1], 20)
    assert first == second


def test_scale_and_covariance_are_learnt_while_tuning_and_frozen_after():
    model = build()
    step = make_step(model)
    start_chain(step, 4)
    point = {"coupling": np.array(0.0), "field": np.array(0.0)}
    points, _ = run(step, point, 1500)
    step.stop_tuning()
    learnt = step.learnt.scale, step.learnt.covariance
    assert step.learnt.covariance.n_windows > 0
    _, stats = run(step, points[-1], 1500)
    assert (step.learnt.scale, step.learnt.covariance) == learnt
    assert np.mean([stat["accepted"] for stat in stats]) == pytest.approx(0.234, abs=0.08)


def test_each_parameter_may_have_a_step_of_its_own():
    with build() as model:
        steps = [apm.ExchangeMH([model["coupling"]]), apm.ExchangeMH([model["field"]])]
    idata = sample(model, steps)
    assert np.isfinite(idata.posterior["coupling"].values).all()


@pytest.mark.parametrize(
    "steps",
    [
        lambda model: apm.ExchangeMH([model["coupling"]]),
        lambda model: [apm.ExchangeMH([model["coupling"]]), pm.Slice([model["field"]])],
        lambda model: [apm.ExchangeMH([model["coupling"]]), apm.APMSlice([model["field"]])],
        lambda model: [apm.ExchangeMH(), pm.Slice([model["field"]])],
    ],
    ids=["left to pymc", "slice", "apm", "both"],
)
def test_parameters_of_the_likelihood_are_not_left_to_other_steps(steps):
    with build() as model:
        with pytest.raises(ModelError, match="Another step than ExchangeMH would update field"):
            sample(model, steps(model))


def test_other_parameters_are_left_to_other_steps():
    with build() as model:
        width = pm.HalfNormal("width")
        pm.Normal("z", 0.0, width, observed=1.0)
        step = apm.ExchangeMH([model["coupling"], model["field"]])
        idata = sample(model, [step, pm.Slice([width])])
    assert np.unique(idata.posterior["width"]).size > 1


def test_two_likelihoods_share_a_parameter():
    with pm.Model() as model:
        field = pm.Normal("field", 0.0, 0.4)
        for name, coupling in (("a", 0.1), ("b", -0.2)):
            y = np.ones(6)
            doubly_intractable(name, LATTICE, [coupling, field], y, reference={"field": 0.0})
        step = apm.ExchangeMH()
    idata = sample(model, step)
    assert np.isfinite(idata.posterior["field"].values).all()


def test_where_the_prior_is_zero_nothing_is_sampled():
    def sample_inside(field, rng):
        assert 0.0 < field < 0.3
        return LATTICE.sample(0.1, field, rng)

    family = Unnormalised(lambda x, field: LATTICE.log_g(x, 0.1, field), sample_inside)
    with pm.Model() as model:
        field = pm.Uniform("field", 0.0, 0.3, default_transform=None, initval=0.1)
        doubly_intractable("y", family, [field], np.ones(6), reference={"field": 0.1})
        step = apm.ExchangeMH(scaling=1.0)
    idata = sample(model, step)
    evaluations = idata.sample_stats["n_evals"].values
    assert 0 < evaluations.mean() < 1


# Bad input


def test_other_estimators_are_refused():
    with pm.Model():
        theta = pm.Normal("theta")
        apm.Potential("log_lik", theta * apm.StandardNormal("u"))
        with pytest.raises(ModelError, match=r"apm\.estimators\.doubly_intractable"):
            apm.ExchangeMH()
    with pm.Model():
        pm.Normal("theta")
        with pytest.raises(ModelError, match=r"apm\.estimators\.doubly_intractable"):
            apm.ExchangeMH()
    with build():
        theta = pm.Normal("theta")
        apm.Potential("log_lik", theta * apm.StandardNormal("v"))
        with pytest.raises(ModelError, match=r"apm\.estimators\.doubly_intractable"):
            apm.ExchangeMH()


def test_bad_options_are_refused():
    model = build()
    for options, message in [
        ({"scaling": -1.0}, "scaling of ExchangeMH"),
        ({"covariance": np.eye(3)}, "covariance of ExchangeMH"),
        ({"target_accept": 2.0}, "target_accept of ExchangeMH"),
        ({"directions": "random"}, "directions of ExchangeMH"),
        ({"blocked": False}, "leave out blocked=False"),
    ]:
        with pytest.raises(ModelError, match=message):
            make_step(model, **options)


def test_a_start_outside_of_the_prior_is_reported():
    with pm.Model() as model:
        field = pm.Uniform("field", 0.0, 0.3, default_transform=None)
        doubly_intractable("y", LATTICE, [0.1, field], np.ones(6), reference={"field": 0.1})
        step = apm.ExchangeMH()
    with pytest.raises(EstimatorError, match=r"starting point: .*field = 2"):
        sample(model, step, initvals={"field": 2.0}, chains=1)


def test_an_error_of_the_sampler_names_the_proposal():
    def fails(coupling, field, rng):
        raise ValueError("no luck")

    model = build(Unnormalised(LATTICE.log_g, fails))
    with pytest.raises(ValueError, match=r"no luck\nThe parameters were coupling = .*, field = "):
        sample(model, make_step(model), chains=1)
