"""Declaring randomness in a model: shapes, names, and that no trace ever holds it."""

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.density.target import REST, THETA
from pymc_apm.errors import ModelError
from tests.models import PYTHON, QUIET, mixed_toy, toy_gaussian

DECLARE = [apm.StandardNormal, apm.StandardUniform]


@pytest.fixture(params=DECLARE, ids=["normal", "uniform"])
def declare(request):
    return request.param


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (None, ()),
        ((), ()),
        (4, (4,)),
        (np.int64(4), (4,)),
        ((2, 3), (2, 3)),
        ([2, 3], (2, 3)),
        (np.array([2, 3]), (2, 3)),
    ],
)
def test_shape_is_static_and_that_of_the_value(declare, shape, expected):
    with pm.Model():
        u = declare("u", shape=shape)
    assert u.type.shape == expected
    assert u.get_value().shape == expected
    assert u.type.dtype == "float64"


def test_dims_give_the_shape(declare):
    with pm.Model(coords={"sample": range(4), "group": ["a", "b"]}) as model:
        u = declare("u", dims=("sample", "group"))
        v = declare("v", dims="group")
    assert u.type.shape == (4, 2)
    assert v.type.shape == (2,)
    assert model.named_vars_to_dims["u"] == ("sample", "group")
    assert model.named_vars_to_dims["v"] == ("group",)


def test_dims_may_come_from_data(declare):
    with pm.Model():
        pm.Data("x", np.zeros(3), dims="obs")
        assert declare("u", dims="obs").type.shape == (3,)


def test_shape_and_dims_may_both_be_given_if_they_agree(declare):
    with pm.Model(coords={"group": range(3)}):
        assert declare("u", shape=3, dims="group").type.shape == (3,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": "grup"}, r"'u' has dimensions that the model does not know: grup\. .*coords"),
        ({"dims": ("group", "grup")}, "does not know: grup"),
        ({"shape": -1}, "negative"),
        ({"shape": (2, -3)}, r"negative length: \(2, -3\)"),
        ({"shape": (4,), "dims": "group"}, r"shape \(4,\), but its dims \('group',\) make \(3,\)"),
        ({"shape": (3, 1), "dims": "group"}, r"shape \(3, 1\), but its dims"),
        ({"shape": 2.5}, "must be made of integers, got 2.5"),
        ({"shape": (None, 2)}, "must be made of integers"),
    ],
)
def test_a_shape_that_makes_no_sense_is_an_error_in_words(declare, options, message):
    with pm.Model(coords={"group": range(3)}), pytest.raises(ModelError, match=message):
        declare("u", **options)


@pytest.mark.parametrize("shape", [(2.7,), "3", "ab"])
def test_a_shape_that_is_not_made_of_integers_is_not_guessed_at(declare, shape):
    with pm.Model(), pytest.raises(ModelError, match="must be made of integers"):
        declare("u", shape=shape)


def test_an_unnamed_dimension_is_an_error_in_words(declare):
    with pm.Model(coords={"group": range(3)}), pytest.raises(ModelError, match="None"):
        declare("u", dims=("group", None))


def test_a_model_has_to_be_open_or_given(declare):
    with pytest.raises(TypeError, match=r"[Nn]o model on context stack"):
        declare("u")
    model = pm.Model()
    assert declare("u", model=model) is model["u"]


def test_a_name_is_taken_once(declare):
    with pm.Model():
        pm.Normal("theta")
        declare("u")
        with pytest.raises(ValueError, match="u already exists"):
            pm.Normal("u")
        with pytest.raises(ValueError, match="theta already exists"):
            declare("theta")
        with pytest.raises(ValueError, match="u already exists"):
            declare("u")


@pytest.mark.parametrize("name", [":theta", ":rest", ":x"])
def test_a_name_that_begins_with_a_colon_is_refused(declare, name):
    """Blocks of parameters have such names, and randomness that took one would merge with them."""
    with pm.Model() as model:
        with pytest.raises(ModelError, match=f"must not begin with a colon.*'{name}'"):
            declare(name)
        for other in (apm.Stream, apm.Seed):
            with pytest.raises(ModelError, match="must not begin with a colon"):
                other(name)
    assert not model.named_vars
    assert not model.data_vars


