"""Traces, with the draws during which a chain was stuck."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_apm.diagnostics.creeping import movements
from pymc_apm.diagnostics.runs import Draws, posterior_draws
from pymc_apm.diagnostics.sticking import Runs, runs_of_draws, runs_of_u
from pymc_apm.errors import ModelError
from pymc_apm.plots.style import ALARM, COLOURS, make_axes, one_or_all, tidy
from pymc_apm.validation import positive_integer

MAX_PANELS = 12

CREEPING: dict[str, Any] = {
    "facecolor": "none",
    "edgecolor": COLOURS[1],
    "hatch": "////",
    "linewidth": 0,
}
"""How a chain is marked in which u creeps."""


def plot_trace_sticking(
    idata: Any,
    var_names: str | Sequence[str] | None = None,
    coords: Any = None,
    min_run: int | None = None,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
) -> Any:
    """Plot traces and mark where a chain held on to one value, of theta or of u.

    Parameters
    ----------
    idata : InferenceData or DataTree
    var_names : str or list of str, optional
        The parameters to plot; all if not given. Each element has a panel for each chain.
    coords : dict, optional
        Labels to select along dimensions of the parameters.
    min_run : int, optional
        Runs of at least so many draws without a move are marked; by default 1% of the draws of a
        chain, and 20 at the least.
    ax : axes, optional
        As many as there are elements times chains.
    figsize : (float, float), optional

    Returns
    -------
    axes, or ndarray of axes
        One for each chain of each element. Bars at the bottom of each are for u: runs without a
        move, and, all along a chain in which u creeps, a hatched one.

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
    >>> len(apm.plot_trace_sticking(idata))
    2
    """
    variables = posterior_draws(idata, var_names, coords)
    n_chains, n_draws = variables[0].values.shape[:2]
    n_panels = n_chains * sum(len(draws.labels) for draws in variables)
    if n_panels > MAX_PANELS:
        raise ModelError(
            f"There are {n_panels} traces to plot, more than {MAX_PANELS}: choose some elements "
            "with var_names and coords, or some chains with idata.sel(chain=[0])."
        )
    if min_run is None:
        min_run = max(20, n_draws // 100)
    positive_integer("min_run", min_run)
    of_u, movement_of_u = runs_of_u(idata), movements(idata)
    axes = make_axes(ax, figsize, (9.0, 0.9 + 1.15 * n_panels), n_rows=n_panels, sharex=True)
    panels = iter(axes)
    for draws in variables:
        runs = runs_of_draws(draws.values)
        for element, label in enumerate(draws.labels):
            shared = draws.values[..., element]
            limits = _limits(shared, bool(of_u))
            for chain in range(n_chains):
                axis = next(panels)
                of_chain = [step[chain] for step in of_u]
                _trace(axis, shared[chain], runs[chain], of_chain, min_run)
                if any(step[chain].creeps for step in movement_of_u):
                    _creeps(axis)
                tidy(axis, ylabel=f"{label}\nchain {chain}", ylim=limits)
    axes[-1].set(xlabel="draw after tuning", xlim=(0, n_draws))
    slow = [found.u_moved for step in movement_of_u for found in step if found.creeps]
    _legend(axes[0], _longest(variables), of_u, min_run, slow)
    return one_or_all(axes)


def _limits(values: Any, has_u: bool) -> tuple[float, float]:
    """Return the same limits for all chains, with room at the bottom for the bars of u."""
    lower, upper = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.06 * ((upper - lower) or 1.0)
    return lower - margin * (3 if has_u else 1), upper + margin


def _long_runs(runs: Runs, min_run: int) -> list[tuple[int, int]]:
    """Return the first draw and the number of draws of each long run."""
    is_long = runs.lengths > min_run
    return [
        (max(int(start), 0), int(length))
        for start, length in zip(runs.starts[is_long], runs.lengths[is_long], strict=True)
    ]


def _trace(axis: Any, values: Any, runs: Runs, of_u: list[Runs], min_run: int) -> None:
    axis.plot(values, color=COLOURS[0], linewidth=0.5)
    for start, length in _long_runs(runs, min_run):
        held = values[start]
        axis.plot(
            [start, start + length - 1],
            [held, held],
            color=ALARM,
            linewidth=3,
            solid_capstyle="butt",
        )
    for found in of_u:
        axis.broken_barh(
            _long_runs(found, min_run),
            (0.0, 0.09),
            transform=axis.get_xaxis_transform(),
            facecolors=COLOURS[1],
            linewidth=0,
        )


def _creeps(axis: Any) -> None:
    """Mark a chain all along in which u moves, but hardly."""
    from matplotlib.patches import Rectangle

    bar = Rectangle((0.0, 0.0), 1.0, 0.09, transform=axis.transAxes, **CREEPING)
    axis.add_patch(bar)


def _longest(variables: list[Draws]) -> int:
    return max(runs.longest for draws in variables for runs in runs_of_draws(draws.values))


def _legend(
    axis: Any, longest: int, of_u: list[list[Runs]], min_run: int, slow: Sequence[float]
) -> None:
    """Put the legend above the panels, where it hides nothing."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    enough = f"held for {min_run} draws or more"
    handles: list[Any] = [
        Line2D([], [], color=COLOURS[0], linewidth=1.2, label="trace"),
        Line2D([], [], color=ALARM, linewidth=3, label=f"parameter {enough} (longest {longest:,})"),
    ]
    if of_u:
        longest_of_u = max(chain.longest for runs in of_u for chain in runs)
        text = f"u {enough} (longest {longest_of_u:,})"
        handles.append(Patch(color=COLOURS[1], label=text))
    if slow:
        text = f"u creeps (moves by {min(slow):.1g})"
        handles.append(Patch(**CREEPING, label=text))
    axis.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(handles) if len(handles) < 4 else 2,
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
    )
