"""Between points of PyMC and flat vectors."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_apm.density.layout import Layout


@pytest.fixture(scope="module")
def model():
    with pm.Model() as made:
        pm.Normal("scalar")
        pm.HalfNormal("positive", shape=2)
        pm.Poisson("count", 3.0, shape=2)
        pm.Normal("matrix", shape=(2, 3))
    return made


@pytest.fixture
def layout(model):
    return Layout(model.value_vars, model.initial_point())


POINT = {
    "scalar": np.array(0.5),
    "positive_log__": np.array([1.5, 2.5]),
    "count": np.array([3, 4]),
    "matrix": np.arange(6.0).reshape(2, 3),
}


def test_ravel_puts_variables_one_after_the_other(layout):
    vector = layout.ravel(POINT)
    np.testing.assert_array_equal(vector, [0.5, 1.5, 2.5, 3, 4, 0, 1, 2, 3, 4, 5])
    assert vector.dtype == np.float64
    assert layout.size == vector.size


def test_ravel_goes_by_name_and_not_by_order(layout):
    turned = dict(reversed(POINT.items())) | {"unrelated": np.zeros(3)}
    np.testing.assert_array_equal(layout.ravel(turned), layout.ravel(POINT))


def test_unravel_gives_back_shapes_and_dtypes(layout):
    point = layout.unravel(layout.ravel(POINT))
    assert list(point) == list(POINT)
    for name, value in POINT.items():
        np.testing.assert_array_equal(point[name], value)
        assert isinstance(point[name], np.ndarray)
        assert point[name].dtype == value.dtype
        assert point[name].shape == value.shape


def test_neither_way_shares_memory(layout):
    point = {name: value.copy() for name, value in POINT.items()}
    vector = layout.ravel(point)
    point["matrix"][:] = -1.0
    assert vector[-1] == 5.0
    unravelled = layout.unravel(vector)
    vector[:] = -2.0
    np.testing.assert_array_equal(unravelled["matrix"], POINT["matrix"])


def test_split_is_the_symbolic_counterpart_of_unravel(layout, model):
    vector = pt.vector("vector", shape=(layout.size,))
    parts = layout.split(vector)
    assert list(parts) == model.value_vars
    function = pytensor.function([vector], list(parts.values()), mode="FAST_COMPILE")
    for value, expected in zip(function(layout.ravel(POINT)), POINT.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == expected.dtype


def test_coordinates_know_whether_they_are_discrete(layout):
    np.testing.assert_array_equal(np.flatnonzero(layout.discrete), [3, 4])


def test_a_part_of_the_variables_in_another_order(model):
    variables = [model.value_vars[3], model.value_vars[0]]
    layout = Layout(variables, model.initial_point())
    np.testing.assert_array_equal(layout.ravel(POINT), [0, 1, 2, 3, 4, 5, 0.5])
    assert list(layout.unravel(np.zeros(7))) == ["matrix", "scalar"]


def test_no_variables_make_an_empty_vector():
    layout = Layout([], {})
    assert layout.size == 0
    assert layout.ravel(POINT).shape == (0,)
    assert layout.unravel(np.zeros(0)) == {}
    assert layout.discrete.shape == (0,)


def test_a_point_without_a_variable_is_an_error(layout):
    with pytest.raises(KeyError, match="matrix"):
        layout.ravel({name: value for name, value in POINT.items() if name != "matrix"})
