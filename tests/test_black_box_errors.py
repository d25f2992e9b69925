"""What goes wrong in a black box, and what its author sees of it (DESIGN.md, section 5)."""

import copy
import copyreg
import pickle
import random
import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_apm as apm
from pymc_apm.black_box import BlackBox, Source
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.kernels.stream import fresh_stream
from tests.models import PYTHON, PythonOp
from tests.steps.models import sample
from tests.stream_models import declare, lazy_model

KINDS = pytest.mark.parametrize("kind", ["normal", "uniform", "seed"])
CORES = pytest.mark.parametrize("cores", [1, 2])


def run(fn, kind="normal", **options):
    """Sample a model of one parameter, that starts at 0.25, with a function as its estimator."""
    options = {"draws": 100, "tune": 20, "mp_ctx": "fork", "compile_kwargs": PYTHON} | options
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


class WithOneMessageOfTwoArguments(Exception):
    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")


class WithAMessageMadeOfAnother(Exception):
    def __init__(self, step):
        super().__init__(f"diverged at step {step}")


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("not this one")


def with_something_unpicklable():
    error = ValueError("it holds a function")
    error.function = lambda: None
    return error


SURVIVORS = {
    "KeyError": lambda: KeyError("key"),
    "two arguments": lambda: WithTwoArguments(3, "text"),
    "no message": lambda: ValueError(),
    "OSError": lambda: FileNotFoundError(2, "No such file", "data.csv"),
}
LOST = {
    "one message of two arguments": lambda: WithOneMessageOfTwoArguments(3, "text"),
    "a message made of another": lambda: WithAMessageMadeOfAnother(3),
    "not picklable": lambda: Unpicklable("text"),
    "an attribute": with_something_unpicklable,
    "a local class": lambda: type("Local", (Exception,), {})("text"),
}


def raises(make, place):
    """Return an estimator that raises, and the model with it, in a black box or in another op."""

    def fails(*arguments):
        raise make()

    with pm.Model() as model:
        theta = pm.Flat("theta", initval=0.25)
        if place == "black box":
            apm.Potential("log_lik", apm.black_box(fails)(theta, apm.Stream("u")))
        else:
            apm.Potential("log_lik", PythonOp(fails)(theta * apm.StandardNormal("u")))
    return model


def caught_from_a_child(model):
    with pytest.raises(Exception) as caught, model:
        step = apm.APMSlice(compile_kwargs=PYTHON)
        sample(model, step, draws=5, tune=5, cores=2, mp_ctx="fork")
    return caught.value.__cause__


PLACES = pytest.mark.parametrize("place", ["black box", "another op"])


@PLACES
@pytest.mark.parametrize("name", SURVIVORS)
def test_an_exception_that_survives_comes_home_from_a_child_process(name, place):
    error = caught_from_a_child(raises(SURVIVORS[name], place))
    assert type(error) is type(SURVIVORS[name]())
    told = str(error) + "".join(getattr(error, "__notes__", ()))
    assert "evaluated at theta = 0.25" in told
    assert (place == "black box") == ("BlackBox(fails) was called with" in told)


@pytest.fixture(params=["as Python does", "as Dask does"])
def pickles(request):
    """Let exceptions be pickled as they are, and with their contexts: Dask changes it for all."""
    table = copyreg.dispatch_table.copy()
    for kind in table:
        if issubclass(kind, BaseException):
            del copyreg.dispatch_table[kind]
    if request.param == "as Dask does":
        pytest.importorskip("tblib.pickling_support").install()
    yield request.param
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(table)


@PLACES
@pytest.mark.parametrize("name", LOST)
def test_an_exception_that_would_be_lost_has_a_stand_in_that_tells_all(name, place, pickles):
    error = caught_from_a_child(raises(LOST[name], place))
    kind, message = type(LOST[name]()).__name__, str(LOST[name]())
    assert message in str(error) and "evaluated at theta = 0.25" in str(error)
    if pickles == "as Dask does" and type(error).__name__ == kind:
        return  # Dask brings more exceptions home than Python does
    assert type(error) is EstimatorError and len(error.args) == 1
    assert f"{kind}: {message}" in str(error)
    assert "in fails" in str(error) and "raise make()" in str(error)


@pytest.mark.parametrize("name", [*SURVIVORS, *LOST])
def test_in_one_process_an_exception_is_what_it_was(name):
    make = (SURVIVORS | LOST)[name]
    kind = type(make())
    model = raises(make, "black box")
    with pytest.raises(Exception) as caught, model:
        sample(model, apm.APMSlice(compile_kwargs=PYTHON), draws=5, tune=5)
    assert type(caught.value).__name__ == kind.__name__
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "evaluated at theta = 0.25" in told and "BlackBox(fails) was called with" in told
    if name == "OSError":
        assert caught.value.errno == 2 and caught.value.filename == "data.csv"
    if name == "an attribute":
        assert callable(caught.value.function)


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
        sample(model, compile_kwargs=PYTHON)


# What the function returns

