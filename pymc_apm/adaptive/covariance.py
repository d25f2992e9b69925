"""The covariance of the draws, learnt in windows of growing length while tuning."""

from typing import NamedTuple

import numpy as np

from pymc_apm.types import FloatVector

FIRST_WINDOW = 100
"""Draws in the first window from which a covariance is learnt; each window is twice the last."""


class Covariance(NamedTuple):
    """The covariance of the draws, learnt in windows of growing length.

    Each window forgets the one before it, and with it the way from the starting point to the
    posterior. The factor in use changes only where a window ends.

    Attributes
    ----------
    cholesky : ndarray
        The lower triangular factor in use.
    center : ndarray
        The mean of the draws that it rests on.
    n_windows : int
        How many windows it rests on; 0 means that it is the one it started with.
    window : int
        Length of the current window.
    n_draws : int
        Draws seen in the current window.
    mean : ndarray
        Their mean.
    scatter : ndarray
        Sum of the outer products of their deviations from the mean.
    """

    cholesky: FloatVector
    center: FloatVector
    n_windows: int
    window: int
    n_draws: int
    mean: FloatVector
    scatter: FloatVector


def start_covariance(cholesky: FloatVector) -> Covariance:
    """Start to learn a covariance, with a factor to use for the time being."""
    dim = len(cholesky)
    return Covariance(
        cholesky,
        np.zeros(dim),
        0,
        max(FIRST_WINDOW, 5 * dim),
        0,
        np.zeros(dim),
        np.zeros((dim, dim)),
    )


def learn_covariance(
    learnt: Covariance, draw: FloatVector, diagonal: bool = False
) -> tuple[Covariance, bool]:
    """Take one more draw into account.

    Parameters
    ----------
    learnt : Covariance
    draw : ndarray
    diagonal : bool
        Whether to learn the variances alone.

    Returns
    -------
    learnt : Covariance
    changed : bool
        Whether the factor in use has changed: whatever was tuned for the old one starts again.
    """
    n_draws = learnt.n_draws + 1
    mean, scatter = accumulated(learnt.mean, learnt.scatter, draw, n_draws)
    if n_draws < learnt.window:
        return Covariance(
            learnt.cholesky,
            learnt.center,
            learnt.n_windows,
            learnt.window,
            n_draws,
            mean,
            scatter,
        ), False
    cholesky, center = learnt.cholesky, learnt.center
    n_windows, window = learnt.n_windows, learnt.window
    factor, has_moved = regularised_cholesky(scatter, n_draws, diagonal)
    if has_moved:  # otherwise keep what there is and look on
        cholesky, center = factor, mean
        n_windows, window = n_windows + 1, 2 * window
    dim = len(cholesky)
    return Covariance(
        cholesky, center, n_windows, window, 0, np.zeros(dim), np.zeros((dim, dim))
    ), has_moved


def accumulated(
    mean: FloatVector, scatter: FloatVector, draw: FloatVector, n_draws: int
) -> tuple[FloatVector, FloatVector]:
    """Take one more draw, the last of ``n_draws``, into account for their mean and scatter."""
    deviation = draw - mean
    mean = mean + deviation / n_draws
    return mean, scatter + np.outer(deviation, draw - mean)


def regularised_cholesky(
    scatter: FloatVector, n_draws: int, diagonal: bool
) -> tuple[FloatVector, bool]:
    """Shrink correlations by one part in ``n_draws``, so that there is a factor, and factorise.

    Return also whether there is one: there is none where a coordinate has not moved.
    """
    variances = np.diag(scatter) / (n_draws - 1)
    if not (np.isfinite(variances).all() and (variances > 0.0).all()):
        return scatter, False
    if diagonal:
        return np.diag(np.sqrt(variances)), True
    shrunk = (1.0 - 1.0 / n_draws) * scatter / (n_draws - 1)
    np.fill_diagonal(shrunk, variances)
    return np.asarray(np.linalg.cholesky(shrunk), dtype=np.float64), True
