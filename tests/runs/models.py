"""Small models with every kind of step, in a module that a child process can import."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pymc_apm as apm

CLOCKS = ("perf_counter_diff", "perf_counter_start", "process_time_diff")
"""Statistics of NUTS that differ from run to run."""

COUNTS = np.array([2, 4, 1, 0, 3, 5])


def symbolic(counts: np.ndarray = COUNTS, prior_sd: float = 1.0) -> pm.Model:
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, prior_sd), pm.HalfNormal("sigma", 1)
        u = apm.StandardNormal("u", shape=(4, 6))
        log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + sigma * u)), counts)
        apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
        pm.Deterministic("both", pm.math.stack([mu, sigma]))
    return model


def log_estimate(mu: Any, sigma: Any, rng: Any) -> float:
    """Estimate the same likelihood with a number of draws that is itself random."""
    total = 0.0
    for count in COUNTS[:3]:
        noise = mu + sigma * rng.normal(size=2 + rng.poisson(1.0))
        total += np.logaddexp.reduce(count * noise - np.exp(noise)) - np.log(noise.size)
    return total


def black_box(declare: Callable[[], Any]) -> pm.Model:
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        apm.Potential("log_lik", apm.black_box(log_estimate)(mu, sigma, declare()))
    return model


def ising(data: tuple[int, ...] = (1, 1, -1, 1)) -> pm.Model:
    lattice = apm.estimators.Ising.lattice(2, 2)
    with pm.Model() as model:
        field = pm.Uniform("field", -1, 1)
        apm.estimators.doubly_intractable(
            "y", lattice, [0.2, field], np.array(data), reference={"field": 0.1}
        )
    return model


class Kind(NamedTuple):
    """A model and the steps for it, each made by a function."""

    model: Callable[[], pm.Model]
    step: Callable[[pm.Model], Any]


def stream() -> Any:
    return apm.Stream("u", kind="normal")


KINDS = {
    "slice": Kind(symbolic, lambda model: apm.APMSlice(compile=False)),
    "slice compiled": Kind(symbolic, lambda model: apm.APMSlice(compile=True)),
    "MH": Kind(symbolic, lambda model: apm.APMMetropolis(compile=False)),
    "PM MH stream": Kind(
        lambda: black_box(stream), lambda model: apm.PseudoMarginalMH(correlation="auto")
    ),
    "slice stream": Kind(lambda: black_box(stream), lambda model: apm.APMSlice(thin=2)),
    "seed": Kind(lambda: black_box(lambda: apm.Seed("u")), lambda model: apm.APMSlice()),
    "exchange": Kind(ising, lambda model: apm.ExchangeMH()),
    "u and NUTS": Kind(symbolic, lambda model: [apm.APMEllipticalU(), pm.NUTS(model.free_RVs)]),
    "several": Kind(
        symbolic,
        lambda model: [
            apm.APMSlice([model["mu"]], compile=False),
            pm.Metropolis([model["sigma"]]),
            apm.APMEllipticalU(),
        ],
    ),
}
"""What a run can be made of."""


def differences(first: Any, second: Any, ignored: tuple[str, ...] = CLOCKS) -> list[str]:
    """Return the names of what differs between two results, to the last bit."""
    found = []
    for group in ("posterior", "sample_stats"):
        one, two = first[group], second[group]
        names = {*one.data_vars} | {*two.data_vars}
        for name in sorted(names - set(ignored)):
            same = (
                name in one
                and name in two
                and one[name].dims == two[name].dims
                and one[name].dtype == two[name].dtype
                and one[name].values.tobytes() == two[name].values.tobytes()
            )
            found += [] if same else [f"{group}/{name}"]
    return found
