"""The vectorised functions, the mode that uses them, and what it leaves alone."""

import inspect
from collections.abc import Callable

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import compile
from pytensor.scalar.basic import Composite, same_out
from pytensor.tensor.elemwise import Elemwise

from pymc_apm.compiled import vectorised
from pymc_apm.compiled.vectorised import (
    IMPLEMENTATIONS,
    VectorisedComposite,
    with_vectorised_math,
)
from pymc_apm.estimators import log_mean_exp

FASTMATH = {"arcp", "contract", "afn", "reassoc", "nsz"}
NUMBER = 200_000
TINY, HUGE = np.finfo(float).smallest_subnormal, np.finfo(float).max

needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 60, reason="no reference of higher precision"
)


def apply(function: Callable, x: np.ndarray) -> np.ndarray:
    """Apply a function in a loop as PyTensor compiles it, that is with relaxed rules."""

    @numba.njit(fastmath=FASTMATH)
    def loop(x):
        result = np.empty_like(x)
        for i in range(x.size):
            result[i] = 0.0 + function(1.0 * x[i] + 0.0)
        return result

    return loop(x)


def long_sigmoid(x):
    small = np.exp(-abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def long_softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


def units_in_the_last_place(function: Callable, reference: Callable, x: np.ndarray) -> float:
    """Return the largest error of a function."""
    expected = reference(x.astype(np.longdouble))
    unit = np.spacing(abs(expected.astype(float))).astype(np.longdouble)
    return float(np.max(abs(apply(function, x) - expected) / unit))


def positive_floats(rng: np.random.Generator) -> np.ndarray:
    """Return positive floats of all magnitudes, subnormal ones too."""
    return rng.integers(1, np.float64(np.inf).view(np.int64), NUMBER).view(np.float64)


def arguments(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    around_zero = rng.normal(size=NUMBER)
    return {
        "exp": [
            rng.uniform(-745.1, 709.78, NUMBER),
            rng.uniform(-745.1, -708, NUMBER),
            around_zero,
            1e-3 * around_zero,
        ],
        "log": [
            positive_floats(rng),
            rng.uniform(0.5, 2, NUMBER),
            1 + 1e-3 * around_zero,
            2.2e-308 * rng.uniform(size=NUMBER),
        ],
        "log1p": [
            positive_floats(rng),
            rng.uniform(-1, 2, NUMBER),
            1e-3 * around_zero,
            10 ** rng.uniform(-20, 20, NUMBER),
        ],
        "sigmoid": [rng.uniform(-745, 745, NUMBER), 3 * around_zero, rng.uniform(-40, 1, NUMBER)],
        "softplus": [rng.uniform(-745, 745, NUMBER), 3 * around_zero, rng.uniform(-40, 1, NUMBER)],
    }[name]


REFERENCES = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sigmoid": long_sigmoid,
    "softplus": long_softplus,
}
LIMITS = {"exp": 1.0, "log": 1.0, "log1p": 1.0, "sigmoid": 2.0, "softplus": 2.0}


@needs_long_double
@pytest.mark.parametrize("name", REFERENCES)
def test_accuracy(name):
    for x in arguments(name):
        error = units_in_the_last_place(getattr(vectorised, name), REFERENCES[name], x)
        assert error < LIMITS[name]


@needs_long_double
def test_accuracy_check_notices_a_missing_term():
    source = inspect.getsource(vectorised.exp.py_func).replace("@_inlined\n", "")
    last_term = " + r2 * 2.0914680780540267e-09"
    assert last_term in source
    namespace = dict(vars(vectorised))
    exec(source.replace(last_term, ""), namespace)
    truncated = numba.njit(forceinline=True, fastmath=False)(namespace["exp"])
    x = arguments("exp")[2]
    assert units_in_the_last_place(truncated, np.exp, x) > 2
    assert units_in_the_last_place(vectorised.exp, np.exp, x) < 1


@pytest.mark.parametrize(
    ("name", "points", "expected"),
    [
        (
            "exp",
            [0.0, -0.0, np.inf, -np.inf, np.nan, 709.782712893385, HUGE, -HUGE, TINY, -746.0],
            [1.0, 1.0, np.inf, 0.0, np.nan, np.inf, np.inf, 0.0, 1.0, 0.0],
        ),
        ("exp", [-745.1332191019411, -744.0, -745.1332191019412], [TINY, 2 * TINY, 0.0]),
        (
            "log",
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, -TINY, TINY, HUGE],
            [-np.inf] * 2
            + [np.inf, np.nan, np.nan, 0.0, np.nan, np.nan]
            # The logs of 2**-1074 and of 2**1024, to the last bit.
            + [-744.4400719213812, 709.782712893384],
        ),
        (
            "log1p",
            [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -1.5, TINY, -TINY, HUGE],
            [0.0, -0.0, np.inf, np.nan, np.nan, -np.inf, np.nan, TINY, -TINY, 709.782712893384],
        ),
        (
            "sigmoid",
            [0.0, -0.0, np.inf, -np.inf, np.nan, 800.0, -800.0, -744.0, HUGE, -HUGE],
            [0.5, 0.5, 1.0, 0.0, np.nan, 1.0, 0.0, 2 * TINY, 1.0, 0.0],
        ),
        (
            "softplus",
            [np.inf, -np.inf, np.nan, 800.0, -800.0, -744.0, HUGE, -HUGE],
            [np.inf, 0.0, np.nan, 800.0, 0.0, 2 * TINY, HUGE, 0.0],
        ),
    ],
)
def test_special_values(name, points, expected):
    function = getattr(vectorised, name)
    # With repetitions, so that the vectorised part of the loop has them too.
    found = apply(function, np.repeat(points, 64)).reshape(-1, 64)
    np.testing.assert_array_equal(found, np.repeat(expected, 64).reshape(-1, 64))
    if name == "log1p":
        np.testing.assert_array_equal(np.signbit(found[:2, 0]), [False, True])


