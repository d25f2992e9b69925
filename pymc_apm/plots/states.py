"""States of a state-space model over time, with bands, and a forecast."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pymc_apm.errors import ModelError
from pymc_apm.plots.style import colour, make_axes, one_or_all, tidy

VARIABLES = ("smoothed_posterior", "filtered_posterior")


def plot_states(
    states: Any,
    forecast: Any = None,
    data: Any = None,
    state: str | Sequence[str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    probabilities: Sequence[float] = (0.5, 0.9),
    ax: Any = None,
    figsize: tuple[float, float] | None = None,
) -> Any:
    """Plot states over time: their median and central bands, and a forecast after them.

    Parameters
    ----------
    states : Dataset
        What :func:`~pymc_apm.sample_states` returned, of a model with one series, or what belongs
        to one series of several.
    forecast : Dataset, optional
        What :func:`~pymc_apm.forecast` returned.
    data : array, optional
        The data, drawn as points, if they are on the scale of the states.
    state : str or list of str, optional
        Which states, all if not given; each has axes of its own.
    transform : callable, optional
        What to plot instead of a state: ``lambda x: np.exp(x / 2)``.
    probabilities : sequence of float
        Of the bands.
    ax : axes, optional
        As many as there are states.
    figsize : (float, float), optional

    Returns
    -------
    axes or ndarray of axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import xarray as xr
    >>> import pymc_apm as apm
    >>> draws = np.random.default_rng(1).normal(size=(1, 50, 10, 1)).cumsum(axis=2)
    >>> dims = ("chain", "draw", "time", "state")
    >>> states = xr.Dataset(
    ...     {"smoothed_posterior": (dims, draws)}, {"time": np.arange(10), "state": ["x"]}
    ... )
    >>> axis = apm.plot_states(states)
    >>> axis.get_ylabel()
    'x'
    """
    name = next((variable for variable in VARIABLES if variable in states), None)
    if name is None:
        raise ModelError(
            "plot_states needs what apm.sample_states returned: a dataset with "
            f"{' or '.join(VARIABLES)}."
        )
    bands = sorted(probabilities, reverse=True)
    if not bands or not all(0.0 < probability < 1.0 for probability in bands):
        raise ModelError(f"probabilities of plot_states must be between 0 and 1, got {bands}.")
    draws = states[name]
    known = [str(label) for label in draws["state"].values]
    wanted = known if state is None else [state] if isinstance(state, str) else list(state)
    unknown = [label for label in wanted if label not in known]
    if unknown or not wanted:
        raise ModelError(f"plot_states knows {', '.join(known)}, but was asked for {unknown}.")
    axes = make_axes(ax, figsize, (9.0, 3.0 * len(wanted)), n_rows=len(wanted), sharex=ax is None)
    for axis, label in zip(axes, wanted, strict=True):
        _draw(axis, draws, label, transform, bands, colour(0), name.split("_")[0])
        if forecast is not None:
            ahead = forecast["forecast_latent"]
            _draw(axis, ahead, label, transform, bands, colour(1), "forecast")
        if data is not None:
            times = _times(draws)
            axis.plot(times, np.asarray(data), ".", color="0.3", markersize=4, label="data")
        tidy(axis, ylabel=label)
        axis.legend(frameon=False, fontsize=9)
    axes[-1].set_xlabel(_dim(draws))
    return one_or_all(axes)


def _dim(draws: Any) -> str:
    others = [dim for dim in draws.dims if dim not in ("chain", "draw", "state")]
    if len(others) != 1:
        raise ModelError(
            f"plot_states takes one series, but there are the dimensions {', '.join(others)}: "
            "select one of the series first."
        )
    return str(others[0])


def _times(draws: Any) -> Any:
    dim = _dim(draws)
    if "series" in draws.coords:  # rows of a panel are numbered otherwise
        for name in ("time_ahead", "time"):
            if name in draws.coords and draws[name].dims == (dim,):
                return draws[name].values
    return draws[dim].values if dim in draws.coords else np.arange(draws.sizes[dim])


def _draw(
    axis: Any,
    draws: Any,
    label: str,
    transform: Callable[[Any], Any] | None,
    bands: Sequence[float],
    shade: str,
    name: str,
) -> None:
    dim, times = _dim(draws), _times(draws)
    values = draws.sel(state=label).transpose("chain", "draw", dim).values
    values = values.reshape(-1, values.shape[-1])
    values = values if transform is None else np.asarray(transform(values))
    for probability in bands:
        low, high = np.quantile(values, [0.5 - probability / 2, 0.5 + probability / 2], axis=0)
        text = f"{name}, {probability:.0%}"
        axis.fill_between(times, low, high, color=shade, alpha=0.22, linewidth=0, label=text)
    axis.plot(times, np.median(values, axis=0), color=shade, linewidth=1.2, label=f"{name}, median")
