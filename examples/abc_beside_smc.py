"""Approximate Bayesian computation beside sequential Monte Carlo, where the answer is known.

    python examples/abc_beside_smc.py

Twenty independent data of a g-and-k distribution, of which location a and scale b are unknown. Each
datum is compared with a simulated one by a normal kernel of width epsilon, by
``apm.estimators.abc(..., each=1)`` and by ``pm.Simulator`` with its default distance under
``pm.sample_smc``: the ABC posteriors are the same, and are found by quadrature too. A run of either
costs simulations of all data. How many draws it is worth is told by the errors of posterior means,
of chain after chain, beside the exact standard deviations: 1 / (mean square of error / sd).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
from common import Record, choose, parser, print_table, save
from numpy.typing import NDArray
from scipy.special import logsumexp

import pymc_apm as apm

EPSILONS = (1.0, 0.5, 0.25)
N_DATA = 20
Floats = NDArray[np.float64]


def shape(z: Floats) -> Floats:
    """Return standard numbers of the distribution with g = 2 and k = 1/2 from normal ones."""
    return (1.0 + 0.8 * np.tanh(z)) * np.sqrt(1.0 + z**2) * z


DATA = 3.0 + shape(np.random.default_rng(1).standard_normal(N_DATA))


class Counter:
    """Counts the simulations of all data."""

    n_simulations = 0

    def simulate(self, a: Any, b: Any, z: Floats) -> Floats:
        """Make data from normal numbers."""
        self.n_simulations += 1
        return np.asarray(a + b * shape(z))


def priors() -> tuple[Any, Any]:
    """Declare the parameters."""
    return pm.Normal("a", 3.0, 2.0), pm.LogNormal("b", 0.0, 1.0)


def exact_moments(epsilon: float) -> tuple[Floats, Floats]:
    """Return means and standard deviations of a and log b under the ABC posterior."""
    a, log_b = np.meshgrid(np.linspace(0, 7, 141), np.linspace(-3, 3, 121), indexing="ij")
    z = np.linspace(-7.0, 7.0, 1401)
    log_posterior = -0.5 * ((a - 3.0) / 2.0) ** 2 - 0.5 * log_b**2
    for row, (a_row, log_b_row) in enumerate(zip(a, log_b, strict=True)):
        places = a_row[:, None] + np.exp(log_b_row)[:, None] * shape(z)
        for y in DATA:
            log_kernel = -0.5 * z**2 - 0.5 * ((places - y) / epsilon) ** 2
            log_posterior[row] += logsumexp(log_kernel, axis=-1)
    weights = np.exp(log_posterior - log_posterior.max())
    weights /= weights.sum()
    values = np.stack([a, log_b])
    means = (weights * values).sum(axis=(1, 2))
    return means, np.sqrt((weights * values**2).sum(axis=(1, 2)) - means**2)


def clamped(epsilon: float, counter: Counter, length: Any) -> Any:
    """Sample with random numbers clamped: one factor for each datum."""
    with pm.Model():
        a, b = priors()
        apm.estimators.abc(
            "y",
            lambda a, b, u: counter.simulate(a, b, u[:, 0]),
            DATA,
            epsilon=epsilon,
            parameters=[a, b],
            each=1,
        )
        options = {"chains": length.chains, "cores": 1, "compute_convergence_checks": False}
        return pm.sample(length.draws, tune=length.tune, random_seed=length.seed, **options)


def smc(epsilon: float, counter: Counter, length: Any) -> Any:
    """Sample by sequential Monte Carlo, with as many particles as there are draws of a chain."""
    with pm.Model():
        a, b = priors()
        pm.Simulator(
            "y",
            lambda rng, a, b, size: counter.simulate(a, b, rng.standard_normal(N_DATA)),
            a,
            b,
            epsilon=epsilon,
            observed=DATA,
        )
        options = {"chains": length.chains, "cores": 1, "compute_convergence_checks": False}
        return pm.sample_smc(length.draws, random_seed=length.seed, progressbar=False, **options)


METHODS: dict[str, Callable[[float, Counter, Any], Any]] = {
    "apm.estimators.abc": clamped,
    "pm.sample_smc": smc,
}


def run(method: str, epsilon: float, length: Any) -> Record:
    """Run a method, and compare its chains with the exact posterior."""
    counter = Counter()
    posterior = METHODS[method](epsilon, counter, length)["posterior"]
    draws = np.stack([np.asarray(posterior["a"]), np.log(np.asarray(posterior["b"]))])
    mean, sd = exact_moments(epsilon)
    errors = (draws.mean(axis=2) - mean[:, None]) / sd[:, None]
    effective = 1.0 / float(np.square(errors).mean(axis=1).max())
    simulations = counter.n_simulations / length.chains
    return {
        "epsilon": epsilon,
        "method": method,
        "simulations": simulations,
        "effective": effective,
        "per_1000": 1000.0 * effective / simulations,
        "bias": float(np.abs(errors.mean(axis=1)).max()),
        "sd_ratio": float((draws.std(axis=2).mean(axis=1) / sd).min()),
    }


COLUMNS = [
    ("epsilon", "epsilon", "g"),
    ("method", "method", ""),
    ("simulations", "simulations", ".0f"),
    ("effective", "worth draws", ".1f"),
    ("per_1000", "for 1000 simulations", ".3g"),
    ("bias", "error / sd", ".3f"),
    ("sd_ratio", "sd / exact", ".2f"),
]


def main() -> None:
    """Run both methods for all epsilons."""
    options = parser(__doc__.splitlines()[0], draws=1000, tune=500, chains=16)
    arguments = options.parse_args()
    chosen = choose(METHODS, arguments.methods)
    records = [run(method, epsilon, arguments) for epsilon in EPSILONS for method in chosen]
    print_table(records, COLUMNS)
    save(arguments, records)


if __name__ == "__main__":
    main()
