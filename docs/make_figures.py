"""Draw the figures of the README and of docs/diagnosing.md.

    python docs/make_figures.py [--folder docs/figures]

The model is the paper's toy Gaussian, whose estimate is noisy on purpose: log f_hat at theta has
the standard deviation |theta|. The last figure is of a random-effects model whose number of
importance draws is chosen.
"""

import argparse
import logging
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from PIL import Image

import pymc_apm as apm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SEED = 20160509
DIM = 5

METHODS = {
    "PM MH": lambda size: apm.PseudoMarginalMH(scaling=size),
    "MI+MH": lambda size: apm.APMMetropolis(u_update="independence", scaling=size),
    "SS+MH": lambda size: apm.APMMetropolis(scaling=size),
    "MI+SS": lambda size: apm.APMSlice(u_update="independence", width=4.0),
    "SS+SS": lambda size: apm.APMSlice(width=4.0),
}
STEP_SIZE = 0.85

LARGE = 80_000
"""A larger PNG gets fewer colours."""


def toy_gaussian() -> pm.Model:
    """Return the paper's toy Gaussian."""
    with pm.Model(coords={"dimension": range(1, DIM + 1)}) as model:
        theta = pm.Flat("theta", dims="dimension")
        u = apm.StandardNormal("u", dims="dimension")
        apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    return model


def random_effects(size: int) -> pm.Model:
    """Return a model of counts with random effects, integrated out by ``size`` draws."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(np.exp(1.0 + 0.5 * rng.standard_normal(30)))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        u = apm.StandardNormal("u", shape=(size, 30))
        log_weights = pm.logp(pm.Poisson.dist(pt.exp(mu + sigma * u)), counts)
        apm.Potential("log_lik", pt.logsumexp(log_weights, axis=0) - np.log(size))
    return model


def sample(method: str, draws: int, size: float = STEP_SIZE) -> Any:
    """Run a method on the toy, from exact draws."""
    rng = np.random.default_rng(SEED)
    with toy_gaussian():
        return pm.sample(
            draws=draws,
            tune=200,
            chains=4,
            cores=1,
            step=METHODS[method](size),
            random_seed=SEED,
            initvals=[{"theta": rng.standard_normal(DIM)} for _ in range(4)],
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )


def save(axes: Any, folder: Path, name: str) -> None:
    """Write a figure as a small PNG."""
    figure = np.ravel(np.asarray(axes, dtype=object))[0].figure
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
    with Image.open(path) as image:
        picture = image.convert("RGB")
    picture.save(path, optimize=True)
    if path.stat().st_size > LARGE:
        picture.quantize(128, method=Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    print(f"wrote {path} ({path.stat().st_size / 1000:.0f} kB)")


def beside(runs: dict[str, Any], n_estimates: int) -> Any:
    """Draw a trace of each run for the same number of estimates, for those who see it first."""
    from pymc_apm.diagnostics.sticking import runs_of_draws

    _, axes = plt.subplots(1, 2, figsize=(10, 2.7), sharey=True, layout="constrained")
    titles = {
        "PM MH": "pseudo-marginal Metropolis–Hastings",
        "SS+SS": "pseudo-marginal slice sampling",
    }
    for axis, (method, title) in zip(axes, titles.items(), strict=True):
        idata = runs[method]
        theta = idata["posterior"]["theta"].values[0, :, 0]
        cost = np.cumsum(idata["sample_stats"]["n_evals"].values[0])
        shown = cost <= n_estimates
        axis.plot(cost[shown], theta[shown], color="C0", lw=0.6)
        stuck = runs_of_draws(theta[None, :, None])[0]
        start, length = stuck.starts[stuck.lengths.argmax()], stuck.lengths.max()
        end = start + length
        if length > 20 and end < shown.sum():
            axis.plot(cost[start:end], theta[start:end], color="C3", lw=3)
            axis.annotate(
                f"no move for {length - 1} estimates",
                (cost[(start + end) // 2], theta[start]),
                (0, 34),
                textcoords="offset points",
                ha="center",
                color="C3",
            )
        axis.set(title=title, xlabel="estimates computed", ylim=(-3.6, 3.6))
    axes[0].set_ylabel("one parameter")
    return axes


LEVELS = "▁▂▃▄▅▆▇█"


def as_text(runs: dict[str, Any], n_estimates: int = 2500, width: int = 70) -> str:
    """Draw the same traces in characters, which a README shows wherever it is read."""
    lines = []
    for method in ("PM MH", "SS+SS"):
        theta = runs[method]["posterior"]["theta"].values[0, :, 0]
        cost = np.cumsum(runs[method]["sample_stats"]["n_evals"].values[0])
        at = np.searchsorted(cost, np.linspace(cost[0], n_estimates, width))
        heights = np.digitize(theta[at], np.linspace(-2.0, 2.0, len(LEVELS) - 1))
        lines.append(f"{method}  {''.join(LEVELS[height] for height in heights)}")
    return "\n".join(lines)


def main() -> None:
    """Draw all figures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--folder", type=Path, default=Path(__file__).parent / "figures")
    options.add_argument("--draws", type=int, default=5000, help="draws of each of 4 chains")
    arguments = options.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", UserWarning)
    folder, draws = arguments.folder, arguments.draws
    folder.mkdir(parents=True, exist_ok=True)

    runs = {method: sample(method, draws) for method in METHODS}
    save(beside(runs, n_estimates=5000), folder, "readme")
    print(as_text(runs))
    first = {"dimension": [1]}
    save(apm.plot_trace_sticking(runs["PM MH"], coords=first), folder, "trace_sticking_pm_mh")
    save(apm.plot_trace_sticking(runs["SS+SS"], coords=first), folder, "trace_sticking_ss_ss")
    save(apm.plot_cost_autocorr(runs, max_cost=800), folder, "cost_autocorr")
    save(apm.plot_compare(runs), folder, "compare")
    model = toy_gaussian()
    save(
        apm.plot_estimator(model, runs["SS+SS"], coords={"dimension": 1}, random_seed=SEED),
        folder,
        "estimator",
    )
    sizes = np.geomspace(0.1, 2.4, 8)
    sweeps = {
        method: {float(size): sample(method, draws, size) for size in sizes}
        for method in ("PM MH", "MI+MH")
    }
    save(apm.plot_acceptance(sweeps), folder, "acceptance")
    for method in ("independence", "slice"):
        tuning = apm.tune_estimator(
            random_effects, [2, 8, 32, 128], method, pilot_draws=1000, random_seed=SEED
        )
        print(tuning)
        save(tuning.plot(), folder, f"tuning_{method}")


if __name__ == "__main__":
    main()
