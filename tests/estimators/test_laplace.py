"""The Laplace estimators must be unbiased, whatever the quality of the approximation."""

import functools
import logging
import re

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.initial_point import make_initial_point_fn
from pytensor.graph.traversal import ancestors
from scipy import stats
from scipy.special import expit, log_expit

import pymc_apm as apm
from pymc_apm.black_box import nodes_between
from pymc_apm.density.target import REST, THETA, Target
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators.laplace import dense, matrices, ops
from tests.estimators.batches import Batches
from tests.marks import others_are_slow
from tests.modes import interpreted
from tests.statistical.checks import assert_exact, assert_not_exact, z_scores_of_means
from tests.steps.models import sample


@pytest.fixture(autouse=True, scope="module")
def without_a_compiler():
    with interpreted():
        yield


X = np.array([0.0, 0.7, 1.5])
SIGNS = np.array([1.0, 1.0, -1.0])
COUNTS = np.array([3, 0, 6])
VALUES = np.array([0.5, -1.0, 6.0])  # the last one is an outlier, where the curvature is negative

LIKELIHOODS = {
    "probit": lambda f, spread: pm.logcdf(pm.Normal.dist(), SIGNS * f),
    "logit": lambda f, spread: pm.logp(pm.Bernoulli.dist(logit_p=f), (SIGNS > 0).astype(int)),
    "poisson": lambda f, spread: pm.logp(pm.Poisson.dist(pt.exp(f)), COUNTS),
    "negative binomial": lambda f, spread: pm.logp(
        pm.NegativeBinomial.dist(mu=pt.exp(f), alpha=spread), COUNTS
    ),
    "student t": lambda f, spread: pm.logp(pm.StudentT.dist(nu=3, mu=f, sigma=spread), VALUES),
}

TRUE_LIKELIHOODS = {
    "probit": lambda i, f, spread: stats.norm.logcdf(SIGNS[i] * f),
    "logit": lambda i, f, spread: log_expit(SIGNS[i] * f),
    "poisson": lambda i, f, spread: stats.poisson.logpmf(COUNTS[i], np.exp(f)),
    "negative binomial": lambda i, f, spread: stats.nbinom.logpmf(
        COUNTS[i], spread, spread / (spread + np.exp(f))
    ),
    "student t": lambda i, f, spread: stats.t.logpdf(VALUES[i], 3, f, spread),
}

REFERENCE = {"scale": 1.5, "length": 1.0, "level": 0.3, "spread": 0.5}
POINTS = [REFERENCE, {"scale": 2.5, "length": 0.4, "level": -0.5, "spread": 0.4}]


def kernel(scale, length):
    return scale**2 * np.exp(-0.5 * ((X[:, None] - X) / length) ** 2)


def dense_model(likelihood, **options):
    """Return a model with one latent vector of three entries."""
    with pm.Model() as model:
        scale, length = pm.HalfNormal("scale", 2), pm.HalfNormal("length", 2)
        level, spread = pm.Normal("level"), pm.HalfNormal("spread")
        reference = REFERENCE.copy()
        if likelihood in ("probit", "logit", "poisson"):
            del reference["spread"]
        apm.estimators.laplace_importance(
            "y",
            lambda f: LIKELIHOODS[likelihood](f, spread),
            scale**2 * pt.exp(-0.5 * ((X[:, None] - X) / length) ** 2),
            mean=level,
            **{"reference": reference} | options,
        )
    return model


@functools.cache
def exact_likelihood(likelihood, scale, length, level, spread):
    """Integrate over the latent vector, on a grid of its whitened entries."""
    nu = np.linspace(-6.0, 6.0, 101)
    lower = np.linalg.cholesky(kernel(scale, length))
    a, b, c = nu[:, None, None], nu[None, :, None], nu[None, None, :]
    latent = [lower[0, 0] * a, lower[1, 0] * a + lower[1, 1] * b]
    latent.append(lower[2, 0] * a + lower[2, 1] * b + lower[2, 2] * c)
    log_density = sum(
        TRUE_LIKELIHOODS[likelihood](i, level + f, spread) for i, f in enumerate(latent)
    )
    log_prior = stats.norm.logpdf(a) + stats.norm.logpdf(b) + stats.norm.logpdf(c)
    return float(np.exp(log_density + log_prior).sum() * (nu[1] - nu[0]) ** 3)


@functools.cache
def target_of(likelihood):
    """Return the staged target of a model, which tests share."""
    model = dense_model(likelihood)
    return Target(model, model.value_vars, model.initial_point())


