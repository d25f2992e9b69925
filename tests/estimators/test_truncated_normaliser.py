"""Models without an exact sampler: the reciprocal of a normaliser by a series is unbiased."""

import functools
import logging
import math

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.black_box import black_boxes_in
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators import Ising, Unnormalised, doubly_intractable
from pymc_apm.estimators.intractable import truncated
from pymc_apm.estimators.intractable.estimator import DoublyIntractable
from pymc_apm.estimators.intractable.truncated import TruncatedNormaliser
from pymc_apm.estimators.truncation.lengths import Length, geometric
from pymc_apm.estimators.truncation.symmetric import mean_products
from tests.estimators.truth import log_z, torus_edges
from tests.modes import interpreted
from tests.statistical.checks import assert_exact, assert_not_exact, z_scores_of_means
from tests.steps.models import sample


@pytest.fixture(autouse=True, scope="module")
def without_a_compiler():
    with interpreted():
        yield


ISING = Ising.torus(3, 3)
EDGES = torus_edges(3, 3)
POINT = (0.2, 0.1)
EASY = [0.0, 0.0]


@functools.cache
def log_ratio(coupling, field):
    """Return the log of Z relative to that of independent spins, by enumeration."""
    return log_z(EDGES, 9, coupling, field) - 9 * math.log(2)


def estimator(family=ISING, anneal=4, off=0.3, at_least=1, mean_length=1.0):
    """Return the estimator with a guess that is off by some constant on the log scale."""
    annealing = DoublyIntractable(family, np.ones(9, np.int8), EASY, anneal, ["j", "h"])
    length = Length(geometric(mean_length), at_least)
    return TruncatedNormaliser(annealing, lambda parameters: log_ratio(*parameters) + off, length)


def relative(made, n=4000, seed=1, point=POINT):
    """Return estimates of the likelihood of all spins up, divided by the exact one, less 1."""
    rng = np.random.default_rng(seed)
    log_exact = ISING.log_g(np.ones(9, np.int8), *point) - log_ratio(*point)
    found = [made(*point, rng) for _ in range(n)]
    return np.array([sign * math.exp(log_abs - log_exact) for log_abs, sign in found]) - 1.0


def assert_unbiased(made, **options):
    values = relative(made, **options)
    assert values.std() / math.sqrt(len(values)) < 0.05
    assert_exact(z_scores_of_means([values]), 4.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"off": 0.6, "at_least": 0, "mean_length": 2.0},
        {"off": 0.0, "at_least": 2, "anneal": 10},
        {"off": -3.0, "at_least": 2, "anneal": 40},  # the guess is the estimate made for it
    ],
    ids=str,
)
def test_the_reciprocal_is_unbiased(options):
    assert_unbiased(estimator(**options))


def as_functions(**changes):
    functions = {
        "log_g": ISING.log_g,
        "sample": ISING.sample,
        "transition": ISING.transition,
        "transition_size": 9,
    }
    return Unnormalised(**functions | changes)


def one_site(x, coupling, field, u):
    """Update one site, which leaves the model invariant and hardly moves it."""
    moved = ISING.transition(x, coupling, field, u)
    return np.where(np.arange(9) == 0, moved, x).astype(np.int8)


def test_transitions_need_not_mix():
    assert_unbiased(estimator(as_functions(transition=one_site), at_least=2), point=(0.12, 0.1))


def test_a_transition_that_leaves_another_model_invariant_is_noticed():
    def too_strong(x, coupling, field, u):
        return ISING.transition(x, coupling + 0.1, field, u)

    made = estimator(as_functions(transition=too_strong), anneal=10)
    assert_not_exact(z_scores_of_means([relative(made)]))


def test_a_sample_that_is_not_exact_at_the_reference_is_noticed():
    def mostly_up(coupling, field, rng):
        return np.where(rng.random(9) < 0.6, 1, -1).astype(np.int8)

    assert_not_exact(z_scores_of_means([relative(estimator(as_functions(sample=mostly_up)))]))


def test_a_truncation_without_its_weight_is_noticed(monkeypatch):
    monkeypatch.setattr(truncated, "inverse_survival", lambda length, n: np.ones(n + 1))
    made = estimator(off=0.6, at_least=0, mean_length=0.3)
    assert_not_exact(z_scores_of_means([relative(made)]))


def test_a_length_that_depends_on_the_estimates_is_noticed(monkeypatch):
    def until_small(values):
        means = mean_products(values)
        if (means < 0.3).any():
            means[np.argmax(means < 0.3) + 1 :] = 0.0
        return means

    monkeypatch.setattr(truncated, "mean_products", until_small)
    made = estimator(off=0.6, at_least=0, mean_length=3.0)
    assert_not_exact(z_scores_of_means([relative(made)]))


