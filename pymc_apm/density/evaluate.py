"""How a log density is evaluated at a new position, given an evaluation at the old one.

The prior comes first, and nothing else is computed where it is zero. An estimate that is not a
number counts as zero. This is written once: what computes the parts is handed in, as functions of
Python (:mod:`pymc_apm.density.target`) or compiled ones (:mod:`pymc_apm.compiled.graphs`).
"""

from collections.abc import Callable
from math import inf, isnan
from typing import Any

from pymc_apm.types import FREE, Cost, Evaluation, LogDensity


def make_density(
    prior: Callable[[Any, Evaluation], tuple[float, Any]],
    others: Callable[[Any], tuple[float, float, int, tuple[Any, ...]]],
    computes_estimate: bool,
    changes_theta: bool,
) -> LogDensity:
    """Return the log density as a function of some inputs, the others clamped.

    Parameters
    ----------
    prior : callable
        ``prior(position, evaluation)`` returns the log of the prior, and all values with the new
        position, and what the prior is made of, in their places.
    others : callable
        ``others(values)`` computes the rest, and returns the log of the exact likelihood, the
        log-estimate, the number of cubic operations, and all values.
    computes_estimate, changes_theta : bool
        What counts as a cost of it.

    Returns
    -------
    callable
        ``density(position, evaluation) -> (log_density, new_evaluation)``: the form in which
        kernels take a log density, with evaluations as memos.
    """
    usual_cost = Cost(int(computes_estimate), int(changes_theta), 0, 0)

    def density(position: Any, evaluation: Evaluation) -> tuple[float, Evaluation]:
        log_prior, before = prior(position, evaluation)
        if not log_prior > -inf:
            nothing = Evaluation(evaluation.values, -inf, -inf, -inf, -inf, FREE, -inf)
            return -inf, nothing
        log_exact, log_estimate, n_cubic, values = others(before)
        log_density = log_prior + log_exact + log_estimate
        cost = usual_cost
        if n_cubic > 0:
            cost = Cost(cost.n_evals, cost.n_theta_evals, 0, n_cubic)
        if not log_density < inf:
            if isnan(log_estimate):
                cost = Cost(cost.n_evals, cost.n_theta_evals, cost.n_evals, n_cubic)
                log_estimate = -inf
            log_density = -inf
        return log_density, Evaluation(
            values, log_density, log_estimate, log_prior, log_exact, cost, -inf
        )

    return density
