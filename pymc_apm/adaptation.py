"""Widths, scales and covariances: learnt while tuning, frozen after.

Everything learnt is a value: a NamedTuple that functions take and return anew, so that it can be
part of a step's sampling state. Nothing here is used after tuning, when a chain must not change its
own transition rule.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm.kernels import SliceInfo

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
    deviation = draw - learnt.mean
    mean = learnt.mean + deviation / n_draws
    scatter = learnt.scatter + np.outer(deviation, draw - mean)
    if n_draws < learnt.window:
        return learnt._replace(n_draws=n_draws, mean=mean, scatter=scatter), False
    cholesky = _regularised_cholesky(scatter, n_draws, diagonal)
    if cholesky is None:  # the chain has not moved: keep what there is and look on
        fresh = start_covariance(learnt.cholesky)
        return fresh._replace(n_windows=learnt.n_windows, window=learnt.window), False
    fresh = start_covariance(cholesky)
    return fresh._replace(n_windows=learnt.n_windows + 1, window=2 * learnt.window), True


def _regularised_cholesky(
    scatter: NDArray[np.float64], n_draws: int, diagonal: bool
) -> NDArray[np.float64] | None:
    """Shrink correlations by one part in ``n_draws``, so that there is a factor, and factorise."""
    variances = np.diag(scatter) / (n_draws - 1)
    if not (np.isfinite(variances).all() and (variances > 0.0).all()):
        return None
    if diagonal:
        return np.diag(np.sqrt(variances))
    shrunk = (1.0 - 1.0 / n_draws) * scatter / (n_draws - 1)
    np.fill_diagonal(shrunk, variances)
    return np.asarray(np.linalg.cholesky(shrunk), dtype=np.float64)


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


def tune_scale(
    scale: Scale, accept_rate: float, target_accept: float | tuple[float, float]
) -> Scale:
    """Tune the scale of a random walk after an update.

    Parameters
    ----------
    scale : Scale
    accept_rate : float
        The probability with which the last proposal was to be accepted.
    target_accept : float or (float, float)
        The acceptance rate to aim for, by stochastic approximation (Andrieu and Thoms, 2008,
        doi:10.1007/s11222-008-9110-y). Or bounds: then the scale is multiplied or divided after a
        batch of 100 updates whose acceptance was outside of them, by a factor that falls from 4 to
        1.1 within four batches, as Filippone and Girolami (2014, doi:10.1109/TPAMI.2014.2316530)
        do and the paper after them.

    Returns
    -------
    Scale
    """
    n_updates = scale.n_updates + 1
    if isinstance(target_accept, tuple):
        accepted = scale.accepted + accept_rate
        if n_updates % BATCH:
            return scale._replace(n_updates=n_updates, accepted=accepted)
        lower, upper = target_accept
        factor = 5.0 - 3.9 * min(n_updates // BATCH, 4) / 4.0
        rate = accepted / BATCH
        scaling = scale.scaling * (factor if rate > upper else 1 / factor if rate < lower else 1)
        return Scale(scaling, n_updates)
    gain = 4.0 / (n_updates + 5.0) ** 0.7
    scaling = scale.scaling * math.exp(gain * (accept_rate - target_accept))
    return Scale(scaling, n_updates, _averaged(scale.mean_log, scaling, n_updates))


def freeze_scale(scale: Scale, target_accept: float | tuple[float, float]) -> Scale:
    """Return the scale to use after tuning: the average, which is less noisy than the last one."""
    if isinstance(target_accept, tuple) or scale.n_updates < ENOUGH:
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


def tune_widths(
    widths: Sequence[Width], infos: Sequence[SliceInfo], steps_out: bool
) -> list[Width]:
    """Tune several widths after an update along each of their lines; see :func:`tune_width`."""
    return [
        tune_width(
            width,
            info.n_evals - info.n_step_out - 1,
            # The last evaluation at either end finds it outside of the slice.
            max(info.n_step_out - 2, 0) if steps_out else None,
        )
        for width, info in zip(widths, infos, strict=True)
    ]


def tune_width(learnt: Width, n_rejected: int, n_expanded: int | None) -> Width:
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
    n_expanded : int, optional
        Times that the bracket was expanded; ``None`` without stepping out.

    Returns
    -------
    Width
    """
    n_updates = learnt.n_updates + 1
    surplus = (1.0 if n_expanded is None else float(n_expanded)) - n_rejected
    step = min(max(surplus, -3.0), 3.0) / (n_updates + 1.0) ** 0.6
    width = learnt.width * math.exp(step)
    return Width(width, n_updates, _averaged(learnt.mean_log, width, n_updates))


def freeze_width(learnt: Width) -> Width:
    """Return the width to use after tuning: the average, which is less noisy than the last one."""
    return Width(math.exp(learnt.mean_log)) if learnt.n_updates >= ENOUGH else learnt


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
    widths : list of Width
    n_draws : int
        Draws made so far.
    """

    widths: list[Width]
    n_draws: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the scales have been learnt."""
        return self.n_draws >= PILOT_DRAWS

    @property
    def cholesky(self) -> NDArray[np.float64]:
        """The scales, as the factor of a diagonal covariance."""
        return np.diag([freeze_width(width).width / TUNED_WIDTH for width in self.widths])


def start_pilot(dim: int) -> Pilot:
    """Start a pilot, with brackets of width 1."""
    return Pilot([Width(1.0)] * dim)


def learn_from_pilot(pilot: Pilot, infos: Sequence[SliceInfo]) -> Pilot:
    """Take one more draw of the pilot into account."""
    return Pilot(tune_widths(pilot.widths, infos, steps_out=False), pilot.n_draws + 1)


def _averaged(mean_log: float, value: float, n_updates: int) -> float:
    """Take one more value into a mean whose weights grow in proportion to their number."""
    return mean_log + 2.0 / (n_updates + 1.0) * (math.log(value) - mean_log)
