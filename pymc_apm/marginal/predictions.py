"""Predictions from a marginalised model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors

from pymc_apm._compat import dataset_of, result_of
from pymc_apm.errors import ModelError
from pymc_apm.marginal.latents import sample_latent, with_variables
from pymc_apm.marginal.record import record_of
from pymc_apm.marginal.split import check_indices, copy_of, data_of, value_of_data

__all__ = ["sample_posterior_predictive"]


def sample_posterior_predictive(
    idata: Any,
    model: pm.Model | None = None,
    *,
    var_names: Sequence[str] | None = None,
    new_groups: bool = False,
    data: Mapping[str, Any] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    samples: int = 500,
    predictions: bool = False,
    random_seed: int | None = None,
    extend_inferencedata: bool = False,
) -> Any:
    """Draw from the posterior predictive distribution of a marginalised model.

    The ordinary model, which :func:`pymc_apm.marginalize` was given, is what predicts: with draws
    of the parameters, and draws of the latent variables given these and what was observed.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned for the model.
    model : Model, optional
        A model made by :func:`pymc_apm.marginalize`; the one whose context is open if not given.
    var_names : sequence of str, optional
        Variables of the ordinary model to draw: what was observed and depends on latent variables
        if not given. Deterministics, and the latent variables themselves, may be among them.
    new_groups : bool
        Whether to predict for groups of which nothing has been observed: their latent variables
        are drawn from their distribution given the parameters.
    data, coords : dict, optional
        Values of data containers, and coordinates, to predict for, as for ``pm.set_data``. The
        model itself keeps its own.
    samples : int
        How many draws to choose the latent variables from, see :func:`pymc_apm.sample_latent`.
    predictions : bool
        Whether the group that is returned is ``predictions``, rather than
        ``posterior_predictive``.
    random_seed : int, optional
    extend_inferencedata : bool
        Whether to add the group to ``idata`` and return it, instead of a new one.

    Returns
    -------
    InferenceData or DataTree

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
    ...     known = apm.sample_posterior_predictive(idata, random_seed=1)
    ...     new = apm.sample_posterior_predictive(idata, new_groups=True, random_seed=1)
    >>> dict(new.posterior_predictive["y"].sizes)
    {'chain': 1, 'draw': 50, 'site': 4}
    """
    model = pm.modelcontext(model)
    record = record_of(model)
    posterior = dataset_of(idata, "posterior")
    if posterior is None:
        raise ModelError("There is no group posterior in what was given for idata.")
    latents = list(record.weights.latents)
    drop = [*latents, *record.deterministics, *record.unobserved]
    posterior = posterior.drop_vars([name for name in drop if name in posterior])
    names = list(var_names) if var_names is not None else [*record.observed, *record.unobserved]
    seeds = np.random.SeedSequence(random_seed).generate_state(2)
    if not new_groups:
        drawn = sample_latent(idata, model, samples=samples, random_seed=int(seeds[0]))
        posterior = posterior.assign(dict(dataset_of(drawn, "posterior").data_vars))
    groups = {"posterior": posterior}

    ordinary = copy_of(record.ordinary)
    for variable in ordinary.data_vars:
        current = value_of_data(model.named_vars.get(variable.name))
        if isinstance(variable, SharedVariable) and current is not None:
            variable.set_value(current)
    for name in [rv.name for rv in ordinary.free_RVs]:
        if name not in posterior and name not in drop and name in model.named_vars:
            ordinary = pm.do(ordinary, {name: _fixed(name, model)})
    # PyMC draws what depends on data, or lengths, that are not known to be those of the run anew.
    groups["constant_data"] = _data_of(ordinary)
    lengths = _lengths_of(ordinary)
    if data or coords:
        _set_data(ordinary, data or {}, coords or {})
    if not new_groups:
        own = {name: posterior[name] for name in latents}
        _check_groups(ordinary, own, groups["constant_data"])
    same = [dim for dim, n in _lengths_of(ordinary).items() if n == lengths[dim]]
    unnamed = [dim for dim in same if ordinary.coords[dim] is None]
    ordinary = freeze_dims_and_data(ordinary, dims=unnamed, data=[])
    unknown = [name for name in names if name not in ordinary.named_vars]
    if unknown:
        raise ModelError(f"The model has no variable {', '.join(unknown)}.")
    frozen = freeze_dims_and_data(ordinary, data=[])
    check_indices(frozen, [frozen[name] for name in names])
    shown = [name for name in names if not (name in latents and not new_groups)]
    found = pm.sample_posterior_predictive(
        result_of(groups),
        model=ordinary,
        var_names=shown,
        predictions=predictions,
        random_seed=int(seeds[1]),
        progressbar=False,
    )
    group = "predictions" if predictions else "posterior_predictive"
    result = dataset_of(found, group)
    kept = [name for name in names if name in latents and not new_groups]
    if kept:
        result = result.assign({name: posterior[name] for name in kept})
    if extend_inferencedata:
        return with_variables(idata, group, result)
    return result_of({group: result})


def _fixed(name: str, model: pm.Model) -> Any:
    """Return the value of what was a random variable and has been fixed since."""
    variable = model[name]
    value = value_of_data(variable)
    if value is not None:
        return value
    if variable in model.observed_RVs:
        return model.rvs_to_values[variable].eval()
    raise ModelError(f"The posterior has no draws of {name}.")


def _data_of(model: pm.Model) -> xr.Dataset:
    """Return the values of data containers, as ``pm.sample`` records them."""
    values = {v.name: v.get_value() for v in model.data_vars if isinstance(v, SharedVariable)}
    return xr.Dataset(
        {
            name: (tuple(f"{name}_dim_{axis}" for axis in range(value.ndim)), value)
            for name, value in values.items()
        }
    )


def _lengths_of(model: pm.Model) -> dict[str, int]:
    return {dim: int(length.eval()) for dim, length in model.dim_lengths.items()}


def _check_groups(model: pm.Model, latents: Mapping[str, xr.DataArray], old: xr.Dataset) -> None:
    """Refuse other groups than those of which there are draws."""
    changed = {
        data for data in data_of(model) if not np.array_equal(data.get_value(), old[data.name])
    }
    for name, draws in latents.items():
        shape = tuple(int(length) for length in model[name].shape.eval())
        coords = {dim: model.coords.get(dim) for dim in draws.dims[2:]}
        is_moved = not changed.isdisjoint(ancestors([model[name]]))
        if (
            shape != draws.shape[2:]
            or is_moved
            or any(
                values is not None and not np.array_equal(values, draws[dim].values)
                for dim, values in coords.items()
            )
        ):
            raise ModelError(
                f"With the data and coordinates that were given, {name} is of other groups than "
                "those that were observed. Give new_groups=True."
            )


def _set_data(model: pm.Model, data: Mapping[str, Any], coords: Mapping[str, Any]) -> None:
    try:
        for dim, values in coords.items():
            model.set_dim(dim, len(values), coord_values=tuple(values))
        pm.set_data(dict(data), model=model)
    except KeyError as error:
        raise ModelError(f"The model has no data, or no dimension, {error}.") from error