def scalar_operations(function) -> set[type]:
    """Return the classes of the scalar operations in a compiled graph."""
    found = set()

    def visit(nodes):
        for node in nodes:
            if isinstance(node.op, Elemwise):
                scalar_op = node.op.scalar_op
                is_composite = isinstance(scalar_op, Composite)
                inner = scalar_op.fgraph.apply_nodes if is_composite else []
                found.update({type(scalar_op)}, (type(node.op) for node in inner))
            elif hasattr(node.op, "fgraph"):
                visit(node.op.fgraph.apply_nodes)

    visit(function.maker.fgraph.apply_nodes)
    return found


def all_functions(x):
    return (
        pt.exp(x)
        + pt.log(x * x)
        - pt.log1p(pt.maximum(x, -1.0))
        + pt.sigmoid(x - 1.0) * pt.softplus(2.0 * x)
        + pt.switch(pt.isinf(x), 3, x)
    )


def both_modes(inputs, outputs, plain="FAST_COMPILE"):
    """Compile a graph without and with the functions; to compare with Python takes less time."""
    return [compile(inputs, outputs, mode=mode) for mode in (plain, with_vectorised_math())]


def test_all_functions_are_replaced_and_fused():
    x = pt.matrix("x")
    plain, fast = both_modes([x], all_functions(x), "NUMBA")
    assert scalar_operations(plain).isdisjoint(IMPLEMENTATIONS)
    assert scalar_operations(fast) >= {*IMPLEMENTATIONS, VectorisedComposite}
    assert len([n for n in fast.maker.fgraph.apply_nodes if isinstance(n.op, Elemwise)]) == 1
    originals = {operation.__base__ for operation in IMPLEMENTATIONS}
    assert scalar_operations(fast).isdisjoint(originals)

    point = np.random.default_rng(2).normal(size=(7, 50)) * 5
    point[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0]
    np.testing.assert_allclose(fast(point), plain(point), rtol=1e-14)