class Estimator:
    """The target of a model at given parameters, for one u or another."""

    def __init__(self, target, point):
        self.target = target
        model = target.model
        overrides = {model[name]: np.asarray(value) for name, value in point.items()}
        start = make_initial_point_fn(model=model, overrides=overrides)(0)
        (self.u,) = self.target.randomness
        self.density = self.target.along(self.u.name)
        self.rng = np.random.default_rng(1)
        parameters = {THETA: self.target.layout.ravel(start), REST: np.zeros(0)}
        self.evaluation = self.target.start(parameters | {self.u.name: self.draw()})

    def draw(self):
        return self.u.tag.apm_randomness.draw(self.rng)

    def log_estimate(self, u):
        return self.density(u, self.evaluation)[1].log_estimate


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("likelihood", others_are_slow(["poisson"], LIKELIHOODS))
def test_estimates_of_one_latent_vector_are_unbiased(likelihood, samples):
    batches = Batches(dense_model(likelihood, samples=samples))
    for point in POINTS:
        estimates = batches.estimates(5000, point)
        assert_exact(z_scores_of_means([estimates / exact_likelihood(likelihood, **point) - 1]), 4)


def test_the_published_form_is_unbiased():
    model = dense_model("probit", formulation="published", samples=3)
    estimates = Batches(model).estimates(5000, POINTS[1])
    assert_exact(z_scores_of_means([estimates / exact_likelihood("probit", **POINTS[1]) - 1]), 4)


@pytest.mark.parametrize("likelihood", ["poisson", "student t"])
def test_the_target_has_the_estimates_of_the_model(likelihood):
    """Where u are taken one by one, as chains do, and where many are taken at once."""
    estimator = Estimator(target_of(likelihood), POINTS[1])
    batches = Batches(estimator.target.model)
    us = batches.draw(5)
    expected = [estimator.log_estimate(u.ravel()) for u in us]
    np.testing.assert_allclose(batches.at(us, POINTS[1]), expected, rtol=1e-10)


@pytest.mark.parametrize("broken", ["curvature", "weights", "draw"])
def test_a_wrong_weight_is_noticed(monkeypatch, broken):
    original = dense.fit

    def fit(*args, **kwargs):
        fitted = original(*args, **kwargs)
        if broken == "curvature":
            return fitted._replace(curvature=1.1 * fitted.curvature)
        if broken == "weights":
            return fitted._replace(weights=1.1 * fitted.weights)
        return fitted._replace(prior_factor=2.0 * fitted.prior_factor)

    monkeypatch.setattr(ops, "fit", fit)
    estimates = Batches(dense_model("poisson")).estimates(5000, POINTS[0])
    exact = exact_likelihood("poisson", **POINTS[0])
    assert_not_exact(z_scores_of_means([estimates / exact - 1]))


# Groups


SUBJECT = np.array([0, 0, 1, 1, 1, 2, 3, 3])
TIME = np.array([0.0, 1.0, 0.0, 1.0, 2.0, 0.5, 0.0, 1.0])
OUTCOME = np.array([1, 4, 0, 2, 1, 7, 3, 3])
REAL_OUTCOME = np.array([0.1, 1.0, -0.4, 0.2, 0.1, 5.0, 1.0, 1.2])

GROUPED = {
    "probit": (
        lambda eta: pm.logcdf(pm.Normal.dist(), np.where(OUTCOME > 2, 1, -1) * eta),
        lambda i, eta: stats.norm.logcdf((1 if OUTCOME[i] > 2 else -1) * eta),
    ),
    "logit": (
        lambda eta: pm.logp(pm.Bernoulli.dist(logit_p=eta), (OUTCOME > 2).astype(int)),
        lambda i, eta: log_expit((1 if OUTCOME[i] > 2 else -1) * eta),
    ),
    "poisson": (
        lambda eta: pm.logp(pm.Poisson.dist(pt.exp(eta)), OUTCOME),
        lambda i, eta: stats.poisson.logpmf(OUTCOME[i], np.exp(eta)),
    ),
    "negative binomial": (
        lambda eta: pm.logp(pm.NegativeBinomial.dist(mu=pt.exp(eta), alpha=2.0), OUTCOME),
        lambda i, eta: stats.nbinom.logpmf(OUTCOME[i], 2.0, 2.0 / (2.0 + np.exp(eta))),
    ),
    "student t": (
        lambda eta: pm.logp(pm.StudentT.dist(nu=3, mu=eta, sigma=0.4), REAL_OUTCOME),
        lambda i, eta: stats.t.logpdf(REAL_OUTCOME[i], 3, eta, 0.4),
    ),
}

COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.5]])


def grouped_model(likelihood, shape, samples=8, **options):
    """Return a model with random intercepts, or with random slopes too."""
    log_lik, _ = GROUPED[likelihood]
    with pm.Model() as model:
        beta, sd = pm.Normal("beta"), pm.HalfNormal("sd")
        if shape == "scalar":
            cov, effect = sd**2, lambda b: b[SUBJECT]
        else:
            cov = sd**2 * pt.as_tensor_variable(COVARIANCE)
            cov = cov * np.ones((4, 1, 1)) if shape == "each" else cov
            effect = lambda b: b[SUBJECT, 0] + b[SUBJECT, 1] * TIME  # noqa: E731
        apm.estimators.laplace_importance(
            "y",
            lambda b: log_lik(beta + effect(b)),
            cov,
            samples=samples,
            groups=SUBJECT,
            reference={"beta": 0.5, "sd": 1.0},
            **options,
        )
    return model


@functools.cache
def shared_model(likelihood, shape):
    """Return the model with eight samples, which tests share."""
    return grouped_model(likelihood, shape)


@functools.cache
def exact_groups(likelihood, shape, beta, sd):
    """Return the likelihood of each group, by Gauss-Hermite quadrature, nested for two effects."""
    _, log_lik = GROUPED[likelihood]
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    weights = weights / weights.sum()
    if shape == "scalar":
        effects, weights = [sd * nodes, np.zeros(150)], weights
    else:
        lower = sd * np.linalg.cholesky(COVARIANCE)
        first, second = np.meshgrid(nodes, nodes, indexing="ij")
        effects = [lower[0, 0] * first, lower[1, 0] * first + lower[1, 1] * second]
        weights = np.outer(weights, weights)
    exact = []
    for group in range(4):
        log_density = sum(
            log_lik(i, beta + effects[0] + effects[1] * TIME[i])
            for i in np.flatnonzero(group == SUBJECT)
        )
        exact.append(float((weights * np.exp(log_density)).sum()))
    return np.array(exact)


@pytest.mark.parametrize("likelihood", others_are_slow(["poisson"], GROUPED))
@pytest.mark.parametrize("shape", ["scalar", "shared", "each"])
def test_estimates_of_groups_are_unbiased(likelihood, shape):
    if shape == "each" and likelihood != "poisson":
        pytest.skip("differs from a shared covariance in its shape alone")
    batches = Batches(shared_model(likelihood, shape))
    for point in ({"beta": 0.5, "sd": 1.0}, {"beta": -0.2, "sd": 1.8}):
        estimates = batches.estimates(4000, point)
        exact = exact_groups(likelihood, shape, **point).prod()
        assert_exact(z_scores_of_means([estimates / exact - 1.0]), 4.0)


def test_draws_come_in_pairs_and_from_the_prior_where_tails_may_be_heavy():
    assert shared_model("poisson", "scalar")["y_u"].type.shape == (4, 4, 1)
    assert grouped_model("poisson", "shared", samples=3)["y_u"].type.shape == (3, 4, 2)
    # Two of eight from the prior, and three pairs.
    assert shared_model("student t", "shared")["y_u"].type.shape == (5, 4, 2)


def test_tails_that_are_heavy_along_a_contrast_are_found():
    """Which does not change where all effects of a group do alike."""

    def n_from_prior(log_density):
        with pm.Model() as model:
            apm.estimators.laplace_importance(
                "y",
                lambda f: log_density(f[:, 0] - f[:, 1]),
                4.0 * np.eye(2),
                groups=np.arange(3),
                samples=8,
            )
        return model["y_u"].get_value().shape[0]

    y = np.array([0.1, -0.2, 0.0])
    assert n_from_prior(lambda f: pm.logp(pm.Normal.dist(f, 0.3), y)) == 4  # and their reflections
    assert n_from_prior(lambda f: pm.logp(pm.StudentT.dist(nu=2, mu=f, sigma=0.3), y)) == 5


def test_weights_without_a_share_from_the_prior_have_heavy_tails():
    point = {"beta": -0.2, "sd": 1.8}
    defensive = Batches(shared_model("student t", "shared")).estimates(2000, point)
    plain = Batches(grouped_model("student t", "shared", defensive=False)).estimates(2000, point)
    assert defensive.std() < 0.7 * plain.std()
    assert defensive.max() / defensive.mean() < 15 < plain.max() / plain.mean()


