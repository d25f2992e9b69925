"""Widths, scales and covariances: learnt while tuning, frozen after.

Everything learnt is a value: a NamedTuple that functions take and return anew, so that it can be
part of a step's sampling state. Nothing here is used after tuning, when a chain must not change its
own transition rule. As the kernels, all of this can be compiled by Numba: it imports numpy only.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm.kernels.slice import SliceInfo

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

    cholesky: NDArray[np.float64]
    n_windows: int
    window: int
    n_draws: int
    mean: NDArray[np.float64]
    scatter: NDArray[np.float64]


def start_covariance(cholesky: NDArray[np.float64]) -> Covariance:
    """Start to learn a covariance, with a factor to use for the time being."""
    dim = len(cholesky)
    return Covariance(
        cholesky, 0, max(FIRST_WINDOW, 5 * dim), 0, np.zeros(dim), np.zeros((dim, dim))
    )


def learn_covariance(
    learnt: Covariance, draw: NDArray[np.float64], diagonal: bool = False
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
            learnt.cholesky, learnt.n_windows, learnt.window, n_draws, mean, scatter
        ), False
    cholesky = learnt.cholesky
    n_windows, window = learnt.n_windows, learnt.window
    factor, has_moved = regularised_cholesky(scatter, n_draws, diagonal)
    if has_moved:  # otherwise keep what there is and look on
        cholesky = factor
        n_windows, window = n_windows + 1, 2 * window
    dim = len(cholesky)
    return Covariance(
        cholesky, n_windows, window, 0, np.zeros(dim), np.zeros((dim, dim))
    ), has_moved


def accumulated(
    mean: NDArray[np.float64], scatter: NDArray[np.float64], draw: NDArray[np.float64], n_draws: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Take one more draw, the last of ``n_draws``, into account for their mean and scatter."""
    deviation = draw - mean
    mean = mean + deviation / n_draws
    return mean, scatter + np.outer(deviation, draw - mean)


def regularised_cholesky(
    scatter: NDArray[np.float64], n_draws: int, diagonal: bool
) -> tuple[NDArray[np.float64], bool]:
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


class Scale(NamedTuple):
    """The scale of a random walk, tuned to an acceptance rate.

    Attributes
    ----------
    scaling : float
        The scale in use.
    n_updates : int
        Updates since tuning (re)started.
    mean_log : float
        The mean of the log of the scale over these updates, the later ones with more weight.
    accepted : float
        Sum of the acceptance rates of the current batch; used with bounds alone.
    """

    scaling: float
    n_updates: int = 0
    mean_log: float = 0.0
    accepted: float = 0.0


ENOUGH = 20
"""Updates after which the average of what was tuned is better than the last value."""

BATCH = 100
"""Updates between two changes of the scale where bounds are given."""


