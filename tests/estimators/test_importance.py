"""Importance sampling: unbiased with every kind of proposal, and bad input is put into words."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators import importance, log_mean_exp
from tests.estimators.batches import Batches
from tests.models import PYTHON, QUIET
from tests.statistical.checks import (
    assert_exact,
    assert_not_exact,
    z_scores_of_means,
    z_scores_of_run,
)

INF = np.inf


# The log of a mean


LOG_WEIGHTS = {
    "large": ([1e4, 1e4 - 1.0], 1e4 + np.log((1 + np.exp(-1.0)) / 2)),
    "small": ([-1e4, -1e4 - 1.0], -1e4 + np.log((1 + np.exp(-1.0)) / 2)),
    "far apart": ([-1e4, 1e4], 1e4 - np.log(2.0)),
    "one is zero": ([-INF, 3.0], 3.0 - np.log(2.0)),
    "all are zero": ([-INF, -INF], -INF),
    "one is infinite": ([INF, -3.0], INF),
    "infinite and zero": ([-INF, INF], INF),
    "not a number": ([np.nan, 2.0], np.nan),
    "not a number, first zero": ([-INF, np.nan], np.nan),
    "not a number, and infinite": ([INF, np.nan], np.nan),
}


@pytest.mark.parametrize("mode", [None, "FAST_COMPILE"])
def test_the_mean_of_extreme_weights(mode):
    x = pt.matrix("x")
    f = pytensor.function([x], log_mean_exp(x), mode=mode)
    columns, expected = zip(*LOG_WEIGHTS.values(), strict=True)
    np.testing.assert_allclose(f(np.transpose(columns)), expected, rtol=1e-15)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (-1, 1), None])
def test_the_mean_along_any_axes(axis):
    values = np.random.default_rng(1).normal(scale=5.0, size=(3, 4, 2))
    x = pt.tensor3("x")
    f = pytensor.function([x], log_mean_exp(x, axis=axis), mode="FAST_COMPILE")
    expected = np.log(np.mean(np.exp(values), axis=axis))
    np.testing.assert_allclose(f(values), expected, rtol=1e-12)


def test_the_mean_of_a_single_weight_is_that_weight():
    x = pt.matrix("x", shape=(1, 3))
    f = pytensor.function([x], log_mean_exp(x), mode="FAST_COMPILE")
    np.testing.assert_array_equal(f([[1e4, -INF, -7.5]]), [1e4, -INF, -7.5])


@pytest.mark.parametrize("mode", [None, "FAST_COMPILE"])
def test_the_gradient_of_the_mean_is_finite_wherever_no_weight_is_infinite(mode):
    x = pt.matrix("x")
    gradient = pytensor.function([x], pt.grad(log_mean_exp(x).sum(), x), mode=mode)
    names = ["large", "small", "far apart", "one is zero", "all are zero"]
    values = np.transpose([LOG_WEIGHTS[name][0] for name in names])
    share = 1.0 / (1.0 + np.exp(-1.0))
    expected = [[share, 1 - share], [share, 1 - share], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    np.testing.assert_allclose(gradient(values), np.transpose(expected), rtol=1e-12)


@pytest.mark.slow
def test_the_mean_inside_the_log_density_of_a_model():
    """PyMC rewrites the graph before it is compiled, and adds other terms to it."""
    with pm.Model() as model:
        theta = pm.Flat("theta")
        u = apm.StandardNormal("u", shape=(3, 2))
        possible = pt.switch(theta + u[:, 0] > 0.0, 0.5 * theta + u[:, 0], -INF)
        log_weights = pt.stack([possible, -(theta**2) * pt.exp(u[:, 1])], axis=1)
        apm.Potential("log_lik", log_mean_exp(log_weights))
    logp, dlogp = model.compile_logp(), model.compile_dlogp()
    values = np.array([[-1.0, -0.3], [0.5, 0.2], [2.0, 0.1]])
    u.set_value(values)

    def weights(theta):
        first = np.where(theta + values[:, 0] > 0.0, 0.5 * theta + values[:, 0], -INF)
        return np.column_stack([first, -(theta**2) * np.exp(values[:, 1])])

    for at in (-1.0, 0.7, 3.0, 300.0, 1e4, -1e4):
        log_weights = weights(at)
        expected = (logsumexp(log_weights, axis=0) - np.log(3)).sum()
        with apm.clamped(model):
            found, gradient = logp({"theta": at}), dlogp({"theta": at})
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        shares = np.exp(log_weights - np.maximum(log_weights.max(axis=0), -1e300))
        second = shares[:, 1] / shares[:, 1].sum() * -2.0 * at * np.exp(values[:, 1])
        first = 0.5 if np.isfinite(log_weights[:, 0]).any() else 0.0
        np.testing.assert_allclose(gradient, [first + second.sum()], rtol=1e-10)


# Unbiased estimates

THETA = 0.4
Y = np.array([1.1, -0.7, 2.0])


def log_estimates(build, n_draws=2500):
    """Return the log-estimate of a model for many u, summed over factors, at one theta."""
    with pm.Model() as model:
        build(pm.Flat("theta"))
    batches = Batches(model)
    return batches.at(batches.draw(n_draws), {"theta": THETA})


def assert_unbiased(build, log_exact, check=lambda z: assert_exact(z, 4.0)):
    relative = np.exp(log_estimates(build) - log_exact) - 1.0
    # Were the noise heavy-tailed or huge, the standard error would mean little.
    assert 1e-3 < relative.std() < 2.0
    check(z_scores_of_means([relative]))


def normal_joint(theta):
    """Return log p(y, x) of x_i ~ N(theta, 1), y_i ~ N(x_i, 0.5), one group for each i."""

    def log_joint(x):
        log_prior = pm.logp(pm.Normal.dist(theta, 1.0), x)
        return log_prior + pm.logp(pm.Normal.dist(x, 0.5), Y)

    return log_joint


NORMAL_EXACT = stats.norm.logpdf(Y, THETA, np.sqrt(1.25)).sum()


def sinh_normal(u):
    """Propose with tails that are heavier than normal: x = 1 + 0.8 sinh(u)."""
    log_q = -0.5 * u**2 - 0.5 * np.log(2 * np.pi) - pt.log(0.8 * pt.cosh(u))
    return 1.0 + 0.8 * pt.sinh(u), log_q


def logistic(u):
    """Propose from a logistic distribution by its quantiles."""
    return 0.8 + pt.log(u / (1.0 - u)), pt.log(u * (1.0 - u))


NORMAL_PROPOSALS = {
    "Normal": (lambda theta: pm.Normal.dist(0.3 * theta + 0.6 * Y, 0.7), {}),
    "Normal, given its shape": (lambda theta: pm.Normal.dist(theta, 1.2, shape=3), {}),
    "Laplace": (lambda theta: pm.Laplace.dist(theta, 1.0, shape=3), {}),
    "StudentT": (lambda theta: pm.StudentT.dist(nu=4, mu=0.8 * Y, sigma=pt.exp(0.1 * theta)), {}),
    "a function of normal u": (lambda theta: sinh_normal, {"shape": 3}),
    "a function of uniform u": (lambda theta: logistic, {"shape": (3,), "kind": "uniform"}),
}


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("name", NORMAL_PROPOSALS)
def test_estimates_of_each_group_are_unbiased(name, antithetic):
    proposal, options = NORMAL_PROPOSALS[name]

    def build(theta):
        options_here = {"samples": 4, "antithetic": antithetic} | options
        return importance("y", normal_joint(theta), proposal(theta), **options_here)

    assert_unbiased(build, NORMAL_EXACT)


@pytest.mark.parametrize("name", NORMAL_PROPOSALS)
def test_one_estimate_of_all_groups_is_unbiased(name):
    """The log density of the proposal is summed where log_joint is."""
    proposal, options = NORMAL_PROPOSALS[name]

    def build(theta):
        joint = normal_joint(theta)
        return importance(
            "y", lambda x: joint(x).sum(axis=1), proposal(theta), samples=12, **options
        )

    assert_unbiased(build, NORMAL_EXACT)


def test_a_single_sample_is_unbiased():
    def build(theta):
        return importance("y", normal_joint(theta), pm.Normal.dist(0.1 + 0.8 * Y, 0.6))

    assert_unbiased(build, NORMAL_EXACT)


@pytest.mark.parametrize(
    "proposal",
    [
        lambda theta: pm.Exponential.dist(1.0 / (1.0 + theta)),
        lambda theta: pm.Gamma.dist(2.5, 1.5),
        lambda theta: pm.LogNormal.dist(theta, 0.9),
    ],
)
def test_positive_proposals_are_unbiased(proposal):
    """One latent rate x ~ Gamma(3, exp(theta)) of a count of 2."""

    def build(theta):
        def log_joint(x):
            log_prior = pm.logp(pm.Gamma.dist(3.0, pt.exp(theta)), x)
            return log_prior + pm.logp(pm.Poisson.dist(x), 2)

        return importance("y", log_joint, proposal(theta), samples=5)

    beta = np.exp(THETA)
    assert_unbiased(build, stats.nbinom.logpmf(2, 3.0, beta / (1.0 + beta)))


PRIOR_COV = np.array([[1.0, 0.6], [0.6, 0.8]])
PAIRS = np.array([[1.0, 0.2], [-0.5, 0.9], [0.3, 0.3]])
PAIRS_EXACT = stats.multivariate_normal(np.full(2, THETA), PRIOR_COV + 0.25 * np.eye(2)).logpdf(
    PAIRS
)
CHOL = np.array([[0.9, 0.0], [0.3, 0.7]])
COVS = np.array([[[0.8, 0.1], [0.1, 0.5]], [[0.6, 0.3], [0.3, 0.9]], [[0.5, 0.0], [0.0, 0.5]]])


def pairs_joint(theta, y):
    """Return log p(y, x) of pairs x ~ N(theta, PRIOR_COV), y ~ N(x, 0.5)."""
    precision = np.linalg.inv(PRIOR_COV)
    constant = -np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(PRIOR_COV)[1]

    def log_joint(x):
        centred = x - theta
        log_prior = constant - 0.5 * ((centred @ precision) * centred).sum(axis=-1)
        return log_prior + pm.logp(pm.Normal.dist(x, 0.5), y).sum(axis=-1)

    return log_joint


@pytest.mark.parametrize(
    "parameters",
    [{"chol": CHOL}, {"cov": CHOL @ CHOL.T}, {"tau": np.linalg.inv(CHOL @ CHOL.T)}],
    ids=lambda parameters: next(iter(parameters)),
)
def test_a_multivariate_normal_proposal_is_unbiased(parameters):
    def build(theta):
        scaled = {name: pt.exp(0.1 * theta) * matrix for name, matrix in parameters.items()}
        proposal = pm.MvNormal.dist(0.6 * PAIRS[0] + 0.2 * theta, **scaled)
        return importance("y", pairs_joint(theta, PAIRS[0]), proposal, samples=4)

    assert_unbiased(build, PAIRS_EXACT[0])


@pytest.mark.parametrize("covs", [CHOL @ CHOL.T, COVS], ids=["one matrix", "one for each"])
@pytest.mark.parametrize("antithetic", [False, True])
def test_multivariate_normal_proposals_of_groups_are_unbiased(covs, antithetic):
    def build(theta):
        proposal = pm.MvNormal.dist(0.6 * PAIRS + 0.2 * theta, covs)
        joint = pairs_joint(theta, PAIRS)
        return importance("y", joint, proposal, samples=4, antithetic=antithetic)

    assert_unbiased(build, PAIRS_EXACT.sum())


def test_several_latent_variables_of_each_group_are_unbiased():
    """The proposal has the shape (groups, 2), and its density is summed over the pair."""

    def build(theta):
        proposal = pm.Normal.dist(0.7 * PAIRS + 0.1, 0.8)
        return importance("y", pairs_joint(theta, PAIRS), proposal, samples=6)

    assert_unbiased(build, PAIRS_EXACT.sum())


def test_latent_variables_may_come_in_several_arrays():
    """A function may return a tuple of arrays as x, which log_joint receives as it is."""

    def proposal(u):
        log_q = -0.5 * u**2 - 0.5 * np.log(2 * np.pi) - np.log(0.8)
        return (PAIRS[0, 0] + 0.8 * u[:, 0], PAIRS[0, 1] + 0.8 * u[:, 1]), log_q

    def build(theta):
        joint = pairs_joint(theta, PAIRS[0])
        return importance("y", lambda x: joint(pt.stack(x, axis=1)), proposal, shape=2, samples=8)

    assert_unbiased(build, PAIRS_EXACT[0])


def test_a_wrong_density_is_noticed():
    """Negative control: without the derivative of sinh in its density, the mean is another."""

    def wrong(u):
        return sinh_normal(u)[0], -0.5 * u**2 - 0.5 * np.log(2 * np.pi)

    def build(theta):
        return importance("y", normal_joint(theta), wrong, shape=3, samples=4)

    assert_unbiased(build, NORMAL_EXACT, assert_not_exact)


def test_random_numbers_that_groups_share_make_a_bias_that_is_noticed():
    """Negative control, and the reason why that is refused where it can be seen."""

    def shared(u):
        v = pt.repeat(u[:, :1], 3, axis=1)
        return 0.5 + v, pm.logp(pm.Normal.dist(), v)

    def build(theta):
        return importance("y", normal_joint(theta), shared, shape=3, samples=4)

    assert_unbiased(build, NORMAL_EXACT, assert_not_exact)


def test_antithetic_samples_take_out_noise():
    deviations = []
    for antithetic in (False, True):

        def build(theta, antithetic=antithetic):
            return importance(
                "y",
                lambda x: pm.logp(pm.Normal.dist(theta, 1.0), x) + 0.5 * x,
                pm.Normal.dist(theta, 1.0),
                samples=8,
                antithetic=antithetic,
            )

        deviations.append(log_estimates(build, 2000).std())
    # Exact: the weight is exp(x / 2), whose pairs are negatively correlated.
    growth = np.exp(0.25) - 1.0
    ratio = np.sqrt((growth + np.exp(-0.25) - 1.0) / growth)
    np.testing.assert_allclose(deviations[1] / deviations[0], ratio, rtol=0.1)


# In a model


def normal_model(**options):
    """Build a model with the posterior N(mean, variance) of theta, and return all three."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        proposal = pm.Normal.dist(0.3 * theta + 0.6 * Y, 0.7)
        importance("y", normal_joint(theta), proposal, samples=4, **options)
    variance = 1.0 / (1.0 + len(Y) / 1.25)
    return model, variance * Y.sum() / 1.25, variance


