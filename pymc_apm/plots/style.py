"""What all figures share: axes, colours, a legend."""

from typing import Any

import numpy as np

from pymc_apm.errors import ModelError

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#7F7F7F", "#8C564B", "#000000"]
"""After Okabe and Ito: told apart by all readers."""

ALARM = "#D55E00"
"""Marks what is wrong, and nothing else."""


def colour(number: int) -> str:
    """Return the colour of a chain or of a method."""
    return COLOURS[number % len(COLOURS)]


def make_axes(
    ax: Any,
    figsize: tuple[float, float] | None,
    default_figsize: tuple[float, float],
    n_rows: int = 1,
    n_columns: int = 1,
    **options: Any,
) -> Any:
    """Return a flat array of axes: new ones, or those given if they are as many as needed."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install matplotlib") from error
    if ax is None:
        _, axes = plt.subplots(
            n_rows,
            n_columns,
            figsize=figsize or default_figsize,
            layout="constrained",
            squeeze=False,
            **options,
        )
        return axes.ravel()
    if figsize is not None:
        raise ModelError("Give either ax or figsize, not both.")
    axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
    if len(axes) != n_rows * n_columns or not all(hasattr(axis, "plot") for axis in axes):
        raise ModelError(
            f"ax must be {n_rows * n_columns} matplotlib axes for this figure, got {len(axes)} "
            f"({', '.join(sorted({type(axis).__name__ for axis in axes}))})."
        )
    return axes


def tidy(axis: Any, **settings: Any) -> None:
    """Set labels, draw a faint grid, and leave out the frame where nothing is read off."""
    axis.set(**settings)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def one_or_all(axes: Any) -> Any:
    """Return the one axis there is, or the array of several."""
    return axes[0] if len(axes) == 1 else axes


def plain_log_scale(axis: Any, which: str) -> None:
    """Make an axis, "x" or "y", logarithmic, with ticks at 1, 2 and 5 as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    getattr(axis, f"set_{which}scale")("log")
    ticks = getattr(axis, f"{which}axis")
    ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ticks.set_major_formatter(StrMethodFormatter("{x:g}"))
    ticks.set_minor_formatter(NullFormatter())