def tune_scale(scale: Scale, accept_rate: float, target_accept: tuple[float, float]) -> Scale:
    """Tune the scale of a random walk after an update.

    Parameters
    ----------
    scale : Scale
    accept_rate : float
        The probability with which the last proposal was to be accepted.
    target_accept : (float, float)
        Bounds for the acceptance rate. If they are equal, it is the rate to aim for, by stochastic
        approximation (Andrieu and Thoms, 2008, doi:10.1007/s11222-008-9110-y). Otherwise the scale
        is multiplied or divided after a batch of 100 updates whose acceptance was outside of them,
        by a factor that falls from 4 to 1.1 within four batches, as Filippone and Girolami (2014,
        doi:10.1109/TPAMI.2014.2316530) do and the paper after them.

    Returns
    -------
    Scale
    """
    n_updates = scale.n_updates + 1
    lower, upper = target_accept
    if lower < upper:
        accepted = scale.accepted + accept_rate
        if n_updates % BATCH:
            return Scale(scale.scaling, n_updates, scale.mean_log, accepted)
        factor = 5.0 - 3.9 * min(n_updates // BATCH, 4) / 4.0
        rate = accepted / BATCH
        change = factor if rate > upper else 1.0 / factor if rate < lower else 1.0
        return Scale(scale.scaling * change, n_updates, 0.0, 0.0)
    gain = 4.0 / (n_updates + 5.0) ** 0.7
    scaling = scale.scaling * math.exp(gain * (accept_rate - lower))
    return Scale(scaling, n_updates, _averaged(scale.mean_log, scaling, n_updates), 0.0)


def freeze_scale(scale: Scale, target_accept: tuple[float, float]) -> Scale:
    """Return the scale to use after tuning: the average, which is less noisy than the last one."""
    lower, upper = target_accept
    if lower < upper or scale.n_updates < ENOUGH:
        return scale
    return Scale(math.exp(scale.mean_log))


class Width(NamedTuple):
    """The width of a slice sampler's bracket.

    Attributes
    ----------
    width : float
    n_updates : int
        Updates since tuning (re)started.
    mean_log : float
        The mean of the log of the width over these updates, the later ones with more weight.
    """

    width: float
    n_updates: int = 0
    mean_log: float = 0.0


class Widths(NamedTuple):
    """The widths of brackets along several lines, which are always updated together.

    Attributes
    ----------
    width, mean_log : ndarray
        As those of :class:`Width`, for each of the lines.
    n_updates : int
        Updates since tuning (re)started.
    """

    width: NDArray[np.float64]
    n_updates: int
    mean_log: NDArray[np.float64]


def start_widths(width: NDArray[np.float64]) -> Widths:
    """Start to tune some widths."""
    return Widths(width, 0, np.zeros(len(width)))


def tune_widths(learnt: Widths, infos: Sequence[SliceInfo], steps_out: bool) -> Widths:
    """Tune several widths after an update along each of their lines; see :func:`tune_width`."""
    width, mean_log = learnt.width.copy(), learnt.mean_log.copy()
    for line, info in enumerate(infos):
        tuned = tune_width(
            Width(width[line], learnt.n_updates, mean_log[line]),
            info.n_evals - info.n_step_out - 1,
            # The last evaluation at either end finds it outside of the slice.
            max(info.n_step_out - 2, 0) if steps_out else 1,
        )
        width[line], mean_log[line] = tuned.width, tuned.mean_log
    return Widths(width, learnt.n_updates + 1, mean_log)


def tune_width(learnt: Width, n_rejected: int, n_expanded: int) -> Width:
    """Tune the width of the bracket after an update.

    Without stepping out a bracket that is too narrow makes a random walk and one that is too wide
    costs evaluations, but few, since it shrinks exponentially quickly: the width is tuned so that
    one proposal is rejected on average. With stepping out the number of expansions and of
    rejections are balanced (Tibbits et al., 2014, doi:10.1080/10618600.2013.791193).

    Parameters
    ----------
    learnt : Width
    n_rejected : int
        Proposals that were rejected in the last update.
    n_expanded : int
        Times that the bracket was expanded; 1 without stepping out.

    Returns
    -------
    Width
    """
    n_updates = learnt.n_updates + 1
    step = min(max(n_expanded - n_rejected, -3), 3) / (n_updates + 1.0) ** 0.6
    width = learnt.width * math.exp(step)
    return Width(width, n_updates, _averaged(learnt.mean_log, width, n_updates))


def freeze_width(learnt: Width) -> Width:
    """Return the width to use after tuning: the average, which is less noisy than the last one."""
    return Width(math.exp(learnt.mean_log)) if learnt.n_updates >= ENOUGH else learnt


def freeze_widths(learnt: Widths) -> Widths:
    """Return the widths to use after tuning; see :func:`freeze_width`."""
    return start_widths(np.exp(learnt.mean_log)) if learnt.n_updates >= ENOUGH else learnt


PILOT_DRAWS = 40
"""Length of the pilot with which tuning starts."""

TUNED_WIDTH = 3.0
"""A good width of the bracket, in standard deviations of the parameter."""


class Pilot(NamedTuple):
    """The first draws of tuning: slice sampling along each parameter, to learn its scale.

    A random walk, or a line in a random direction, goes no further than the narrowest parameter
    allows, and would take long to find out that another one is a thousand times as wide. The width
    of a slice sampler finds the scale of its own parameter exponentially quickly.

    Attributes
    ----------
    widths : Widths
    n_draws : int
        Draws made so far.
    """

    widths: Widths
    n_draws: int


def start_pilot(dim: int) -> Pilot:
    """Start a pilot, with brackets of width 1."""
    return Pilot(start_widths(np.ones(dim)), 0)


def learn_from_pilot(pilot: Pilot, infos: Sequence[SliceInfo]) -> Pilot:
    """Take one more draw of the pilot into account."""
    return Pilot(tune_widths(pilot.widths, infos, False), pilot.n_draws + 1)


def is_over(pilot: Pilot) -> bool:
    """Say whether the scales have been learnt."""
    return pilot.n_draws >= PILOT_DRAWS


def covariance_of_pilot(pilot: Pilot) -> Covariance:
    """Return the scales that a pilot has learnt, as a diagonal covariance to start from."""
    widths = freeze_widths(pilot.widths).width
    factor = np.zeros((len(widths), len(widths)))
    for i, width in enumerate(widths):
        factor[i, i] = width / TUNED_WIDTH
    return start_covariance(factor)


def _averaged(mean_log: float, value: float, n_updates: int) -> float:
    """Take one more value into a mean whose weights grow in proportion to their number."""
    return mean_log + 2.0 / (n_updates + 1.0) * (math.log(value) - mean_log)
