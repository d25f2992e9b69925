"""Quantile functions, right far into both tails and for parameters of any size.

Each takes probabilities ``u`` below 1. Those of counts are right where ``scipy.stats`` is not: it
gives -1 for ``u = 0`` and NaN for large means. Counts are float64, which is exact up to 2**53.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_apm.kernels import special

LARGEST = 1.0 - 2.0**-53
"""The largest number below 1."""

SMALLEST = float(np.finfo(np.float64).tiny)
"""What a probability of zero counts as, where its quantile would be minus infinity."""

LARGE_VARIANCE = 1e4
"""Above this, an expansion about the normal distribution is exact to a tenth of a count."""


def normal(u: Any) -> Any:
    """Return finite quantiles of the standard normal distribution."""
    return special.ndtri(np.maximum(np.minimum(u, LARGEST), SMALLEST))


def gamma(u: Any, shape: Any) -> Any:
    """Return quantiles of the standard gamma distribution."""
    is_ordinary = (shape > SMALLEST) & (shape < np.inf)
    quantiles = special.gammaincinv(np.where(is_ordinary, shape, 1.0), u)
    # Tiny shapes have all of their mass below the smallest number; NaN stays what it is.
    limit = np.where(shape <= SMALLEST, 0.0, shape)
    return np.where(is_ordinary, quantiles, limit)


def poisson(u: Any, lam: Any) -> Any:
    """Return quantiles of Poisson distributions with means ``lam``."""
    u, lam = np.broadcast_arrays(u, lam)
    is_large = lam > LARGE_VARIANCE
    small = np.where(is_large, 1.0, lam)

    def below(k: Any) -> Any:
        return special.pdtr(k, small)

    def above(k: Any) -> Any:
        return special.pdtrc(k, small)

    return _count(u, 1.0 - u, below, above, lam, lam, 1.0, 1.0, is_large, np.inf)


def binomial(u: Any, n: Any, p: Any) -> Any:
    """Return quantiles of binomial distributions, as pairs of counts.

    Returns
    -------
    count : ndarray
        The quantile, or what is missing from it to ``n``.
    is_missing : ndarray of bool
        Which of the two: where ``p`` is above one half, what is missing is the smaller number.
    """
    u, n, p = np.broadcast_arrays(u, n, p)
    n = n.astype(np.float64)
    is_missing = p > 0.5
    rare = np.where(is_missing, 1.0 - p, p)
    variance = n * rare * (1.0 - rare)
    is_large = variance > LARGE_VARIANCE
    trials = np.where(is_large, 1.0, n)

    def below(k: Any) -> Any:
        return np.where(k >= trials, 1.0, special.betaincc(k + 1.0, _rest(trials, k), rare))

    def above(k: Any) -> Any:
        return np.where(k >= trials, 0.0, special.betainc(k + 1.0, _rest(trials, k), rare))

    lower, upper = np.where(is_missing, 1.0 - u, u), np.where(is_missing, u, 1.0 - u)
    third = 1.0 - 2.0 * rare
    fourth = 1.0 - 6.0 * rare * (1.0 - rare)
    mean = n * rare
    count = _count(lower, upper, below, above, mean, variance, third, fourth, is_large, n)
    return count, is_missing


def _rest(n: Any, k: Any) -> Any:
    return np.maximum(n - k, 1.0)  # where it matters it is at least 1


def _count(
    lower: Any,
    upper: Any,
    below: Callable[[Any], Any],
    above: Callable[[Any], Any],
    mean: Any,
    variance: Any,
    third: Any,
    fourth: Any,
    is_large: Any,
    largest: Any,
) -> Any:
    """Return the smallest counts with probability ``lower`` at or below them, ``upper`` above.

    ``third`` and ``fourth`` are the cumulants in units of the variance. ``below`` and ``above`` are
    the distribution function and its complement, for those that are not large.
    """
    z = np.where(lower < 0.5, normal(lower), -normal(upper))
    sd = np.sqrt(np.maximum(variance, 0.25))
    # Cornish and Fisher's expansion, in counts.
    guess = (
        mean
        + sd * z
        + third * (z**2 - 1.0) / 6.0
        + (fourth * (z**3 - 3.0 * z) / 24.0 - third**2 * (2.0 * z**3 - 5.0 * z) / 36.0) / sd
    )
    bound = np.where(is_large, largest, np.minimum(largest, 2.0**53))
    guess = np.where(is_large, guess, np.minimum(guess, mean + 40.0 * sd + 750.0))
    guess = np.clip(np.ceil(guess - 0.5), 0.0, bound)
    if np.all(is_large):
        return guess
    is_low = lower < 0.5

    def is_enough(k: Any) -> Any:
        enough = np.where(is_low, below(k) >= lower, above(k) <= upper)
        return enough | is_large

    return np.where(is_large, guess, _first(is_enough, np.where(is_large, 0.0, guess), bound))


def _first(is_enough: Callable[[Any], Any], guess: Any, largest: Any) -> Any:
    """Return the first of the integers from 0 to ``largest`` that is enough, near a guess."""
    high, low = guess, guess - 1.0
    step = 1.0
    while np.any(short := ~is_enough(high) & (high < largest)):
        low = np.where(short, high, low)
        high = np.where(short, np.minimum(high + step, largest), high)
        step *= 2.0
    step = 1.0
    while np.any(far := (low >= 0.0) & is_enough(np.maximum(low, 0.0))):
        high = np.where(far, low, high)
        low = np.where(far, np.maximum(low - step, -1.0), low)
        step *= 2.0
    while np.any(high - low > 1.0):
        middle = np.floor(0.5 * (low + high))
        enough = is_enough(middle)
        is_open = high - low > 1.0
        high = np.where(is_open & enough, middle, high)
        low = np.where(is_open & ~enough, middle, low)
    return high
