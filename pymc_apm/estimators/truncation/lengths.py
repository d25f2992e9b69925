"""How many terms of a series are computed: a random number that knows nothing of the terms.

A length N is given by its survival function, P(N >= k). With a uniform number v, N is the number of
k >= 1 with v < P(N >= k), which has just that distribution.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.validation import one_of, positive_integer, positive_number

LengthOption: TypeAlias = Literal["geometric", "poisson"] | Callable[[int], float]

CHECKED = 64
"""For so many k the survival function that a user gives is checked."""

LONGEST = 10**6
"""More terms than this are an error."""


class Length:
    """The distribution of the number of terms beyond those that are always there.

    Parameters
    ----------
    survival : callable
        ``survival(k)`` is P(N >= k).
    at_least : int
        How many terms are computed in any case, the first one not counted.
    """

    def __init__(self, survival: Callable[[int], float], at_least: int = 0) -> None:
        self.survival = survival
        self.at_least = at_least

    def draw(self, v: float) -> int:
        """Return the length for a uniform number."""
        length = 0
        while v < self.survival(length + 1):
            length += 1
            if length > LONGEST:
                raise EstimatorError(
                    f"A series was to have more than {LONGEST:,} terms: its length has a "
                    "distribution whose survival function falls too slowly."
                )
        return length

    def refuse_more(self, length: int) -> None:
        """Refuse a series that goes on where the length cannot: its sum would be biased."""
        if self.survival(length + 1) <= 0.0:
            raise EstimatorError(
                f"The length of a series is never more than {self.at_least + length}, but there "
                "are terms beyond: the estimate would be biased. P(N >= k) must be positive for "
                "every k for which there is a term."
            )


def geometric(mean: float) -> Callable[[int], float]:
    """Return the survival function of a geometric number, 0, 1, 2, ..., with some mean."""
    ratio = mean / (1.0 + mean)
    return lambda k: ratio**k


def poisson(mean: float) -> Callable[[int], float]:
    """Return the survival function of a Poisson number."""
    from scipy.special import gammainc  # which takes long to import

    return lambda k: float(gammainc(k, mean)) if k > 0 else 1.0


def poisson_number(v: float, rate: float) -> int:
    """Return the Poisson number for a uniform number, as quantiles have it."""
    if not 0.0 < rate < 700.0:
        raise EstimatorError(
            f"The rate of a Poisson estimator must be positive and less than 700, got {rate:g}."
        )
    number, probability = 0, math.exp(-rate)
    below = probability
    while v >= below and probability > 0.0:
        number += 1
        probability *= rate / number
        below += probability
    return number


def checked_length(label: str, length: Any, mean_length: Any, at_least: Any) -> Length:
    """Return the length that the options of a series describe."""
    at_least = positive_integer(f"at_least of {label}", at_least, minimum=0)
    if callable(length):
        if mean_length is not None:
            raise ModelError(
                f"mean_length of {label} is for a geometric or a Poisson length; the function that "
                "was given as length says by itself what the mean is."
            )
        _check_survival(label, length)
        return Length(length, at_least)
    one_of(f"length of {label}", length, "geometric", "poisson")
    mean = positive_number(f"mean_length of {label}", 4.0 if mean_length is None else mean_length)
    return Length({"geometric": geometric, "poisson": poisson}[length](mean), at_least)


def _check_survival(label: str, survival: Callable[[int], float]) -> None:
    values = [float(survival(k)) for k in range(CHECKED)]
    is_falling = all(b <= a for a, b in itertools.pairwise(values))
    if values[0] != 1.0 or not is_falling or not all(value >= 0.0 for value in values):
        raise ModelError(
            f"length of {label} must be a survival function, P(N >= k) for k = 0, 1, 2, ...: 1 at "
            f"first, and never increasing or negative. It is {values[:4]} and so on."
        )
    if values[1] == 0.0:
        raise ModelError(
            f"length of {label} never lets a second term be computed, P(N >= 1) = 0: the sum would "
            "be its first term, and biased."
        )
