"""Mixing that does not depend on the amount of data: random effects of 10 to 10,000 groups.

    python examples/scaling.py --save results.json
    python examples/scaling.py --table results.json

In each group there are five counts, y ~ Poisson(exp(mu + sigma z)), with z ~ N(0, 1) of the group.
The effects z are integrated out with four importance draws from their prior, so that the noise of
the log-estimate grows as the square root of the number of groups. Where each group's random numbers
are updated by themselves the cost of an effective draw does not grow, counted in evaluations of
everything. NUTS samples the joint model, with one z for each group, not centred.

A run is judged by the slowest of mu, log sigma, sigma, and the centred squares of the first two.
The exact posterior is known by quadrature. Prints tables and draws a figure.
"""

import argparse
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from common import Record, choose, print_table, save
from measuring import (
    Floats,
    Length,
    Sampler,
    centred_squares,
    components,
    effective_draws,
    grouped,
    measure,
    parse,
    parser,
    read,
    summary,
)
from scipy.special import ndtri

import pymc_apm as apm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

EACH = 5
"""Observations of a group."""

SAMPLES = 4
"""Importance draws of a group."""

TRUTH = {"mu": 1.0, "sigma": 0.5}

LENGTHS = {
    10: Length(20_000, 2_000, 20.0),
    100: Length(20_000, 2_000, 30.0),
    1_000: Length(10_000, 2_000, 40.0),
    10_000: Length(10_000, 2_000, 60.0),
}
"""How long a chain is, by the number of groups."""

OLD, DEFAULT, NUTS = "SS+SS of old", "default", "NUTS on the joint model"


class Method(NamedTuple):
    """A sampler and what it needs.

    Attributes
    ----------
    step : callable
    kind : str
        The model that it takes: with normal u, with uniform u, or the joint one.
    patience : int
        How many times as long as others it runs. Independent proposals are hardly ever accepted in
        a few groups with extreme counts, so that it takes long to get where the posterior is.
    """

    step: Callable[[], Any]
    kind: str = "normal"
    patience: int = 1


def ellipses(u_update: str) -> Callable[[], Any]:
    """Return what makes a step that moves the parameters along ellipses."""
    return lambda: apm.APMSlice(u_update=u_update, directions="ellipse")


METHODS = {
    "PM MH": Method(lambda: apm.PseudoMarginalMH()),
    "correlated PM": Method(lambda: apm.PseudoMarginalMH(correlation="auto")),
    OLD: Method(lambda: apm.APMSlice(directions="random", factorwise=False)),
    DEFAULT: Method(lambda: None),
    NUTS: Method(lambda: pm.NUTS(), "joint"),
    "normal u independence": Method(ellipses("independence"), patience=5),
    "uniform u slice": Method(ellipses("slice"), "uniform"),
    "uniform u independence": Method(ellipses("independence"), "uniform", patience=5),
}
"""Those that are compared and, for their z-scores, the updates of u that are not the default."""

COMPARED = ("PM MH", "correlated PM", OLD, DEFAULT, NUTS)


# The model and the exact answer


def totals(n_groups: int) -> Floats:
    """Return the simulated sum of the counts in each group, all that the likelihood needs.

    The effects are quantiles of their distribution, so that ten groups are as typical as 10,000.
    """
    effects = TRUTH["sigma"] * ndtri((np.arange(n_groups) + 0.5) / n_groups)
    rng = np.random.default_rng(1)
    return rng.poisson(EACH * np.exp(TRUTH["mu"] + effects)).astype(float)


def log_likelihood(counts: Any, log_rate: Any) -> Any:
    """Return the log-likelihood of a group, but for a constant."""
    return counts * log_rate - EACH * pt.exp(log_rate)


def build_model(n_groups: int, kind: str) -> pm.Model:
    """Return the model without its effects or, if the kind is joint, with all of them."""
    counts = totals(n_groups)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        if kind == "joint":
            z = pm.Normal("z", shape=n_groups)
            pm.Potential("log_lik", log_likelihood(counts, mu + sigma * z))
            return model
        if kind == "normal":
            effects = apm.StandardNormal("u", shape=(SAMPLES, n_groups))
        else:
            u = apm.StandardUniform("u", shape=(SAMPLES, n_groups))
            effects = math.sqrt(2.0) * pt.erfinv(2.0 * u - 1.0)
        log_weights = log_likelihood(counts, mu + sigma * effects)
        apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
    return model


class Exact(NamedTuple):
    """Means and standard deviations of mu and sigma."""

    mean: Floats
    sd: Floats


