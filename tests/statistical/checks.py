"""The checks that whole runs and single updates must pass, and that broken samplers must fail.

Seeds are fixed, so that a test gives the same verdict every time. ``Z`` is chosen for the day when
a seed, a version or the order of the random numbers changes: fewer than 600 comparisons in all
tests have a bound of ``Z`` standard errors (154 after single updates, 216 in whole runs, 84 in
Geweke's test when this was written), and the chance that a correct package fails any of them is
600 * P(|N(0, 1)| > 4.8), less than 1 in 1000, if the standard errors are right. A bias of 6
standard errors is found with a probability of 88%: 0.11 of a standard deviation in the mean, for a
run of effective size 3000.
"""

from collections.abc import Callable, Sequence
from typing import Any

import arviz
import numpy as np
from scipy.special import ndtri

from tests.steps.models import exact_toy_draw, start_chain

Z = 4.8


def mcse(draws: np.ndarray) -> float:
    """Return ArviZ's Monte Carlo standard error of the mean of (chain, draw) draws."""
    return float(np.squeeze(arviz.mcse(np.ascontiguousarray(draws))))


def z_scores_of_run(draws: np.ndarray, mean: Any = 0.0, variance: Any = 1.0) -> np.ndarray:
    """Compare the first two moments of (chain, draw, coordinate) draws with the exact ones.

    Returns
    -------
    ndarray
        For mean and variance of each coordinate, then of all of them on the scale of their own
        standard deviations, the error in units of its standard error.
    """
    draws = draws.reshape(*draws.shape[:2], -1)
    means = np.broadcast_to(mean, draws.shape[2])
    variances = np.broadcast_to(variance, draws.shape[2])
    standardised = (draws - means) / np.sqrt(variances)
    scores = []
    for x in (standardised, standardised**2 - 1.0):
        for values in (*np.moveaxis(x, 2, 0), x.mean(axis=2)):
            scores.append(values.mean() / mcse(values))
    return np.array(scores)


def theta_of(idata: Any) -> np.ndarray:
    return idata.posterior["theta"].values


def updates_from_exact_draws(
    step: Any, n_chains: int, *, dim: int = 5, kind: str = "normal", n_updates: int = 1, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Start many short chains from exact draws of the toy's joint target of (theta, u).

    Returns
    -------
    theta, u : ndarray
        Where the chains end: independent draws from the exact joint target, if the update is right.
        u is on the normal scale for either kind.
    stats : dict of ndarray
        The statistics of the last update.
    """
    rng = np.random.default_rng(seed)
    start_chain(step, seed + 1)
    step.step({"theta": np.zeros(dim)})
    step.stop_tuning()
    thetas, us, all_stats = np.empty((n_chains, dim)), np.empty((n_chains, dim)), []
    for i in range(n_chains):
        point, step.u = exact_toy_draw(rng, dim, kind)
        for _ in range(n_updates):
            point, stats = step.step(point)
        thetas[i], us[i] = point["theta"], step.u["u"]
        all_stats += stats
    names = all_stats[0]
    stats = {name: np.array([stat[name] for stat in all_stats]) for name in names}
    return thetas, us if kind == "normal" else ndtri(us), stats


def z_scores_of_joint(theta: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Compare independent draws with the toy's joint target: Var theta 1, Var u 2, Cov -1.

    The coordinates are exchangeable, so that each moment is averaged over all of them.
    """
    log_estimate = -(theta**2).sum(axis=1) - (u * theta).sum(axis=1)
    radius = (theta**2).sum(axis=1)
    return z_scores_of_means(
        [
            theta.mean(axis=1),
            u.mean(axis=1),
            (theta**2).mean(axis=1) - 1.0,
            (u**2).mean(axis=1) - 2.0,
            (u * theta).mean(axis=1) + 1.0,
            log_estimate**2 - theta.shape[1],
            np.exp(-radius / 2) - 2 ** (-theta.shape[1] / 2),
        ]
    )


def z_scores_of_means(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return the means of independent draws that should be zero, in standard errors."""
    return np.array([v.mean() / (v.std() / np.sqrt(len(v))) for v in values])


def assert_exact(scores: np.ndarray, z: float = Z) -> None:
    assert np.abs(scores).max() < z, f"errors in standard errors: {np.round(scores, 1)}"


def assert_not_exact(scores: np.ndarray, check: Callable[..., None] = assert_exact) -> None:
    """Assert that a check notices what is wrong with a broken sampler."""
    try:
        check(scores)
    except AssertionError:
        return
    raise AssertionError(f"the check did not notice a broken sampler: {np.round(scores, 1)}")
