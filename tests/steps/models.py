"""Small models and helpers for the tests of steps, in a module that a child process can import."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import ndtr

import pymc_apm as apm


@functools.cache
def toy_gaussian(dim: int = 5, kind: str = "normal") -> pm.Model:
    """Build the paper's toy: theta ~ N(0, I) in the posterior, and u given theta ~ N(-theta, I).

    With ``kind="uniform"`` the same estimator takes its normal numbers from uniform ones. Tests
    share the model, so that the steps of a module share its target, too.
    """
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=dim)
        u = declare_normal("u", dim, kind)
        apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    return model


def declare_normal(name: str, shape: Any, kind: str) -> Any:
    """Declare standard normal numbers, or make them from uniform ones by their quantiles."""
    if kind == "normal":
        return apm.StandardNormal(name, shape=shape)
    return pm.math.probit(apm.StandardUniform(name, shape=shape))


def exact_toy_draw(
    rng: np.random.Generator, dim: int = 5, kind: str = "normal"
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draw (theta, u) from the joint target of the toy, as a point and a value for ``step.u``."""
    theta = rng.standard_normal(dim)
    u = rng.standard_normal(dim) - theta
    return {"theta": theta}, {"u": u if kind == "normal" else ndtr(u)}


def mixed_model() -> pm.Model:
    """Build a model with parameters of many shapes and types, and u of both kinds."""
    with pm.Model() as model:
        scalar = pm.Normal("scalar")
        count = pm.Poisson("count", 3.0)
        matrix = pm.Normal("matrix", shape=(2, 3))
        scale = pm.HalfNormal("scale")
        u = apm.StandardNormal("u", shape=(4, 2))
        v = apm.StandardUniform("v", shape=3)
        w = apm.StandardNormal("w", shape=())
        shift = scalar + matrix.sum(axis=1) + 0.3 * count
        first = pt.log(pt.mean(pt.exp(-0.5 * (shift + scale * u) ** 2), axis=0))
        apm.Potential("first", first)
        apm.Potential("second", pt.log(0.5 + pt.mean(v) * pt.sigmoid(scalar + w)))
        pm.Normal("observed", scalar, 2.0, observed=np.array([0.3, -0.2]))
    return model


STEPS: dict[str, Callable[..., Any]] = {
    "PM MH": lambda **k: apm.PseudoMarginalMH(**k),
    "PM MH coordinate": lambda **k: apm.PseudoMarginalMH(directions="coordinate", **k),
    "correlated PM": lambda **k: apm.PseudoMarginalMH(correlation=0.9, **k),
    "correlated PM auto": lambda **k: apm.PseudoMarginalMH(correlation="auto", **k),
    "block PM": lambda **k: apm.PseudoMarginalMH(blocks=2, **k),
    "SS+SS": lambda **k: apm.APMSlice(**k),
    "SS+SS stepping out": lambda **k: apm.APMSlice(step_out=True, **k),
    "SS+SS coordinate": lambda **k: apm.APMSlice(directions="coordinate", **k),
    "SS+SS adaptive": lambda **k: apm.APMSlice(directions="adaptive", **k),
    "MI+SS": lambda **k: apm.APMSlice(u_update="independence", **k),
    "SS+MH": lambda **k: apm.APMMetropolis(**k),
    "SS+MH coordinate": lambda **k: apm.APMMetropolis(directions="coordinate", **k),
    "MI+MH": lambda **k: apm.APMMetropolis(u_update="independence", **k),
    "elliptical u": lambda **k: apm.APMEllipticalU(**k),
    "reflective u": lambda **k: apm.APMReflectiveU(**k),
    "independence u": lambda **k: apm.APMIndependenceU(**k),
}
"""Every step of the package, to be made in the context of a model."""

COMPLETE = [name for name in STEPS if not name.endswith(" u")]
"""The steps that update both theta and u, so that they need no other."""


def start_chain(step: Any, seed: Any) -> None:
    """Announce a chain to a step, as this version of PyMC does."""
    rng = np.random.default_rng(seed)
    if hasattr(pm.step_methods.compound.BlockedStep, "setup_chain"):
        step.setup_chain(rng, 0, 0)
    else:
        step.set_rng(rng)


def run(
    step: Any, point: dict[str, np.ndarray], n_steps: int
) -> tuple[list[dict[str, np.ndarray]], list[dict[str, Any]]]:
    """Call a step again and again; return the points and the statistics."""
    points, stats = [], []
    for _ in range(n_steps):
        point, (stat,) = step.step(point)
        points.append(point)
        stats.append(stat)
    return points, stats


def stacked(points: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Put the points of a chain into one matrix, a row for each."""
    return np.array([np.concatenate([np.ravel(v) for v in point.values()]) for point in points])


def recompute_log_estimate(model: pm.Model) -> Callable[[dict[str, np.ndarray]], float]:
    """Return the sum of the model's potentials, as PyMC computes it with the current u."""
    logp = model.compile_logp(vars=model.potentials, jacobian=False)

    def log_estimate(point: dict[str, np.ndarray]) -> float:
        with apm.clamped(model):
            return float(logp(point))

    return log_estimate


def sample(model: pm.Model, step: Any = None, **kwargs: Any) -> Any:
    """Call ``pm.sample`` quietly, with few draws unless told otherwise."""
    options = {
        "draws": 50,
        "tune": 50,
        "chains": 2,
        "cores": 1,
        "random_seed": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with model:
        return pm.sample(step=step, **(options | kwargs))


def same_draws(first: Any, second: Any) -> bool:
    """Say whether two runs have exactly the same draws of every parameter."""
    names = list(first.posterior.data_vars)
    assert names == list(second.posterior.data_vars)
    return all(
        np.array_equal(first.posterior[name].values, second.posterior[name].values)
        for name in names
    )
