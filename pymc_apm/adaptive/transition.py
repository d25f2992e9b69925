"""Transitions of a chain of (theta, u): the paper's Figures 1 and 3.

A transition is a closure over kernels and log densities,

    transition(rng, evaluation, options, learnt, tunes) -> (evaluation, learnt, report),

made by the functions here from *updates* of u and of theta. ``evaluation`` is where the chain is,
``options`` what the user chose, ``learnt`` what was learnt while tuning and ``tunes`` whether to
learn. The same closures run in Python and are compiled by Numba; a density is a function of a
position and an evaluation in both, and ``place`` says where a position is among the values of an
evaluation.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from pymc_apm.adaptive.random_walk import WalkLearnt, WalkOptions, n_proposals, propose
from pymc_apm.adaptive.report import NOTHING, Report, combined, theta_report, u_report
from pymc_apm.kernels.metropolis import metropolis
from pymc_apm.types import FREE, Evaluation, FloatVector, LogDensity, State, plus

Transition: TypeAlias = Callable[..., tuple[Evaluation, Any, Report]]
UpdateU: TypeAlias = Callable[[np.random.Generator, Evaluation], tuple[Evaluation, Report]]
Settle: TypeAlias = Callable[[np.random.Generator, Evaluation], Evaluation]


def u_then_theta(
    update_u: UpdateU,
    update_theta: Callable[..., Any],
    learn: Callable[..., Any],
    density: LogDensity,
    place: int,
) -> Transition:
    """Update u with theta clamped, then theta with u clamped: Figure 3 of the paper.

    Parameters
    ----------
    update_u : callable
        ``update_u(rng, evaluation) -> (evaluation, report)``.
    update_theta : callable
        ``update_theta(rng, state, density, options, learnt, tunes) -> (state, learnt, report)``.
    learn : callable
        ``learn(options, learnt, theta) -> learnt``, after a transition while tuning.
    density : callable
        The log density as a function of theta.
    place : int
        Where theta is among the values of an evaluation.
    """

    def transition(
        rng: np.random.Generator, evaluation: Evaluation, options: Any, learnt: Any, tunes: bool
    ) -> tuple[Evaluation, Any, Report]:
        evaluation, report = update_u(rng, evaluation)
        state = State(evaluation.values[place], evaluation.log_density, evaluation)
        for _ in range(options.theta_updates):
            state, learnt, update = update_theta(rng, state, density, options, learnt, tunes)
            report = combined(report, update)
        if tunes:
            learnt = learn(options, learnt, state.position)
        return state.memo, learnt, report

    return transition


def jointly(
    propose_u: Callable[..., tuple[FloatVector, ...]],
    density: LogDensity,
    places: Sequence[int],
    settle: Settle,
) -> Transition:
    """Propose theta and fresh u together, and accept or reject both: Figure 1 of the paper.

    Parameters
    ----------
    propose_u : callable
        ``propose_u(rng, us, correlation)`` proposes each of a tuple of u, reversibly under q(u).
    density : callable
        The log density as a function of a tuple: theta, and each u.
    places : sequence of int
        Where these are among the values of an evaluation.
    settle : callable
        ``settle(rng, evaluation) -> evaluation``, before each proposal; see :func:`settling`.
    """
    take, place = taking(places), places[0]

    def transition(
        rng: np.random.Generator,
        evaluation: Evaluation,
        options: WalkOptions,
        learnt: WalkLearnt,
        tunes: bool,
    ) -> tuple[Evaluation, WalkLearnt, Report]:
        n_updates = n_proposals(options, evaluation.values[place].size)
        n_moved, accept_rate, cost = 0, 0.0, FREE
        for number in range(n_updates):
            evaluation = settle(rng, evaluation)
            state = State(take(evaluation.values), evaluation.log_density, evaluation)
            theta = propose(rng, state.position[0], options, learnt, number)
            us = propose_u(rng, state.position[1:], learnt.correlation.value)
            proposal = (theta,) + us  # noqa: RUF005  # Numba knows no other way
            state, info = metropolis(rng, state, density, proposal)
            n_moved += int(info.accepted)
            accept_rate += info.accept_rate
            cost = plus(cost, info.cost)
            evaluation = state.memo
        report = combined(
            theta_report(cost, n_updates, n_moved, accept_rate, learnt.scale.scaling),
            u_report(FREE, n_updates, n_moved, accept_rate, learnt.correlation.value),
        )
        return evaluation, learnt, report

    return transition


def while_tuning(tuning: Transition, after: Transition) -> Transition:
    """Make one transition while tuning, and another one after."""

    def transition(
        rng: np.random.Generator, evaluation: Evaluation, options: Any, learnt: Any, tunes: bool
    ) -> tuple[Evaluation, Any, Report]:
        if tunes:
            return tuning(rng, evaluation, options, learnt, tunes)
        return after(rng, evaluation, options, learnt, tunes)

    return transition


def u_alone(update_u: UpdateU) -> Transition:
    """Update u, and leave theta to others."""

    def transition(
        rng: np.random.Generator, evaluation: Evaluation, options: Any, learnt: Any, tunes: bool
    ) -> tuple[Evaluation, Any, Report]:
        evaluation, report = update_u(rng, evaluation)
        return evaluation, learnt, report

    return transition


# Updates of u


def updating_u(kernel: Callable[..., Any], density: LogDensity, place: int) -> UpdateU:
    """Make an update of one u from a kernel and the log density as a function of that u."""

    def update_u(rng: np.random.Generator, evaluation: Evaluation) -> tuple[Evaluation, Report]:
        state = State(evaluation.values[place], evaluation.log_density, evaluation)
        state, info = kernel(rng, state, density)
        return state.memo, u_report(info.cost, 1, int(info.accepted), info.accept_rate)

    return update_u


def refreshing_u(refresh: Callable[..., Any], density: LogDensity, place: int) -> UpdateU:
    """Make an update of one u by which its estimator refreshes it.

    Parameters
    ----------
    refresh : callable
        ``refresh(rng, evaluation) -> (u, cost)``, which leaves the target invariant; None for u
        that is to stay as it is.
    density : callable
        The log density as a function of that u.
    place : int
        Where u is among the values of an evaluation.
    """

    def update_u(rng: np.random.Generator, evaluation: Evaluation) -> tuple[Evaluation, Report]:
        u, cost = refresh(rng, evaluation)
        if u is None:
            return evaluation, u_report(cost, 1, 0, 0.0)
        log_density, new = density(u, evaluation)
        cost = plus(cost, new.cost)
        if not log_density > -np.inf:  # by rounding alone: the estimate was positive
            return evaluation, u_report(cost, 1, 0, 0.0)
        return new, u_report(cost, 1, 1, 1.0)

    return update_u


def one_after_the_other(updates: Sequence[UpdateU]) -> UpdateU:
    """Make one update of several."""
    if not updates:
        return leaving_u
    if len(updates) == 1:
        return updates[0]
    first, others = updates[0], one_after_the_other(updates[1:])

    def update_u(rng: np.random.Generator, evaluation: Evaluation) -> tuple[Evaluation, Report]:
        evaluation, report = first(rng, evaluation)
        evaluation, other = others(rng, evaluation)
        return evaluation, combined(report, other)

    return update_u


def leaving_u(rng: np.random.Generator, evaluation: Evaluation) -> tuple[Evaluation, Report]:
    """Leave u as it is."""
    return evaluation, NOTHING


def settling(settle: Settle, update: UpdateU) -> UpdateU:
    """Keep of a stream just what the estimate used, before it is updated."""

    def update_u(rng: np.random.Generator, evaluation: Evaluation) -> tuple[Evaluation, Report]:
        return update(rng, settle(rng, evaluation))

    return update_u


def settled(rng: np.random.Generator, evaluation: Evaluation) -> Evaluation:
    """Return an evaluation without streams: there is nothing to settle."""
    return evaluation


def proposing_u(
    proposals: Sequence[Callable[..., FloatVector]],
) -> Callable[..., tuple[FloatVector, ...]]:
    """Make a joint proposal of several u from a proposal for each."""
    if not proposals:
        return _no_proposal
    first, others = proposals[0], proposing_u(proposals[1:])

    def propose_u(
        rng: np.random.Generator, us: tuple[FloatVector, ...], correlation: float
    ) -> tuple[FloatVector, ...]:
        proposal = (first(rng, us[0], correlation),)
        return proposal + others(rng, us[1:], correlation)

    return propose_u


def _no_proposal(rng: np.random.Generator, us: Any, correlation: float) -> tuple[()]:
    return ()


def taking(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that takes the values at some places."""
    if not places:
        return _nothing
    place, others = places[0], taking(places[1:])

    def take(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return (values[place],) + others(values)  # noqa: RUF005  # Numba knows no other way

    return take


def _nothing(values: tuple[Any, ...]) -> tuple[()]:
    return ()


# Draws


def drawing(transition: Transition) -> Transition:
    """Make several transitions for each draw, and add up what they report."""

    def draw(
        rng: np.random.Generator,
        evaluation: Evaluation,
        options: Any,
        learnt: Any,
        tunes: bool,
        thin: int,
    ) -> tuple[Evaluation, Any, Report]:
        report = NOTHING
        for number in range(thin):
            evaluation, learnt, update = transition(rng, evaluation, options, learnt, tunes)
            report = combined(report, update) if number > 0 else update
        return evaluation, learnt, report

    return draw


def in_batches(
    draw: Transition, places: Sequence[int], starts: Sequence[int], signs: Sequence[int]
) -> Callable[..., tuple[Evaluation, Any, FloatVector, FloatVector]]:
    """Make many draws, and write them down.

    Parameters
    ----------
    draw : callable
        As :func:`drawing` returns.
    places : sequence of int
        What to write down of each draw: where it is among the values of an evaluation.
    starts : sequence of int
        Where each of these starts in a row, and how long a row is.
    signs : sequence of int
        Where the signs of estimates are among the values of an evaluation.
    """
    write, sign = writing(places, starts), multiplying(signs)
    n_numbers = starts[-1]

    def run(
        rng: np.random.Generator,
        evaluation: Evaluation,
        options: Any,
        learnt: Any,
        tunes: bool,
        thin: int,
        n_draws: int,
    ) -> tuple[Evaluation, Any, FloatVector, FloatVector]:
        positions = np.empty((n_draws, n_numbers))
        table = np.empty((n_draws, len(NOTHING) + 3))
        for number in range(n_draws):
            evaluation, learnt, report = draw(rng, evaluation, options, learnt, tunes, thin)
            write(positions[number], evaluation.values)
            for column in range(len(report)):
                table[number, column] = report[column]
            table[number, len(report)] = evaluation.log_estimate
            table[number, len(report) + 1] = evaluation.log_density
            table[number, len(report) + 2] = sign(evaluation.values)
        return evaluation, learnt, positions, table

    return run


def writing(
    places: Sequence[int], starts: Sequence[int]
) -> Callable[[FloatVector, tuple[Any, ...]], None]:
    """Return a function that writes the values at some places into a row."""
    if not places:
        return _write_nothing
    place, start, stop = places[0], starts[0], starts[1]
    others = writing(places[1:], starts[1:])

    def write(row: FloatVector, values: tuple[Any, ...]) -> None:
        value = values[place]
        for i in range(stop - start):  # Numba takes seconds to compile the assignment of a slice
            row[start + i] = value[i]
        others(row, values)

    return write


def multiplying(places: Sequence[int]) -> Callable[[tuple[Any, ...]], float]:
    """Return a function that multiplies all elements of the vectors at some places."""
    if not places:
        return _one
    place, others = places[0], multiplying(places[1:])

    def product(values: tuple[Any, ...]) -> float:
        return float(np.prod(values[place])) * others(values)

    return product


def _one(values: tuple[Any, ...]) -> float:
    return 1.0


def _write_nothing(row: FloatVector, values: tuple[Any, ...]) -> None:
    pass
