"""Slice sampling of the parameters, with widths and directions that are learnt while tuning."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_apm.adaptation import (
    TUNED_WIDTH,
    Covariance,
    Pilot,
    Widths,
    covariance_of_pilot,
    is_over,
    learn_covariance,
    learn_from_pilot,
    start_widths,
    tune_widths,
)
from pymc_apm.kernels.linear import length
from pymc_apm.kernels.slice import SliceInfo, coordinate_slice, linear_slice, random_direction
from pymc_apm.kernels.state import FloatVector, LogDensity, State
from pymc_apm.updates.report import Report


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
    """

    is_coordinate: bool
    theta_updates: int
    max_step_out: int
    length: float
    tunes_width: bool
    learns_covariance: bool
    has_pilot: bool
    is_diagonal: bool


class SliceLearnt(NamedTuple):
    """What is learnt while tuning."""

    pilot: Pilot
    covariance: Covariance
    widths: Widths


def update_by_slice(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: SliceOptions,
    cholesky: FloatVector,
    widths: FloatVector,
) -> tuple[State, Report]:
    """Update the parameters as often as the options say, with all that was learnt frozen."""
    n_lines, n_moved, width = 0, 0, 0.0
    for _ in range(options.theta_updates):
        if options.is_coordinate:
            state, infos = coordinate_slice(rng, state, log_density, widths, options.max_step_out)
            n_lines += len(infos)
            n_moved += count_moved(infos)
            width += widths.mean()
        else:
            state, info, bracket = _update_along_line(
                rng, state, log_density, options, cholesky, widths[0]
            )
            n_lines += 1
            n_moved += int(info.accepted)
            width += bracket
    return state, Report(n_lines, n_moved, 0.0, width / options.theta_updates)


def learn_by_slice(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: SliceOptions,
    learnt: SliceLearnt,
) -> tuple[State, SliceLearnt, Report]:
    """Update the parameters as often as the options say, and learn from it."""
    pilot, covariance, widths = learnt.pilot, learnt.covariance, learnt.widths
    is_in_pilot = options.has_pilot and not is_over(pilot)
    n_lines, n_moved, width = 0, 0, 0.0
    for _ in range(options.theta_updates):
        if is_in_pilot or options.is_coordinate:
            lines = pilot.widths.width if is_in_pilot else widths.width
            max_step_out = 0 if is_in_pilot else options.max_step_out
            state, infos = coordinate_slice(rng, state, log_density, lines, max_step_out)
            width += lines.mean()
        else:
            state, info, bracket = _update_along_line(
                rng, state, log_density, options, covariance.cholesky, widths.width[0]
            )
            infos = [info]
            width += bracket
        if is_in_pilot:
            pilot = learn_from_pilot(pilot, infos)
            is_in_pilot = not is_over(pilot)
            if not is_in_pilot:
                covariance = covariance_of_pilot(pilot)
                widths = start_widths(np.full(1, TUNED_WIDTH))
        elif options.tunes_width:
            widths = tune_widths(widths, infos, options.max_step_out > 0)
        n_lines += len(infos)
        n_moved += count_moved(infos)
    if options.learns_covariance and not is_in_pilot:
        covariance, changed = learn_covariance(covariance, state.position, options.is_diagonal)
        if changed and options.tunes_width:
            widths = start_widths(np.full(1, TUNED_WIDTH))
    report = Report(n_lines, n_moved, 0.0, width / options.theta_updates)
    return state, SliceLearnt(pilot, covariance, widths), report


def _update_along_line(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: SliceOptions,
    cholesky: FloatVector,
    width: float,
) -> tuple[State, SliceInfo, float]:
    """Update the parameters along a random line; return also the length of the bracket."""
    direction = random_direction(rng, cholesky)
    direction_length = length(direction)
    if options.length > 0.0:
        direction *= options.length / direction_length
        direction_length = options.length
    state, info = linear_slice(rng, state, log_density, direction, width, options.max_step_out)
    return state, info, width * direction_length


def count_moved(infos: Sequence[SliceInfo]) -> int:
    """Return along how many lines an update moved."""
    n_moved = 0
    for info in infos:
        n_moved += int(info.accepted)
    return n_moved
