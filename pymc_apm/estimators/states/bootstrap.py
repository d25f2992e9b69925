"""Draws from the parts of a state-space model, and a bootstrap filter that tells where states are.

What is learnt from it is a guide, so that it need not be exact; the estimates of the package are
made elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import compile_function
from pymc_apm.estimators.states.parts import Part, vectorise
from pymc_apm.estimators.states.specification import Specification

Floats = NDArray[np.float64]
Values = Sequence[NDArray[Any]]

ENOUGH = 10.0
"""Effective particles with which moments are believed."""


class Sampler:
    """Draws from one part of a model, many at a time.

    Parameters
    ----------
    specification : Specification
    part : Part
        Its initial distribution, its transition, or its observation.
    random_seed : int
    is_batch : bool
        Whether each draw has its own parameters.
    compile_kwargs : dict
    """

    def __init__(
        self,
        specification: Specification,
        part: Part,
        random_seed: int,
        compile_kwargs: Mapping[str, Any],
        is_batch: bool = False,
    ) -> None:
        names = [state.name for state in specification.states]
        self.rows = [name for name in part.arguments if name not in names]
        self.outputs = list(part.results)
        self._ndims = [result.type.ndim for result in part.results.values()]
        others = [part.arguments[name] for name in self.rows]
        zeros, states = pt.dvector("zeros"), pt.dmatrix("states")
        zero = pt.dscalar("zero")
        results = list(part.random(zero).values())

        def of_states(vectors: TensorVariable) -> dict[TensorVariable, TensorVariable]:
            symbols = {n: s for n, s in part.arguments.items() if n in names}
            values = specification.split(vectors)
            return {s: values[n].astype(s.type.dtype) for n, s in symbols.items()}

        closure: list[TensorVariable] = list(part.closure)
        replace = {zero: zeros} | of_states(states)
        if is_batch:
            closure = [
                pt.tensor(dtype=symbol.type.dtype, shape=(None, *symbol.type.shape))
                for symbol in part.closure
            ]
            replace |= dict(zip(part.closure, closure, strict=True))
        try:
            made = vectorise(results, replace)
        except NotImplementedError:  # of what is a graph of its own, PyTensor makes no batch
            one = pt.dvector("one")
            made = clone_replace(results, of_states(one), rebuild_strict=False)
            inputs = [zero, one, *others, *part.closure]
            function = compile_function(inputs, made, random_seed=random_seed, **compile_kwargs)
            self._function = _one_by_one(function, len(part.closure) if is_batch else 0)
        else:
            inputs = [zeros, states, *others, *closure]
            self._function = compile_function(
                inputs, made, random_seed=random_seed, **compile_kwargs
            )

    def __call__(
        self, n_draws: int, states: Floats | None, row: Mapping[str, Any], closure: Values
    ) -> dict[str, NDArray[Any]]:
        """Draw, given states (draws, numbers of a state) and what belongs to a row, by name."""
        zeros = np.zeros(n_draws)
        states = np.zeros((n_draws, 0)) if states is None else states
        others = [np.asarray(row[name]) for name in self.rows]
        made = self._function(zeros, states, *others, *closure)
        drawn = {}
        for name, ndim, array in zip(self.outputs, self._ndims, made, strict=True):
            own = np.shape(array)[np.ndim(array) - ndim :]  # what all share has no axis of draws
            drawn[name] = np.broadcast_to(array, (n_draws, *own))
        return drawn


def _one_by_one(function: Callable[..., Any], n_batches: int) -> Callable[..., Any]:
    """Call a function for each of its first two arguments, and of the last ones, in turn."""

    def call(zeros: Floats, states: Floats, *others: Any) -> list[NDArray[Any]]:
        n_same = len(others) - n_batches
        made = [
            function(zero, state, *others[:n_same], *(np.asarray(o[i]) for o in others[n_same:]))
            for i, (zero, state) in enumerate(zip(map(np.asarray, zeros), states, strict=True))
        ]
        return [np.stack(column) for column in zip(*made, strict=True)]

    return call


def as_matrix(draws: Mapping[str, NDArray[Any]]) -> Floats:
    """Put the states of draws into one matrix, (draws, numbers of a state)."""
    columns = [np.asarray(d, dtype=np.float64).reshape(len(d), -1) for d in draws.values()]
    return np.concatenate(columns, axis=1)


def bootstrap_moments(
    specification: Specification,
    n_particles: int,
    rng: np.random.Generator,
    compile_kwargs: Mapping[str, Any],
    to_line: Callable[[Floats], Floats],
) -> Callable[[Values, Values, Values], tuple[Floats, Floats]]:
    """Return a function that runs a bootstrap filter.

    It takes the closures of the three parts, and returns the mean and the covariance of the state
    in each row, on the real line. They are those of filtering; where few particles have weight,
    covariances are nearer to those of prediction.
    """
    n_dims, rows = specification.n_dims, specification.rows
    seeds = rng.integers(2**31, size=2).tolist()
    is_fixed = specification.is_fixed_start
    parts = specification.initial, specification.transition
    samplers = [
        Sampler(specification, part, seed, compile_kwargs)
        for part, seed in zip(parts, seeds, strict=True)
    ]
    states, row_symbol = pt.dtensor3("states"), pt.lvector("row")
    log_g = specification.log_observation(states, row_symbol, is_attached=False)
    weigh = compile_function(
        [states, row_symbol, *specification.observation.closure], [log_g], **compile_kwargs
    )
    arrays = {
        name: np.asarray(array.eval() if hasattr(array, "eval") else array)
        for name, array in specification.row_arrays.items()
    }

    def run(initial: Values, transition: Values, observation: Values) -> tuple[Floats, Floats]:
        means, covs = np.empty((len(rows), n_dims)), np.empty((len(rows), n_dims, n_dims))
        particles = np.empty((n_particles, n_dims))
        for row in range(len(rows)):
            given = {name: array[row] for name, array in arrays.items()}
            is_first = bool(rows.is_first[row])
            part, closure = (0, initial) if is_first else (1, transition)
            before = None if is_first else particles
            particles = as_matrix(samplers[part](n_particles, before, given, closure))
            line = to_line(particles)
            (log_w,) = weigh(particles[None], np.array([row]), *observation)
            log_w = np.where(np.isfinite(line).all(axis=1), log_w[0], -np.inf)
            log_w = np.where(np.isfinite(log_w), log_w, -np.inf)
            w = np.ones(n_particles) if log_w.max() == -np.inf else np.exp(log_w - log_w.max())
            w /= w.sum()
            line = np.nan_to_num(line, posinf=0.0, neginf=0.0)
            means[row] = w @ line
            centred = line - means[row]
            doubt = min(1.0, ENOUGH * float(w @ w))
            mixed = (1.0 - doubt) * w + doubt / n_particles
            covs[row] = (centred * mixed[:, None]).T @ centred
            if is_first and is_fixed:
                covs[row] = np.eye(n_dims)
            places = (np.arange(n_particles) + rng.random()) / n_particles
            chosen = np.searchsorted(np.cumsum(w), places).clip(max=n_particles - 1)
            particles = particles[chosen]
        return means, covs

    return run
