"""Exact answers for state-space models: by Kalman's filter and smoother, and on a fine grid."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Floats = NDArray[np.float64]


class Smoothed(NamedTuple):
    log_likelihood: float
    mean: Floats
    variance: Floats


def kalman(
    y: Floats,
    mean: float,
    variance: float,
    slope: Floats | float,
    shift: Floats | float,
    noise: Floats | float,
    error: float,
) -> Smoothed:
    """Filter and smooth x_t = slope x_(t-1) + shift + noise, y_t = x_t + error; NaN is missing.

    `noise` and `error` are variances; what differs from row to row is an array.
    """
    n = len(y)
    slope, shift, noise = (np.broadcast_to(np.asarray(v, float), n) for v in (slope, shift, noise))
    predicted, filtered = np.empty((2, n)), np.empty((2, n))
    total = 0.0
    m, v = mean, variance
    for t in range(n):
        if t:
            m, v = slope[t] * m + shift[t], slope[t] ** 2 * v + noise[t]
        predicted[:, t] = m, v
        if not np.isnan(y[t]):
            s = v + error
            total -= 0.5 * (np.log(2 * np.pi * s) + (y[t] - m) ** 2 / s)
            m, v = m + v / s * (y[t] - m), v * error / s
        filtered[:, t] = m, v
    smooth = filtered.copy()
    for t in range(n - 2, -1, -1):
        gain = filtered[1, t] * slope[t + 1] / predicted[1, t + 1]
        smooth[0, t] += gain * (smooth[0, t + 1] - predicted[0, t + 1])
        smooth[1, t] += gain**2 * (smooth[1, t + 1] - predicted[1, t + 1])
    return Smoothed(total, smooth[0], smooth[1])


def on_grid(
    grid: Floats,
    log_initial: Callable[[Floats], Floats],
    log_transition: Callable[[Floats, Floats, int], Floats],
    log_observation: Callable[[Floats, int], Floats],
    n: int,
) -> float:
    """Return the log-likelihood of a model with one state, by the trapezoidal rule."""
    log_step = np.log(np.gradient(grid))
    log_alpha = log_initial(grid) + log_observation(grid, 0) + log_step
    for t in range(1, n):
        log_f = log_transition(grid[:, None], grid[None, :], t)
        log_alpha = logsumexp(log_alpha[:, None] + log_f, axis=0)
        log_alpha += log_observation(grid, t) + log_step
    return float(logsumexp(log_alpha))


def posterior_moments(log_density: Floats, *axes: Floats) -> list[tuple[float, float]]:
    """Return the mean and the standard deviation along each axis of a density on a grid."""
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    moments = []
    for place, axis in enumerate(axes):
        marginal = weights.sum(axis=tuple(k for k in range(len(axes)) if k != place))
        mean = float(marginal @ axis)
        moments.append((mean, float(np.sqrt(marginal @ (axis - mean) ** 2))))
    return moments