def test_what_is_not_finite_is_no_estimate():
    made = estimator(as_functions(log_g=lambda x, j, h: 1e5 * (x @ x[::-1] + h)), anneal=0)
    log_abs, _ = made(*POINT, np.random.default_rng(1))
    assert math.isnan(log_abs) or log_abs < 1e7


# In a model

Y = np.array([1, 1, -1, 1, 1, 1, -1, 1, 1], dtype=np.int8)


def build(family=ISING, **options):
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", 0.0, 0.6)
        field = pm.Normal("field", 0.0, 0.5)
        options = {"anneal": 4, "normaliser": "series", "pilot_draws": 20} | options
        doubly_intractable("y", family, [coupling, field], Y, **options)
    return model


def run(model, draws):
    with model:
        step = apm.PseudoMarginalMH()
    return apm.signed(sample(model, draws=draws, tune=300, chains=2, step=step))


@pytest.mark.slow
def test_the_posterior_is_that_of_the_enumerated_model():
    found = run(build(anneal=40, pilot_draws=50), draws=2000)
    couplings, fields = np.linspace(0.0, 0.6, 61), np.linspace(-2.0, 2.0, 81)
    log_density = np.array(
        [
            [ISING.log_g(Y, j, h) - log_ratio(j, h) - 0.5 * (h / 0.5) ** 2 for h in fields]
            for j in couplings
        ]
    )
    weights = np.exp(log_density - log_density.max())
    weights[[0, -1]] /= 2
    weights /= weights.sum()
    for name, grid, axis in [("coupling", couplings, 1), ("field", fields, 0)]:
        marginal, row = weights.sum(axis=axis), found.table.loc[name]
        mean = marginal @ grid
        sd = math.sqrt(marginal @ (grid - mean) ** 2)
        assert abs(row["mean"] - mean) < 4 * row["mcse_mean"]
        assert abs(row["sd"] - sd) < 4 * row["mcse_sd"]
        assert row["mcse_mean"] < 0.15 * sd
    assert 0.9 < found.mean_sign <= 1.0


def test_the_pilot_guesses_the_normaliser_around_the_mode(caplog):
    with caplog.at_level(logging.INFO, logger="pymc"):
        model = build(anneal=20, pilot_draws=100)
    assert "Reference of y by a pilot estimate: coupling = " in caplog.text
    assert "standard deviation of 0." in caplog.text
    (node,) = black_boxes_in(model.potentials)
    for point in [(0.1, 0.1), (0.2, 0.3), (0.3, 0.0), (0.4, 0.2)]:
        assert node.op.fn.guess(point) == pytest.approx(log_ratio(*point), abs=0.2)
    again = black_boxes_in(build(anneal=20, pilot_draws=100).potentials)[0].op.fn
    assert again.guess(POINT) == node.op.fn.guess(POINT)


def test_noisy_annealing_is_a_warning(caplog):
    build(anneal=0)
    assert "Give a larger anneal" in caplog.text


@pytest.mark.slow
def test_a_model_of_ones_own_from_where_it_is_easy():
    """Exponential data, whose sampler is used at one rate alone."""

    def at_one(rate, rng):
        assert rate == 1.0
        return rng.exponential(size=3)

    family = Unnormalised(
        log_g=lambda x, rate: -rate * np.sum(x),
        sample=at_one,
        transition=lambda x, rate, u: -np.log1p(-u) / rate,
        transition_size=3,
    )
    with pm.Model() as model:
        rate = pm.Gamma("rate", 6.0, 4.0)
        reference = {"rate": 1.0}
        y = np.array([0.5, 1.0, 0.4])
        options = {"normaliser": "series", "reference": reference, "anneal": 10, "pilot_draws": 20}
        doubly_intractable("y", family, [rate], y, **options)
    found = run(model, draws=1500)
    row = found.table.loc["rate"]
    assert abs(row["mean"] - 9.0 / 5.9) < 4 * row["mcse_mean"]
    assert abs(row["sd"] - 3.0 / 5.9) < 4 * row["mcse_sd"]


def test_what_cannot_be_is_refused():
    with pytest.raises(ModelError, match="needs a reference"):
        build(as_functions())
    with pytest.raises(ModelError, match="normaliser of doubly_intractable"):
        build(normaliser="exact")
    with pytest.raises(ModelError, match="at_least of"):
        build(at_least=-1)
    with pytest.raises(ModelError, match="ExchangeMH"), build():
        apm.ExchangeMH()
    with pytest.raises(EstimatorError, match="log_g of the observed data"):
        build(as_functions(log_g=lambda x, j, h: -np.inf), reference={"coupling": 0, "field": 0})
