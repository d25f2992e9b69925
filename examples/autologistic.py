"""Does crime go with crime next door? An autologistic regression of 49 areas of a city.

For each of 49 neighbourhoods of Columbus, Ohio, y_i is +1 if there were more than 35 residential
burglaries and vehicle thefts per 1000 households in 1980, and -1 otherwise. With X the household
income and the housing value, standardised, and an intercept, the model is

    p(y | J, beta) = exp(J sum over neighbours y_i y_j + sum over areas y_i (X beta)_i) / Z(J, beta)

so that an area, given all others, has high crime with probability sigmoid(2 (J * sum of the
neighbours' y + (X beta)_i)). With J = 0 this is logistic regression. Otherwise Z is a sum of 2**49
terms that depends on the parameters. Its place is taken by an unbiased estimate, made of exact
samples of y; the exchange algorithm, which does without an estimate, is there to compare with.

On a large map nobody knows Z. This one is so small that it can be computed after all, by summing
out one area after the other, and so the tables have the exact answer in their headings.

Try ``--anneal 0``: the estimates are noisier, and PM MH stays where it is for hundreds of draws.

Data: Anselin, L. (1988). Spatial Econometrics: Methods and Models. Kluwer, table 12.1, page 189,
as distributed with the Python package libpysal: the numbers of ``columbus.dbf`` and the neighbours
of ``columbus.gal``, which are areas that touch at least in a corner (symmetric as they are given).
Income and housing value are in 1000 dollars, centroids in arbitrary units.

Prints tables and what one learns from them, and writes a figure: maps and posterior densities.
"""

import csv
import textwrap
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

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
from scipy.special import expit

import pymc_apm as apm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Floats = NDArray[np.float64]

DATA = Path(__file__).parent / "data" / "columbus.csv"
HIGH_CRIME = 35.0
"""Burglaries and thefts per 1000 households above which crime is high: the median is 34."""

LARGEST_J = 0.5
"""Beyond that an exact sample takes seconds where the field is weak.

With a wider uniform prior 6% of the posterior would be there.
"""

PARAMETERS = ["J", "intercept", "income", "housing value"]

METHODS: dict[str, Callable[[], Any]] = {
    "SS+SS": lambda: apm.APMSlice(),
    "SS+MH": lambda: apm.APMMetropolis(),
    "MI+MH": lambda: apm.APMMetropolis(u_update="independence"),
    "PM MH": lambda: apm.PseudoMarginalMH(),
    "exchange": lambda: apm.ExchangeMH(),
}


class Exact(NamedTuple):
    """The exact posterior: weighted draws of all parameters, with means and deviations."""

    theta: Floats
    weights: Floats
    means: Floats
    deviations: Floats


class City(NamedTuple):
    """The areas: whether crime is high (+1, -1), covariates, pairs of neighbours, places."""

    spins: NDArray[np.int64]
    design: Floats
    edges: NDArray[np.int64]
    centroids: Floats


