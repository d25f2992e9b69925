"""The stages of a target as functions that compiled code can call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable, clone_get_equiv
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs

from pymc_apm._compat import numba_function, numba_graph
from pymc_apm.compiled.scalarise import optimised, scalarised
from pymc_apm.compiled.vectorised import with_vectorised_math

INLINE_DATA = 64
"""Arrays of more elements than this are arguments of a stage, not constants of its code."""


SMALL = 128
"""A stage becomes a function of numbers if it takes and returns at most so many of them."""


class CompiledStage(NamedTuple):
    """A stage as a function for Numba.

    Attributes
    ----------
    function : callable
    key : str or None
        Identifies its code among all code, if that can be kept on disk.
    elements : list of (int, int) or None
        The arguments are numbers: the number of an input and an index into it for each. ``None``
        if they are the arrays themselves, followed by ``data``.
    shapes : list of tuple
        The shape of each output. Outputs are numbers one after the other if arguments are.
    dtypes : list of str
        The dtype of each output.
    data : list
        Arrays, and shared variables that hold arrays, to call it with.
    """

    function: Any
    key: str | None
    elements: list[tuple[int, int]] | None
    shapes: list[tuple[int | None, ...]]
    dtypes: list[str]
    data: list[NDArray[Any] | SharedVariable]


def compile_stage(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> CompiledStage:
    """Make a function for Numba from a stage.

    A stage on few numbers becomes a function of numbers, which needs no memory of its own. Any
    other is what PyTensor makes of it, with vectorised functions such as the exponential.

    Raises
    ------
    CompileError
        If an op can only run in Python.
    """
    shared = [
        variable
        for variable in graph_inputs(list(outputs))
        if isinstance(variable, SharedVariable) and variable not in inputs
    ]
    dtypes = [output.type.dtype for output in outputs]
    if not shared:
        graph = optimised(inputs, outputs)
        small = scalarised(graph.inputs, graph.outputs)
        if small is not None and max(len(small.elements), len(small.graph.outputs)) <= SMALL:
            function, key = numba_function(small.graph)
            shapes: list[tuple[int | None, ...]] = list(small.shapes)
            return CompiledStage(function, key, small.elements, shapes, dtypes, [])
    arguments = [variable.type() for variable in shared]
    equivalents = clone_get_equiv(
        [*inputs, *shared],
        list(outputs),
        copy_inputs=False,
        copy_orphans=False,
        memo=dict(zip(shared, arguments, strict=True)),
    )
    results = [equivalents[output] for output in outputs]
    graph = numba_graph([*inputs, *arguments], results, with_vectorised_math)
    graph, constants = _with_data_as_inputs(graph)
    function, key = numba_function(graph)
    return CompiledStage(
        function,
        key,
        None,
        [output.type.shape for output in outputs],
        dtypes,
        [*shared, *constants],
    )


def _with_data_as_inputs(graph: FunctionGraph) -> tuple[FunctionGraph, list[NDArray[Any]]]:
    """Turn large constants into inputs: data need not be compiled, nor be part of a key."""
    constants = [
        variable
        for variable in graph.variables
        if isinstance(variable, Constant) and np.size(variable.data) > INLINE_DATA
    ]
    # The order in which a graph lists its variables differs from process to process.
    order = {variable: i for i, variable in enumerate(graph_inputs(graph.outputs))}
    constants.sort(key=lambda variable: order[variable])
    inputs = [constant.type() for constant in constants]
    outputs = clone_replace(
        graph.outputs, replace=dict(zip(constants, inputs, strict=True)), rebuild_strict=False
    )
    return (
        FunctionGraph([*graph.inputs, *inputs], outputs, clone=False),
        [np.array(constant.data, order="C") for constant in constants],
    )
