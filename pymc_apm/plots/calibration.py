"""How far the ranks of a calibration are from uniform."""

from typing import Any

import numpy as np
from scipy.stats import uniform

from pymc_apm._compat import plot_pit
from pymc_apm.plots.style import make_axes, one_or_all

N_COLUMNS = 4


def plot_calibration(ranks: Any, figsize: tuple[float, float] | None = None, **options: Any) -> Any:
    """Plot what :func:`pymc_apm.calibrate` found, by ArviZ.

    Parameters
    ----------
    ranks : Dataset
        With the dimensions ``chain``, of length one, and ``draw``.
    figsize : (float, float), optional
        For ArviZ 0.x.
    **options
        For ``plot_ecdf_pit`` of ArviZ 1.x, or ``plot_ecdf`` of ArviZ 0.x.

    Returns
    -------
    What ArviZ 1.x returns, a collection of plots; or axes.
    """
    found = plot_pit(ranks, **options)
    if found is not None:
        return found
    import arviz

    flat = {
        f"{name}{list(index) if index else ''}": array.values[(0, slice(None), *index)]
        for name, array in ranks.items()
        for index in np.ndindex(array.shape[2:])
    }
    n_columns = min(N_COLUMNS, len(flat))
    n_rows = -(-len(flat) // n_columns)
    axes = make_axes(None, figsize, (3.2 * n_columns, 2.8 * n_rows), n_rows, n_columns)
    bands = {
        "cdf": uniform.cdf,
        "difference": True,
        "confidence_bands": True,
        "eval_points": np.linspace(0.0, 1.0, 100),
    }
    for axis, (name, values) in zip(axes, flat.items(), strict=False):
        arviz.plot_ecdf(values, ax=axis, **(bands | options))
        axis.set_title(name)
    for axis in axes[len(flat) :]:
        axis.remove()
    return one_or_all(axes[: len(flat)])
