"""A particle filter that is a smooth function of its random numbers, as far as there can be one.

At each time, N particles are moved, sorted and weighted, and N of them are drawn in proportion to
their weights by stratified resampling:

    x_t^j = move(x~_{t-1}^j, z_t^j),     w_t^j = g(y_t | x_t^j)  [f / q, if it is guided]
    x~_t^j = the first x_t^k in order with  W_t^1 + ... + W_t^k >= (j + Phi(v_t^j)) / N
    log f_hat = sum_t log mean_j w_t^j,

which is unbiased for any N. Particles are resampled at *every* time: to do so where the weights
have become uneven would be one more jump, at a place that depends on the parameters and u.
With a look-ahead ``eta`` (the auxiliary particle filter) they are drawn in proportion to ``w eta``
and their next weights are divided by ``eta``.

Everything here runs in Python as well as compiled by Numba: a filter is a closure over the
functions of a model, either of Python or compiled ones.

References
----------
Gordon, N. J., Salmond, D. J. and Smith, A. F. M. (1993). Novel approach to nonlinear/non-Gaussian
Bayesian state estimation. doi:10.1049/ip-f-2.1993.0015.

Pitt, M. K. and Shephard, N. (1999). Filtering via simulation: auxiliary particle filters.
doi:10.1080/01621459.1999.10474153.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from pymc_apm.estimators.states.sorting import first_coordinate, order_by_value
from pymc_apm.types import FloatVector

ROOT_HALF = math.sqrt(0.5)


@register_jitable
def no_lookahead(x: Any, row: Any, args: Any) -> FloatVector:
    """Return the logs of a look-ahead that favours no particle."""
    return np.zeros(x.shape[1])


class ParticleModel(NamedTuple):
    """A model as functions of all particles at once, which are the columns of a matrix.

    ``row`` is what belongs to the time at hand, a row of a table of data, and ``args`` whatever
    else the functions need, such as the parameters.

    Attributes
    ----------
    start : callable
        ``start(z, row, args)`` makes the first states from standard normal numbers.
    move : callable
        ``move(x, z, row, args)`` makes the states at the time of ``row`` from those before.
    first_log_weights, log_weights : callable
        ``first_log_weights(x, row, args)`` and ``log_weights(before, x, row, args)``: the log
        density of what was observed, 0 where nothing was; if the model is guided, plus the log
        density of the transition minus that of the proposal that ``move`` draws from.
    lookahead : callable
        ``lookahead(x, row, args)``: the log of the look-ahead, given the *next* row.
    keys, order : callable
        As in :mod:`pymc_apm.estimators.states.sorting`.
    substeps, size : int
        How often ``move`` is called between two times, and how many numbers of its own each call
        takes; all that there are if ``size`` is 0.
    resets : tuple of int
        The coordinates that are set to zero before particles move on.
    """

    start: Callable[..., Any]
    move: Callable[..., Any]
    first_log_weights: Callable[..., Any]
    log_weights: Callable[..., Any]
    lookahead: Callable[..., Any] = no_lookahead
    keys: Callable[..., Any] = first_coordinate
    order: Callable[..., Any] = order_by_value
    substeps: int = 1
    size: int = 0
    resets: tuple[int, ...] = ()


class Filtered(NamedTuple):
    """What a filter returns.

    Attributes
    ----------
    log_estimate : float
        The log of the estimate; ``-inf`` if no particle can have made what was observed.
    states : ndarray, shape (T, d, N)
        The particles, in their order; empty unless they are wanted.
    log_weights : ndarray, shape (T, N)
        The logs of their weights, without the look-ahead.
    log_means : ndarray, shape (T,)
        The logs of the means of weights, with the look-ahead; their sum is the estimate.
    ancestors : ndarray of int, shape (T, N)
        Which particle of the time before each was moved from; at the first time their own numbers.
    n_times : int
        How many times were computed: fewer than T if the estimate is zero, or is not to be had.
    is_above : bool
        Whether weights of the last of these are above their bound, which then is none; the first
        attribute is then the log of the largest one, or of their mean.
    """

    log_estimate: float
    states: Any
    log_weights: Any
    log_means: Any
    ancestors: Any
    n_times: int
    is_above: bool


class Bounds(NamedTuple):
    """How large the estimate of a filter can become, and how large it has to.

    Attributes
    ----------
    each : ndarray, shape (T,)
        Upper bounds of the logs of weights at each time; empty if none are known.
    later : ndarray, shape (T,)
        Upper bounds of what is added to the log of the estimate after each time.
    limit : float
        An estimate whose log is below this may as well be zero.
    is_strict : bool
        Whether to compare each weight with its bound; their mean, which is what matters, if not.
    """

    each: FloatVector
    later: FloatVector
    limit: float
    is_strict: bool

    def less(self, done: float) -> "Bounds":
        """Return them where some of the log of the estimate is known."""
        return self._replace(limit=self.limit - done)


@register_jitable
def no_bounds() -> Bounds:
    """Return that nothing is known, and nothing wanted."""
    return Bounds(np.zeros(0), np.zeros(0), -math.inf, False)


@register_jitable
def weigh(log_weights: FloatVector) -> tuple[FloatVector, float]:
    """Return weights up to a factor, and the log of the mean of those that were given.

    All weights are zero if none is positive. NaN makes the mean NaN.
    """
    n = log_weights.size
    largest = log_weights[0]
    for j in range(1, n):
        if log_weights[j] > largest or math.isnan(log_weights[j]):
            largest = log_weights[j]
    if not (-math.inf < largest < math.inf):  # also where it is NaN
        return np.zeros(n), largest
    weights = np.exp(log_weights - largest)
    return weights, largest + math.log(np.sum(weights) / n)


@register_jitable
def ancestors_of(weights: FloatVector, v: FloatVector) -> Any:
    """Return which particle each slot takes, by stratified resampling at normal numbers v."""
    n = weights.size
    total, last = 0.0, 0
    for k in range(n):
        total += weights[k]
        if weights[k] > 0.0:
            last = k
    ancestors = np.empty(n, np.int64)
    k, below = 0, weights[0]
    for j in range(n):
        level = (j + 0.5 * math.erfc(-v[j] * ROOT_HALF)) / n * total
        while below < level and k < last:
            k += 1
            below += weights[k]
        ancestors[j] = k
    return ancestors


@register_jitable
def added(total: float, lost: float, number: float) -> tuple[float, float]:
    """Add a number to a sum, and what is lost by rounding to another: Neumaier's sum."""
    new = total + number
    if abs(total) >= abs(number):
        return new, lost + ((total - new) + number)
    return new, lost + ((number - new) + total)


