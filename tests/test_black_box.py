"""Python functions as estimators: how they become ops, and what they are called with."""

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.errors import ModelError
from pymc_apm.stream_generator import StreamGenerator
from tests.marks import others_are_slow
from tests.models import PYTHON
from tests.steps.models import sample, start_chain


def model_of(fn, randomness=None, prior=pm.Flat, **options):
    """Build a model with one parameter whose estimator is a function of it and of randomness."""
    with pm.Model() as model:
        theta = prior("theta")
        u = apm.Stream("u", kind="normal") if randomness is None else randomness()
        apm.Potential("log_lik", apm.black_box(fn, **options)(theta, u))
    return model


def quadratic(theta, rng):
    return -0.5 * theta**2 + rng.normal(-0.005, 0.1)


# Making an op


def test_a_function_becomes_an_op_that_computes_what_the_function_does():
    theta = pt.dvector("theta")
    result = apm.black_box(lambda theta, scale: np.sum(theta**2) / scale)(theta, 2.0)
    assert result.type == pt.dscalar
    assert pytensor.function([theta], result)(np.array([1.0, 3.0])) == 5.0


def test_it_is_a_decorator_with_and_without_options():
    @apm.black_box
    def plain(x):
        """Square a number."""
        return x**2

    @apm.black_box(outputs=[pt.dvector, pt.dscalar])
    def with_options(x):
        return np.array([x, 2.0 * x]), x**2

    x = pt.dscalar("x")
    values = pytensor.function([x], [plain(x), *with_options(x)])(3.0)
    np.testing.assert_array_equal(np.concatenate([np.ravel(v) for v in values]), [9, 3, 6, 9])
    assert plain.__name__ == "plain" and plain.__doc__ == "Square a number."
    assert repr(with_options) == "black_box(with_options)"


def test_called_with_numbers_it_is_the_function_that_it_was():
    estimate = apm.black_box(quadratic)
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    assert estimate(1.5, rng) == quadratic(1.5, same)
    assert estimate(theta=1.5, rng=rng) == quadratic(1.5, same)


def test_keyword_arguments_constants_and_partial_functions():
    def line(x, slope, shift=10.0):
        return slope * x + shift

    x = pt.dscalar("x")
    results = [
        apm.black_box(line)(x, 2.0),
        apm.black_box(line)(x, slope=3, shift=x),
        apm.black_box(line)(shift=np.float32(1.0), slope=pt.constant(2.0), x=x),
        apm.black_box(functools.partial(line, slope=5.0))(x),
    ]
    assert [float(v) for v in pytensor.function([x], results)(2.0)] == [14.0, 8.0, 5.0, 20.0]


def test_keyword_only_arguments_and_objects_are_refused_with_a_way_out():
    def fn(x, *, table):
        return x

    with pytest.raises(ModelError, match=r"table by keyword alone.*partial"):
        apm.black_box(fn)(pt.dscalar(), table=1.0)
    with pytest.raises(ModelError, match=r"Argument 2 of the black box .* neither.*partial"):
        apm.black_box(lambda x, y: x)(pt.dscalar(), {"not": "an array"})


@pytest.mark.parametrize("outputs", [[], [float], ["dscalar"], [pt.dscalar()]])
def test_outputs_that_are_not_types_are_refused(outputs):
    with pytest.raises(ModelError, match=r"list of types of PyTensor, for example \[pt.dscalar\]"):
        apm.black_box(quadratic, outputs)


def test_what_is_not_a_function_is_refused():
    with pytest.raises(ModelError, match="takes a function, got 3"):
        apm.black_box(3)


def test_several_outputs_of_several_types():
    def fn(matrix):
        return matrix @ matrix.T, len(matrix), matrix.sum(axis=0).astype(np.float32), 1.5

    types = [pt.dmatrix, pt.lscalar, pt.dvector, pt.dscalar]
    x = pt.dmatrix("x")
    product, rows, sums, number = pytensor.function([x], apm.black_box(fn, types)(x))(
        np.ones((2, 3))
    )
    np.testing.assert_array_equal(product, np.full((2, 2), 3.0))
    assert rows == 2 and rows.dtype == np.int64 and number == 1.5
    np.testing.assert_array_equal(sums, [2.0] * 3)
    assert sums.dtype == np.float64


# What the function receives


def test_arguments_are_numpy_scalars_read_only_arrays_and_generators():
    seen = []

    def fn(theta, count, table, u, stream, seed):
        seen.append((theta, count, table, u, stream, seed))
        return 0.0

    with pm.Model() as model:
        theta, count = pm.Normal("theta"), pm.Poisson("count", 3.0)
        u = apm.StandardNormal("u", shape=(2, 3))
        sources = apm.Stream("stream"), apm.Seed("seed")
        apm.Potential("p", apm.black_box(fn)(theta, count, np.eye(2), u, *sources))
    sample(model, draws=2, tune=2, chains=1)
    for theta, count, table, u, stream, seed in seen:
        assert isinstance(theta, np.float64) and isinstance(count, np.integer)
        assert table.shape == (2, 2) and u.shape == (2, 3)
        for array in (table, u):
            with pytest.raises(ValueError, match="read-only"):
                array[0, 0] = 7.0
        assert type(stream) is StreamGenerator and type(seed) is np.random.Generator


