"""All u proposed together, as joint proposals of theta and u do it, but with theta clamped."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pymc_apm.adaptive.correlation import tune_correlation
from pymc_apm.adaptive.random_walk import WalkLearnt, WalkOptions
from pymc_apm.adaptive.report import Report, combined, u_report
from pymc_apm.adaptive.transition import Settle, Transition, proposing_u, taking
from pymc_apm.kernels.blocks import choose_block, refresh_block
from pymc_apm.kernels.metropolis import metropolis
from pymc_apm.types import Evaluation, FloatVector, LogDensity, State


def all_u_together(
    propose_u: Callable[..., tuple[FloatVector, ...]],
    density: LogDensity,
    places: Sequence[int],
    settle: Settle,
) -> Transition:
    """Propose all u at fixed theta, and learn the correlation from it if told so.

    Parameters
    ----------
    propose_u, settle : callable
        As for :func:`~pymc_apm.adaptive.transition.jointly`.
    density : callable
        The log density as a function of each u: of a tuple, or of a vector if there is one alone.
    places : sequence of int
        Where these are among the values of an evaluation.
    """
    take = taking(places)
    density = density if len(places) > 1 else _of_a_tuple(density)

    def transition(
        rng: np.random.Generator,
        evaluation: Evaluation,
        options: WalkOptions,
        learnt: WalkLearnt,
        tunes: bool,
    ) -> tuple[Evaluation, WalkLearnt, Report]:
        evaluation = settle(rng, evaluation)
        state = State(take(evaluation.values), evaluation.log_density, evaluation)
        correlation = learnt.correlation
        proposal = propose_u(rng, state.position, correlation.value)
        state, info = metropolis(rng, state, density, proposal)
        report = u_report(
            info.cost, 1, int(info.accepted), info.accept_rate, learnt.correlation.value
        )
        if tunes and options.tunes_correlation:
            correlation = tune_correlation(correlation, info.accept_rate)
        learnt = WalkLearnt(learnt.pilot, learnt.covariance, learnt.scale, correlation)
        return state.memo, learnt, report

    return transition


def _of_a_tuple(density: LogDensity) -> LogDensity:
    def log_density(position: Any, memo: Any) -> Any:
        return density(position[0], memo)

    return log_density


def in_turn(first: Transition, second: Transition) -> Transition:
    """Make one transition and then another."""

    def transition(
        rng: np.random.Generator, evaluation: Evaluation, options: Any, learnt: Any, tunes: bool
    ) -> tuple[Evaluation, Any, Report]:
        evaluation, learnt, report = first(rng, evaluation, options, learnt, tunes)
        evaluation, learnt, other = second(rng, evaluation, options, learnt, tunes)
        return evaluation, learnt, combined(report, other)

    return transition


def proposing_a_block(
    draws: Sequence[Callable[[np.random.Generator, int], FloatVector]],
    rows: Sequence[int],
    n_blocks: int,
) -> Callable[..., tuple[FloatVector, ...]]:
    """Make a joint proposal of several u that refreshes one block, the same one of each.

    Parameters
    ----------
    draws : sequence of callable
        How each u is drawn from q(u).
    rows : sequence of int
        As for :func:`~pymc_apm.kernels.refresh_block`, for each u.
    n_blocks : int
    """
    propose_block = proposing_u(
        [_refreshing(draw, row, n_blocks) for draw, row in zip(draws, rows, strict=True)]
    )

    def propose_u(
        rng: np.random.Generator, us: tuple[FloatVector, ...], correlation: float
    ) -> tuple[FloatVector, ...]:
        return propose_block(rng, us, choose_block(rng, n_blocks))

    return propose_u


def _refreshing(
    draw: Callable[[np.random.Generator, int], FloatVector], row: int, n_blocks: int
) -> Callable[..., FloatVector]:
    def propose(rng: np.random.Generator, u: FloatVector, block: int) -> FloatVector:
        return refresh_block(rng, u, draw, row, n_blocks, block)

    return propose