def test_the_potential_of_groups_has_one_entry_for_each():
    with shared_model("poisson", "shared") as model:
        step = apm.APMSlice()
        (potential,) = model.replace_rvs_by_values([model["y"]])
        point = model.initial_point()
        with apm.clamped():
            log_estimates = model.compile_fn(potential, inputs=model.value_vars)(point)
        assert log_estimates.shape == (4,)
        assert np.isfinite(step.step(point)[1][0]["log_estimate"])


# What it costs


def test_the_fit_runs_once_per_value_of_the_parameters():
    estimator = Estimator(target_of("poisson"), REFERENCE)
    target = estimator.target
    assert estimator.evaluation.cost.n_cubic == 2
    for _ in range(3):
        _, again = estimator.density(estimator.draw(), estimator.evaluation)
        assert (again.cost.n_evals, again.cost.n_theta_evals, again.cost.n_cubic) == (1, 0, 0)
    theta = target.value(estimator.evaluation, THETA)
    _, elsewhere = target.along(THETA)(theta + 0.01, estimator.evaluation)
    cost = elsewhere.cost
    assert (cost.n_evals, cost.n_theta_evals, cost.n_cubic) == (1, 1, 2)


def test_memory_is_not_used_again_while_an_evaluation_holds_it():
    estimator = Estimator(target_of("probit"), REFERENCE)
    density = estimator.target.along(THETA)
    theta = estimator.target.value(estimator.evaluation, THETA)
    rng = np.random.default_rng(1)
    held = [estimator.evaluation]
    copies = [cloudpickle.loads(cloudpickle.dumps(estimator.evaluation.values))]
    for _ in range(50):
        evaluation = density(theta + 0.3 * rng.standard_normal(theta.shape), held[0])[1]
        if rng.random() < 0.2:
            held.append(evaluation)
            copies.append(cloudpickle.loads(cloudpickle.dumps(evaluation.values)))
    for evaluation, copy in zip(held, copies, strict=True):
        for value, expected in zip(evaluation.values, copy, strict=True):
            np.testing.assert_array_equal(value, expected)


def test_memory_that_nobody_holds_is_used_again():
    buffers = matrices.Buffers()
    first = buffers.take(3)
    second = buffers.take(3)
    assert first is not second
    view, address = second.T, second.__array_interface__["data"]
    del second
    assert buffers.take(3) is not view.base
    del view
    assert buffers.take(3).__array_interface__["data"] == address
    assert buffers.take(4).shape == (4, 4)


def test_exponentials_of_matrices_are_computed_by_numpy():
    with pm.Model() as model:
        base = pm.Normal("base", pt.exp(np.zeros((2, 2))), shape=(2, 2))
        matrix = pt.exp(-pt.exp(base)) * 2.0
        fast = ops.with_fast_exponentials(matrix, model.basic_RVs)
    names = [type(node.op).__name__ for node in nodes_between([fast], [base])]
    assert names.count("NumpyExp") == 2
    assert base in set(ancestors([fast]))
    value = np.array([[0.1, 1.0], [-2.0, 3.0]])
    np.testing.assert_allclose(fast.eval({base: value}), 2.0 * np.exp(-np.exp(value)), rtol=1e-14)


def test_cubic_operations_are_in_the_statistics(monkeypatch):
    counts = []
    original = dense.fit

    def fit(*args, **kwargs):
        fitted = original(*args, **kwargs)
        counts.append(fitted.n_cubic)
        return fitted

    monkeypatch.setattr(ops, "fit", fit)
    with target_of("poisson").model as model:
        step = apm.APMMetropolis(scaling=0.5)
    idata = sample(model, step, draws=20, tune=0, chains=1)
    stats = idata["sample_stats"]
    assert stats["n_theta_evals"].values.ravel().tolist() == [1] * 20
    assert stats["n_cubic"].values.ravel().tolist() == counts[-20:]
    assert 2 <= np.mean(counts) < 2.5


def test_the_published_form_counts_as_the_paper_does():
    model = dense_model("poisson", formulation="published")
    target = Target(model, model.value_vars, model.initial_point())
    estimator = Estimator(target, REFERENCE)
    f, mean = np.full(3, 0.3), np.full(3, 0.3)
    cov = kernel(1.5, 1.0)
    n_steps, change = 0, np.inf
    while change >= 1e-4:
        n_steps += 1
        w, gradient = np.exp(f), COUNTS - np.exp(f)
        new = mean + np.linalg.solve(np.linalg.inv(cov) + np.diag(w), w * (f - mean) + gradient)
        change = np.mean((new - f) ** 2)
        f = new
    assert estimator.evaluation.cost.n_cubic == n_steps + 3


