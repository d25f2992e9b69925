"""A guess of a normaliser as a function of the parameters, found by a pilot and then fixed.

A series for 1 / Z(theta) is centred at a guess of Z(theta). This one is importance sampling from
states that are kept: annealed ones of the models at some design points, which are the mode of the
posterior and two standard deviations to either side of it in each direction. Z is relative to that
of the start of the annealing. The guess may be wrong without harm but to efficiency, as long as it
is not much too small.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from pymc_apm.errors import EstimatorError
from pymc_apm.estimators.intractable.annealing import annealed
from pymc_apm.estimators.intractable.reference import pilot_mode
from pymc_apm.estimators.reference import ParameterSpace, Position
from pymc_apm.kernels import special

SMALL_STEP = 1e-4
"""For slopes, in units of the unconstrained parameters."""

SIDEWAYS = 2.0
"""How far from the mode the design points are, in standard deviations."""

KEPT = 3
"""How many states are kept for each of those that a round of the search for the mode draws."""


class Annealed(NamedTuple):
    """A model that is sampled by annealing, from parameters at which it is easy to sample.

    Parameters
    ----------
    family : Family
    reference : sequence
        The parameters at which ``family.sample`` is exact.
    anneal : int
        The number of intermediate distributions.
    """

    family: Any
    reference: Sequence[Any]
    anneal: int

    def log_g(self, x: Any, *parameters: Any) -> float:
        """Return the log of the unnormalised density."""
        return float(self.family.log_g(x, *parameters))

    def weighted(self, parameters: Sequence[Any], rng: np.random.Generator) -> tuple[float, Any]:
        """Return a log weight, and a state that has the distribution of the model with it.

        The mean of the weight is the normaliser relative to that at the reference.
        """
        size = self.family.transition_size if self.anneal else 0
        u = rng.random((self.anneal, size))
        x = self.family.sample(*self.reference, rng)
        run = getattr(self.family, "annealed", functools.partial(annealed, self.family))
        found: tuple[float, Any] = run(x, self.reference, parameters, u)
        return found

    def sample(self, *arguments: Any) -> Any:
        """Return a state without its weight, which is good enough to find the mode."""
        *parameters, rng = arguments
        return self.weighted(parameters, rng)[1]


class Guess(NamedTuple):
    """The guess, as a function of the parameters.

    Attributes
    ----------
    log_g : callable
    states : list
    log_weights : ndarray
        The log of the weight of each state over the mixture that all of them are from.
    """

    log_g: Any
    states: list[Any]
    log_weights: NDArray[np.float64]

    def __call__(self, parameters: Sequence[Any]) -> float:
        """Return the log of the guess."""
        log_g = np.array([self.log_g(x, *parameters) for x in self.states])
        return float(special.logsumexp(self.log_weights + log_g))


def pilot_guess(
    name: str,
    family: Annealed,
    parameters: Sequence[Variable],
    observed: Any,
    n_draws: int,
    model: pm.Model,
    seed: int = 0,
) -> tuple[Guess, float]:
    """Find the guess; also return the standard deviation of the log of one estimate at the mode.

    Parameters
    ----------
    name : str
        The name of the likelihood, for the report.
    family : Annealed
    parameters : sequence of Variable
        The parameters of the family, as functions of random variables of the model.
    observed : object
        The data.
    n_draws : int
        Samples in each round of the search for the mode.
    model : Model
    seed : int

    Returns
    -------
    guess : Guess
    sd : float
    """
    space = ParameterSpace(parameters, model)
    mode = pilot_mode(name, family, space, observed, n_draws, seed)
    rng = np.random.default_rng([seed, 1])
    positions = [mode, *_around(mode, family, space, n_draws, rng)]
    designs = [[value[()] for value in space.values(position)] for position in positions]
    n_each = math.ceil(KEPT * n_draws / len(designs))
    drawn = [[family.weighted(design, rng) for _ in range(n_each)] for design in designs]
    log_weights = np.array([[log_weight for log_weight, _ in each] for each in drawn])
    log_z = np.array([special.logsumexp(row) for row in log_weights]) - math.log(n_each)
    if not math.isfinite(log_z[0]):
        raise EstimatorError(
            f"The annealed estimates of the normaliser of {name!r} are all zero, or not finite, at "
            "the mode of its posterior. The reference must be a distribution from which annealing "
            "reaches all states of the others."
        )
    usable = [place for place in range(len(designs)) if math.isfinite(log_z[place])]
    states = [x for place in usable for _, x in drawn[place]]
    mixture = np.array(
        [
            special.logsumexp(
                np.array([family.log_g(x, *designs[place]) - log_z[place] for place in usable])
            )
            for x in states
        ]
    )
    shares = np.concatenate([log_weights[place] - log_z[place] for place in usable])
    guess = Guess(family.log_g, states, shares - math.log(n_each) - mixture)
    return guess, float(np.std(log_weights[0]))


def _around(
    mode: Position,
    family: Annealed,
    space: ParameterSpace,
    n_draws: int,
    rng: np.random.Generator,
) -> list[Position]:
    """Return positions to both sides of the mode, along the axes of the Fisher information.

    It is the covariance of the slopes of log g; the prior is taken to be worth a unit of it.
    """
    if mode.size == 0:
        return []

    def at(position: Position) -> list[Any]:
        return [value[()] for value in space.values(position)]

    here = at(mode)
    states = [family.sample(*here, rng) for _ in range(n_draws)]
    slopes = np.empty((n_draws, mode.size))
    for place, step in enumerate(SMALL_STEP * np.eye(mode.size)):
        upper, lower = at(mode + step), at(mode - step)
        change = [family.log_g(x, *upper) - family.log_g(x, *lower) for x in states]
        slopes[:, place] = np.array(change) / (2.0 * SMALL_STEP)
    information = np.atleast_2d(np.cov(slopes, rowvar=False)) + np.eye(mode.size)
    if not np.isfinite(information).all():
        return []
    eigenvalues, directions = np.linalg.eigh(information)
    away = SIDEWAYS * directions.T / np.sqrt(eigenvalues)[:, None]
    return [position for step in away for position in (mode + step, mode - step)]
