"""The paper's Ising model, whose normaliser is estimated, sampled with every method.

A 10 x 30 torus of spins was drawn exactly at coupling J = 0.3 and field h = 0 (Murray and Graham
2016, "Ising model parameter posterior"). The priors are uniform, 0 < J < 0.4 and |h| < 1. The
likelihood of (J, h) is estimated with an exact sample of the model there, by plain importance
sampling (K = 0) or annealed along K intermediate distributions; J and h are updated in turn, with
the paper's step sizes. Cost is counted in Gibbs sweeps over the torus. The exact posterior is known
by the transfer matrix.

With --series K the same without an exact sampler: 1 / Z by a series that is truncated at random.

Prints tables and writes a figure, traces and cost-scaled autocorrelations as in the paper's
Figure 3. With --full it takes days.
"""

import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    statistic,
)
from ising_posterior import LARGEST_COUPLING, Posterior, exact_posterior
from numpy.typing import ArrayLike, NDArray

import pymc_apm as apm
from pymc_apm.plots.autocorr import autocorrelation, plot_curve

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DATA_SEED = 2  # both sums of it are about one standard deviation off; nearer, PM MH sticks less
TRUTH = [0.3, 0.0]
STEP_SIZE = 0.04
WIDTH = 0.1
EXCHANGE = "exchange"
FEW = 100  # effective draws
STUCK = 50  # draws in a row with the same u

METHODS: dict[str, Callable[[], Any]] = {
    "PM MH": lambda: apm.PseudoMarginalMH(scaling=STEP_SIZE, directions="coordinate"),
    "MI+MH": lambda: apm.APMMetropolis(
        u_update="independence", scaling=STEP_SIZE, directions="coordinate"
    ),
    "SS+MH": lambda: apm.APMMetropolis(
        u_update="slice", scaling=STEP_SIZE, directions="coordinate"
    ),
    "MI+SS": lambda: apm.APMSlice(u_update="independence", width=WIDTH, directions="coordinate"),
    "SS+SS": lambda: apm.APMSlice(u_update="slice", width=WIDTH, directions="coordinate"),
    EXCHANGE: lambda: apm.ExchangeMH(scaling=STEP_SIZE, directions="coordinate"),
}
TRACED = ("PM MH", "MI+MH", "MI+SS", "SS+SS")  # in the paper's Figure 3


class CountingIsing(apm.estimators.Ising):
    """An Ising model that counts the Gibbs sweeps that it computes."""

    n_sweeps = 0

    def sample(self, coupling: Any, field: Any, rng: Any) -> NDArray[np.int8]:
        """Draw an exact sample."""
        exact = self.exact_sample(coupling, field, rng)
        self.n_sweeps += exact.n_sweeps
        return exact.spins

    def anneal(
        self,
        x: ArrayLike,
        parameters: Sequence[Any],
        reference: Sequence[Any],
        u: NDArray[np.float64],
    ) -> float:
        """Estimate the ratio of two normalisers, with a sweep for each row of u."""
        self.n_sweeps += len(u)
        return super().anneal(x, parameters, reference, u)


class Result(NamedTuple):
    """What the tables and the figure need of a run."""

    record: Record
    trace: NDArray[np.float64]
    is_stuck: NDArray[np.bool_]
    autocorrelations: NDArray[np.float64]


# The model


def build_model(ising: CountingIsing, y: NDArray[np.int8], anneal: int, **options: Any) -> pm.Model:
    """Return the model: uniform priors on the natural scale and the estimator."""
    options = options or {"reference": dict(zip(("J", "h"), TRUTH, strict=True))}
    with pm.Model() as model:
        coupling = pm.Uniform("J", 0.0, LARGEST_COUPLING, default_transform=None)
        field = pm.Uniform("h", -1.0, 1.0, default_transform=None)
        apm.estimators.doubly_intractable(
            "y",
            ising,
            [coupling, field],
            y,
            anneal=anneal,
            **options,
        )
    return model


