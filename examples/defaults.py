"""What each method achieves on each model of the examples, and whether the default is good enough.

    python examples/defaults.py --save results.json
    python examples/defaults.py --table results.json

For each model and method: effective draws per second and per 1000 estimates, of the slowest of all
parameters and their centred squares, over several seeds. Below each table is how the default, which
is what ``pm.sample()`` takes, compares with the best method per second, and with the default of
version 0.1 (one ellipse for all of u, a random line for theta) per estimate. A method that does not
converge is never the best.

It takes about an hour on one core, a third of it to compile; ``--only`` and ``--methods`` choose
from it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import autologistic
import glmm
import gp_classification
import ising
import numpy as np
import pymc as pm
import toy_gaussian
from common import Record, choose, print_table, save
from measuring import (
    Length,
    Sampler,
    grouped,
    measure,
    parameters_and_squares,
    parse,
    parser,
    read,
    summary,
)

import pymc_apm as apm

DEFAULT = "default"
OLD = "SS+SS of old"

METHODS: dict[str, Callable[[], Any]] = {
    DEFAULT: lambda: None,
    "random": lambda: apm.APMSlice(directions="random"),
    "coordinate": lambda: apm.APMSlice(directions="coordinate"),
    "adaptive": lambda: apm.APMSlice(directions="adaptive"),
    "ellipse": lambda: apm.APMSlice(directions="ellipse", theta_updates=1),
    "ellipse x2": lambda: apm.APMSlice(directions="ellipse", theta_updates=2),
    "ellipse x3": lambda: apm.APMSlice(directions="ellipse", theta_updates=3),
    OLD: lambda: apm.APMSlice(directions="random", factorwise=False),
    "SS+MH": lambda: apm.APMMetropolis(),
    "MI+MH": lambda: apm.APMMetropolis(u_update="independence"),
    "PM MH": lambda: apm.PseudoMarginalMH(),
    "correlated PM": lambda: apm.PseudoMarginalMH(correlation="auto"),
    "SS+NUTS": lambda: [apm.APMEllipticalU(), pm.NUTS()],
    "exchange": lambda: apm.ExchangeMH(),
}

NOT_FOR_ALL = ("SS+NUTS", "exchange")
"""Methods that need a gradient, or exact samples of the data's distribution."""


class Case(NamedTuple):
    """A model of the table.

    Attributes
    ----------
    build : callable
    length : Length
    also : tuple of str
        Which of the methods that are not for all models it takes.
    """

    build: Callable[[], pm.Model]
    length: Length
    also: tuple[str, ...] = ()


def readme() -> pm.Model:
    """Return the first model of the README."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(np.exp(1.0 + 0.5 * rng.standard_normal(30)))
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        u = apm.StandardNormal("u", shape=(64, 30))
        log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + sigma * u)), counts)
        apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
    return model


def regression(n_groups: int = 200, n_each: int = 5, n_effects: int = 12) -> pm.Model:
    """Return a Poisson regression with random intercepts, 16 importance draws from their prior."""
    rng = np.random.default_rng(20160509)
    design = rng.standard_normal((n_groups, n_each, n_effects))
    design[..., 0] = 1.0
    effects = 0.3 * rng.standard_normal(n_effects)
    intercepts = 0.7 * rng.standard_normal((n_groups, 1))
    counts = rng.poisson(np.exp(design @ effects + intercepts))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=n_effects)
        sigma = pm.HalfNormal("sigma", 1)
        u = apm.StandardNormal("u", shape=(16, n_groups, 1))
        rates = pm.math.exp(pm.math.dot(design, beta) + sigma * u)
        log_weights = pm.logp(pm.Poisson.dist(rates), counts).sum(axis=-1)
        apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
    return model


def ising_model() -> pm.Model:
    """Return the paper's Ising model with 35 intermediate distributions."""
    torus = ising.CountingIsing.torus(10, 30)
    y = torus.sample(*ising.TRUTH, np.random.default_rng(ising.DATA_SEED))
    return ising.build_model(torus, y, 35)


