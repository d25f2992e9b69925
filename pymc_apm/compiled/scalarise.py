"""Turn a graph on small arrays into a graph of scalars, which allocates nothing when compiled.

A function that Numba makes of a PyTensor graph allocates an array for every operation. With few
parameters this takes most of its time. Where all shapes are known, each array can be replaced by
its elements: :func:`optimised` applies the usual rewrites, :func:`scalarised` takes arrays apart.
"""

import functools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.model import modelcontext
from pytensor.compile import DeepCopyOp, SharedVariable, ViewOp, optdb
from pytensor.compile.builders import OpFromGraph
from pytensor.graph import Apply, Constant, FunctionGraph, Op, RewriteDatabaseQuery, Variable
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import AND, OR, ScalarMaximum, ScalarMinimum
from pytensor.tensor import basic, elemwise, math, special, subtensor
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

Elements = NDArray[np.object_]
"""The scalar variables that stand for a tensor, in its shape."""

NEUTRAL: dict[type[Op], Any] = {ps.Add: 0, ps.Mul: 1, AND: True, OR: False}
"""The operand that leaves the result of an operation as it is without it."""

IDEMPOTENT: tuple[type[Op], ...] = (AND, OR, ScalarMaximum, ScalarMinimum)
"""Operations that give back an operand that is given twice."""

REWRITES = RewriteDatabaseQuery(
    include=["fast_run"],
    # Fused and in-place operations, and those of BLAS, hide the elements or cannot be taken apart.
    exclude=["fusion", "inplace", "BlasOpt", "cxx_only", "local_usmm", "add_destroy_handler"],
)
"""The rewrites that PyTensor applies by default, as far as they leave plain operations."""


class ScalarGraph(NamedTuple):
    """A graph of scalars that computes what a graph of tensors does.

    Attributes
    ----------
    graph : FunctionGraph
        Its inputs and outputs are scalars.
    elements : list of tuple
        For each input of the graph, the position of a tensor among the inputs and the index in
        this tensor, flattened in C order.
    shapes : list of tuple
        The shape of each tensor among the outputs. Their elements follow each other, in C order,
        among the outputs of the graph.
    """

    graph: FunctionGraph
    elements: list[tuple[int, int]]
    shapes: list[tuple[int, ...]]


class NotScalarisable(Exception):
    """The graph has no equivalent on scalars, or none of the size allowed."""


