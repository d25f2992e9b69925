"""The staged log density: equal to PyMC's, from scratch or step by step, and counted exactly."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.density.target import REST, THETA, Target
from pymc_apm.types import Evaluation
from tests.models import PYTHON, PythonOp, run


def transformed():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        weight = pm.Beta("weight", 2.0, 3.0)
        simplex = pm.Dirichlet("simplex", np.ones(3))
        bounded = pm.Uniform("bounded", -1.0, 2.0, shape=2)
        u = apm.StandardNormal("u", shape=(4, 3))
        log_weights = -0.5 * ((u * scale - simplex) ** 2).sum(axis=-1) + weight * bounded.sum()
        apm.Potential("log_lik", pt.logsumexp(log_weights) - np.log(4))
    return model


def observed():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=np.array([0.1, -0.4, 2.0]))
        u = apm.StandardNormal("u", shape=3)
        pm.Poisson("counts", pt.exp(mu + u), observed=np.array([1, 0, 4]))
        apm.Potential("log_lik", (mu * u).sum())
    return model


def two_potentials_and_a_vector():
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        phi = pm.Normal("phi")
        u = apm.StandardNormal("u", shape=3)
        v = apm.StandardUniform("v", shape=(2, 3))
        pm.Potential("constraint", pt.switch(phi < 100.0, -(phi**2), -np.inf))
        apm.Potential("factors", -((theta - u) ** 2) * pt.exp(phi))
        apm.Potential("log_lik", pt.logsumexp(theta * v + phi) + (u * v).sum())
    return model


def discrete():
    with pm.Model() as model:
        count = pm.Poisson("count", 3.0, shape=2)
        tries = pm.Binomial("tries", 9, 0.3)
        theta = pm.Normal("theta", count.sum())
        u = apm.StandardUniform("u", shape=2)
        apm.Potential("log_lik", (count * u).sum() * theta - tries * u[0])
    return model


def hierarchical():
    data = np.random.default_rng(1).poisson(2.0, size=70)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        tau = pm.HalfNormal("tau")
        effects = pm.Normal("effects", mu, tau, shape=70)
        u = apm.StandardNormal("u", shape=(8, 70))
        rates = pt.exp(effects + tau * u)
        log_weights = pm.logp(pm.Poisson.dist(rates), data)
        apm.Potential("log_lik", pt.logsumexp(log_weights, axis=0) - np.log(8))
    return model


def correlated_prior():
    rng = np.random.default_rng(2)
    basis = rng.standard_normal((70, 5))
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        covariance = scale * np.eye(5) + 0.1 * np.ones((5, 5))
        cholesky = pt.linalg.cholesky(covariance)
        beta = pm.MvNormal("beta", np.zeros(5), chol=cholesky, shape=5)
        u = apm.StandardNormal("u", shape=5)
        v = apm.StandardNormal("v", shape=70)
        latent = basis @ (beta + cholesky @ u)
        apm.Potential("log_lik", -((latent - pt.tanh(v)) ** 2).sum() + pt.exp(-(v**2)).sum())
    return model


MODELS = [
    transformed,
    observed,
    two_potentials_and_a_vector,
    discrete,
    hierarchical,
    correlated_prior,
]


class Case:
    """A model, its target with randomly chosen parameters as theta, and random inputs for both."""

    def __init__(self, make_model, compile_kwargs=None, seed=0):
        self.model = make_model()
        self.rng = np.random.default_rng(seed)
        variables = self.model.value_vars
        if seed:
            variables = [v for v in variables if self.rng.random() < 0.5]
        self.point = self.model.initial_point()
        self.target = Target(self.model, variables, self.point, compile_kwargs)

    def random_point(self):
        return {
            name: value + self.rng.integers(0, 3, value.shape).astype(value.dtype)
            if value.dtype.kind in "iu"
            else value + 0.7 * self.rng.standard_normal(value.shape)
            for name, value in self.point.items()
        }

    def random_u(self):
        return {u.name: u.tag.apm_randomness.draw(self.rng) for u in self.target.randomness}

    def inputs(self, point, u):
        target = self.target
        return {THETA: target.layout.ravel(point), REST: target.rest.ravel(point), **u}

    def random_inputs(self):
        return self.inputs(self.random_point(), self.random_u())


def compile_reference(model):
    """Return PyMC's own log density, as a function of a point and of the randomness."""
    logp = model.compile_logp(mode="FAST_COMPILE")

    def reference(point, u):
        for name, value in u.items():
            variable = model[name]
            variable.set_value(value.reshape(variable.type.shape))
        with apm.clamped(model):
            return logp(point)

    return reference


