"""Methods side by side: efficiency, acceptance, sticking."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_apm.diagnostics.compare import compare
from pymc_apm.diagnostics.runs import checked_runs, unit_of_cost
from pymc_apm.plots.style import ALARM, COLOURS, make_axes, plain_log_scale, tidy

WIDE = 20.0
"""A wider range of efficiencies is shown on a logarithmic scale."""


def plot_compare(
    runs: Any,
    var_names: str | Sequence[str] | None = None,
    cost: str = "n_evals",
    coords: Any = None,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
) -> Any:
    """Plot a comparison of runs: ESS per cost, acceptance, and the longest stuck run.

    An effective sample size that should not be believed, because the chain stuck, is drawn hollow.

    Parameters
    ----------
    runs : dict of InferenceData or DataTree
        By the name of the method; one run alone will do.
    var_names : str or list of str, optional
    cost : str
        As in :func:`pymc_apm.compare`.
    coords : dict, optional
    ax : three axes, optional
    figsize : (float, float), optional

    Returns
    -------
    ndarray of axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta")
    ...     u = apm.StandardNormal("u")
    ...     log_lik = apm.Potential("log_lik", -(theta**2) - u * theta)
    ...     idata = pm.sample(draws=100, tune=50, chains=2, cores=1, random_seed=1, quiet=True)
    >>> len(apm.plot_compare({"SS+SS": idata}))
    3
    """
    runs = checked_runs(runs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the figure says it
        table = compare(runs, var_names, cost, coords)
        by_variable = compare(runs, var_names, cost, coords, by_variable=True)
    rows = np.arange(len(table))
    axes = make_axes(
        ax,
        figsize,
        (10.5, 1.5 + 0.42 * len(table)),
        n_columns=3,
        sharey=True,
        width_ratios=(2, 1, 1.2),
    )
    _efficiency(axes[0], table, by_variable, cost)
    _acceptance(axes[1], table)
    _longest_runs(axes[2], table)
    axes[0].set(yticks=rows, yticklabels=table.index, ylim=(len(table) - 0.5, -0.5))
    return axes


def _efficiency(axis: Any, table: Any, by_variable: Any, cost: str) -> None:
    unit, scale = unit_of_cost(cost)[1], 1.0
    if table["ess_per_cost"].max() < 0.1:
        unit, scale = f"1000 {unit_of_cost(cost)[0]}", 1000.0
    labels: dict[str, str | None] = {
        "worst": "the least of all elements",
        "stuck": "the same, not to be believed: it sticks",
        "others": "other elements",
    }
    for row, (name, run) in enumerate(table.iterrows()):
        others = scale * by_variable.loc[name, "ess_per_cost"].to_numpy()
        worst = scale * run["ess_per_cost"]
        kind = "stuck" if run["stuck"] else "worst"
        if others.size > 1:
            axis.scatter(
                others, np.full(others.size, row), s=14, color="0.65", label=labels["others"]
            )
            labels["others"] = None
        axis.scatter(
            [worst],
            [row],
            s=60,
            zorder=3,
            linewidth=1.8,
            facecolor="white" if run["stuck"] else COLOURS[0],
            edgecolor=ALARM if run["stuck"] else COLOURS[0],
            label=labels[kind],
        )
        labels[kind] = None
    tidy(axis, xlabel=f"ESS (bulk) per {unit}")
    shown = by_variable["ess_per_cost"].to_numpy()
    if shown.max() > WIDE * shown.min():
        plain_log_scale(axis, "x")
    else:
        axis.set_xlim(left=0)
    _above(axis, 2)


def _acceptance(axis: Any, table: Any) -> None:
    rows = np.arange(len(table))
    axis.scatter(table["acceptance"], rows, marker="o", color=COLOURS[0], label="theta")
    if table["u_acceptance"].notna().any():
        axis.scatter(
            table["u_acceptance"],
            rows,
            marker="D",
            s=50,
            facecolor="none",
            edgecolor=COLOURS[1],
            linewidth=1.6,
            label="u",
        )
    tidy(axis, xlabel="acceptance rate", xlim=(-0.05, 1.05))
    _above(axis, 2)


def _longest_runs(axis: Any, table: Any) -> None:
    rows = np.arange(len(table))
    for column, label, offset, tone in (
        ("longest_run", "theta", -0.17, COLOURS[0]),
        ("longest_run_u", "u", 0.17, COLOURS[1]),
    ):
        values = table[column].to_numpy(dtype=float)
        if np.isnan(values).all():
            continue
        axis.barh(rows + offset, values, height=0.3, color=tone, label=label)
        for row, value in zip(rows, values, strict=True):
            if not np.isnan(value):
                axis.annotate(
                    f"{value:,.0f}",
                    (value, row + offset),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
    tidy(axis, xlabel="longest run without a move (draws)")
    axis.margins(x=0.2)
    _above(axis, 2)


def _above(axis: Any, n_columns: int) -> None:
    axis.legend(
        frameon=False,
        fontsize=8,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=n_columns,
        borderaxespad=0.2,
        handletextpad=0.4,
        columnspacing=1.2,
    )
