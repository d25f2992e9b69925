"""Estimators that are ordinary Python code: a particle filter, a simulator, somebody's package.

Three models whose likelihood is estimated by code that draws random numbers as it goes:

- ``filter``: a state-space model; a bootstrap particle filter compiled by numba, which draws from
  an ``apm.Stream`` by the methods of a numpy generator. The Kalman filter has the exact answer.
- ``rejection``: rates that are truncated normal, simulated by a loop that rejects until all are
  positive, so that nobody knows beforehand how many random numbers it takes; scipy for the rest.
  Quadrature has the exact answer.
- ``particles``: stochastic volatility with the bootstrap filter of the package ``particles``, which
  uses numpy's global generator. Its code is not changed: it is seeded from an ``apm.Seed``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
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
from scipy import stats
from scipy.integrate import quad_vec
from scipy.special import logsumexp

import pymc_apm as apm

METHODS: dict[str, Callable[[], Any]] = {
    "PM MH": lambda: apm.PseudoMarginalMH(),
    "MI+MH": lambda: apm.APMMetropolis(u_update="independence"),
    "SS+MH": lambda: apm.APMMetropolis(),
    "MI+SS": lambda: apm.APMSlice(u_update="independence"),
    "SS+SS": lambda: apm.APMSlice(),
}


class Example(NamedTuple):
    """A model, its parameters, and their exact posterior means and standard deviations."""

    model: pm.Model
    parameters: list[str]
    exact: list[tuple[float, float]] | None


# A particle filter in numba, which draws from a stream


def simulate_states(n_times: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Simulate an autoregression that is observed with noise of variance 1."""
    x = 0.0
    y = np.empty(n_times)
    for t in range(n_times):
        x = 0.8 * x + 0.7 * rng.standard_normal()
        y[t] = x + rng.standard_normal()
    return y


@numba.njit
def bootstrap_filter(
    y: NDArray[np.float64],
    rho: float,
    sigma: float,
    noise: NDArray[np.float64],
    shifts: NDArray[np.float64],
) -> float:
    """Return the log of an unbiased estimate of the likelihood.

    Particles are sorted before they are resampled, with one uniform number for all: so the estimate
    changes little when the numbers change a little.
    """
    n_times, n_particles = noise.shape
    x = np.zeros(n_particles)
    log_likelihood = 0.0
    for t in range(n_times):
        x = rho * x + sigma * noise[t]
        x.sort()
        log_weights = -0.5 * (y[t] - x) ** 2 - 0.5 * np.log(2 * np.pi)
        largest = log_weights.max()
        weights = np.exp(log_weights - largest)
        log_likelihood += largest + np.log(weights.mean())
        cumulative = np.cumsum(weights) / weights.sum()
        positions = (np.arange(n_particles) + shifts[t]) / n_particles
        index = np.minimum(np.searchsorted(cumulative, positions), n_particles - 1)
        x = x[index]
    return log_likelihood


def kalman_log_likelihood(y: NDArray[np.float64], rho: float, sigma: float) -> float:
    """Return the exact log-likelihood."""
    mean, variance, total = 0.0, 0.0, 0.0
    for observed in y:
        mean, variance = rho * mean, rho**2 * variance + sigma**2
        spread = variance + 1.0
        total += stats.norm.logpdf(observed, mean, np.sqrt(spread))
        gain = variance / spread
        mean, variance = mean + gain * (observed - mean), (1.0 - gain) * variance
    return float(total)