def noise_of_estimate(ising: CountingIsing, posterior: Posterior, anneal: int, seed: int) -> float:
    """Return the standard deviation of the log-estimate's error, over the posterior."""
    rng = np.random.default_rng(seed)
    errors = []
    for coupling, field, log_z in posterior.draw(rng, 1000):
        u = rng.random((anneal, ising.n_sites))
        x = ising.sample(coupling, field, rng)
        errors.append(ising.anneal(x, [coupling, field], TRUTH, u) + log_z)
    return float(np.std(errors))


# Running a method


def run_method(
    method: str,
    anneal: int,
    ising: CountingIsing,
    y: NDArray[np.int8],
    posterior: Posterior,
    options: Any,
) -> Result:
    """Run a method from draws of the exact posterior, so that a short run shows the mixing."""
    starts = posterior.draw(np.random.default_rng(options.seed), options.chains)
    ising.n_sweeps = 0
    run = sample(
        method,
        build_model(ising, y, anneal),
        METHODS[method],
        draws=options.draws,
        tune=options.tune,
        chains=options.chains,
        random_seed=options.seed,
        initvals=[{"J": coupling, "h": field} for coupling, field, _ in starts],
    )
    sweeps = ising.n_sweeps / (options.chains * (options.draws + options.tune))
    return summarise(run, anneal, sweeps, posterior)


