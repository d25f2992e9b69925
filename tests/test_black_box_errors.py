"""What goes wrong in a black box, and what its author sees of it (DESIGN.md, section 5)."""

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from tests.steps.models import sample
from tests.stream_models import declare, lazy_model

KINDS = pytest.mark.parametrize("kind", ["normal", "uniform", "seed"])
CORES = pytest.mark.parametrize("cores", [1, 2])


def run(fn, kind="normal", **options):
    """Sample a model of one parameter, that starts at 0.25, with a function as its estimator."""
    options = {"draws": 100, "tune": 20, "mp_ctx": "fork"} | options
    return sample(lazy_model(kind, dim=1, fn=fn), initvals={"theta": np.array([0.25])}, **options)


def noisy(theta, rng):
    return -0.5 * float(theta[0]) ** 2 + rng.normal(-0.005, 0.1)


# Exceptions


def fails_above_two(theta, rng):
    if theta[0] > 2.0:
        raise ZeroDivisionError("the simulator diverged")
    return 0.0


@CORES
def test_an_exception_keeps_its_message_and_says_which_function_and_which_parameters(cores):
    expected = ZeroDivisionError if cores == 1 else Exception
    with pytest.raises(expected) as caught:
        run(fails_above_two, cores=cores)
    message = str(caught.value)
    assert "the simulator diverged" in message
    where = re.search(
        r"BlackBox\(fails_above_two\) was called with theta = \[(.*)\], rng = u", message
    )
    model = re.search(r"evaluated at theta = \[(.*)\]", message)
    assert where and model and float(where[1]) == float(model[1]) > 2.0


class WithTwoArguments(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)


@CORES
@pytest.mark.parametrize(
    "make", [lambda: KeyError("key"), lambda: WithTwoArguments(3, "text"), lambda: ValueError()]
)
def test_exceptions_of_any_make_arrive(make, cores):
    def fails(theta, rng):
        raise make()

    with pytest.raises(type(make()) if cores == 1 else Exception) as caught:
        run(fails, cores=cores)
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert cores == 2 or "theta = [0.25]" in told


def test_an_unsupported_method_of_a_stream_is_named_with_the_parameters():
    with pytest.raises(
        AttributeError, match=r"(?s)'u' does not support .*'triangular'.*theta = \[0.25"
    ):
        run(lambda theta, rng: rng.triangular(0.0, 1.0, 2.0))
    run(lambda theta, rng: -0.5 * theta[0] ** 2 + 0.1 * rng.triangular(0.0, 1.0, 2.0), "seed")


# Hidden randomness


def from_the_global_state(theta, rng):
    return np.random.normal()  # noqa: NPY002  hidden randomness, which must be noticed


def from_its_own_generator(theta, rng):
    return np.random.default_rng().normal() + rng.normal()


def from_a_generator_kept_from_before():
    kept = np.random.default_rng(1)
    return lambda theta, rng: kept.normal()


def from_a_counter():
    calls = []
    return lambda theta, rng: calls.append(0) or 1e-3 * len(calls)


@KINDS
@pytest.mark.parametrize(
    "fn",
    [from_the_global_state, from_its_own_generator, from_a_generator_kept_from_before()],
    ids=["global", "own", "kept"],
)
def test_hidden_randomness_is_found_where_the_chain_starts(fn, kind):
    with pytest.raises(EstimatorError, match="draws random numbers of its own") as caught:
        run(fn, kind)
    assert f"BlackBox({fn.__name__})" in str(caught.value) and "log_lik" in str(caught.value)


def test_a_small_change_with_each_call_is_found_too():
    with pytest.raises(EstimatorError, match="differs between two computations for the same"):
        run(from_a_counter())


def test_hidden_randomness_is_reported_from_a_child_process():
    with pytest.raises(Exception, match=r"BlackBox\(from_its_own_generator\) draws random numbers"):
        run(from_its_own_generator, cores=2)


def test_hidden_randomness_in_one_of_several_black_boxes():
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=1)
        apm.Potential("good", apm.black_box(noisy)(theta, declare("normal", "u")))
        apm.Potential("bad", apm.black_box(from_the_global_state)(theta, declare("seed", "v")))
    with pytest.raises(EstimatorError, match=r"good, bad .*BlackBox\(from_the_global_state\)"):
        sample(model)


# What the function returns