def filter_example(seed: int) -> Example:
    """Infer the persistence and the noise of an autoregression."""
    y = simulate_states(50, np.random.default_rng(seed))

    @apm.black_box
    def log_likelihood(rho: float, sigma: float, rng: Any) -> float:
        noise = rng.standard_normal((len(y), 64))
        return float(bootstrap_filter(y, rho, sigma, noise, rng.random(len(y))))

    with pm.Model() as model:
        rho = pm.Uniform("rho", -1.0, 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        u = apm.Stream("u", kind="normal")
        apm.Potential("log_lik", log_likelihood(rho, sigma, u))

    rhos, sigmas = np.linspace(-0.995, 0.995, 120), np.linspace(0.01, 3.0, 120)
    log_posterior = np.array(
        [[kalman_log_likelihood(y, r, s) + stats.halfnorm.logpdf(s) for s in sigmas] for r in rhos]
    )
    exact = [
        moments(rhos, logsumexp(log_posterior, axis=1)),
        moments(sigmas, logsumexp(log_posterior, axis=0)),
    ]
    return Example(model, ["rho", "sigma"], exact)


def moments(grid: NDArray[np.float64], log_density: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation of a density on an even grid."""
    weights = np.exp(log_density - log_density.max())
    mean = np.average(grid, weights=weights)
    return float(mean), float(np.sqrt(np.average((grid - mean) ** 2, weights=weights)))


# A simulator with a rejection loop


def truncated_normal(mean: float, n: int, rng: Any) -> NDArray[np.float64]:
    """Draw positive normal numbers of standard deviation 1, by rejection."""
    x = rng.normal(mean, 1.0, size=n)
    while (x <= 0.0).any():
        missing = x <= 0.0
        x[missing] = rng.normal(mean, 1.0, size=int(missing.sum()))
    return x


def rejection_example(seed: int) -> Example:
    """Infer the mean of rates of which only Poisson counts are seen."""
    n_units, n_draws = 20, 24
    rng = np.random.default_rng(seed)
    counts = rng.poisson(4.0 * truncated_normal(1.0, n_units, rng))

    @apm.black_box
    def log_likelihood(mean: float, rng: Any) -> float:
        rates = 4.0 * truncated_normal(mean, n_draws * n_units, rng).reshape(n_draws, n_units)
        log_weights = stats.poisson.logpmf(counts, rates)
        return float((logsumexp(log_weights, axis=0) - np.log(n_draws)).sum())

    with pm.Model() as model:
        mean = pm.Uniform("mean", -1.5, 3.0)  # below that the loop would hardly ever end
        apm.Potential("log_lik", log_likelihood(mean, apm.Stream("u", kind="normal")))

    grid = np.linspace(-1.5, 3.0, 200)

    def likelihoods(rate: float) -> NDArray[np.float64]:
        density = stats.norm.pdf(rate, grid[:, None], 1.0) / stats.norm.cdf(grid[:, None])
        return density * stats.poisson.pmf(counts, 4.0 * rate)

    likelihood, _ = quad_vec(likelihoods, 0.0, 12.0, epsrel=1e-8)
    return Example(model, ["mean"], [moments(grid, np.log(likelihood).sum(axis=1))])


# A filter from a package, seeded


def particles_example(seed: int) -> Example:
    """Infer two parameters of stochastic volatility with the package ``particles``."""
    import particles
    from particles import state_space_models

    np.random.seed(seed)  # noqa: NPY002  the package draws from numpy's global generator
    _, y = state_space_models.StochVol(mu=-1.0, rho=0.9, sigma=0.4).simulate(40)

    @apm.black_box
    def log_likelihood(mu: float, sigma: float, rng: np.random.Generator) -> float:
        np.random.seed(rng.integers(2**32))  # noqa: NPY002  the package knows no other way
        volatility = state_space_models.StochVol(mu=mu, rho=0.9, sigma=sigma)
        bootstrap = particles.SMC(state_space_models.Bootstrap(volatility, y), N=100)
        bootstrap.run()
        return float(bootstrap.logLt)

    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 0.5)
        apm.Potential("log_lik", log_likelihood(mu, sigma, apm.Seed("seed")))
    return Example(model, ["mu", "sigma"], None)


EXAMPLES = {
    "filter": filter_example,
    "rejection": rejection_example,
    "particles": particles_example,
}


def record_of(example: Example, run: Run) -> Record:
    """Summarise the run of one method."""
    draws = np.concatenate([draws_of(run, name) for name in example.parameters], axis=-1)
    n_draws = draws.shape[0] * draws.shape[1]
    evals = mean_statistic(run, "n_evals") or 0.0
    effective = ess(draws)
    mcse = draws.std(axis=(0, 1)) / np.sqrt(effective)
    means = draws.mean(axis=(0, 1))
    record = {
        "method": run.method,
        "draws": n_draws,
        "evals_per_draw": evals,
        "theta_accepted": mean_statistic(run, "accepted"),
        "u_accepted": mean_statistic(run, "u_accepted"),
        "n_random": mean_statistic(run, "n_random"),
        "ess": float(effective.min()),
        "ess_per_1000_evals": float(1000 * effective.min() / (n_draws * evals)),
        "ess_per_second": float(effective.min() / run.seconds),
        "longest_stuck": longest_stuck_run(draws),
    }
    for name, mean, deviation in zip(
        example.parameters, means, draws.std(axis=(0, 1)), strict=True
    ):
        record[f"{name}_mean"], record[f"{name}_sd"] = float(mean), float(deviation)
    if example.exact is not None:
        exact = np.array([mean for mean, _ in example.exact])
        record["worst_error_in_mcse"] = float(np.abs((means - exact) / mcse).max())
    return record


def main() -> None:
    """Run the script."""
    options = parser(__doc__.splitlines()[0], draws=1_000, tune=500, chains=2)
    options.add_argument("--model", choices=list(EXAMPLES), default="filter")
    arguments = options.parse_args()
    if arguments.full:
        arguments.draws, arguments.chains = 10_000, 4
    example = EXAMPLES[arguments.model](arguments.seed)

    records = [
        record_of(
            example,
            sample(
                method,
                example.model,
                METHODS[method],
                draws=arguments.draws,
                tune=arguments.tune,
                chains=arguments.chains,
                random_seed=arguments.seed,
            ),
        )
        for method in choose(METHODS, arguments.methods)
    ]
    columns = [
        ("method", "method", "s"),
        ("evals_per_draw", "evals/draw", ".2f"),
        ("theta_accepted", "theta acc.", ".3f"),
        ("u_accepted", "u acc.", ".3f"),
        ("n_random", "random numbers", ".0f"),
        ("ess", "ESS", ".0f"),
        ("ess_per_1000_evals", "ESS/1000 evals", ".2f"),
        ("ess_per_second", "ESS/s", ".1f"),
        ("longest_stuck", "longest stuck", "d"),
    ]
    for number, name in enumerate(example.parameters):
        exact = example.exact[number] if example.exact else None
        for key, place in (("mean", 0), ("sd", 1)):
            heading = f"{name} {key}" + (f" ({exact[place]:.3f})" if exact else "")
            columns.append((f"{name}_{key}", heading, ".3f"))
    if example.exact:
        columns.append(("worst_error_in_mcse", "worst error/MCSE", ".1f"))
    print_table(records, columns)
    save(arguments, records)


if __name__ == "__main__":
    main()
