"""Reading draws and statistics from what ``pm.sample`` returned."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm._compat import dataset_of
from pymc_apm.errors import ModelError, see

FloatArray = NDArray[np.float64]


class Draws(NamedTuple):
    """The draws of one variable.

    Attributes
    ----------
    name : str
    labels : list of str
        The name of each element, as ArviZ writes it: ``theta[0]``.
    values : ndarray
        With the shape (chain, draw, element).
    """

    name: str
    labels: list[str]
    values: NDArray[Any]


def posterior_of(idata: Any) -> Any:
    """Return the posterior as an xarray dataset, or refuse in words."""
    posterior = dataset_of(idata, "posterior")
    if posterior is None:
        raise ModelError(
            "What pm.sample returned is needed here, an InferenceData or a DataTree with a group "
            f"'posterior', but got {_describe(idata)}."
        )
    missing = [dim for dim in ("chain", "draw") if dim not in posterior.dims]
    if missing:
        raise ModelError(
            f"The posterior has no dimension {' and no '.join(map(repr, missing))}: diagnostics of "
            "a chain need its draws in their order, not stacked or averaged."
        )
    return posterior


def _describe(idata: Any) -> str:
    kind = f"{type(idata).__module__.partition('.')[0]}.{type(idata).__name__}"
    groups = getattr(idata, "children", None)
    if isinstance(groups, Mapping):
        kind += f" with the groups {', '.join(groups) or '(none)'}"
    return kind


def posterior_draws(
    idata: Any, var_names: str | Sequence[str] | None = None, coords: Any = None
) -> list[Draws]:
    """Return the draws of variables of the posterior, all of them if none is named.

    Parameters
    ----------
    idata : InferenceData or DataTree
    var_names : str or list of str, optional
    coords : dict, optional
        What to select along dimensions, by label: ``{"group": ["a", "b"]}``.

    Returns
    -------
    list of Draws
    """
    posterior = posterior_of(idata)
    names = chosen_names(list(posterior.data_vars), var_names)
    return [_draws_of(name, selected(posterior[name], coords, posterior)) for name in names]


def chosen_names(present: Sequence[str], var_names: str | Sequence[str] | None) -> list[str]:
    """Return the variables that were asked for, or refuse in words."""
    if var_names is None:
        return list(present)
    wanted = [var_names] if isinstance(var_names, str) else list(var_names)
    unknown = [name for name in wanted if name not in present]
    if unknown or not wanted:
        raise ModelError(
            f"The posterior has no variable {', '.join(map(repr, unknown)) or '(none was named)'}; "
            f"it has {', '.join(map(repr, present))}. u is never recorded: its moves are in the "
            "statistics."
        )
    return wanted


def selected(array: Any, coords: Any, dataset: Any) -> Any:
    """Select by labels along those dimensions that a variable has."""
    if not coords:
        return array
    if not isinstance(coords, Mapping):
        raise ModelError(f"coords must be a dict of labels by dimension, got {coords!r}.")
    if "chain" in coords or "draw" in coords:
        raise ModelError(
            "coords cannot choose chains or draws, because the statistics have to go with them: "
            "use idata.sel(chain=..., draw=...) first."
        )
    unknown = [str(dim) for dim in coords if dim not in dataset.dims]
    if unknown:
        raise ModelError(
            f"coords has dimensions that the posterior does not have: {', '.join(unknown)}; "
            f"it has {', '.join(map(str, dataset.dims))}."
        )
    indexers = {dim: np.atleast_1d(labels) for dim, labels in coords.items() if dim in array.dims}
    try:
        return array.sel(indexers)
    except KeyError as error:
        raise ModelError(f"coords asks for labels that are not there: {error.args[0]}") from error


def _draws_of(name: str, array: Any) -> Draws:
    array = array.transpose("chain", "draw", ...)
    index = [array[dim].values for dim in array.dims[2:]]
    labels = []
    for place in np.ndindex(array.shape[2:]):
        at = ", ".join(str(values[i]) for values, i in zip(index, place, strict=True))
        labels.append(f"{name}[{at}]" if index else name)
    return Draws(name, labels, np.asarray(array.values).reshape(*array.shape[:2], -1))


def statistic(idata: Any, name: str) -> FloatArray | None:
    """Return a statistic with the shape (chain, draw, step); None if it is not recorded.

    There are several steps where a run was made by several that record a statistic of this name.
    """
    stats = dataset_of(idata, "sample_stats")
    if stats is None or name not in stats:
        return None
    array = stats[name].transpose("chain", "draw", ...)
    return np.asarray(array.values, dtype=np.float64).reshape(*array.shape[:2], -1)


def sign_of(idata: Any) -> FloatArray | None:
    """Return the sign of each draw, with the shape (chain, draw); None if the run has no signs.

    Of several steps that record it, the last one leaves the chain at the draw.
    """
    signs = statistic(idata, "sign")
    return None if signs is None else signs[..., -1]


def refuse_signs(idata: Any, what: str) -> None:
    """Refuse a run some of whose draws have a negative sign, where that would be ignored."""
    signs = sign_of(idata)
    if signs is not None and (signs < 0).any():
        raise ModelError(
            f"{what} takes draws for draws of the posterior, but {int((signs < 0).sum())} of "
            f"{signs.size} of this run have a negative sign, and averages that ignore it are "
            f"wrong. Use apm.signed(idata). {see('series')}"
        )


def moves_of_u(idata: Any) -> FloatArray | None:
    """Return how much of u each draw moved, as (chain, draw, step), if that was recorded.

    A step that leaves u to another one records that it did not move it. It is left out, unless no
    step ever moved u.
    """
    moves = statistic(idata, "u_accepted")
    if moves is None:
        return None
    updates = moves.any(axis=(0, 1))
    return moves[..., updates] if updates.any() else moves[..., :1]


def total_cost(idata: Any, cost: str) -> float:
    """Return what all draws after tuning cost, by a statistic or by the clock.

    ``n_evals`` and ``n_theta_evals`` count what the steps of this package compute. A leapfrog step
    of NUTS evaluates the estimate too and counts as one evaluation at new parameters.
    """
    if not isinstance(cost, str):
        raise ModelError(f"cost must be the name of a statistic or 'time', got {cost!r}.")
    if cost == "time":
        seconds = posterior_of(idata).attrs.get("sampling_time")
        if seconds is None:
            raise ModelError(
                "cost='time' needs the attribute sampling_time, which pm.sample leaves in the "
                "posterior, but it is not there (saving, concatenating or selecting may have lost "
                "it). Use cost='n_evals'."
            )
        return float(seconds)
    values = _numeric_statistic(idata, cost)
    total = float(values.sum())
    leapfrog_steps = statistic(idata, "n_steps")
    if cost in ("n_evals", "n_theta_evals") and leapfrog_steps is not None:
        total += float(leapfrog_steps.sum())
    if not total > 0:
        raise ModelError(f"cost={cost!r} adds up to {total:g}: nothing can be divided by that.")
    return total


def _numeric_statistic(idata: Any, name: str) -> FloatArray:
    stats = dataset_of(idata, "sample_stats")
    numeric = {} if stats is None else {n: a for n, a in stats.items() if a.dtype.kind in "iufb"}
    if name not in numeric:
        raise ModelError(
            f"cost must be 'time' or a statistic that is a number, one of "
            f"{', '.join(sorted(numeric)) or '(the run has none)'}; got {name!r}."
        )
    values = statistic(idata, name)
    assert values is not None
    return values


def unit_of_cost(cost: str) -> tuple[str, str]:
    """Return what a cost is counted in, in the plural and in the singular."""
    known = {
        "n_evals": ("estimates computed", "estimate computed"),
        "n_theta_evals": ("evaluations at new parameters", "evaluation at new parameters"),
        "time": ("seconds", "second"),
    }
    return known.get(cost, (cost, f"unit of {cost}"))


def checked_runs(runs: Any) -> dict[str, Any]:
    """Check that what is to be compared is a dict of runs by name; one run alone gets a name."""
    if not isinstance(runs, Mapping) or dataset_of(runs, "posterior") is not None:
        posterior_of(runs)
        refuse_signs(runs, "The comparison")
        return {"run": runs}
    if not runs:
        raise ModelError("There is nothing to compare: the dict of runs is empty.")
    for name, idata in runs.items():
        if not isinstance(name, str):
            raise ModelError(f"The runs are to be named by strings, got the key {name!r}.")
        try:
            posterior_of(idata)
        except ModelError as error:
            raise ModelError(f"The run {name!r}: {error}") from error
        refuse_signs(idata, "The comparison")
    return dict(runs)


def common_names(runs: Mapping[str, Any], var_names: str | Sequence[str] | None) -> list[str]:
    """Return the variables that were asked for, or those that all runs have."""
    if var_names is not None:
        for idata in runs.values():
            names = chosen_names(list(posterior_of(idata).data_vars), var_names)
        return names
    first, *others = [list(posterior_of(idata).data_vars) for idata in runs.values()]
    names = [name for name in first if all(name in other for other in others)]
    if not names:
        raise ModelError(
            f"The runs {', '.join(map(repr, runs))} have no variable in common; name those to be "
            "compared with var_names."
        )
    return names
