"""Acceptance and effective sample size against the step size: Figures 2a and 2b of the paper."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_apm._compat import dataset_of
from pymc_apm.diagnostics.compare import acceptance, summary
from pymc_apm.diagnostics.runs import (
    posterior_draws,
    posterior_of,
    refuse_signs,
    total_cost,
    unit_of_cost,
)
from pymc_apm.errors import ModelError
from pymc_apm.plots.style import colour, make_axes, plain_log_scale, tidy

OPTIMAL = 0.234
"""The acceptance rate that is optimal for random walks in many dimensions (Roberts et al. 1997)."""


def plot_acceptance(
    runs: Any,
    var_names: str | Sequence[str] | None = None,
    coords: Any = None,
    cost: str | None = None,
    xlabel: str = "step size",
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
) -> Any:
    """Plot how acceptance and effective sample size depend on the step size.

    For pseudo-marginal Metropolis-Hastings, the noise of the estimate bounds the acceptance rate
    however small the step, so that the rule of aiming at 0.234 does not work; with u clamped it
    does.

    Parameters
    ----------
    runs : dict
        Runs by step size, ``{0.1: idata, 0.2: ...}``, or a dict of such by the name of the method.
    var_names : str or list of str, optional
        The parameters whose effective sample size is looked at: the mean over their elements, with
        a band from the least to the largest.
    coords : dict, optional
        Labels to select along dimensions of the parameters.
    cost : str, optional
        What to divide the effective sample size by, as in :func:`pymc_apm.compare`; by default the
        number of draws.
    xlabel : str
        What the step size is, with its unit if it has one.
    ax : two axes, optional
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
    >>> runs = {}
    >>> with pm.Model():
    ...     theta = pm.Normal("theta")
    ...     u = apm.StandardNormal("u")
    ...     log_lik = apm.Potential("log_lik", -(theta**2) - u * theta)
    ...     for size in (0.5, 1.0, 2.0):
    ...         step = apm.PseudoMarginalMH(scaling=size)
    ...         options = {"chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
    ...         runs[size] = pm.sample(draws=100, tune=50, step=step, **options)
    >>> axes = apm.plot_acceptance({"PM MH": runs})
    >>> axes[1].get_ylabel()
    'ESS of theta per draw'
    """
    sweeps = _sweeps(runs)
    axes = make_axes(ax, figsize, (9.0, 3.6), n_columns=2)
    for number, (name, sweep) in enumerate(sweeps.items()):
        sizes = np.array(sorted(sweep))
        rates = [acceptance(sweep[size]) for size in sizes]
        effective = np.array([_effective(sweep[size], var_names, coords, cost) for size in sizes])
        style = {"color": colour(number), "marker": "o", "markersize": 4, "label": name or None}
        axes[0].plot(sizes, rates, **style)
        axes[1].plot(sizes, effective[:, 0], **style)
        if (effective[:, 1] < effective[:, 2]).any():
            axes[1].fill_between(
                sizes, effective[:, 1], effective[:, 2], color=colour(number), alpha=0.18, lw=0
            )
    axes[0].axhline(OPTIMAL, color="0.5", linewidth=1, label=f"{OPTIMAL}, optimal for random walks")
    first = next(iter(next(iter(sweeps.values())).values()))
    what = ", ".join(draws.name for draws in posterior_draws(first, var_names, coords))
    tidy(axes[0], xlabel=xlabel, ylabel="acceptance rate of theta", ylim=(0, 1))
    per = "draw" if cost is None else unit_of_cost(cost)[1]
    tidy(axes[1], xlabel=xlabel, ylabel=f"ESS of {what} per {per}")
    axes[1].set_ylim(0, 1.35 * axes[1].get_ylim()[1])  # room for the legend
    if all(size > 0 for sweep in sweeps.values() for size in sweep):
        for axis in axes:
            plain_log_scale(axis, "x")
    axes[0].legend(frameon=False, fontsize=9)
    if any(sweeps):
        title = "band: least to largest of the elements" if axes[1].collections else None
        axes[1].legend(frameon=False, fontsize=9, title=title, title_fontsize=9, loc="upper left")
    return axes


def _sweeps(runs: Any) -> dict[str, dict[float, Any]]:
    if not isinstance(runs, Mapping) or dataset_of(runs, "posterior") is not None or not runs:
        raise ModelError(
            "plot_acceptance needs runs by step size, {0.1: idata, 0.2: ...}, or a dict of such by "
            f"the name of the method; got {type(runs).__name__}."
        )
    nested = all(
        isinstance(value, Mapping) and dataset_of(value, "posterior") is None
        for value in runs.values()
    )
    sweeps = dict(runs) if nested else {"": dict(runs)}
    for name, sweep in sweeps.items():
        if not sweep:
            raise ModelError(f"There are no runs of {name!r}.")
        for size, idata in sweep.items():
            if isinstance(size, bool) or not isinstance(size, int | float | np.number):
                raise ModelError(f"A step size must be a number, got {size!r}.")
            posterior_of(idata)
            refuse_signs(idata, "plot_acceptance")
    return {str(name): dict(sweep) for name, sweep in sweeps.items()}


def _effective(
    idata: Any, var_names: str | Sequence[str] | None, coords: Any, cost: str | None
) -> tuple[float, float, float]:
    """Return the mean, the least and the largest effective sample size per unit of cost."""
    variables = posterior_draws(idata, var_names, coords)
    n_draws = variables[0].values.shape[0] * variables[0].values.shape[1]
    unit = float(n_draws) if cost is None else total_cost(idata, cost)
    values = [
        summary(draws.values[..., element])["ess_bulk"] / unit
        for draws in variables
        for element in range(len(draws.labels))
    ]
    return float(np.mean(values)), float(np.min(values)), float(np.max(values))