def assert_same(first, second):
    np.testing.assert_allclose(first.log_density, second.log_density, rtol=1e-12)
    np.testing.assert_allclose(first.log_estimate, second.log_estimate, rtol=1e-12)


BACKENDS = [
    *(
        pytest.param(make_model, PYTHON, id=f"{make_model.__name__}-python")
        for make_model in MODELS
    ),
    *(
        pytest.param(
            make_model,
            None,
            id=f"{make_model.__name__}-default",
            marks=getattr(pytest.mark, "compiler" if make_model is observed else "slow"),
        )
        for make_model in MODELS
    ),
]
"""All models; those that take long to compile are left to the slow tests."""


@pytest.mark.parametrize(("make_model", "compile_kwargs"), BACKENDS)
def test_log_density_is_that_of_the_model_at_the_same_point_and_randomness(
    make_model, compile_kwargs
):
    case = Case(make_model, compile_kwargs)
    reference = compile_reference(case.model)
    for _ in range(5):
        point, u = case.random_point(), case.random_u()
        evaluation = case.target.start(case.inputs(point, u))
        expected = reference(point, u)
        assert np.isfinite(expected)
        np.testing.assert_allclose(evaluation.log_density, expected, rtol=1e-10)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("make_model", "compile_kwargs"), BACKENDS)
def test_any_sequence_of_moves_ends_where_an_evaluation_from_scratch_does(
    make_model, compile_kwargs, seed
):
    case = Case(make_model, compile_kwargs, seed)
    target, rng = case.target, case.rng
    inputs = case.random_inputs()
    evaluation = target.start(inputs)
    for _ in range(15):
        moved = rng.permutation(list(inputs))[: rng.integers(1, len(inputs) + 1)]
        proposal = {name: value for name, value in case.random_inputs().items() if name in moved}
        position = tuple(proposal.values())
        density = target.along(*proposal)
        log_density, proposed = density(position if len(position) > 1 else position[0], evaluation)
        assert log_density == proposed.log_density
        if rng.random() < 0.6:  # else it is rejected, which must leave nothing behind
            inputs, evaluation = inputs | proposal, proposed
        assert_same(evaluation, target.start(inputs))
        for name, value in inputs.items():
            assert target.value(evaluation, name) is value


def test_an_evaluation_is_immutable_and_so_are_its_arrays_in_effect():
    case = Case(two_potentials_and_a_vector, PYTHON)
    inputs = case.random_inputs()
    evaluation = case.target.start(inputs)
    with pytest.raises(AttributeError):
        evaluation.log_density = 0.0
    assert isinstance(evaluation.values, tuple)
    before = [np.copy(value) for value in evaluation.values]
    for name, value in case.random_inputs().items():
        given = value.copy()
        case.target.along(name)(value, evaluation)
        np.testing.assert_array_equal(value, given)
    for value, copy in zip(evaluation.values, before, strict=True):
        np.testing.assert_array_equal(value, copy)


def test_log_estimate_is_the_sum_of_what_depends_on_randomness():
    case = Case(observed, PYTHON)
    point, u = case.random_point(), case.random_u()
    rate = np.exp(point["mu"] + u["u"])
    counts = np.array([1, 0, 4])
    expected = (counts * np.log(rate) - rate).sum() - np.log(24.0) + (point["mu"] * u["u"]).sum()
    evaluation = case.target.start(case.inputs(point, u))
    np.testing.assert_allclose(evaluation.log_estimate, expected)
    assert case.target.estimates == ["counts", "log_lik"]


# Numerical stability