def make_step(model: ParticleModel) -> Callable[..., Any]:
    """Return a function that makes particles of a time: in order, with the logs of weights."""
    start, move, substeps, n_numbers = model.start, model.move, model.substeps, model.size
    first_log_weights, log_weights = model.first_log_weights, model.log_weights
    keys, order = model.keys, model.order

    def step(is_first: bool, before: Any, ahead: Any, z: Any, row: Any, args: Any) -> Any:
        """Move particles on; ``ahead`` has the look-ahead that each was drawn with."""
        if is_first:
            x = start(z, row, args)
            logs = first_log_weights(x, row, args)
        else:
            x = before
            size = n_numbers if n_numbers > 0 else z.shape[0]
            for number in range(substeps):
                x = move(x, z[number * size : (number + 1) * size], row, args)
            logs = log_weights(before, x, row, args) - ahead
        places = order(x, keys(x, row, args))
        return np.ascontiguousarray(x[:, places]), logs[places], places

    return step


class Before(NamedTuple):
    """Where a filter is between two times.

    Attributes
    ----------
    states : ndarray, shape (d, N)
        The particles, resampled.
    ahead : ndarray, shape (N,)
        The logs of the look-ahead that they were drawn with.
    total, lost : float
        The log of the estimate so far, and what was lost of it by rounding.
    is_start : bool
        Whether there are no particles yet.
    """

    states: Any
    ahead: Any
    total: float
    lost: float
    is_start: bool


