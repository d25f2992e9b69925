"""What noise of log f_hat costs a chain that proposes u independently: two known curves.

Both take log f_hat to be normal, and the cost of an estimate to go as one over its variance.
"""

import math

import numpy as np
from numpy.typing import NDArray

from pymc_apm.kernels.normal import normal_cdf

TARGET_SD = 1.2
"""The sd of log f_hat to aim for where nothing is known of how well theta would mix.

A compromise between two extremes, and best in neither: a random walk on many parameters does best
with 1.81, and has 78% of that efficiency at 1.2; parameters that would mix at once do best with
0.92, and have 88%. It is a minimax choice, of Doucet et al. (2015); the extremes are those of
Sherlock et al. (2015) and of Pitt et al. (2012).
"""


def efficiency_of_walk(sd: float) -> float:
    """Return the efficiency per cost of a random walk on many parameters, relative to its best.

    Sherlock et al. (2015): a step of length l is accepted with probability
    2 Phi(-sqrt(l^2 + 2 sd^2) / 2), and the best l is taken.

    >>> [round(efficiency_of_walk(sd), 2) for sd in (1.0, 1.2, 1.81, 2.0, 2.5, 3.0)]
    [0.63, 0.78, 1.0, 0.98, 0.79, 0.52]
    """
    return _of_walk(sd) / _of_walk(1.812)


def efficiency_if_perfect(sd: float) -> float:
    """Return the efficiency per cost if theta itself would mix at once, relative to its best.

    Pitt et al. (2012): a chain whose estimate has the log-noise w accepts with probability p(w),
    and its inefficiency is the mean of (2 - p) / p.

    >>> [round(efficiency_if_perfect(sd), 2) for sd in (0.5, 0.92, 1.2, 1.81, 2.5)]
    [0.66, 1.0, 0.88, 0.31, 0.03]
    """
    return _if_perfect(sd) / _if_perfect(0.92)


def _of_walk(sd: float) -> float:
    steps: NDArray[np.float64] = np.linspace(0.1, 10.0, 991)
    accepted = 2.0 * normal_cdf(-0.5 * np.sqrt(steps**2 + 2.0 * sd * sd))
    return sd * sd * float(np.max(steps**2 * accepted))


def _if_perfect(sd: float) -> float:
    z = np.linspace(-8.0, 8.0, 2001)
    noise = sd * z + 0.5 * sd * sd  # of the current estimate; that of a fresh one is N(-v/2, v)
    accepted = normal_cdf(-noise / sd - 0.5 * sd)
    accepted += np.exp(-noise) * normal_cdf(noise / sd - 0.5 * sd)
    weights = np.exp(-0.5 * z * z)
    inefficiency = np.sum(weights * (2.0 - accepted) / accepted) / np.sum(weights)
    return sd * sd / float(inefficiency)


def size_factor(sd: float, target_sd: float = TARGET_SD) -> float:
    """Return by what to multiply the number of particles, as the variance of log f_hat is ~1/N."""
    return math.pow(sd / target_sd, 2.0)
