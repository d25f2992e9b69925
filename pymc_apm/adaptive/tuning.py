"""The scale of a random walk and the widths of brackets: learnt while tuning, frozen after.

Everything learnt is a value: a NamedTuple that functions take and return, so that it can be
part of a step's sampling state. Nothing here is used after tuning, when a chain must not change its
own transition rule.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_apm.kernels.slice import SliceInfo
from pymc_apm.types import FloatVector


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

    width: FloatVector
    n_updates: int
    mean_log: FloatVector


def start_widths(width: FloatVector) -> Widths:
    """Start to tune some widths."""
    return Widths(width, 0, np.zeros(len(width)))


def tune_line(learnt: Widths, line: int, info: SliceInfo, steps_out: bool) -> Widths:
    """Tune the width for one of several lines after an update along it; see :func:`tune_width`.

    The update counts when all lines had theirs: see :func:`end_round`.
    """
    tuned = tune_width(
        Width(learnt.width[line], learnt.n_updates, learnt.mean_log[line]),
        info.n_evals - info.n_step_out - 1,
        # The last evaluation at either end finds it outside of the slice.
        max(info.n_step_out - 2, 0) if steps_out else 1,
    )
    width, mean_log = learnt.width.copy(), learnt.mean_log.copy()
    width[line], mean_log[line] = tuned.width, tuned.mean_log
    return Widths(width, learnt.n_updates, mean_log)


def end_round(learnt: Widths) -> Widths:
    """Note that all lines had one more update."""
    return Widths(learnt.width, learnt.n_updates + 1, learnt.mean_log)


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


def _averaged(mean_log: float, value: float, n_updates: int) -> float:
    """Take one more value into a mean whose weights grow in proportion to their number."""
    return mean_log + 2.0 / (n_updates + 1.0) * (math.log(value) - mean_log)
