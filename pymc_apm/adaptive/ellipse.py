"""Elliptical slice sampling of the parameters, about a t distribution learnt while tuning."""

import math

import numpy as np

from pymc_apm.adaptive.report import Report, theta_report
from pymc_apm.adaptive.slice import SliceLearnt, SliceOptions, update_by_slice
from pymc_apm.kernels.elliptical_t import elliptical_t_slice
from pymc_apm.types import LogDensity, State


def update_by_ellipse(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    options: SliceOptions,
    learnt: SliceLearnt,
    tunes: bool,
) -> tuple[State, SliceLearnt, Report]:
    """Update the parameters once: along a line as long as nothing is known of the posterior."""
    covariance = learnt.covariance
    if covariance.n_windows == 0:
        return update_by_slice(rng, state, log_density, options, learnt, tunes)
    state, info = elliptical_t_slice(
        rng, state, log_density, covariance.center, covariance.cholesky, options.dof
    )
    bracket = 2.0 * math.pi
    report = theta_report(info.cost, 1, int(info.accepted), info.accept_rate, bracket)
    return state, learnt, report
