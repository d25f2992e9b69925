"""Numba versions of the update rules, from the same source.

The kernels, their adaptation and the updates made from them are plain functions on numpy arrays.
:func:`jitted` passes one of them through ``numba.njit``, and with it all those that it calls.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

import numba
from numba.core import cgutils
from numba.core.datamodel.models import OpaqueModel
from numba.core.imputils import impl_ret_untracked, lower_constant
from numba.extending import intrinsic, register_model, typeof_impl

from pymc_apm import adaptation
from pymc_apm.compiled.substitutes import SUBSTITUTES
from pymc_apm.kernels import slice
from pymc_apm.updates import random_walk
from pymc_apm.updates import slice as slice_update

LARGE = {
    adaptation.covariance_of_pilot,
    adaptation.learn_covariance,
    adaptation.learn_from_pilot,
    adaptation.tune_widths,
    random_walk.learn_by_random_walk,
    slice.coordinate_slice,
    slice_update.learn_by_slice,
}
"""Functions that are called, not copied to where they are used: they would be copied often."""


@functools.cache
def jitted(function: Callable[..., Any]) -> Any:
    """Compile a function of this package by Numba, together with those that it calls.

    Small functions are inlined: what they hand to each other then stays in registers, and the
    counting of references to arrays cancels out, which is half of the time of a small model.

    Parameters
    ----------
    function : callable
        A function on numbers, numpy arrays and named tuples.

    Returns
    -------
    callable
        A function that can be called from compiled code.
    """
    if function in SUBSTITUTES:
        function = SUBSTITUTES[function]
    known = function.__globals__
    namespace: dict[str, Any] = {"__name__": function.__module__}
    for name in function.__code__.co_names:
        value = known.get(name)
        if isinstance(value, types.FunctionType) and value.__module__.startswith("pymc_apm."):
            value = jitted(value)
        if name in known:
            namespace[name] = value
    code = function.__code__
    copy = types.FunctionType(code, namespace, function.__name__, function.__defaults__)
    return numba.njit(
        copy,
        forceinline=function not in LARGE,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )


class Static:
    """A compiled function that is handed to another one, as a log density is to a kernel.

    What is handed over is its type. A function of Numba itself is also handed over as the address
    of a Python object, which keeps the code from being cached.

    Parameters
    ----------
    dispatcher : callable
        A function made by ``numba.njit``.
    """

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher


class StaticType(numba.types.Dispatcher):
    """The type of :class:`Static`."""


@typeof_impl.register(Static)
def _type_of_static(value: Static, _: Any) -> StaticType:
    return StaticType(value.dispatcher)


@register_model(StaticType)
class _StaticModel(OpaqueModel):
    pass


@lower_constant(StaticType)
def _lower_static(context: Any, builder: Any, type_: Any, value: Any) -> Any:
    return context.get_dummy_value()


@intrinsic
def never_inline(typing_context: Any) -> Any:
    """Keep the function that calls this from being copied to where it is used.

    A large one would be copied often, and take minutes to compile.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return numba.types.none(), codegen


@intrinsic
def borrowed(typing_context: Any, array: Any) -> Any:
    """Return an array that does not count as a reference to its memory.

    The owner must outlive it. Counting is atomic, and takes longer than moving a few numbers.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        copy = context.make_array(signature.return_type)(context, builder, arguments[0])
        copy.meminfo = cgutils.get_null_value(copy.meminfo.type)
        copy.parent = cgutils.get_null_value(copy.parent.type)
        return impl_ret_untracked(context, builder, signature.return_type, copy._getvalue())

    return array(array), codegen