@register_jitable
def nothing_before(n: int) -> Before:
    """Return where a filter of n particles starts."""
    return Before(np.zeros((1, n)), np.zeros(n), 0.0, 0.0, True)


def make_piece(
    model: ParticleModel, jit: Callable[[Any], Any] = lambda function: function
) -> Callable[..., tuple[Filtered, Before]]:
    """Return a particle filter of some times, which goes on from where another one ended.

    Parameters
    ----------
    model : ParticleModel
    jit : callable
        Compiles a function, if the functions of the model are compiled.

    Returns
    -------
    callable
        ``piece(u, data, args, keeps, before, bounds) -> (Filtered, Before)``, where ``data`` has a
        row for each time, and one more if more times follow.
    """
    step = jit(make_step(model))
    lookahead, resets = model.lookahead, np.array(model.resets, dtype=np.int64)

    def piece(u: Any, data: Any, args: Any, keeps: bool, before: Any, bounds: Any) -> Any:
        n_times, _, n = u.shape
        x, ahead, total, lost, is_start = before
        chosen = np.arange(n)
        kept, kept_logs = np.zeros((0, 0, 0)), np.zeros((0, 0))
        log_means, ancestors = np.zeros(n_times), np.zeros((0, 0), np.int64)
        is_bounded = bounds.each.size > 0
        for t in range(n_times):
            x, logs, places = step(is_start and t == 0, x, ahead, u[t, 1:], data[t], args)
            if keeps:
                if t == 0:
                    kept, kept_logs = np.zeros((n_times, x.shape[0], n)), np.zeros((n_times, n))
                    ancestors = np.zeros((n_times, n), np.int64)
                kept[t], kept_logs[t], ancestors[t] = x, logs, chosen[places]
            goes_on = t + 1 < len(data)
            if goes_on:
                eta = lookahead(x, data[t + 1], args)
                logs = logs + eta
            weights, log_mean = weigh(logs)
            log_means[t] = log_mean
            if is_bounded:
                largest = np.max(logs) if bounds.is_strict else log_mean
                if largest > bounds.each[t]:
                    filtered = Filtered(largest, kept, kept_logs, log_means, ancestors, t + 1, True)
                    return filtered, Before(x, ahead, math.nan, 0.0, False)
            if not (-math.inf < log_mean < math.inf):
                filtered = Filtered(log_mean, kept, kept_logs, log_means, ancestors, t + 1, False)
                return filtered, Before(x, ahead, log_mean, 0.0, False)
            total, lost = added(total, lost, log_mean)
            if is_bounded and total + lost + bounds.later[t] < bounds.limit:
                filtered = Filtered(-math.inf, kept, kept_logs, log_means, ancestors, t + 1, False)
                return filtered, Before(x, ahead, -math.inf, 0.0, False)
            if goes_on:
                chosen = ancestors_of(weights, u[t, 0])
                x, ahead = np.ascontiguousarray(x[:, chosen]), eta[chosen]
                for i in resets:
                    x[i] = 0.0
        log_estimate = total + lost
        filtered = Filtered(log_estimate, kept, kept_logs, log_means, ancestors, n_times, False)
        return filtered, Before(x, ahead, total, lost, False)

    return piece


def make_filter(
    model: ParticleModel, jit: Callable[[Any], Any] = lambda function: function
) -> Callable[..., Filtered]:
    """Return a particle filter of a model.

    Parameters
    ----------
    model : ParticleModel
    jit : callable
        Compiles a function, if the functions of the model are compiled.

    Returns
    -------
    callable
        ``run(u, data, args, keeps) -> Filtered``, where ``u`` are standard normal numbers of shape
        (T, 1 + k, N), the first of each time for resampling, ``data`` has a row for each time,
        and ``keeps`` says whether to return all particles.
    """
    piece = jit(make_piece(model, jit))

    def run(u: Any, data: Any, args: Any, keeps: bool) -> Any:
        return piece(u, data, args, keeps, nothing_before(u.shape[2]), no_bounds())[0]

    return run