@functools.cache
def exact_posterior(n_groups: int, size: int = 61) -> Exact:
    """Return the exact posterior, by quadrature over effects and grids that close in on it."""
    counts, n_equal = np.unique(totals(n_groups), return_counts=True)
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    log_weights = np.log(weights / weights.sum())

    def log_density(mu: float, sigma: float) -> float:
        log_rate = mu + sigma * nodes
        logs = counts[:, None] * log_rate - EACH * np.exp(log_rate) + log_weights
        log_lik = np.logaddexp.reduce(logs, axis=1) @ n_equal
        return float(log_lik - 0.5 * mu**2 - 0.5 * sigma**2)

    middle, half = np.array([0.0, 2.5]), np.array([5.0, 2.5])
    for n_points in (*(21 for _ in range(7)), size):
        lower = np.maximum(middle - half, [-np.inf, 0.0])
        step = (middle + half - lower) / n_points
        grid = lower + step * (np.arange(n_points)[:, None] + 0.5)
        logs = np.array([[log_density(mu, sigma) for sigma in grid[:, 1]] for mu in grid[:, 0]])
        mass = np.exp(logs - logs.max())
        mass /= mass.sum()
        of_each = np.column_stack((mass.sum(axis=1), mass.sum(axis=0)))
        middle = (of_each * grid).sum(axis=0)
        sd = np.sqrt((of_each * (grid - middle) ** 2).sum(axis=0))
        half = np.maximum(9.0 * sd, 2.0 * step)
    return Exact(middle, sd)


# Measuring


def quantities(posterior: Any) -> dict[str, Floats]:
    """Return what a run is judged by."""
    mu, sigma = components(posterior, ("mu", "sigma")).values()
    first = {"mu": mu, "log sigma": np.log(sigma)}
    return first | {"sigma": sigma} | centred_squares(first)


def z_scores(idata: Any, exact: Exact) -> dict[str, float]:
    """Return the errors of means and standard deviations, in Monte Carlo standard errors."""
    found = {}
    draws_by_name = components(idata["posterior"], ("mu", "sigma"))
    for (name, draws), mean, sd in zip(draws_by_name.items(), *exact, strict=True):
        squares = (draws - mean) ** 2
        for label, values, truth in (("mean", draws, mean), ("sd", squares, sd**2)):
            error = values.std() / math.sqrt(max(effective_draws(values), 1.0))
            found[f"{label} of {name}"] = (values.mean() - truth) / max(error, 1e-300)
    return found


def measure_size(
    n_groups: int, methods: Sequence[str], options: argparse.Namespace
) -> list[Record]:
    """Run methods on the data of some groups."""
    exact = exact_posterior(n_groups)
    models = {kind: build_model(n_groups, kind) for kind in {METHODS[m].kind for m in methods}}
    draws, tune, limit = LENGTHS[n_groups]
    records = []
    for patience in sorted({METHODS[m].patience for m in methods}):
        samplers = {
            m: Sampler(models[METHODS[m].kind], METHODS[m].step)
            for m in methods
            if METHODS[m].patience == patience
        }
        length = Length(patience * draws, patience * tune, limit)
        records += measure(
            {"groups": n_groups},
            samplers,
            quantities,
            length,
            options,
            lambda idata: {"z": z_scores(idata, exact)},
        )
    return records


# Tables and figure

COLUMNS = [
    ("method", "method", "s"),
    ("groups", "groups", "d"),
    ("how", "runs in", "s"),
    ("seeds", "seeds", "d"),
    ("draws", "sweeps", "d"),
    ("tune_seconds", "tuning, s", ".2f"),
    ("evals_per_draw", "evals/sweep", ".2f"),
    ("us_per_draw", "us/sweep", ".0f"),
    ("per_1000_draws", "ESS/1000 sweeps", ".2f"),
    ("evals_per_ess", "evals/ESS", ".1f"),
    ("ms_per_ess", "ms/ESS", ".2f"),
    ("per_second", "ESS/s", ".1f"),
    ("slowest", "slowest", "s"),
    ("note", "note", "s"),
]


def rows_of(records: Sequence[Record]) -> list[Record]:
    """Return a row for each method and number of groups."""
    rows = []
    for method, of_method in grouped(records, "method").items():
        for n_groups, runs in sorted(grouped(of_method, "groups").items()):
            row = {"method": method, "groups": n_groups, **summary(runs)}
            if row["ess"] > 0:
                row["evals_per_ess"] = 1000.0 / row["per_1000_evals"]
                row["ms_per_ess"] = 1000.0 / row["per_second"]
            rows.append(row)
    return rows


