"""The mean of an estimate over u, and how well it is known: also of a product of many factors.

The mean of a product of independent factors is the product of their means. Where the model proves
that the factors of an estimate depend on separate parts of u, the log of the mean of the whole is
the sum of the logs of their means, each of which is easy to find; the mean of the product itself
would take a number of draws that grows exponentially with the number of factors.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm.diagnostics.probe import Probe
from pymc_apm.diagnostics.runs import FloatArray
from pymc_apm.types import Evaluation

LARGEST_SHARE = 0.1
"""If one draw has more than this share of the variance, the variance is not known."""

LARGEST_SKEWNESS = 0.4
"""A mean whose distribution is more skewed than this is too far from normal to be tested."""

UNSEEN = 3.0
"""What is to be expected so often in all draws may well have happened in none of them."""


class LogMean(NamedTuple):
    """The log of the mean of an estimate over u.

    Attributes
    ----------
    value : float
    se : float
        Its standard error.
    third : float
        The third cumulant that :func:`studentised` takes.
    is_known : bool
        Whether the standard error can be believed: no single draw decides on it.
    n_draws : int
    """

    value: float
    se: float
    third: float
    is_known: bool
    n_draws: int


class Groups:
    """Which entries of the log-estimates of a model are independent of each other.

    Parameters
    ----------
    probe : Probe

    Attributes
    ----------
    n_groups : int
        1 if nothing is known of them.
    """

    def __init__(self, probe: Probe, evaluation: Evaluation) -> None:
        target = probe.target
        self._places = tuple(target.sums["estimate"])
        sizes = [np.size(evaluation.values[place]) for place in self._places]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        self._group_of = np.zeros(starts[-1], dtype=np.int64)
        self.n_groups = 1
        if all(name in target.factors for name in probe.u_names):
            self._find(target.factors, evaluation, starts)

    def _find(self, factors: Any, evaluation: Evaluation, starts: NDArray[np.int64]) -> None:
        """Join entries that share a factor of some u."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        n_nodes, rows, columns = int(starts[-1]), [], []
        for of_u in factors.values():
            for place, place_of_factors in of_u.terms:
                number = np.asarray(evaluation.values[place_of_factors])
                start = starts[self._places.index(place)]
                entries = np.flatnonzero(number >= 0)
                rows.append(start + entries)
                columns.append(n_nodes + number[entries])
            n_nodes += of_u.n_factors
        row, column = np.concatenate(rows), np.concatenate(columns)
        edges = coo_array((np.ones(row.size), (row, column)), shape=(n_nodes, n_nodes))
        _, labels = connected_components(edges, directed=False)
        _, self._group_of = np.unique(labels[: starts[-1]], return_inverse=True)
        self.n_groups = int(self._group_of.max()) + 1

    def totals(self, evaluation: Evaluation) -> FloatArray:
        """Return the log-estimate of each group."""
        if self.n_groups == 1:
            return np.array([evaluation.log_estimate])
        values = [np.ravel(evaluation.values[place]) for place in self._places]
        entries = np.concatenate(values)
        totals = np.bincount(self._group_of, entries, minlength=self.n_groups)
        return np.where(np.isnan(totals), -math.inf, totals)


def log_mean(log_estimates: FloatArray) -> LogMean:
    """Return the log of the mean of a product of independent factors.

    Parameters
    ----------
    log_estimates : ndarray
        The log-estimates of the factors, draws by factors.

    Examples
    --------
    >>> log_estimates = np.random.default_rng(1).normal(-0.02, 0.2, size=(4000, 3))
    >>> found = log_mean(log_estimates)
    >>> bool(abs(found.value) < 4 * found.se), found.is_known
    (True, True)
    """
    n_draws = len(log_estimates)
    highest = log_estimates.max(axis=0)
    if not np.isfinite(highest).all():
        return LogMean(-math.inf, math.nan, math.nan, False, n_draws)
    weights = np.exp(log_estimates - highest)
    means = weights.mean(axis=0)
    deviations = weights / means - 1.0
    squares = (deviations**2).sum(axis=0)
    variances = squares / (n_draws - 1) / n_draws
    # Estimates that are zero now and then look as if they had no noise, as long as none was zero.
    variance = float(variances.sum()) + (UNSEEN / n_draws) ** 2
    shares = (deviations**2).max(axis=0) / np.maximum(squares, 1e-300)
    third = float((deviations**3).mean(axis=0).sum()) / n_draws**2
    third -= 1.5 * float(variances @ variances)
    is_known = (
        float(np.max(shares * variances)) < LARGEST_SHARE * variance
        and abs(third) < LARGEST_SKEWNESS * variance**1.5
    )
    # The log of a mean is biased by minus half of its variance, which is made good.
    value = float((highest + np.log(means) + 0.5 * variances).sum())
    return LogMean(value, math.sqrt(variance), third, is_known, n_draws)


def studentised(difference: float, se: float, third: float) -> float:
    """Return a difference in standard errors, made normal where its error is skewed.

    Hall (1992), "On the removal of skewness by transformation", JRSS B 54, for the mean of numbers
    whose third cumulant is known. Where it is the log of a mean with the variance v, 1.5 v^2 is
    to be taken from that.
    """
    if se == 0.0:
        return 0.0 if abs(difference) < 1e-8 else math.copysign(math.inf, difference)
    z, skewness = difference / se, third / se**3
    return z + skewness * z**2 / 3.0 + skewness**2 * z**3 / 27.0 + skewness / 6.0