def optimised(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> FunctionGraph:
    """Apply the rewrites of PyTensor and PyMC to a copy of a graph, and compile nothing.

    Parameters
    ----------
    inputs, outputs : sequence of Variable
        The graph, which is not changed.

    Returns
    -------
    FunctionGraph
        Its inputs stand for the given ones, in their order. The shared variables of the graph
        follow, if there are any.

    Notes
    -----
    Checks of parameters become minus infinity, or nothing where the model in context has
    ``check_bounds=False``. So it is with :func:`pymc.pytensorf.compile`, which is not used here
    as it also links the graph, for which inner graphs are compiled.
    """
    try:
        check_bounds = modelcontext(None).check_bounds
    except TypeError:  # there is no model in context
        check_bounds = True
    check = (
        "local_check_parameter_to_ninf_switch" if check_bounds else "local_remove_check_parameter"
    )
    shared = (x for x in graph_inputs(outputs) if isinstance(x, SharedVariable))
    graph = FunctionGraph(list(dict.fromkeys([*inputs, *shared])), outputs, clone=True)
    optdb.query(REWRITES.including(check)).rewrite(graph)
    return graph


def scalarised(
    inputs: Sequence[Variable], outputs: Sequence[Variable], max_nodes: int = 400
) -> ScalarGraph | None:
    """Turn a graph of tensors into one of scalars.

    Parameters
    ----------
    inputs, outputs : sequence of Variable
        The graph, which is not changed. The shapes of its inputs must be static.
    max_nodes : int
        How many operations on scalars there may be.

    Returns
    -------
    ScalarGraph or None
        None if there is an operation without a known equivalent, a shape that is not static, a
        shared variable that is not among the inputs, or more than ``max_nodes`` operations.
    """
    scalars = Scalars(max_nodes)
    try:
        tensors = [scalars.inputs(variable) for variable in inputs]
        results = scalars.walk(inputs, outputs, tensors)
    except (NotScalarisable, IndexError, ValueError):
        # Indices or shapes that do not fit are left to the function of tensors to complain of.
        return None
    flat = [element for result in results for element in result.ravel()]
    used = set(graph_inputs(flat))
    elements = {
        (position, index): element
        for position, tensor in enumerate(tensors)
        for index, element in enumerate(tensor.ravel())
        if element in used
    }
    graph = FunctionGraph(list(elements.values()), flat, clone=False)
    if len(graph.apply_nodes) > max_nodes:
        return None
    return ScalarGraph(graph, list(elements), [result.shape for result in results])


def filled(shape: Sequence[int], variables: Iterable[Variable]) -> Elements:
    """Put variables into an array. NumPy is not to guess whether they are sequences."""
    elements = np.empty(int(np.prod(shape)), dtype=object)
    for index, variable in enumerate(variables):
        elements[index] = variable
    return elements.reshape(shape)


class Scalars:
    """Makes scalar variables; never two for the same operation on the same operands."""

    def __init__(self, max_nodes: int) -> None:
        # Some elements turn out not to be needed: more is allowed on the way than in the end.
        self.max_size = 10 * max_nodes
        self.allowed = 4 * max_nodes
        self.made: dict[tuple[Op, tuple[int, ...]], list[Variable]] = {}
        self.constants: dict[tuple[str, bytes], Constant] = {}

    def check_size(self, shape: Iterable[int | None]) -> None:
        """Refuse an array that is too large, as far as its shape is known."""
        if np.prod([length for length in shape if length is not None]) > self.max_size:
            raise NotScalarisable("An array is too large")

    def inputs(self, variable: Variable) -> Elements:
        """Make the scalars that stand for an input."""
        shape: Any = getattr(variable.type, "shape", (None,))
        if None in shape:
            raise NotScalarisable(f"The shape of {variable} is not static")
        self.check_size(shape)
        scalar_type = ps.get_scalar_type(variable.type.dtype)
        return filled(shape, (scalar_type() for _ in range(int(np.prod(shape)))))

    def constant(self, data: Any, dtype: str) -> Constant:
        """Make a constant. Those with the same bits are one, so that -0.0 is not 0.0."""
        scalar = np.asarray(data, dtype=dtype)[()]
        key = (dtype, scalar.tobytes())
        if key not in self.constants:
            self.constants[key] = ps.ScalarConstant(ps.get_scalar_type(dtype), scalar)
        return self.constants[key]

    def constant_array(self, array: NDArray[Any]) -> Elements:
        """Make the constants that stand for an array of numbers."""
        self.check_size(array.shape)
        return filled(array.shape, (self.constant(x, str(array.dtype)) for x in array.ravel()))

    def value(self, variable: Variable, known: dict[Variable, Any]) -> Any:
        """Look up the elements of a variable, or the data of a constant that has none."""
        if variable in known:
            return known[variable]
        if not isinstance(variable, Constant):
            raise NotScalarisable(f"{variable} is not an input")
        if not isinstance(variable.data, np.ndarray | np.generic):
            return variable.data  # None or a slice
        return self.constant_array(np.asarray(variable.data))

    def walk(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], values: Sequence[Elements]
    ) -> list[Elements]:
        """Compute the elements of the outputs from those of the inputs."""
        known: dict[Variable, Any] = dict(zip(inputs, values, strict=True))
        nodes = list(toposort(outputs, blockers=inputs))
        for variable in (output for node in nodes for output in node.outputs):
            self.check_size(getattr(variable.type, "shape", ()))  # before any work is done
        for node in nodes:
            operands = [self.value(variable, known) for variable in node.inputs]
            results = elements_of(node.op, node, operands, self)
            known.update(zip(node.outputs, results, strict=True))
        return [self.value(variable, known) for variable in outputs]

    def cast(self, elements: Elements, dtype: str) -> Elements:
        """Give scalars another type, where they have not this one."""
        return self.elementwise(ps.Cast(ps.get_scalar_type(dtype)), [elements])[0]

    def elementwise(self, op: Op, operands: Sequence[Elements]) -> list[Elements]:
        """Apply an operation on scalars to arrays, which are broadcast."""
        arrays = np.broadcast_arrays(*operands)
        self.check_size(arrays[0].shape)
        results = [self.apply(op, row) for row in zip(*map(np.ravel, arrays), strict=True)]
        return [filled(arrays[0].shape, (row[i] for row in results)) for i in range(op.nout)]

    def apply(self, op: Op, operands: Sequence[Variable]) -> list[Variable]:
        """Apply an operation on scalars, unless its result is a constant or is there already."""
        if isinstance(op, ps.Composite):
            values = [filled((), [operand]) for operand in operands]
            return [result.item() for result in self.walk(op.inputs, op.outputs, values)]
        if isinstance(op, ps.Cast) and operands[0].type == op.o_type:
            return list(operands)
        key = (op, tuple(map(id, operands)))
        if key not in self.made:
            self.made[key] = self.simplest(op.make_node(*operands))
        return self.made[key]

    def simplest(self, node: Apply) -> list[Variable]:
        """Find the result of a node without it, or with fewer operands, or else keep the node."""
        op, operands, dtype = node.op, node.inputs, node.outputs[0].type.dtype
        if all(isinstance(operand, Constant) for operand in operands):
            # Not all operations can be computed in Python, and with any operands.
            with np.errstate(all="ignore"), suppress(Exception):
                data = performed(node, [operand.data for operand in operands])
                return list(map(self.constant, data, (x.type.dtype for x in node.outputs)))
        rest = operands
        if isinstance(op, ps.Second):
            rest = operands[1:]
        elif isinstance(op, ps.Switch) and isinstance(operands[0], Constant):
            rest = operands[1:2] if operands[0].data else operands[2:]
        elif isinstance(op, IDEMPOTENT) and operands[0] is operands[-1]:
            rest = operands[:1]
        elif isinstance(op, ps.Add | ps.Mul) or (type(op) in NEUTRAL and dtype == "bool"):
            rest = [x for x in operands if getattr(x, "data", None) != NEUTRAL[type(op)]]
        # What is left out must not have widened the type.
        if len(rest) < len(operands) and ps.upcast(*(x.type.dtype for x in rest)) == dtype:
            return rest if len(rest) == 1 else self.apply(op, rest)
        self.allowed -= 1
        if self.allowed < 0:
            raise NotScalarisable("There are too many operations")
        return node.outputs


