"""Functions that Numba has compiled as black boxes: compiled code calls them as Python does."""

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.black_box import BlackBox
from pymc_apm.numba_box import NumbaBox
from tests.compiled.programs import digest_of
from tests.models import PYTHON
from tests.steps.models import sample

NUMBERS = np.array([[1.0, -2.0], [0.5, 3.0]])


@numba.njit
def weighted(scale, u):
    return scale * u[0, 1] + u.sum()


@numba.njit
def spoiling(scale, u):
    """Changes its argument in place, which nobody else is to see."""
    u[0, 0] = 100.0
    return scale * u.sum()


@numba.njit
def several(scale, u):
    return u.sum(axis=0) * scale, 3, u.T


def in_numba(fn, outputs=None):
    """Return results of a black box under PyTensor's Numba backend, and its inputs afterwards."""
    scale, u = pt.dscalar("scale"), pt.dmatrix("u")
    made = apm.black_box(fn, outputs)(scale, u)
    function = pytensor.function([scale, u], made, mode="NUMBA", trust_input=True)
    given = NUMBERS.copy()
    return function(np.array(2.0), given), given


def test_compiled_code_computes_what_the_function_does():
    made, _ = in_numba(weighted)
    assert float(made) == weighted(2.0, NUMBERS) == -1.5


def test_several_results_are_made_floats():
    made, _ = in_numba(several, [pt.dvector, pt.dscalar, pt.dmatrix])
    assert [value.dtype for value in made] == ["float64"] * 3
    for value, expected in zip(made, several(2.0, NUMBERS), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_function_that_changes_its_argument_changes_a_copy():
    made, given = in_numba(spoiling)
    assert float(made) == 203.0
    np.testing.assert_array_equal(given, NUMBERS)


@pytest.mark.parametrize(
    ("fn", "outputs"),
    [
        (numba.njit(lambda scale, u: u.sum() + 1j), None),
        (numba.njit(lambda scale, u: u), None),
        (numba.njit(lambda scale, u: u[0]), None),
        (numba.njit(lambda scale, u: u), [pt.dvector]),
        (numba.njit(lambda scale, u: u), [pt.TensorType("float64", (2, 3))]),
        (numba.njit(lambda scale, u: (u.sum(), u.sum())), None),
        (numba.njit(lambda scale, u: (u.sum(), u.sum(), scale)), [pt.dscalar] * 2),
        (numba.njit(lambda scale, u: (u.sum(),)), [pt.dscalar] * 2),
    ],
    ids=["complex", "a matrix", "a vector", "dimensions", "shape", "a tuple", "three", "one"],
)
def test_other_results_than_were_announced_are_errors(fn, outputs):
    with pytest.raises(Exception, match=r"must return|float64|No implementation|tuple index"):
        in_numba(fn, outputs)


def test_what_numba_cannot_call_is_a_black_box_like_any_other():
    with pm.Model():
        theta = pm.Flat("theta")
        u = apm.StandardNormal("u", shape=(2, 2))
        assert type(apm.black_box(weighted)(theta, u).owner.op) is NumbaBox
        assert type(apm.black_box(weighted.py_func)(theta, u).owner.op) is BlackBox
        assert type(apm.black_box(weighted)(theta, apm.Stream("s")).owner.op) is BlackBox
        assert type(apm.black_box(several, [pt.lvector] * 3)(theta, u)[0].owner.op) is BlackBox


def model_of(fn):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=(2, 2))
        apm.Potential("log_lik", apm.black_box(fn)(theta, u))
    return model


@numba.njit
def log_estimate(theta, u):
    return -0.5 * (theta - 1.0) ** 2 + 0.3 * theta * u[0, 0] - 0.1 * u[1, 1]


@pytest.mark.slow
def test_a_compiled_chain_makes_the_draws_of_python():
    runs = []
    for compile in (True, False):
        with model_of(log_estimate) as model:
            step = apm.APMSlice(width=2.0, compile=compile)
        runs.append(sample(model, step, draws=300, tune=100).posterior["theta"].values)
    np.testing.assert_allclose(*runs, rtol=1e-9)


def test_programs_with_functions_of_users_are_not_kept():
    """What such a function refers to may have changed since Numba compiled it."""
    with model_of(log_estimate):
        step = apm.APMSlice(compile=False)
    assert step.obstacle_to_compilation(False) is None
    assert digest_of(step) is None


def test_in_python_it_is_any_other_black_box():
    with model_of(log_estimate) as model:
        step = apm.APMSlice(compile_kwargs=PYTHON, compile=False)
    idata = sample(model, step, draws=20, tune=20)
    assert np.isfinite(idata.posterior["theta"].values).all()


def log_likelihood(transition):
    """Return the log-likelihood of some data by particles that a function moves, given u."""
    with pm.Model() as model:
        a = pm.Uniform("a", 0, 1)
        apm.estimators.state_space(
            "y",
            np.array([0.3, -1.0, 0.4]),
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: transition(x, pm.Normal.dist(0, 1), a),
            observation=lambda x: pm.Normal.dist(x, 1),
            method="particles",
            points=5,
        )
    for number, u in enumerate(model.data_vars):
        rng = np.random.default_rng(number)
        u.set_value(rng.standard_normal(u.get_value().shape))
    with apm.clamped(model):
        return float(model.compile_logp()(model.initial_point()))


def move(x, z, a):
    return a * x + z


@pytest.mark.slow
def test_particles_are_moved_by_a_function_of_numba():
    values = [log_likelihood(f) for f in (apm.black_box(numba.njit(move)), move)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)
