"""The drawing methods of streams: signatures, shapes, types and errors as in numpy."""

import inspect

import numpy as np
import pytest

from pymc_apm.stream_generator import StreamGenerator
from tests.stream_models import stream_generator

PROMISED = [
    *["random", "uniform", "standard_normal", "normal", "integers", "exponential", "gamma"],
    *["choice", "permutation", "shuffle"],
]
METHODS = sorted(name for name in vars(StreamGenerator) if not name.startswith("_"))


@pytest.fixture(params=[True, False], ids=["normal", "uniform"])
def rng(request):
    return stream_generator(request.param)


@pytest.fixture
def numpy_rng():
    return np.random.default_rng(1)


# The same signatures


@pytest.mark.parametrize("name", METHODS)
def test_parameters_have_the_names_and_the_defaults_of_numpy(name):
    ours = inspect.signature(getattr(StreamGenerator, name)).parameters
    numpys = inspect.signature(getattr(np.random.Generator, name)).parameters
    assert list(ours) == list(numpys)
    for parameter in set(ours) - {"method"}:
        assert ours[parameter].default == numpys[parameter].default, parameter


def test_all_promised_methods_are_there():
    assert set(PROMISED) <= set(METHODS)


@pytest.mark.parametrize(
    "name", ["multivariate_normal", "triangular", "bytes", "spawn", "permuted"]
)
def test_a_method_that_is_not_supported_is_named_with_a_way_out(rng, name):
    with pytest.raises(AttributeError, match=f"'u' does not support the method '{name}'.*apm.Seed"):
        getattr(rng, name)


def test_what_numpy_does_not_have_either_is_an_ordinary_attribute_error(rng):
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rng.nonsense  # noqa: B018  the attribute does not exist
    assert not hasattr(rng, "nonsense")


# Shapes and types

SIZED = {
    "random": lambda rng, size: rng.random(size),
    "uniform": lambda rng, size: rng.uniform(1, 2, size=size),
    "standard_normal": lambda rng, size: rng.standard_normal(size),
    "normal": lambda rng, size: rng.normal(1, 2, size=size),
    "lognormal": lambda rng, size: rng.lognormal(size=size),
    "integers": lambda rng, size: rng.integers(1, 9, size=size),
    "exponential": lambda rng, size: rng.exponential(2, size=size),
    "standard_exponential": lambda rng, size: rng.standard_exponential(size),
    "standard_gamma": lambda rng, size: rng.standard_gamma(2, size=size),
    "gamma": lambda rng, size: rng.gamma(2, 3, size=size),
    "beta": lambda rng, size: rng.beta(2, 3, size=size),
    "poisson": lambda rng, size: rng.poisson(3, size=size),
    "binomial": lambda rng, size: rng.binomial(3, 0.5, size=size),
    "choice": lambda rng, size: rng.choice(7, size=size),
    "choice with p": lambda rng, size: rng.choice([1.5, 2.5], size=size, p=[0.5, 0.5]),
    "choice of rows": lambda rng, size: rng.choice(np.ones((5, 2)), size=size),
    "choice of columns": lambda rng, size: rng.choice(np.ones((2, 5)), size=size, axis=1),
    "choice without replacement": lambda rng, size: rng.choice(9, size=size, replace=False),
}


@pytest.mark.parametrize(
    "size", [None, 0, 1, 5, np.int64(3), (2, 3), (0, 3), (4,), [2, 2]], ids=str
)
@pytest.mark.parametrize("name", SIZED)
def test_sizes_give_the_shapes_and_types_of_numpy(rng, numpy_rng, name, size):
    ours, numpys = SIZED[name](rng, size), SIZED[name](numpy_rng, size)
    assert np.shape(ours) == np.shape(numpys)
    assert np.asarray(ours).dtype == np.asarray(numpys).dtype
    assert isinstance(ours, np.ndarray) == isinstance(numpys, np.ndarray)
    if isinstance(numpys, float):
        assert isinstance(ours, float)