WRONG = {
    "a vector": (lambda theta, rng: np.zeros(2), r"must return a scalar, but .* shape \(2,\)"),
    "a vector of one": (lambda theta, rng: theta, r"must return a scalar, but .* shape \(1,\)"),
    "two values": (lambda theta, rng: (0.0, 1.0), r"must return a scalar, but .* shape \(2,\)"),
    "text": (lambda theta, rng: "0.5", "must return float64, but returned <U3"),
    "nothing": (lambda theta, rng: None, "must return float64, but returned object"),
    "a complex number": (lambda theta, rng: 1j, "must return float64, but returned complex128"),
    "plus infinity": (lambda theta, rng: np.inf, r"log-estimate is \+inf"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_an_error_with_the_parameters(name):
    fn, message = WRONG[name]
    with pytest.raises(EstimatorError, match=message) as caught:
        run(fn)
    assert "theta = [0.25]" in str(caught.value)


def test_a_wrong_result_is_reported_from_a_child_process():
    fn, message = WRONG["a vector"]
    with pytest.raises(Exception, match=message) as caught:
        run(fn, cores=2)
    assert "theta = [0.25]" in str(caught.value)


@pytest.mark.parametrize("result", [np.float32(0.5), 1, True, np.int64(2), np.array(0.5)], ids=repr)
def test_real_numbers_of_any_type_are_fine(result):
    idata = run(lambda theta, rng: result, draws=5, chains=1)
    assert (idata.sample_stats["log_estimate"] == float(result)).all()


WRONG_OUTPUTS = {
    "too few": (lambda: np.zeros((2, 2)), "must return 2 values"),
    "too many": (lambda: (np.zeros((2, 2)), 0, 0), "must return 2 values"),
    "nothing": (lambda: None, "must return 2 values"),
    "other dimensions": (lambda: (np.zeros(2), 0), r"array of shape .* one of shape \(2,\)"),
    "another shape": (lambda: (np.zeros((2, 3)), 0), r"shape \(2, 2\).* one of shape \(2, 3\)"),
    "fractions": (lambda: (np.zeros((2, 2)), 0.5), "must return int64, but returned float64"),
}


@pytest.mark.parametrize("name", WRONG_OUTPUTS)
def test_wrong_results_of_a_preparation_are_errors_with_the_parameters(name):
    result, message = WRONG_OUTPUTS[name]

    def prepare(theta):
        return result()

    types = [pt.TensorType("float64", (2, 2)), pt.lscalar]
    with pm.Model() as model:
        theta = pm.Flat("theta", initval=0.25)
        matrix, _ = apm.black_box(prepare, types)(theta)
        estimate = apm.black_box(lambda matrix, rng: rng.normal())(matrix, apm.Stream("u"))
        apm.Potential("log_lik", estimate)
    with pytest.raises(EstimatorError, match=message) as caught:
        sample(model)
    assert "BlackBox(prepare)" in str(caught.value) and "theta = 0.25" in str(caught.value)


@KINDS
def test_nan_counts_as_zero_and_is_counted(kind):
    def sometimes_nan(theta, rng):
        return noisy(theta, rng) if theta[0] < 1.0 else np.nan

    idata = run(sometimes_nan, kind, draws=300)
    assert idata.posterior["theta"].max() < 1.0
    assert idata.sample_stats["n_nan"].sum() > 0
    assert np.isfinite(idata.sample_stats["log_estimate"]).all()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_estimate_that_is_always_zero_is_an_error_at_the_start(value):
    with pytest.raises(
        EstimatorError, match=r"log_lik is zero at the starting point.*theta = \[0.25"
    ):
        run(lambda theta, rng: value)


def test_zero_at_the_first_draws_of_the_randomness_is_tried_again():
    def rarely_positive(theta, rng):
        return noisy(theta, rng) if rng.random() < 0.2 else -np.inf

    for kind in ("normal", "uniform", "seed"):
        idata = run(rarely_positive, kind)
        assert np.isfinite(idata.sample_stats["log_estimate"]).all()


def test_infinity_in_the_course_of_a_chain_is_an_error_with_the_parameters():
    def overflows(theta, rng):
        return np.inf if theta[0] > 2.0 else 0.0

    with pytest.raises(EstimatorError, match=r"\+inf at theta = \[\d"):
        run(overflows)


# Misuse of streams and seeds


@KINDS
def test_randomness_for_black_boxes_in_an_ordinary_op_is_refused(kind):
    for use in (lambda u: u.sum(), lambda u: apm.black_box(lambda x: 0.0)(u[0:1])):
        with pm.Model():
            theta, u = pm.Normal("theta"), declare(kind)
            with pytest.raises(ModelError, match=r"u can only be an argument of .*apm.black_box"):
                apm.Potential("log_lik", theta + use(u))


@KINDS
def test_two_black_boxes_with_the_same_randomness_are_refused(kind):
    estimate = apm.black_box(lambda theta, rng: rng.normal())
    with pm.Model():
        theta, u = pm.Normal("theta"), declare(kind)
        with pytest.raises(ModelError, match="u is used by 2 black boxes"):
            apm.Potential("both", estimate(theta, u) + estimate(2.0 * theta, u))
    with pm.Model():
        theta, u = pm.Normal("theta"), declare(kind)
        apm.Potential("first", estimate(theta, u))
        with pytest.raises(ModelError, match="u is used by 2 black boxes"):
            apm.Potential("second", estimate(2.0 * theta, u))


@KINDS
def test_the_same_randomness_twice_in_one_call_is_refused(kind):
    with pm.Model():
        theta, u = pm.Normal("theta"), declare(kind)
        estimate = apm.black_box(lambda theta, first, second: first.normal() + second.normal())
        with pytest.raises(ModelError):
            apm.Potential("log_lik", estimate(theta, u, u))


def test_results_of_one_call_may_be_used_in_two_potentials():
    pair = apm.black_box(lambda theta, rng: (noisy([theta], rng), 0.0), [pt.dscalar, pt.dscalar])
    with pm.Model() as model:
        first, second = pair(pm.Normal("theta"), apm.Stream("u"))
        apm.Potential("first", first)
        apm.Potential("second", second)
    assert (sample(model).sample_stats["n_random"] == 1).all()


def test_a_kind_of_stream_that_does_not_exist_is_refused():
    with (
        pm.Model(),
        pytest.raises(ModelError, match='must be "uniform" or "normal", got \'gamma\''),
    ):
        apm.Stream("u", kind="gamma")
