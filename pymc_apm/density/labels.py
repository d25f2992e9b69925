"""Labels: one element of u that each element of an array depends on.

A walk along a graph, from u on, gives each element of each array a *label*: the number of one of
the elements of u that it depends on, or -1. Where an operation combines elements with different
labels, these are joined. An operation of which nothing is known joins all that it is given. So two
elements of u that are not joined in the end feed no number together.

A product with an exact zero of a constant, such as the zeros of a membership matrix, counts as no
dependence, although 0 times an infinite number is NaN; see :mod:`pymc_apm.density.factors`.
"""

import contextlib
import functools
from collections.abc import Iterable, Sequence, Set
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import graph_inputs, io_toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Mul, ScalarOp, Second, Switch
from pytensor.tensor.basic import (
    Alloc,
    ARange,
    ExtractDiag,
    Eye,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.type_other import MakeSlice

from pymc_apm._compat import INDEXED_UPDATES, INDEXING, axis_of, index_of

Labels: TypeAlias = NDArray[np.int64]

NOTHING: Labels = np.array(-1)
"""The label of what does not depend on u."""

FOLDED = (
    *INDEXING,
    *(Alloc, ARange, CAReduce, DimShuffle, Elemwise, Eye, Join, MakeSlice, MakeVector, Reshape),
    *(ScalarFromTensor, ScalarOp, SpecifyShape, TensorFromScalar),
)
"""Operations that are computed where their value is wanted and all that they need is constant."""


class UnknownError(Exception):
    """A shape or a value cannot be known."""


class Joined:
    """Which elements of u have been joined so far.

    Attributes
    ----------
    component : ndarray of int
        The same number for all elements of u that are joined; the last entry, which is that of the
        label -1, is no one else's.
    """

    def __init__(self, size: int) -> None:
        self.component = np.arange(size + 1)

    def join(self, first: Labels, second: Labels) -> None:
        """Join labels that are at the same place, unless one of them is -1."""
        differ = first != second
        if not differ.any():
            return
        first, second = np.broadcast_arrays(first, second)
        first, second = first[differ], second[differ]
        valid = (first >= 0) & (second >= 0)
        first, second = self.component[first[valid]], self.component[second[valid]]
        differ = first != second
        if differ.any():
            _, found = _components(first[differ], second[differ], len(self.component))
            self.component = found[self.component].astype(np.int64)

    def merged(self, parts: Iterable[Labels], shape: tuple[int, ...]) -> Labels:
        """Return the labels of what is made of several arrays, element by element."""
        result: Labels = np.broadcast_to(NOTHING, shape)
        for place, part in enumerate(parts):
            if place == 0:
                result = np.broadcast_to(part, shape)
            elif part is not result:
                self.join(result, part)
                result = np.maximum(result, part)
        return result

    def over(self, labels: Labels, axis: int | tuple[int, ...] | None) -> Labels:
        """Return the labels of what is made of all elements along some axes, which are kept."""
        whole: Labels = np.max(labels, axis=axis, keepdims=True, initial=-1)
        self.join(labels, whole)
        return whole


class Walk:
    """A walk along a graph: the labels of what depends on u, and the shapes of all else.

    Attributes
    ----------
    joined : Joined
    labels : dict
    depends : set of Variable
        What depends on u.
    skipped : set of Apply
        Nodes that are taken for independent of u.
    strict : set of Apply
        Products in which a zero counts for no less than any other number.
    products : set of Apply
        All others in which there is a zero.
    inside : dict
        The walks along the graphs that ops are made of.
    """

    def __init__(
        self,
        joined: Joined,
        skipped: Set[Apply] = frozenset(),
        strict: Set[Apply] = frozenset(),
    ) -> None:
        self.joined = joined
        self.skipped = skipped
        self.strict = strict
        self.products: set[Apply] = set()
        self.inside: dict[Apply, Walk] = {}
        self.labels: dict[Variable, Labels] = {}
        self.depends: set[Variable] = set()
        self._values: dict[Variable, Any] = {}

    def along(self, nodes: Iterable[Apply]) -> None:
        """Label the outputs of all nodes that depend on u, in the order of the graph."""
        for node in nodes:
            # The shape of an array does not depend on what is in it.
            if isinstance(node.op, Shape | Shape_i) or self.depends.isdisjoint(node.inputs):
                continue
            if node in self.skipped:
                continue
            self.depends.update(node.outputs)
            try:
                labels = rule(node.op, node, self)
            except (UnknownError, IndexError, ValueError):
                labels = _anything(node.op, node, self)
            self.labels.update(zip(node.outputs, labels, strict=True))

    def labels_of(self, variable: Variable) -> Labels:
        """Return the labels of a variable, of which some other may not depend on u."""
        if variable not in self.labels:
            try:
                labels = np.broadcast_to(NOTHING, static_shape(variable))
            except UnknownError:
                if variable.owner is None or variable in self.depends:
                    raise
                try:
                    labels = np.broadcast_to(NOTHING, np.shape(self.value_of(variable)))
                except UnknownError:
                    labels = rule(variable.owner.op, variable.owner, self)[variable.index or 0]
            self.labels[variable] = labels
        return self.labels[variable]

    def value_of(self, variable: Variable) -> Any:
        """Return the value of a variable if it is constant."""
        if isinstance(variable, Constant):
            return variable.data
        if variable not in self._values:
            try:
                self._values[variable] = self._computed(variable)
            except UnknownError:
                self._values[variable] = UnknownError
        if self._values[variable] is UnknownError:
            raise UnknownError
        return self._values[variable]

    def zeros_of(self, variable: Variable, product: Apply) -> NDArray[np.bool_] | None:
        """Say where a constant in a product is exactly zero; None if it nowhere counts as that."""
        try:
            is_zero = np.asarray(self.value_of(variable)) == 0
        except UnknownError:
            return None
        if product in self.strict or not is_zero.any():
            return None
        self.products.add(product)
        return is_zero

    def give_value(self, variable: Variable, value: Any) -> None:
        """Tell the value of an input."""
        self._values[variable] = value

    def _computed(self, variable: Variable) -> Any:
        node = variable.owner
        if node is None or variable in self.depends:
            raise UnknownError
        if isinstance(node.op, Shape | Shape_i):
            shape = np.array(self.labels_of(node.inputs[0]).shape, dtype=np.int64)
            return shape if isinstance(node.op, Shape) else shape[node.op.i]
        op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
        if not isinstance(op, FOLDED) or len(node.outputs) != 1:
            raise UnknownError
        with np.errstate(all="ignore"):
            return _perform(node, *(self.value_of(source) for source in node.inputs))


def static_shape(variable: Variable) -> tuple[int, ...]:
    """Return the shape that the type of a variable tells; what is no array counts as a number."""
    shape: tuple[int | None, ...] = getattr(variable.type, "shape", ())
    if None in shape:
        raise UnknownError
    return tuple(int(length) for length in shape if length is not None)


def nodes_to(outputs: Sequence[Variable]) -> list[Apply]:
    """Return the graph of some variables, in order."""
    return io_toposort(list(graph_inputs(outputs)), list(outputs))


# What each operation does to labels


@functools.singledispatch
def rule(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    """Return the labels of the outputs of a node: all of it if nothing is known of the op."""
    parts = [walk.labels_of(source).ravel() for source in node.inputs if source in walk.depends]
    whole = walk.joined.over(np.concatenate(parts), None) if parts else NOTHING
    return [np.broadcast_to(whole.reshape(()), static_shape(output)) for output in node.outputs]


_anything = rule.dispatch(object)


@rule.register(DeepCopyOp)
@rule.register(ScalarFromTensor)
@rule.register(SpecifyShape)
@rule.register(TensorFromScalar)
@rule.register(ViewOp)
def _same(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    return [walk.labels_of(node.inputs[0])]


@rule.register(CheckAndRaise)
def _checked(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    # What does not hold where a condition fails depends on the condition.
    sources = node.inputs if may_be_zero(node) else node.inputs[:1]
    parts = [walk.labels_of(source) for source in sources if source in walk.depends]
    return [walk.joined.merged(parts, walk.labels_of(node.inputs[0]).shape)]


def may_be_zero(node: Apply) -> bool:
    """Say whether a node checks something and, as PyMC compiles it, is -inf where that fails.

    All other checks raise an error, which ends the run, and change no value.
    """
    return isinstance(node.op, CheckAndRaise) and getattr(node.op, "can_be_replaced_by_ninf", False)


@rule.register(Elemwise)
@rule.register(ScalarOp)
def _element_by_element(op: Any, node: Apply, walk: Walk) -> list[Labels]:
    try:
        shape = static_shape(node.outputs[0])
    except UnknownError:
        shape = np.broadcast_shapes(*(walk.labels_of(source).shape for source in node.inputs))
    scalar_op = getattr(op, "scalar_op", op)
    # The first input gives the second one its shape.
    sources = node.inputs[1:] if isinstance(scalar_op, Second) else node.inputs
    if isinstance(scalar_op, Switch):
        try:
            condition = walk.value_of(node.inputs[0])
        except UnknownError:
            pass
        else:
            either = [walk.labels_of(source) for source in node.inputs[1:]]
            return [np.broadcast_to(np.where(condition, *either), shape)]
    parts = [walk.labels_of(source) for source in sources if source in walk.depends]
    if isinstance(scalar_op, Mul):
        for source in node.inputs:
            is_zero = walk.zeros_of(source, node)
            if is_zero is not None:
                parts = [np.where(is_zero, NOTHING, part) for part in parts]
    return [walk.joined.merged(parts, shape)] * len(node.outputs)


@rule.register(DimShuffle)
def _axes_in_another_order(op: Any, node: Apply, walk: Walk) -> list[Labels]:
    return [_perform(node, walk.labels_of(node.inputs[0]))]


@rule.register(Reshape)
def _another_shape(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    shape = [-1 if length is None else length for length in node.outputs[0].type.shape]
    if shape.count(-1) > 1:
        shape = list(walk.value_of(node.inputs[1]))
    return [walk.labels_of(node.inputs[0]).reshape(shape)]


@rule.register(Alloc)
def _repeated(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    lengths = zip(node.outputs[0].type.shape, node.inputs[1:], strict=True)
    shape = [int(walk.value_of(given)) if known is None else known for known, given in lengths]
    return [np.broadcast_to(walk.labels_of(node.inputs[0]), shape)]


@rule.register(ExtractDiag)
def _diagonal(op: Any, node: Apply, walk: Walk) -> list[Labels]:
    return [np.diagonal(walk.labels_of(node.inputs[0]), op.offset, op.axis1, op.axis2)]


@rule.register(MakeVector)
def _vector_of_numbers(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    return [np.array([walk.labels_of(source) for source in node.inputs], dtype=np.int64)]


@rule.register(Join)
def _one_after_the_other(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    arrays = [walk.labels_of(source) for source in node.inputs if source.type.ndim]
    return [np.concatenate(arrays, axis=_axis(node, walk))]


@rule.register(Split)
def _pieces(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    ends = np.cumsum(walk.value_of(node.inputs[-1]))
    return np.split(walk.labels_of(node.inputs[0]), ends[:-1], axis=_axis(node, walk))


def _indexed(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    array, *indices = node.inputs
    if array not in walk.depends and len(indices) == 1 == array.type.ndim:
        # An entry of a table depends on where it is looked up.
        (index,) = indices
        is_mask = getattr(index.type, "dtype", "bool") == "bool"
        if not is_mask and getattr(index.type, "ndim", None) == node.outputs[0].type.ndim:
            return [walk.labels_of(index)]
    values = [walk.value_of(source) for source in indices]
    return [_perform(node, walk.labels_of(array), *values)]


def _updated(op: Any, node: Apply, walk: Walk) -> list[Labels]:
    old, given = (walk.labels_of(source) for source in node.inputs[:2])
    places = places_of(op, node, walk)
    given = np.broadcast_to(given, places.shape)
    kept = old.flatten()
    if op.set_instead_of_inc:
        kept[places] = -1
    new = kept.copy()
    np.maximum.at(new, places, given)
    walk.joined.join(new, kept)
    walk.joined.join(new[places], given)
    return [new.reshape(old.shape)]


def places_of(op: Op, node: Apply, walk: Walk) -> NDArray[np.int64]:
    """Return the places, in the flattened array, to which an indexed update writes."""
    index = index_of(op, [walk.value_of(source) for source in node.inputs[2:]])
    old = walk.labels_of(node.inputs[0])
    places: NDArray[np.int64] = np.arange(old.size).reshape(old.shape)[index]
    return places


for _class in INDEXING:
    rule.register(_class, _indexed)
for _class in INDEXED_UPDATES:
    rule.register(_class, _updated)


@rule.register(Argmax)
@rule.register(CAReduce)
def _reduced(op: Any, node: Apply, walk: Walk) -> list[Labels]:
    labels = walk.labels_of(node.inputs[0])
    axes = range(labels.ndim) if op.axis is None else op.axis
    whole = walk.joined.over(labels, tuple(axes))
    return [whole.squeeze(tuple(axes))] * len(node.outputs)


@rule.register(ArgSortOp)
@rule.register(CumOp)
@rule.register(LogSoftmax)
@rule.register(Softmax)
@rule.register(SortOp)
def _mixed_along_an_axis(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    labels = walk.labels_of(node.inputs[0])
    axis = _axis(node, walk)
    whole = np.broadcast_to(walk.joined.over(labels, axis), labels.shape)
    return [whole.reshape(-1) if node.outputs[0].type.ndim != labels.ndim else whole]


@rule.register(Dot)
def _product_of_matrices(op: Op, node: Apply, walk: Walk) -> list[Labels]:
    first, second = node.inputs
    is_row, is_column = first.type.ndim == 1, second.type.ndim == 1
    left = _contracted(walk, node, first, second)
    right = _contracted(walk, node, second, first, is_right=True)
    whole = walk.joined.merged([left, right], np.broadcast_shapes(left.shape, right.shape))
    drop = [axis for axis, is_vector in ((-2, is_row), (-1, is_column)) if is_vector]
    return [whole.squeeze(tuple(drop))]


def _contracted(
    walk: Walk, node: Apply, matrix: Variable, other: Variable, is_right: bool = False
) -> Labels:
    """Return what a product has of one of its matrices, where the other one is not zero."""
    labels = walk.labels_of(matrix)
    is_zero = walk.zeros_of(other, node)
    pattern: NDArray[np.bool_] = (
        np.broadcast_to(True, walk.labels_of(other).shape) if is_zero is None else ~is_zero
    )
    if labels.ndim == 1:
        labels = labels[:, None] if is_right else labels[None]
    if pattern.ndim == 1:
        pattern = pattern[None] if is_right else pattern[:, None]
    if is_right:
        labels, pattern = labels.swapaxes(-1, -2), pattern.swapaxes(-1, -2)
    # What is not zero in one of several matrices is taken for not zero in all of them.
    pattern = np.atleast_2d(pattern.any(axis=tuple(range(pattern.ndim - 2))))
    result = _sums(walk.joined, labels, pattern)
    return result.swapaxes(-1, -2) if is_right else result


def _components(first: Labels, second: Labels, size: int) -> tuple[int, Labels]:
    """Return the number of components of a graph with the given edges, and that of each node."""
    from scipy.sparse import coo_array  # takes long to import
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(size, size))
    n_components, component = connected_components(graph, directed=False)
    return int(n_components), component


def _sums(joined: Joined, labels: Labels, pattern: NDArray[np.bool_]) -> Labels:
    """Return the labels of sums over the last axis, each of the elements in a column of a pattern.

    Columns that have elements in common are joined.
    """
    n_inner, n_outer = pattern.shape
    if pattern.all():
        return np.broadcast_to(joined.over(labels, -1), (*labels.shape[:-1], n_outer))
    rows, columns = pattern.nonzero()
    n_parts, part = _components(rows, n_inner + columns, n_inner + n_outer)
    order = np.argsort(part[:n_inner], kind="stable")
    present, starts = np.unique(part[:n_inner][order], return_index=True)
    of_parts = np.full((*labels.shape[:-1], n_parts), -1)
    of_parts[..., present] = np.maximum.reduceat(labels[..., order], starts, axis=-1)
    joined.join(labels, of_parts[..., part[:n_inner]])
    return of_parts[..., part[n_inner:]]


@rule.register(Blockwise)
def _block_by_block(op: Any, node: Apply, walk: Walk) -> list[Labels]:
    """Join what is in a block, unless matrices are multiplied or elements looked up."""
    if isinstance(op.core_op, Dot) and op.inputs_sig[0][1:] == op.inputs_sig[1][:1]:
        return _product_of_matrices(op, node, walk)
    if isinstance(op.core_op, INDEXING):
        array, *indices = node.inputs
        # What it compiles to be computed takes arrays of one type alone.
        of_labels = op.make_node(array.type.clone(dtype="int64")(), *indices)
        with contextlib.suppress(UnknownError):  # indices that are not constant
            values = [walk.value_of(source) for source in indices]
            return [_perform(of_labels, walk.labels_of(array), *values)]
    n_batch = op.batch_ndim(node)
    parts = []
    for source in node.inputs:
        labels = walk.labels_of(source)
        core = tuple(range(n_batch, labels.ndim))
        parts.append(walk.joined.over(labels, core).reshape(labels.shape[:n_batch]))
    batch = np.broadcast_shapes(*(part.shape for part in parts))
    whole = walk.joined.merged(parts, batch)
    results = []
    for output in node.outputs:
        shape = static_shape(output)
        core = tuple(range(n_batch, len(shape)))
        results.append(np.broadcast_to(np.expand_dims(whole, core), shape))
    return results


@rule.register(OpFromGraph)
def _inside(op: Any, node: Apply, walk: Walk) -> list[Labels]:
    """Walk along the graph that an op is made of."""
    inside = walk.inside[node] = Walk(walk.joined, strict=walk.strict)
    for inner, outer in zip(op.inner_inputs, node.inputs, strict=True):
        if outer in walk.depends:
            inside.depends.add(inner)
        try:
            inside.labels[inner] = walk.labels_of(outer)
            inside.give_value(inner, walk.value_of(outer))
        except UnknownError:
            continue
    inside.along(nodes_to(op.inner_outputs))
    return [inside.labels_of(output) for output in op.inner_outputs]


def _perform(node: Apply, *values: Any) -> Any:
    """Do to labels, or to constants, what a node does to an array."""
    if isinstance(node.op, Elemwise):
        # Or numpy takes integers for integers, of which the inverse is 0.
        node.op.prepare_node(node, None, None, "py")
    storage: list[list[Any]] = [[None]]
    node.op.perform(node, list(values), storage)
    return storage[0][0]


def _axis(node: Apply, walk: Walk) -> Any:
    axis = axis_of(node)
    if isinstance(axis, Variable):
        axis = walk.value_of(axis)
    return axis if axis is None or isinstance(axis, tuple) else int(axis)
