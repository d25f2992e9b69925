"""Checks of parameters, in a graph that is going to be applied to many draws at once.

Where a parameter of a distribution is not what it may be, the density of a model is zero: PyMC
has -inf for *all* elements of a log density if one element of a parameter is wrong. Of many draws
only that one must have the weight zero whose parameters are wrong, and of many factors it is enough
that one is zero. So each element is made to depend on its own condition.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import AND
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.variable import TensorVariable

__all__ = ["checked_by_element", "unchecked"]


def unchecked(variable: TensorVariable) -> TensorVariable:
    """Return a graph without checks of parameters."""
    while check := next(_checks([variable], None), None):
        (variable,) = graph_replace([variable], {check.outputs[0]: check.inputs[0]})
    return variable


def checked_by_element(
    variables: Sequence[TensorVariable], latents: Iterable[Variable]
) -> list[TensorVariable]:
    """Return graphs in which each element is -inf where its own condition fails.

    Parameters
    ----------
    variables : sequence of TensorVariable
        Log densities, whose elements are going to be added up.
    latents : iterable of Variable
        Checks of what depends on none of these are left as they are.
    """
    found = list(variables)
    sources = set(latents)
    while check := next(_checks(found, sources), None):
        result = check.inputs[0]
        for condition in check.inputs[1:]:
            for leaf in _leaves(condition):
                # That of a vector, such as probabilities of categories, has an axis more.
                inner = tuple(range(result.type.ndim, leaf.type.ndim))
                each = pt.all(leaf, axis=inner) if inner else leaf
                holds = each if _covers(result, each) else pt.all(leaf)
                result = pt.switch(holds, result, -np.inf)
        found = graph_replace(found, {check.outputs[0]: result})
    return found


def _checks(variables: Sequence[Variable], sources: set[Variable] | None) -> Iterator[Apply]:
    for variable in ancestors(variables):
        node = variable.owner
        if node is None or not isinstance(node.op, CheckParameterValue):
            continue
        if sources is None or not sources.isdisjoint(ancestors(node.inputs[1:])):
            yield node


def _leaves(condition: Variable) -> Iterator[Variable]:
    """Return conditions that must all hold."""
    node = condition.owner
    op = node.op if node else None
    is_and = isinstance(getattr(op, "scalar_op", None), AND)
    is_whole = isinstance(op, CAReduce) and condition.type.ndim == 0
    if isinstance(op, MakeVector | ScalarFromTensor | TensorFromScalar):
        sources = node.inputs
    elif isinstance(op, Join):
        sources = [source for source in node.inputs if source.type.ndim > 0]
    elif is_and and (is_whole or (isinstance(op, Elemwise) and condition.type.ndim == 0)):
        sources = node.inputs
    else:
        yield condition
        return
    for source in sources:
        yield from _leaves(source)


def _covers(array: Variable, condition: Variable) -> bool:
    """Say whether each element of a condition is broadcast to an element of an array."""
    lengths, wanted = array.type.shape, condition.type.shape
    if len(wanted) > len(lengths) or None in lengths or None in wanted:
        return False
    pairs = zip(lengths[len(lengths) - len(wanted) :], wanted, strict=True)
    return all(n in (length, 1) for length, n in pairs)
