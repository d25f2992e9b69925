"""Updates of u factor by factor: what joins the kernels to a density whose estimate is a vector.

An evaluation has, among its values, the log-estimate of each entry of a vector, all that was
computed from u on the way to it, and for each of these arrays the *factor* that each of its
elements belongs to. So the log density of each factor is a sum by these numbers, and two
evaluations are merged, factor by factor, without computing anything again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_apm.adaptive.report import Report, u_report
from pymc_apm.adaptive.transition import UpdateU
from pymc_apm.kernels.factors import FactorsState
from pymc_apm.types import (
    Evaluation,
    FactorPlaces,
    FloatVector,
    LogDensity,
    summed,
)


def updating_factors(
    kernel: Callable[..., Any],
    density: LogDensity,
    place: int,
    places: FactorPlaces,
    estimates: Sequence[int],
) -> UpdateU:
    """Make an update of one u, factor by factor, from a kernel.

    Parameters
    ----------
    kernel : callable
        As :func:`~pymc_apm.kernels.factors.elliptical_slice_of_factors`.
    density : callable
        The log density as a function of that u.
    place : int
        Where u is among the values of an evaluation.
    places : FactorPlaces
    estimates : sequence of int
        Where all log-estimates are, also those that do not depend on u.
    """
    add_up, merge, log_estimate = (
        adding_up(places.terms),
        merging(places.changed),
        summing(estimates),
    )
    n_factors, place_of_factors = places.n_factors, places.u

    def log_densities(position: Any, evaluation: Evaluation) -> tuple[FloatVector, Evaluation]:
        _, new = density(position, evaluation)
        return add_up(np.zeros(n_factors), new.values), new

    def merged(old: Evaluation, new: Evaluation, has_moved: NDArray[np.bool_]) -> Evaluation:
        values = merge(old.values, new.values, has_moved)
        estimate = log_estimate(values)
        log_density = old.log_prior + old.log_exact + estimate
        prior, exact = old.log_prior, old.log_exact
        return Evaluation(values, log_density, estimate, prior, exact, new.cost, -np.inf)

    def update_u(rng: np.random.Generator, evaluation: Evaluation) -> tuple[Evaluation, Report]:
        values = evaluation.values
        state = FactorsState(values[place], add_up(np.zeros(n_factors), values), evaluation)
        state, info = kernel(rng, state, log_densities, merged, values[place_of_factors])
        return state.memo, u_report(info.cost, 1, info.accepted, info.accept_rate)

    return update_u


def adding_up(
    places: Sequence[tuple[int, int]],
) -> Callable[[FloatVector, tuple[Any, ...]], FloatVector]:
    """Return a function that adds the elements of some values to the totals of their factors."""
    if not places:
        return _as_it_is
    (place, place_of_factors), others = places[0], adding_up(places[1:])

    def add_up(totals: FloatVector, values: tuple[Any, ...]) -> FloatVector:
        return others(added(totals, values[place], values[place_of_factors]), values)

    return add_up


def _as_it_is(totals: FloatVector, values: tuple[Any, ...]) -> FloatVector:
    return totals


def merging(
    places: Sequence[tuple[int, int]], start: int = 0
) -> Callable[[tuple[Any, ...], tuple[Any, ...], NDArray[np.bool_]], tuple[Any, ...]]:
    """Return a function that takes new values for factors that have moved, old ones for others.

    All values but those at the given places are taken from the new ones.
    """
    if not places:
        return _from(start)
    (place, place_of_factors), others = places[0], merging(places[1:], places[0][0] + 1)

    def merge(
        old: tuple[Any, ...], new: tuple[Any, ...], has_moved: NDArray[np.bool_]
    ) -> tuple[Any, ...]:
        merged = (chosen(old[place], new[place], new[place_of_factors], has_moved),)
        return new[start:place] + merged + others(old, new, has_moved)

    return merge


def _from(start: int) -> Callable[..., tuple[Any, ...]]:
    def rest(
        old: tuple[Any, ...], new: tuple[Any, ...], has_moved: NDArray[np.bool_]
    ) -> tuple[Any, ...]:
        return new[start:]

    return rest


def summing(places: Sequence[int]) -> Callable[[tuple[Any, ...]], float]:
    """Return a function that adds up the values at some places, numbers or vectors."""
    if not places:
        return _zero
    place, others = places[0], summing(places[1:])

    def total(values: tuple[Any, ...]) -> float:
        return summed(values[place]) + others(values)

    return total


def _zero(values: tuple[Any, ...]) -> float:
    return 0.0


# Primitives


def added(totals: FloatVector, values: Any, factor_of: NDArray[np.int64]) -> FloatVector:
    """Return totals with the elements of an array added to those of their factors.

    Elements that do not depend on u, with a factor of -1, are left out. But one of them that is not
    a number, such as an infinite number with a weight of zero, makes a total that is none either.
    """
    values = np.ravel(values)
    weights = np.where((factor_of >= 0) | np.isnan(values), values, 0.0)
    return totals + np.bincount(np.maximum(factor_of, 0), weights, minlength=totals.size)


def chosen(old: Any, new: Any, factor_of: NDArray[np.int64], has_moved: NDArray[np.bool_]) -> Any:
    """Return the new elements of an array for factors that have moved, the old ones for others.

    Those that do not depend on u, with a factor of -1, are old ones: a check of parameters that
    fails for a factor which has not moved may have spoilt the new ones.
    """
    is_new = (has_moved[factor_of] & (factor_of >= 0)).reshape(np.shape(new))
    return np.where(is_new, new, old)
