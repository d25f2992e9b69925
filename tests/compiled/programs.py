"""Near-twins: models and steps that differ in one thing, in a module that a child can import."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.scan import scan

import pymc_apm as apm

SMALL_DATA = np.array([0.5, -1.0, 2.0])
LARGE_DATA = np.linspace(-1.0, 1.0, 100)


def _model(
    *,
    kinds: str = "n",
    u_shape: Any = 3,
    theta_shape: Any = 2,
    prior: Callable[..., Any] = lambda shape: pm.Normal("theta", 0.0, 1.0, shape=shape),
    estimate: Callable[..., Any] = lambda theta, u: -0.5 * ((theta.sum() + u) ** 2).sum(),
    more: Callable[..., Any] | None = None,
    check_bounds: bool = True,
    approximation: Callable[..., Any] | None = None,
    name: str = "log_lik",
) -> pm.Model:
    declare = {"n": apm.StandardNormal, "u": apm.StandardUniform}
    with pm.Model(check_bounds=check_bounds) as model:
        theta = prior(theta_shape)
        us = [declare[k](f"u{i}" if i else "u", shape=u_shape) for i, k in enumerate(kinds)]
        approximate = {} if approximation is None else {"approximation": approximation(theta)}
        apm.Potential(name, sum(estimate(theta, u) for u in us), **approximate)
        if more is not None:
            more(theta, us)
    return model


def _quadratic(factor: Any, dtype: str = "float64") -> Callable[..., Any]:
    constant = np.asarray(factor, dtype=dtype)
    return lambda theta, u: -0.5 * (constant * (theta.sum() + u.sum()) ** 2).sum()


def _with_data(value: Any) -> Callable[..., Any]:
    return lambda theta, u: -0.5 * ((theta.sum() + u.sum() - pm.Data("x", value)) ** 2).sum()


def _recursion(taps: list[int], factor: float = 0.5) -> Callable[..., Any]:
    def estimate(theta: Any, u: Any) -> Any:
        states = scan(
            lambda x, p, q: factor * p + x - q,
            sequences=[u * theta[0]],
            outputs_info=[{"initial": pt.as_tensor(SMALL_DATA), "taps": taps}],
            return_updates=False,
        )
        return states.sum()

    return estimate


def _observed(sigma: float, value: float = 0.3) -> Callable[..., Any]:
    return lambda theta, us: pm.Normal("y", theta.sum(), sigma, observed=value)


def _exact(function: Callable[..., Any]) -> Callable[..., Any]:
    def more(theta: Any, us: Any) -> None:
        pm.CustomDist("y", theta[0], logp=lambda value, first: function(first), observed=0.0)

    return more


def _constraint(bound: float) -> Callable[..., Any]:
    return lambda theta, us: pm.Potential("limit", pt.switch(theta.sum() > bound, -np.inf, 0.0))


def _two_priors(first: str, second: str, scale: float = 2.0) -> Callable[..., Any]:
    def prior(shape: Any) -> Any:
        made = {
            name: pm.Normal(name, 0.0, sigma, shape=shape)
            for name, sigma in ((first, 1.0), (second, scale))
        }
        return made["a"] - 3.0 * made["b"]

    return prior


def _discrete(rate: float) -> Callable[..., Any]:
    return lambda shape: pm.Poisson("theta", rate, shape=shape)


def _plus(*functions: Callable[..., Any]) -> Callable[..., Any]:
    return lambda theta, u: sum(function(theta, u) for function in functions)


def _exp(theta: Any) -> Any:
    return -pt.exp(theta)


# A model is named after what it is; "... / again" and "... / other" name models whose density, or
# whose program for other data, is the same. Everything else has to be told apart.
MODELS: dict[str, Callable[[], pm.Model]] = {
    "base": lambda: _model(),
    "base / again": lambda: _model(),
    # randomness
    "uniform": lambda: _model(kinds="u"),
    "two normal": lambda: _model(kinds="nn"),
    "two uniform": lambda: _model(kinds="uu"),
    "normal uniform": lambda: _model(kinds="nu"),
    "uniform normal": lambda: _model(kinds="un"),
    "u of 4": lambda: _model(u_shape=4),
    "u of (3, 1)": lambda: _model(u_shape=(3, 1)),
    "u of (1, 3)": lambda: _model(u_shape=(1, 3)),
    "u of ()": lambda: _model(u_shape=()),
    # parameters
    "theta of 3": lambda: _model(theta_shape=3),
    "theta of (2, 1)": lambda: _model(theta_shape=(2, 1)),
    "theta of ()": lambda: _model(theta_shape=()),
    "prior of scale 2": lambda: _model(prior=lambda s: pm.Normal("theta", 0.0, 2.0, shape=s)),
    "prior of mean 1": lambda: _model(prior=lambda s: pm.Normal("theta", 1.0, 1.0, shape=s)),
    "Laplace prior": lambda: _model(prior=lambda s: pm.Laplace("theta", 0.0, 1.0, shape=s)),
    "flat prior": lambda: _model(prior=lambda s: pm.Flat("theta", shape=s)),
    "Student prior": lambda: _model(prior=lambda s: pm.StudentT("theta", 3.0, shape=s)),
    "Student prior of 4": lambda: _model(prior=lambda s: pm.StudentT("theta", 4.0, shape=s)),
    "half-normal prior": lambda: _model(prior=lambda s: pm.HalfNormal("theta", 1.0, shape=s)),
    "half-normal, no transform": lambda: _model(
        prior=lambda s: pm.HalfNormal("theta", 1.0, shape=s, default_transform=None)
    ),
    "uniform prior": lambda: _model(prior=lambda s: pm.Uniform("theta", 0.0, 1.0, shape=s)),
    "uniform prior to 2": lambda: _model(prior=lambda s: pm.Uniform("theta", 0.0, 2.0, shape=s)),
    "discrete": lambda: _model(prior=_discrete(3.0)),
    "discrete of rate 4": lambda: _model(prior=_discrete(4.0)),
    "no check of bounds": lambda: _model(check_bounds=False),
    "a then b": lambda: _model(prior=_two_priors("a", "b")),
    "b then a": lambda: _model(prior=_two_priors("b", "a")),
    "b then a, of scale 3": lambda: _model(prior=_two_priors("b", "a", 3.0)),
    # constants
    "small constant": lambda: _model(estimate=_quadratic(SMALL_DATA)),
    "small constant / again": lambda: _model(estimate=_quadratic(SMALL_DATA.copy())),
    "other small constant": lambda: _model(estimate=_quadratic(SMALL_DATA + 1e-12)),
    "permuted small constant": lambda: _model(estimate=_quadratic(SMALL_DATA[::-1])),
    "small constant (3, 1)": lambda: _model(estimate=_quadratic(SMALL_DATA[:, None])),
    "negative zero": lambda: _model(estimate=_quadratic([1.0, -0.0])),
    "zero": lambda: _model(estimate=_quadratic([1.0, 0.0])),
    "float32": lambda: _model(estimate=_quadratic(SMALL_DATA + 0.1, "float32")),
    "float64": lambda: _model(estimate=_quadratic(SMALL_DATA + 0.1, "float64")),
    "int64": lambda: _model(estimate=_quadratic([1, 2, 3], "int64")),
    "int32": lambda: _model(estimate=_quadratic([1, 2, 3], "int32")),
    "int8": lambda: _model(estimate=_quadratic([1, 2, 3], "int8")),
    "64 numbers": lambda: _model(estimate=_quadratic(LARGE_DATA[:64])),
    "other 64 numbers": lambda: _model(estimate=_quadratic(LARGE_DATA[1:65])),
    "large constant": lambda: _model(estimate=_quadratic(LARGE_DATA)),
    "large constant / other": lambda: _model(estimate=_quadratic(LARGE_DATA**2)),
    "large constant of 101": lambda: _model(estimate=_quadratic(np.linspace(-1, 1, 101))),
    "large float32": lambda: _model(estimate=_quadratic(LARGE_DATA, "float32")),
    "large int64": lambda: _model(estimate=_quadratic(np.arange(100), "int64")),
    "large int64 / other": lambda: _model(estimate=_quadratic(np.arange(100) % 7, "int64")),
    "large bool": lambda: _model(estimate=_quadratic(np.arange(100) % 2, "bool")),
    "two large constants": lambda: _model(
        estimate=_plus(_quadratic(LARGE_DATA), _quadratic(2.0 * LARGE_DATA))
    ),
    "two large constants / other": lambda: _model(
        estimate=_plus(_quadratic(2.0 * LARGE_DATA), _quadratic(LARGE_DATA))
    ),
    # data
    "data": lambda: _model(estimate=_with_data(SMALL_DATA)),
    "data / other": lambda: _model(estimate=_with_data(SMALL_DATA + 1.0)),
    "data / other, of another length": lambda: _model(estimate=_with_data(np.ones(7))),
    "data of two dimensions": lambda: _model(estimate=_with_data(SMALL_DATA[:, None])),
    "integer data": lambda: _model(estimate=_with_data(np.array([1, 2, 3]))),
    "data of one number": lambda: _model(estimate=_with_data(0.5)),
    # estimators
    "cubed": lambda: _model(estimate=lambda t, u: -0.5 * ((t.sum() + u) ** 3).sum()),
    "mean": lambda: _model(estimate=lambda t, u: -0.5 * ((t.sum() + u) ** 2).mean()),
    "minus u": lambda: _model(estimate=lambda t, u: -0.5 * ((t.sum() - u) ** 2).sum()),
    "first theta": lambda: _model(estimate=lambda t, u: -0.5 * ((t[0] + u) ** 2).sum()),
    "last theta": lambda: _model(estimate=lambda t, u: -0.5 * ((t[1] + u) ** 2).sum()),
    "first u": lambda: _model(estimate=lambda t, u: -0.5 * (t.sum() + u[0]) ** 2),
    "last u": lambda: _model(estimate=lambda t, u: -0.5 * (t.sum() + u[2]) ** 2),
    "u from 1": lambda: _model(estimate=lambda t, u: -0.5 * ((t.sum() + u[1:]) ** 2).sum()),
    "u to 2": lambda: _model(estimate=lambda t, u: -0.5 * ((t.sum() + u[:2]) ** 2).sum()),
    "log of a mean": lambda: _model(estimate=lambda t, u: pt.log(pt.exp(t[0] * u).mean())),
    "log of a sum": lambda: _model(estimate=lambda t, u: pt.log(pt.exp(t[0] * u).sum())),
    "floor": lambda: _model(estimate=lambda t, u: pt.floor(t[0] * u).sum()),
    "cast": lambda: _model(estimate=lambda t, u: pt.cast(t[0] * u, "int64").sum() * 1.0),
    "cast to float32": lambda: _model(
        estimate=lambda t, u: pt.cast(pt.cast(t[0] * u, "float32").sum(), "float64")
    ),
    "recursion": lambda: _model(estimate=_recursion([-3, -1])),
    "recursion, other taps": lambda: _model(estimate=_recursion([-3, -2])),
    "recursion, other factor": lambda: _model(estimate=_recursion([-3, -1], 0.25)),
    # what else is in the model
    "observed": lambda: _model(more=_observed(1.0)),
    "observed of scale 2": lambda: _model(more=_observed(2.0)),
    "other observation": lambda: _model(more=_observed(1.0, 0.4)),
    "constraint": lambda: _model(more=_constraint(1.0)),
    "other constraint": lambda: _model(more=_constraint(2.0)),
    "approximation": lambda: _model(approximation=lambda theta: _exp(theta[0])),
    "exact": lambda: _model(more=_exact(_exp)),
    "sparse": lambda: _model(estimate=_quadratic(np.diag([1.0, 2.0]))),
    "second potential": lambda: _model(
        more=lambda t, us: apm.Potential("second", (t[0] * us[0]).sum())
    ),
    "second potential first": lambda: _model(
        estimate=lambda t, u: (t[0] * u).sum(),
        more=lambda t, us: apm.Potential("second", -0.5 * ((t.sum() + us[0]) ** 2).sum()),
    ),
    "another parameter": lambda: _model(more=lambda t, us: pm.Normal("other")),
    "another name": lambda: _model(name="another"),
}

SAME_DENSITY = {
    "another name": "base",
    "u of (3, 1)": "base",
    "u of (1, 3)": "base",
    "theta of (2, 1)": "base",
    "int32": "int64",
    "int8": "int64",
    "second potential first": "second potential",
    # Casts of constants are computed when the density is cut into stages: all are float64 data.
    "large float32": "large constant",
    "large int64": "large constant",
    "large bool": "large constant",
}
"""Models that may have the same program: the same density, or the same but for data."""

Step = Callable[..., Any]

STEPS: dict[str, Step] = {
    "SS+SS": lambda **k: apm.APMSlice(directions="random", **k),
    "SS+SS / again": lambda **k: apm.APMSlice(thin=2, step_out=3, width=1.0, **k),
    "SS+SS / other directions": lambda **k: apm.APMSlice(directions="coordinate", **k),
    "SS+SS / stepping out": lambda **k: apm.APMSlice(step_out=True, **k),
    "SS+ellipse": lambda **k: apm.APMSlice(directions="ellipse", **k),
    "MI+SS": lambda **k: apm.APMSlice(u_update="independence", **k),
    "-+SS": lambda **k: apm.APMSlice(u_update=None, **k),
    "SS+MH": lambda **k: apm.APMMetropolis(**k),
    "SS+MH / scaling": lambda **k: apm.APMMetropolis(scaling=0.3, **k),
    "MI+MH": lambda **k: apm.APMMetropolis(u_update="independence", **k),
    "PM": lambda **k: apm.PseudoMarginalMH(**k),
    "PM, scaling": lambda **k: apm.PseudoMarginalMH(scaling=0.3, **k),
    "PM, scaling / other": lambda **k: apm.PseudoMarginalMH(scaling=0.4, **k),
    "correlated PM": lambda **k: apm.PseudoMarginalMH(correlation=0.5, **k),
    "correlated PM / other": lambda **k: apm.PseudoMarginalMH(correlation=0.9, **k),
    "correlated PM, scaling": lambda **k: apm.PseudoMarginalMH(correlation=0.5, scaling=0.3, **k),
    "correlated PM, auto": lambda **k: apm.PseudoMarginalMH(correlation="auto", **k),
    "correlated PM, auto / scaling": lambda **k: apm.PseudoMarginalMH(
        correlation="auto", scaling=0.3, **k
    ),
    "block PM": lambda **k: apm.PseudoMarginalMH(blocks=2, **k),
    "block PM of 3": lambda **k: apm.PseudoMarginalMH(blocks=3, **k),
    "block PM, scaling": lambda **k: apm.PseudoMarginalMH(blocks=2, scaling=0.3, **k),
    "u alone": lambda **k: apm.APMIndependenceU(**k),
    "elliptical u": lambda **k: apm.APMEllipticalU(**k),
}
"""Steps; "/" as above: what differs are options, which are arguments of the program."""

OF_ALL_MODELS = ("SS+MH", "PM, scaling")
"""The steps that are made for every model."""

OF_SOME_MODELS = ("base", "two normal", "normal uniform", "observed")
"""The models for which all steps are made."""


def digest_of(step: Any) -> str | None:
    """Return the digest of the program of a step, without compiling anything."""
    chain = step.chain
    digest: str | None = chain.compiling._unready(chain).digest
    return digest


def what(name: str) -> str:
    """Return what a program is, without "/" and what follows it."""
    return name.partition(" /")[0]


def all_digests(every: int = 1) -> Iterator[tuple[str, str, str | None]]:
    """Make all programs, or some; yield the names of model and step with the digest."""
    for number, (name, build) in enumerate(MODELS.items()):
        if number % every:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = build()
        for step in STEPS if name in OF_SOME_MODELS and every == 1 else OF_ALL_MODELS:
            with model:
                yield name, step, digest_of(STEPS[step]())


if __name__ == "__main__":
    json.dump(list(all_digests(int(sys.argv[1]))), sys.stdout)