CASES: dict[str, Case] = {
    "toy Gaussian": Case(toy_gaussian.build_model, Length(50_000, 2_000, 10.0), ("SS+NUTS",)),
    "README": Case(readme, Length(20_000, 2_000, 10.0), ("SS+NUTS",)),
    "regression": Case(regression, Length(5_000, 2_000, 15.0), ("SS+NUTS",)),
    "32 parameters": Case(
        lambda: regression(n_effects=31), Length(5_000, 2_000, 15.0), ("SS+NUTS",)
    ),
    "glmm importance": Case(
        lambda: glmm.importance_model(glmm.read_trial(), 4),
        Length(10_000, 2_000, 15.0),
        ("SS+NUTS",),
    ),
    "glmm Laplace": Case(
        lambda: glmm.laplace_model(glmm.read_trial(), 4), Length(5_000, 1_000, 10.0)
    ),
    "autologistic": Case(
        lambda: autologistic.autologistic(autologistic.read_city(autologistic.DATA), 20),
        Length(5_000, 500, 8.0),
        ("exchange",),
    ),
    "Ising": Case(ising_model, Length(5_000, 300, 12.0), ("exchange",)),
    "breast": Case(
        lambda: gp_classification.build_model(*gp_classification.load("breast")),
        Length(3_000, 300, 15.0),
    ),
    "pima": Case(
        lambda: gp_classification.build_model(*gp_classification.load("pima")),
        Length(3_000, 300, 15.0),
    ),
}
"""Cheap models first."""

COLUMNS = [
    ("method", "method", "s"),
    ("how", "runs in", "s"),
    ("seeds", "seeds", "d"),
    ("draws", "draws", "d"),
    ("tune_seconds", "tuning, s", ".2f"),
    ("us_per_draw", "us/draw", ".0f"),
    ("evals_per_draw", "evals/draw", ".2f"),
    ("per_1000_evals", "ESS/1000 evals", ".2f"),
    ("per_1000_evals_range", "range", "s"),
    ("per_second", "ESS/s", ".1f"),
    ("per_second_range", "range", "s"),
    ("slowest", "slowest", "s"),
    ("note", "note", "s"),
]


def print_records(records: list[Record]) -> None:
    """Print a table for each model, and how its default compares."""
    for model, of_model in grouped(records, "model").items():
        rows = {name: summary(runs) for name, runs in grouped(of_model, "method").items()}
        print(f"\n{model} (PyMC {of_model[0]['pymc']})")
        print_table([{"method": name, **row} for name, row in rows.items()], COLUMNS)
        print_verdict(rows)


def print_verdict(rows: dict[str, Record]) -> None:
    """Print how the default compares with the best method, and with the default of old."""
    found = verdict(rows)
    if not found:
        return
    default = rows[DEFAULT]
    print(f"The default: {' '.join(default['chosen'])}")
    for key, unit in (("per_second", "second"), ("per_1000_evals", "estimate")):
        best = found[f"best_{key}"]
        ratio = default[key] / rows[best][key]
        print(f"Default / best per {unit}: {ratio:.2f} (the best is {best})")
    if "to_old" in found:
        print(f"Default / {OLD} per estimate: {found['to_old']:.2f}")


def verdict(rows: dict[str, Record]) -> Record:
    """Return how the default compares: a row of the table in the documentation."""
    others = {name: row for name, row in rows.items() if name != DEFAULT and row["has_converged"]}
    if DEFAULT not in rows or not others:
        return {}
    default = rows[DEFAULT]
    best = {
        key: max(others, key=lambda name: others[name][key])
        for key in ("per_second", "per_1000_evals")
    }
    found = {
        "default": default["per_second"],
        "best_per_second": best["per_second"],
        "best_per_1000_evals": best["per_1000_evals"],
        "best": others[best["per_second"]]["per_second"],
    }
    if OLD in rows and rows[OLD]["ess"] > 0:
        found["old"] = rows[OLD]["per_second"]
        found["to_old"] = default["per_1000_evals"] / rows[OLD]["per_1000_evals"]
    return found


def verdicts(records: list[Record], parameters: dict[str, int]) -> list[Record]:
    """Return a row of the table in the documentation for each model."""
    made = []
    for model, of_model in grouped(records, "model").items():
        rows = {name: summary(runs) for name, runs in grouped(of_model, "method").items()}
        made.append({"model": model, "parameters": parameters[model], **verdict(rows)})
    return made


def main() -> None:
    """Measure, or print what was measured."""
    arguments = parse(parser(__doc__.splitlines()[0], "names of models"))
    if arguments.table is not None:
        return print_records(read(arguments.table))
    wanted = choose(METHODS, arguments.methods)
    records: list[Record] = []
    parameters: dict[str, int] = {}
    for name in choose(CASES, arguments.only):
        case = CASES[name]
        model = case.build()
        methods = [method for method in wanted if method not in NOT_FOR_ALL or method in case.also]
        samplers = {method: Sampler(model, METHODS[method]) for method in methods}
        quantities = parameters_and_squares(model)
        made = measure({"model": name}, samplers, quantities, case.length, arguments)
        print_records(made)
        records += made
        parameters[name] = sum(np.size(value) for value in model.initial_point().values())
        save(
            arguments,
            verdicts(records, parameters),
            add=True,
            instead_of=lambda record: "parameters" in record,
        )


if __name__ == "__main__":
    main()