def test_it_declares_its_randomness_and_adds_the_potential():
    with pm.Model(coords={"i": range(3)}) as model:
        theta = pm.Normal("theta")
        proposal = pm.Normal.dist(theta, 1.0, shape=3)
        term = importance("y", normal_joint(theta), proposal, samples=4, dims="i")
    assert model.potentials == [term]
    assert model["y_u"].type.shape == (4, 3)
    assert model.named_vars_to_dims["y"] == ("i",)
    with model:
        assert list(apm.APMSlice(compile_kwargs=PYTHON).u) == ["y_u"]


def test_antithetic_samples_take_half_of_the_random_numbers():
    model, *_ = normal_model(antithetic=True)
    assert model["y_u"].type.shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("nuts", [False, True])
def test_the_posterior_is_the_known_one(nuts):
    model, mean, variance = normal_model()
    with model:
        step = [apm.APMEllipticalU(), pm.NUTS([model["theta"]])] if nuts else None
        idata = pm.sample(
            500 if nuts else 1500, tune=300, chains=2, cores=1, step=step, random_seed=1, **QUIET
        )
    assert_exact(z_scores_of_run(idata.posterior["theta"].values[..., None], mean, variance))


GRADIENT_PROPOSALS = {
    "Normal": lambda theta: pm.Normal.dist(theta, pt.exp(0.3 * theta), shape=3),
    "MvNormal": lambda theta: pm.MvNormal.dist(theta * np.ones(3), chol=pt.exp(theta) * np.eye(3)),
    "Laplace": lambda theta: pm.Laplace.dist(theta, pt.exp(0.3 * theta), shape=3),
}


