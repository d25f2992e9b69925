"""Simulators: the posterior is that of the kernel and its epsilon, exactly."""

import functools
import math

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators.simulation import ABCEstimator, AtEpsilon, EachABCEstimator
from tests.statistical.checks import Z, mcse
from tests.steps.models import sample

N = 5
OBSERVED = np.array([0.3, 1.4, -0.2, 0.9, 1.6])
PRIOR_SD = 2.0


def simulate(theta, rng):
    return theta + rng.normal(size=N)


def model_of(epsilon, **options):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, PRIOR_SD)
        options = {"summary": np.mean, "parameters": [theta]} | options
        apm.estimators.abc("y", simulate, OBSERVED, epsilon=epsilon, **options)
    return model


def exact(epsilon):
    """With the mean as the summary, and a normal kernel, the posterior is a normal one."""
    precision = 1 / PRIOR_SD**2 + 1 / (1 / N + epsilon**2)
    return OBSERVED.mean() / (1 / N + epsilon**2) / precision, math.sqrt(1 / precision)


def scores(idata, mean, sd):
    x = (idata.posterior["theta"].values - mean) / sd
    return np.array([v.mean() / mcse(v) for v in (x, x**2 - 1.0)])


@pytest.mark.parametrize(
    ("epsilon", "options"),
    [
        (0.5, {}),
        (0.01, {}),
        (0.5, {"samples": 3}),
        (0.5, {"kind": "uniform"}),
        pytest.param(0.5, {"kind": "seed", "samples": 10}, marks=pytest.mark.slow),
    ],
)
def test_the_posterior_is_that_of_the_kernel(epsilon, options):
    idata = sample(model_of(epsilon, **options), draws=3000, tune=500, random_seed=3)
    found = scores(idata, *exact(epsilon))
    assert np.abs(found).max() < Z
    # That of another epsilon is told from it.
    assert np.abs(scores(idata, *exact(1.5))).max() > Z


@pytest.mark.parametrize("kernel", ["normal", "laplace", "uniform"])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_estimate_is_unbiased(kernel, samples):
    epsilon, theta = 0.4, 0.2
    estimator = ABCEstimator(simulate, OBSERVED, np.mean, kernel, np.array(epsilon), samples, "y")
    rng = np.random.default_rng(1)
    values = np.exp([estimator(theta, rng) for _ in range(20_000)])
    grid = np.linspace(-6, 6, 40_001)
    d = (grid - OBSERVED.mean()) / epsilon
    kernels = {
        "normal": np.exp(-0.5 * d**2),
        "laplace": np.exp(-np.abs(d)),
        "uniform": (np.abs(d) <= 1.0).astype(float),
    }
    truth = np.trapezoid(stats.norm.pdf(grid, theta, N**-0.5) * kernels[kernel], grid)
    assert abs(values.mean() - truth) < Z * values.std() / math.sqrt(len(values))


def test_a_pilot_finds_epsilon_and_fixes_it(caplog):
    with caplog.at_level("INFO", logger="pymc"):
        model = model_of(None)
    epsilon = float(model["y_epsilon"].get_value()[0])
    assert epsilon == pytest.approx(0.5 / math.sqrt(N), rel=0.2)
    assert f"epsilon of y by a pilot: [{epsilon:.3g}"[:28] in caplog.text
    assert model_of(None)["y_epsilon"].get_value() == epsilon
    idata = sample(model, draws=3000, tune=500, random_seed=3)
    assert float(idata.constant_data["y_epsilon"].values[0]) == epsilon
    assert np.abs(scores(idata, *exact(epsilon))).max() < Z


@pytest.mark.slow
def test_an_epsilon_that_was_found_can_be_changed():
    model = model_of(None)
    with model:
        pm.set_data({"y_epsilon": [0.5]})
    idata = sample(model, draws=3000, tune=500, random_seed=3)
    assert np.abs(scores(idata, *exact(0.5))).max() < Z
    assert np.abs(scores(idata, *exact(1.5))).max() > Z
    with model:
        pm.set_data({"y_epsilon": [0.0]})
    with pytest.raises(ModelError, match="must be a positive number"):
        sample(model, draws=5, tune=5)


def test_a_pilot_leaves_out_what_fails_and_refuses_what_does_not_vary():
    def fails_above(theta, rng):
        return np.full(N, np.nan) if theta > 3.0 else simulate(theta, rng)

    for simulator, summary in [(fails_above, np.mean), (fails_above, np.median)]:
        with pm.Model() as model:
            theta = pm.Normal("theta", 0.0, PRIOR_SD)
            options = {"summary": summary, "parameters": [theta]}
            apm.estimators.abc("y", simulator, OBSERVED, **options)
        assert 0.1 < model["y_epsilon"].get_value()[0] < 0.5
    with pytest.raises(ModelError, match="must be positive and finite"):
        model_of(None, summary=lambda x: [x.mean(), 1.0])
    with pytest.raises(ModelError, match="needs an epsilon"):
        model_of(None, each=1, summary=None)


