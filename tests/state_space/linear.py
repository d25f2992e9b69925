"""Linear Gaussian models for the filter, with every option switched by a number, and the truth.

The functions take their options from ``args``, so that one compilation serves all of them.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from pymc_apm.estimators.states.conditional import Inverse
from pymc_apm.estimators.states.filter import ParticleModel
from pymc_apm.estimators.states.sorting import first_coordinate, hilbert_keys, order_by_key

LOG_ROOT = 0.5 * math.log(2.0 * math.pi)


class Args(NamedTuple):
    """Parameters and options: AR(1) with coefficient a, its noise s, that of observations r.

    ``guide`` is how far the proposal is drawn to the observation, ``eta`` the power of the
    look-ahead, ``backward`` that of the transition in backward sampling, which must be 1.
    """

    a: float = 0.8
    s: float = 1.0
    r: float = 0.7
    guide: float = 0.0
    eta: float = 0.0
    backward: float = 1.0


@numba.njit
def log_normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - math.log(sd) - LOG_ROOT


@numba.njit
def start(z, row, args):
    return args.s / math.sqrt(1.0 - args.a**2) * z[:1]


@numba.njit
def proposal(x, row, args):
    """Return mean and sd of the proposal, which is the transition where nothing was observed."""
    if math.isnan(row[0]) or args.guide == 0.0:
        return args.a * x, args.s
    return (1.0 - args.guide) * args.a * x + args.guide * row[0], 1.2 * args.s


@numba.njit
def move(x, z, row, args):
    mean, sd = proposal(x, row, args)
    return mean + sd * z[:1]


@numba.njit
def first_log_weights(x, row, args):
    return np.zeros(x.shape[1]) if math.isnan(row[0]) else log_normal(row[0], x[0], args.r)


@numba.njit
def log_weights(before, x, row, args):
    mean, sd = proposal(before, row, args)
    logs = log_normal(x[0], args.a * before[0], args.s) - log_normal(x[0], mean[0], sd)
    return logs + first_log_weights(x, row, args)


@numba.njit
def lookahead(x, row, args):
    if math.isnan(row[0]):
        return np.zeros(x.shape[1])
    return args.eta * log_normal(row[0], args.a * x[0], 1.5)


@numba.njit
def log_transition(before, x, row, args):
    return args.backward * log_normal(x[0], args.a * before[0], args.s)


@numba.njit
def unstart(x, jitter, row, args):
    return x / (args.s / math.sqrt(1.0 - args.a**2))


@numba.njit
def unmove(before, x, jitter, row, args):
    mean, sd = proposal(before, row, args)
    return (x - mean) / sd


AR = ParticleModel(start, move, first_log_weights, log_weights, lookahead)
AR_INVERSE = Inverse(log_transition, unstart, unmove)


def kalman(y, args):
    """Return the log density of AR(1) plus noise; NaN is missing."""
    mean, variance, total = 0.0, args.s**2 / (1.0 - args.a**2), 0.0
    for t, observed in enumerate(y):
        if t:
            mean, variance = args.a * mean, args.a**2 * variance + args.s**2
        if not math.isnan(observed):
            whole = variance + args.r**2
            error = observed - mean
            total += -0.5 * (math.log(2.0 * math.pi * whole) + error**2 / whole)
            mean, variance = mean + variance / whole * error, variance * args.r**2 / whole
    return total


# Two dimensions, a sum is observed; the key is chosen by a number


@numba.njit
def start_2(z, row, args):
    return z[:2].copy()


@numba.njit
def move_2(x, z, row, args):
    return np.vstack((0.9 * x[:1] + 0.2 * x[1:] + z[:1], 0.5 * x[1:] + 0.8 * z[1:2]))


@numba.njit
def first_log_weights_2(x, row, args):
    return log_normal(row[0], x[0] + 0.5 * x[1], 0.7)


@numba.njit
def log_weights_2(before, x, row, args):
    return first_log_weights_2(x, row, args)


@numba.njit
def keys_2(x, row, args):
    if args[0] == 0.0:
        return hilbert_keys(x, row, args)
    return first_coordinate(x, row, args) if args[0] == 1.0 else np.floor(x[1])


VAR = ParticleModel(
    start_2, move_2, first_log_weights_2, log_weights_2, keys=keys_2, order=order_by_key
)


def kalman_2(y):
    """Return the log density of the model of two dimensions."""
    a, q, h = np.array([[0.9, 0.2], [0.0, 0.5]]), np.diag([1.0, 0.64]), np.array([1.0, 0.5])
    mean, cov, total = np.zeros(2), np.eye(2), 0.0
    for t, observed in enumerate(y):
        if t:
            mean, cov = a @ mean, a @ cov @ a.T + q
        whole, error = h @ cov @ h + 0.49, observed - h @ mean
        total += -0.5 * (math.log(2.0 * math.pi * whole) + error**2 / whole)
        gain = cov @ h / whole
        mean, cov = mean + gain * error, cov - np.outer(gain, h @ cov)
    return total


# A sum of three substeps of a random walk, which is what is observed, from zero each time


@numba.njit
def start_sum(z, row, args):
    x = np.zeros((2, z.shape[1]))
    x[0] = z[0]
    return x


@numba.njit
def move_sum(x, z, row, args):
    level = 0.9 * x[0] + 0.5 * z[0]
    return np.vstack((level.reshape(1, -1), (x[1] + level).reshape(1, -1)))


@numba.njit
def first_log_weights_sum(x, row, args):
    return np.zeros(x.shape[1])


@numba.njit
def log_weights_sum(before, x, row, args):
    return log_normal(row[0], x[1], 0.7)


SUM = ParticleModel(
    start_sum,
    move_sum,
    first_log_weights_sum,
    log_weights_sum,
    substeps=3,
    size=1,
    resets=(1,),
    keys=keys_2,
    order=order_by_key,
)


def log_density_of_sums(y):
    """Return the log density of what is observed of the sums: jointly normal."""
    n = len(y) - 1
    walk = np.zeros((3 * n, 1 + 3 * n))  # each level as a sum of the numbers that it is made of
    last = np.eye(1 + 3 * n)[0]
    for i in range(3 * n):
        last = walk[i] = 0.9 * last + 0.5 * np.eye(1 + 3 * n)[1 + i]
    sums = walk.reshape(n, 3, -1).sum(1)
    cov = sums @ sums.T + 0.49 * np.eye(n)
    observed = np.asarray(y[1:])
    _, log_det = np.linalg.slogdet(2.0 * np.pi * cov)
    return -0.5 * (log_det + observed @ np.linalg.solve(cov, observed))