BROADCAST = {
    "uniform": lambda rng: rng.uniform([1.0, 2.0, 3.0], [[5.0], [6.0]]),
    "normal": lambda rng: rng.normal(np.zeros((2, 1)), [1.0, 2.0, 3.0]),
    "normal to size": lambda rng: rng.normal([100.0, 0.0, -100.0], 1.0, size=(2, 3)),
    "lognormal": lambda rng: rng.lognormal(np.zeros(3)),
    "exponential": lambda rng: rng.exponential([1.0, 2.0]),
    "gamma": lambda rng: rng.gamma([[1.0], [2.0]], [3.0, 4.0]),
    "standard_gamma": lambda rng: rng.standard_gamma([1.0, 2.0]),
    "beta": lambda rng: rng.beta([1.0, 2.0], 3.0),
    "integers": lambda rng: rng.integers([0, 10], [[15], [35]]),
    "poisson": lambda rng: rng.poisson([1.0, 2.0, 3.0]),
    "binomial": lambda rng: rng.binomial([1, 2, 3], 0.5),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_array_parameters_broadcast_to_independent_draws(rng, numpy_rng, name):
    ours, numpys = BROADCAST[name](rng), BROADCAST[name](numpy_rng)
    assert ours.shape == numpys.shape and ours.dtype == numpys.dtype
    assert rng._reader.used().size == ours.size


def test_each_draw_has_the_parameters_of_its_place(rng):
    assert np.array_equal(np.round(rng.normal([100.0, 0.0], 1e-3, size=(50, 2))), [[100, 0]] * 50)
    draws = rng.integers([0, 100], [3, 103], size=(200, 2))
    assert set(draws[:, 0]) == {0, 1, 2} and set(draws[:, 1]) == {100, 101, 102}


@pytest.mark.parametrize("dtype", [np.float32, "float32", np.float64, np.dtype("f8")], ids=str)
def test_dtype_of_floats(rng, dtype):
    for draws in (
        rng.random(3, dtype),
        rng.standard_normal(3, dtype),
        rng.standard_gamma(2, 3, dtype),
    ):
        assert draws.dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, bool], ids=str)
