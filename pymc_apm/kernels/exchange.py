"""The exchange algorithm, for likelihoods whose normaliser is unknown.

Murray, Ghahramani and MacKay (2006), "MCMC for doubly-intractable distributions", arXiv:1206.6848.
The likelihood is g(y; theta) / Z(theta). Data x that are drawn from the model at the *proposed*
parameters theta' are offered to the old ones in exchange for the observed data y. In the ratio

    p(theta') g(y; theta') g(x; theta) / [p(theta) g(y; theta) g(x; theta')]

each normaliser is in the numerator as often as in the denominator, so that none has to be known.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_apm.kernels.metropolis import metropolis
from pymc_apm.types import LogDensity, State


class ExchangeInfo(NamedTuple):
    """What happened in one update by exchange.

    Attributes
    ----------
    accepted : bool
    accept_rate : float
        The probability with which the proposal was to be accepted.
    n_samples : int
        Data sets that were drawn from the model: none where the prior is zero.
    """

    accepted: bool
    accept_rate: float
    n_samples: int


def exchange(
    rng: np.random.Generator,
    state: State,
    log_density: LogDensity,
    log_g: Callable[[Any, Any], Any],
    sample: Callable[[Any, np.random.Generator], Any],
    observed: Any,
    proposal: Any,
) -> tuple[State, ExchangeInfo]:
    """Accept or reject parameters, with a data set drawn at the proposed ones.

    The proposal must be reversible with respect to Lebesgue measure, as that of
    :func:`~pymc_apm.kernels.random_walk` is, and ``sample`` must be exact.

    Parameters
    ----------
    rng : Generator
    state : State
        With the log density of the *prior*: that of everything but this likelihood.
    log_density : callable
        That of the prior. Its memo is what the next two functions know of the parameters.
    log_g : callable
        ``log_g(data, memo)`` returns the log of the unnormalised density of data: a number, or an
        array with one for each of several independent likelihoods.
    sample : callable
        ``sample(memo, rng)`` draws data from the model.
    observed : object
        The observed data.
    proposal : ndarray
        The proposed position.

    Returns
    -------
    state : State
    info : ExchangeInfo
    """
    n_samples = 0

    def log_ratio(position: Any, old: Any) -> tuple[float, tuple[float, Any]]:
        nonlocal n_samples
        log_prior, new = log_density(position, old)
        if not log_prior > -math.inf:
            return -math.inf, (log_prior, new)
        n_samples = 1
        x = sample(new, rng)
        swapped = log_g(observed, new) - log_g(observed, old) + log_g(x, old) - log_g(x, new)
        terms = (log_prior - state.log_density, *np.atleast_1d(swapped))
        return float(np.add.reduce(terms)), (log_prior, new)

    moved, info = metropolis(rng, State(state.position, 0.0, state.memo), log_ratio, proposal)
    if info.accepted:
        state = State(moved.position, *moved.memo)
    return state, ExchangeInfo(info.accepted, info.accept_rate, n_samples)
