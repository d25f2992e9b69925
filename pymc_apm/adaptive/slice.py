"""Slice sampling of the parameters, with widths and directions that are learnt while tuning."""

from typing import NamedTuple

import numpy as np

from pymc_apm.adaptive.covariance import Covariance, learn_covariance, start_covariance
from pymc_apm.adaptive.pilot import (
    TUNED_WIDTH,
    Pilot,
    covariance_of_pilot,
    is_over,
    start_pilot,
    update_along_axes,
    update_in_pilot,
)
from pymc_apm.adaptive.report import Report, theta_report
from pymc_apm.adaptive.tuning import Widths, end_round, freeze_widths, start_widths, tune_line
from pymc_apm.kernels.linear import length
from pymc_apm.kernels.slice import linear_slice, random_direction
from pymc_apm.types import FloatVector, LogDensity, State

DOF = 3.0
"""The degrees of freedom of the t distribution about which ellipses are drawn.

They cost little where the posterior is normal, and much is lost without them where it is not: the
log of a standard deviation that the data say little about has a long tail.
"""

NEARBY_DOF = 8.0
"""The degrees of freedom where it matters not to go far out: a simulation may take very long there.

With 3 of them one ellipse in 20,000 of a single parameter is 14 standard deviations wide, with 8
one in 10^9.
"""


class SliceOptions(NamedTuple):
    """What the user of a step has chosen.

    Attributes
    ----------
    is_coordinate : bool
        Whether to move along each parameter in turn, not in one random direction.
    theta_updates : int
        Updates for each update of u.
    max_step_out : int
        As for :func:`~pymc_apm.kernels.slice.linear_slice`.
    length : float
        The length that every direction is to have; 0 leaves it as it is drawn.
    tunes_width, learns_covariance, has_pilot : bool
        What to learn while tuning.
    is_diagonal : bool
        Whether of the covariance the variances alone are learnt.
    dof : float
        Degrees of freedom of the t distribution about which ellipses are drawn.
    """

    is_coordinate: bool
    theta_updates: int
    max_step_out: int
    length: float
    tunes_width: bool
    learns_covariance: bool
    has_pilot: bool
    is_diagonal: bool
    dof: float = DOF


class SliceLearnt(NamedTuple):
    """What is learnt while tuning."""

    pilot: Pilot
    covariance: Covariance
    widths: Widths


def start_slice(cholesky: FloatVector, widths: FloatVector) -> SliceLearnt:
    """Start with a shape for directions and a width for each line, as the user gave them."""
    return SliceLearnt(start_pilot(len(cholesky)), start_covariance(cholesky), start_widths(widths))


def update_by_slice(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: SliceOptions,
    learnt: SliceLearnt,
    tunes: bool,
) -> tuple[State, SliceLearnt, Report]:
    """Update the parameters once, and learn from it if told so."""
    pilot, covariance, widths = learnt.pilot, learnt.covariance, learnt.widths
    if tunes and options.has_pilot and not is_over(pilot):
        state, pilot, report = update_in_pilot(rng, state, log_density, pilot)
        if is_over(pilot):
            covariance = covariance_of_pilot(pilot)
            widths = start_widths(np.full(1, TUNED_WIDTH))
        return state, SliceLearnt(pilot, covariance, widths), report
    tunes_width = tunes and options.tunes_width
    if options.is_coordinate:
        state, widths, report = update_along_axes(
            rng, state, log_density, widths, options.max_step_out, tunes_width
        )
        return state, SliceLearnt(pilot, covariance, widths), report
    direction = random_direction(rng, covariance.cholesky)
    direction_length = length(direction)
    if options.length > 0.0:
        direction = direction * (options.length / direction_length)
        direction_length = options.length
    width = widths.width[0]
    state, info = linear_slice(rng, state, log_density, direction, width, options.max_step_out)
    if tunes_width:
        widths = end_round(tune_line(widths, 0, info, options.max_step_out > 0))
    report = theta_report(
        info.cost, 1, int(info.accepted), info.accept_rate, width * direction_length
    )
    return state, SliceLearnt(pilot, covariance, widths), report


def learn_slice(options: SliceOptions, learnt: SliceLearnt, theta: FloatVector) -> SliceLearnt:
    """Learn from the parameters of a draw."""
    is_in_pilot = options.has_pilot and not is_over(learnt.pilot)
    if not options.learns_covariance or is_in_pilot:
        return learnt
    covariance, changed = learn_covariance(learnt.covariance, theta, options.is_diagonal)
    widths = learnt.widths
    if changed and options.tunes_width:
        widths = start_widths(np.full(1, TUNED_WIDTH))
    return SliceLearnt(learnt.pilot, covariance, widths)


def freeze_slice(options: SliceOptions, learnt: SliceLearnt) -> SliceLearnt:
    """Return what to use after tuning."""
    if not options.tunes_width:
        return learnt
    return SliceLearnt(learnt.pilot, learnt.covariance, freeze_widths(learnt.widths))