def test_the_estimate_does_not_depend_on_the_path():
    estimator = Estimator(target_of("student t"), REFERENCE)
    target, here = estimator.target, estimator.evaluation
    theta = target.value(here, THETA)
    along = target.along(THETA)
    there, rest = along(theta + 0.7, here)
    again, _ = along(theta + 0.7, along(theta - 1.0, rest)[1])
    assert there == again


# Numerics


def ill_conditioned(jitter):
    """Return a model of forty observations at nearly the same place."""
    x = np.linspace(0.0, 1e-3, 40)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        apm.estimators.laplace_importance(
            "y",
            lambda f: pm.logp(pm.Poisson.dist(pt.exp(f)), np.arange(40) % 4),
            scale**2 * np.exp(-0.5 * (x[:, None] - x) ** 2),
            jitter=jitter,
            reference={"scale": 1.0},
        )
    return model


def test_an_ill_conditioned_covariance_is_handled():
    estimates = Batches(ill_conditioned(1e-8)).estimates(500, {"scale": 1.0})
    assert np.log(estimates).std() < 0.5


def test_more_jitter_than_asked_for_is_reported(caplog):
    with caplog.at_level(logging.WARNING, logger="pymc.apm"):
        Batches(ill_conditioned(1e-18)).estimates(1, {"scale": 1.0})
    assert "ill-conditioned" in caplog.text and "larger jitter" in caplog.text


def test_a_covariance_without_a_factor_is_an_error_in_words():
    with pytest.raises(EstimatorError, match=r"no Laplace approximation of y .*Cholesky"):
        ill_conditioned(0.0)
    model = dense_model("poisson", jitter=0.0)
    op = next(
        v.owner.op
        for v in ancestors([model["y"]])
        if v.owner and isinstance(v.owner.op, ops.LaplaceFit)
    )
    with pytest.raises(EstimatorError, match=r"covariance of y is not positive definite.*jitter"):
        op.fit(np.ones((3, 3)), np.zeros(3), [])


def test_parameters_without_a_covariance_have_no_probability():
    estimator = Estimator(target_of("poisson"), REFERENCE)
    target = estimator.target
    theta = target.value(estimator.evaluation, THETA).copy()
    theta[0] = 800.0  # the log of a scale whose square is infinite
    value, _ = target.along(THETA)(theta, estimator.evaluation)
    assert value == -np.inf


def test_a_fit_far_from_the_reference_is_safe():
    estimator = Estimator(target_of("poisson"), {**REFERENCE, "scale": 60.0, "level": -30.0})
    assert np.isfinite(estimator.evaluation.log_estimate)


@pytest.mark.parametrize("size", [1, 50])
def test_a_fit_is_the_fixed_point(size):
    rng = np.random.default_rng(3)
    x, y = np.sort(rng.uniform(size=size)), rng.poisson(3.0, size=size)
    cov = np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2) + 1e-6 * np.eye(size)

    def derivatives(f):
        return y * f - np.exp(f), y - np.exp(f)

    smoothed = dense.smooth(derivatives, np.zeros(size))
    mean = np.full(size, 0.5)
    fitted = dense.fit(cov, mean, smoothed, mean, np.ones(size), 0.0, mismatch=1e-12)
    latent = mean + fitted.centre
    np.testing.assert_allclose(fitted.weights, y - np.exp(latent), atol=1e-4)
    np.testing.assert_allclose(cov @ fitted.weights, fitted.centre, atol=1e-8)
    inverse = np.linalg.inv(np.linalg.inv(cov) + np.diag(fitted.curvature))
    variances = dense.marginal_variances(fitted, cov)
    np.testing.assert_allclose(variances, np.diag(inverse), rtol=1e-4)
    u = rng.standard_normal((2, 20000, size))
    drawn = dense.deviations(
        matrices.Covariance(cov), fitted.prior_factor, fitted.factor, fitted.curvature, u
    )
    error = np.cov(drawn.T).reshape(size, size) - inverse
    assert np.abs(error).max() < 6 * np.diag(inverse).max() / np.sqrt(20000)
    one = dense.deviations(
        matrices.Covariance(cov),
        fitted.prior_factor,
        fitted.factor,
        fitted.curvature,
        u[:, :1],
    )
    np.testing.assert_allclose(one, drawn[:1], atol=1e-10)


