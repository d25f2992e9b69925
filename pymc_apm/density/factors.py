"""Which part of u feeds which factor, proved from the graph.

An estimate may be a vector with one log-estimate for each independent factor of the likelihood, and
then u can be updated factor by factor, if each factor has a part of u for its own. Which part that
is follows from the graph, by the labels of :mod:`pymc_apm.density.labels`.

Two things count as no dependence although, in floating point, they are not quite:

- *A product with an exact zero* of a constant, such as the zeros of a membership matrix: 0 times an
  infinite number is NaN. Whoever updates factors separately must refuse *all* of a proposal where
  any term is NaN. Whether there is an infinite number is up to each part of u by itself, so what is
  left is still a product. A product whose NaN might not arrive at the terms, because it is compared
  or replaced on the way, is one like any other.
- *A check* of parameters, see :mod:`pymc_apm.density.checks`.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Mul, Neg, Sub
from pytensor.tensor.elemwise import CAReduce, Elemwise

from pymc_apm.density.checks import conjunctions, hidden_products, ties_factors
from pymc_apm.density.labels import Joined, Labels, UnknownError, Walk, nodes_to

__all__ = ["Factors", "find_factors", "unsummed"]


class Factors(NamedTuple):
    """Which part of u feeds which factor.

    Attributes
    ----------
    n_factors : int
        The number of factors, at least 1.
    of_u : ndarray of int
        The factor of each element of u; 0, if nothing else was asked for, where it feeds nothing.
    of_outputs : tuple of ndarray of int
        For each output, flattened, the factor of each element; -1 if it does not depend on u.
    """

    n_factors: int
    of_u: Labels
    of_outputs: tuple[Labels, ...]


def find_factors(
    outputs: Sequence[Variable],
    u: Variable,
    terms: Sequence[bool] | None = None,
    *,
    unused: int = 0,
) -> Factors | None:
    """Find the finest partition of u that can be proved to keep the elements of outputs apart.

    Values of shared variables are not looked at, because they may change, and nor are shapes other
    than those of types.

    Parameters
    ----------
    outputs : sequence of Variable
        Functions of flat vectors with known lengths, of shared variables and of constants.
    u : Variable
        One of these vectors.
    terms : sequence of bool, optional
        Which of the outputs are terms of the log density, all if not given.
    unused : int
        What to give for the factor of elements of u that feed no term.

    Returns
    -------
    Factors or None
        Every element of every output depends on elements of one factor alone. None if nothing can
        be proved.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> u = pt.vector("u", shape=(6,))
    >>> log_estimates = pt.log(pt.exp(u.reshape((3, 2))).mean(axis=0))
    >>> find_factors([log_estimates], u).of_u.tolist()
    [0, 1, 0, 1, 0, 1]
    >>> find_factors([log_estimates.cumsum()], u).n_factors
    1
    """
    size = u.type.shape[0]
    if size is None or size < 2:
        return None
    are_terms = [True] * len(outputs) if terms is None else terms
    chosen = [output for output, is_term in zip(outputs, are_terms, strict=True) if is_term]
    nodes = nodes_to(outputs)
    mixing: set[Apply] = set()
    while True:
        walk = Walk(Joined(size), conjunctions(nodes, outputs, mixing), mixing)
        walk.labels[u] = np.arange(size)
        walk.depends.add(u)
        try:
            walk.along(nodes)
            labels = [walk.labels_of(output).ravel() for output in outputs]
        except (UnknownError, RecursionError):
            return None
        found = {node for node in nodes if node not in mixing}
        found = {node for node in found if ties_factors(node, nodes, chosen, walk)}
        found |= hidden_products(nodes, walk, functools.partial(_is_hidden, chosen))
        if not found:
            return _numbered(walk.joined.component, labels, are_terms, unused)
        mixing |= found


def _is_hidden(terms: Sequence[Variable], outcome: Mapping[Variable, float | None]) -> bool:
    """Say whether a term may depend on what is not a number without being none itself."""
    values = [outcome[term] for term in terms if term in outcome]
    return not all(value is not None and np.isnan(value) for value in values)


def _numbered(
    component: NDArray[np.int64], outputs: Sequence[Labels], are_terms: Sequence[bool], unused: int
) -> Factors:
    """Return components that feed terms as factors, in the order of their first elements."""
    feeds = np.zeros(len(component), dtype=bool)
    for labels, is_term in zip(outputs, are_terms, strict=True):
        if is_term:
            feeds[component[labels[labels >= 0]]] = True
    used, first, inverse = np.unique(component[:-1], return_index=True, return_inverse=True)
    order = np.argsort(first)
    order = order[feeds[used[order]]]
    number = np.full(len(used), unused, dtype=np.int64)
    number[order] = np.arange(len(order))
    of_u = number[inverse]
    of_labels = np.append(of_u, -1)
    return Factors(max(len(order), 1), of_u, tuple(of_labels[labels] for labels in outputs))


def unsummed(term: Variable) -> list[Variable]:
    """Take a term of a log density apart, into arrays whose elements add up to it.

    Parameters
    ----------
    term : Variable
        A number, or an array whose elements are meant to be added up.

    Returns
    -------
    list of Variable
        Numbers and vectors. The sum of all their elements is that of the term.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> a, b = pt.vector("a"), pt.scalar("b")
    >>> [part.type.ndim for part in unsummed(a.sum() - pt.exp(b))]
    [1, 0]
    """
    return [
        (part if sign == 1.0 else sign * part).ravel() if part.type.ndim else sign * part
        for part, sign in _parts(term, 1.0)
    ]


def _parts(term: Variable, factor: float) -> list[tuple[Variable, float]]:
    """Return parts and the constant that each is to be multiplied by."""
    op = term.owner.op if term.owner else None
    sources = term.owner.inputs if term.owner else []
    if isinstance(op, CAReduce) and isinstance(op.scalar_op, Add) and term.type.ndim == 0:
        return _parts(sources[0], factor)
    if isinstance(op, CheckAndRaise) and all(map(_is_true, sources[1:])):
        return _parts(sources[0], factor)
    if not isinstance(op, Elemwise):
        return [(term, factor)]
    # An element that is broadcast would have to be counted several times.
    is_whole = [s.type.shape == term.type.shape and None not in s.type.shape for s in sources]
    if isinstance(op.scalar_op, Neg):
        return _parts(sources[0], -factor)
    if isinstance(op.scalar_op, Add) and all(is_whole):
        return [part for source in sources for part in _parts(source, factor)]
    if isinstance(op.scalar_op, Sub) and all(is_whole):
        return _parts(sources[0], factor) + _parts(sources[1], -factor)
    if isinstance(op.scalar_op, Mul) and len(sources) == 2:
        for constant, source, whole in zip(sources, sources[::-1], is_whole[::-1], strict=True):
            if isinstance(constant, Constant) and np.size(constant.data) == 1 and whole:
                value = float(np.asarray(constant.data).flat[0])
                if np.isfinite(value) and value != 0.0:
                    return _parts(source, factor * value)
    return [(term, factor)]


def _is_true(condition: Variable) -> bool:
    try:
        return bool(Walk(Joined(0)).value_of(condition))
    except UnknownError:
        return False
