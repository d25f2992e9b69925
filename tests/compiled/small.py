"""A model whose program is soon compiled, in a module that a child process can import."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_apm as apm
from pymc_apm.compiled import cache
from pymc_apm.compiled.program import Program
from pymc_apm.steps.compiling import Compiling
from tests.steps.models import run, start_chain


def small_model(declare: Any = apm.StandardNormal) -> pm.Model:
    """Build a model of one parameter and three random numbers."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = declare("u", shape=3)
        apm.Potential("log_lik", 0.4 * theta * u.sum())
    return model


def small_step(model: pm.Model, **kwargs: Any) -> Any:
    """Make a step whose program is small: it learns nothing."""
    with model:
        return apm.PseudoMarginalMH(**({"scaling": 2.0} | kwargs))


def smallest_step(model: pm.Model) -> Any:
    """Make a step that updates u alone, and compile it, which no user can ask for."""
    with model:
        step = apm.APMIndependenceU()
    step.chain.compiling = Compiling(True, "APMIndependenceU", None)
    return step


def draws_of(step: Any, n_draws: int = 60) -> np.ndarray:
    """Run a chain; return u and the log-estimate of each draw, after the parameters."""
    model = step.target.model
    start_chain(step, 1)
    point, rows = model.initial_point() | {"theta": np.array(0.7)}, []
    with apm.clamped(model):
        for _ in range(n_draws):
            (point,), (stats,) = run(step, point, 1)
            rows.append([point["theta"], *model["u"].get_value(), stats["log_estimate"]])
    return np.array(rows, dtype=float)


def _never(program: Program) -> None:
    raise AssertionError("something was compiled")


if __name__ == "__main__":
    folder, may_compile = sys.argv[1:]
    cache.folder = lambda: Path(folder)
    if may_compile == "0":
        Program._make = _never  # type: ignore[method-assign,assignment]
    step = small_step(small_model(), compile=True)
    made = draws_of(step)
    json.dump([bool(step.is_compiled), made.tolist()], sys.stdout)
