"""Noise, and cost or efficiency, against the number of particles."""

from typing import Any

from pymc_apm.plots.style import COLOURS, make_axes, plain_log_scale, tidy


def plot_tuning(tuning: Any, ax: Any = None, figsize: tuple[float, float] | None = None) -> Any:
    """Plot what :func:`pymc_apm.tune_estimator` measured.

    Parameters
    ----------
    tuning : EstimatorTuning
    ax : two axes, optional
    figsize : (float, float), optional

    Returns
    -------
    ndarray of axes
    """
    table = tuning.table
    axes = make_axes(ax, figsize, (9.0, 3.6), n_columns=2)
    noise, efficiency = axes
    style = {"marker": "o", "markersize": 5}
    noise.plot(table.index, table["sd"], color=COLOURS[0], label="measured", **style)
    if tuning.method == "independence":
        noise.axhline(
            tuning.target_sd,
            color="0.4",
            linestyle=":",
            label=f"{tuning.target_sd:g}, best for independent proposals",
        )
    tidy(noise, xlabel="particles or importance draws", ylabel="sd of log f_hat over u")
    if tuning.method == "slice":
        efficiency.plot(
            table.index,
            table["ess_per_second"],
            color=COLOURS[2],
            label="pilot runs, slice updates",
            **style,
        )
        tidy(
            efficiency,
            xlabel="particles or importance draws",
            ylabel="ESS per second of evaluations",
        )
    else:
        for change, tone in (("theta", COLOURS[3]), ("u", COLOURS[1])):
            efficiency.plot(
                table.index,
                1e6 * table[f"seconds_{change}"],
                color=tone,
                label=f"at a new {change}",
                **style,
            )
        tidy(
            efficiency,
            xlabel="particles or importance draws",
            ylabel="time of an evaluation, microseconds",
        )
    for axis in axes:
        axis.axvline(
            tuning.proposal, color="black", linewidth=1.2, label=f"proposed: {tuning.proposal}"
        )
        axis.legend(frameon=False, fontsize=9)
        axis.set_xscale("log")
        axis.set_xticks(table.index, [str(size) for size in table.index])
        axis.minorticks_off()
        plain_log_scale(axis, "y")
        lower, upper = axis.get_ylim()
        axis.set_ylim(lower / 1.2, upper * 1.5)
    return axes
