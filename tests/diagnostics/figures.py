"""Figures of made-up runs, the same every time. ``python -m tests.diagnostics.figures`` draws the
images that they are compared with; look at each before it is committed.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pandas
from scipy.signal import lfilter

import pymc_apm as apm
from pymc_apm.diagnostics import EstimatorTuning
from tests.diagnostics.models import normal_noise
from tests.diagnostics.runs import as_idata

matplotlib.use("Agg")

BASELINE = Path(__file__).parent / "baseline"


def made_up_run(seed, correlation=0.9, n_chains=3, n_draws=600, hold=0):
    """Return chains that are correlated, of which the second is stuck for a while."""
    rng = np.random.default_rng(seed)
    noise = np.sqrt(1 - correlation**2) * rng.standard_normal((n_chains, n_draws, 2))
    x = lfilter([1.0], [1.0, -correlation], noise, axis=1)
    u_accepted = np.ones((n_chains, n_draws))
    if hold:
        chain = min(1, n_chains - 1)
        x[chain, 100 : 100 + hold] = x[chain, 100]
        u_accepted[chain, 101 : 100 + hold] = 0.0
    stats = {
        "n_evals": rng.integers(1, 6, size=(n_chains, n_draws)),
        "accepted": (np.diff(x[..., 0], axis=1, prepend=np.nan) != 0).astype(float),
        "u_accepted": u_accepted,
        "log_estimate": rng.standard_normal((n_chains, n_draws)),
    }
    return as_idata({"x": x}, stats)


def trace_sticking(seed=1):
    """In the second chain, x and u are stuck for a while; in the third, u creeps."""
    idata = made_up_run(seed, hold=150)
    rng = np.random.default_rng(seed)
    u = lfilter([1.0], [1.0, -1.0], 0.05 * rng.standard_normal((3, 600, 20)), axis=1)
    u[:2] = rng.standard_normal((2, 600, 20))
    moved = np.square(np.diff(u, axis=1, prepend=0.0)).mean(axis=-1) / 2.0
    stats = idata["sample_stats"].to_dataset()
    stats = stats.assign(u_moved=(("chain", "draw"), moved))
    idata["sample_stats"] = stats.assign(u_projection=(("chain", "draw"), u.mean(axis=-1)))
    return apm.plot_trace_sticking(idata, coords={"x_dim_0": [0]})


def cost_autocorr(seed=1):
    runs = {"fast": made_up_run(seed, 0.7), "slow": made_up_run(seed + 1, 0.95)}
    return apm.plot_cost_autocorr(runs, max_cost=150)


def acceptance(seed=1):
    return apm.plot_acceptance(
        {
            "one": {s: made_up_run(seed, 1 - s, hold=int(100 * s)) for s in (0.1, 0.3, 0.9)},
            "other": {s: made_up_run(seed, 1 - s / 2) for s in (0.1, 0.3, 0.9)},
        }
    )


def compare(seed=1):
    return apm.plot_compare(
        {"fast": made_up_run(seed, 0.7), "slow": made_up_run(seed + 1, 0.95, hold=200)}
    )


def estimator(seed=1):
    # How many draws are shown depends on how long they take, unless there is time enough.
    return apm.plot_estimator(
        normal_noise(0.8), points={"theta": 1.0}, max_seconds=1e6, random_seed=seed
    )


def tuning(seed=1):
    rng = np.random.default_rng(seed)
    table = pandas.DataFrame(
        {
            "sd": np.array([2.0, 1.0, 0.5]) * rng.uniform(0.5, 1.5, size=3),
            "khat": [0.6, 0.4, 0.1],
            "seconds_theta": [1e-5, 2e-5, 8e-5],
            "seconds_u": [1e-5, 1.5e-5, 6e-5],
        },
        index=pandas.Index([4, 16, 64], name="size"),
    )
    return EstimatorTuning(table, "independence", 11, 1.2, [], []).plot()


FIGURES = {
    f.__name__: f for f in (trace_sticking, cost_autocorr, acceptance, compare, estimator, tuning)
}


def save(axes, path):
    """Write a figure without its text, which differs most from one version to the next."""
    figure = np.ravel(np.asarray(axes, dtype=object))[0].figure
    for axis in figure.axes:
        axis.set(title="", xlabel="", ylabel="")
        axis.set_title("", loc="left")
        axis.tick_params(labelbottom=False, labelleft=False)
        for text in axis.texts:
            text.set_visible(False)
        if axis.get_legend():
            axis.get_legend().remove()
    figure.set_layout_engine(None)
    figure.subplots_adjust(left=0.05, right=0.95, bottom=0.05, top=0.95, wspace=0.2, hspace=0.2)
    figure.savefig(path, dpi=50, metadata={"Software": None})
    matplotlib.pyplot.close(figure)


if __name__ == "__main__":
    BASELINE.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        save(draw(), BASELINE / f"{name}.png")