def test_a_seed_gives_the_same_generator_for_the_same_seed_and_another_for_another():
    seen = []

    def fn(theta, rng):
        seen.append((theta, rng.normal()))
        return 0.0

    with model_of(fn, lambda: apm.Seed("u"), pm.Normal) as model:
        step = apm.APMSlice(compile_kwargs=PYTHON)
    start_chain(step, 1)
    point = model.initial_point()
    step.step(point)
    assert len({noise for _, noise in seen[:2]}) == 1  # the check at the start of the chain
    fresh = {noise for theta, noise in seen if theta == point["theta"]}
    assert len(fresh) == 2  # the proposal of the independence update
    assert {noise for theta, noise in seen if theta != point["theta"]} <= fresh


def test_preparation_that_needs_parameters_alone_runs_once_for_each_value_of_them():
    prepared, estimated = [], []

    def prepare(theta):
        prepared.append(float(theta))
        return np.full((2, 2), theta), theta**2

    def estimate(matrix, square, rng):
        assert matrix[0, 0] ** 2 == square
        estimated.append(float(matrix[0, 0]))
        return -0.5 * square + rng.normal(-0.5, 1.0)

    with pm.Model() as model:
        theta = pm.Flat("theta")
        matrix, square = apm.black_box(prepare, [pt.dmatrix, pt.dscalar])(theta)
        stream = apm.Stream("u", kind="normal")
        apm.Potential("log_lik", apm.black_box(estimate)(matrix, square, stream))
        step = apm.APMSlice(compile_kwargs=PYTHON)
    start_chain(step, 1)
    point, _ = step.step(model.initial_point())
    for _ in range(20):
        prepared.clear(), estimated.clear()
        before = point
        point, (stats,) = step.step(point)
        assert len(prepared) == stats["n_theta_evals"] < len(estimated) == stats["n_evals"]
        assert float(before["theta"]) not in prepared
        assert estimated[0] == float(before["theta"])


def test_a_buffer_that_the_function_uses_again_does_not_spoil_what_was_kept():
    """The results of a stage live as long as its parameters: they must be copies."""
    buffer = np.zeros(1)
    is_right = []

    def prepare(theta):
        buffer[:] = theta
        return buffer

    def estimate(theta, prepared, rng):
        is_right.append(prepared[0] == theta)
        return -0.5 * theta**2 + rng.normal(-0.005, 0.1)

    with pm.Model() as model:
        theta = pm.Flat("theta")
        prepared = apm.black_box(prepare, [pt.dvector])(theta)
        stream = apm.Stream("u", kind="normal")
        apm.Potential("log_lik", apm.black_box(estimate)(theta, prepared, stream))
        step = apm.APMMetropolis(scaling=3.0)
    sample(model, step, draws=100, chains=1)  # compiled: it is that which keeps results
    assert all(is_right)


# Kinds of functions


def test_functions_compiled_by_numba():
    numba = pytest.importorskip("numba")

    @numba.njit
    def compiled(theta, u):
        total = 0.0
        for x in u:
            total += x - 0.5
        return -0.5 * (theta - 3.0) ** 2 + 0.1 * total

    model = model_of(compiled, lambda: apm.StandardNormal("u", shape=5))
    idata = sample(model, draws=400, tune=200)
    assert abs(float(idata.posterior["theta"].mean()) - 3.0) < 0.5


def make_quadratic(centre):
    def log_estimate(theta, rng):
        return -0.5 * (theta - centre) ** 2 + rng.normal(-0.005, 0.1)

    return log_estimate


def test_different_functions_of_the_same_name_are_not_taken_for_each_other():
    """A cache of compiled code that goes by names would give both the same posterior."""
    models = [model_of(make_quadratic(centre)) for centre in (-50.0, 50.0)]
    means = [
        float(sample(model, draws=200, tune=200).posterior["theta"].mean()) for model in models
    ]
    np.testing.assert_allclose(means, [-50.0, 50.0], atol=1.0)
    x = pt.dscalar("x")
    boxes = [apm.black_box(lambda x, k=k: x + k)(x) for k in (1.0, 2.0)]
    assert [float(v) for v in pytensor.function([x], boxes)(0.0)] == [1.0, 2.0]


class Simulator:
    """An object with a method and a call, that has no hash."""

    __hash__ = None

    def __init__(self, centre):
        self.centre = centre

    def log_estimate(self, theta, rng):
        return -0.5 * (theta - self.centre) ** 2 + rng.normal(-0.005, 0.1)

    __call__ = log_estimate


