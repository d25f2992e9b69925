"""The first draws of tuning: slice sampling along each parameter, to learn its scale."""

from typing import NamedTuple

import numpy as np

from pymc_apm.adaptive.covariance import Covariance, start_covariance
from pymc_apm.adaptive.report import Report, theta_report
from pymc_apm.adaptive.tuning import Widths, end_round, freeze_widths, start_widths, tune_line
from pymc_apm.kernels.linear import axis
from pymc_apm.kernels.slice import linear_slice
from pymc_apm.types import FREE, LogDensity, State, plus

PILOT_DRAWS = 40
"""Length of the pilot with which tuning starts."""

TUNED_WIDTH = 3.0
"""A good width of the bracket, in standard deviations of the parameter."""


class Pilot(NamedTuple):
    """What is learnt of the scale of each parameter.

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


def is_over(pilot: Pilot) -> bool:
    """Say whether the scales have been learnt."""
    return pilot.n_draws >= PILOT_DRAWS


def update_in_pilot(
    rng: np.random.Generator, state: State, log_density: LogDensity, pilot: Pilot
) -> tuple[State, Pilot, Report]:
    """Update the parameters along each axis, and learn from it."""
    state, widths, report = update_along_axes(rng, state, log_density, pilot.widths, 0, True)
    return state, Pilot(widths, pilot.n_draws + 1), report


def covariance_of_pilot(pilot: Pilot) -> Covariance:
    """Return the scales that a pilot has learnt, as a diagonal covariance to start from."""
    widths = freeze_widths(pilot.widths).width
    factor = np.zeros((len(widths), len(widths)))
    for i, width in enumerate(widths):
        factor[i, i] = width / TUNED_WIDTH
    return start_covariance(factor)


def update_along_axes(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    widths: Widths,
    max_step_out: int,
    tunes: bool,
) -> tuple[State, Widths, Report]:
    """Update the parameters one after the other by slice sampling, and tune the widths if told so.

    Parameters
    ----------
    rng : Generator
    state : State
    log_density : callable
    widths : Widths
        Width of the initial bracket for each parameter.
    max_step_out : int
        As for :func:`~pymc_apm.kernels.slice.linear_slice`.
    tunes : bool
    """
    n_moved, cost, mean_width = 0, FREE, widths.width.mean()
    dim = state.position.size
    for line in range(dim):
        state, info = linear_slice(
            rng, state, log_density, axis(dim, line), widths.width[line], max_step_out
        )
        if tunes:
            widths = tune_line(widths, line, info, max_step_out > 0)
        n_moved += int(info.accepted)
        cost = plus(cost, info.cost)
    if tunes:
        widths = end_round(widths)
    return state, widths, theta_report(cost, dim, n_moved, float(dim), mean_width)
