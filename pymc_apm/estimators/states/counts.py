"""Quantiles of counts as functions of one normal number, right far into both tails.

A count is made from a standard normal number z: it is the quantile at the probability of being
below z. Both that probability and its complement are known to all digits, so that neither tail is
cut off, as it would be at 1 - 1e-16 for a uniform number. All are functions of numbers, and run in
Python as well as compiled. A count is a float, which is exact up to 2**53; NaN stands for
parameters that make no sense.
"""

import math

from numba.extending import register_jitable

from pymc_apm.estimators.states.tails import beta_tails, gamma_tails
from pymc_apm.kernels.quantiles import LARGE_VARIANCE

ROOT_HALF = math.sqrt(0.5)

SMALL_MEAN = 20.0
"""Up to this mean, probabilities are added up from zero, unless z is in the upper tail."""

FAR = 3.0
"""From this z on, what is above a count is compared, not what is below."""

POISSON, BINOMIAL, NEGATIVE_BINOMIAL = 0, 1, 2


@register_jitable
def tails(k: float, family: int, n: float, p: float, q: float) -> tuple[float, float]:
    """Return the probabilities of at most k, and of more. A Poisson distribution has mean n."""
    if family == POISSON:
        above, below = gamma_tails(k + 1.0, n)
    elif family == BINOMIAL:
        if k >= n:
            return 1.0, 0.0
        above, below = beta_tails(k + 1.0, n - k, p, q)
    else:
        below, above = beta_tails(n, k + 1.0, p, q)
    return below, above


@register_jitable
def is_enough(
    k: float, lower: float, upper: float, family: int, n: float, p: float, q: float
) -> bool:
    """Say whether the probability of at most k is that of being below z, or more."""
    below, above = tails(k, family, n, p, q)
    return below >= lower if lower < upper else above <= upper


@register_jitable
def quantile(
    z: float,
    family: int,
    n: float,
    p: float,
    q: float,
    mean: float,
    variance: float,
    third: float,
    fourth: float,
    largest: float,
) -> float:
    """Return the smallest count with at least the probability of being below z.

    ``third`` and ``fourth`` are the cumulants in units of the variance.
    """
    lower, upper = 0.5 * math.erfc(-z * ROOT_HALF), 0.5 * math.erfc(z * ROOT_HALF)
    if mean <= SMALL_MEAN and z < FAR:
        return _from_zero(lower, family, n, p, q, largest)
    sd = math.sqrt(max(variance, 0.25))
    # Cornish and Fisher's expansion, in counts.
    guess = mean + sd * z + third * (z * z - 1.0) / 6.0
    guess += fourth * (z**3 - 3.0 * z) / 24.0 / sd
    guess -= third * third * (2.0 * z**3 - 5.0 * z) / 36.0 / sd
    is_normal = variance > LARGE_VARIANCE and third**3 * LARGE_VARIANCE < variance
    if not is_normal:
        guess = min(guess, mean + 40.0 * sd + 750.0)
    k = min(max(math.ceil(guess - 0.5), 0.0), largest)
    if is_normal:
        return k
    # Bounds, by steps that grow, and then halving.
    step = 1.0
    if is_enough(k, lower, upper, family, n, p, q):
        high, low = k, k - 1.0
        while low >= 0.0 and is_enough(low, lower, upper, family, n, p, q):
            high = low
            low = max(low - step, -1.0)
            step *= 2.0
    else:
        low, high = k, min(k + 1.0, largest)
        while high < largest and not is_enough(high, lower, upper, family, n, p, q):
            low = high
            high = min(high + step, largest)
            step *= 2.0
    while high - low > 1.0:
        middle = math.floor(0.5 * (low + high))
        if is_enough(middle, lower, upper, family, n, p, q):
            high = middle
        else:
            low = middle
    return high


@register_jitable
def _from_zero(lower: float, family: int, n: float, p: float, q: float, largest: float) -> float:
    """Return a quantile by adding up probabilities from zero."""
    if family == POISSON:
        term = math.exp(-n)
    elif family == BINOMIAL:
        term = math.exp(n * math.log1p(-p))
    else:
        term = math.exp(n * math.log1p(-q)) if q < 0.5 else math.exp(n * math.log(p))
    below, k = term, 0.0
    while below < lower and k < largest:
        if family == POISSON:
            term *= n / (k + 1.0)
        elif family == BINOMIAL:
            term *= (n - k) * p / ((k + 1.0) * q)
        else:
            term *= (n + k) * q / (k + 1.0)
        below += term
        k += 1.0
    return k