def summarise(run: Run, anneal: int, sweeps_per_draw: float, posterior: Posterior) -> Result:
    """Keep of a run what the tables and the figure need."""
    draws = np.concatenate([draws_of(run, "J"), draws_of(run, "h")], axis=-1)
    n_draws = draws.shape[0] * draws.shape[1]
    effective = float(ess(draws).min())
    updates = updates_of_u(run)
    record = {
        "method": run.method,
        "anneal": anneal,
        "draws": n_draws,
        "evals_per_draw": mean_statistic(run, "n_evals"),
        "sweeps_per_draw": sweeps_per_draw,
        "theta_accepted": mean_statistic(run, "accepted"),
        "u_accepted": mean_statistic(run, "u_accepted"),
        "ess": effective,
        "ess_per_1000_sweeps": 1000 * effective / (n_draws * sweeps_per_draw),
        "ess_per_second": effective / run.seconds,
        "seconds": run.seconds,
        "longest_stuck": longest_stuck_run(draws),
        "longest_stuck_u": None if updates is None else longest_stuck_run(updates),
        **moments(draws, posterior),
    }
    record["note"] = note_on(record)
    chain, is_stuck = 0, np.zeros(draws.shape[1], dtype=bool)
    if updates is not None:
        chain = int(np.argmax([longest_stuck_run(updates[[c]]) for c in range(len(updates))]))
        is_stuck = is_in_long_run(updates[chain, :, 0])
    curves = autocorrelation(draws[..., [1]])[:, : draws.shape[1] // 3 + 1]
    return Result(record, draws[chain, :, 1], is_stuck, curves)


def note_on(record: Record) -> str:
    """Say in a word or two why the ESS and the MCSE of a run cannot be relied on."""
    notes = []
    if record["ess"] < FEW:
        notes.append("few")
    if max(record["longest_stuck"], record["longest_stuck_u"] or 0) > STUCK:
        notes.append("sticks")
    return ", ".join(notes)


def updates_of_u(run: Run) -> NDArray[np.float64] | None:
    """Return how often u was updated up to each draw: shape (chain, draw, 1)."""
    accepted = statistic(run, "u_accepted")
    return None if accepted is None else np.cumsum(accepted > 0, axis=1)[..., None].astype(float)


def is_in_long_run(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which values are in a run of more than ``STUCK`` equal ones."""
    _, place, lengths = np.unique(values, return_inverse=True, return_counts=True)
    return lengths[place] > STUCK


def moments(draws: NDArray[np.float64], posterior: Posterior) -> Record:
    """Return means and standard deviations, and the worst of their errors in MCSE."""
    squares = (draws - posterior.mean) ** 2
    mean_mcse = draws.std(axis=(0, 1)) / np.sqrt(ess(draws))
    square_mcse = squares.std(axis=(0, 1)) / np.sqrt(ess(squares))
    mean, sd = draws.mean(axis=(0, 1)), np.sqrt(squares.mean(axis=(0, 1)))
    mean_error = np.abs(mean - posterior.mean) / mean_mcse
    sd_error = np.abs(sd - posterior.sd) / (square_mcse / (2 * posterior.sd))
    return {
        "mean_j": float(mean[0]),
        "sd_j": float(sd[0]),
        "mean_h": float(mean[1]),
        "sd_h": float(sd[1]),
        "worst_error_in_mcse": float(max(mean_error.max(), sd_error.max())),
    }


# Without an exact sampler


def run_series(
    method: str,
    anneal: int,
    ising: CountingIsing,
    y: NDArray[np.int8],
    posterior: Posterior,
    options: Any,
) -> Record:
    """Run a method with 1 / Z estimated by a series, which has signs."""
    starts = posterior.draw(np.random.default_rng(options.seed), options.chains)
    start = time.process_time()
    model = build_model(ising, y, anneal, normaliser="series")
    pilot_seconds = time.process_time() - start
    ising.n_sweeps = 0
    run = sample(
        method,
        model,
        METHODS[method],
        draws=options.draws,
        tune=options.tune,
        chains=options.chains,
        random_seed=options.seed,
        initvals=[{"J": coupling, "h": field} for coupling, field, _ in starts],
    )
    n_draws = options.chains * options.draws
    sweeps = ising.n_sweeps / (options.chains * (options.draws + options.tune))
    signed = apm.signed(run.idata)
    (mean_j, mean_h), (sd_j, sd_h) = signed.table["mean"], signed.table["sd"]
    errors = [
        np.abs(signed.table["mean"] - posterior.mean) / signed.table["mcse_mean"],
        np.abs(signed.table["sd"] - posterior.sd) / signed.table["mcse_sd"],
    ]
    effective = float(signed.table["ess"].min())
    return {
        "method": f"{method}, series",
        "anneal": anneal,
        "mean_sign": signed.mean_sign,
        "evals_per_draw": mean_statistic(run, "n_evals"),
        "sweeps_per_draw": sweeps,
        "ess": effective,
        "ess_per_1000_sweeps": 1000 * effective / (n_draws * sweeps),
        "sweeps_per_ess": n_draws * sweeps / effective,
        "pilot_seconds": pilot_seconds,
        "mean_j": mean_j,
        "sd_j": sd_j,
        "mean_h": mean_h,
        "sd_h": sd_h,
        "worst_error_in_mcse": float(np.max(errors)),
        "note": "few" if effective < FEW else "",
    }


# The figure


def colour_of(method: str) -> Any:
    """Return the colour of a method, the same in all panels."""
    colours = dict(zip(METHODS, plt.get_cmap("tab10").colors, strict=False))
    return "black" if method == EXCHANGE else colours[method]


def draw_figure(results: list[Result], anneals: list[int], path: Path) -> None:
    """Draw traces of h beside autocorrelations against the number of sweeps."""
    figure = plt.figure(figsize=(13, 7.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    at_first = [r for r in results if r.record["anneal"] == anneals[0]]
    traced = [r for r in at_first if r.record["method"] in TRACED] or results[:1]
    draw_traces(left, traced)
    panels = right.subplots(len(anneals), 1, squeeze=False)[:, 0]
    exchange = [result for result in results if result.record["method"] == EXCHANGE]
    others = [result for result in results if result.record["method"] != EXCHANGE]
    for axis, anneal in zip(panels, anneals, strict=True):
        shown = [result for result in others if result.record["anneal"] == anneal] + exchange
        draw_autocorrelations(axis, shown, anneal)
    right.suptitle("Cost-scaled autocorrelation, bands of 2 standard errors", fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


def draw_traces(figure: Any, results: list[Result]) -> None:
    """Draw a trace of h for each method, and mark where u was stuck."""
    axes = figure.subplots(len(results), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, (record, trace, is_stuck, _) in zip(axes, results, strict=True):
        shown = slice(0, 50_000)
        draws = np.arange(len(trace[shown]))
        axis.fill_between(
            draws,
            0,
            1,
            where=is_stuck[shown],
            transform=axis.get_xaxis_transform(),
            color="0.85",
            linewidth=0,
        )
        axis.plot(draws, trace[shown], linewidth=0.5, color=colour_of(record["method"]))
        axis.set_title(record["method"], loc="left", fontsize=9, pad=2)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("update")
    axes[-1].set_xlim(0, len(draws))
    figure.suptitle(
        f"Trace of $h$, K = {results[0].record['anneal']}, the chain whose u was stuck longest; "
        f"grey: one u for over {STUCK} updates",
        fontsize=11,
    )
    figure.supylabel("$h$", fontsize=10)


def draw_autocorrelations(axis: Any, results: list[Result], anneal: int) -> None:
    """Draw the autocorrelation of h for each method against cost, until the last is small."""
    limit = 0.0
    for record, _, _, curves in results:
        cost, method = record["sweeps_per_draw"], record["method"]
        style, remark = ("--", " (not annealed)") if method == EXCHANGE else ("-", "")
        plot_curve(
            axis, curves, cost, color=colour_of(method), linestyle=style, label=method + remark
        )
        mean = curves.mean(axis=0)
        is_small = mean < 0.15
        limit = max(limit, cost * (is_small.argmax() if is_small.any() else len(mean) - 1))
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set(
        xlim=(0, 1.2 * limit),
        ylim=(-0.15, 1),
        xlabel="lag, in Gibbs sweeps computed",
        ylabel="autocorrelation of $h$",
    )
    title = f"K = {anneal}, annealed" if anneal else "K = 0, plain importance sampling"
    axis.set_title(title, loc="left", fontsize=9, pad=2)
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)


# The tables and what they say

MIXING = [
    ("method", "method", "s"),
    ("anneal", "K", "d"),
    ("mean_sign", "mean sign", ".3f"),
    ("evals_per_draw", "evals/draw", ".2f"),
    ("sweeps_per_draw", "sweeps/draw", ".0f"),
    ("theta_accepted", "theta acc.", ".3f"),
    ("u_accepted", "u acc.", ".3f"),
    ("ess", "min ESS", ".0f"),
    ("ess_per_1000_sweeps", "ESS/1000 sweeps", ".3f"),
    ("ess_per_second", "ESS/s", ".1f"),
    ("longest_stuck", "theta stuck", "d"),
    ("longest_stuck_u", "u stuck", "d"),
    ("note", "note", "s"),
]

ANSWERS = [
    ("method", "method", "s"),
    ("anneal", "K", "d"),
    ("mean_j", "mean J", ".4f"),
    ("sd_j", "sd J", ".4f"),
    ("mean_h", "mean h", "+.4f"),
    ("sd_h", "sd h", ".4f"),
    ("worst_error_in_mcse", "worst error/MCSE", ".1f"),
    ("note", "note", "s"),
]


def exact_record(posterior: Posterior) -> Record:
    """Return the exact answer as a row of the table."""
    names = ("mean_j", "mean_h", "sd_j", "sd_h")
    values = [*posterior.mean.tolist(), *posterior.sd.tolist()]
    return {"method": "exact", **dict(zip(names, values, strict=True))}


def print_notes(records: list[Record]) -> None:
    """Explain the notes in the tables, if there are any."""
    notes = " ".join(record["note"] for record in records)
    if "few" in notes:
        print(f"few: fewer than {FEW} effective draws. Their ESS and MCSE are unreliable.")
    if "sticks" in notes:
        print(f"sticks: the same u, or theta, for more than {STUCK} draws in a row. The ESS and")
        print("MCSE of such a run are unreliable; as a rule they promise too much.")
    print()


def print_lessons(records: list[Record]) -> None:
    """Say what one learns from a run of the methods that are compared here."""
    runs = {(record["method"], record["anneal"]): record for record in records}
    levels = sorted({k for method, k in runs if method != EXCHANGE})
    compared = [(method, k) for method in TRACED for k in levels] + [(EXCHANGE, 0)]
    if len(levels) < 2 or any(key not in runs for key in compared):
        return
    few, many = levels[0], levels[-1]
    plain, annealed, slices = runs["PM MH", few], runs["PM MH", many], runs["SS+SS", few]
    rates = {key: f"{record['ess_per_1000_sweeps']:.2f}" for key, record in runs.items()}
    best = max((key for key in runs if key[0] != EXCHANGE), key=lambda key: float(rates[key]))
    exact = plain["sweeps_per_draw"] / plain["evals_per_draw"] - few
    stuck = ", ".join(f"{method} {runs[method, few]['longest_stuck_u']}" for method in TRACED)
    lessons = f"""\
        Annealing: the standard deviation of the log-estimate is {plain["log_estimate_sd"]:.1f} for
        K = {few} and {annealed["log_estimate_sd"]:.1f} for K = {many}; PM MH makes
        {rates["PM MH", few]} and {rates["PM MH", many]} effective draws per 1000 sweeps. Beside an
        exact sample, of {exact:.0f} sweeps, annealing is cheap: use it until that deviation is
        about 1.

        Sticking: the longest run of draws with one u, K = {few}: {stuck}. Clamping an old u (MI)
        lets theta move, but only where this u is good. The ESS of a chain that sticks, or that is
        too short to have done so, promises too much.

        Slices: SS+SS moves theta and u in each draw, which takes
        {slices["evals_per_draw"]:.1f} estimates for K = {few}. It makes {rates["SS+SS", few]} and
        {rates["SS+SS", many]} effective draws per 1000 sweeps: it may pay where noise remains.

        Exchange: {rates[EXCHANGE, 0]} effective draws per 1000 sweeps; the best of the others is
        {best[0]}, K = {best[1]}, with {rates[best]}. It has no u that could stick: the one to beat
        if exact samples can be drawn."""
    for lesson in lessons.split("\n\n"):
        text = " ".join(lesson.split())
        print(textwrap.fill(text, 98, initial_indent="- ", subsequent_indent="  "))
    print()


def anneal_list(text: str) -> list[int]:
    """Read the comma-separated numbers of intermediate distributions."""
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    """Run the script."""
    options = parser(__doc__.splitlines()[0], draws=3_000, tune=100, chains=4)
    options.add_argument(
        "--anneal",
        type=anneal_list,
        default="0,35",
        help="numbers K of intermediate distributions, comma-separated",
    )
    options.add_argument(
        "--series",
        type=anneal_list,
        default=[],
        help="run without an exact sampler too, 1 / Z by a series in annealed estimates with these "
        "numbers of intermediate distributions, such as 300",
    )
    options.add_argument("--figure", type=Path, default=Path("ising.png"))
    arguments = options.parse_args()
    if arguments.full:
        arguments.draws, arguments.chains = 2_000_000, 10
    chosen = choose(METHODS, arguments.methods)

    ising = CountingIsing.torus(10, 30)
    y = ising.sample(*TRUTH, np.random.default_rng(DATA_SEED))
    print("exact posterior: computing normalisers", flush=True)
    posterior = exact_posterior(ising, y)
    results = []
    for anneal in arguments.anneal:
        noise = noise_of_estimate(ising, posterior, anneal, arguments.seed)
        for method in chosen:
            if method != EXCHANGE:
                result = run_method(method, anneal, ising, y, posterior, arguments)
                result.record["log_estimate_sd"] = noise
                results.append(result)
            elif anneal == arguments.anneal[0]:  # there is nothing to anneal
                results.append(run_method(method, 0, ising, y, posterior, arguments))
            save(arguments, [result.record for result in results])  # what is at hand, of a long run

    series = [
        run_series(method, anneal, ising, y, posterior, arguments)
        for anneal in arguments.series
        for method in chosen
        if method != EXCHANGE
    ]
    records = [*(result.record for result in results), *series]
    print_table(records, MIXING)
    print_table([exact_record(posterior), *records], ANSWERS)
    print_notes(records)
    print_lessons(records)
    if results:
        draw_figure(results, arguments.anneal, arguments.figure)
    save(arguments, records)


if __name__ == "__main__":
    main()
