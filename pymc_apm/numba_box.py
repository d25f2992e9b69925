"""Black boxes whose function Numba has compiled: compiled code calls it directly.

A function that ``numba.njit`` made runs in a compiled chain, in a compiled particle filter and
under the steps of PyMC without a detour through Python. Its arguments are copies there, which it
may change without anybody noticing. In Python such a black box is one like any other.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch import basic as numba_dispatch

from pymc_apm.black_box import BlackBox


class NumbaBox(BlackBox):
    """The op of a black box that Numba has compiled: arrays in, arrays of floats out."""

    is_compiled = True


@numba_dispatch.register_funcify_and_cache_key(NumbaBox)
def _compile_box(op: NumbaBox, node: Apply, **kwargs: Any) -> Any:
    function = op.fn
    copy = _copies([variable.type.ndim for variable in node.inputs])
    made = [_result(str(op), output.shape) for output in op.output_types]
    if len(made) == 1:
        (only,) = made

        @numba_dispatch.numba_njit
        def call(*inputs: Any) -> Any:
            return only(function(*copy(inputs)))
    else:
        n_outputs, all_of_them = len(made), _results(made)
        message = f"{op} must return {n_outputs} values, one for each of its outputs."

        @numba_dispatch.numba_njit
        def call(*inputs: Any) -> Any:
            values = function(*copy(inputs))
            if len(values) != n_outputs:
                raise ValueError(message)
            return all_of_them(values)

    return call, None  # nothing that a file on disk could be found by


def _copies(ndims: Sequence[int]) -> Callable[[Any], Any]:
    """Return a function that takes the elements of a tuple as numbers, and as copies of arrays."""
    if not ndims:
        return _nothing
    take, others = _number if ndims[0] == 0 else _array, _copies(ndims[1:])

    @numba.njit
    def copies(inputs: Any) -> Any:
        return (take(inputs[0]),) + others(inputs[1:])  # noqa: RUF005  # Numba knows no other way

    return copies


@numba.njit
def _nothing(inputs: Any) -> Any:
    return ()


@numba.njit
def _number(value: Any) -> Any:
    return value.item()


@numba.njit
def _array(value: Any) -> Any:
    return value.copy()


def _results(made: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that checks the elements of a tuple one by one."""
    if not made:
        return _nothing
    first, others = made[0], _results(made[1:])

    @numba.njit
    def results(values: Any) -> Any:
        return (first(values[0]),) + others(values[1:])  # noqa: RUF005  # as above

    return results


def _result(name: str, shape: tuple[int | None, ...]) -> Callable[[Any], Any]:
    """Return a function that makes a float array of what a function returned, and checks it."""
    if not shape:

        @numba.njit
        def number(value: Any) -> Any:
            return np.asarray(float(value))  # an error for all but a number

        return number
    ndim, lengths = len(shape), tuple(-1 if length is None else length for length in shape)
    message = f"{name} must return an array of shape {shape}, and returned one of another shape."

    @numba.njit
    def array(value: Any) -> Any:
        if value.ndim != ndim:
            raise ValueError(message)
        for axis in range(ndim):
            if lengths[axis] >= 0 and value.shape[axis] != lengths[axis]:
                raise ValueError(message)
        return value.astype(np.float64)

    return array