def numbers(variables: Sequence[Variable], values: Sequence[Any]) -> list[Any]:
    """Get the numbers behind operands that must be constant, as ``perform`` takes them."""
    found = []
    for variable, value in zip(variables, values, strict=True):
        if isinstance(value, np.ndarray):
            if not all(isinstance(element, Constant) for element in value.ravel()):
                raise NotScalarisable(f"{variable} is not constant")
            data = [element.data for element in value.ravel()]
            value = np.array(data, dtype=variable.type.dtype).reshape(value.shape)[()]
        found.append(value)
    return found


def performed(node: Apply, operands: Sequence[Any]) -> list[Any]:
    """Run an operation on numbers."""
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, operands, storage)
    return [result for (result,) in storage]


@functools.singledispatch
def elements_of(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    """Compute the elements of the results of an operation from those of its operands."""
    raise NotScalarisable(f"{op} is not known")


def _elementwise(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    return scalars.elementwise(getattr(op, "scalar_op", op), operands)


def _reduce(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    operand, dtype = operands[0], node.outputs[0].type.dtype
    if operand.size == 0:
        (result,) = performed(node, [np.empty(operand.shape, node.inputs[0].type.dtype)])
        return [scalars.constant_array(result)]
    axes = range(operand.ndim) if op.axis is None else op.axis
    kept = [axis for axis in range(operand.ndim) if axis not in axes]
    shape = [operand.shape[axis] for axis in kept]
    rows = operand.transpose(*kept, *axes).reshape(int(np.prod(shape)), -1)
    rows = scalars.cast(rows, getattr(op, "acc_dtype", None) or dtype)

    total = functools.partial(functools.reduce, lambda x, y: scalars.apply(op.scalar_op, [x, y])[0])
    return [scalars.cast(filled(shape, map(total, rows)), dtype)]


def _rearrange(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    # The operation itself tells where each element goes: it is run on their positions.
    elements = operands[0].ravel()
    positions = np.arange(elements.size).reshape(operands[0].shape)
    moved = performed(node, [positions, *numbers(node.inputs[1:], operands[1:])])
    return [elements[np.ravel(result)].reshape(np.shape(result)) for result in moved]


def _increment(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    given = iter(numbers(node.inputs[2:], operands[2:]))

    def index(entry: Any) -> Any:
        if not isinstance(entry, slice):
            return next(given)
        bounds = (entry.start, entry.stop, entry.step)
        return slice(*[None if bound is None else next(given) for bound in bounds])

    # In some versions the indices of advanced indexing are just the operands.
    indices = tuple(map(index, op.idx_list)) if hasattr(op, "idx_list") else tuple(given)
    before = operands[0].ravel()
    after = before.copy()
    # Of an index that comes twice, both increments count, unless that is to be ignored.
    base = before if getattr(op, "ignore_duplicates", False) else after
    positions = np.arange(before.size).reshape(operands[0].shape)[indices]
    values = np.broadcast_to(operands[1], np.shape(positions))
    for position, value in zip(np.ravel(positions), values.ravel(), strict=True):
        if not op.set_instead_of_inc:
            (value,) = scalars.apply(ps.add, [base[position], value])
        after[position] = value
    return [scalars.cast(after.reshape(operands[0].shape), node.outputs[0].type.dtype)]


def _combine(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    if isinstance(op, basic.MakeVector):
        return [filled([len(operands)], (operand.item() for operand in operands))]
    if hasattr(op, "axis"):
        joined = np.concatenate(operands, op.axis)
    else:  # in some versions of PyTensor the axis is an operand
        joined = np.concatenate(operands[1:], *numbers(node.inputs[:1], operands[:1]))
    return [scalars.cast(joined, node.outputs[0].type.dtype)]


def _repeat(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    shape = tuple(map(int, numbers(node.inputs[1:], operands[1:])))
    return [np.broadcast_to(operands[0], shape)]


def _same(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    # Further operands are what must hold.
    if not all(map(np.all, numbers(node.inputs[1:], operands[1:]))):
        raise NotScalarisable("A check fails")
    return operands[:1]


def _shape(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    shape = operands[0].shape
    return [scalars.constant_array(np.array(shape[op.i] if isinstance(op, Shape_i) else shape))]


def _dot(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    left, right = (variable.type() for variable in node.inputs)
    dtype = node.outputs[0].type.dtype
    product = (left[:, :, None] * right[None, :, :]).sum(axis=1, dtype=dtype, acc_dtype=dtype)
    return scalars.walk([left, right], [product], operands)


def _softmax(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    variable = node.inputs[0].type()
    centred = variable - pt.max(variable, axis=op.axis, keepdims=True)
    total = pt.sum(pt.exp(centred), axis=op.axis, keepdims=True)
    is_log = isinstance(op, special.LogSoftmax)
    result = centred - pt.log(total) if is_log else pt.exp(centred) / total
    return scalars.walk([variable], [result], operands)


def _inner(op: Op, node: Apply, operands: list[Any], scalars: Scalars) -> list[Elements]:
    return scalars.walk(op.inner_inputs, op.inner_outputs, operands)


# Some versions of PyTensor have operations of their own for an index that is a vector.
_TAKE = vars(subtensor).get("AdvancedSubtensor1", subtensor.AdvancedSubtensor)
_PUT = vars(subtensor).get("AdvancedIncSubtensor1", subtensor.AdvancedIncSubtensor)
for _rule, _kinds in (
    (_elementwise, (elemwise.Elemwise, ps.ScalarOp)),
    (_reduce, (elemwise.CAReduce,)),
    (_rearrange, (elemwise.DimShuffle, Reshape, SpecifyShape, basic.ExtractDiag, basic.Split)),
    (_rearrange, (subtensor.Subtensor, subtensor.AdvancedSubtensor, _TAKE)),
    (_increment, (subtensor.IncSubtensor, subtensor.AdvancedIncSubtensor, _PUT)),
    (_combine, (basic.MakeVector, basic.Join)),
    (_repeat, (basic.Alloc,)),
    (_same, (basic.TensorFromScalar, basic.ScalarFromTensor, DeepCopyOp, ViewOp, CheckAndRaise)),
    (_shape, (Shape, Shape_i)),
    (_dot, (math.Dot,)),
    (_softmax, (special.Softmax, special.LogSoftmax)),
    (_inner, (OpFromGraph,)),
):
    for _kind in _kinds:
        elements_of.register(_kind, _rule)
