"""Conditional SMC with backward sampling: how a particle filter refreshes its own u.

The target p(theta) f_hat(theta; u) q(u) is the marginal of one on (u, path), in which a path of the
states is drawn from the particles, backwards in time. Given the path, u has a law that can be drawn
from: that of a filter one of whose particles, at each time, is made to follow the path. So an
update is

1. draw a path from the current particles: k_T with probability W_T^k, and then backwards
   P(k_t = i) ~ w_t^i f(x_{t+1} | x_t^i), in which neither the proposal nor the look-ahead counts;
2. draw all of u afresh;
3. run the filter with the path kept. At time t, with k its place among the sorted particles, draw c
   uniformly in [C_{k-1}, C_k], where C are the cumulated weights. The slot of the path at t + 1 is
   b = floor(N c), its number for resampling is N c - b, and its numbers for moving are solved from
   x_t and x_{t+1}. The first slot is uniform.

Slot j of stratified resampling has ancestor k with probability N |[C_{k-1}, C_k] n [j/N, (j+1)/N]|,
independently of the others, which is why step 3 has just the conditional law. The update is
reversible and always accepted. The path is, along with it, an exact draw of the states.

What step 3 returns are random numbers, and all else is what the filter makes of these: particles
that differ from the path by rounding follow their numbers, not the path. So the filter that runs
again with the new u gives the very same estimate.

References
----------
Andrieu, C., Doucet, A. and Holenstein, R. (2010). Particle Markov chain Monte Carlo methods.
doi:10.1111/j.1467-9868.2009.00736.x.

Whiteley, N. (2010). Discussion of the above. Lindsten, F. and Schon, T. B. (2013). Backward
simulation methods for Monte Carlo statistical inference. doi:10.1561/2200000045.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_apm.estimators.states.counts import normal_quantile
from pymc_apm.estimators.states.filter import (
    Filtered,
    ParticleModel,
    added,
    ancestors_of,
    make_step,
    weigh,
)
from pymc_apm.types import FloatVector


class Inverse(NamedTuple):
    """What has to be known of a model besides, to find the numbers that make a path.

    Attributes
    ----------
    log_transition : callable
        ``log_transition(before, x, row, args)``: the log density of the transition to the states
        ``x``, all of them alike, at the time of ``row``.
    start, move : callable
        ``start(x, jitter, row, args)`` and ``move(before, x, jitter, row, args)`` draw the normal
        numbers of one particle, given that they make its state ``x``. Where a state is discrete,
        uniform numbers ``jitter`` say which of them; they have the shape of ``z``.
    """

    log_transition: Callable[..., Any]
    start: Callable[..., Any]
    move: Callable[..., Any]


class Refreshed(NamedTuple):
    """What an update of u by conditional SMC returns.

    Attributes
    ----------
    u : ndarray
        The new random numbers.
    path : ndarray, shape (T, d)
        The path of the states that was drawn from the old ones.
    has_moved : bool
        Whether u is new; it is to stay as it was where a path is lost by rounding.
    filtered : Filtered
        What the filter returns for the new numbers.
    """

    u: Any
    path: Any
    has_moved: bool
    filtered: Filtered


@register_jitable
def draw_index(log_weights: FloatVector, uniform: float) -> int:
    """Return a number drawn in proportion to weights, by inversion; -1 if all are zero."""
    weights, log_mean = weigh(log_weights)
    if not (-math.inf < log_mean < math.inf):
        return -1
    level, below, chosen = uniform * np.sum(weights), 0.0, -1
    for k in range(weights.size):
        if weights[k] > 0.0:
            chosen = k
            below += weights[k]
            if below > level:
                break
    return chosen


@register_jitable
def place_path(weights: FloatVector, k: int, v: FloatVector, uniform: float) -> Any:
    """Find a slot for the particle with number k, and condition v on it.

    Returns
    -------
    slot : int
    v : ndarray
        The numbers for resampling, of which that of the slot is replaced.
    ancestors : ndarray
        What they make of the weights: that of the slot is k, but for rounding.
    """
    n, below = weights.size, 0.0
    for i in range(k):
        below += weights[i]
    level = (below + uniform * weights[k]) / np.sum(weights) * n
    slot = min(int(level), n - 1)
    v = v.copy()
    v[slot] = normal_quantile(level - slot)
    return slot, v, ancestors_of(weights, v)


def make_draw_path(log_transition: Callable[..., Any]) -> Callable[..., Any]:
    """Return how a path of the states is drawn from the particles of a filter, backwards in time.

    Returns
    -------
    callable
        ``draw_path(states, log_weights, uniforms, data, args)`` returns the path, (T, d), the
        effective number of particles that it was drawn from at each time, and whether there is one.
    """

    def draw_path(states: Any, log_weights: Any, uniforms: Any, data: Any, args: Any) -> Any:
        n_times, dim, n = states.shape
        path, effective = np.zeros((n_times, dim)), np.zeros(n_times)
        later = np.empty((dim, n))
        for t in range(n_times - 1, -1, -1):
            logs = log_weights[t]
            if t + 1 < n_times:
                logs = logs + log_transition(states[t], later, data[t + 1], args)
            k = draw_index(logs, uniforms[t])
            if k < 0:
                return path, effective, False
            effective[t] = effective_number(weigh(logs)[0])
            for i in range(dim):
                path[t, i] = states[t, i, k]
                later[i] = path[t, i]
        return path, effective, True

    return draw_path


@register_jitable
def effective_number(weights: FloatVector) -> float:
    """Return the effective number of particles with some weights, which are not all zero."""
    return np.sum(weights) ** 2 / np.sum(weights**2)


@register_jitable
def ancestral_path(states: Any, log_weights: Any, ancestors: Any, uniform: float) -> Any:
    """Draw one of the last particles of a filter, and return its ancestors: a path of the states.

    Returns
    -------
    path : ndarray, shape (T, d)
    effective : ndarray, shape (T,)
        The effective number of particles that are ancestors of the last ones, at each time.
    has_path : bool
    """
    n_times, dim, n = states.shape
    path, effective = np.zeros((n_times, dim)), np.zeros(n_times)
    k = draw_index(log_weights[n_times - 1], uniform)
    if k < 0:
        return path, effective, False
    weights, _ = weigh(log_weights[n_times - 1])
    for t in range(n_times - 1, -1, -1):
        effective[t] = effective_number(weights)
        for i in range(dim):
            path[t, i] = states[t, i, k]
        before = np.zeros(n)
        for j in range(n):
            before[ancestors[t, j]] += weights[j]
        weights, k = before, ancestors[t, k]
    return path, effective, True


def make_refresh(
    model: ParticleModel,
    inverse: Inverse,
    jit: Callable[[Any], Any] = lambda function: function,
    place: Callable[..., Any] = place_path,
) -> Callable[..., Refreshed]:
    """Return the update of u that leaves the target of a particle filter invariant.

    Parameters
    ----------
    model : ParticleModel
        Without substeps and resets.
    inverse : Inverse
    jit : callable
        Compiles a function, if the functions of the model are compiled.
    place : callable
        How the path is placed; tests of tests have others.

    Returns
    -------
    callable
        ``refresh(states, log_weights, fresh, uniforms, data, args) -> Refreshed``, where the first
        two are what the filter made of the old u, with a positive estimate, ``fresh`` is drawn as u
        is, of shape (T, 1 + k, N), and there are uniform numbers of shape (T, 2 + k): for the path,
        for its slot and for jitter.
    """
    step, lookahead = jit(make_step(model)), model.lookahead
    log_transition, unstart, unmove = inverse

    draw_path = jit(make_draw_path(log_transition))

    def refresh(
        states: Any, log_weights: Any, fresh: Any, uniforms: Any, data: Any, args: Any
    ) -> Any:
        n_times, n_rows, n = fresh.shape
        path, _, has_moved = draw_path(states, log_weights, uniforms[:, 0], data, args)
        new, kept, kept_logs = fresh.copy(), np.zeros(states.shape), np.zeros(log_weights.shape)
        log_means, ancestors = np.zeros(n_times), np.zeros((n_times, n), np.int64)
        x, ahead, total, lost = np.zeros((1, n)), np.zeros(n), 0.0, 0.0
        chosen = np.arange(n)
        b = min(int(uniforms[0, 1] * n), n - 1)
        for t in range(n_times if has_moved else 0):
            row, jitter = data[t], uniforms[t, 2:].copy().reshape(n_rows - 1, 1)
            now = path[t].copy().reshape(path.shape[1], 1)
            if t == 0:
                z = unstart(now, jitter, row, args)
            else:
                z = unmove(np.ascontiguousarray(x[:, b : b + 1]), now, jitter, row, args)
            for i in range(z.shape[0]):
                new[t, 1 + i, b] = z[i, 0]
            x, logs, places = step(t == 0, x, ahead, new[t, 1:], row, args)
            kept[t], kept_logs[t], ancestors[t] = x, logs, chosen[places]
            if t + 1 < n_times:
                eta = lookahead(x, data[t + 1], args)
                logs = logs + eta
            weights, log_mean = weigh(logs)
            log_means[t] = log_mean
            if not (-math.inf < log_mean < math.inf):
                has_moved = False
                break
            total, lost = added(total, lost, log_mean)
            if t + 1 < n_times:
                k = 0
                while places[k] != b:
                    k += 1
                b, new[t, 0], chosen = place(weights, k, new[t, 0], uniforms[t + 1, 1])
                if chosen[b] != k:  # by rounding: about once in 1e14 times
                    has_moved = False
                    break
                x, ahead = np.ascontiguousarray(x[:, chosen]), eta[chosen]
        log_estimate = total + lost
        filtered = Filtered(log_estimate, kept, kept_logs, log_means, ancestors, n_times, False)
        return Refreshed(new, path, has_moved, filtered)

    return refresh