def read_city(path: Path) -> City:
    """Read the data; areas are numbered from 1 in the file and from 0 here."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    spins = np.where([float(row["crime"]) > HIGH_CRIME for row in rows], 1, -1)
    covariates = np.array([[float(row["income"]), float(row["housing_value"])] for row in rows])
    covariates = (covariates - covariates.mean(axis=0)) / covariates.std(axis=0)
    edges = [
        (int(row["id"]) - 1, int(neighbour) - 1)
        for row in rows
        for neighbour in row["neighbours"].split(";")
        if int(row["id"]) < int(neighbour)
    ]
    return City(
        spins,
        np.column_stack((np.ones(len(rows)), covariates)),
        np.array(edges),
        np.array([[float(row["x"]), float(row["y"])] for row in rows]),
    )


# The models


def autologistic(city: City, anneal: int) -> pm.Model:
    """Return the model with coupled areas."""
    # Where the coupling is strong and the field weak, exact samples take more than by default.
    ising = apm.estimators.Ising(city.edges, n_sites=len(city.spins), max_sweeps=2**21)
    with pm.Model(coords={"effect": PARAMETERS[1:]}) as model:
        coupling = pm.Uniform("J", 0.0, LARGEST_J)
        beta = pm.Normal("beta", 0.0, 1.0, dims="effect")
        field = pt.dot(city.design, beta)
        apm.estimators.doubly_intractable(
            "crime", ising, [coupling, field], city.spins, anneal=anneal
        )
    return model


def logistic(city: City) -> pm.Model:
    """Return the model without coupling: plain logistic regression."""
    with pm.Model(coords={"effect": PARAMETERS[1:]}) as model:
        beta = pm.Normal("beta", 0.0, 1.0, dims="effect")
        logit = 2.0 * pt.dot(city.design, beta)
        pm.Bernoulli("crime", logit_p=logit, observed=city.spins > 0)
    return model


# The exact answer, for this map is small


def log_normaliser(edges: NDArray[np.int64], coupling: Floats, field: Floats) -> Floats:
    """Return log Z for some couplings, and fields of shape (coupling, area).

    Areas are summed out one after the other, always the one with the fewest neighbours left, which
    makes these neighbours of one another. The cost is exponential in the largest number of these.
    """
    values = np.array([-1.0, 1.0])
    factors = [((i,), field[:, i, None] * values) for i in range(field.shape[1])]
    pair = coupling[:, None, None] * np.outer(values, values)
    factors += [(tuple(edge), pair) for edge in np.sort(edges, axis=1).tolist()]
    remaining = set(range(field.shape[1]))
    while remaining:
        scopes = {
            area: sorted({other for areas, _ in factors if area in areas for other in areas})
            for area in remaining
        }
        area, scope = min(scopes.items(), key=lambda item: len(item[1]))
        table = np.zeros((len(coupling), *(1 for _ in scope)))
        for areas, factor in factors:
            if area in areas:
                shape = [2 if other in areas else 1 for other in scope]
                table = table + factor.reshape(-1, *shape)
        rest = tuple(other for other in scope if other != area)
        factors = [(areas, factor) for areas, factor in factors if area not in areas]
        factors.append((rest, np.logaddexp.reduce(table, axis=1 + scope.index(area))))
        remaining.remove(area)
    return np.sum([factor for _, factor in factors], axis=0)


def log_posterior(city: City, theta: Floats) -> Floats:
    """Return the log of the exact posterior density, up to a constant, of each row (J, beta)."""
    inside = (theta[:, 0] > 0.0) & (theta[:, 0] < LARGEST_J)
    coupling, field = np.where(inside, theta[:, 0], 0.0), theta[:, 1:] @ city.design.T
    products = city.spins[city.edges[:, 0]] * city.spins[city.edges[:, 1]]
    log_likelihood = coupling * products.sum() + field @ city.spins
    log_likelihood -= log_normaliser(city.edges, coupling, field)
    log_prior = stats.norm.logpdf(theta[:, 1:]).sum(axis=1)
    return np.where(inside, log_likelihood + log_prior, -np.inf)


def exact_posterior(city: City, rng: np.random.Generator) -> Exact:
    """Return the exact posterior, by importance sampling with so many draws that it counts as such.

    The proposal is a t distribution that is fitted to the weighted draws of the round before.
    """
    mean = np.array([LARGEST_J / 2, 0.0, 0.0, 0.0])
    covariance = np.diag([LARGEST_J / 4, 0.5, 0.5, 0.5]) ** 2
    for n_draws in (2_000, 2_000, 2_000, 2_000, 40_000):
        proposal = stats.multivariate_t(mean, covariance, df=5)
        theta = proposal.rvs(n_draws, random_state=rng)
        log_weights = log_posterior(city, theta) - proposal.logpdf(theta)
        weights = np.exp(log_weights - log_weights.max())
        mean = np.average(theta, axis=0, weights=weights)
        covariance = np.cov(theta.T, aweights=weights)
    return Exact(theta, weights, mean, np.sqrt(np.diag(covariance)))


# The records


def theta_of(run: Run) -> Floats:
    """Return the draws of all parameters with shape (chain, draw, parameter)."""
    return np.concatenate((draws_of(run, "J"), draws_of(run, "beta")), axis=-1)


def flat(draws: Floats) -> Floats:
    """Return the draws of all chains in one row after the other."""
    return draws.reshape(-1, draws.shape[-1])


def with_no_coupling(beta: Floats) -> Floats:
    """Return the draws of plain logistic regression as draws of (J, beta) with J = 0."""
    return np.insert(flat(beta), 0, 0.0, axis=1)


def record_of(run: Run, exact: Exact) -> Record:
    """Summarise the run of one method."""
    draws = theta_of(run)
    means, deviations, effective = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1)), ess(draws)
    errors = deviations / np.sqrt(effective)
    record: Record = {
        "method": run.method,
        "draws": draws.shape[0] * draws.shape[1],
        "evals_per_draw": mean_statistic(run, "n_evals"),
        "theta_accepted": mean_statistic(run, "accepted"),
        "u_accepted": mean_statistic(run, "u_accepted"),
        "ess": float(effective.min()),
        "ess_per_second": float(effective.min() / run.seconds),
        "longest_stuck": longest_stuck_run(draws),
        "worst_error_in_mcse": float(np.abs((means - exact.means) / errors).max()),
    }
    for name, *values in zip(PARAMETERS, means, deviations, errors, strict=True):
        for key, value in zip(("mean", "sd", "mcse"), values, strict=True):
            record[f"{name}_{key}"] = float(value)
    return record


def logistic_record(draws: Floats) -> Record:
    """Summarise plain logistic regression, which has no J."""
    record: Record = {"method": "plain logistic"}
    for name, effect in zip(PARAMETERS[1:], flat(draws).T, strict=True):
        record[f"{name}_mean"], record[f"{name}_sd"] = float(effect.mean()), float(effect.std())
    return record


def worst_difference(records: list[Record]) -> tuple[float, str] | None:
    """Return the largest difference of two methods in units of its standard error, in words."""
    differences = []
    for one, other in combinations(records, 2):
        for name in PARAMETERS:
            error = np.hypot(one[f"{name}_mcse"], other[f"{name}_mcse"])
            difference = abs(one[f"{name}_mean"] - other[f"{name}_mean"]) / error
            differences.append((difference, f"{name}, {one['method']} and {other['method']}"))
    return max(differences, default=None)


def print_records(records: list[Record], plain: Record, exact: Exact) -> None:
    """Print what the methods cost and what they found, and how far they disagree."""
    cost = [
        ("method", "method", "s"),
        ("evals_per_draw", "evals/draw", ".2f"),
        ("theta_accepted", "theta acc.", ".3f"),
        ("u_accepted", "u acc.", ".3f"),
        ("ess", "ESS", ".0f"),
        ("ess_per_second", "ESS/s", ".1f"),
        ("longest_stuck", "longest stuck", "d"),
        ("worst_error_in_mcse", "worst error/MCSE", ".1f"),
    ]
    found = [("method", "mean, sd (exact)", "s")]
    for name, mean, deviation in zip(PARAMETERS, exact.means, exact.deviations, strict=True):
        found.append((f"{name}_mean", f"{name} ({mean:.3f})", ".3f"))
        found.append((f"{name}_sd", f"sd ({deviation:.3f})", ".3f"))
    print_table(records, cost)
    print_table([*records, plain], found)
    if (worst := worst_difference(records)) is not None:
        difference, where = worst
        print(f"Worst difference between methods: {difference:.1f} standard errors ({where}).\n")


# What the posterior says of the areas


def probability_of_high(city: City, theta: Floats) -> Floats:
    """Return the posterior mean of each area's probability of high crime given its neighbours."""
    sum_of_neighbours = np.zeros(len(city.spins))
    np.add.at(sum_of_neighbours, city.edges, city.spins[city.edges[:, ::-1]])
    local_field = np.outer(theta[:, 0], sum_of_neighbours) + theta[:, 1:] @ city.design.T
    return expit(2.0 * local_field).mean(axis=0)


