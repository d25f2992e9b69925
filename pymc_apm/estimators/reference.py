"""The reference parameter of a model with an unknown normaliser, by a pilot estimate.

Monte Carlo maximum likelihood (Geyer and Thompson, 1992): with exact samples x_m at a parameter
psi, the log of the likelihood ratio p(y | theta) / p(y | psi) is about

    log g(y; theta) / g(y; psi) - log mean_m g(x_m; theta) / g(x_m; psi)

which is good as long as the weights in the mean are even. So the sum of this and of the log prior
is maximised, the way to the maximum is cut short where the weights become too uneven, and the next
round starts from there with samples of its own.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from scipy.optimize import minimize
from scipy.special import logsumexp

from pymc_apm._compat import compile_function
from pymc_apm.errors import CoalescenceError, EstimatorError, describe_value
from pymc_apm.layout import Layout

MAX_ROUNDS = 25
"""How often the samples are drawn anew at most; a few times are enough as a rule."""

EVEN = 1.0 / 3.0
"""The effective share of the samples that the weights must leave."""

CONVERGED = 0.9
"""The effective share at which the next round would hardly change anything."""


def pilot_reference(
    family: Any,
    parameters: Sequence[Variable],
    observed: Any,
    n_draws: int,
    model: pm.Model,
    seed: int = 0,
) -> list[Any]:
    """Estimate the mode of the posterior, and return the parameters there.

    Parameters
    ----------
    family : Family
    parameters : sequence of Variable
        The parameters of the family, as functions of random variables of the model.
    observed : object
        The data.
    n_draws : int
        Exact samples in each round.
    model : Model
    seed : int
        The seed of the exact samples.

    Returns
    -------
    list of float or ndarray
    """
    search = _Search(family, parameters, observed, model)
    rng = np.random.default_rng(seed)
    position = search.start
    if position.size == 0:
        return search.parameters(position)
    samples = search.draw(position, n_draws, rng)
    for _ in range(MAX_ROUNDS):
        target = search.maximise(position, samples)
        while (share := search.effective_share(position, target, samples)) < EVEN:
            target = position + 0.7 * (target - position)
        if share > CONVERGED:
            return search.parameters(target)
        try:
            samples = search.draw(target, n_draws, rng)
        except CoalescenceError:
            # Too far into a region where sampling is hard: what has been reached will do.
            return search.parameters(position)
        position = target
    return search.parameters(position)


class _Search:
    """The functions of the search, of the unconstrained parameters as one vector."""

    def __init__(
        self, family: Any, parameters: Sequence[Variable], observed: Any, model: pm.Model
    ) -> None:
        self.family = family
        self.observed = observed
        upstream = set(ancestors(parameters))
        random_variables = [rv for rv in model.free_RVs if rv in upstream]
        values = [model.rvs_to_values[rv] for rv in random_variables]
        point = model.initial_point()
        self._layout = Layout(values, point)
        self.start = self._layout.ravel(point)
        outputs = model.replace_rvs_by_values(parameters)
        log_prior = model.logp(vars=random_variables) if random_variables else None
        self._function = compile_function(
            values,
            [*outputs, *([] if log_prior is None else [log_prior])],
            mode="FAST_COMPILE",
        )
        self._n_parameters = len(parameters)

    def _call(self, position: NDArray[np.float64]) -> tuple[list[Any], float]:
        point = self._layout.unravel(position)
        results = self._function(*point.values())
        parameters = [np.asarray(value)[()] for value in results[: self._n_parameters]]
        return parameters, float(results[-1]) if len(results) > self._n_parameters else 0.0

    def parameters(self, position: NDArray[np.float64]) -> list[Any]:
        """Return the parameters of the family."""
        return self._call(position)[0]

    def draw(
        self, position: NDArray[np.float64], n_draws: int, rng: np.random.Generator
    ) -> list[Any]:
        """Draw exact samples."""
        parameters = self.parameters(position)
        return [self.family.sample(*parameters, rng) for _ in range(n_draws)]

    def _log_weights(
        self, here: Sequence[Any], there: Sequence[Any], samples: Sequence[Any]
    ) -> NDArray[np.float64]:
        log_g = self.family.log_g
        return np.array([log_g(x, *there) - log_g(x, *here) for x in samples])

    def maximise(
        self, position: NDArray[np.float64], samples: Sequence[Any]
    ) -> NDArray[np.float64]:
        """Maximise the log posterior as estimated by samples drawn at a position."""
        here = self.parameters(position)
        log_g_here = float(self.family.log_g(self.observed, *here))
        if not math.isfinite(log_g_here):
            raise EstimatorError(
                f"log_g of the observed data is {log_g_here} at the parameters "
                f"{', '.join(map(describe_value, here))}, where the search for a reference starts. "
                "Give other initial values to the random variables of the model, or a reference."
            )

        def loss(candidate: NDArray[np.float64]) -> float:
            there, log_prior = self._call(candidate)
            value = log_prior + float(self.family.log_g(self.observed, *there))
            value -= float(logsumexp(self._log_weights(here, there, samples)))
            return -value if math.isfinite(value) else math.inf

        simplex = position + np.vstack((np.zeros(position.size), 0.3 * np.eye(position.size)))
        result = minimize(
            loss,
            position,
            method="Nelder-Mead",
            options={
                "initial_simplex": simplex,
                "xatol": 1e-3,
                "fatol": 1e-3,
                "maxfev": 100 * (position.size + 1),
                "adaptive": True,
            },
        )
        return np.asarray(result.x)

    def effective_share(
        self,
        position: NDArray[np.float64],
        target: NDArray[np.float64],
        samples: Sequence[Any],
    ) -> float:
        """Return the effective share of samples drawn at one position as a sample at another."""
        weights = self._log_weights(self.parameters(position), self.parameters(target), samples)
        if not np.isfinite(weights).any():
            return 0.0
        log_share = 2.0 * logsumexp(weights) - logsumexp(2.0 * weights) - math.log(len(samples))
        return float(math.exp(log_share))