def test_data_that_are_changed_later_leave_the_model_as_it_is():
    data = OBSERVED.copy()
    estimator = ABCEstimator(simulate, data, None, "normal", np.array(0.1), 1, "y")
    data[:] = 100.0
    np.testing.assert_array_equal(estimator.wanted, OBSERVED)


def test_summaries_have_scales_of_their_own():
    def summary(data):
        return [data.mean(), data.std()]

    make = functools.partial(ABCEstimator, simulate, OBSERVED, summary, "normal")
    wide = make(np.array([0.1, 1e6]), 1, "y")
    narrow = ABCEstimator(simulate, OBSERVED, np.mean, "normal", np.array(0.1), 1, "y")
    values = [e(0.2, np.random.default_rng(1)) for e in (wide, narrow)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def simulate_each(theta, u):
    return theta + u[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"samples": 3}, {"kind": "uniform"}])
def test_independent_data_are_compared_each_by_itself(options):
    epsilon = 0.7
    simulator = simulate_each
    if options.get("kind") == "uniform":
        simulator = lambda theta, u: theta + stats.norm.ppf(u[:, 0])  # noqa: E731
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, PRIOR_SD)
        arguments = {"epsilon": epsilon, "parameters": [theta], "each": 1} | options
        apm.estimators.abc("y", simulator, OBSERVED, **arguments)
        step = apm.APMSlice(compile=False)
    assert step.target.factors["y_u"].n_factors == N
    idata = sample(model, step, draws=3000, tune=300, random_seed=3)
    precision = 1 / PRIOR_SD**2 + N / (1 + epsilon**2)
    mean = OBSERVED.sum() / (1 + epsilon**2) / precision
    assert np.abs(scores(idata, mean, precision**-0.5)).max() < Z
    assert np.abs(scores(idata, mean, 1.3 * precision**-0.5)).max() > Z


def test_data_that_share_random_numbers_are_noticed():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        arguments = {"epsilon": 0.7, "parameters": [theta], "each": 1}
        apm.estimators.abc("y", lambda t, u: t + np.cumsum(u[:, 0]), OBSERVED, **arguments)
    with pytest.raises(EstimatorError, match="depend on more of y_u"):
        sample(model, draws=5, tune=5)


