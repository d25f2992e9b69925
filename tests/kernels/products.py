"""Products of the targets: several factors, each with its own parameters and its own part of u.

Exact draws of a product are exact draws of its factors. The factors differ, so that some are
accepted in the first round of an update and others are left behind.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_apm.adaptive.factors import updating_factors
from pymc_apm.kernels.draws import draw_normal, draw_uniform
from pymc_apm.kernels.factors import (
    elliptical_slice_of_factors,
    make_independence_of_factors,
    reflective_slice_of_factors,
)
from pymc_apm.types import FREE, ONE_EVALUATION, Evaluation, FactorPlaces, summed
from tests.kernels.runs import Run, in_python
from tests.kernels.targets import JOINTS, log_estimate

LAYOUT, THETA, U, ENTRIES, FACTOR_OF_U, FACTOR_OF_ENTRY = range(6)
"""Where all this is among the values of an evaluation."""


class Layout(NamedTuple):
    """The number of each factor's target, and where its parameters and its u start."""

    numbers: np.ndarray
    starts_of_theta: np.ndarray
    starts_of_u: np.ndarray


class Product(NamedTuple):
    """A product of targets."""

    names: tuple[str, ...]

    @property
    def factors(self):
        return [JOINTS[name] for name in self.names]

    @property
    def layout(self) -> Layout:
        return Layout(
            np.array([joint.number for joint in self.factors]),
            np.cumsum([0, *(joint.n_theta for joint in self.factors)]),
            np.cumsum([0, *(joint.n_u for joint in self.factors)]),
        )

    @property
    def dim(self) -> int:
        return sum(joint.dim for joint in self.factors)

    @property
    def n_theta(self) -> int:
        return int(self.layout.starts_of_theta[-1])

    @property
    def factor_of_u(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.names)), [joint.n_u for joint in self.factors])

    def draw(self, rng, n_chains):
        draws = [j.from_normal(rng.standard_normal((n_chains, j.dim))) for j in self.factors]
        thetas, us = (np.column_stack(parts) for parts in zip(*draws, strict=True))
        return np.ascontiguousarray(thetas), np.ascontiguousarray(us)

    def to_normal(self, thetas, us):
        _, of_theta, of_u = self.layout
        return np.column_stack(
            [
                joint.to_normal(
                    thetas[:, of_theta[g] : of_theta[g + 1]], us[:, of_u[g] : of_u[g + 1]]
                )
                for g, joint in enumerate(self.factors)
            ]
        )


PRODUCTS = {
    "normal": Product(("toy1", "two_humps_normal", "toy2", "skewed", "heavy")),
    "uniform": Product(("tilted1", "two_humps_uniform", "tilted2", "powers", "triangle")),
}


def entries_of(layout, theta, u):
    entries = np.empty(layout.numbers.size)
    for g in range(entries.size):
        here = theta[layout.starts_of_theta[g] : layout.starts_of_theta[g + 1]]
        numbers = u[layout.starts_of_u[g] : layout.starts_of_u[g + 1]]
        entries[g] = log_estimate(layout.numbers[g], here, numbers)
    return entries


def spoilt(entries):
    """Return what a product with zeros makes of factors if one of them is infinite."""
    if np.isneginf(entries).any():
        return np.where(np.isneginf(entries), entries, math.nan)
    return entries


def evaluate(theta, u, values, is_spoilt=False):
    entries = entries_of(values[LAYOUT], theta, u)
    if is_spoilt:
        entries = spoilt(entries)
    total = summed(entries)
    values = (values[LAYOUT], theta, u, entries, values[FACTOR_OF_U], values[FACTOR_OF_ENTRY])
    return total, Evaluation(values, total, total, 0.0, 0.0, ONE_EVALUATION, -math.inf)


def along_theta(theta, evaluation):
    return evaluate(theta, evaluation.values[U], evaluation.values)


def along_u(u, evaluation):
    return evaluate(evaluation.values[THETA], u, evaluation.values)


def spoilt_along_u(u, evaluation):
    return evaluate(evaluation.values[THETA], u, evaluation.values, True)


def places(n_factors: int) -> FactorPlaces:
    """Return the places of a product of so many factors."""
    entries = (ENTRIES, FACTOR_OF_ENTRY)
    return FactorPlaces(n_factors, FACTOR_OF_U, [entries], [(U, FACTOR_OF_U), entries])


def factor_by_factor(kernel: Callable[..., Any], density=along_u):
    """Return the update of u by a kernel for factors."""
    return updating_factors(kernel, density, U, places(5), [ENTRIES])


KERNELS = {
    ("normal", "slice"): elliptical_slice_of_factors,
    ("uniform", "slice"): reflective_slice_of_factors,
    ("normal", "independence"): make_independence_of_factors(draw_normal),
    ("uniform", "independence"): make_independence_of_factors(draw_uniform),
}


@functools.cache
def sweeping(transition):
    """Return a function that makes a transition for all chains, one after the other."""

    def sweep(rng, constants, thetas, us, entries, options, learnt):
        layout, of_u, of_entry = constants
        for i in range(len(thetas)):
            values = (layout, thetas[i].copy(), us[i].copy(), entries[i].copy(), of_u, of_entry)
            total = summed(values[ENTRIES])
            start = Evaluation(values, total, total, 0.0, 0.0, FREE, -math.inf)
            end, _, _ = transition(rng, start, options, learnt, False)
            for j in range(thetas.shape[1]):
                thetas[i, j] = end.values[THETA][j]
            for j in range(us.shape[1]):
                us[i, j] = end.values[U][j]
            for j in range(entries.shape[1]):
                entries[i, j] = end.values[ENTRIES][j]

    return sweep


def run_product(rng, product, transition, options, learnt, n_chains, n_rounds, how=in_python):
    """Start independent chains from exact draws, and make some transitions.

    Log-estimates are computed for the start alone: from there on chains live on what transitions
    hand back. They must be, at the end, those of the parameters and of u.
    """
    thetas, us = starts = product.draw(rng, n_chains)
    thetas, us = thetas.copy(), us.copy()
    layout = product.layout
    entries = np.array([entries_of(layout, theta, u) for theta, u in zip(thetas, us, strict=True)])
    constants = layout, product.factor_of_u, np.arange(len(product.names))
    for _ in range(n_rounds):
        how(sweeping(transition))(rng, constants, thetas, us, entries, options, learnt)
    recomputed = [entries_of(layout, theta, u) for theta, u in zip(thetas, us, strict=True)]
    moved = {"theta": float(np.mean(thetas != starts[0])), "u": float(np.mean(us != starts[1]))}
    run = Run(product.to_normal(*starts), product.to_normal(thetas, us), moved)
    return run, float(np.max(np.abs(entries - np.array(recomputed))))
