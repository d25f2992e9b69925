"""Tails of counts: both sides of their distribution functions, to nearly all digits.

Numba knows no incomplete beta and gamma functions. These take their prefactors from Loader's
form of the binomial and Poisson probabilities, which keeps its digits where the usual logs of
gamma functions cancel, and a continued fraction or a series from there. All are functions of
numbers, and run in Python as well as compiled.

References
----------
Loader, C. (2000). Fast and accurate computation of binomial probabilities.

Press, W. H., Teukolsky, S. A., Vetterling, W. T. and Flannery, B. P. (2007). Numerical Recipes,
third edition, sections 6.2 and 6.4.
"""

import math

from numba.extending import register_jitable

TINY = 1e-300
PRECISION = 1e-16
MAX_TERMS = 1_000_000


@register_jitable
def stirling_error(n: float) -> float:
    """Return the log of n! minus Stirling's approximation of it."""
    if n <= 15.0:
        return math.lgamma(n + 1.0) - (n + 0.5) * math.log(n) + n - 0.9189385332046727
    square = n * n
    terms = 1.0 / 1260.0 - (1.0 / 1680.0 - 1.0 / 1188.0 / square) / square
    return (1.0 / 12.0 - (1.0 / 360.0 - terms / square) / square) / n


@register_jitable
def deviance(x: float, mean: float) -> float:
    """Return x log(x / mean) + mean - x, also where x is near the mean."""
    difference = x - mean
    if abs(difference) >= 0.1 * (x + mean):
        return x * math.log(x / mean) - difference
    ratio = difference / (x + mean)
    total = difference * ratio
    term = 2.0 * x * ratio
    ratio *= ratio
    for j in range(1, 1000):
        term *= ratio
        before = total
        total += term / (2 * j + 1)
        if total == before:
            break
    return total


@register_jitable
def poisson_probability(x: float, mean: float) -> float:
    """Return mean**x exp(-mean) / x!, for real x >= 0 and mean > 0."""
    if x == 0.0:
        return math.exp(-mean)
    log_value = -stirling_error(x) - deviance(x, mean)
    return math.exp(log_value) / math.sqrt(2.0 * math.pi * x)


@register_jitable
def binomial_probability(x: float, n: float, p: float, q: float) -> float:
    """Return the binomial probability of real x out of n, with q = 1 - p."""
    if x == 0.0:
        return math.exp(n * math.log1p(-p)) if p < 0.5 else math.exp(n * math.log(q))
    if x == n:
        return math.exp(n * math.log1p(-q)) if q < 0.5 else math.exp(n * math.log(p))
    log_value = stirling_error(n) - stirling_error(x) - stirling_error(n - x)
    log_value -= deviance(x, n * p) + deviance(n - x, n * q)
    return math.exp(log_value) * math.sqrt(n / (2.0 * math.pi * x * (n - x)))


@register_jitable
def gamma_tails(a: float, x: float) -> tuple[float, float]:
    """Return the regularised incomplete gamma functions P(a, x) and Q(a, x)."""
    front = poisson_probability(a, x)
    if x < a + 1.0:
        total, term, denominator = 1.0, 1.0, a
        for _ in range(MAX_TERMS):
            denominator += 1.0
            term *= x / denominator
            total += term
            if term < total * PRECISION:
                break
        below = min(front * total, 1.0)
        return below, 1.0 - below
    b = x + 1.0 - a
    c = 1.0 / TINY
    d = 1.0 / b
    fraction = d
    for i in range(1, MAX_TERMS):
        coefficient = -i * (i - a)
        b += 2.0
        d = coefficient * d + b
        d = 1.0 / (d if abs(d) > TINY else TINY)
        c = b + coefficient / c
        c = c if abs(c) > TINY else TINY
        factor = d * c
        fraction *= factor
        if abs(factor - 1.0) < PRECISION:
            break
    above = min(front * a * fraction, 1.0)
    return 1.0 - above, above


@register_jitable
def _beta_below(a: float, b: float, x: float, y: float) -> float:
    """Return the incomplete beta function by its continued fraction, for x below the mean."""
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > TINY else TINY)
    fraction = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        d = 1.0 + even * d
        d = 1.0 / (d if abs(d) > TINY else TINY)
        c = 1.0 + even / c
        c = c if abs(c) > TINY else TINY
        fraction *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d = 1.0 + odd * d
        d = 1.0 / (d if abs(d) > TINY else TINY)
        c = 1.0 + odd / c
        c = c if abs(c) > TINY else TINY
        factor = d * c
        fraction *= factor
        if abs(factor - 1.0) < PRECISION:
            break
    return min(binomial_probability(a, a + b, x, y) * b / (a + b) * fraction, 1.0)


@register_jitable
def beta_tails(a: float, b: float, x: float, y: float) -> tuple[float, float]:
    """Return the regularised incomplete beta function I_x(a, b) and 1 minus it, with y = 1 - x."""
    if x < (a + 1.0) / (a + b + 2.0):
        below = _beta_below(a, b, x, y)
        return below, 1.0 - below
    above = _beta_below(b, a, y, x)
    return 1.0 - above, above
