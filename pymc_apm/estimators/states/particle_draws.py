"""Draws of states from the particles of a filter."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_apm.estimators.states.conditional import (
    ancestral_path,
    draw_index,
    effective_number,
    make_draw_path,
)
from pymc_apm.estimators.states.filter import weigh


class Drawn(NamedTuple):
    """What was drawn from the particles of a filter, with times along the first axis.

    Attributes
    ----------
    path : ndarray, shape (T, d)
        The states given all data.
    filtered : ndarray, shape (T, d)
        The state of each time by itself, given the data up to it.
    score : ndarray, shape (T,)
        The log density of the data of each time given those before.
    effective, reached : ndarray, shape (T,)
        Effective numbers of particles: by their weights, and of those that the path was chosen
        from.
    has_path : bool
        Whether there is a path.
    """

    path: Any
    filtered: Any
    score: Any
    effective: Any
    reached: Any
    has_path: bool


def make_draw(
    log_transition: Callable[..., Any] | None,
    jit: Callable[[Any], Any] = lambda function: function,
) -> Callable[..., Drawn]:
    """Return how states are drawn from the particles of a filter.

    A path is drawn backwards if the transition has a density; else it is one of the last particles
    with its ancestors. Where the filter's u is from the target of a chain, either is an exact draw
    given the parameters (Andrieu, Doucet and Holenstein, 2010).

    Returns
    -------
    callable
        ``draw(filtered, uniforms, data, args) -> Drawn``, where ``uniforms`` has the shape (T, 2).
    """
    if log_transition is None:

        @register_jitable
        def choose(filtered: Any, uniforms: Any, data: Any, args: Any) -> Any:
            return ancestral_path(
                filtered.states, filtered.log_weights, filtered.ancestors, uniforms[0]
            )

    else:
        draw_path = jit(make_draw_path(log_transition))

        @register_jitable
        def choose(filtered: Any, uniforms: Any, data: Any, args: Any) -> Any:
            return draw_path(filtered.states, filtered.log_weights, uniforms, data, args)

    def draw(filtered: Any, uniforms: Any, data: Any, args: Any) -> Any:
        n_times, dim, _ = filtered.states.shape
        states, score, effective = np.zeros((n_times, dim)), np.zeros(n_times), np.zeros(n_times)
        path, reached, has_path = choose(filtered, uniforms[:, 0], data, args)
        before = 0.0
        for t in range(n_times if has_path else 0):
            weights, log_mean = weigh(filtered.log_weights[t])
            effective[t] = effective_number(weights)
            # The estimate up to a time has no look-ahead in its last weights.
            score[t] = log_mean + before
            before = filtered.log_means[t] - log_mean
            k = draw_index(filtered.log_weights[t], uniforms[t, 1])
            for i in range(dim):
                states[t, i] = filtered.states[t, i, k]
        return Drawn(path, states, score, effective, reached, has_path)

    return draw
