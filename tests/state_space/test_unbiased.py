"""The mean of the estimate over u is the likelihood, with as few as two points."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace

import pymc_apm as apm
from pymc_apm._compat import compile_function
from pymc_apm.estimators.reference import FAST
from pymc_apm.estimators.states.pilot import default_width, find_guide
from pymc_apm.estimators.states.pool import make_pool
from pymc_apm.estimators.states.specification import Specification, parse
from tests.marks import others_are_slow
from tests.state_space.models import CASES, build

THETA = 0.7, 0.6
"""Where estimates are made: away from the reference."""

REFERENCE = {"a": 0.5, "s": 0.8}
N_COPIES = 3000
Z = 4.0
"""Some 30 checks with a false alarm rate of 6e-5 each."""


def specify(name: str, n_copies: int) -> tuple[Specification, list[pm.Distribution]]:
    """Return a model with some copies of its data, as series, and its parameters."""
    with pm.Model():
        a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)
        given = CASES[name].declare(a, s)
        data = given.pop("data")
        if n_copies > 1:
            copies = {
                key: np.tile(value, (n_copies, *[1] * (value.ndim - 1)))
                for key, value in (data.items() if isinstance(data, dict) else [("y", data)])
            }
            data = copies if isinstance(data, dict) else copies["y"]
            given["series"] = np.repeat(np.arange(n_copies), 5)
            if "times" in given:
                given["times"] = np.tile(given["times"], n_copies)
            given["covariates"] = {
                key: np.tile(value, n_copies) for key, value in given.get("covariates", {}).items()
            }
        return parse("y", data, **given), [a, s]


def ratios(name: str, n_points: int, tie: bool = False, n_calls: int = 4) -> NDArray[Any]:
    """Return many estimates, each divided by the likelihood."""
    single, _ = specify(name, 1)
    rng = np.random.default_rng(7)
    guide = find_guide(single, default_width(single.n_dims), 2, REFERENCE, rng).guide
    many, parameters = specify(name, N_COPIES)
    guide = guide._replace(
        mean=np.tile(guide.mean, (N_COPIES, 1)), chol=np.tile(guide.chol, (N_COPIES, 1, 1))
    )
    u = pt.tensor("u", dtype="float64", shape=(5 * N_COPIES, many.n_dims))
    estimates = make_pool(many, guide, u, n_points, FAST).estimates
    values = dict(zip(parameters, map(np.array, THETA), strict=True))
    (made,) = clone_replace([estimates], replace=values, rebuild_strict=False)
    function = compile_function([u], [made], **FAST)
    found = []
    for _ in range(n_calls):
        numbers = rng.random((N_COPIES, 1 if tie else 5, many.n_dims))
        numbers = np.broadcast_to(numbers, (N_COPIES, 5, many.n_dims))
        found.append(function(np.ascontiguousarray(numbers.reshape(u.type.shape)))[0])
    return np.exp(np.concatenate(found) - CASES[name].exact(*THETA))


def z_score(found: NDArray[Any]) -> float:
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert error < 0.05  # a bias of a fifth is seen
    return float((found.mean() - 1.0) / error)


SINGLE = [name for name in CASES if name != "panel"]


@pytest.mark.parametrize("n_points", others_are_slow([2], [2, 4]))
@pytest.mark.parametrize("name", others_are_slow(["missing", "times", "fixed"], SINGLE))
def test_unbiased(name: str, n_points: int) -> None:
    assert abs(z_score(ratios(name, n_points, n_calls=16 if name in ("two", "named") else 4))) < Z


def test_that_numbers_of_rows_are_independent_matters() -> None:
    assert ratios("plain", 2, tie=True).mean() > 2.0


def estimate(model: pm.Model) -> tuple[Callable[[NDArray[Any]], NDArray[Any]], tuple[int, ...]]:
    """Return the estimates of a model as a function of u."""
    u = model["y_u"]
    values = {model["a"]: np.array(THETA[0]), model["s"]: np.array(THETA[1])}
    symbol = u.type()
    (made,) = clone_replace([model["y"]], replace={**values, u: symbol}, rebuild_strict=False)
    function = compile_function([symbol], [made])
    return lambda given: np.atleast_1d(function(given)[0]), u.get_value().shape


def test_series_are_unbiased() -> None:
    model = build("panel", points=2, reference=REFERENCE)
    rng = np.random.default_rng(3)
    with apm.clamped(model):
        function, shape = estimate(model)
        found = np.array([function(rng.random(shape)) for _ in range(1500)])
    assert model["y"].type.shape == (2,)
    for column, exact in zip(found.T, CASES["panel"].exact(*THETA), strict=True):
        assert abs(z_score(np.exp(column - exact))) < Z


@pytest.mark.parametrize("name", others_are_slow(["plain", "positive"], CASES))
def test_many_points_are_exact(name: str) -> None:
    is_plane = name in ("two", "named")
    model = build(name, points=256 if is_plane else 128, reference=REFERENCE)
    with apm.clamped(model):
        function, shape = estimate(model)
        found = function(np.random.default_rng(1).random(shape))
    exact = np.atleast_1d(CASES[name].exact(*THETA))
    np.testing.assert_allclose(found, exact, atol=2e-2 if is_plane else 1e-4)
