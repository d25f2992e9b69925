"""What NUTS learns of its step size while u moves under it, and whether it keeps to its target.

    python examples/nuts_step_sizes.py

Counts in 30 groups, a random effect in each, integrated out by importance draws from their prior.
NUTS tunes its step size and metric, once with u clamped for a whole chain (whose posterior is then
wrong), and once beside an update of u in every draw. Prints for each the step sizes after tuning,
and the mean acceptance of the draws after it, which NUTS meant to be 0.8.
"""

from typing import Any

import arviz as az
import numpy as np
import pymc as pm
from common import Record, parser, print_table, save

import pymc_apm as apm

SIZES = (4, 64)
CLAMPED, MOVING = "clamped for a chain", "moves in every draw"


def counts() -> Any:
    """Return the data of the README."""
    rng = np.random.default_rng(1)
    return rng.poisson(np.exp(1.0 + 0.5 * rng.standard_normal(30)))


def log_estimate(u: Any) -> Any:
    """Return the log-estimate of each group from importance draws u."""
    mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
    log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + sigma * u)), counts())
    return apm.estimators.log_mean_exp(log_weights, axis=0)


def clamped(size: int, chains: int, seed: int, **length: Any) -> list[Any]:
    """Run chains, each with a u of its own that does not move."""
    rng = np.random.default_rng(seed)
    runs = []
    with pm.Model() as model:
        u = pm.Data("frozen_u", np.zeros((size, 30)))
        pm.Potential("log_lik", log_estimate(u))
        for chain in range(chains):
            model.set_data("frozen_u", rng.standard_normal((size, 30)))
            runs.append(pm.sample(chains=1, random_seed=seed + chain, **length))
    return runs


def moving(size: int, chains: int, seed: int, **length: Any) -> list[Any]:
    """Run chains in which each draw updates u, too."""
    with pm.Model():
        apm.Potential("log_lik", log_estimate(apm.StandardNormal("u", shape=(size, 30))))
        step = [apm.APMEllipticalU(), pm.NUTS()]
        return [pm.sample(step=step, chains=chains, random_seed=seed, **length)]


def record_of(size: int, what: str, runs: list[Any]) -> Record:
    """Return what NUTS learnt, and what it did with it."""
    stats = [run["sample_stats"] for run in runs]

    def by_chain(name: str) -> Any:
        return np.concatenate([np.asarray(part[name], dtype=float) for part in stats])

    step_sizes = by_chain("step_size")[:, -1]
    acceptance = by_chain("acceptance_rate").mean(axis=1)
    mu = np.concatenate([np.asarray(run["posterior"]["mu"]) for run in runs])
    return {
        "draws_of_estimate": size,
        "u": what,
        "smallest": float(step_sizes.min()),
        "largest": float(step_sizes.max()),
        "acceptance": float(acceptance.mean()),
        "least_acceptance": float(acceptance.min()),
        "most_acceptance": float(acceptance.max()),
        "divergences": int(by_chain("diverging").sum()),
        "mean_mu": float(mu.mean()),
        "sd_mu": float(mu.std()),
        "rhat_mu": float(az.rhat(mu)),
    }


COLUMNS = [
    ("draws_of_estimate", "draws of the estimate", "d"),
    ("u", "u", "s"),
    ("smallest", "step size from", ".2f"),
    ("largest", "to", ".2f"),
    ("acceptance", "acceptance", ".3f"),
    ("least_acceptance", "from", ".3f"),
    ("most_acceptance", "to", ".3f"),
    ("divergences", "divergences", "d"),
    ("mean_mu", "mean of mu", ".3f"),
    ("sd_mu", "sd of mu", ".3f"),
    ("rhat_mu", "R-hat", ".3f"),
]


def main() -> None:
    """Run the script."""
    arguments = parser(__doc__.splitlines()[0], draws=1000, tune=1000, chains=6).parse_args()
    length = {
        "draws": arguments.draws,
        "tune": arguments.tune,
        "cores": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    records = [
        record_of(size, what, run(size, arguments.chains, arguments.seed, **length))
        for size in SIZES
        for what, run in ((CLAMPED, clamped), (MOVING, moving))
        if (arguments.methods or "") in what
    ]
    print_table(records, COLUMNS)
    save(arguments, records)


if __name__ == "__main__":
    main()
