"""Estimators that stop where they cannot reach a limit, found in the graph of a log density.

A slice update has no use for a log density below its height, and an estimator that adds up a sum
whose rest has a known upper bound may find out early that it will stay below. Its op says that it
can by an attribute,

    limit_input   which of its inputs is the limit, a constant of -inf in a model

and promises that the sum of its output is right, or else ``-inf`` and really below the limit. Here
the constant is replaced by a variable, which the density sets: to the height, less all other terms.
That is right if the output of the op is one of the terms as it is, and nothing else comes from it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import CAReduce, DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_apm.density.staging import Stage

NO_LIMIT: NDArray[np.float64] = np.array(-np.inf)
NO_LIMIT.setflags(write=False)
"""The limit that everything reaches."""


class Limit(NamedTuple):
    """A term that may stop.

    Attributes
    ----------
    place : int
        Where its limit is among the values of an evaluation.
    estimate : int
        Where the term is.
    stages : frozenset of int
        The numbers of the stages that take the limit: they compute nothing but the term.
    """

    place: int
    estimate: int
    stages: frozenset[int]


def find_limits(terms: Sequence[Variable], others: Sequence[Variable]) -> list[Constant]:
    """Return the limits of terms that may stop, and on which nothing else depends.

    Parameters
    ----------
    terms : sequence of Variable
        The terms of a log density.
    others : sequence of Variable
        What else is computed with them.
    """
    found = [_limit_of(term) for term in terms]
    if not any(isinstance(limit, Constant) for limit in found):
        return []
    above = [set(ancestors([variable])) for variable in (*terms, *others)]

    def is_one(limit: Variable | None) -> bool:
        containing = [variables for variables in above if limit in variables]
        return (
            isinstance(limit, Constant)
            and len(containing) == 1
            and _is_no_other(limit, *containing)
        )

    return [limit for limit in found if is_one(limit)]


def limit_at(
    variable: TensorVariable, place: int, stages: Sequence[tuple[Stage, Sequence[int]]]
) -> Limit | None:
    """Return what a limit is for, given stages and the places of their results.

    None if a stage that takes it computes anything but the one term: that would have to be known
    when the limit is set.
    """
    taking = [number for number, (stage, _) in enumerate(stages) if variable in stage.inputs]
    ends = [
        (stage.results[number], places[number])
        for stage, places in (stages[number] for number in taking)
        for number in range(len(stage.exports), len(places))
    ]
    exports = {export for number in taking for export in stages[number][0].exports}
    others = [stage for number, (stage, _) in enumerate(stages) if number not in taking]
    is_alone = len(ends) == 1 and all(exports.isdisjoint(stage.inputs) for stage in others)
    if not is_alone or _limit_of(ends[0][0]) is not variable:
        return None
    return Limit(place, ends[0][1], frozenset(taking))


def less(value: float, other: float) -> float:
    """Subtract, and a little more: by rounding nothing must be stopped that would be accepted."""
    if value == -math.inf:
        return value
    return value - other - 1e-12 * (abs(value) + abs(other)) - 1e-9


def new_limits(found: Iterable[Constant]) -> dict[Constant, TensorVariable]:
    """Return variables to replace limits by."""
    return {limit: pt.dscalar(f"limit_{number}") for number, limit in enumerate(found)}


def _limit_of(term: Variable) -> Variable | None:
    """Return the limit of a term that is what an op returns, or the sum of that."""
    while term.owner is not None and _hands_on(term.owner.op):
        term = term.owner.inputs[0]
    place = getattr(term.owner.op, "limit_input", None) if term.owner is not None else None
    return None if place is None else term.owner.inputs[place]


def _is_no_other(limit: Variable, variables: Iterable[Variable]) -> bool:
    """Say whether a constant is nothing but a limit: equal ones may have been put together."""
    nodes = {variable.owner for variable in variables if variable.owner is not None}
    return all(
        source is not limit or place == getattr(node.op, "limit_input", math.nan) % len(node.inputs)
        for node in nodes
        for place, source in enumerate(node.inputs)
    )


def _hands_on(op: Op) -> bool:
    """Say whether what an op returns has the sum of its first input."""
    is_sum = isinstance(op, CAReduce) and isinstance(op.scalar_op, Add)
    return is_sum or isinstance(op, CheckAndRaise | DimShuffle)
