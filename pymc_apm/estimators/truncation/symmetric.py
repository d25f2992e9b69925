"""The mean product of k of n numbers, for all k: a term of a series from more than k estimates.

The mean of the product of k independent estimates is the product of their means. If there are n of
them, every k of the n will do, and the mean over all choices has the least noise.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pymc_apm.estimators.truncation.lengths import Length


def mean_products(values: Iterable[float]) -> NDArray[np.float64]:
    """Return the mean over all choices of k of the values of their product, for k = 0, ..., n."""
    means = np.ones(1)
    for n, value in enumerate(values, start=1):
        k = np.arange(n + 1)
        without = np.append(means, 0.0)
        with_it = np.concatenate(([0.0], means)) * value
        means = ((n - k) * without + k * with_it) / n
    return means


def inverse_survival(length: Length, n: int) -> NDArray[np.float64]:
    """Return the weights of terms 0, ..., n of a series with a random length."""
    beyond = np.maximum(np.arange(n + 1) - length.at_least, 0)
    return np.array([1.0 / length.survival(int(k)) if k > 0 else 1.0 for k in beyond])
