"""A target whose estimate has factors: which these are, and evaluations that are put together."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.fgraph import clone_model

import pymc_apm as apm
from pymc_apm.density.target import THETA, Target
from pymc_apm.errors import EstimatorError, ModelError
from tests.models import PythonOp
from tests.steps.models import start_chain

GROUP = np.array([0, 2, 1, 2, 0, 2, 1])
COUNTS = np.array([1.0, 4.0, 0.0, 2.0, 3.0, 1.0, 2.0])


def log_mean_exp(x):
    return pt.logsumexp(x, axis=0) - np.log(x.type.shape[0])


def vector(mu, sigma, u):
    return [log_mean_exp(-0.5 * (mu - 2.0 + 3.0 * sigma * u) ** 2)]


def summed(mu, sigma, u):
    return [log_mean_exp(-0.5 * (mu + sigma * u) ** 2).sum() - mu**2]


def by_group(mu, sigma, u):
    log_rate = mu + sigma * u[:, GROUP]
    log_p = COUNTS * log_rate - pt.exp(log_rate)
    return [log_mean_exp(log_p @ np.eye(3)[GROUP])]


def two_vectors(mu, sigma, u):
    return [vector(mu, sigma, u)[0], pt.sin(mu * u[0]) - sigma]


def beside_a_scalar(mu, sigma, u):
    v = apm.StandardNormal("v", shape=5)
    return [vector(mu, sigma, u)[0], log_mean_exp(-((mu - v) ** 2))]


def with_two_u(mu, sigma, u):
    v = apm.StandardUniform("v", shape=(4, 3))
    return [log_mean_exp(-0.5 * (mu + sigma * u) ** 2 + pt.sqrt(2.0) * pt.erfinv(2.0 * v - 1.0))]


def part_of_the_last(mu, sigma, u):
    """The last row feeds one vector alone, and one number nothing at all."""
    return [vector(mu, sigma, u[:3])[0], -((mu - u[3, :2]) ** 2)]


def mixed(mu, sigma, u):
    return [vector(mu, sigma, pt.cumsum(u, axis=1))[0]]


def tied(mu, sigma, u):
    return [vector(mu, sigma, u)[0], -(u.mean() ** 2)]


FACTORS = {
    vector: {"u": 3},
    summed: {"u": 3},
    by_group: {"u": 3},
    two_vectors: {"u": 3},
    beside_a_scalar: {"u": 3},
    with_two_u: {"u": 3, "v": 3},
    part_of_the_last: {"u": 5},
    mixed: {},
    tied: {},
}


def build(estimates):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        u = apm.StandardNormal("u", shape=(4, 3))
        for number, estimate in enumerate(estimates(mu, sigma, u)):
            apm.Potential(f"estimate {number}", estimate)
        pm.Normal("observed", mu, 2.0, observed=np.array([0.3, -0.2]))
    return model


@pytest.mark.parametrize("estimates", FACTORS, ids=lambda estimates: estimates.__name__)
def test_factors_are_those_of_the_model(estimates):
    model = build(estimates)
    target = Target(model, model.value_vars, model.initial_point())
    found = {name: factors.n_factors for name, factors in target.factors.items()}
    assert found == FACTORS[estimates]


def chain_of_updates(step, point, n_updates=60):
    """Update u some times, by itself, and go through the evaluations."""
    rng = np.random.default_rng(1)
    start_chain(step, 3)
    with apm.clamped(step.target.model):
        step.step(point)
    update = step.build_u(step.target.along)
    evaluation = step.evaluation
    for _ in range(n_updates):
        evaluation, report = update(rng, evaluation)
        yield evaluation, report


@pytest.mark.parametrize("u_update", ["slice", "independence"])
@pytest.mark.parametrize(
    "estimates", [e for e in FACTORS if FACTORS[e]], ids=lambda estimates: estimates.__name__
)
def test_what_is_put_together_is_what_would_be_computed(estimates, u_update):
    model = build(estimates)
    with model:
        step = apm.APMSlice(u_update=u_update)
    target = step.target
    shares = []
    for evaluation, report in chain_of_updates(step, model.initial_point()):
        inputs = {name: target.value(evaluation, name) for name in target.inputs}
        again = target.start(inputs)
        np.testing.assert_allclose(evaluation[1:5], again[1:5], rtol=1e-12)
        for value, expected in zip(evaluation.values, again.values, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-12)
        shares.append(report.n_u_moved / report.n_u_updates)
    assert 0.2 < np.mean(shares) < 1.0  # some were left behind


def weight_of_zero(mu, u):
    """An entry that counts for nothing, unless its estimate is zero: then it is not a number."""
    return [np.array([1.0, 1.0, 0.0]) * pt.switch(u[:3] > 1.0, -np.inf, -((mu - u[:3]) ** 2))]


def check_of_others(mu, u):
    """An entry that does not depend on u, but is spoilt by a check of what others depend on."""
    sigma = pt.concatenate([u[:2] + 1.0, [1.0]])
    return [pm.logp(pm.Normal.dist(mu, sigma), np.array([0.1, 0.2, 0.3])), -((u[2:] - mu) ** 2)]


@pytest.mark.parametrize("u_update", ["slice", "independence"])
@pytest.mark.parametrize("estimates", [weight_of_zero, check_of_others])
def test_an_entry_that_does_not_depend_on_u_may_be_spoilt(estimates, u_update):
    with pm.Model() as model:
        u = apm.StandardNormal("u", shape=8)
        for number, estimate in enumerate(estimates(pm.Normal("mu"), u)):
            apm.Potential(f"estimate {number}", estimate)
        step = apm.APMSlice(u_update=u_update)
    target = step.target
    assert target.factors["u"].n_factors > 1
    n_moved = 0
    for evaluation, report in chain_of_updates(step, model.initial_point(), 100):
        again = target.start({name: target.value(evaluation, name) for name in target.inputs})
        assert np.isfinite(again.log_density)
        np.testing.assert_allclose(evaluation[1:5], again[1:5], rtol=1e-12)
        n_moved += report.n_u_moved > 0
    assert n_moved > 20


def test_an_update_of_u_does_not_repeat_what_depends_on_theta_alone():
    calls = []

    def count(theta):
        calls.append(1)
        return np.asarray(theta)

    with pm.Model() as model:
        mu = pm.Normal("mu")
        u = apm.StandardNormal("u", shape=(4, 3))
        shift = PythonOp(count)(mu)
        apm.Potential("log_lik", log_mean_exp(-0.5 * (shift + u) ** 2))
        step = apm.APMSlice()
    updates = chain_of_updates(step, model.initial_point())
    next(updates)
    n_calls = len(calls)
    n_evals = sum(report.n_evals for _, report in updates)
    assert n_evals >= 59
    assert len(calls) == n_calls


def test_one_factor_if_told_so():
    model = build(vector)
    with model:
        steps = [apm.APMSlice(factorwise=factorwise) for factorwise in (True, False)]
    shares = [
        {report.n_u_moved for _, report in chain_of_updates(step, model.initial_point())}
        for step in steps
    ]
    assert len(shares[0]) > 1
    assert shares[1] == {1.0}


def test_numbers_of_groups_may_be_data():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        group = pm.Data("group", GROUP)
        counts = pm.Data("counts", COUNTS)
        u = apm.StandardNormal("u", shape=(4, 3))
        log_rate = mu + u[:, group]
        log_p = counts * log_rate - pt.exp(log_rate)
        per_group = pt.zeros((4, 3))
        per_group = pt.inc_subtensor(per_group[:, group], log_p)
        apm.Potential("log_lik", log_mean_exp(per_group))
        step = apm.APMSlice()
    assert step.target.factors["u"].n_factors == 3
    point = model.initial_point()
    with apm.clamped(model):
        point, _ = step.step(point)
        pm.set_data({"counts": COUNTS + 1.0}, model=model)  # which factor is which stays the same
        point, _ = step.step(point)
        pm.set_data({"group": np.roll(GROUP, 1)}, model=model)
        for _ in range(2):  # to try once more does not help
            with pytest.raises(EstimatorError, match="Make the step again"):
                step.step(point)


def test_an_infinite_entry_beside_one_of_zero_is_an_error():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        u = apm.StandardNormal("u", shape=2)
        entries = pt.stack(
            [pt.switch(mu + u[0] > -100.0, np.inf, 0.0), pt.switch(u[1] > -100.0, -np.inf, 0.0)]
        )
        apm.Potential("log_lik", entries)
        target = Target(model, model.value_vars, model.initial_point())
    assert target.factors["u"].n_factors == 2
    inputs = {name: np.zeros(v.type.shape) for name, v in target.inputs.items()}
    with pytest.raises(EstimatorError, match="inf"):
        target.start(inputs)


def test_theta_is_not_touched_by_an_update_of_factors():
    model = build(vector)
    with model:
        step = apm.APMSlice()
    seen = {
        tuple(e.values[step.target.places[THETA]])
        for e, _ in chain_of_updates(step, model.initial_point())
    }
    assert len(seen) == 1


def black_box_model(function, factors="group", **options):
    estimate = apm.black_box(function, outputs=[pt.dvector])
    with pm.Model(coords={"sample": range(4), "group": range(6)}) as model:
        mu = pm.Normal("mu")
        u = apm.StandardNormal("u", dims=("sample", "group"))
        apm.Potential("log_lik", estimate(mu, u), factors=factors, **options)
    return model


def right(mu, u):
    return np.log(np.mean(np.exp(-0.5 * (mu - u) ** 2), axis=0))


def with_the_next(mu, u):
    return right(mu, u) + 1e-3 * np.append(u[0, 1:], 0.0)


@pytest.mark.parametrize("factors", ["group", 1, -1])
def test_factors_of_a_black_box_can_be_declared(factors):
    model = black_box_model(right, factors)
    with model:
        step = apm.APMSlice()
    assert step.target.factors["u"].n_factors == 6
    for evaluation, _ in chain_of_updates(step, model.initial_point()):
        inputs = {name: step.target.value(evaluation, name) for name in step.target.inputs}
        np.testing.assert_allclose(evaluation[1:5], step.target.start(inputs)[1:5], rtol=1e-12)


def test_factors_of_a_black_box_are_not_guessed():
    with black_box_model(right, None):
        assert not apm.APMSlice().target.factors


def test_factors_that_are_declared_go_with_a_copy():
    with clone_model(black_box_model(right)):
        assert apm.APMSlice().target.factors["u"].n_factors == 6


def test_a_declaration_that_is_wrong_is_an_error_that_names_the_entries():
    model = black_box_model(with_the_next)
    with model, pytest.raises(EstimatorError, match=r"Entries 1, 3 of log_lik .* more of u"):
        pm.sample(5, tune=0, chains=1, progressbar=False, random_seed=1)


@pytest.mark.parametrize(
    ("factors", "message"),
    [("sample", "has 6 entries"), ("nobody", "has no axis 'nobody'"), (2, "has no axis 2")],
)
def test_a_declaration_that_makes_no_sense_is_an_error(factors, message):
    with pm.Model(coords={"sample": range(4), "group": range(6)}):
        u = apm.StandardNormal("u", dims=("sample", "group"))
        with pytest.raises(ModelError, match=message):
            apm.Potential("log_lik", (pm.Normal("mu") * u).sum(axis=0), factors=factors)


def test_a_declaration_for_a_scalar_or_a_seed_is_an_error():
    with pm.Model():
        mu, u = pm.Normal("mu"), apm.StandardNormal("u", shape=3)
        with pytest.raises(ModelError, match="it is a scalar"):
            apm.Potential("log_lik", (mu * u).sum(), factors=0)
        estimate = apm.black_box(lambda mu, rng: np.zeros(2) + mu, outputs=[pt.dvector])
        with pytest.raises(ModelError, match="is no array"):
            apm.Potential("other", estimate(mu, apm.Seed("seed")), factors=0)
