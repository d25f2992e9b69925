"""Runs for the tests: made up, or sampled once for all of them."""

from functools import cache
from typing import Any

import arviz
import numpy as np
import pymc as pm
import xarray

import pymc_apm as apm
from tests.steps.models import toy_gaussian

HAS_INFERENCE_DATA = not issubclass(arviz.InferenceData, getattr(xarray, "DataTree", ()))

CONTAINERS = ["DataTree", *(["InferenceData"] if HAS_INFERENCE_DATA else [])]
"""What ``pm.sample`` returns: the one on PyMC 6, the other on PyMC 5, which has both."""


def dataset(values: dict[str, Any], coords: dict[str, Any] | None = None) -> xarray.Dataset:
    """Make a group of arrays with the dimensions chain and draw, and numbered others."""
    variables = {}
    for name, array in values.items():
        array = np.asarray(array)
        dims = ["chain", "draw", *(f"{name}_dim_{i}" for i in range(array.ndim - 2))]
        variables[name] = (dims, array)
    found = xarray.Dataset(variables)
    return found.assign_coords(
        {dim: np.arange(size) for dim, size in found.sizes.items()} | (coords or {})
    )


def as_idata(
    posterior: dict[str, Any],
    stats: dict[str, Any] | None = None,
    container: str = CONTAINERS[0],
    **attrs: Any,
) -> Any:
    """Make what ``pm.sample`` would return with these draws and statistics."""
    groups = {"posterior": dataset(posterior).assign_attrs(attrs)}
    if stats is not None:
        groups["sample_stats"] = dataset(stats)
    if container == "InferenceData":
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def in_container(idata: Any, container: str) -> Any:
    """Put a run into another container."""
    groups = {
        name: group.to_dataset() if hasattr(group, "to_dataset") else group
        for name in ("posterior", "sample_stats")
        for group in [getattr(idata, name)]
    }
    if container == "InferenceData":
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def chain_of_holds(lengths: list[int], seed: int = 0) -> np.ndarray:
    """Return a chain that holds a new value for each of some numbers of draws."""
    values = np.random.default_rng(seed).standard_normal(len(lengths))
    return np.repeat(values, lengths)


STEPS = {
    "PM MH": lambda: apm.PseudoMarginalMH(scaling=0.6),
    "MI+SS": lambda: apm.APMSlice(u_update="independence", width=4.0, factorwise=False),
    "SS+SS": lambda: apm.APMSlice(width=4.0),
}


@cache
def sampled(method: str, dim: int = 8, draws: int = 1500, chains: int = 2) -> Any:
    """Run a method on the toy, started from exact draws; with 8 dimensions it is very noisy."""
    rng = np.random.default_rng(1)
    with toy_gaussian(dim):
        return pm.sample(
            draws=draws,
            tune=50,
            chains=chains,
            cores=1,
            step=STEPS[method](),
            random_seed=1,
            initvals=[{"theta": rng.standard_normal(dim)} for _ in range(chains)],
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
