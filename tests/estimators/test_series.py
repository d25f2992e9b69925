"""Series truncated at random: unbiased by brute force, and what breaks them is noticed."""

import copy
import functools
import itertools
import math

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from pymc.model.fgraph import clone_model
from scipy import stats
from scipy.linalg import expm

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators.truncation.lengths import (
    Length,
    checked_length,
    geometric,
    poisson,
    poisson_number,
)
from pymc_apm.estimators.truncation.series import RandomSeries, as_terms
from pymc_apm.estimators.truncation.symmetric import mean_products
from pymc_apm.estimators.truncation.uses import PoissonEstimator, PowerEstimator, Telescope
from tests.steps.models import sample

Z = 4.5
"""There are some thirty comparisons: a false alarm in fewer than 1 of 1000 runs of all of them."""


def mean_and_error(estimator, *parameters, n=20_000, seed=1):
    rng = np.random.default_rng(seed)
    made = [estimator(*parameters, rng) for _ in range(n)]
    values = np.array([sign * math.exp(log_abs) for log_abs, sign in made])
    return values.mean(), values.std() / math.sqrt(n)


def assert_unbiased(estimator, *parameters, truth, **options):
    mean, error = mean_and_error(estimator, *parameters, **options)
    assert error < 0.05 * abs(truth)  # or a bias of 20 per cent would go unnoticed
    assert abs(mean - truth) <= Z * error


def assert_biased(estimator, *parameters, truth, **options):
    mean, error = mean_and_error(estimator, *parameters, **options)
    assert abs(mean - truth) > 2 * Z * error


# Lengths