@pytest.mark.parametrize("name", GRADIENT_PROPOSALS)
def test_the_estimate_is_differentiable(name):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        joint = normal_joint(theta)
        proposal = GRADIENT_PROPOSALS[name](theta)
        importance("y", lambda x: joint(x).sum(axis=-1), proposal, samples=4)
    logp, dlogp = model.compile_logp(**PYTHON), model.compile_dlogp(**PYTHON)
    for at in (-0.7, 0.1, 1.3):
        with apm.clamped(model):
            difference = (logp({"theta": at + 1e-5}) - logp({"theta": at - 1e-5})) / 2e-5
            gradient = dlogp({"theta": at})
        np.testing.assert_allclose(gradient, [difference], rtol=1e-6)


def test_a_covariance_that_is_not_positive_definite_is_an_impossible_estimate():
    with pm.Model():
        theta = pm.Uniform("theta", -2.0, 2.0, initval=0.1)
        cov = pt.stack([pt.stack([1.0, theta]), pt.stack([theta, 1.0])])
        importance("y", pairs_joint(0.0, PAIRS[0]), pm.MvNormal.dist(np.zeros(2), cov), samples=4)
        idata = pm.sample(50, tune=50, chains=1, random_seed=1, compile_kwargs=PYTHON, **QUIET)
    assert np.abs(idata.posterior["theta"].values).max() < 1.0
    assert idata.sample_stats["n_nan"].values.sum() > 0


