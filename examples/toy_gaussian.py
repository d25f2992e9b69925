"""The paper's toy Gaussian, sampled with every method.

A five-dimensional standard normal posterior is treated as if its normaliser were unknown
(Murray and Graham 2016, "Demonstrations"): the likelihood of theta is estimated with one draw
x = u + theta, so that log f_hat(theta; u) = -|theta|^2 - u.theta. The exact answer is known: mean 0
and variance 1 in each dimension.

Prints a table and writes a figure, traces and cost-scaled autocorrelations as in the paper's
Figure 2.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pymc as pm
from common import (
    Record,
    Run,
    choose,
    draws_of,
    ess,
    longest_stuck_run,
    mean_statistic,
    parser,
    print_table,
    sample,
    save,
)
from numpy.typing import NDArray

import pymc_apm as apm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DIM = 5
STEP_SIZE = 0.85  # acceptance 0.234 in the paper's Figure 2b
WIDTH = 4.0
NAIVE = "naive SS"
NAIVE_LIMIT = 100_000

AS_ONE = {"factorwise": False}  # as in the paper: the estimate has a factor for each dimension

METHODS: dict[str, Callable[[], Any]] = {
    "PM MH": lambda: apm.PseudoMarginalMH(scaling=STEP_SIZE),
    "correlated PM": lambda: apm.PseudoMarginalMH(scaling=STEP_SIZE, correlation=0.9),
    "correlated PM 0.99": lambda: apm.PseudoMarginalMH(scaling=STEP_SIZE, correlation=0.99),
    "correlated PM auto": lambda: apm.PseudoMarginalMH(scaling=STEP_SIZE, correlation="auto"),
    "block PM": lambda: apm.PseudoMarginalMH(scaling=STEP_SIZE, blocks=DIM),
    "MI+MH": lambda: apm.APMMetropolis(u_update="independence", scaling=STEP_SIZE, **AS_ONE),
    "SS+MH": lambda: apm.APMMetropolis(u_update="slice", scaling=STEP_SIZE, **AS_ONE),
    "MI+SS": lambda: apm.APMSlice(u_update="independence", width=WIDTH, **AS_ONE),
    "SS+SS": lambda: apm.APMSlice(u_update="slice", width=WIDTH, **AS_ONE),
    "SS+NUTS": lambda: [apm.APMEllipticalU(**AS_ONE), pm.NUTS()],
    "default": lambda: apm.APMSlice(),
}

# Evaluations per draw, acceptance of theta and of u, integrated autocorrelation time: computed and
# simulated for this target (the last from 6 million updates), to compare with.
EXPECTED = {
    "PM MH": (1.0, 0.084, 0.084, 1100),
    "MI+MH": (2.0, 0.2367, 0.1747, 153),
    "SS+MH": (4.18, 0.2367, 1.0, 48),
    "MI+SS": (3.03, 1.0, 0.1747, 259),
    "SS+SS": (5.22, 1.0, 1.0, 45),
}


def build_model() -> pm.Model:
    """Return the model: a flat prior and the estimator."""
    with pm.Model(coords={"dimension": range(DIM)}) as model:
        theta = pm.Flat("theta", dims="dimension")
        u = apm.StandardNormal("u", dims="dimension")
        apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    return model


def starting_points(chains: int, seed: int) -> list[dict[str, NDArray[np.float64]]]:
    """Draw starting points from the exact posterior, so that a short run shows the mixing alone."""
    rng = np.random.default_rng(seed)
    return [{"theta": rng.standard_normal(DIM)} for _ in range(chains)]


def naive_noisy_slice(n_updates: int, seed: int) -> tuple[NDArray[np.float64], float]:
    """Slice sample with a fresh estimate at every evaluation: section 3 of the paper.

    It is valid as long as the estimate of the accepted point is kept, but the bracket collapses
    onto an overestimated point, and then proposals go on until one is as overestimated.

    Returns
    -------
    draws : ndarray
    evals_per_update : float
    """
    rng = np.random.default_rng(seed)

    def log_estimate(theta: NDArray[np.float64]) -> float:
        return float(-np.dot(theta, theta) - np.dot(rng.standard_normal(DIM), theta))

    theta = rng.standard_normal(DIM)
    current = log_estimate(theta)
    draws = np.empty((n_updates, DIM))
    n_evals = 0
    for update in range(n_updates):
        direction = rng.standard_normal(DIM)
        direction /= np.linalg.norm(direction)
        log_height = current - rng.standard_exponential()
        lower = -WIDTH * rng.random()
        upper = lower + WIDTH
        for _ in range(NAIVE_LIMIT):
            z = lower + (upper - lower) * rng.random()
            proposal = theta + z * direction
            estimate = log_estimate(proposal)
            n_evals += 1
            if estimate > log_height:
                theta, current = proposal, estimate
                break
            lower, upper = (z, upper) if z < 0 else (lower, z)
        draws[update] = theta
    return draws, n_evals / n_updates


def naive_record(n_updates: int, seed: int) -> Record:
    """Run the naive baseline, which is no sampler of this package."""
    print(f"{NAIVE}: {n_updates} updates", flush=True)
    draws, evals = naive_noisy_slice(n_updates, seed)
    effective = float(ess(draws[None]).min())
    return {
        "method": NAIVE,
        "draws": n_updates,
        "evals_per_draw": evals,
        "ess": effective,
        "ess_per_1000_evals": 1000 * effective / (n_updates * evals),
        "longest_stuck": longest_stuck_run(draws[None]),
        "mean": float(draws.mean()),
        "variance": float(draws.var()),
    }


def record_of(run: Run) -> Record:
    """Summarise the run of one method."""
    draws = draws_of(run, "theta")
    n_draws = draws.shape[0] * draws.shape[1]
    evals = mean_statistic(run, "n_evals") or 0.0
    evals += mean_statistic(run, "n_steps") or 0.0  # the leapfrog steps of NUTS
    effective = ess(draws)
    squares = ess(draws**2)
    mean_mcse = draws.std(axis=(0, 1)) / np.sqrt(effective)
    variance_mcse = (draws**2).std(axis=(0, 1)) / np.sqrt(squares)
    mean, variance = draws.mean(axis=(0, 1)), (draws**2).mean(axis=(0, 1))
    return {
        "method": run.method,
        "draws": n_draws,
        "evals_per_draw": evals,
        "theta_accepted": mean_statistic(run, "accepted", "acceptance_rate"),
        "u_accepted": mean_statistic(run, "u_accepted"),
        "ess": float(effective.min()),
        "iact": float(n_draws / effective.mean()),
        "ess_per_1000_evals": float(1000 * effective.min() / (n_draws * evals)),
        "ess_per_second": float(effective.min() / run.seconds),
        "seconds": run.seconds,
        "longest_stuck": longest_stuck_run(draws),
        "mean": float(mean.mean()),
        "variance": float(variance.mean()),
        "worst_error_in_mcse": float(
            max(np.abs(mean / mean_mcse).max(), np.abs((variance - 1) / variance_mcse).max())
        ),
    }


def draw_figure(runs: list[Run], records: list[Record], path: Path) -> None:
    """Draw traces of theta_1 beside autocorrelations against the number of evaluations."""
    colours = dict(zip(METHODS, plt.get_cmap("tab20").colors, strict=False))
    figure = plt.figure(figsize=(13, 1.15 * max(len(runs), 4) + 0.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    axes = left.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for run, record, axis in zip(runs, records, axes, strict=True):
        n_updates = int(min(15_000 / record["evals_per_draw"], draws_of(run, "theta").shape[1]))
        trace = draws_of(run, "theta")[0, :n_updates, 0]
        cost = np.arange(n_updates) * record["evals_per_draw"]
        axis.plot(cost, trace, linewidth=0.5, color=colours[run.method])
        axis.set_title(run.method, loc="left", fontsize=9, pad=2)
        axis.set_yticks([-3, 0, 3])
        axis.set_ylim(-4, 4)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("estimates computed")
    left.suptitle(r"Trace of $\theta_1$, the same number of estimates for each", fontsize=11)
    left.supylabel(r"$\theta_1$", fontsize=10)

    apm.plot_cost_autocorr(
        {run.method: run.idata for run in runs},
        max_cost=600,
        ax=right.subplots(),
        **{run.method: {"color": colours[run.method]} for run in runs},
    )
    right.suptitle("Cost-scaled autocorrelation", fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


COLUMNS = [
    ("method", "method", "s"),
    ("evals_per_draw", "evals/draw", ".2f"),
    ("theta_accepted", "theta acc.", ".3f"),
    ("u_accepted", "u acc.", ".3f"),
    ("ess", "ESS", ".0f"),
    ("ess_per_1000_evals", "ESS/1000 evals", ".2f"),
    ("ess_per_second", "ESS/s", ".0f"),
    ("longest_stuck", "longest stuck", "d"),
    ("mean", "mean (0)", "+.3f"),
    ("variance", "variance (1)", ".3f"),
    ("worst_error_in_mcse", "worst error/MCSE", ".1f"),
]

FULL_COLUMNS = [
    ("method", "method", "s"),
    ("evals_per_draw", "evals/draw", ".3f"),
    ("expected_evals", "expected", ".2f"),
    ("theta_accepted", "theta acc.", ".4f"),
    ("expected_theta", "expected", ".4f"),
    ("u_accepted", "u acc.", ".4f"),
    ("expected_u", "expected", ".4f"),
    ("iact", "IACT", ".0f"),
    ("expected_iact", "expected", ".0f"),
]


def main() -> None:
    """Run the script."""
    options = parser(__doc__.splitlines()[0], draws=25_000, tune=500, chains=4)
    options.add_argument("--figure", type=Path, default=Path("toy_gaussian.png"))
    arguments = options.parse_args()
    if arguments.full:
        arguments.draws = 500_000
    chosen = choose([*METHODS, NAIVE], arguments.methods)

    runs, records = [], []
    for method in [name for name in chosen if name != NAIVE]:
        run = sample(
            method,
            build_model(),
            METHODS[method],
            draws=arguments.draws,
            tune=arguments.tune,
            chains=arguments.chains,
            random_seed=arguments.seed,
            initvals=starting_points(arguments.chains, arguments.seed),
        )
        runs.append(run)
        records.append(record_of(run))
    sampled = list(records)
    if NAIVE in chosen:
        records.append(naive_record(20_000 if arguments.full else 1_000, arguments.seed))

    keys = ("expected_evals", "expected_theta", "expected_u", "expected_iact")
    for record in records:
        record |= dict(zip(keys, EXPECTED.get(record["method"], ()), strict=False))
    print_table(records, COLUMNS)
    if arguments.full:
        print_table([r for r in records if "expected_evals" in r], FULL_COLUMNS)
    save(arguments, records)
    if runs:
        draw_figure(runs, sampled, arguments.figure)


if __name__ == "__main__":
    main()