# Through pm.sample


def test_it_survives_another_process():
    model = dense_model("negative binomial")
    batches, others = Batches(model), Batches(cloudpickle.loads(cloudpickle.dumps(model)))
    us = batches.draw(3)
    np.testing.assert_allclose(others.at(us, REFERENCE), batches.at(us, REFERENCE))


def test_the_reference_is_found_and_reported(caplog):
    with caplog.at_level(logging.INFO, logger="pymc.apm"):
        dense_model("poisson", reference=None)
    assert "Reference of y by a pilot estimate: scale = " in caplog.text


def test_the_reference_is_found_along_a_ridge(caplog):
    """The level of all periods and the spread of the groups make up for each other."""
    rng = np.random.default_rng(1)
    group, period = np.repeat(np.arange(15), 4), np.tile(np.arange(4), 15)
    log_odds = np.array([-1.4, -2.4, -2.5, -3.0])[period] + 0.7 * rng.standard_normal(15)[group]
    counts = rng.binomial(17, expit(log_odds))
    with caplog.at_level(logging.INFO, logger="pymc.apm"), pm.Model():
        beta, sd = pm.Normal("beta", 0, 2, shape=4), pm.HalfNormal("sd")
        apm.estimators.laplace_importance(
            "y",
            lambda f: pm.logp(pm.Binomial.dist(17, logit_p=beta[period] + f[group]), counts),
            sd**2,
            groups=group,
        )
    found = [float(x) for x in re.findall(r"-?\d+\.\d+", caplog.messages[-1])]
    shares = counts.reshape(15, 4).mean(axis=0) / 17
    np.testing.assert_allclose(found[:4], np.log(shares / (1 - shares)), atol=0.5)
    assert 0.1 < found[4] < 1.2


def test_tuning_on_the_approximation():
    with target_of("poisson").model:
        step = apm.PseudoMarginalMH(tune_on="approximation")
        point = pm.modelcontext(None).initial_point()
        u = step.u["y_u"].copy()
        for _ in range(60):
            point, (stats_of_draw,) = step.step(point)
            assert stats_of_draw["u_accepted"] == 0.0
        np.testing.assert_array_equal(step.u["y_u"], u)
        step.stop_tuning()
        moved = [step.step(point)[1][0]["u_accepted"] for _ in range(50)]
        assert any(moved)


def test_the_approximation_is_the_estimate_without_noise():
    estimator = Estimator(target_of("probit"), REFERENCE)
    without_noise = estimator.density(np.zeros(6), estimator.evaluation)[1]
    approximate = estimator.target.approximate_log_density(estimator.evaluation)
    assert approximate == pytest.approx(without_noise.log_density)


def test_gradients_are_refused_in_words():
    with target_of("poisson").model as model, pytest.raises(NotImplementedError, match="APMSlice"):
        model.dlogp()


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_lik": lambda f: f.sum()}, "must return a vector of 3"),
        ({"log_lik": lambda f: pt.zeros(3)}, "does not depend on the latent"),
        ({"log_lik": lambda f: -((f - f[::-1]) ** 2)}, "does not factorise"),
        ({"log_lik": 3.0}, "must be a function"),
        ({"cov": np.ones(3)}, "give groups"),
        ({"cov": np.ones((3, 2))}, "must be square"),
        ({"mean": np.zeros((3, 3))}, "a number or a vector"),
        ({"samples": 0}, "samples of laplace_importance"),
        ({"jitter": -1.0}, "jitter of laplace_importance"),
        ({"formulation": "slow"}, "formulation of laplace_importance"),
        ({"groups": [0.5, 1.0, 2.0], "cov": 1.0}, "groups of 'y' must be a vector of integers"),
        ({"groups": [0, 1, 1], "cov": np.ones(3)}, "a variance, a covariance matrix"),
        ({"groups": [0, 1, 1], "cov": 1.0, "formulation": "published"}, "must be 'fast'"),
        ({"groups": [0, 1, 1], "cov": 1.0, "log_lik": lambda f: -(f[[1, 0, 0]] ** 2)}, "factorise"),
        ({"reference": {"nobody": 1.0}}, "nobody, but the parameters that matter are"),
    ],
)
def test_bad_input_gets_an_error_in_words(options, message):
    arguments = {"log_lik": lambda f: -(f**2), "cov": np.eye(3)} | options
    with pm.Model(), pytest.raises(ModelError, match=message):
        apm.estimators.laplace_importance("y", **arguments)
