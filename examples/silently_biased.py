"""What becomes of a posterior where the noise of an estimate is treated as no noise.

    python examples/silently_biased.py

Two models whose posteriors are known. The first is the paper's toy Gaussian, five dimensions with
mean 0 and variance 1, of which an estimate is at hand, log f_hat = -|theta|^2 - u.theta. The second
is a simulator of one normal number, theta ~ N(0, 1), x ~ N(theta, 1), with the kernel of ABC,
exp(-(x - y)^2 / (2 epsilon^2)); its exact posterior has the variance 1 / (1 + 1 / (1 + epsilon^2)).

``--methods`` takes a part of their names. Methods that clamp u for a whole chain, or that draw it
afresh for each update and forget the estimate of the current point, run without a warning.
"""

from collections.abc import Callable
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
from common import Record, parser, print_table, save
from numpy.typing import NDArray

import pymc_apm as apm

DIM = 5
EPSILON = 0.5
OBSERVED = 1.0

Draws = NDArray[np.float64]
Sample = dict[str, Any]
"""The length and the seed of a run."""


def draws_of(idata: Any) -> Draws:
    """Return the draws of theta with shape (chain, draw, component)."""
    draws = np.asarray(idata["posterior"]["theta"])
    return draws.reshape(*draws.shape[:2], -1)


def toy(u: Any) -> Any:
    """Return the log-estimate of the paper's toy Gaussian with these random numbers."""
    theta = pm.Flat("theta", shape=DIM)
    return -(theta**2).sum() - (u * theta).sum()


def part_of_the_state(length: Sample) -> Draws:
    """Sample theta and u: what pm.sample does with this package."""
    with pm.Model():
        apm.Potential("log_lik", toy(apm.StandardNormal("u", shape=DIM)))
        return draws_of(pm.sample(**length))


def frozen(length: Sample) -> Draws:
    """Draw u once for each chain, as one who fixes the seed of an estimator does."""
    rng = np.random.default_rng(length["random_seed"])
    chains = []
    with pm.Model() as model:
        pm.Potential("log_lik", toy(pm.Data("frozen_u", np.zeros(DIM))))
        for chain in range(length["chains"]):
            model.set_data("frozen_u", rng.standard_normal(DIM))
            one = length | {"chains": 1, "random_seed": length["random_seed"] + chain}
            chains.append(draws_of(pm.sample(**one)))
    return np.concatenate(chains)


def fresh(length: Sample, make_step: Callable[[], Any], every: int = 1) -> Draws:
    """Draw u after so many draws, and forget the estimate of the current point."""
    rng = np.random.default_rng(length["random_seed"])
    with pm.Model() as model:
        pm.Potential("log_lik", toy(pm.Data("fresh_u", rng.standard_normal(DIM))))

        def refresh(draw: Any, **_: Any) -> None:
            if draw.draw_idx % every == 0:
                model.set_data("fresh_u", rng.standard_normal(DIM))

        return draws_of(pm.sample(**length, step=make_step(), callback=refresh))


def abc(length: Sample) -> Draws:
    """Let this package estimate the ABC likelihood."""
    with pm.Model():
        theta = pm.Normal("theta")
        apm.estimators.abc(
            "x",
            lambda theta, rng: theta + rng.standard_normal(),
            OBSERVED,
            epsilon=EPSILON,
            parameters=[theta],
        )
        return draws_of(pm.sample(**length))


def simulator() -> pm.Model:
    """Return the same with PyMC's own simulator."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        pm.Simulator(
            "x",
            lambda rng, theta, size: rng.normal(theta, 1.0, size=size),
            theta,
            epsilon=EPSILON,
            observed=np.array([OBSERVED]),
        )
    return model


def simulator_metropolis(length: Sample) -> Draws:
    """Sample it with Metropolis, which simulates the current point again for each proposal."""
    with simulator():
        return draws_of(pm.sample(step=pm.Metropolis(), **length))


def simulator_smc(length: Sample) -> Draws:
    """Sample it as its documentation says."""
    with simulator():
        length = {key: value for key, value in length.items() if key != "tune"}
        return draws_of(pm.sample_smc(**length))


TOY, SIMULATOR = "toy Gaussian", "simulator"
EXACT = {TOY: (0.0, 1.0), SIMULATOR: (0.0, 0.0)}
PRECISION = 1.0 + 1.0 / (1.0 + EPSILON**2)
EXACT[SIMULATOR] = (OBSERVED / (1.0 + EPSILON**2) / PRECISION, 1.0 / PRECISION)

METHODS: dict[str, tuple[str, Callable[[Sample], Draws]]] = {
    "u in the state, pm.sample": (TOY, part_of_the_state),
    "u frozen for each chain, NUTS": (TOY, frozen),
    "u fresh for every 20 draws, NUTS": (TOY, lambda length: fresh(length, pm.NUTS, every=20)),
    "u fresh for each draw, slices": (TOY, lambda length: fresh(length, pm.Slice)),
    "u fresh for each draw, NUTS": (TOY, lambda length: fresh(length, pm.NUTS)),
    "apm.estimators.abc, pm.sample": (SIMULATOR, abc),
    "pm.Simulator, pm.Metropolis": (SIMULATOR, simulator_metropolis),
    "pm.Simulator, pm.sample_smc": (SIMULATOR, simulator_smc),
}

COLUMNS = [
    ("model", "model", "s"),
    ("method", "method", "s"),
    ("mean", "mean", "+.2f"),
    ("exact_mean", "exact", "+.2f"),
    ("variance", "variance", ".3f"),
    ("variance_mcse", "MCSE", ".3f"),
    ("exact_variance", "exact", ".3f"),
    ("rhat", "R-hat", ".2f"),
]


def record_of(method: str, draws: Draws) -> Record:
    """Say what a run found: variances are within chains, and means over dimensions."""
    model, _ = METHODS[method]
    squares = (draws - draws.mean(axis=1, keepdims=True)) ** 2
    per_component = np.moveaxis(squares, -1, 0)
    errors = [np.sqrt(part.var() / float(az.ess(part))) for part in per_component]
    return {
        "model": model,
        "method": method,
        "mean": float(draws.mean()),
        "exact_mean": EXACT[model][0],
        "variance": float(squares.mean()),
        "variance_mcse": float(np.sqrt(np.sum(np.square(errors))) / len(errors)),
        "exact_variance": EXACT[model][1],
        "rhat": float(max(float(az.rhat(part)) for part in np.moveaxis(draws, -1, 0))),
        "draws": draws.shape[0] * draws.shape[1],
    }


def main() -> None:
    """Run the script."""
    arguments = parser(__doc__.splitlines()[0], draws=4000, tune=1000, chains=4).parse_args()
    records = []
    for method in [name for name in METHODS if (arguments.methods or "") in name]:
        _, sample = METHODS[method]
        length = {
            "draws": arguments.draws,
            "tune": arguments.tune,
            "chains": arguments.chains,
            "cores": 1,
            "random_seed": arguments.seed,
            "progressbar": False,
            "compute_convergence_checks": False,
        }
        records.append(record_of(method, sample(length)))
    print_table(records, COLUMNS)
    save(arguments, records)


if __name__ == "__main__":
    main()