def is_surprising(city: City, probability: Floats) -> NDArray[np.bool_]:
    """Return which areas are not what is more probable."""
    return (probability > 0.5) != (city.spins > 0)


# The figure


def draw_map(axes: Any, city: City, probability: Floats, title: str) -> Any:
    """Draw the areas as dots that are joined to their neighbours, the surprising ones ringed."""
    axes.plot(*city.centroids[city.edges].transpose(2, 1, 0), color="0.8", lw=0.8, zorder=1)
    ringed = is_surprising(city, probability)
    dots = axes.scatter(
        *city.centroids.T,
        c=probability,
        s=100,
        cmap="RdYlBu_r",
        vmin=0,
        vmax=1,
        edgecolors=np.where(ringed, "black", "0.55"),
        linewidths=np.where(ringed, 2.2, 0.6),
        zorder=2,
    )
    axes.set_title(title, fontsize=11)
    axes.set_aspect("equal")
    axes.axis("off")
    return dots


def draw_maps(figure: Any, city: City, theta: Floats, uncoupled: Floats) -> None:
    """Draw maps of the data and of what both models expect."""
    maps = {
        "Data: crime is high (red) or low (blue)": (city.spins > 0).astype(float),
        "Autologistic, given the neighbours": probability_of_high(city, theta),
        "Plain logistic regression": probability_of_high(city, uncoupled),
    }
    panels = figure.subplots(1, len(maps))
    for axes, (title, probability) in zip(panels, maps.items(), strict=True):
        dots = draw_map(axes, city, probability, title)
    bar = figure.colorbar(dots, ax=panels, shrink=0.85, pad=0.01)
    bar.set_label("probability of high crime")
    note = "black rings: the model leans the other way"
    panels[1].text(0.5, -0.02, note, transform=panels[1].transAxes, ha="center", va="top")


