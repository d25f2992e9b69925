"""A pilot estimate of the reference of a model with an unknown normaliser.

Monte Carlo maximum likelihood (Geyer and Thompson, 1992): with exact samples x_m at a parameter
psi, the log of the likelihood ratio p(y | theta) / p(y | psi) is about

    log g(y; theta) / g(y; psi) - log mean_m g(x_m; theta) / g(x_m; psi)

which is good as long as the weights in the mean are even. So the sum of this and of the log prior
is maximised, the way to the maximum is cut short where the weights become too uneven, and the next
round starts from there with samples of its own.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from pymc_apm.errors import CoalescenceError, EstimatorError, describe_value
from pymc_apm.estimators.reference import ParameterSpace, Position, maximise, search
from pymc_apm.kernels import special

MAX_ROUNDS = 25
"""How often the samples are drawn again at most; a few times are enough as a rule."""

EVEN = 1.0 / 3.0
"""The effective share of the samples that the weights must leave."""

CONVERGED = 0.9
"""The effective share at which the next round would hardly change anything."""


def pilot_reference(
    name: str,
    family: Any,
    parameters: Sequence[Variable],
    observed: Any,
    n_draws: int,
    model: pm.Model,
    seed: int = 0,
) -> list[Any]:
    """Estimate the mode of the posterior, report it, and return the parameters there.

    Parameters
    ----------
    name : str
        The name of the likelihood, for the report.
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
    space = ParameterSpace(parameters, model)
    position = pilot_mode(name, family, space, observed, n_draws, seed)
    return [value[()] for value in space.values(position)]


def pilot_mode(
    name: str, family: Any, space: ParameterSpace, observed: Any, n_draws: int, seed: int
) -> Position:
    """Estimate the mode of the posterior, report it, and return its position in a space."""
    pilot = _Pilot(family, space, observed)

    def find_mode(position: Position) -> Position:
        rng = np.random.default_rng(seed)
        samples = pilot.draw(position, n_draws, rng)
        for _ in range(MAX_ROUNDS):
            target = pilot.maximise(position, samples)
            while (share := pilot.effective_share(target, samples)) < EVEN:
                target = position + 0.7 * (target - position)
            if share > CONVERGED:
                return target
            try:
                samples = pilot.draw(target, n_draws, rng)
            except CoalescenceError:
                # Too far into a region where sampling is hard: what has been reached will do.
                return position
            position = target
        return position

    return search(name, space, find_mode)


class _Samples(NamedTuple):
    """Exact samples, and the log of g for each at the parameters at which it was drawn."""

    x: list[Any]
    log_g: NDArray[np.float64]


class _Pilot(NamedTuple):
    """The steps of the search, as functions of the unconstrained parameters as one vector."""

    family: Any
    space: ParameterSpace
    observed: Any

    def parameters(self, position: Position) -> list[Any]:
        """Return the parameters of the family, scalars as numbers."""
        return [value[()] for value in self.space.values(position)]

    def draw(self, position: Position, n_draws: int, rng: np.random.Generator) -> _Samples:
        """Draw exact samples."""
        parameters = self.parameters(position)
        x = [self.family.sample(*parameters, rng) for _ in range(n_draws)]
        return _Samples(x, self._log_g(x, parameters))

    def _log_g(self, x: Sequence[Any], parameters: Sequence[Any]) -> NDArray[np.float64]:
        return np.array([self.family.log_g(one, *parameters) for one in x])

    def maximise(self, position: Position, samples: _Samples) -> Position:
        """Maximise the log posterior as estimated by samples drawn at a position."""
        here = self.parameters(position)
        log_g_here = float(self.family.log_g(self.observed, *here))
        if not math.isfinite(log_g_here):
            raise EstimatorError(
                f"log_g of the observed data is {log_g_here} at the parameters "
                f"{', '.join(map(describe_value, here))}, where the search for a reference starts. "
                "Give other initial values to the random variables of the model, or a reference."
            )

        def log_posterior(candidate: Position) -> float:
            there = self.parameters(candidate)
            value = self.space.log_prior(candidate)
            value += float(self.family.log_g(self.observed, *there))
            return value - float(special.logsumexp(self._log_g(samples.x, there) - samples.log_g))

        return maximise(log_posterior, position)

    def effective_share(self, target: Position, samples: _Samples) -> float:
        """Return the effective share of samples as a sample at another position."""
        weights = self._log_g(samples.x, self.parameters(target)) - samples.log_g
        if not np.isfinite(weights).any():
            return 0.0
        log_share = (
            2.0 * special.logsumexp(weights)
            - special.logsumexp(2.0 * weights)
            - math.log(len(weights))
        )
        return float(math.exp(log_share))
