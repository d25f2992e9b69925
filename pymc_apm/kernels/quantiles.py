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

LARGE_SHAPE = 1e6
"""Above this, the incomplete gamma functions of scipy lose their digits in the tails."""

LARGE_VARIANCE = 1e4
"""Above this, an expansion about the normal distribution is exact to a tenth of a count."""


def normal(u: Any) -> Any:
    """Return finite quantiles of the standard normal distribution."""
    return special.ndtri(np.maximum(np.minimum(u, LARGEST), SMALLEST))


def gamma(u: Any, shape: Any) -> Any:
    """Return quantiles of the standard gamma distribution."""
    is_ordinary = (shape > SMALLEST) & (shape <= LARGE_SHAPE)
    quantiles = special.gammaincinv(np.where(is_ordinary, shape, 1.0), u)
    # Tiny shapes have all of their mass below the smallest number; NaN stays what it is.
    others = np.where(shape <= SMALLEST, 0.0, shape)
    is_large = (shape > LARGE_SHAPE) & (shape < np.inf)
    if np.any(is_large):  # Cornish and Fisher's expansion: scipy is wrong in their tails
        sd, z = np.sqrt(np.where(is_large, shape, 1.0)), normal(u)
        shift = sd * z + (z**2 - 1.0) / 3.0 + (z**3 - 7.0 * z) / (36.0 * sd)
        others = np.where(is_large, others + shift, others)
    return np.where(is_ordinary, quantiles, others)


def poisson(u: Any, lam: Any) -> Any:
    """Return quantiles of Poisson distributions with means ``lam``."""
    u, lam = np.broadcast_arrays(u, lam)
    one = np.ones_like(lam)
    return _count(special.pdtr, special.pdtrc, (lam,), u, 1.0 - u, lam, lam, one, one, np.inf)


def binomial(u: Any, n: Any, p: Any) -> tuple[Any, Any]:
    """Return quantiles of binomial distributions.

    Returns
    -------
    count : ndarray
        The quantile, or what is missing from it to ``n``.
    is_missing : ndarray of bool
        Which of the two: where ``p`` is above one half, what is missing is the smaller number.
    """
    u, n, p = np.broadcast_arrays(u, np.asarray(n, dtype=np.float64), p)
    is_missing = p > 0.5
    rare = np.where(is_missing, 1.0 - p, p)
    lower, upper = np.where(is_missing, 1.0 - u, u), np.where(is_missing, u, 1.0 - u)
    variance = n * rare * (1.0 - rare)
    third, fourth = 1.0 - 2.0 * rare, 1.0 - 6.0 * rare * (1.0 - rare)
    mean = n * rare
    count = _count(
        _binomial_below, _binomial_above, (n, rare), lower, upper, mean, variance, third, fourth, n
    )
    return count, is_missing


def _binomial_below(k: Any, n: Any, p: Any) -> Any:
    return np.where(k >= n, 1.0, special.betaincc(k + 1.0, np.maximum(n - k, 1.0), p))


def _binomial_above(k: Any, n: Any, p: Any) -> Any:
    return np.where(k >= n, 0.0, special.betainc(k + 1.0, np.maximum(n - k, 1.0), p))


def _count(
    below: Callable[..., Any],
    above: Callable[..., Any],
    parameters: tuple[Any, ...],
    lower: Any,
    upper: Any,
    mean: Any,
    variance: Any,
    third: Any,
    fourth: Any,
    largest: Any,
) -> Any:
    """Return the smallest counts with probability ``lower`` at or below them, ``upper`` above.

    ``below`` and ``above`` are the distribution function and its complement; ``third`` and
    ``fourth`` are the cumulants in units of the variance.
    """
    z = np.where(lower < 0.5, normal(lower), -normal(upper))
    sd = np.sqrt(np.maximum(variance, 0.25))
    # Cornish and Fisher's expansion, in counts.
    count = (
        mean
        + sd * z
        + third * (z**2 - 1.0) / 6.0
        + (fourth * (z**3 - 3.0 * z) / 24.0 - third**2 * (2.0 * z**3 - 5.0 * z) / 36.0) / sd
    )
    is_small = variance <= LARGE_VARIANCE
    count = np.where(is_small, np.minimum(count, mean + 40.0 * sd + 750.0), count)
    count = np.clip(np.ceil(count - 0.5), 0.0, largest)
    if np.any(is_small):
        largest = np.broadcast_to(np.minimum(largest, 2.0**53), count.shape)[is_small]
        chosen = [p[is_small] for p in parameters]
        lower, upper = lower[is_small], upper[is_small]

        def is_enough(k: Any, i: Any) -> Any:
            these = [p[i] for p in chosen]
            enough = below(k, *these) >= lower[i]
            far = upper[i] < 1e-3  # where the distribution function has lost digits
            if np.any(far):
                enough[far] = above(k[far], *[p[far] for p in these]) <= upper[i][far]
            return enough

        count = np.asarray(count)
        count[is_small] = _first(is_enough, count[is_small], largest)
    return count


def _first(is_enough: Callable[[Any, Any], Any], guess: Any, largest: Any) -> Any:
    """Return the first of the integers from 0 to ``largest`` that is enough, near a guess.

    ``is_enough(k, i)`` is asked for the elements with indices ``i``.
    """
    high, low = guess.copy(), guess - 1.0
    i = np.arange(guess.size)
    step = 1.0
    while (i := i[~is_enough(high[i], i) & (high[i] < largest[i])]).size:
        low[i] = high[i]
        high[i] = np.minimum(high[i] + step, largest[i])
        step *= 2.0
    i = np.flatnonzero((low >= 0.0) & (low == guess - 1.0))
    step = 1.0
    while (i := i[low[i] >= 0.0]).size and (i := i[is_enough(low[i], i)]).size:
        high[i] = low[i]
        low[i] = np.maximum(low[i] - step, -1.0)
        step *= 2.0
    while (i := np.flatnonzero(high - low > 1.0)).size:
        middle = np.floor(0.5 * (low[i] + high[i]))
        enough = is_enough(middle, i)
        high[i[enough]] = middle[enough]
        low[i[~enough]] = middle[~enough]
    return high