@pytest.mark.parametrize(
    "x",
    [pt.scalar("x"), pt.vector("x", shape=(1,)), pt.vector("x", dtype="float32")],
    ids=["scalar", "one element", "float32"],
)
def test_others_are_left_alone(x):
    _, fast = both_modes([x], pt.exp(x))
    assert scalar_operations(fast).isdisjoint(IMPLEMENTATIONS)


@pytest.mark.parametrize("function", [pt.exp, pt.log, pt.log1p, pt.sigmoid, pt.softplus])
def test_single_functions(function):
    x = pt.vector("x")
    plain, fast = both_modes([x], function(x))
    assert not scalar_operations(fast).isdisjoint(IMPLEMENTATIONS)
    point = np.linspace(0.1, 20, 77)
    np.testing.assert_allclose(fast(point), plain(point), rtol=1e-15)
    # Not contiguous.
    np.testing.assert_allclose(fast(point[::-2]), plain(point[::-2]), rtol=1e-15)


def test_operations_work_in_python():
    x = pt.vector("x")
    for operation in IMPLEMENTATIONS:
        y = Elemwise(operation(same_out))(x)
        expected = Elemwise(operation.__base__(same_out))(x)
        point = np.linspace(0.1, 3, 5)
        np.testing.assert_allclose(
            y.eval({x: point}, mode="FAST_COMPILE"), expected.eval({x: point}, mode="FAST_COMPILE")
        )


def test_result_that_is_used_and_reduced():
    """PyTensor 3 rebuilds the fused expression here, after all rewrites."""
    x = pt.matrix("x")
    y = all_functions(x)
    plain, fast = both_modes([x], [y, y.sum(axis=0), y.max(axis=0), pt.exp(x).sum()])
    point = np.random.default_rng(3).uniform(0.1, 5, size=(6, 40))
    for found, expected in zip(fast(point), plain(point), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_loop_that_cannot_be_vectorised_uses_the_library():
    x = pt.vector("x")
    plain, fast = both_modes([x], pt.gammaln(pt.exp(x)) - pt.log(x * x), "NUMBA")
    assert not scalar_operations(fast).isdisjoint(IMPLEMENTATIONS)
    point = np.random.default_rng(4).normal(size=200)
    np.testing.assert_array_equal(fast(point), plain(point))


def test_estimator_with_extreme_weights():
    rng = np.random.default_rng(5)
    counts = rng.poisson(3.0, size=20)
    theta, u = pt.vector("theta", shape=(2,)), pt.matrix("u", shape=(16, 20))
    log_weights = pm.logp(pm.Poisson.dist(pt.exp(theta[0] + theta[1] * u)), counts)
    plain, fast = both_modes([theta, u], log_mean_exp(log_weights, axis=0))
    points = rng.normal(size=(16, 20))
    for mean in (1.0, 500.0, -1000.0, 1000.0, np.inf, -np.inf, np.nan):
        expected = plain(np.array([mean, 0.5]), points)
        np.testing.assert_allclose(fast(np.array([mean, 0.5]), points), expected, rtol=1e-13)
    assert np.isfinite(fast(np.array([1.0, 0.5]), points)).all()


def test_views():
    """PyTensor 2 has views with other axes replaced, so that their type remains contiguous."""
    x, y, z = pt.matrix("x"), pt.vector("y"), pt.tensor("z", shape=(1, None, 1))
    outputs = [
        pt.exp(x + y) + pt.log1p(y[:, None]),
        pt.exp(x.T * z.squeeze()),
        z * y[None, :, None],
    ]
    plain, fast = both_modes([x, y, z], outputs)
    rng = np.random.default_rng(6)
    points = [rng.uniform(size=shape) for shape in [(28, 28), (28,), (1, 28, 1)]]
    strided = [points[0][::-2, ::2], points[1][::2], points[2][:, ::-2]]
    for point in (points, strided):
        for found, expected in zip(fast(*point), plain(*point), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_the_given_mode_is_not_changed():
    x = pt.vector("x")
    with_vectorised_math("NUMBA")
    assert scalar_operations(compile([x], pt.exp(x), mode="NUMBA")).isdisjoint(IMPLEMENTATIONS)
