"""The estimators must be unbiased, and functions of parameters and numbers alone."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.black_box import black_boxes_in
from pymc_apm.errors import CoalescenceError, ModelError
from pymc_apm.estimators import Ising, Unnormalised, doubly_intractable
from pymc_apm.estimators.intractable.estimator import DoublyIntractable, annealed_log_ratio
from pymc_apm.kernels.stream import Reader, fresh_stream, make_scratch
from pymc_apm.stream_generator import StreamGenerator
from tests.marks import others_are_slow
from tests.modes import interpreted
from tests.statistical.checks import (
    assert_exact,
    assert_not_exact,
    z_scores_of_means,
    z_scores_of_run,
)


@pytest.fixture(autouse=True, scope="module")
def without_a_compiler():
    with interpreted():
        yield


REFERENCE = (0.3, 0.0)
POINTS = [(0.25, 0.0), (0.28, -0.02), (0.3, 0.02), (0.32, 0.0), (0.33, 0.01)]


def as_functions(ising):
    """Return the same family without the fast annealing of its own."""
    return Unnormalised(
        ising.log_g,
        ising.sample,
        transition=ising.transition,
        transition_size=ising.transition_size,
    )


def relative_estimates(ising, family, point, anneal, n_draws, seed=1):
    """Return estimates of Z(reference) / Z(point), divided by the exact value."""
    estimator = DoublyIntractable(family, None, REFERENCE, anneal, ["coupling", "field"])
    rng = np.random.default_rng(seed)
    log_exact = ising.log_z(*REFERENCE) - ising.log_z(*point)
    log_ratios = [estimator.log_ratio(point, REFERENCE, rng) for _ in range(n_draws)]
    return np.exp(np.array(log_ratios) - log_exact)


@pytest.mark.parametrize("anneal", [0, 35])
@pytest.mark.parametrize("point", others_are_slow(POINTS[:1], POINTS))
def test_estimates_are_unbiased(point, anneal):
    ising = Ising.torus(10, 30)
    n_draws = 3000 if anneal else 8000
    weights = relative_estimates(ising, ising, point, anneal, n_draws)
    assert_exact(z_scores_of_means([weights - 1.0]), 4.0)


@pytest.mark.slow
@pytest.mark.parametrize("anneal", [0, 1, 5])
def test_estimates_from_functions_are_unbiased(anneal):
    ising = Ising.lattice(3, 3)
    for point in [(0.1, 0.1), (-0.3, -0.2), (0.4, 0.3)]:
        weights = relative_estimates(ising, as_functions(ising), point, anneal, 5000)
        assert_exact(z_scores_of_means([weights - 1.0]))


def test_a_sample_that_is_not_exact_makes_a_bias_that_is_noticed():
    ising = Ising.torus(10, 30)

    def two_sweeps(coupling, field, rng):
        x = np.ones(ising.n_sites, dtype=np.int8)
        for _ in range(2):
            x = ising.transition(x, coupling, field, rng.random(ising.n_sites))
        return x

    family = Unnormalised(ising.log_g, two_sweeps)
    weights = relative_estimates(ising, family, (0.25, 0.0), 0, 3000)
    assert_not_exact(z_scores_of_means([weights - 1.0]))


def test_a_transition_that_leaves_another_model_invariant_makes_a_bias_that_is_noticed():
    ising = Ising.torus(10, 30)

    def too_strong(x, coupling, field, u):
        return ising.transition(x, coupling + 0.1, field, u)

    family = Unnormalised(
        ising.log_g, ising.sample, transition=too_strong, transition_size=ising.transition_size
    )
    weights = relative_estimates(ising, family, (0.25, 0.0), 10, 1000)
    assert_not_exact(z_scores_of_means([weights - 1.0]))


def test_annealing_makes_the_estimate_less_noisy():
    ising = Ising.torus(10, 30)
    deviations = [
        np.log(relative_estimates(ising, ising, (0.25, 0.0), anneal, 2000)).std()
        for anneal in (0, 35)
    ]
    np.testing.assert_allclose(deviations, [1.47, 0.33], rtol=0.15)


@pytest.mark.parametrize("kind", ["torus", "lattice"])
@pytest.mark.parametrize("n_steps", [0, 1, 7])
def test_the_fast_annealing_of_ising_is_the_general_one(kind, n_steps):
    ising = getattr(Ising, kind)(4, 5)
    rng = np.random.default_rng(3)
    for _ in range(20):
        start, end = (rng.uniform(-0.3, 0.4), 0.1), (0.2, rng.normal(scale=0.2))
        x, u = ising.sample(*start, rng), rng.random((n_steps, 20))
        general = annealed_log_ratio(as_functions(ising), x, start, end, u)
        np.testing.assert_allclose(ising.anneal(x, start, end, u), general, rtol=1e-9, atol=1e-12)


def test_annealing_with_a_parameter_for_each_edge_and_site():
    ising = Ising.lattice(3, 4)
    rng = np.random.default_rng(4)
    start = (rng.normal(scale=0.2, size=len(ising.edges)), rng.normal(size=12))
    end = (0.1, np.zeros(12))
    x, u = ising.sample(*start, rng), rng.random((5, 12))
    general = annealed_log_ratio(as_functions(ising), x, start, end, u)
    np.testing.assert_allclose(ising.anneal(x, start, end, u), general, rtol=1e-9)


def test_the_numbers_for_annealing_come_first_in_the_stream():
    """So that they stay what they are when the exact sampler takes more than before."""
    ising = Ising.torus(4, 5)
    estimator = DoublyIntractable(ising, ising.prepare(np.ones(20)), REFERENCE, 3, ["j", "h"])
    stream = fresh_stream(np.random.default_rng(1))
    reader = Reader(stream, False, make_scratch())
    value = estimator(0.2, 0.1, StreamGenerator(reader, "u"))
    numbers = reader.used()
    x = ising.sample(0.2, 0.1, Replay(numbers[3 * 20 :]))
    ratio = ising.anneal(x, (0.2, 0.1), REFERENCE, numbers[: 3 * 20].reshape(3, 20))
    assert value == ising.log_g(np.ones(20), 0.2, 0.1) + ratio


class Replay:
    """A generator that has its numbers already."""

    def __init__(self, numbers):
        self.numbers = numbers

    def random(self, out):
        out[...] = self.numbers[: out.size].reshape(out.shape)
        self.numbers = self.numbers[out.size :]


# In a model


def build(family, y, **options):
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", 0.0, 0.4)
        field = pm.Normal("field", 0.0, 0.5)
        term = doubly_intractable("y", family, [coupling, field], y, **options)
    return model, term


def small_data():
    ising = Ising.torus(5, 5)
    return ising, ising.sample(0.2, 0.1, np.random.default_rng(1))


def test_it_declares_its_randomness_and_adds_the_potential():
    ising, y = small_data()
    model, term = build(ising, y, reference={"coupling": 0.2, "field": 0.0})
    assert [p.name for p in model.potentials] == ["y"] and model.potentials[0] is term
    assert "y_u" in model.named_vars
    with model:
        step = apm.APMSlice()
    assert list(step.u) == ["y_u"]


def test_a_vector_of_fields_may_come_from_a_regression():
    ising, y = small_data()
    x = np.random.default_rng(2).normal(size=(25, 2))
    with pm.Model():
        coupling = pm.Uniform("coupling", 0.0, 0.3)
        beta = pm.Normal("beta", 0.0, 0.5, shape=2)
        doubly_intractable("y", ising, [coupling, pt.dot(x, beta)], y, anneal=2)
        idata = pm.sample(10, tune=10, chains=1, progressbar=False, random_seed=1)
    assert np.isfinite(idata.posterior["beta"].values).all()


def test_the_reference_is_found_and_reported(caplog):
    ising = Ising.torus(10, 30)
    y = ising.sample(0.3, 0.1, np.random.default_rng(1))
    with caplog.at_level(logging.INFO, logger="pymc"):
        model, _ = build(ising, y)
    assert "Reference of y by a pilot estimate: coupling = " in caplog.text
    found = reference_of(model)
    exact = exact_mode(ising, y)
    np.testing.assert_allclose(found, exact, atol=0.03)


def reference_of(model):
    (term,) = model.potentials
    return reference_of_term(term)


def reference_of_term(term):
    (node,) = black_boxes_in([term])
    return node.op.fn.reference


def exact_mode(ising, y):
    """Return the mode of the likelihood times the prior, by a grid over the exact normaliser."""
    couplings, fields = np.linspace(0.26, 0.36, 6), np.linspace(0.02, 0.14, 5)
    log_posterior = [
        [ising.log_g(y, j, h) - ising.log_z(j, h) - 0.5 * (h / 0.5) ** 2 for h in fields]
        for j in couplings
    ]
    best = np.unravel_index(np.argmax(log_posterior), (6, 5))
    assert 0 < best[0] < 5 and 0 < best[1] < 4
    return couplings[best[0]], fields[best[1]]


def test_the_reference_is_the_same_every_time():
    ising, y = small_data()
    first, second = (reference_of(build(ising, y)[0]) for _ in range(2))
    assert first == second


def test_the_search_stays_where_the_sampler_can_sample():
    """Data that are all up have no maximum likelihood estimate within reach."""
    ising = Ising.torus(5, 5, max_sweeps=64)
    with pm.Model() as model:
        coupling = pm.HalfNormal("coupling", 3.0, initval=0.1)
        doubly_intractable("y", ising, [coupling, 0.0], np.ones(25))
    found, _ = reference_of(model)
    ising.sample(found, 0.0, np.random.default_rng(1))


def test_a_reference_is_taken_as_it_is_given():
    """Whatever the prior says, and where parameters are functions of random variables."""
    ising, y = small_data()
    x = np.random.default_rng(2).normal(size=(25, 2))
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", 0.1, 0.4, initval=0.2)
        beta = pm.Normal("beta", 0.0, 0.5, shape=2)
        given = {"coupling": 0.3, "beta": [0.1, 0.2]}
        doubly_intractable("y", ising, [coupling, pt.dot(x, beta)], y, reference=given)
        doubly_intractable("z", ising, [coupling, 0.1], y, reference={"coupling": 0.0})
        doubly_intractable("start", ising, [coupling, beta[0]], y, reference={"beta": [0.1, 0.2]})
    first, second, third = map(reference_of_term, model.potentials)
    assert first[0] == 0.3 and second == [0.0, 0.1] and third == [pytest.approx(0.2), 0.1]
    np.testing.assert_allclose(first[1], x @ [0.1, 0.2], rtol=1e-12)


def test_constant_parameters_need_no_search():
    ising, y = small_data()
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        doubly_intractable("y", ising, [0.2, 0.1 * scale], y, reference={"scale": 0.0})
        doubly_intractable("z", ising, [0.2, 0.1], y)
    assert len(model.potentials) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anneal": -1}, "anneal of doubly_intractable"),
        ({"anneal": 0.5}, "anneal of doubly_intractable"),
        ({"reference": 0.2}, "a dict with values for coupling, field"),
        ({"reference": {"scale": 0.2}}, "scale, but the parameters that matter are coupling"),
        ({"reference": {"field": [0.1]}}, "reference of field .* 0 dimensions"),
        ({"reference": {"field": np.nan}}, "finite numbers"),
        ({"pilot_draws": 0}, "pilot_draws of doubly_intractable"),
        ({"kind": "seed"}, "kind of apm.Stream"),
    ],
)
def test_bad_options_are_refused(change, message):
    ising, y = small_data()
    options = {"reference": {"coupling": 0.2, "field": 0.0}} | change
    if "pilot_draws" in change:
        options["reference"] = None
    with pytest.raises(ModelError, match=message):
        build(ising, y, **options)


def test_bad_families_are_refused():
    ising, y = small_data()
    with pytest.raises(ModelError, match="no log_g and no sample"):
        build(object(), y)
    with pytest.raises(ModelError, match="the family has none"):
        build(Unnormalised(ising.log_g, ising.sample), y, anneal=3)
    with pytest.raises(ModelError, match="transition_size"):
        Unnormalised(ising.log_g, ising.sample, transition=ising.transition)
    with pytest.raises(ModelError, match="sample of Unnormalised must be a function"):
        Unnormalised(ising.log_g, None)
    with pytest.raises(ModelError, match="transition of Unnormalised must be a function"):
        Unnormalised(ising.log_g, ising.sample, transition=3, transition_size=2)


def test_parameters_must_be_a_list():
    ising, y = small_data()
    with pm.Model():
        coupling = pm.Uniform("coupling", 0.0, 0.4)
        for parameters in (coupling, [], None):
            with pytest.raises(ModelError, match="a list with all parameters"):
                doubly_intractable("y", ising, parameters, y)


def test_bad_data_is_refused_where_the_model_is_made():
    ising, _ = small_data()
    with pytest.raises(ModelError, match="25 sites, got one with 24"):
        build(ising, np.ones(24), reference={"coupling": 0.2, "field": 0.0})


def test_data_that_are_impossible_where_the_search_starts_are_reported():
    family = Unnormalised(lambda x, rate: -np.inf, lambda rate, rng: rng.exponential(1 / rate))
    with pm.Model():
        rate = pm.Exponential("rate", 1.0)
        with pytest.raises(apm.errors.EstimatorError, match="log_g of the observed data is -inf"):
            doubly_intractable("y", family, [rate], 1.0)


def test_a_sampler_that_gives_up_says_where_the_chain_was():
    ising = Ising.torus(8, 8, max_sweeps=16)
    with pm.Model():
        coupling = pm.Uniform("coupling", 0.5, 0.9, initval=0.6)
        doubly_intractable("y", ising, [coupling, 0.0], np.ones(64), reference={"coupling": 0.1})
        with pytest.raises(CoalescenceError, match=r"coupling = 0\.6") as error:
            pm.sample(5, tune=0, chains=1, progressbar=False, random_seed=1)
    assert "max_sweeps is 16" in str(error.value)


def test_an_exponential_distribution_has_the_posterior_of_its_conjugate_prior():
    """The kit with another family: x ~ Exp(rate), as if its normaliser were unknown."""
    y = np.array([0.3, 1.2, 0.7, 2.0, 0.4])
    family = Unnormalised(
        log_g=lambda x, rate: -rate * x.sum(),
        sample=lambda rate, rng: rng.exponential(1.0 / rate, size=5),
    )
    with pm.Model():
        rate = pm.Gamma("rate", 2.0, 1.0)
        doubly_intractable("y", family, [rate], y)
        idata = pm.sample(
            2000,
            tune=300,
            chains=2,
            cores=1,
            progressbar=False,
            random_seed=1,
            compute_convergence_checks=False,
        )
    shape, beta = 2.0 + 5.0, 1.0 + y.sum()
    draws = idata.posterior["rate"].values[..., None]
    assert_exact(z_scores_of_run(draws, shape / beta, shape / beta**2))