def test_methods_of_objects():
    model = model_of(Simulator(9.0).log_estimate)
    idata = sample(model, draws=200, tune=200, compile_kwargs=PYTHON)
    assert abs(float(idata.posterior["theta"].mean()) - 9.0) < 1.0


def test_callable_objects_without_a_hash(caplog):
    idata = sample(model_of(Simulator(9.0)), draws=200, tune=200)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert abs(float(idata.posterior["theta"].mean()) - 9.0) < 1.0


# Gradients


def bilinear(theta, u):
    """Estimate the density of N(1, I); the mean of exp(0.3 theta u) is exp(0.045 theta^2)."""
    return np.sum(-0.5 * (theta - 1.0) ** 2 + 0.3 * theta * u - 0.045 * theta**2)


def bilinear_gradient(theta, u, output_gradient):
    return output_gradient * (1.0 - 1.09 * theta + 0.3 * u), output_gradient * 0.3 * theta


def test_a_gradient_given_by_the_user_is_right_and_lets_nuts_sample():
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=2)
        u = apm.StandardNormal("u", shape=2)
        estimate = apm.black_box(bilinear, gradient=bilinear_gradient)(theta, u)
        apm.Potential("log_lik", 2.0 * estimate - estimate)
        steps = [apm.APMEllipticalU(), pm.NUTS()]
    logp, dlogp = model.compile_logp(), model.compile_dlogp()
    point = np.array([0.3, -0.7])
    shifts = 1e-5 * np.eye(2)
    with apm.clamped(model):
        differences = [logp({"theta": point + h}) - logp({"theta": point - h}) for h in shifts]
        gradient = dlogp({"theta": point})
    np.testing.assert_allclose(gradient, np.array(differences) / 2e-5, rtol=1e-6)
    draws = sample(model, steps, draws=500, tune=300).posterior["theta"].values
    assert abs(draws.mean() - 1.0) < 0.3 and abs(draws.std() - 1.0) < 0.3


def test_a_gradient_with_a_stream_reads_the_numbers_that_the_function_read():
    def fn(theta, rng):
        return bilinear(theta, rng.standard_normal())

    def gradient(theta, rng, output_gradient):
        return bilinear_gradient(theta, rng.standard_normal(), output_gradient)[0]

    with model_of(fn, gradient=gradient) as model:
        steps = [apm.APMEllipticalU(), pm.NUTS()]
    logp, dlogp = model.compile_logp(), model.compile_dlogp()
    with apm.clamped(model):
        difference = logp({"theta": 0.5 + 1e-5}) - logp({"theta": 0.5 - 1e-5})
        found = dlogp({"theta": np.array(0.5)})
    np.testing.assert_allclose(found, difference / 2e-5, rtol=1e-6)
    draws = sample(model, steps, draws=300, tune=300).posterior["theta"].values
    assert abs(draws.mean() - 1.0) < 0.4


def test_without_a_gradient_nuts_says_so_and_sample_chooses_a_step_that_needs_none():
    model = model_of(quadratic)
    with (
        model,
        pytest.raises(NotImplementedError, match=r"quadratic.*no gradient.*gradient=.*APMSl"),
    ):
        pm.NUTS()
    assert "width" in sample(model, compile_kwargs=PYTHON).sample_stats


# Functions of a script, in other processes

SCRIPT = """
    import sys
    import numpy as np
    import pymc as pm
    import pymc_apm as apm

    SHIFT = 1.5

    def helper(theta):
        return -0.5 * (theta - SHIFT) ** 2

    @apm.black_box
    def log_estimate(theta, rng):
        n = rng.integers(1, 5)
        return helper(theta) + np.sum(rng.normal(-0.005, 0.1, size=n))

    if __name__ == "__main__":
        with pm.Model():
            theta = pm.Flat("theta")
            apm.Potential("p", log_estimate(theta, apm.Stream("u", kind="normal")))
            draws = [
                pm.sample(
                    20, tune=20, chains=2, random_seed=1, progressbar=False,
                    compute_convergence_checks=False, **options
                ).posterior["theta"].values
                for options in [{"cores": 1}] + [{"cores": 2, "mp_ctx": m} for m in sys.argv[1:]]
            ]
        assert all(np.array_equal(draws[0], other) for other in draws)
        print("the same draws from", len(draws))
"""


@pytest.mark.parametrize(
    "methods",
    others_are_slow([], [("fork", "spawn"), ("forkserver",)]),
    ids=" and ".join,
)
def test_functions_of_a_script_give_the_same_draws_under_every_start_method(tmp_path, methods):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, script, *methods],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(apm.__file__).parents[1]),
            # What is tested is how functions are sent about, not the compiler.
            "PYTENSOR_FLAGS": f"{os.environ.get('PYTENSOR_FLAGS', '')},cxx=,mode=FAST_COMPILE",
        },
    )
    assert f"the same draws from {1 + len(methods)}" in done.stdout, done.stderr[-2000:]
