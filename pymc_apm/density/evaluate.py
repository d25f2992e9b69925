"""How a log density is evaluated at a new position, given an evaluation at the old one.

The prior comes first, and nothing else is computed where it is zero. An estimate that is not a
number counts as zero. This is written once: what computes the parts is handed in, as functions of
Python (:mod:`pymc_apm.density.target`) or compiled ones (:mod:`pymc_apm.compiled.graphs`).
"""

import math
from collections.abc import Callable
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

    def density(position: Any, evaluation: Evaluation) -> tuple[float, Evaluation]:
        log_prior, before = prior(position, evaluation)
        if not log_prior > -math.inf:
            nothing = Evaluation(
                evaluation.values, -math.inf, -math.inf, -math.inf, -math.inf, FREE
            )
            return -math.inf, nothing
        log_exact, log_estimate, n_cubic, values = others(before)
        log_density = log_prior + log_exact + log_estimate
        n_nan = 0
        if not log_density < math.inf:
            if math.isnan(log_estimate):
                n_nan = int(computes_estimate)
                log_estimate = -math.inf
            log_density = -math.inf
        cost = Cost(int(computes_estimate), int(changes_theta), n_nan, n_cubic)
        return log_density, Evaluation(
            values, log_density, log_estimate, log_prior, log_exact, cost
        )

    return density