def test_dtype_of_integers(rng, dtype):
    draws = rng.integers(0, 2, size=100, dtype=dtype)
    assert draws.dtype == dtype and set(draws.tolist()) == {0, 1}
    assert np.asarray(rng.integers(2, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("name", ["random", "standard_normal", "standard_exponential"])
def test_out_is_filled_and_returned(rng, name):
    out = np.full((3, 2), np.nan)
    assert getattr(rng, name)(out=out) is out
    assert np.isfinite(out).all() and np.unique(out).size == 6
    single = np.zeros(4, np.float32)
    assert getattr(rng, name)(dtype=np.float32, out=single) is single and single.all()


def test_draws_are_memory_of_the_caller_and_not_of_the_stream(rng):
    draws = rng.random(5), rng.standard_normal(5)
    used = rng._reader.used()
    for array in draws:
        array += 17.0
    np.testing.assert_array_equal(rng._reader.used(), used)


# Choices, permutations and what is refused


def test_choices_are_of_the_elements_along_the_axis(rng):
    table = np.arange(12).reshape(3, 4)
    rows, columns = rng.choice(table, 20), rng.choice(table, 20, axis=1)
    assert rows.shape == (20, 4) and {tuple(row) for row in rows} == {tuple(row) for row in table}
    assert columns.shape == (3, 20)
    assert {tuple(column) for column in columns.T} <= {tuple(column) for column in table.T}
    assert rng.choice(table, (2, 5), axis=1).shape == (3, 2, 5)
    assert rng.choice(["a", "b"], 3).dtype.kind == "U"


def test_choice_without_replacement_of_all_elements_is_a_permutation(rng):
    assert sorted(rng.choice(10, 10, replace=False)) == list(range(10))
    assert sorted(rng.choice(5, 3, replace=False, p=[0, 0.5, 0, 0.25, 0.25])) == [1, 3, 4]


def test_permutations_and_shuffles_along_an_axis_move_rows_or_columns_as_a_whole(rng):
    table = np.arange(12).reshape(3, 4)
    before = table.copy()
    by_row, by_column = rng.permutation(table), rng.permutation(table, axis=1)
    np.testing.assert_array_equal(table, before)
    assert sorted(by_row.tolist()) == before.tolist()
    assert sorted(by_column.T.tolist()) == before.T.tolist()
    rng.shuffle(table)
    assert sorted(table.tolist()) == before.tolist()
    table[...] = before
    rng.shuffle(table, axis=1)
    assert sorted(table.T.tolist()) == before.T.tolist()
    words = ["a", ["b"], None, 3.0]
    rng.shuffle(words)
    assert len(words) == 4 and all(word in words for word in ("a", ["b"], None, 3.0))
    assert sorted(rng.permutation(["x", "y", "z"])) == ["x", "y", "z"]


REFUSED = {
    "integers of an empty range": lambda rng: rng.integers(3, 3),
    "choice of nothing": lambda rng: rng.choice([]),
    "choice of too many": lambda rng: rng.choice(3, 4, replace=False),
    "choice of too many possible ones": lambda rng: rng.choice(3, 2, replace=False, p=[1, 0, 0]),
    "p that is not one": lambda rng: rng.choice(2, p=[0.5, 0.6]),
    "p of another length": lambda rng: rng.choice(3, p=[0.5, 0.5]),
    "p below zero": lambda rng: rng.choice(3, p=[0.7, 0.6, -0.3]),
}

NOT_YET_REFUSED = {
    "negative size": lambda rng: rng.random(-1),
    "negative length": lambda rng: rng.normal(size=(2, -1)),
    "size smaller than the parameters": lambda rng: rng.normal(np.zeros(3), 1.0, size=1),
    "size that does not fit the parameters": lambda rng: rng.uniform(np.zeros(3), 1, size=(3, 1)),
    "size that is not that of out": lambda rng: rng.random(5, out=np.empty(3)),
    "negative scale of normal": lambda rng: rng.normal(0.0, -1.0),
    "negative scale of exponential": lambda rng: rng.exponential(-1.0),
    "negative shape of gamma": lambda rng: rng.gamma(-1.0),
    "negative mean of poisson": lambda rng: rng.poisson(-1.0),
    "probability above one": lambda rng: rng.binomial(5, 1.5),
    "integers beyond their dtype": lambda rng: rng.integers(0, 300, dtype=np.int8),
    "choice of half an element": lambda rng: rng.choice(2.5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_numpy_refuses_is_refused(rng, numpy_rng, name):
    for generator in (rng, numpy_rng):
        with pytest.raises(ValueError):
            REFUSED[name](generator)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("name", NOT_YET_REFUSED)
def test_what_numpy_refuses_should_be_refused(rng, numpy_rng, name):
    with pytest.raises(ValueError):
        NOT_YET_REFUSED[name](numpy_rng)
    with pytest.raises(ValueError):
        NOT_YET_REFUSED[name](rng)


NOT_YET_ALLOWED = {
    "choice along the last axis": lambda rng: rng.choice(np.arange(12).reshape(3, 4), 2, axis=-1),
    "choice of one string": lambda rng: rng.choice(["a", "b"]),
    "no choice of nothing": lambda rng: rng.choice(0, size=0),
    "size as an array": lambda rng: rng.random(np.array([2, 3])),
    "gamma of shape zero": lambda rng: np.isfinite(rng.gamma(0.0)) or [][0],
}


@pytest.mark.parametrize("name", NOT_YET_ALLOWED)
def test_what_numpy_allows_should_be_allowed(rng, numpy_rng, name):
    expected = NOT_YET_ALLOWED[name](numpy_rng)
    assert np.shape(NOT_YET_ALLOWED[name](rng)) == np.shape(expected)


def test_its_representation_names_the_stream_and_its_numbers():
    assert repr(stream_generator(True)) == "StreamGenerator('u', normal numbers)"
    assert repr(stream_generator(False)) == "StreamGenerator('u', uniform numbers)"