WRONG = {
    "a vector": (lambda theta, rng: np.zeros(2), r"must return a scalar, but .* shape \(2,\)"),
    "a vector of one": (lambda theta, rng: theta, r"must return a scalar, but .* shape \(1,\)"),
    "two values": (lambda theta, rng: (0.0, 1.0), r"must return a scalar, but .* shape \(2,\)"),
    "text": (lambda theta, rng: "0.5", "must return float64, but returned <U3"),
    "nothing": (lambda theta, rng: None, "must return float64, but returned a NoneType"),
    "a generator": (lambda theta, rng: (x for x in [0.0]), "but returned a generator"),
    "a masked number": (lambda theta, rng: np.ma.masked, "but returned masked ones"),
    "a masked array": (lambda theta, rng: np.ma.array(0.5, mask=True), "but returned masked ones"),
    "an integer without end": (lambda theta, rng: 10**400, "but returned a int"),
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
    "too large": (
        lambda: (np.zeros((2, 2)), np.uint64(2**63)),
        "returned numbers beyond its range",
    ),
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
        sample(model, compile_kwargs=PYTHON)
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


# What a function may not do to what it is given


def called(fn, *values, sources=None, outputs=(pt.dscalar,)):
    """Call the op of a black box with values for its arguments, without a compiler."""
    sources = sources or (None,) * len(values)
    op = BlackBox(fn, tuple(outputs), sources)
    storage = [[None] for _ in range(len(outputs) + sum(s is not None for s in sources))]
    op.perform(None, values, storage)
    return [cell[0] for cell in storage]


STREAM = Source("u", is_stream=True, is_normal=True)


def call_with_stream(fn):
    return called(fn, fresh_stream(np.random.default_rng(1)), sources=(STREAM,))


def test_neither_an_argument_nor_its_base_can_be_written_to():
    values = np.arange(6.0).reshape(2, 3), np.arange(3.0)[::-1], np.zeros((0, 2))
    before = [value.copy() for value in values]

    def through_the_base(*arrays):
        for array in arrays:
            with pytest.raises((ValueError, TypeError)):
                array[...] = 7.0
            with pytest.raises(ValueError):
                array.flags.writeable = True
            base = array.base
            while base is not None:
                with pytest.raises((TypeError, ValueError, NotImplementedError)):
                    base[...] = 7.0
                base = getattr(base, "base", None)
        return float(arrays[0].sum())

    assert called(through_the_base, *values)[0] == 15.0
    for value, old in zip(values, before, strict=True):
        np.testing.assert_array_equal(value, old)


def test_a_write_through_the_base_is_an_error_that_names_the_black_box():
    def overwrites(u):
        u.base[...] = 0.0
        return 0.0

    with pytest.raises((TypeError, NotImplementedError, ValueError)) as caught:
        called(overwrites, np.ones(3))
    assert "BlackBox(overwrites) was called with u = [1. 1. 1.]" in str(caught.value)


def test_a_generator_that_is_kept_cannot_be_drawn_from_when_the_function_has_returned():
    kept = []
    call_with_stream(lambda rng: kept.append(rng) or rng.normal())
    for draw in (lambda rng: rng.random(), lambda rng: rng.normal(size=3)):
        with pytest.raises(RuntimeError, match=r"read after BlackBox\(<lambda>\).* had returned"):
            draw(kept[0])


def test_results_are_copies_of_what_the_function_keeps_or_was_given():
    kept = np.zeros(3)
    given = np.ones(3)
    returned = called(lambda x: (kept, x, x[1:]), given, outputs=[pt.dvector] * 3)
    kept += 1.0
    given += 1.0
    np.testing.assert_array_equal(np.concatenate(returned), [0.0] * 3 + [1.0] * 5)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


@pytest.mark.parametrize("name", COPIES)
def test_a_stream_cannot_be_copied(name):
    """What is drawn from a copy would not be kept with the estimate."""
    with pytest.raises(TypeError, match="'u' can be neither copied nor pickled"):
        call_with_stream(lambda rng: COPIES[name](rng) and 0.0)


OTHER_USES = {
    "spawn": lambda rng: rng.spawn(2),
    "bit_generator": lambda rng: rng.bit_generator,
    "default_rng": lambda rng: np.random.default_rng(rng),
    "Generator": lambda rng: np.random.Generator(rng),
    "RandomState": lambda rng: np.random.RandomState(rng),
    "SeedSequence": lambda rng: np.random.SeedSequence(rng),
    "random": lambda rng: random.Random(rng),
    "scipy": lambda rng: stats.norm.rvs(random_state=rng),
}


@pytest.mark.parametrize("name", OTHER_USES)
def test_what_needs_a_generator_of_numpy_refuses_a_stream(name):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call_with_stream(lambda rng: OTHER_USES[name](rng) and 0.0)


def test_no_number_and_a_million_numbers_of_a_stream_may_be_used():
    assert call_with_stream(lambda rng: 0.5)[1].size == 0
    result, used = call_with_stream(lambda rng: rng.normal(size=10**6).mean())
    assert used.size == 10**6 and used.mean() == result


def test_calls_within_calls_and_several_streams_do_not_disturb_each_other():
    """Each reader has generators of its own, whoever else reads at the same time."""
    streams = [fresh_stream(np.random.default_rng(seed)) for seed in (1, 2)]
    expected = [called(draws, stream, sources=(STREAM,))[1] for stream in streams]
    op = BlackBox(nested, (pt.dscalar,), (STREAM, STREAM))
    nested.op, nested.depth, nested.streams = op, 0, streams
    storage = [[None], [None], [None]]
    op.perform(None, streams, storage)
    for cell, numbers in zip(storage[1:], expected, strict=True):
        np.testing.assert_array_equal(cell[0], numbers)


def draws(rng):
    return sum(rng.normal() for _ in range(100))


def nested(first, second):
    total = 0.0
    for i in range(100):
        total += first.normal() + second.normal()
        if i == 40 and nested.depth == 0:
            nested.depth = 1
            nested.op.perform(None, nested.streams, [[None], [None], [None]])
    return total


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
    assert (sample(model, compile_kwargs=PYTHON).sample_stats["n_random"] == 1).all()


def test_a_kind_of_stream_that_does_not_exist_is_refused():
    with (
        pm.Model(),
        pytest.raises(ModelError, match='must be "uniform" or "normal", got \'gamma\''),
    ):
        apm.Stream("u", kind="gamma")
