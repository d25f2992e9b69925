"""The correlation of joint proposals of u, learnt while tuning.

A proposal of u with correlation rho takes a *step* of length sqrt(2 (1 - rho)): that is the sd of
the difference of two normal numbers with this correlation, and to the first order the sd of the log
ratio of two estimates is in proportion to it. So it is tuned as the scale of a random walk is, on
the acceptance rate of proposals of u at fixed parameters. That rate is a property of the *ratio* of
two estimates, and it is bounded, so that neither heavy tails nor estimates of zero upset it. Where
the log ratio is normal, N(-s^2/2, s^2), it is 2 Phi(-s/2) (Deligiannidis, Doucet and Pitt, 2018,
doi:10.1111/rssb.12280): to aim for an sd s of the log ratio is to aim for a rate.
"""

import math
from typing import NamedTuple

from pymc_apm.adaptive.tuning import Scale, freeze_scale, tune_scale

TARGET_SD = 1.2
"""The sd of the log ratio to aim for.

A smaller one wastes fewer proposals of the parameters, a larger one lets u move faster. With a
normal posterior of many parameters, a joint proposal is accepted with probability
2 Phi(-sqrt(l^2 + s^2) / 2), where l^2 is the variance that the step of the parameters adds, and the
parameters move at a speed of l^2 times that. At s = 1.2 this is 78 per cent of the speed with an
exact likelihood, and u, at fixed parameters, moves at 60 per cent of the best speed that it can
have (that at s = 2.38). At s = 0.5 these are 96 and 15 per cent, at s = 2 they are 51 and 96.
"""

TARGET_ACCEPT = math.erfc(TARGET_SD / math.sqrt(8.0))
"""The acceptance rate at this sd, 2 Phi(-s/2)."""

FRESH = math.sqrt(2.0)
"""The step to a fresh u, with correlation 0."""

LONGEST = 4.0 * FRESH
"""The largest value in tuning. Values above `FRESH` count as `FRESH`: that they can be reached lets
the average end above it where fresh u is accepted often enough."""

SHORTEST = 1e-3
"""The smallest value, so that u moves at all whatever the estimate is like."""


class Correlation(NamedTuple):
    """The correlation of a proposal of u with the u at hand.

    Attributes
    ----------
    value : float
    step : Scale
        What is tuned: the length of the step that belongs to the correlation.
    """

    value: float
    step: Scale


def start_correlation(value: float) -> Correlation:
    """Start with a correlation, as the user gave it or to learn a better one."""
    return Correlation(value, Scale(math.sqrt(2.0 * (1.0 - value)), 0, 0.0, 0.0))


def tune_correlation(correlation: Correlation, accept_rate: float) -> Correlation:
    """Tune the correlation after a proposal of u at fixed parameters.

    Parameters
    ----------
    correlation : Correlation
    accept_rate : float
        The probability with which the proposal was to be accepted.
    """
    step = tune_scale(correlation.step, accept_rate, (TARGET_ACCEPT, TARGET_ACCEPT))
    length = min(max(step.scaling, SHORTEST), LONGEST)
    return _of_step(Scale(length, step.n_updates, step.mean_log, 0.0))


def freeze_correlation(correlation: Correlation) -> Correlation:
    """Return the correlation to use after tuning: that of the average step."""
    return _of_step(freeze_scale(correlation.step, (TARGET_ACCEPT, TARGET_ACCEPT)))


def _of_step(step: Scale) -> Correlation:
    return Correlation(max(1.0 - 0.5 * step.scaling * step.scaling, 0.0), step)
