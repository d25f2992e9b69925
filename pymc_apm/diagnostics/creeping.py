"""Does u creep? How far it went, and how long log f_hat and u remember where they were.

A slice always moves u. Where the estimate is very noisy and all of u is one factor, it shrinks to
next to nothing: u moves in every draw, and is still where it was after a thousand of them.
"""

from typing import Any, NamedTuple

import numpy as np

from pymc_apm.diagnostics.runs import FloatArray, statistic
from pymc_apm.diagnostics.words import count, factor
from pymc_apm.errors import see

SMALL = 0.05
"""Moves of u that are shorter than this on average, in units of a fresh draw, are small.

Of moves as small as this, u would have an autocorrelation time of about 2 / 0.05 = 40 draws.
"""

FEW = 25
"""So few effective draws of u are no sample of it. A small move alone does no harm: u may have to
stay in a small place, in which it mixes well."""

MINIMUM_DRAWS = 4
"""What ArviZ asks for."""


class Movement(NamedTuple):
    """How one step moved u in one chain.

    Attributes
    ----------
    u_moved : float
        How far u went in a draw on average, in units of a fresh draw.
    iat_log_estimate, iat_u : float
        The integrated autocorrelation times of log f_hat and of a random projection of u, in draws;
        NaN if it never changed.
    creeps : bool
    """

    u_moved: float
    iat_log_estimate: float
    iat_u: float
    creeps: bool


def movements(idata: Any) -> list[list[Movement]]:
    """Return how each step that updates u moved it in each chain; [] if that was not recorded."""
    moved, projections = statistic(idata, "u_moved"), statistic(idata, "u_projection")
    log_estimates = statistic(idata, "log_estimate")
    if moved is None or projections is None or log_estimates is None:
        return []
    updates = np.flatnonzero(projections.any(axis=(0, 1)))
    return [
        [
            _movement(moved[chain, :, step], projections[chain, :, step], estimates)
            for chain, estimates in enumerate(log_estimates[..., step])
        ]
        for step in updates
    ]


def _movement(moved: FloatArray, projection: FloatArray, log_estimates: FloatArray) -> Movement:
    n_effective = _effective(projection)
    # Rejections are for `sticking` to find: here it is about the moves that there were.
    is_small = moved.any() and moved[moved > 0.0].mean() < SMALL
    return Movement(
        float(moved.mean()),
        moved.size / _effective(log_estimates),
        moved.size / n_effective,
        bool(is_small and n_effective < FEW),
    )


def _effective(values: FloatArray) -> float:
    import arviz

    if values.size < MINIMUM_DRAWS or np.ptp(values) == 0.0:  # for ArviZ they are independent then
        return np.nan
    return float(np.squeeze(arviz.ess(np.ascontiguousarray(values[None]))))


def creeping_in_words(name: str, chains: list[Movement]) -> list[str]:
    """Return a warning if u creeps in one of the chains."""
    creeping = [chain for chain, found in enumerate(chains) if found.creeps]
    if not creeping:
        return []
    worst = min(creeping, key=lambda chain: chains[chain].u_moved)
    where = f"chain {worst}"
    if len(creeping) > 1:
        where += f" and {count(len(creeping) - 1, 'other chain')}"
    found = chains[worst]
    return [
        f"{name} creeps in {where}: it moves in each draw, but by {factor(found.u_moved)} of the "
        "way to a fresh one on average, so that it takes at least "
        f"{count(round(found.iat_u), 'draw')} to forget where it was. The chain is too short for "
        "that: do not believe its ESS. Return one log-estimate for each independent factor, as a "
        "vector, and leave factorwise=True; or reduce the noise, by more particles or importance "
        f"draws. {see('diagnosing')}"
    ]