LENGTHS = {
    "geometric": (geometric(1.5), lambda k: 0.6**k),
    "poisson": (poisson(2.0), lambda k: stats.poisson.sf(k - 1, 2.0)),
    "slow": (lambda k: (k + 1.0) ** -1.5, lambda k: (k + 1.0) ** -1.5),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_has_its_distribution(name):
    survival, expected = LENGTHS[name]
    length = Length(survival)
    grid = (np.arange(20_000) + 0.5) / 20_000
    drawn = np.array([length.draw(v) for v in grid if v > 1e-3])
    for k in range(5):
        assert survival(k) == pytest.approx(expected(k), rel=1e-12)
        assert ((drawn >= k).sum() + 20) / 20_000 == pytest.approx(expected(k), abs=2e-4)


@pytest.mark.parametrize("rate", [0.1, 3.0, 50.0])
def test_poisson_numbers_are_quantiles(rate):
    grid = np.linspace(1e-6, 1 - 1e-6, 2001)
    found = [poisson_number(v, rate) for v in grid]
    np.testing.assert_array_equal(found, stats.poisson.ppf(grid, rate))
    assert poisson_number(1.0 - 2.0**-53, rate) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": "uniform"}, "length of"),
        ({"mean_length": 0.0}, "mean_length of"),
        ({"at_least": -1}, "at_least of"),
        ({"length": lambda k: 0.5**k, "mean_length": 2.0}, "says by itself"),
        ({"length": lambda k: 0.5 ** (k + 1)}, "must be a survival function"),
        ({"length": lambda k: 1.0 + k}, "must be a survival function"),
        ({"length": lambda k: 1.0 if k == 0 else 0.0}, "biased"),
        ({"method": "both"}, "method of"),
        ({"parameters": "theta"}, "must be a list"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pm.Model(), pytest.raises(ModelError, match=message):
        apm.estimators.series("a", lambda k, rng: 0.5**k, **options)


# Series

TRUTH = math.exp(1.2)


def exponential(k, x, rng):
    """A term of the exponential series with the mean x^k / k!, and noise of its own."""
    return math.exp(k * math.log(x) - math.lgamma(k + 1)) * rng.uniform(0.5, 1.5)


def exponential_terms(x, rng):
    """The same without noise, each term from the one before."""
    term = 1.0
    for k in itertools.count(1):
        yield term
        term *= x / k


SERIES = {
    "roulette": (exponential, {}),
    "roulette, generator": (exponential_terms, {"mean_length": 2.0}),
    "roulette, Poisson": (exponential_terms, {"length": "poisson", "mean_length": 3.0}),
    "roulette, at least": (exponential, {"mean_length": 0.5, "at_least": 3}),
    "roulette, own": (exponential, {"length": lambda k: 1 / (k + 1.0) ** 2}),
    "single": (exponential, {"method": "single", "mean_length": 2.0}),
    "single, generator": (exponential_terms, {"method": "single", "mean_length": 2.0}),
    "single, at least": (exponential, {"method": "single", "mean_length": 0.5, "at_least": 2}),
}


def random_series(term, length="geometric", mean_length=None, at_least=0, method="roulette"):
    chosen = checked_length("a", length, mean_length, at_least)
    return RandomSeries(as_terms(term, method), chosen, method)


@pytest.mark.parametrize("name", SERIES)
def test_a_series_is_unbiased(name):
    term, options = SERIES[name]
    assert_unbiased(random_series(term, **options), 1.2, truth=TRUTH)


def test_a_series_that_ends_is_finite():
    def terms(rng):
        yield from [1.0, -0.5, 0.25]

    for method in ("roulette", "single"):
        assert_unbiased(random_series(terms, mean_length=2.0, method=method), truth=0.75)


def test_terms_of_both_signs():
    def term(k, rng):
        return (-0.9) ** k

    estimator = random_series(term, mean_length=6.0)
    assert_unbiased(estimator, truth=1 / 1.9)
    rng = np.random.default_rng(1)
    assert {estimator(rng)[1] for _ in range(1000)} == {-1.0, 1.0}


def test_a_truncation_without_its_weight_is_noticed():
    class Unweighted(RandomSeries):
        def total(self, x, rng):
            n = self.length.draw(rng.random())
            return sum(itertools.islice(self.terms(x, rng), n + 1))

    for name in ("roulette", "roulette, generator"):
        term, options = SERIES[name]
        made = random_series(term, **options)
        assert_biased(Unweighted(made.terms, made.length, "roulette"), 1.2, truth=TRUTH)


def test_a_length_that_depends_on_the_terms_is_noticed():
    class UntilSmall(RandomSeries):
        def total(self, x, rng):
            total = 0.0
            for k, term in enumerate(self.terms(x, rng)):
                total += term / self.length.survival(k)
                if term < 0.4 or rng.random() > 0.8:
                    return total

    made = random_series(exponential)
    assert_biased(UntilSmall(made.terms, made.length, "roulette"), 1.2, truth=TRUTH)


def test_a_length_that_ends_before_the_terms_do_is_an_error():
    length = Length(lambda k: (1.0, 0.5, 0.2)[k] if k < 3 else 0.0)

    def terms(rng):
        yield from [1.0, -0.5, 0.25]

    for method in ("roulette", "single"):
        assert_unbiased(RandomSeries(terms, length, method), truth=0.75)
        endless = RandomSeries(as_terms(exponential, method), length, method)
        with pytest.raises(EstimatorError, match="never more than 2"):
            mean_and_error(endless, 1.2)
    assert_unbiased(PowerEstimator(noisy, length), 1.5, 1.2, 2.0, truth=1.25**2)
    with pytest.raises(EstimatorError, match="never more than 2"):
        mean_and_error(PowerEstimator(noisy, length), 1.5, 1.2, 3.0)
    with pytest.raises(EstimatorError, match="never more than 2"):
        Telescope(birth_death, length, "a")(0.6, 0.5, np.array([0.5, 0.1, 0.7]))


def cosine(k, rng):
    return 0.0 if k % 2 else (-1.0) ** (k // 2) / math.factorial(k)


@pytest.mark.parametrize("method", ["roulette", "single"])
def test_a_length_that_ends_just_before_a_term_that_is_zero_is_an_error(method):
    length = checked_length("a", lambda k: 0.7**k if k < 3 else 0.0, None, 0)
    with pytest.raises(EstimatorError, match="never more than 2"):
        mean_and_error(RandomSeries(as_terms(cosine, method), length, method), n=100)


def test_a_single_term_that_is_never_taken_is_an_error():
    """P(N = 1) = P(N = 3) = ... = 0: all is well if those terms are zero."""
    length = checked_length("a", lambda k: 0.5 ** ((k + 1) // 2), None, 0)
    assert_unbiased(RandomSeries(as_terms(cosine, "single"), length, "single"), truth=math.cos(1.0))
    with pytest.raises(EstimatorError, match="Term 1 of a series is not zero, but is never taken"):
        mean_and_error(RandomSeries(as_terms(exponential, "single"), length, "single"), 1.2)
    roulette = RandomSeries(as_terms(exponential, "roulette"), length, "roulette")
    assert_unbiased(roulette, 1.2, truth=math.exp(1.2))


def test_a_term_that_is_not_needed_is_not_computed():
    seen = []

    def term(k, rng):
        seen.append(k)
        return 0.5**k

    estimator = random_series(term, method="single", mean_length=3.0, at_least=1)
    rng = np.random.default_rng(1)
    for _ in range(20):
        seen.clear()
        estimator(rng)
        assert len(seen) == 2
        assert seen[0] == 0


def test_the_length_comes_before_the_terms_and_takes_one_number():
    counts = []

    def term(k, rng):
        counts.append(rng.random(3))
        return 0.5**k

    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.series("a", term, mean_length=1.0, positive=True, log_factor=-(theta**2))
    idata = sample(model, draws=200, tune=20, chains=1)
    n_random = idata.sample_stats["n_random"].values
    assert set(np.unique((n_random - 1) % 3)) == {0}
    assert len(np.unique(n_random)) > 3


# Functions of what is estimated


def noisy(x, rng):
    return x + rng.normal(0.0, 0.5)


@pytest.mark.parametrize("x", [-1.0, 0.3, 2.0])
def test_the_poisson_estimator_is_unbiased_and_has_its_variance(x):
    guess, rate = 0.5, 3.0
    estimator = PoissonEstimator(noisy)
    assert_unbiased(estimator, x, guess, rate, truth=math.exp(x))
    mean_square = (x - guess) ** 2 + 0.25

    def square(*arguments):
        log_abs, _ = estimator(*arguments)
        return 2 * log_abs, 1.0

    truth = math.exp(2 * x + mean_square / rate)
    assert_unbiased(square, x, guess, rate, truth=truth, n=40_000, seed=2)


def test_the_exponential_of_an_estimate_is_biased():
    def naive(x, rng):
        return noisy(x, rng), 1.0

    assert_biased(naive, 0.3, truth=math.exp(0.3))


@pytest.mark.parametrize(("power", "at_least"), [(-1.0, 0), (0.5, 2), (-2.5, 0), (1.7, 1)])
def test_powers_are_unbiased(power, at_least):
    estimator = PowerEstimator(noisy, Length(geometric(3.0), at_least))
    # Without the factor guess^power, which is left to PyTensor.
    assert_unbiased(estimator, 1.5, 1.7, power, truth=(1.5 / 1.7) ** power, n=40_000)


@pytest.mark.parametrize(("power", "at_least"), [(0.0, 0), (1.0, 4), (3.0, 0), (3.0, 1)])
def test_whole_powers_end(power, at_least):
    made = []

    def counted(x, rng):
        made.append(x)
        return noisy(x, rng)

    estimator = PowerEstimator(counted, Length(geometric(9.0), at_least))
    estimator(5.0, 1.0, power, np.random.default_rng(2))
    assert len(made) <= power
    estimator = PowerEstimator(noisy, Length(geometric(3.0), at_least))
    if power:
        assert_unbiased(estimator, 1.5, 1.2, power, truth=(1.5 / 1.2) ** power, n=40_000)
    else:
        assert estimator(1.5, 1.2, power, np.random.default_rng(1)) == (0.0, 1.0)


def test_mean_products_are_those_of_all_choices():
    values = np.array([0.5, -2.0, 3.0, 0.1])
    expected = [
        np.mean([np.prod(chosen) for chosen in itertools.combinations(values, k)]) for k in range(5)
    ]
    np.testing.assert_allclose(mean_products(values), expected, rtol=1e-12)
    assert np.isfinite(mean_products(np.full(3000, 1.2))).all()


def birth_death(level, rate, death, start=5, ends=(4, 6, 9)):
    """Log-probabilities of a birth-death process on 0, ..., K, and what leaves that is lost."""
    n = 12 + 2 * level
    states = np.arange(n)
    births, deaths = rate * states, death * states
    generator = np.diag(births[:-1], 1) + np.diag(deaths[1:], -1) - np.diag(births + deaths)
    return np.log(expm(generator)[start, list(ends)])


def test_telescopes_are_unbiased():
    truth = np.exp(birth_death(60, 0.6, 0.5))
    rough = np.exp(birth_death(0, 0.6, 0.5))
    estimator = Telescope(birth_death, Length(geometric(1.0)), "a")
    grid = np.random.default_rng(1).random((20_000, 3))
    made = [estimator(0.6, 0.5, v) for v in grid]
    values = np.array([sign * np.exp(log_abs) for log_abs, sign in made])
    error = values.std(axis=0) / math.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - truth) < Z * error).all()
    # What is truncated is visible in these numbers.
    assert (np.abs(rough - truth)[1:] > 10 * error[1:]).all()
    assert (values > 0).all()  # a larger state space has a larger probability


def test_telescopes_with_levels_that_are_zero_or_at_least_some():
    def levels(level, limit):
        return -math.inf if level == 0 else math.log(limit - 0.5**level)

    grid = (np.arange(20_000) + 0.5) / 20_000
    for at_least, method in itertools.product((0, 2), (geometric(2.0),)):
        estimator = Telescope(levels, Length(method, at_least), "a")
        made = [estimator(1.3, v[None]) for v in grid]
        values = np.array([sign[0] * math.exp(log_abs[0]) for log_abs, sign in made])
        assert values.mean() == pytest.approx(1.3, rel=5e-3)


def test_a_telescope_tells_data_of_another_shape():
    length = checked_length("a", "geometric", 1.0, 0)
    telescope = Telescope(lambda level, x: -float(len(x)), length, "a")
    v = np.array([0.9])
    assert telescope(np.zeros((2, 3)), v)[0] == -2.0
    assert telescope(np.zeros((3, 2)), v)[0] == -3.0


def test_an_approximation_that_is_random_is_refused():
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.telescoping("a", lambda level, t: -(t**2) + rng.normal(), parameters=[theta])
    with pytest.raises(EstimatorError, match="must be deterministic"):
        sample(model, draws=5, tune=5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda level, t: np.zeros(2), "must return 3 numbers"),
        (lambda level, t: np.full(3, np.inf), "inf"),
    ],
)
def test_approximations_of_the_wrong_kind_are_refused(value, message):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.telescoping("a", value, parameters=[theta], size=3)
    with pytest.raises(EstimatorError, match=message):
        sample(model, draws=5, tune=5)


@pytest.mark.parametrize("guess", [0.0, 1000.0])
def test_an_estimate_that_is_negative_although_declared_positive_is_an_error(guess):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.exp_of(
            "a", lambda t, rng: guess - 5.0, parameters=[theta], guess=guess, positive=True
        )
    with pytest.raises(EstimatorError, match="declared not to be"):
        sample(model, draws=50, tune=5)


def test_what_is_not_a_number_counts_as_zero():
    def term(k, t, rng):
        return math.nan if k == 2 else 0.5**k

    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.series("a", term, parameters=[theta])
    idata = sample(model, draws=100, tune=5)
    assert int(idata.sample_stats["n_nan"].sum()) > 0


def test_an_unbounded_length_is_an_error():
    with pytest.raises(EstimatorError, match="falls too slowly"):
        Length(lambda k: 1.0).draw(0.5)


# In a model

N_DRAWS = 4000


def check_posterior(model, density, grid, seed=1, **options):
    """Compare the mean and the sd of theta with those of a density on a grid."""
    weights = density(grid)
    weights = weights / weights.sum()
    mean = (weights * grid).sum()
    sd = math.sqrt((weights * (grid - mean) ** 2).sum())
    options = {"draws": N_DRAWS, "tune": 300, "random_seed": seed} | options
    found = apm.signed(sample(model, **options))
    row = found.table.loc["theta"]
    assert abs(row["mean"] - mean) < Z * row["mcse_mean"]
    assert abs(row["sd"] - sd) < Z * row["mcse_sd"]
    assert row["mcse_mean"] < 0.1 * sd
    return found


def test_the_posterior_of_an_exponential_of_an_estimate():
    # The log-likelihood is -theta^2 / 2 + theta, and its estimate has an sd of 1.
    def estimate(theta, rng):
        return theta - theta**2 / 2 + rng.normal()

    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 2.0)
        guess = theta - theta**2 / 2
        options = {"parameters": [theta], "guess": guess, "rate": 1.5, "kind": "normal"}
        apm.estimators.exp_of("a", estimate, **options)
    grid = np.linspace(-8, 8, 2001)
    found = check_posterior(model, lambda x: stats.norm.pdf(x, 0, 2) * np.exp(x - x**2 / 2), grid)
    assert 0.5 < found.mean_sign < 1.0