def density(draws: Floats, grid: Floats, **kernel: Any) -> Floats:
    """Estimate a density, with kernels as wide as the number of effective draws asks for."""
    if not kernel:
        kernel = {"bw_method": ess(draws[..., None])[0] ** -0.2}
    kernels = stats.gaussian_kde(draws.ravel(), **kernel)
    total = kernels(grid)
    if grid[-1] == LARGEST_J:  # reflect what would be beyond the bounds of J
        total += kernels(-grid) + kernels(2.0 * LARGEST_J - grid)
    return total


def draw_densities(axes: Any, place: int, runs: list[Run], plain: Floats, exact: Exact) -> None:
    """Draw the posterior density of one parameter: exact, by each method, and without coupling."""
    if place == 0:
        grid = np.linspace(0.0, LARGEST_J, 200)
        axes.axhline(1.0 / LARGEST_J, color="0.4", ls=":", label="prior")
    else:
        span = exact.means[place] + np.array([-4.0, 4.0]) * exact.deviations[place]
        grid = np.linspace(*span, 200)
        axes.axvline(0.0, color="0.8", lw=0.8, zorder=0)
    theta = density(exact.theta[:, place], grid, weights=exact.weights)
    axes.fill_between(grid, theta, color="0.88", label="exact")
    for run in runs:
        draws = theta_of(run)[..., place]
        if np.ptp(draws) > 0.0:  # otherwise the run was so short that it never moved
            colour = f"C{list(METHODS).index(run.method)}"
            axes.plot(grid, density(draws, grid), color=colour, lw=1.2, label=run.method)
    if place > 0:
        curve = density(plain[..., place - 1], grid)
        axes.plot(grid, curve, color="black", ls="--", label="plain logistic regression (J = 0)")
    axes.set_xlabel("coupling $J$" if place == 0 else rf"$\beta$: {PARAMETERS[place]}")
    axes.set_ylim(bottom=0)
    axes.set_yticks([])
    axes.spines[["left", "top", "right"]].set_visible(False)


