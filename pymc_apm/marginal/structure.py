"""Which latent variables feed which terms, and so which integrals are independent of each other.

It is proved from the graph of a draw and its weight, by the labels of
:mod:`pymc_apm.density.labels`. Indices, such as the group of each observation, must be known for
that. Those that are data of the model are taken as they are when the model is made, and guarded
against a later change.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.variable import TensorVariable

from pymc_apm.density.factors import Factors, find_factors
from pymc_apm.density.labels import Labels
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.marginal.weights import VALID, Weights
from pymc_apm.randomness import randomness_of

__all__ = ["Structure", "structure_of"]


class Read(NamedTuple):
    """Data that were read, and their value then."""

    variable: SharedVariable
    value: NDArray[Any]


class Structure(NamedTuple):
    """What belongs together.

    Attributes
    ----------
    n_factors : int
        How many independent factors there are. First come the integrals; factors that depend on no
        latent variable, if there are any, follow.
    of_u : dict
        The factor of each random number; -1 if it feeds nothing.
    of_latents : dict
        The factor of each number of each latent variable; -1 if it feeds nothing.
    of_terms : dict
        The factor of each element of each array of terms, flattened. Empty if nothing could be
        proved: all is one factor then.
    read : tuple
        Data that were read for this, each with its value then.
    nan_is_zero : bool
        Whether weights that are no number may be taken for zero without tying factors together.
        They may not where there are products with zeros, such as those of a membership matrix: the
        zeros count as no dependence, although 0 times infinity is no number.
    """

    n_factors: int
    of_u: dict[str, Labels]
    of_latents: dict[str, Labels]
    of_terms: dict[str, Labels]
    read: tuple[Read, ...]
    nan_is_zero: bool = True

    @property
    def n_latents(self) -> Labels:
        """How many numbers are integrated out in each integral."""
        every = np.concatenate([labels.ravel() for labels in self.of_u.values()])
        return np.bincount(every[every >= 0])

    @property
    def n_terms(self) -> Labels:
        """How many terms each factor has."""
        every = np.concatenate(list(self.of_terms.values()) or [np.zeros(1, dtype=np.int64)])
        return np.bincount(every, minlength=self.n_factors)


def structure_of(weights: Weights) -> tuple[Structure, Weights]:
    """Find out what belongs together, and return the graph with what was read for it held fast."""
    outputs = list(weights.terms.values())
    data = [
        variable
        for variable in ancestors(outputs)
        if isinstance(variable, SharedVariable)
        and isinstance(variable.get_value(borrow=True), np.ndarray)
        and randomness_of(variable) is None
    ]
    data = list(dict.fromkeys(data))
    # Only what makes a difference is held fast: all else may be set to other values later.
    finest = _factors(weights, data)
    read = list(data)
    for variable in data:
        fewer = [other for other in read if other is not variable]
        if _same(_factors(weights, fewer), finest):
            read = fewer
    held = weights.replaced({variable: _constant(variable) for variable in read})
    values = tuple(Read(variable, variable.get_value()) for variable in read)
    if weights.size == 0 or (finest is not None and (finest.of_u < 0).all()):
        raise ModelError(
            f"Nothing that was observed depends on the values of {', '.join(weights.latents)}, so "
            "that there is nothing to integrate."
        )
    terms = {name: pt.switch(pt.isnan(t), -np.inf, t) for name, t in weights.terms.items()}
    nan_is_zero = _same(_factors(weights._replace(terms=terms), data), finest)
    return _structure(weights, finest, values)._replace(nan_is_zero=nan_is_zero), held


def guarded(result: TensorVariable, read: Sequence[Read]) -> TensorVariable:
    """Add a check that data which were read have not been changed since."""
    for variable, value in read:
        guard = CheckAndRaise(
            EstimatorError,
            f"{variable.name} has been changed since apm.marginalize was called, which found by it "
            "what depends on what. Set it before, or call apm.marginalize again.",
        )
        is_same = pt.all(pt.eq(variable.shape, value.shape))
        # Arrays of other lengths cannot be compared, so what is too short is filled up.
        filled = pt.concatenate([variable.ravel(), value.ravel()])[: value.size]
        result = guard(result, is_same & pt.all(pt.eq(filled, value.ravel())))
    return result


def _constant(variable: SharedVariable) -> TensorVariable:
    return pt.constant(variable.get_value(), dtype=variable.type.dtype)


def _factors(weights: Weights, fixed: list[SharedVariable]) -> Factors | None:
    constants: dict[Variable, Variable] = {variable: _constant(variable) for variable in fixed}
    u = pt.tensor("u", dtype="float64", shape=(weights.size,))
    replacements = dict(constants)
    start = 0
    for part in weights.u.values():
        size = math.prod(part.type.shape)
        replacements[part] = u[start : start + size].reshape(part.type.shape)
        start += size
    graphs = [*weights.terms.values(), *weights.latents.values()]
    outputs = [output.ravel() for output in graph_replace(graphs, replacements, strict=False)]
    are_terms = [True] * len(weights.terms) + [False] * len(weights.latents)
    if weights.size == 1:
        return _single(outputs, u)
    return find_factors(outputs, u, are_terms, unused=-1)


def _single(outputs: list[TensorVariable], u: TensorVariable) -> Factors | None:
    """Return all as one factor, as there is a single random number."""
    found = []
    for output in outputs:
        if None in output.type.shape:
            return None
        label = 0 if u in ancestors([output]) else -1
        found.append(np.full(math.prod(output.type.shape), label))
    return Factors(1, np.zeros(1, dtype=np.int64), tuple(found))


def _structure(weights: Weights, factors: Factors | None, read: tuple[Read, ...]) -> Structure:
    shapes = {name: u.type.shape for name, u in weights.u.items()}
    if factors is None:
        zeros = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
        return Structure(1, zeros, zeros, {}, read)
    n_factors = factors.n_factors
    of_terms = {}
    for name, found in zip(weights.terms, factors.of_outputs, strict=False):
        alone = np.flatnonzero(found < 0)
        is_check = name.endswith(VALID)
        of_terms[name] = found.copy()
        of_terms[name][alone] = 0 if is_check else n_factors + np.arange(len(alone))
        n_factors += 0 if is_check else len(alone)
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    of_u = np.split(factors.of_u, ends[:-1])
    of_latents = factors.of_outputs[len(weights.terms) :]
    return Structure(
        n_factors,
        {name: of.reshape(shape) for of, (name, shape) in zip(of_u, shapes.items(), strict=True)},
        {
            name: of.reshape(shape)
            for of, (name, shape) in zip(of_latents, shapes.items(), strict=True)
        },
        of_terms,
        read,
    )


def _same(first: Factors | None, second: Factors | None) -> bool:
    if first is None or second is None:
        return first is second
    pairs = zip((first.of_u, *first.of_outputs), (second.of_u, *second.of_outputs), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)
