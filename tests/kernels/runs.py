"""Chains on the targets, by kernels or transitions, and by whatever runs them.

An *update* takes a point of a chain to the next one. A sweep makes it for many chains, one after
the other: an ordinary function that Python runs as it is (:func:`in_python`), and that Numba
compiles together with all that it calls (:func:`compiled`), as the package compiles transitions.
What differs between cases, the target and the arguments of kernels, is data, so that few functions
have to be compiled.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_apm.adaptive.transition import Transition
from pymc_apm.compiled.program import with_parts
from pymc_apm.types import FREE, ONE_EVALUATION, Evaluation, State
from tests.kernels.targets import Joint, log_estimate

THETA, U = 1, 2
"""Where theta and u are among the values of an evaluation; the first is the number of the target"""


class Update(NamedTuple):
    """An update of a chain.

    Attributes
    ----------
    function : callable
        ``function(rng, evaluation, arguments) -> (theta, u, value)``, the last as the log-estimate
        was computed there.
    moves : set of str
        Which of theta and u it moves.
    arguments : tuple
        What else its kernel is called with.
    """

    function: Callable[..., Any]
    moves: frozenset[str]
    arguments: tuple[Any, ...] = ()


def evaluate(number, theta, u):
    value = log_estimate(number, theta, u)
    return value, Evaluation((number, theta, u), value, value, 0.0, 0.0, ONE_EVALUATION, -np.inf)


def along_theta(theta, evaluation):
    return evaluate(evaluation.values[0], theta, evaluation.values[2])


def along_u(u, evaluation):
    return evaluate(evaluation.values[0], evaluation.values[1], u)


def along_both(position, evaluation):
    return evaluate(evaluation.values[0], position[0], position[1])


def on_theta(kernel) -> Callable[..., Update]:
    """Apply ``kernel(rng, state, log_density, *arguments)`` to theta while u stays."""

    def update(rng, evaluation, arguments):
        state = State(evaluation.values[1], evaluation.log_density, evaluation)
        state, _ = kernel(rng, state, along_theta, *arguments)
        return state.position, evaluation.values[2], state.log_density

    return lambda *arguments: Update(update, frozenset({"theta"}), arguments)


def on_u(kernel) -> Callable[..., Update]:
    """Apply ``kernel(rng, state, log_density, *arguments)`` to u while theta stays."""

    def update(rng, evaluation, arguments):
        state = State(evaluation.values[2], evaluation.log_density, evaluation)
        state, _ = kernel(rng, state, along_u, *arguments)
        return evaluation.values[1], state.position, state.log_density

    return lambda *arguments: Update(update, frozenset({"u"}), arguments)


def on_both(transition: Transition) -> Callable[..., Update]:
    """Make a transition with ``options, learnt`` for arguments, after tuning."""

    def update(rng, evaluation, arguments):
        options, learnt = arguments
        evaluation, _, _ = transition(rng, evaluation, options, learnt, False)
        return evaluation.values[1], evaluation.values[2], evaluation.log_density

    return lambda *arguments: Update(update, frozenset({"theta", "u"}), arguments)


# What runs them


def in_python(function):
    return function


@functools.cache
def compiled(function):
    """Compile a function and all that it refers to, as the package does."""
    return with_parts(function)


def compute_log_estimates(number, thetas, us, values):
    for i in range(len(thetas)):
        values[i] = log_estimate(number, thetas[i], us[i])


@functools.cache
def sweeping(update):
    """Return a function that makes an update for all chains, one after the other."""

    def sweep(rng, number, thetas, us, values, arguments):
        for i in range(len(thetas)):
            values_here = (number, thetas[i].copy(), us[i].copy())
            start = Evaluation(values_here, values[i], values[i], 0.0, 0.0, FREE, -np.inf)
            theta, u, values[i] = update(rng, start, arguments)
            for j in range(theta.size):
                thetas[i, j] = theta[j]
            for j in range(u.size):
                us[i, j] = u[j]

    return sweep


class Run(NamedTuple):
    """Chains before and after: their z, and how many of theta and of u have changed."""

    before: np.ndarray
    after: np.ndarray
    moved: dict[str, float]


def run_chains(
    rng, joint: Joint, updates: list[Update], n_chains: int, n_rounds: int, how=in_python
) -> Run:
    """Start independent chains from exact draws, and make rounds of updates.

    The log-estimate is computed for the start alone: from there on chains live on what the kernels
    hand back, so that a wrong one shows.
    """
    starts = joint.from_normal(rng.standard_normal((n_chains, joint.dim)))
    thetas, us = (np.array(start, order="C") for start in starts)
    values = np.empty(n_chains)
    how(compute_log_estimates)(joint.number, thetas, us, values)
    for _ in range(n_rounds):
        for update in updates:
            sweep = how(sweeping(update.function))
            sweep(rng, joint.number, thetas, us, values, update.arguments)
    moved = {"theta": float(np.mean(thetas != starts[0])), "u": float(np.mean(us != starts[1]))}
    return Run(joint.to_normal(*starts), joint.to_normal(thetas, us), moved)