def test_data_with_several_numbers_each_and_wrong_ones():
    observed = np.arange(6.0).reshape(3, 2)
    with pm.Model() as model:
        theta = pm.Normal("theta")
        arguments = {"epsilon": [1.0, 2.0], "parameters": [theta], "each": 2}
        term = apm.estimators.abc("y", lambda t, u: t + u, observed, **arguments)
    u = np.random.default_rng(1).standard_normal((1, 3, 2))
    model["y_u"].set_value(u)
    expected = -0.5 * (((0.3 + u[0] - observed) / [1.0, 2.0]) ** 2).sum(axis=1)
    with apm.clamped(model):
        found = model.compile_logp(term, sum=False)({"theta": 0.3})
    np.testing.assert_allclose(found[0], expected)
    for wrong, message in [
        ({"each": 0}, "each of"),
        ({"summary": np.mean}, "takes no summary"),
        ({"kind": "seed"}, "and no seed"),
        ({"epsilon": [1.0, 2.0, 3.0]}, "broadcast to the observed data"),
    ]:
        with pm.Model(), pytest.raises(ModelError, match=message):
            apm.estimators.abc("y", lambda u: u, observed, **{"epsilon": 1.0, "each": 2} | wrong)
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.abc(
            "y", lambda t, u: u[:2] + t, observed, epsilon=1.0, parameters=[theta], each=2
        )
    with pytest.raises(EstimatorError, match="is to make 3 data"):
        sample(model, draws=5, tune=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon of"),
        ({"epsilon": -1.0}, "epsilon of"),
        ({"epsilon": "small"}, "epsilon of"),
        ({"epsilon": [0.1, 0.1]}, "one for each of the 1 summaries"),
        ({"epsilon": 0.1, "kernel": "cosine"}, "kernel of"),
        ({"epsilon": 0.1, "kind": "stream"}, "kind of"),
        ({"epsilon": 0.1, "samples": 0}, "samples of"),
        ({"epsilon": 0.1, "summary": 3}, "summary of"),
        ({"epsilon": 0.1, "summary": lambda x: np.nan}, "must be finite"),
        ({"epsilon": 0.1, "parameters": "theta"}, "must be a list"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        model_of(**options)


def test_simulations_of_another_size_are_an_error():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.abc(
            "y", lambda t, rng: rng.normal(t, size=3), OBSERVED, epsilon=1.0, parameters=[theta]
        )
    with pytest.raises(EstimatorError, match="with 3 summaries"):
        sample(model, draws=5, tune=5)


def test_a_simulation_that_fails_counts_as_zero_and_a_far_one_does_not():
    estimator = ABCEstimator(
        lambda t, rng: np.array([t]), np.array([0.0]), None, "normal", np.array(1e-200), 1, "y"
    )
    assert math.isnan(estimator(np.nan, None))
    assert math.isfinite(estimator(1e100, None))
    assert estimator(0.0, None) == 0.0


def test_simulations_that_fail_count_as_zero_beside_others_too():
    """Or the posterior would depend on how many there are."""
    results = iter([np.nan, 1.0, np.nan, np.nan] * 2)
    options = (np.zeros(1), None, "normal", np.array(1.0))
    estimator = ABCEstimator(lambda rng: np.array([next(results)]), *options, 2, "y")
    assert estimator(None) == pytest.approx(-0.5 + math.log(0.5))
    assert math.isnan(estimator(None))
    each = EachABCEstimator(lambda u: u, np.zeros(3), "normal", np.array(1.0), "y")
    found = each(np.array([[np.nan, 1.0, np.nan], [1.0, 1.0, np.nan]]))
    np.testing.assert_allclose(found, [-0.5 + math.log(0.5), -0.5, np.nan])


def test_data_that_cannot_be_compared_are_refused():
    """What is masked, and arrays whose axes are in another order."""
    masked = np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0])
    options = (None, "normal", np.array(1.0))
    with pytest.raises(ModelError, match="must be finite numbers"):
        ABCEstimator(lambda rng: masked, masked, *options, 1, "y")
    with pm.Model(), pytest.raises(ModelError, match="made of finite numbers"):
        apm.estimators.abc("y", lambda u: u, masked, epsilon=1.0, each=1)
    with pm.Model(), pytest.raises(ModelError, match="not a variable of the model"):
        data = pm.Data("data", np.ones(3))
        apm.estimators.abc("y", lambda rng: rng.normal(size=3), data, epsilon=1.0)
    estimator = ABCEstimator(lambda rng: np.zeros((3, 2)), np.zeros((2, 3)), *options, 1, "y")
    with pytest.raises(EstimatorError, match=r"of the shape \(3, 2\)"):
        estimator(None)
    each = EachABCEstimator(lambda u: np.zeros((2, 3, 2)), np.zeros((2, 2, 3)), *options[1:], "y")
    with pytest.raises(EstimatorError, match=r"of shape \(2, 3, 2\)"):
        each(np.zeros((1, 2, 1)))


@pytest.mark.parametrize("epsilon", [np.nan, np.inf, 0.0])
def test_an_epsilon_that_is_no_scale_is_refused_later_too(epsilon):
    options = (np.zeros(2), None, "normal", np.array(1.0), 1, "y")
    estimator = AtEpsilon(ABCEstimator(lambda rng: np.zeros(2), *options))
    with pytest.raises(ModelError, match="must be a positive number"):
        estimator(np.array([1.0, epsilon]), None)


def test_a_simulator_with_noise_of_its_own_is_noticed():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.abc(
            "y",
            lambda t, rng: t + np.random.default_rng().normal(size=N),
            OBSERVED,
            epsilon=1.0,
            parameters=[theta],
        )
    with pytest.raises(EstimatorError, match="random numbers of its own"):
        sample(model, draws=5, tune=5)


@pytest.mark.slow
def test_the_posterior_is_that_of_smc_at_the_same_epsilon():
    epsilon, n_simulated = 0.3, 0

    def simulated(rng, theta, size=None):
        nonlocal n_simulated
        n_simulated += 1
        return simulate(theta, rng)

    with pm.Model():
        theta = pm.Normal("theta", 0.0, PRIOR_SD)
        pm.Simulator("y", simulated, theta, sum_stat="mean", epsilon=epsilon, observed=OBSERVED)
        smc = pm.sample_smc(draws=1000, chains=2, cores=1, random_seed=1, progressbar=False)
    ours = sample(model_of(epsilon), draws=3000, tune=500, random_seed=3)
    assert np.abs(scores(ours, *exact(epsilon))).max() < Z
    x = smc.posterior["theta"].values
    mean, sd = exact(epsilon)
    assert abs(x.mean() - mean) < 0.1
    assert abs(x.std() / sd - 1) < 0.1
    assert int(ours.sample_stats["n_evals"].sum()) < n_simulated
