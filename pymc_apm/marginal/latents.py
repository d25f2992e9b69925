"""Draws of the latent variables, after sampling."""

import logging
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pymc_apm._compat import groups_of, result_of
from pymc_apm.estimators.latent import pick
from pymc_apm.marginal.draws_given import Weighted, WeightedDraws
from pymc_apm.marginal.record import Record, record_of
from pymc_apm.validation import positive_integer

__all__ = ["factor_dims", "sample_latent", "with_variables"]

_log = logging.getLogger("pymc.apm")

FEW = 10.0
"""Effective numbers of draws below which a choice among them is far from a draw."""


def sample_latent(
    idata: Any,
    model: pm.Model | None = None,
    *,
    samples: int = 500,
    random_seed: int | np.random.Generator | None = None,
    extend_inferencedata: bool = False,
) -> Any:
    """Draw the latent variables that were integrated out, given each draw of the parameters.

    For each draw of the parameters the proposal is drawn from ``samples`` times, and for each
    factor one of these draws is chosen with a probability in proportion to its weight. That is a
    draw from the posterior of the latent variables, up to an error that vanishes as ``samples``
    grows and is small where ``effective_samples`` is not.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned for the model.
    model : Model, optional
        A model made by :func:`pymc_apm.marginalize`; the one whose context is open if not given.
    samples : int
        How many draws of the proposal to choose from.
    random_seed : int or Generator, optional
    extend_inferencedata : bool
        Whether to add the draws to the group ``posterior`` of ``idata`` and return it, instead of a
        new one.

    Returns
    -------
    InferenceData or DataTree
        With the draws of the latent variables in the group ``posterior``. In ``sample_stats`` is
        ``effective_samples``, the effective number of draws that each was chosen from.

    See Also
    --------
    pymc_apm.estimators.sample_latent : For an estimator that is given by its name.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model(coords={"site": ["a", "b", "c", "d"]}) as model:
    ...     mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
    ...     log_rate = pm.Normal("log_rate", mu, sigma, dims="site")
    ...     y = pm.Poisson("y", pm.math.exp(log_rate), observed=[3, 0, 8, 2], dims="site")
    >>> with apm.marginalize(model, "log_rate"):
    ...     idata = pm.sample(50, tune=50, chains=1, progressbar=False)
    ...     latent = apm.sample_latent(idata, random_seed=1)
    >>> dict(latent.posterior["log_rate"].sizes)
    {'chain': 1, 'draw': 50, 'site': 4}
    """
    model = pm.modelcontext(model)
    record = record_of(model)
    samples = positive_integer("samples of apm.sample_latent", samples, minimum=2)
    rng = np.random.default_rng(random_seed)
    source = WeightedDraws(record, model, idata, samples)
    chosen: list[list[NDArray[Any]]] = []
    effective = []
    for point in source.points():
        latents, number = resample(rng, source.draw(rng, point), record)
        chosen.append(latents)
        effective.append(number)
    shape = (source.n_chains, source.n_draws)
    posterior = source.posterior
    coords = {"chain": posterior["chain"].values, "draw": posterior["draw"].values}
    data = {}
    for place, name in enumerate(record.weights.latents):
        values = np.stack([draw[place] for draw in chosen])
        values = values.reshape(*shape, *values.shape[1:])
        dims = dims_of(record.ordinary, name, values.ndim - 2)
        data[name] = (("chain", "draw", *dims), values)
        coords |= coords_of(record.ordinary, dims)
    numbers = np.stack(effective)
    few = float((numbers < FEW).any(axis=1).mean())
    if few > 0.01:
        _log.warning(
            f"For {few:.0%} of the draws the effective number of draws to choose from was less "
            f"than {FEW:.0f}. Take more than {samples} samples."
        )
    factor, factor_coords = factor_dims(record)
    statistics = xr.Dataset(
        {"effective_samples": (("chain", "draw", factor), numbers.reshape(*shape, -1))},
        coords={"chain": coords["chain"], "draw": coords["draw"]} | factor_coords,
    )
    dataset = xr.Dataset(data, coords=coords)
    if extend_inferencedata:
        return with_variables(idata, "posterior", dataset)
    return result_of({"posterior": dataset, "sample_stats": statistics})


def resample(
    rng: np.random.Generator, weighted: Weighted, record: Record
) -> tuple[list[NDArray[Any]], NDArray[np.float64]]:
    """Choose one of some weighted draws for each factor; return it and effective numbers."""
    picked, effective = pick(rng, weighted.log_weights)
    found = []
    for values, labels in zip(weighted.latents, record.structure.of_latents.values(), strict=True):
        flat = values.reshape(len(values), -1)
        # What feeds nothing is drawn from the prior: any draw will do.
        which = np.where(labels.ravel() < 0, 0, picked[labels.ravel()])
        found.append(flat[which, np.arange(flat.shape[1])].reshape(labels.shape))
    return found, effective


def dims_of(model: pm.Model, name: str, ndim: int) -> tuple[str, ...]:
    """Return the names of the dimensions of a variable."""
    dims = model.named_vars_to_dims.get(name)
    return tuple(dims) if dims else tuple(f"{name}_dim_{axis}" for axis in range(ndim))


def coords_of(model: pm.Model, dims: tuple[str, ...]) -> dict[str, Any]:
    """Return the coordinates that a model has for some dimensions."""
    found = {dim: model.coords.get(dim) for dim in dims}
    return {dim: np.asarray(values) for dim, values in found.items() if values is not None}


def factor_dims(record: Record) -> tuple[str, dict[str, Any]]:
    """Return the name of the dimension of the factors, and its coordinates.

    It is that of a latent variable, if there is a factor for each entry along it.
    """
    structure = record.structure
    for name, labels in structure.of_latents.items():
        dims = record.ordinary.named_vars_to_dims.get(name)
        if not dims or labels.ndim == 0 or labels.shape[0] != structure.n_factors:
            continue
        expected = np.arange(len(labels)).reshape(-1, *[1] * (labels.ndim - 1))
        if (labels == expected).all():
            return dims[0], coords_of(record.ordinary, (dims[0],))
    return "factor", {"factor": np.arange(structure.n_factors)}


def with_variables(idata: Any, group: str, dataset: xr.Dataset) -> Any:
    """Add variables to a group of what ``pm.sample`` returned, in place."""
    groups = groups_of(idata)
    whole = groups[group].assign(dict(dataset.data_vars)) if group in groups else dataset
    whole.attrs |= dataset.attrs
    if hasattr(idata, "add_groups"):
        if group in groups:
            del idata[group]
        idata.add_groups({group: whole})
    else:
        idata[group] = xr.DataTree(whole)
    return idata
