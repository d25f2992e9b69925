"""What cannot be integrated out is refused, in words that say what to do instead."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions import transforms

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from tests.marginal.models import COUNTS, GROUP, OTHER, X, Y, common, intercept, made


def many_crossed():
    mu, sigma = common()
    a = pm.Normal("a", mu, sigma, shape=20)
    b = pm.Normal("b", 0.0, 0.5, shape=20)
    rows, columns = np.divmod(np.arange(400), 20)
    pm.Normal("y", a[rows] + b[columns], 1.0, observed=np.zeros(400))


def long_walk():
    _, sigma = common()
    step = pm.StudentT("step", nu=4, sigma=sigma, shape=40)
    pm.Normal("y", pt.cumsum(step), 1.0, observed=np.zeros(40))


def random_walk():
    _, sigma = common()
    x = pm.GaussianRandomWalk("x", sigma=sigma, init_dist=pm.Normal.dist(), steps=5)
    pm.Normal("y", x, 1.0, observed=Y)


def autoregression():
    _, sigma = common()
    x = pm.AR("x", [0.5], sigma=sigma, init_dist=pm.Normal.dist(), steps=5)
    pm.Normal("y", x, 1.0, observed=Y)


def gaussian_process():
    mu, _ = common()
    gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.3))
    f = gp.prior("f", np.linspace(0, 1, 40)[:, None], reparameterize=False)
    pm.Normal("y", mu + f, 1.0, observed=np.zeros(40))


def loop():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=6)
    states, _ = pytensor.scan(
        lambda b, x: 0.5 * x + b, sequences=[b], outputs_info=[pt.constant(0.0, dtype="float64")]
    )
    pm.Normal("y", states, 1.0, observed=Y)


def ordered():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3, transform=transforms.ordered, initval=[-1.0, 0.0, 1.0])
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def half_of_it():
    b = pm.Uniform("b", 0.0, 1.0, shape=3, transform=transforms.Interval(0.0, 0.5))
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def flat():
    b = pm.Flat("b", shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def dirichlet():
    p = pm.Dirichlet("p", np.ones(3))
    pm.Categorical("y", p, observed=GROUP)


def zero_sum():
    b = pm.ZeroSumNormal("b", shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)


def parameter_of_a_parameter():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    c = pm.Normal("c", b, 1.0, shape=3)
    pm.Normal("y", c[GROUP], 1.0, observed=Y)


def not_observed():
    mu, sigma = common()
    pm.Normal("b", mu, sigma, shape=3)
    pm.Normal("y", mu, 1.0, observed=Y)


def ordered_beside():
    """What is left out would not integrate to 1: it is the probability of an order."""
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Normal("y", b[GROUP], 1.0, observed=Y)
    pm.Normal("c", b, 1.0, shape=3, transform=transforms.ordered, initval=[-1.0, 0.0, 1.0])


def only_the_shape():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    pm.Normal("y", mu + pt.zeros_like(b), 1.0, observed=Y[:3])


def partly_missing_vector():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    y = Y.reshape(3, 2).copy()
    y[0, 1] = np.nan
    pm.MvNormal("y", b[:, None] * np.ones(2), 0.5 + np.eye(2), observed=y)


def minibatch():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    y, group = pm.Minibatch(Y, GROUP, batch_size=2)
    pm.Normal("y", b[group], 1.0, observed=y, total_size=6)


def estimate_of_an_estimate():
    mu, sigma = common()
    b = pm.Normal("b", mu, sigma, shape=3)
    u = apm.StandardNormal("u", shape=(4, 6))
    apm.Potential("log_lik", -0.5 * ((Y - b[GROUP] - u) ** 2).mean())


REFUSED = {
    many_crossed: (["a", "b"], "40 numbers of a and b are tied together by y"),
    long_walk: (["step"], "40 numbers of step are tied together by y"),
    random_walk: (["x"], "depend on each other"),
    autoregression: (["x"], "depend on each other"),
    gaussian_process: (["f"], "laplace_importance"),
    loop: (["b"], "by a loop"),
    ordered: (["b"], "transform of the user's own"),
    half_of_it: (["b"], "transform of the user's own"),
    flat: (["b"], "knows no quantiles"),
    dirichlet: (["p"], "are vectors"),
    zero_sum: (["b"], "are vectors"),
    parameter_of_a_parameter: (["b"], "Name it too"),
    not_observed: (["b"], "Nothing that was observed depends on b"),
    ordered_beside: (["b"], "may not integrate to 1"),
    only_the_shape: (["b"], "nothing to integrate"),
    partly_missing_vector: (["b"], "cannot compute the density"),
    minibatch: (["b"], "random draws that are no variable"),
    estimate_of_an_estimate: (["b"], "is an estimate itself"),
}


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_integrated_out_is_refused(build):
    latents, words = REFUSED[build]
    model = made(build)
    with pytest.raises(ModelError, match=words):
        apm.marginalize(model, latents)


@pytest.mark.parametrize(
    ("vars", "options", "words"),
    [
        (["c"], {}, "'c' is not a random variable"),
        (["y"], {}, "'y' is not a random variable"),
        ([], {}, "must be names"),
        ([1], {}, "must be names"),
        (["b"], {"samples": 0}, "at least 1"),
        (["b"], {"proposal": "best"}, "must be"),
        (["b"], {"proposal": {"c": None}}, "a proposal for c"),
        (["b"], {"proposal": {"b": pm.Normal.dist(shape=(3, 2))}}, "same shape"),
        (["b"], {"proposal": {"b": pm.Poisson.dist(1.0, shape=3)}}, "must be discrete"),
    ],
)
def test_wrong_options_are_refused(vars, options, words):
    with pytest.raises(ModelError, match=words):
        apm.marginalize(made(intercept), vars, **options)


def test_a_proposal_that_depends_on_latent_variables_is_refused():
    model = made(intercept)
    proposal = pm.Normal.dist(model["b"], 1.0, shape=3)
    with pytest.raises(ModelError, match="depends on b"):
        apm.marginalize(model, "b", proposal={"b": proposal})


def test_a_proposal_with_wrong_parameters_is_an_error():
    """Its density, zero, would be divided by."""
    model = made(intercept)
    proposal = pm.Normal.dist(0.0, model["mu"], shape=3)
    marginal = apm.marginalize(model, "b", proposal={"b": proposal})
    log_p = marginal.compile_logp(mode="FAST_COMPILE")
    point = marginal.initial_point()
    with apm.clamped(marginal):
        assert np.isfinite(log_p(point | {"mu": 1.0}))
        with pytest.raises(EstimatorError, match="proposal of b has parameters"):
            log_p(point | {"mu": -1.0})


def test_laplace_is_for_normal_variables():
    with pm.Model() as model:
        b = pm.Gamma("b", 2.0, 1.0, shape=3)
        pm.Poisson("y", b[GROUP], observed=COUNTS)
    with pytest.raises(ModelError, match="and b is none"):
        apm.marginalize(model, "b", proposal="laplace")


def test_groups_that_are_changed_later_are_refused():
    with pm.Model() as model:
        group = pm.Data("group", GROUP)
        x = pm.Data("x", X)
        b = pm.Normal("b", shape=3)
        pm.Normal("y", b[group] * x, 1.0, observed=Y)
        pm.Normal("mu")
    marginal = apm.marginalize(model, "b")
    log_p = marginal.compile_logp(mode="FAST_COMPILE")
    with apm.clamped(marginal):
        first = log_p({"mu": 0.0})
        pm.set_data({"x": 2 * X}, model=marginal)
        assert log_p({"mu": 0.0}) != first
        pm.set_data({"x": X}, model=marginal)
        for changed in (OTHER, GROUP[:3], np.append(GROUP, 0)):
            pm.set_data({"group": changed}, model=marginal)
            with pytest.raises(EstimatorError, match="group has been changed"):
                log_p({"mu": 0.0})


def test_an_index_out_of_bounds_is_refused():
    """Compiled by Numba, it would read what is beyond the array."""
    with pm.Model() as model:
        group = pm.Data("group", GROUP + 1)
        b = pm.Normal("b", shape=3)
        pm.Normal("y", b[group], 1.0, observed=Y)
    with pytest.raises(ModelError, match=r"b has the shape \(3,\), and an index into"):
        apm.marginalize(model, "b")


def test_latent_variables_without_elements_are_refused():
    with pm.Model() as model:
        b = pm.Normal("b", pm.Normal("mu"), shape=0)
        pm.Normal("y", pt.concatenate([b, X]), 1.0, observed=Y)
    with pytest.raises(ModelError, match="nothing to integrate"):
        apm.marginalize(model, "b")


def test_counts_without_a_vectorised_distribution_function_are_refused():
    with pm.Model() as model:
        n = pm.BetaBinomial("n", pm.Gamma("a", 2, 1), 3.0, 10, shape=3)
        pm.Poisson("y", n[GROUP] + 0.1, observed=COUNTS)
    with pytest.raises(ModelError, match="no quantiles of BetaBinomial"):
        apm.marginalize(model, "n")
