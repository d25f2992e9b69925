"""Update rules for Markov chains: pure functions on numpy arrays, one rule a file.

A kernel is called as ``kernel(rng, state, log_density, ...)`` and returns ``(state, info)``. The
state is a :class:`State`: a position, its log density and a *memo*, whatever the log density wants
to remember of the evaluation (an evaluation of the staged target, say). ``log_density(position,
memo)`` returns the log density at ``position`` and the memo that belongs to it, given the memo of
the current state. So an accepted proposal brings its own work along, a rejected one leaves no
trace, and the density at the current state is never computed a second time, which is what makes
these rules right for an estimated density.

Nothing here knows what a model is: the kernels import numpy and scipy only, edit none of their
inputs and draw all randomness from the generator they are given.
"""

from pymc_apm.kernels.blocks import refresh_block
from pymc_apm.kernels.elliptical import elliptical_slice
from pymc_apm.kernels.elliptical_t import elliptical_t_slice
from pymc_apm.kernels.exchange import ExchangeInfo, exchange
from pymc_apm.kernels.metropolis import (
    MetropolisInfo,
    correlated_normal,
    correlated_uniform,
    make_independence,
    metropolis,
    metropolis_independence,
    random_walk,
    random_walk_metropolis,
)
from pymc_apm.kernels.reflective import reflect, reflective_slice
from pymc_apm.kernels.slice import (
    UNLIMITED,
    SliceInfo,
    linear_slice,
    random_direction,
)
from pymc_apm.types import LogDensity, State

__all__ = [
    "UNLIMITED",
    "ExchangeInfo",
    "LogDensity",
    "MetropolisInfo",
    "SliceInfo",
    "State",
    "correlated_normal",
    "correlated_uniform",
    "elliptical_slice",
    "elliptical_t_slice",
    "exchange",
    "linear_slice",
    "make_independence",
    "metropolis",
    "metropolis_independence",
    "random_direction",
    "random_walk",
    "random_walk_metropolis",
    "reflect",
    "reflective_slice",
    "refresh_block",
]
