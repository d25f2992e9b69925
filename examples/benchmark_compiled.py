"""Compiled chains against what they cannot do without: PyMC's bookkeeping and a loop by hand."""

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pymc as pm
from pymc.step_methods.arraystep import BlockedStep
from toy_gaussian import build_model

import pymc_apm as apm

ROUNDS = 7
WIDTH = 4.0


@numba.njit
def loop_by_hand(rng: Any, theta: Any, u: Any, n_updates: int, draws: Any) -> None:
    """Sample the toy Gaussian by elliptical slices of u and slices of theta, and nothing else."""
    dim = theta.size
    direction, proposal = np.empty(dim), np.empty(dim)
    log_density = -np.sum(theta * theta) - np.sum(u * theta)
    for update in range(n_updates):
        for i in range(dim):
            direction[i] = rng.standard_normal()
        log_height = log_density - rng.standard_exponential()
        z = 2.0 * math.pi * rng.random()
        lower, upper = z - 2.0 * math.pi, z
        squares = 0.0
        for i in range(dim):
            squares += theta[i] * theta[i]
        while True:
            cosine, sine = math.cos(z), math.sin(z)
            products = 0.0
            for i in range(dim):
                proposal[i] = u[i] * cosine + direction[i] * sine
                products += proposal[i] * theta[i]
            log_density = -squares - products
            if log_density > log_height:
                break
            if z < 0.0:
                lower = z
            else:
                upper = z
            z = lower + (upper - lower) * rng.random()
        for i in range(dim):
            u[i] = proposal[i]

        norm = 0.0
        for i in range(dim):
            direction[i] = rng.standard_normal()
            norm += direction[i] * direction[i]
        norm = math.sqrt(norm)
        log_height = log_density - rng.standard_exponential()
        lower = -WIDTH * rng.random()
        upper = lower + WIDTH
        z = lower + (upper - lower) * rng.random()
        while True:
            squares, products = 0.0, 0.0
            for i in range(dim):
                proposal[i] = theta[i] + z * direction[i] / norm
                squares += proposal[i] * proposal[i]
                products += u[i] * proposal[i]
            log_density = -squares - products
            if log_density > log_height:
                break
            if z < 0.0:
                lower = z
            else:
                upper = z
            z = lower + (upper - lower) * rng.random()
        for i in range(dim):
            theta[i] = proposal[i]
            draws[update, i] = theta[i]


class EmptyStep(BlockedStep):
    """A step that leaves the chain where it is: what remains is PyMC's own work."""

    stats_dtypes_shapes: dict[str, Any] = {}  # noqa: RUF012  # as PyMC declares it

    def __init__(self, vars: Any) -> None:
        self.vars = vars
        self.rng = np.random.default_rng()

    def step(self, point: Any) -> tuple[Any, list[dict[str, Any]]]:
        return point, [{}]


def cpu_time(work: Callable[[], Any]) -> float:
    """Return the CPU time that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def sample(step: Any, draws: int) -> float:
    """Return the CPU time of a run of one chain."""
    options = {"chains": 1, "cores": 1, "tune": 0, "progressbar": False, "quiet": True}
    options |= {"compute_convergence_checks": False, "initvals": {"theta": np.zeros(5)}}
    return cpu_time(lambda: pm.sample(draws, step=step, random_seed=1, **options))


def per_draw(step: Any, short: int = 5_000, long: int = 45_000) -> float:
    """Return the CPU time of a draw, from runs of two lengths: the set-up cancels out."""
    return (sample(step, long) - sample(step, short)) / (long - short)


def by_hand(n_updates: int) -> float:
    """Return the CPU time of an update of the loop by hand."""
    rng = np.random.default_rng(1)
    theta, draws = np.zeros(5), np.empty((n_updates, 5))
    u = rng.standard_normal(5)
    return cpu_time(lambda: loop_by_hand(rng, theta, u, n_updates, draws)) / n_updates


@functools.cache
def toy() -> dict[str, float]:
    """Time a draw of the toy Gaussian in several ways, in turns; return medians of ratios."""
    with build_model() as model:
        compiled = apm.APMSlice(width=WIDTH, factorwise=False, compile=True)
        thinned = apm.APMSlice(width=WIDTH, factorwise=False, compile=True, thin=100)
    with pm.Model() as normal:
        pm.Normal("theta", shape=5)
        empty = EmptyStep(normal.value_vars)
    by_hand(10)
    ratios: dict[str, list[float]] = {"floor": [], "thin": []}
    for _ in range(ROUNDS):
        hand = by_hand(300_000)
        with model:
            ours = per_draw(compiled)
            thin = per_draw(thinned, 1_000, 13_000) / 100
        with normal:
            floor = per_draw(empty)
        ratios["floor"].append(ours / (floor + hand))
        ratios["thin"].append(thin / hand)
        print(
            f"  a draw {1e6 * ours:.2f} us, an empty step {1e6 * floor:.2f}, by hand "
            f"{1e6 * hand:.3f}, a transition with thin=100 {1e6 * thin:.3f}",
            flush=True,
        )
    return {name: statistics.median(values) for name, values in ratios.items()}


def random_effects() -> float:
    """Return the time of a draw compiled / in Python, for 100 groups and 16 importance draws.

    Both make the same draws, so that the ratio of effective draws per second is its inverse.
    """
    rng = np.random.default_rng(1)
    counts = rng.poisson(np.exp(1.0 + 0.5 * rng.standard_normal(100)))
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
        u = apm.StandardNormal("u", shape=(16, 100))
        log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + sigma * u)), counts)
        apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
        steps = [apm.APMSlice(compile=compile) for compile in (True, False)]
    options = {"chains": 1, "cores": 1, "progressbar": False, "quiet": True, "random_seed": 1}
    options |= {"compute_convergence_checks": False}

    def run(step: Any) -> None:
        with model:
            pm.sample(3000, tune=1000, step=step, **options)

    for step in steps:
        run(step)
    return statistics.median(
        cpu_time(lambda: run(steps[0])) / cpu_time(lambda: run(steps[1])) for _ in range(5)
    )


BENCHMARKS: list[tuple[str, Callable[[], float], float]] = [
    ("compiled draw / (empty step + loop by hand), toy", lambda: toy()["floor"], 2.5),
    ("compiled transition with thin=100 / loop by hand, toy", lambda: toy()["thin"], 5.0),
    ("random effects, 100 x 16: compiled / Python, time per draw", random_effects, 0.33),
]
"""What is measured, how, and what it may be at the most."""