# Bad input


def build(log_joint=None, proposal=None, **options):
    with pm.Model():
        theta = pm.Normal("theta")
        proposal = pm.Normal.dist(theta, 1.0, shape=3) if proposal is None else proposal
        return importance("y", log_joint or normal_joint(theta), proposal, samples=4, **options)


DISCRETE = pm.Poisson.dist(3.0)
BAD_PROPOSALS = {
    "discrete": (DISCRETE, "poisson.*it is discrete"),
    "no quantiles": (pm.SkewNormal.dist(alpha=2.0), "skewnormal.*does not know its quantiles"),
    "vectors": (pm.Dirichlet.dist(np.ones(3)), "dirichlet.*its samples are vectors"),
    "an expression": (pt.exp(pm.Normal.dist(shape=3)), "not a distribution"),
    "an array": (np.zeros(3), "must be a distribution.* or a function of u"),
    "no pair": (lambda u: u, "must return the pair x, log_q"),
    "noise of its own": (pm.Normal.dist(pm.Normal.dist(), 1.0, shape=3), "random numbers of its"),
    "no u": (lambda u: (np.zeros((4, 3)), np.zeros((4, 3))), "does not depend on u"),
    "no samples in log_q": (lambda u: (u, 0.0), "log_joint .* returns 1 dim.* has 0"),
    "other samples in log_q": (lambda u: (u, np.zeros(5)), "log_q .* 4 samples, .* has 5"),
}


