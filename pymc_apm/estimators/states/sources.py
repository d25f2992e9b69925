"""Where states are drawn from: a pool or a particle filter, given parameters and ``u``.

A :class:`Source` belongs to a potential. It has a graph of variables of the model, whose values are
computed first, and draws from these: so it serves posterior draws after sampling, with random
numbers of its own, and a chain while it runs, with those of the chain.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import EstimatorError, see
from pymc_apm.estimators.states.draw_op import draw_from
from pymc_apm.estimators.states.guide import Guide
from pymc_apm.estimators.states.particle_op import ParticleFilter
from pymc_apm.estimators.states.pool import make_pool
from pymc_apm.estimators.states.specification import Specification

Floats = NDArray[np.float64]

ATTEMPTS = 100
"""How many filters are tried if their estimates are zero."""


class Draws(NamedTuple):
    """What was drawn, with the rows of the data along the first axis.

    Attributes
    ----------
    smoothed : ndarray
        A path of the states given all data: (rows, numbers of a state).
    filtered : ndarray
        The state of each row by itself, given the data up to it.
    score : ndarray
        The log density of the data of each row given those before.
    effective, reached : ndarray
        The smallest effective number of points, or particles, of a row: by their weights given the
        data up to it, and of those that the path was chosen from.
    """

    smoothed: Floats
    filtered: Floats
    score: Floats
    effective: Any
    reached: Any


class Source(Protocol):
    """Where states are drawn from.

    Attributes
    ----------
    us : list of SharedVariable
        The random numbers of the estimate; if they are several, one after the other are ``u``.
    inputs : list of TensorVariable
        Symbols of what :meth:`numbers` returns.
    outputs : list of TensorVariable
        Functions of these and of variables of the model.
    substeps : int
    resets : tuple of int
        Numbers of a state that are set to zero before it moves on.
    """

    us: list[SharedVariable]
    inputs: list[TensorVariable]
    outputs: list[TensorVariable]
    substeps: int
    resets: tuple[int, ...]

    def numbers(self, rng: np.random.Generator, u: Floats) -> list[Floats]:
        """Return values of the inputs."""
        ...

    def draw(self, rng: np.random.Generator, u: Floats, values: Sequence[Any]) -> Draws | None:
        """Draw states, given values of the outputs; None if the estimate is zero."""
        ...


def draw_afresh(
    source: Source, rng: np.random.Generator, compute: Any, parameters: Sequence[Any], label: str
) -> Draws:
    """Draw states with fresh random numbers; ``compute`` makes the outputs."""
    all_randomness = [u.tag.apm_randomness for u in source.us]
    for _ in range(ATTEMPTS):
        u = joined([one.as_array(one.draw(rng)) for one in all_randomness])
        drawn = source.draw(rng, u, compute(*source.numbers(rng, u), *parameters))
        if drawn is not None:
            return drawn
    raise EstimatorError(
        f"The estimate of {label} is zero for each of {ATTEMPTS} draws of its random numbers at "
        f"one of the posterior draws, so that there are no states: give more points. "
        f"{see('particles')}"
    )


def joined(us: Sequence[Floats]) -> Floats:
    """Return the random numbers of an estimate as one array."""
    return us[0] if len(us) == 1 else np.concatenate(us)


class PoolSource:
    """Draws from a pool of points.

    Parameters
    ----------
    specification : Specification
    guide : Guide
    n_points : int
    noise : float
        The standard deviation of the log-estimate at the reference.
    u : SharedVariable
        In the layout of the model: a panel has an axis for its series.
    """

    substeps = 1
    resets: tuple[int, ...] = ()

    def __init__(
        self,
        specification: Specification,
        guide: Guide,
        n_points: int,
        noise: float,
        u: SharedVariable,
    ) -> None:
        rows = specification.rows
        self.n_points, self.noise, self.us = n_points, noise, [u]
        symbol, choices = pt.tensor("u", dtype="float64", shape=u.type.shape), pt.dvector("choices")
        of_rows = symbol[rows.series, rows.t] if rows.is_panel else symbol
        pool = make_pool(specification, guide, of_rows, n_points)
        drawn = draw_from(pool, choices)
        places = pt.arange(len(rows))
        self._n_rows = len(rows)
        self.inputs: list[TensorVariable] = [symbol, choices]
        self.outputs: list[TensorVariable] = [
            pool.states[places, drawn.smoothed],
            pool.states[places, drawn.filtered],
            drawn.score,
            pt.min(drawn.effective),
            pt.min(drawn.reached),
        ]

    def numbers(self, rng: np.random.Generator, u: Floats) -> list[Floats]:
        """Return u, and a number for each row to choose a point by."""
        return [u, rng.random(self._n_rows)]

    def draw(self, rng: np.random.Generator, u: Floats, values: Sequence[Any]) -> Draws:
        """Return what was computed, which is all."""
        return Draws(*map(np.array, values))


class FilterSource:
    """Draws from the particles of a filter.

    Parameters
    ----------
    op : ParticleFilter
    us : sequence of SharedVariable
    inputs : sequence of Variable
        The other inputs of the op: the table and the parameters.
    """

    def __init__(
        self, op: ParticleFilter, us: Sequence[SharedVariable], inputs: Sequence[Variable]
    ) -> None:
        self._op, self.us = op, list(us)
        self.inputs: list[TensorVariable] = []
        self.outputs: list[TensorVariable] = list(inputs)
        self.substeps, self.resets = op.options.substeps, op.options.resets

    def numbers(self, rng: np.random.Generator, u: Floats) -> list[Floats]:
        """Return nothing."""
        return []

    def draw(self, rng: np.random.Generator, u: Floats, values: Sequence[Any]) -> Draws | None:
        """Run the filter of each series, and draw from its particles."""
        found = self._op.draw(rng, u, *values)
        if found is None:
            return None
        smoothed, filtered, score, effective, reached = found
        return Draws(smoothed, filtered, score, effective.min(), reached.min())
