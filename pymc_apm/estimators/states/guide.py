"""Where the points of a pool are: quasi-random numbers through the quantiles of a guide.

In each row of the data a guide is a distribution of the state: independent logistic numbers, or
Cauchy ones where tails are heavy, times a triangular matrix and shifted; of the logs of states that
are positive, and of the log-odds of those between 0 and 1. A pool has the points of a lattice,
shifted by uniform numbers u, one for each row and number of the state, and put through its
quantiles. So each point by itself has the guide's distribution, which makes the estimate unbiased,
and together they lie evenly, which makes it precise.
"""

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.transforms import (
    IntervalTransform,
    LogOddsTransform,
    LogTransform,
    _default_transform,
)
from pytensor.tensor.variable import TensorVariable

from pymc_apm.estimators.states.parts import Part
from pymc_apm.estimators.states.specification import Specification

Floats = NDArray[np.float64]
Support: TypeAlias = Literal["real", "positive", "unit"]
Tails: TypeAlias = Literal["logistic", "cauchy"]

SMALLEST = 1e-12
"""Probabilities are at least this far from 0 and 1."""

WEIGHT = 0.3
"""What each dimension counts in the choice of a lattice: less than 1, for few of them at a time."""

HEAVY = ("StudentTRV", "CauchyRV", "HalfStudentTRV", "HalfCauchyRV", "SkewStudentTRV", "ParetoRV")
"""Distributions with heavier tails than a logistic one."""


class Guide(NamedTuple):
    """The distributions that points are taken from, frozen.

    Attributes
    ----------
    mean : ndarray or TensorVariable
        Where the middle is, on the real line: (rows, numbers of a state).
    chol : ndarray or TensorVariable
        What independent numbers are multiplied by: (rows, numbers, numbers), lower triangular.
    supports : tuple of str
        Of each number of a state: the real line, positive numbers, or those between 0 and 1.
    tails : str
    """

    mean: Any
    chol: Any
    supports: tuple[Support, ...]
    tails: Tails


class Points(NamedTuple):
    """The points of a pool, and the logs of how many there are, times their density.

    Attributes
    ----------
    states : TensorVariable
        (rows, points, numbers of a state).
    log_density : TensorVariable
        (rows, points).
    """

    states: TensorVariable
    log_density: TensorVariable


def supports_of(specification: Specification) -> tuple[Support, ...]:
    """Find out where states live, from the distributions of their transitions.

    One that may start elsewhere than it moves to is anywhere on the line.
    """
    found: list[Support] = []
    for state in specification.states:
        transform = _transform(specification.transition, state.name)
        support: Support = "real"
        if isinstance(transform, LogTransform) and _starts_within(
            specification, state.name, np.inf
        ):
            support = "positive"
        elif isinstance(transform, LogOddsTransform) and _starts_within(
            specification, state.name, 1.0
        ):
            support = "unit"
        found += [support] * state.size
    return tuple(found)


def _transform(part: Part, name: str) -> Any:
    result = part.results[name]
    return _default_transform(result.owner.op, result) if result in part.draws else None


def _starts_within(specification: Specification, name: str, largest: float) -> bool:
    """Say whether the first value of a state is known to be between 0 and the largest one."""
    if specification.is_fixed_start:
        return True
    transform = _transform(specification.initial, name)
    if isinstance(transform, LogOddsTransform):
        return True
    if isinstance(transform, LogTransform):
        return largest == np.inf
    if not isinstance(transform, IntervalTransform):
        return False
    low, high = transform.args_fn(*specification.initial.results[name].owner.inputs)
    low = -np.inf if low is None else getattr(low, "data", np.nan)  # NaN: not known
    high = np.inf if high is None else getattr(high, "data", np.nan)
    return bool(np.all(low >= 0.0) and np.all(high <= largest))


def tails_of(specification: Specification) -> Tails:
    """Find out whether the tails of states may be heavy."""
    draws = [*specification.initial.draws, *specification.transition.draws]
    is_heavy = any(type(draw.owner.op).__name__ in HEAVY for draw in draws)
    return "cauchy" if is_heavy else "logistic"


def make_points(guide: Guide, u: TensorVariable, n_points: int) -> Points:
    """Return the points that belong to uniform numbers ``u``, (rows, numbers of a state)."""
    n_rows, n_dims = u.type.shape
    p = (pt.constant(lattice(n_points, n_dims)) + u[:, None, :]) % 1.0
    p = pt.clip(p, SMALLEST, 1.0 - SMALLEST)
    if guide.tails == "logistic":
        standard = pt.log(p) - pt.log1p(-p)
        log_q = pt.log(p) + pt.log1p(-p)
    else:
        standard = pt.tan(math.pi * (p - 0.5))
        log_q = -math.log(math.pi) - pt.log1p(standard**2)
    mean, chol = pt.as_tensor_variable(guide.mean), pt.as_tensor_variable(guide.chol)
    # Written out, because there are few numbers and many points.
    columns = [
        mean[:, k, None] + sum(chol[:, k, i, None] * standard[:, :, i] for i in range(k + 1))
        for k in range(n_dims)
    ]
    log_det = sum(pt.log(chol[:, k, k]) for k in range(n_dims))
    log_density = pt.sum(log_q, axis=2) + (math.log(n_points) - log_det)[:, None]
    for k, support in enumerate(guide.supports):
        if support == "positive":
            log_density = log_density - columns[k]
            columns[k] = pt.exp(columns[k])
        elif support == "unit":
            log_density = log_density + pt.softplus(columns[k]) + pt.softplus(-columns[k])
            columns[k] = pt.sigmoid(columns[k])
    states = pt.stack(columns, axis=2)
    return Points(pt.specify_shape(states, (n_rows, n_points, n_dims)), log_density)


def to_line(states: Floats, supports: tuple[Support, ...]) -> Floats:
    """Put states on the real line."""
    columns = []
    for k, support in enumerate(supports):
        column = states[..., k]
        if support == "positive":
            column = np.log(np.maximum(column, 1e-300))
        elif support == "unit":
            column = np.clip(column, 1e-15, 1.0 - 1e-15)
            column = np.log(column) - np.log1p(-column)
        columns.append(column)
    return np.stack(columns, axis=-1)


def lattice(n_points: int, n_dims: int) -> Floats:
    """Return the points of a lattice in the unit cube, (points, dims).

    In one dimension it is even. In more it is Korobov's lattice with the smallest worst-case error
    for functions that have a derivative in each dimension. Its generator and the number of points
    have no common factor, so that the points are even in each dimension by itself: were several of
    them at the same place there, as many points would be worth one.
    """
    number = np.arange(n_points)
    if n_dims == 1:
        return (number / n_points)[:, None]

    def korobov(generator: int) -> Floats:
        powers = [pow(generator, k, n_points) for k in range(n_dims)]
        return (np.outer(number, powers) % n_points) / n_points

    def error(points: Floats) -> float:
        bernoulli = points * (points - 1.0) + 1.0 / 6.0
        weighted = 1.0 + WEIGHT * 2.0 * math.pi**2 * bernoulli
        return float(np.prod(weighted, axis=1).mean())

    generators = [g for g in range(1, max(n_points, 2)) if math.gcd(g, n_points) == 1]
    return min((korobov(generator) for generator in generators), key=error)