def print_tables(records: Sequence[Record]) -> None:
    """Print what runs cost, how the default compares, and how far runs are from quadrature."""
    rows = rows_of(records)
    print(f"PyMC {records[0]['pymc']}")
    print_table(rows, COLUMNS)
    print_verdict({(row["method"], row["groups"]): row for row in rows})
    names = list(records[0]["z"])
    columns = [("method", "z-scores of all seeds together", "s"), ("groups", "groups", "d")]
    print_table(errors(records, names), columns + [(name, name, "+.1f") for name in names])


def errors(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """Return z-scores of each method and number of groups; none where it does not converge."""
    rows = []
    for method, of_method in grouped(records, "method").items():
        for n_groups, runs in sorted(grouped(of_method, "groups").items()):
            row = {"method": method, "groups": n_groups}
            if summary(runs)["has_converged"]:
                scores = {name: [record["z"][name] for record in runs] for name in names}
                row |= {name: sum(z) / math.sqrt(len(z)) for name, z in scores.items()}
            rows.append(row)
    return rows


QUANTITIES = {
    "evals_per_ess": ("evaluations for an effective draw", ".0f"),
    "per_1000_draws": ("effective draws for 1000 draws", ".0f"),
    "us_per_draw": ("microseconds for a draw", ".0f"),
    "per_second": ("effective draws per second", ".0f"),
}
"""What the table of the documentation has, and how it is written."""


def by_groups(records: Sequence[Record]) -> list[Record]:
    """Return what the table of the documentation has: a row for each quantity and method."""
    made = []
    of_methods = grouped([row for row in rows_of(records) if row["method"] in COMPARED], "method")
    for key, (quantity, form) in QUANTITIES.items():
        for method, rows in of_methods.items():
            cells = {
                f"groups_{row['groups']}": format(row[key], form)
                if row["has_converged"]
                else "does not converge"
                for row in rows
            }
            made.append({"quantity": quantity, "method": method, **cells})
    return made


def print_verdict(rows: dict[tuple[str, int], Record]) -> None:
    """Print how the default scales, and how it compares with the methods before it."""
    own = {groups: row for (method, groups), row in rows.items() if method == DEFAULT}
    if not own:
        return
    rates = [row["per_1000_draws"] for row in own.values()]
    times = [row["us_per_draw"] / groups for groups, row in own.items()]
    print(f"Default, effective draws per 1000 sweeps: {min(rates):.1f} to {max(rates):.1f}")
    print(f"Default, microseconds per sweep and group: {min(times):.2f} to {max(times):.2f}")
    for groups, row in own.items():
        if (old := rows.get((OLD, groups))) and old["ess"] > 0:
            ratio = row["per_1000_evals"] / old["per_1000_evals"]
            print(f"{groups} groups: default / {OLD} per estimate {ratio:.1f}")
        if (nuts := rows.get((NUTS, groups))) and nuts["ess"] > 0:
            ratio = row["per_second"] / nuts["per_second"]
            print(f"{groups} groups: default / {NUTS} per second {ratio:.2f}")


def draw_figure(records: Sequence[Record], path: Path) -> None:
    """Draw the cost of an effective draw against the number of groups."""
    rows = [row for row in rows_of(records) if row["method"] in COMPARED]
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharex=True, layout="constrained")
    costs = {
        "evals_per_ess": "evaluations per effective draw",
        "ms_per_ess": "milliseconds per effective draw",
    }
    for axes, (key, label) in zip(panels, costs.items(), strict=True):
        for method, of_method in grouped(rows, "method").items():
            colour = f"C{COMPARED.index(method)}"
            shown = [row for row in of_method if row["ess"] > 0]
            axes.plot(
                [row["groups"] for row in shown],
                [row[key] for row in shown],
                color=colour,
                lw=3.0 if method == DEFAULT else 1.5,
                label=method,
            )
            for row in shown:
                face = colour if row["has_converged"] else "white"
                axes.plot(row["groups"], row[key], "o", color=colour, markerfacecolor=face)
        axes.set(xscale="log", yscale="log", xlabel="groups", ylabel=label)
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False, fontsize=8, title="hollow: does not converge", title_fontsize=8)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
    print(f"wrote {path}")


def main() -> None:
    """Measure, or print what was measured."""
    options = parser(__doc__.splitlines()[0], "numbers of groups")
    options.add_argument("--figure", type=Path, default=Path("scaling.png"))
    arguments = parse(options)
    if arguments.table is not None:
        records = read(arguments.table)
    else:
        sizes = map(int, choose(map(str, LENGTHS), arguments.only))
        methods = choose(METHODS, arguments.methods)
        records = []
        for size in sizes:
            records += measure_size(size, methods, arguments)
            save(
                arguments,
                by_groups(records),
                add=True,
                instead_of=lambda record: "quantity" in record,
            )
    print_tables(records)
    draw_figure(records, arguments.figure)


if __name__ == "__main__":
    main()