@register_jitable
def poisson_quantile(z: float, mean: float) -> float:
    """Return the quantile of a Poisson distribution at a standard normal number."""
    if math.isnan(z) or not 0.0 <= mean < math.inf:
        return math.nan
    if mean == 0.0:
        return 0.0
    return quantile(z, POISSON, mean, 0.0, 0.0, mean, mean, 1.0, 1.0, math.inf)


@register_jitable
def binomial_quantile(z: float, n: float, p: float) -> float:
    """Return the quantile of a binomial distribution at a standard normal number."""
    if math.isnan(z) or not (0.0 <= n < math.inf and 0.0 <= p <= 1.0):
        return math.nan
    n = math.floor(n)
    if n == 0.0 or p == 0.0:
        return 0.0
    if p == 1.0:
        return n
    if p > 0.5:  # what is missing to n is the smaller number
        return n - _rare_binomial(-z, n, 1.0 - p)
    return _rare_binomial(z, n, p)


@register_jitable
def _rare_binomial(z: float, n: float, p: float) -> float:
    q = 1.0 - p
    third, fourth = 1.0 - 2.0 * p, 1.0 - 6.0 * p * q
    return quantile(z, BINOMIAL, n, p, q, n * p, n * p * q, third, fourth, n)


@register_jitable
def negative_binomial_quantile(z: float, n: float, p: float) -> float:
    """Return the quantile of a negative binomial distribution at a standard normal number.

    It is the number of failures before the ``n``-th success, which has the probability ``p``; ``n``
    is a positive real number.
    """
    if math.isnan(z) or not (0.0 < n < math.inf and 0.0 < p <= 1.0):
        return math.nan
    if p == 1.0:
        return 0.0
    q = 1.0 - p
    mean = n * q / p
    fourth = 1.0 + 6.0 * q / (p * p)
    return quantile(z, NEGATIVE_BINOMIAL, n, p, q, mean, mean / p, (1.0 + q) / p, fourth, math.inf)


@register_jitable
def score(jitter: float, k: float, family: int, n: float, p: float, q: float) -> float:
    """Return a normal number at which the quantile is k; which of them is up to the jitter."""
    below, above = tails(k, family, n, p, q)
    if k >= 1.0:
        below_before, above_before = tails(k - 1.0, family, n, p, q)
    else:
        below_before, above_before = 0.0, 1.0
    if below < above_before:
        return normal_quantile(below_before + jitter * (below - below_before))
    return -normal_quantile(above_before - jitter * (above_before - above))


@register_jitable
def normal_quantile(p: float) -> float:
    """Return a finite quantile of the standard normal distribution.

    The rational approximation 26.2.23 of Abramowitz and Stegun (1964), refined by Halley's method.
    """
    p = min(max(p, 1e-300), 1.0 - 2.0**-53)
    tail = min(p, 1.0 - p)
    t = math.sqrt(-2.0 * math.log(tail))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    x = top / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t
    for _ in range(3):
        error = 0.5 * math.erfc(-x / math.sqrt(2.0)) - tail
        step = error * math.sqrt(2.0 * math.pi) * math.exp(0.5 * x * x)
        x -= step / (1.0 + 0.5 * x * step)
    return x if p < 0.5 else -x


@register_jitable
def poisson_score(jitter: float, k: float, mean: float) -> float:
    """Return a normal number that makes k of a Poisson distribution."""
    if mean == 0.0:
        return normal_quantile(jitter)
    return score(jitter, k, POISSON, mean, 0.0, 0.0)


@register_jitable
def binomial_score(jitter: float, k: float, n: float, p: float) -> float:
    """Return a normal number that makes k of a binomial distribution."""
    if n == 0.0 or p == 0.0 or p == 1.0:
        return normal_quantile(jitter)
    return score(jitter, k, BINOMIAL, n, p, 1.0 - p)


@register_jitable
def negative_binomial_score(jitter: float, k: float, n: float, p: float) -> float:
    """Return a normal number that makes k of a negative binomial distribution."""
    if p == 1.0:
        return normal_quantile(jitter)
    return score(jitter, k, NEGATIVE_BINOMIAL, n, p, 1.0 - p)
