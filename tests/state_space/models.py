"""Small state-space models at known parameters, with their exact likelihood."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import scipy.stats as st

import pymc_apm as apm
from tests.state_space.truth import kalman, on_grid

Y = np.array([0.3, -0.5, 1.2, 0.7, -0.1])
GRID = np.linspace(-12.0, 12.0, 1501)


class Case(NamedTuple):
    """A model with parameters `theta` = (a, log s) and the log-likelihood of each series."""

    declare: Callable[[Any, Any], dict[str, Any]]
    exact: Callable[[float, float], Any]


def linear(y: np.ndarray, a: float, s: float, **changes: Any) -> float:
    given = {
        "mean": 0.0,
        "variance": 1.0,
        "slope": a,
        "shift": 0.0,
        "noise": s**2,
        "error": 0.64,
    } | changes
    return kalman(y, **given).log_likelihood


def plain(a: Any, s: Any, y: np.ndarray = Y) -> dict[str, Any]:
    return {
        "data": y,
        "initial": pm.Normal.dist(0, 1),
        "transition": lambda x: pm.Normal.dist(a * x, s),
        "observation": lambda x: pm.Normal.dist(x, 0.8),
    }


MISSING = np.array([np.nan, -0.5, np.nan, 0.7, -0.1])
TIMES = np.array([0.0, 0.5, 2.0, 2.5, 4.0])
RAIN = np.array([1.0, -1.0, 0.5, 2.0, 0.0])
SERIES = np.array(["b", "a", "b", "a", "b"])


def with_times(a: Any, s: Any) -> dict[str, Any]:
    def transition(x: Any, dt: Any, rain: Any) -> Any:
        return a * x + 0.3 * rain + pm.Normal.dist(0, s * pt.sqrt(dt))

    return plain(a, s) | {
        "times": TIMES,
        "covariates": {"rain": RAIN},
        "transition": transition,
    }


def panel(a: Any, s: Any) -> dict[str, Any]:
    return plain(a, s) | {
        "series": SERIES,
        "transition": lambda x, series: pm.Normal.dist(a * x + 0.5 * series, s),
    }


def exact_panel(a: float, s: float) -> list[float]:
    return [
        linear(Y[SERIES == label], a, s, shift=0.5 * code) for code, label in enumerate(("a", "b"))
    ]


def fixed(a: Any, s: Any) -> dict[str, Any]:
    return plain(a, s) | {"initial": 0.4}


def positive(a: Any, s: Any) -> dict[str, Any]:
    return {
        "data": np.array([1, 0, 3, 2, 2]),
        "initial": {"rate": pm.Gamma.dist(3.0, 2.0)},
        "transition": lambda rate: pm.LogNormal.dist(a * pt.log(rate), s),
        "observation": lambda rate: pm.Poisson.dist(rate),
    }


def exact_positive(a: float, s: float) -> float:
    y = np.array([1, 0, 3, 2, 2])
    return on_grid(
        GRID,
        lambda z: st.gamma.logpdf(np.exp(z), 3.0, scale=0.5) + z,
        lambda z, w, t: st.norm.logpdf(w, a * z, s),
        lambda z, t: st.poisson.logpmf(y[t], np.exp(z)),
        5,
    )


def heavy(a: Any, s: Any) -> dict[str, Any]:
    return plain(a, s) | {
        "transition": lambda x: pm.StudentT.dist(nu=3.0, mu=a * x, sigma=s),
        "observation": lambda x, y: -pt.softplus(-y * x) - 0.5 * x**2,
    }


def exact_heavy(a: float, s: float) -> float:
    grid = np.linspace(-12.0, 12.0, 1501)
    return on_grid(
        grid,
        st.norm.logpdf,
        lambda x, z, t: st.t.logpdf(z, 3.0, a * x, s),
        lambda x, t: -np.logaddexp(0.0, -Y[t] * x) - 0.5 * x**2,
        5,
    )


COV = np.array([[1.0, 0.4], [0.4, 0.5]])
PAIRS = np.column_stack([Y, Y[::-1]])


def two(a: Any, s: Any) -> dict[str, Any]:
    return {
        "data": np.where(np.arange(10).reshape(5, 2) == 3, np.nan, PAIRS),
        "initial": pm.MvNormal.dist(np.zeros(2), np.eye(2)),
        "transition": lambda x: pm.MvNormal.dist(a * x, s**2 * COV),
        "observation": lambda x: pm.Normal.dist(x, 0.8),
    }


def exact_two(a: float, s: float) -> float:
    seen = np.arange(10) != 3
    mean, cov = np.zeros(10), np.zeros((10, 10))
    block = np.eye(2)
    for t in range(5):
        if t:
            block = a**2 * block + s**2 * COV
        for later in range(t, 5):
            cross = a ** (later - t) * block
            cov[2 * later : 2 * later + 2, 2 * t : 2 * t + 2] = cross
            cov[2 * t : 2 * t + 2, 2 * later : 2 * later + 2] = cross.T
    cov += 0.64 * np.eye(10)
    kept = np.ix_(seen, seen)
    return float(st.multivariate_normal(mean[seen], cov[kept]).logpdf(PAIRS.ravel()[seen]))


def named(a: Any, s: Any) -> dict[str, Any]:
    def transition(x: Any, v: Any) -> dict[str, Any]:
        return {"x": pm.Normal.dist(a * x, s), "v": pm.Normal.dist(0.5 * v, 0.7)}

    return {
        "data": {"first": Y, "second": Y[::-1]},
        "initial": {"x": pm.Normal.dist(0, 1), "v": pm.Normal.dist(0, 1)},
        "transition": transition,
        "observation": lambda x, v: {
            "first": pm.Normal.dist(x, 0.8),
            "second": pm.Normal.dist(v, 0.8),
        },
    }


CASES = {
    "plain": Case(plain, lambda a, s: linear(Y, a, s)),
    "missing": Case(lambda a, s: plain(a, s, MISSING), lambda a, s: linear(MISSING, a, s)),
    "times": Case(
        with_times,
        lambda a, s: linear(Y, a, s, shift=0.3 * RAIN, noise=s**2 * np.diff(TIMES, prepend=0)),
    ),
    "panel": Case(panel, exact_panel),
    "fixed": Case(fixed, lambda a, s: linear(Y, a, s, mean=0.4, variance=1e-300)),
    "positive": Case(positive, exact_positive),
    "heavy": Case(heavy, exact_heavy),
    "two": Case(two, exact_two),
    "named": Case(named, lambda a, s: linear(Y, a, s) + linear(Y[::-1], 0.5, 0.7)),
}


def build(name: str, **options: Any) -> pm.Model:
    """Declare a model with the parameters a and s."""
    with pm.Model() as model:
        a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)
        given = CASES[name].declare(a, s)
        apm.estimators.state_space("y", given.pop("data"), **given, **options)
    return model