def test_parameters_may_be_called_like_blocks():
    with pm.Model():
        theta = pm.Normal(":theta", 0.0, 1.0)
        rest = pm.Normal(":rest", 0.0, 1.0)
        apm.Potential("log_lik", -((theta - rest + apm.StandardNormal("u")) ** 2))
        step = apm.APMSlice([theta], compile_kwargs=PYTHON)
    u = np.array([0.3])
    values = {THETA: np.array([0.5]), REST: np.array([-1.0]), "u": u}
    assert np.isclose(step.target.start(values).log_estimate, -((0.5 + 1.0 + 0.3) ** 2))


def test_the_value_before_sampling_is_the_same_every_time_but_not_for_every_name(declare):
    values = []
    for name in ("u", "u", "v"):
        with pm.Model():
            values.append(declare(name, shape=5).get_value())
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])


def test_values_are_drawn_from_the_declared_distribution():
    with pm.Model():
        normal = apm.StandardNormal("u", shape=10_000)
        uniform = apm.StandardUniform("v", shape=10_000)
    rng = np.random.default_rng(1)
    for value in (normal.get_value(), normal.tag.apm_randomness.draw(rng)):
        assert abs(value.mean()) < 0.05
        assert abs(value.std() - 1.0) < 0.05
    for value in (uniform.get_value(), uniform.tag.apm_randomness.draw(rng)):
        assert 0.0 <= value.min() <= 0.01
        assert 0.99 <= value.max() < 1.0
        assert abs(value.mean() - 0.5) < 0.02


def test_names_in_a_submodel_carry_its_prefix():
    with pm.Model() as model, pm.Model(name="sub"):
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        potential = apm.Potential("log_lik", theta * u)
    assert u.name == "sub::u"
    assert u.tag.apm_randomness.name == "sub::u"
    assert potential.name == "sub::log_lik"
    assert model["sub::u"] is u


def test_several_pieces_of_mixed_kinds_are_sampled_and_none_is_recorded():
    model = mixed_toy()
    with model:
        step = apm.APMSlice(compile_kwargs=PYTHON)
        before = model["u"].get_value()
        idata = pm.sample(5, tune=5, chains=2, cores=1, step=step, random_seed=1, **QUIET)
    assert set(idata.posterior.data_vars) == {"theta"}
    assert not {"u", "v"} & set(idata.sample_stats.data_vars)
    groups = idata.groups() if callable(idata.groups) else idata.groups
    assert not any("constant_data" in group for group in groups)
    assert not np.array_equal(model["u"].get_value(), before)
    v = model["v"].get_value()
    assert v.shape == (2, 2)
    assert np.all((v > 0) & (v < 1))


def test_declared_data_is_recorded_and_randomness_beside_it_is_not():
    with pm.Model():
        x = pm.Data("x", np.ones(2))
        theta = pm.Normal("theta", shape=2)
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", -((theta * x - u) ** 2).sum())
        step = apm.APMSlice(compile_kwargs=PYTHON)
        idata = pm.sample(2, tune=0, chains=1, cores=1, step=step, random_seed=1, **QUIET)
    assert set(idata.constant_data.data_vars) == {"x"}


def test_a_pickled_model_is_complete_and_independent_of_the_first():
    model = toy_gaussian(2)
    copy = cloudpickle.loads(cloudpickle.dumps(model))
    assert copy["u"].type.shape == (2,)
    np.testing.assert_array_equal(copy["u"].get_value(), model["u"].get_value())
    with copy:
        step = apm.APMSlice(compile_kwargs=PYTHON)
    step.set_rng(np.random.default_rng(1))
    assert not np.array_equal(copy["u"].get_value(), model["u"].get_value())