@pytest.mark.parametrize("size", [3, 100], ids=["small", "large"])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda a, b: pt.log(pt.exp(a) + pt.exp(b)), np.logaddexp),
        (lambda a, b: pt.log1p(pt.exp(a + b)), lambda a, b: np.logaddexp(0.0, a + b)),
        (lambda a, b: pt.log(1.0 - pt.sigmoid(a - b)), lambda a, b: -np.logaddexp(0.0, a - b)),
        (
            lambda a, b: pt.log(pt.sum(pt.exp(pt.stack([a, b])), axis=0)),
            np.logaddexp,
        ),
    ],
    ids=["logaddexp", "softplus", "log-sigmoid", "logsumexp"],
)
def test_a_stable_form_is_found_although_its_parts_are_in_different_stages(
    expression, expected, size
):
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=size)
        u = apm.StandardNormal("u", shape=size)
        apm.Potential("log_lik", expression(1000.0 * theta, 2.0 * u))
    target = Target(model, model.value_vars, model.initial_point(), PYTHON)
    rng = np.random.default_rng(1)
    theta, u = rng.uniform(1.0, 2.0, size), rng.standard_normal(size)
    evaluation = target.start({THETA: theta, REST: np.zeros(0), "u": u})
    assert evaluation.cost.n_nan == 0
    np.testing.assert_allclose(evaluation.log_estimate, expected(1000 * theta, 2 * u).sum())


# Where the density is zero or not a number


@pytest.mark.parametrize("check_bounds", [True, False])
def test_bounds_of_the_prior_are_checked_as_the_model_says(check_bounds):
    with pm.Model(check_bounds=check_bounds) as model:
        shape = pm.Normal("shape")
        pm.Gamma("x", alpha=shape, beta=1.0, transform=None, initval=1.0)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", shape * u)
    target = Target(model, model.value_vars, model.initial_point(), PYTHON)
    inputs = {THETA: np.array([-0.5, 1.0]), REST: np.zeros(0), "u": np.ones(1)}
    evaluation = target.start(inputs)
    if check_bounds:
        assert evaluation.log_prior == evaluation.log_density == -np.inf
        assert evaluation.cost == (0, 0, 0, 0)
    else:
        point = {"shape": np.array(-0.5), "x": np.array(1.0)}
        expected = compile_reference(model)(point, {"u": np.ones(1)})
        np.testing.assert_allclose(evaluation.log_density, expected)


def test_an_evaluation_says_what_it_cost():
    case = Case(two_potentials_and_a_vector, PYTHON)
    target = case.target
    evaluation = target.start(case.random_inputs())
    assert evaluation.cost == (1, 1, 0, 0)
    inputs = case.random_inputs()
    assert target.along("u")(inputs["u"], evaluation)[1].cost == (1, 0, 0, 0)
    assert target.along(THETA)(inputs[THETA], evaluation)[1].cost == (1, 1, 0, 0)
    both = target.along(THETA, "v")((inputs[THETA], inputs["v"]), evaluation)[1]
    assert both.cost == (1, 1, 0, 0)
    impossible = case.inputs(case.point | {"phi": np.array(200.0)}, {})
    log_density, nowhere = target.along(THETA)(impossible[THETA], evaluation)
    assert log_density == nowhere.log_density == nowhere.log_prior == -np.inf
    assert nowhere.cost == (0, 0, 0, 0)


@pytest.mark.parametrize("make_step", [apm.APMSlice, apm.APMMetropolis, apm.PseudoMarginalMH])
def test_estimates_that_are_not_a_number_are_counted_one_by_one_and_never_accepted(make_step):
    n_nan = [0]

    def log(x):
        n_nan[0] += bool(x < 0)
        return np.log(x) if x > 0 else np.nan

    with pm.Model() as model:
        theta = pm.Normal("theta", initval=1.0)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", PythonOp(log)(2.0 + theta + u))
        step = make_step(compile_kwargs=PYTHON)
    step.set_rng(np.random.default_rng(1))
    chain = run(step, model.initial_point(), n_draws=60, seed=1)
    assert chain.total("n_nan") == n_nan[0] > 0
    assert all(np.isfinite(stat["log_estimate"]) for stat in chain.stats)


def test_an_estimate_of_zero_or_not_a_number_has_no_density_but_an_evaluation():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", pt.log(theta) + 0.0 * u)
    target = Target(model, model.value_vars, model.initial_point(), PYTHON)
    for value, is_nan in [(0.0, False), (-1.0, True)]:
        evaluation = target.start({THETA: np.array([value]), REST: np.zeros(0), "u": np.zeros(1)})
        assert isinstance(evaluation, Evaluation)
        assert (evaluation.log_density, evaluation.log_estimate) == (-np.inf, -np.inf)
        assert (evaluation.cost.n_evals, evaluation.cost.n_nan) == (1, is_nan)
        _, recovered = target.along(THETA)(np.ones(1), evaluation)
        assert recovered.log_estimate == 0.0