@pytest.mark.parametrize("name", BAD_PROPOSALS)
def test_a_bad_proposal_is_refused(name):
    proposal, message = BAD_PROPOSALS[name]
    with pytest.raises(ModelError, match=message):
        build(lambda x: (-0.5 * pt.as_tensor(x) ** 2).sum(axis=-1) + np.zeros(4), proposal)


def test_a_variable_of_the_model_is_no_proposal():
    with pm.Model():
        x = pm.Normal("x")
        with pytest.raises(ModelError, match="x, a variable of the model"):
            importance("y", lambda x: -0.5 * x**2, x)


BAD_RESULTS = {
    "no samples": (lambda x: x.sum(), "its result has 0 dimensions"),
    "too many dimensions": (lambda x: x[..., None], "its result has 3 dimensions"),
    "summed over samples": (lambda x: x.sum(axis=0), "must have 4 samples.* has 3"),
    "other groups": (lambda x: x[:, :2], "must have 3 groups.* has 2"),
    "groups that would broadcast": (lambda x: x[:, :1], "must have 3 groups.* has 1"),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_a_bad_result_of_log_joint_is_refused(name):
    log_joint, message = BAD_RESULTS[name]
    with pytest.raises(ModelError, match=message):
        build(log_joint)


def test_groups_need_random_numbers_of_their_own():
    def shared(u):
        x = pt.repeat(u[:, None], 3, axis=1)
        return x, -0.5 * x**2

    with pytest.raises(ModelError, match="which all groups would share"):
        build(None, shared)
    with pytest.raises(ModelError, match=r"must have 1 groups.* has 3"):
        build(None, lambda u: shared(u[:, 0]), shape=1)


def test_groups_need_a_density_of_their_own():
    with pytest.raises(ModelError, match=r"returns 2 dimensions, but log_q .* has 1"):
        build(None, lambda u: (u, (-0.5 * u**2).sum(axis=1)), shape=3)
    with pytest.raises(ModelError, match=r"returns 2 dimensions, but log_q .* has 1"):
        build(None, pm.MvNormal.dist(np.zeros(3), np.eye(3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples of importance"),
        ({"samples": 2.5}, "samples of importance"),
        ({"samples": 3, "antithetic": True}, "in pairs"),
        ({"kind": "normal"}, "for a proposal that is a function"),
        ({"shape": 3}, "for a proposal that is a function"),
        ({"proposal": sinh_normal, "kind": "seed"}, 'must be "normal" or "uniform"'),
        ({"proposal": sinh_normal, "shape": 2.5}, "A length in the shape"),
        ({"proposal": sinh_normal, "shape": (3, 0)}, "A length in the shape"),
        ({"log_joint": 3.0}, "log_joint .* must be a function"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pm.Model():
        theta = pm.Normal("theta")
        arguments = {"log_joint": normal_joint(theta), "proposal": pm.Normal.dist(theta, shape=3)}
        with pytest.raises(ModelError, match=message):
            importance("y", **(arguments | options))


def test_lengths_that_are_not_known_before_are_checked_when_they_are():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        chosen = pm.Data("chosen", np.array([0, 1, 2]))
        proposal = pm.Normal.dist(theta + pm.Data("centre", Y), 1.0)
        importance("y", lambda x: -((x - theta) ** 2)[:, chosen], proposal, samples=2)
        assert model["y_u"].type.shape == (2, 3)
        pm.sample(5, tune=5, chains=1, random_seed=1, compile_kwargs=PYTHON, **QUIET)
        pm.set_data({"chosen": np.array([0, 1])})
        with pytest.raises(EstimatorError, match="must have 3 groups"):
            pm.sample(5, tune=5, chains=1, random_seed=1, compile_kwargs=PYTHON, **QUIET)