def draw_figure(
    city: City, runs: list[Run], best: Run, plain: Floats, exact: Exact, path: Path
) -> None:
    """Draw the maps above, and the posterior densities below."""
    figure = plt.figure(figsize=(12, 6.6), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    draw_maps(upper, city, flat(theta_of(best)), with_no_coupling(plain))
    panels = lower.subplots(1, len(PARAMETERS))
    for place, axes in enumerate(panels):
        draw_densities(axes, place, runs, plain, exact)
    labelled = [axes.get_legend_handles_labels() for axes in panels[:2]]
    entries = {label: handle for pair in labelled for handle, label in zip(*pair, strict=True)}
    lower.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=8, frameon=False
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


# What one learns


def lesson_of_data(city: City, best: Run, plain: Floats) -> str:
    """Say what the data show, with the coupling and without."""
    theta, uncoupled = flat(theta_of(best)), with_no_coupling(plain)
    low, high = np.quantile(theta[:, 0], (0.05, 0.95))
    odds, plain_odds = (np.exp(2.0 * np.median(draws, axis=0)) for draws in (theta, uncoupled))
    wrong, plain_wrong = (
        is_surprising(city, probability_of_high(city, draws)).sum() for draws in (theta, uncoupled)
    )
    return (
        f"Data: J is between {low:.2f} and {high:.2f} with probability 0.9. At the median, one "
        "neighbour that turns from low to high crime multiplies the odds of high crime by "
        f"{odds[0] ** 2:.1f}, at equal income and housing value. A standard deviation of income "
        f"multiplies them by {odds[2]:.2f} ({plain_odds[2]:.2f} in plain logistic regression), one "
        f"of housing value by {odds[3]:.2f} ({plain_odds[3]:.2f}). For {wrong} of "
        f"{len(city.spins)} areas the model leans to the wrong side when it is told what the "
        f"neighbours are; plain logistic regression, which is not, does so for {plain_wrong}."
    )


def lesson_of_methods(records: list[Record], anneal: int) -> str:
    """Say how the methods compare."""

    def extremes(key: str) -> list[Record]:
        return [extreme(records, key=lambda record: record[key]) for extreme in (min, max)]

    slow, fast = extremes("ess_per_second")
    steady, stuck = extremes("longest_stuck")
    rest = steady["longest_stuck"]
    return (
        f"Methods: {fast['method']} has the most effective draws per second "
        f"({fast['ess_per_second']:.0f}), {slow['method']} the fewest "
        f"({slow['ess_per_second']:.0f}). {steady['method']} "
        f"{f'repeats a draw up to {rest} times' if rest else 'never repeats a draw'} and takes "
        f"{steady['evals_per_draw']:.1f} evaluations for each, {stuck['method']} repeats one up to "
        f"{stuck['longest_stuck']} times. Annealing (--anneal, here {anneal}) takes noise out of "
        "the estimates, which helps all methods but exchange, which has none."
    )


def main() -> None:
    """Run the script."""
    options = parser(__doc__.splitlines()[0], draws=5_000, tune=1_000, chains=2)
    options.add_argument(
        "--anneal", type=int, default=20, help="distributions between parameters and reference"
    )
    options.add_argument("--figure", type=Path, default=Path("autologistic.png"))
    arguments = options.parse_args()
    if arguments.full:
        arguments.draws, arguments.chains = 20_000, 4
    methods = choose(METHODS, arguments.methods)
    settings = {
        "draws": arguments.draws,
        "tune": arguments.tune,
        "chains": arguments.chains,
        "random_seed": arguments.seed,
    }
    city = read_city(DATA)
    exact = exact_posterior(city, np.random.default_rng(arguments.seed))
    plain = draws_of(sample("plain logistic", logistic(city), pm.NUTS, **settings), "beta")
    model = autologistic(city, arguments.anneal)

    runs = [sample(method, model, METHODS[method], **settings) for method in methods]
    records = [record_of(run, exact) for run in runs]
    best = runs[int(np.argmax([record["ess"] for record in records]))]
    print_records(records, logistic_record(plain), exact)
    print(textwrap.fill(lesson_of_data(city, best, plain), 100))
    if len(records) > 1:
        print(textwrap.fill(lesson_of_methods(records, arguments.anneal), 100))
    draw_figure(city, runs, best, plain, exact, arguments.figure)
    save(arguments, records)


if __name__ == "__main__":
    main()
