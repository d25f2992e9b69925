"""The standard normal distribution function and its inverse."""

import numpy as np

from pymc_apm.kernels import special
from pymc_apm.types import FloatVector


def normal_cdf(x: FloatVector) -> FloatVector:
    """Return the probability that a standard normal number is below each of some numbers."""
    return np.asarray(special.ndtr(x))


def normal_quantile(p: FloatVector) -> FloatVector:
    """Return the numbers below which a standard normal number is with the given probabilities."""
    return np.asarray(special.ndtri(p))
