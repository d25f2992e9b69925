"""Methods side by side: what they cost and what they gave for it."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_apm.diagnostics.runs import (
    checked_runs,
    common_names,
    moves_of_u,
    posterior_draws,
    statistic,
    total_cost,
)
from pymc_apm.diagnostics.sticking import Sticking, find_sticking

MINIMUM_DRAWS = 4
"""ArviZ has nothing to say about chains of fewer draws."""


def compare(
    runs: Any,
    var_names: str | Sequence[str] | None = None,
    cost: str = "n_evals",
    coords: Any = None,
    by_variable: bool = False,
) -> Any:
    """Compare runs of one model: cost, acceptance, effective sample size, sticking.

    Parameters
    ----------
    runs : dict of InferenceData or DataTree
        What ``pm.sample`` returned, by the name of the method. One run alone will do.
    var_names : str or list of str, optional
        The parameters to compare by; those that all runs have if not given.
    cost : str
        ``"n_evals"``, the number of estimates computed; ``"n_theta_evals"``, the number of
        parameter values for which they were; ``"time"``, the seconds that ``pm.sample`` took, with
        tuning (and with compiling, where PyMC compiles while it samples); or the name of any other
        statistic that is a number for each draw, to be summed.
    coords : dict, optional
        Labels to select along dimensions of the parameters.
    by_variable : bool
        Whether to have a row for each element of each parameter instead of one for each run.

    Returns
    -------
    DataFrame
        A row for each run, in their order:

        - ``chains``; ``draws``, in all chains; ``cost``, of all draws;
        - ``acceptance``, the mean of the statistic ``accepted`` (for NUTS, of ``acceptance_rate``;
          else the share of draws that moved); ``u_acceptance``, the share of u that moved;
        - ``ess_bulk`` and ``ess_tail``, the least of all elements; ``ess_per_cost``, the first of
          them over ``cost``; ``rhat``, the largest; all by ArviZ;
        - ``worst``, the element with the least ``ess_bulk``, and ``mcse``, the Monte Carlo standard
          error of its mean;
        - ``longest_run`` and ``longest_run_u``, the largest number of draws in a row, in any chain,
          without a move of some parameter, and of u;
        - ``stuck``, of what the longest run is so long that the ESS should not be believed (see
          :func:`pymc_apm.sticking`): a :class:`UserWarning` says so too.

    Notes
    -----
    ``n_evals`` and ``n_theta_evals`` count what the steps of this package compute, and the leapfrog
    steps of NUTS. Other steps of PyMC do not count how often they evaluate the model: compare runs
    with such steps by ``cost="time"``.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     options = {"draws": 200, "chains": 2, "cores": 1, "random_seed": 1, "quiet": True}
    ...     runs = {
    ...         "MI+MH": pm.sample(step=apm.APMMetropolis(u_update="independence"), **options),
    ...         "SS+SS": pm.sample(step=apm.APMSlice(), **options),
    ...     }
    >>> table = apm.compare(runs)
    >>> int(table.loc["SS+SS", "draws"]), int(table.loc["SS+SS", "longest_run"])
    (400, 0)
    """
    import pandas

    runs = checked_runs(runs)
    names = common_names(runs, var_names)
    rows: list[dict[str, Any]] = []
    for name, idata in runs.items():
        elements = [
            {"variable": label, **summary(draws.values[..., element])}
            for draws in posterior_draws(idata, names, coords)
            for element, label in enumerate(draws.labels)
        ]
        found = find_sticking(idata, names, coords)
        common = _summary_of_run(idata, cost, found)
        if by_variable:
            shared = {key: common[key] for key in ("draws", "cost")}
            for element in elements:
                element["ess_per_cost"] = element["ess_bulk"] / common["cost"]
                rows.append({"run": name, **element, **shared})
        else:
            rows.append({"run": name, **common, **_worst(elements, common["cost"])})
        for text in found.warnings:
            warnings.warn(f"{name}: {text}", UserWarning, stacklevel=2)
    table = pandas.DataFrame(rows).set_index(["run", "variable"] if by_variable else "run")
    table = table[[column for column in COLUMNS if column in table]]
    table.attrs["cost"] = cost
    return table


COLUMNS = [
    "chains",
    "draws",
    "cost",
    "acceptance",
    "u_acceptance",
    "ess_bulk",
    "ess_tail",
    "ess_per_cost",
    "rhat",
    "worst",
    "mcse",
    "longest_run",
    "longest_run_u",
    "stuck",
]
"""The order of the columns of the table."""


def summary(draws: NDArray[Any]) -> dict[str, float]:
    """Return ArviZ's diagnostics of the draws of one number, with the shape (chain, draw)."""
    import arviz

    n_chains, n_draws = draws.shape
    if n_draws < MINIMUM_DRAWS:
        return dict.fromkeys(("ess_bulk", "ess_tail", "rhat", "mcse"), np.nan)
    draws = np.ascontiguousarray(draws, dtype=np.float64)
    return {
        "ess_bulk": _number(arviz.ess(draws)),
        "ess_tail": _number(arviz.ess(draws, method="tail", prob=(0.05, 0.95))),
        "rhat": _number(arviz.rhat(draws)) if n_chains > 1 else np.nan,
        "mcse": _number(arviz.mcse(draws)),
    }


def _number(value: Any) -> float:
    return float(np.squeeze(value))


def acceptance(idata: Any) -> float:
    """Return the share of updates of theta that were accepted, as far as it is recorded."""
    for name in ("accepted", "acceptance_rate"):
        values = statistic(idata, name)
        if values is not None:
            return float(values.mean())
    moved = [
        (draws.values[:, 1:] != draws.values[:, :-1]).any(axis=-1)
        for draws in posterior_draws(idata)
    ]
    return float(np.mean(moved)) if moved and moved[0].size else np.nan


def _summary_of_run(idata: Any, cost: str, found: Sticking) -> dict[str, Any]:
    table = found.table
    names = table.index.get_level_values("variable")
    of_u = names.isin(found.u_names)
    first = posterior_draws(idata)[0].values
    moves = moves_of_u(idata)
    return {
        "chains": first.shape[0],
        "draws": first.shape[0] * first.shape[1],
        "cost": total_cost(idata, cost),
        "acceptance": acceptance(idata),
        "u_acceptance": np.nan if moves is None else float(moves.mean()),
        "longest_run": int(table["longest_run"][~of_u].max()),
        "longest_run_u": int(table["longest_run"][of_u].max()) if of_u.any() else np.nan,
        "stuck": ", ".join(dict.fromkeys(names[table["stuck"]])),
    }


def _worst(elements: list[dict[str, Any]], cost: float) -> dict[str, Any]:
    def values(key: str) -> NDArray[np.float64]:
        return np.array([element[key] for element in elements])

    bulk = values("ess_bulk")
    worst = elements[int(np.argmin(np.where(np.isnan(bulk), np.inf, bulk)))]
    rhat = values("rhat")
    return {
        "ess_bulk": worst["ess_bulk"],
        "ess_tail": float(np.min(values("ess_tail"))),
        "ess_per_cost": worst["ess_bulk"] / cost,
        "rhat": np.nan if np.isnan(rhat).all() else float(np.nanmax(rhat)),
        "worst": worst["variable"],
        "mcse": worst["mcse"],
    }