@pytest.mark.slow
def test_the_posterior_of_a_reciprocal():
    def estimate(theta, rng):
        return math.exp(theta / 2) * rng.uniform(0.4, 1.6)

    with pm.Model() as model:
        theta = pm.Normal("theta")
        options = {"parameters": [theta], "guess": 1.1 * pm.math.exp(theta / 2)}
        apm.estimators.reciprocal_of("a", estimate, **options)
    grid = np.linspace(-8, 8, 2001)
    check_posterior(model, lambda x: stats.norm.pdf(x) * np.exp(-x / 2), grid)


def log_rate_lik(level, theta, data=(4, 6, 9)):
    return birth_death(level, math.exp(theta), 0.5, ends=data)


@pytest.mark.slow
def test_the_posterior_of_a_jump_process_is_that_of_the_matrix_exponential():
    with pm.Model() as model:
        theta = pm.Normal("theta", -0.5, 0.5)
        apm.estimators.telescoping("y", log_rate_lik, parameters=[theta], size=3, mean_length=1.0)
        step = apm.APMSlice(compile=False)
    assert step.target.factors["y_u"].n_factors == 3
    grid = np.linspace(-2.5, 1.2, 121)

    def density(x, level=40):
        return np.array(
            [stats.norm.pdf(t, -0.5, 0.5) * np.exp(log_rate_lik(level, t).sum()) for t in x]
        )

    found = check_posterior(model, density, grid, step=step, draws=400, tune=100)
    assert found.mean_sign == 1.0


def test_names_are_those_of_the_user():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.series("a", functools.partial(exponential), parameters=[theta])
    assert "a_u" in model.named_vars
    assert [p.name for p in model.potentials] == ["a"]


def stream_model():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.estimators.series("a", exponential, parameters=[pm.math.exp(theta / 3)])
        apm.estimators.telescoping("b", levels_of, parameters=[theta], size=2)
    return model


def levels_of(level, theta):
    return np.log1p(0.5 ** (level + 1)) - np.array([1.0, 2.0]) * theta**2


def test_copies_and_processes_make_the_same_draws():
    model = stream_model()
    whole = sample(model, draws=30, tune=10)
    others = [
        sample(model, draws=30, tune=10, cores=2),
        sample(cloudpickle.loads(cloudpickle.dumps(model)), draws=30, tune=10),
        sample(clone_model(model), draws=30, tune=10),
        sample(copy.deepcopy(model), draws=30, tune=10),
    ]
    for other in others:
        np.testing.assert_array_equal(whole.posterior["theta"], other.posterior["theta"])
        np.testing.assert_array_equal(whole.sample_stats["sign"], other.sample_stats["sign"])
