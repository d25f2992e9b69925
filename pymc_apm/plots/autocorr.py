"""Autocorrelation against cost: Figures 2d and 3e of the paper."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_apm.diagnostics.runs import (
    Draws,
    FloatArray,
    checked_runs,
    common_names,
    posterior_draws,
    total_cost,
    unit_of_cost,
)
from pymc_apm.errors import ModelError
from pymc_apm.plots.style import colour, make_axes, tidy
from pymc_apm.validation import positive_number

SMALL = 0.1
"""The figure ends where the slowest autocorrelation has fallen to this, if that is soon enough."""


def plot_cost_autocorr(
    runs: Any,
    var_names: str | Sequence[str] | None = None,
    coords: Any = None,
    cost: str = "n_evals",
    max_cost: float | None = None,
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
    **styles: Any,
) -> Any:
    """Plot the autocorrelation of runs against what their draws cost.

    A lag of one draw is stretched by what a draw costs, so that the area under a curve compares
    methods fairly. Curves are means over chains (and over the elements of the parameters), with
    bands of two standard errors over chains: where bands are wide, or missing because there is one
    chain, the curve may be far off.

    Parameters
    ----------
    runs : dict of InferenceData or DataTree
        By the name of the method; one run alone will do.
    var_names : str or list of str, optional
        The parameters, over whose elements the autocorrelation is averaged; those that all runs
        have if not given.
    coords : dict, optional
        Labels to select along dimensions of the parameters.
    cost : str
        As in :func:`pymc_apm.compare`.
    max_cost : float, optional
        Where the figure ends; by default where the slowest curve has fallen to 0.1.
    ax : axes, optional
    figsize : (float, float), optional
    **styles
        A dict of options of ``matplotlib``'s ``plot`` for any of the runs, by its name.

    Returns
    -------
    axes

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
    >>> apm.plot_cost_autocorr({"SS+SS": idata}).get_xlabel()
    'lag, in estimates computed'
    """
    runs = checked_runs(runs)
    names = common_names(runs, var_names)
    unknown = [name for name in styles if name not in runs]
    if unknown:
        raise ModelError(f"Styles are given for {', '.join(unknown)}, which is not among the runs.")
    if max_cost is not None:
        positive_number("max_cost", max_cost)
    curves, costs = {}, {}
    for name, idata in runs.items():
        draws = posterior_draws(idata, names, coords)
        curves[name] = autocorrelation(_together(draws))
        n_chains, n_draws = draws[0].values.shape[:2]
        # The clock runs for all chains together, too.
        costs[name] = total_cost(idata, cost) / (n_chains * n_draws)
    limit = max_cost or max(_end(curves[name]) * costs[name] for name in runs)
    (axis,) = make_axes(ax, figsize, (6.5, 4.2))
    for number, (name, chains) in enumerate(curves.items()):
        style = {"color": colour(number)} | styles.get(name, {})
        label = f"{name}, {costs[name]:.3g} per draw"
        lags = min(chains.shape[1], math.ceil(limit / costs[name]) + 1)
        plot_curve(axis, chains[:, :lags], costs[name], **{"label": label, **style})
    axis.axhline(0.0, color="black", linewidth=0.8)
    what = ", ".join(names)
    many = sum(len(d.labels) for d in posterior_draws(next(iter(runs.values())), names, coords))
    ylabel = f"autocorrelation of {what}" + (f", mean of {many} elements" if many > 1 else "")
    tidy(
        axis,
        xlim=(0, limit),
        ylim=(min(-0.1, axis.get_ylim()[0]), 1.02),
        xlabel=f"lag, in {unit_of_cost(cost)[0]}",
        ylabel=ylabel,
    )
    title = "bands: 2 standard errors over chains" if _has_bands(curves) else None
    axis.legend(frameon=False, title=title, title_fontsize=9, fontsize=9)
    return axis


def _together(variables: list[Draws]) -> FloatArray:
    """Put the elements of all variables side by side, each on the scale of its own sd."""
    draws = np.concatenate([variable.values for variable in variables], axis=-1).astype(float)
    if draws.shape[1] < 2:
        raise ModelError("An autocorrelation needs at least two draws in a chain.")
    sd = draws.std(axis=(0, 1))
    if not (sd > 0).any():
        raise ModelError("The draws are all the same: there is no autocorrelation to plot.")
    return draws[..., sd > 0] / sd[sd > 0]


def autocorrelation(draws: FloatArray) -> FloatArray:
    """Return the autocorrelation of each chain, averaged over elements: shape (chain, lag).

    The mean is that of all chains together, so that a chain which is stuck far from the others is
    not taken for one that has mixed.

    Parameters
    ----------
    draws : ndarray
        With the shape (chain, draw, element), each element on the scale of its own sd.
    """
    n_draws = draws.shape[1]
    centred = draws - draws.mean(axis=(0, 1))
    spectrum = np.fft.rfft(centred, 2 * n_draws, axis=1)
    covariance: FloatArray = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :n_draws].mean(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return covariance / covariance[:, :1]


def plot_curve(axis: Any, chains: FloatArray, cost_per_draw: float, **style: Any) -> None:
    """Plot the mean autocorrelation of some chains, with a band of 2 standard errors over them."""
    cost = np.arange(chains.shape[1]) * cost_per_draw
    mean = chains.mean(axis=0)
    (line,) = axis.plot(cost, mean, **style)
    if len(chains) > 1:
        error = chains.std(axis=0, ddof=1) / math.sqrt(len(chains))
        axis.fill_between(
            cost,
            mean - 2 * error,
            mean + 2 * error,
            color=line.get_color(),
            alpha=0.18,
            linewidth=0,
        )


def _end(chains: FloatArray) -> float:
    """Return the lag at which the mean has become small, at most a third of the chain."""
    mean = chains.mean(axis=0)
    last = max(1, len(mean) // 3)
    small = np.flatnonzero(mean[:last] < SMALL)
    return 1.2 * max(1, int(small[0])) if small.size else float(last)


def _has_bands(curves: dict[str, FloatArray]) -> bool:
    return any(len(chains) > 1 for chains in curves.values())
