"""Element-wise mathematics that PyTensor's Numba backend compiles to vector instructions.

The loop of an ``Elemwise`` calls the C library once per element for ``exp`` or ``log``, and a loop
with such a call stays scalar as a whole. Here are versions of five functions without branches and
calls, so that LLVM can work on several elements at a time. They are accurate to two units in the
last place, ``exp``, ``log`` and ``log1p`` to one, and right for zeros, infinities, nan and
subnormal numbers. A mode made by :func:`with_vectorised_math` uses them.

Besides the calls, these things keep LLVM from vectorising such a loop:

- A fused expression that is too large for LLVM's inliner remains a call. What is made here asks to
  be inlined, and so does what calls it, see :func:`_inline_caller`.
- In PyTensor 2 an output that overwrites an input might alias others, and arrays with new axes are
  no longer known as contiguous. The mode does not overwrite inputs of element-wise operations, and
  replaces the views, see :class:`ContiguousDimShuffle`.
- Numba hands the ``fastmath`` flags of the caller down to functions that do not set them. These
  would reassociate the additions by which the functions here round: they are off explicitly.

This module imports Numba, so nothing imports it until it is needed.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytensor
from numba.extending import intrinsic
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch import basic as dispatch
from pytensor.link.utils import fgraph_to_python
from pytensor.scalar.basic import Composite, Exp, Log, Log1p, ScalarOp, same_out
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import DimShuffle, Elemwise

_IS_PYTENSOR_2 = pytensor.__version__.startswith("2.")
_LOG2_E = 1.4426950408889634
# ln 2 in two parts. The first ends in 21 zero bits: its product with an exponent is exact.
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10

# Adding 1.5 * 2**52 rounds to an integer, which is then in the last bits of the sum. This is
# available as a vector instruction everywhere, unlike conversions between float and integer.
_ROUNDER = 1.5 * 2.0**52
_ROUNDER_BITS = np.float64(_ROUNDER).view(np.uint64)
_TWO_52_BITS = np.float64(2.0**52).view(np.uint64)
_ROOT_HALF_BITS = np.float64(np.sqrt(0.5)).view(np.uint64)
_ROOT_HALF_TO_ONE_BITS = np.float64(1.0).view(np.uint64) - _ROOT_HALF_BITS
_FRACTION_MASK = np.uint64(2**52 - 1)
_FRACTION_BITS = np.uint64(52)
_TWICE_BIAS = np.uint64(2 * 1023)

# What PyTensor's dispatch takes: a function for Numba, and a key to cache its code by.
_Compiled = tuple[Callable[..., Any], str | None]

# Without the error model, a division would branch to an exception.
_inlined = numba.njit(forceinline=True, fastmath=False, error_model="numpy")


def _bitcast(source: Any, target: Any) -> Any:
    """Return a function that takes the bits of one type for those of another."""

    @intrinsic
    def bitcast(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return bitcast


_to_bits = _bitcast(numba.types.float64, numba.types.uint64)
_from_bits = _bitcast(numba.types.uint64, numba.types.float64)


@_inlined
def exp(x: float) -> float:
    """Return the exponential function.

    Notes
    -----
    ``x`` is ``n * ln(2) + r`` with an integer ``n`` and ``abs(r) <= ln(2) / 2``, in two parts as in
    Cody and Waite, Software Manual for the Elementary Functions, 1980. The polynomial interpolates
    ``(exp(r) - 1 - r) / r**2`` at eleven Chebyshev nodes and was computed with 70 digits. Its error
    is below 0.003 units in the last place.
    """
    # Beyond these limits the result is infinite or zero. Both comparisons are false for nan.
    x = 710.0 if x > 710.0 else x
    x = -746.0 if x < -746.0 else x
    rounded = x * _LOG2_E + _ROUNDER
    n = rounded - _ROUNDER
    high = x - n * _LN2_HIGH
    low = n * _LN2_LOW
    r = high - low
    r2 = r * r
    r4 = r2 * r2
    terms_0 = 0.5 + r * 0.1666666666666667
    terms_2 = 0.04166666666666667 + r * 0.00833333333332614
    terms_4 = 0.0013888888888883752 + r * 0.00019841269874804214
    terms_6 = 2.4801587325536023e-05 + r * 2.7557255421023506e-06
    terms_8 = 2.7557273657975953e-07 + r * 2.5105208339987698e-08 + r2 * 2.0914680780540267e-09
    polynomial = (terms_0 + r2 * terms_2) + r4 * ((terms_4 + r2 * terms_6) + r4 * terms_8)
    # The sum of the two large terms, and what it has lost.
    result = 1.0 + high
    lost = high - (result - 1.0)
    result += lost + (r2 * polynomial - low)
    # Two factors, as 2**n itself need not be a normal number. Only the last product can round.
    exponent = _to_bits(rounded) - _ROUNDER_BITS + _TWICE_BIAS
    half = exponent >> np.uint64(1)
    result *= _from_bits(half << _FRACTION_BITS)
    return result * _from_bits((exponent - half) << _FRACTION_BITS)


@_inlined
def _log_of_normal(x: float, correction: float, scaling: float) -> float:
    """Return ``log(x * 2**-scaling) + correction`` for a positive, normal and finite ``x``.

    Notes
    -----
    The correction must be small. ``x`` is ``2**n * (1 + f)`` with ``1 + f`` between the roots of
    1/2 and 2. With ``s = f / (2 + f)`` the series of ``log(1 + f)`` has odd powers of ``s`` only.
    Its terms are arranged as in ``e_log.c`` of Sun Microsystems' FDLIBM, 1993, so that ``f`` is the
    one large term. The polynomial interpolates the series from the third power on at seven
    Chebyshev nodes and was computed with 70 digits. Its error is below 0.05 units in the last
    place.
    """
    bits = _to_bits(x) + _ROOT_HALF_TO_ONE_BITS
    # The biased exponent in the last bits of 2**52 is the float 2**52 + n + 1023.
    n = _from_bits((bits >> _FRACTION_BITS) | _TWO_52_BITS) - (2.0**52 + 1023.0) - scaling
    f = _from_bits((bits & _FRACTION_MASK) + _ROOT_HALF_BITS) - 1.0
    s = f / (2.0 + f)
    z = s * s
    z2 = z * z
    polynomial = (0.666666666666667 + z * 0.3999999999989949) + z2 * (
        (0.2857142862598255 + z * 0.22222211133642084)
        + z2 * ((0.18182889209266595 + z * 0.1533171880828007) + z2 * 0.14616484198366603)
    )
    half_square = 0.5 * f * f
    small = s * (half_square + z * polynomial) + (n * _LN2_LOW + correction)
    return n * _LN2_HIGH - ((half_square - small) - f)


@_inlined
def log(x: float) -> float:
    """Return the natural logarithm."""
    is_subnormal = x < 2.0**-1022
    scaled = x * 2.0**54 if is_subnormal else x
    result = _log_of_normal(scaled, 0.0, 54.0 if is_subnormal else 0.0)
    result = result if x < np.inf else x
    # The comparison is false for nan too.
    return result if x > 0.0 else (-np.inf if x == 0.0 else np.nan)


@_inlined
def log1p(x: float) -> float:
    """Return ``log(1 + x)``."""
    u = 1.0 + x
    # What the addition has lost, exactly, whichever of the two terms is larger.
    part_of_x = u - 1.0
    lost = (1.0 - (u - part_of_x)) + (x - part_of_x)
    result = _log_of_normal(u, lost / u, 0.0)
    result = result if x < np.inf else x
    result = result if x > -1.0 else (-np.inf if x == -1.0 else np.nan)
    return x if x == 0.0 else result


@_inlined
def sigmoid(x: float) -> float:
    """Return ``1 / (1 + exp(-x))``, which does not underflow before ``exp(x)`` does."""
    small = exp(-abs(x))
    u = 1.0 + small
    lost = small - (u - 1.0)
    result = (small if x < 0.0 else 1.0) / u
    # The derivative by the denominator. Its reciprocal is this result or that for -x.
    reciprocal = 1.0 - result if x < 0.0 else result
    return result - result * (lost * reciprocal)


@_inlined
def softplus(x: float) -> float:
    """Return ``log(1 + exp(x))``."""
    small = exp(-abs(x))
    u = 1.0 + small
    lost = small - (u - 1.0)
    # A nan gets into the result by the correction.
    return (x if x > 0.0 else 0.0) + _log_of_normal(u, lost / u, 0.0)


# The operations inherit all but their compilation by Numba. Fusion, for one, asks for C code.
class VectorisedExp(Exp):
    """The exponential function by :func:`exp`."""


class VectorisedLog(Log):
    """The natural logarithm by :func:`log`."""


class VectorisedLog1p(Log1p):
    """``log(1 + x)`` by :func:`log1p`."""


class VectorisedSigmoid(Sigmoid):
    """The logistic function by :func:`sigmoid`."""


class VectorisedSoftplus(Softplus):
    """``log(1 + exp(x))`` by :func:`softplus`."""


class ContiguousDimShuffle(DimShuffle):
    """A view with other axes of length one, contiguous for Numba if the array is."""

    c_func_file = str(Path(inspect.getfile(DimShuffle)).parent / "c_code" / "dimshuffle.c")


IMPLEMENTATIONS: dict[type[ScalarOp], Callable[[float], float]] = {
    VectorisedExp: exp,
    VectorisedLog: log,
    VectorisedLog1p: log1p,
    VectorisedSigmoid: sigmoid,
    VectorisedSoftplus: softplus,
}
_REPLACEMENTS: dict[type | None, ScalarOp] = {
    operation.__base__: operation(same_out, name=operation.__name__)
    for operation in IMPLEMENTATIONS
}
# What LLVM can vectorise besides, by the names in PyTensor 2 and 3: neither calls nor branches.
_SIMPLE = frozenset(
    "Abs Add AND Cast Ceil Clip EQ Floor GE GT Identity Invert IsInf IsNan LE LT Maximum Minimum "
    "Mul NEQ Neg OR Reciprocal ScalarMaximum ScalarMinimum Second Sqr Sqrt Sub Switch TrueDiv "
    "Trunc XOR".split()
)


def _cache_key(*parts: Any) -> str:
    """Return a key for compiled code that changes with the source of this module."""
    source = inspect.getsource(sys.modules[__name__])
    return hashlib.sha256(repr((source, *parts)).encode()).hexdigest()


@intrinsic
def _inline_caller(typing_context: Any, value: Any) -> Any:
    """Return the value, a number, and have LLVM inline the function in which this is called."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # The code of an intrinsic is generated within its caller.
        builder.function.attributes.add("alwaysinline")
        return arguments[0]

    return value(value), generate


def _scalar_core(function: Callable[..., Any], number_of_inputs: int) -> Callable[..., Any]:
    """Return a function that is inlined together with the function that calls it.

    PyTensor wraps the scalar function of an ``Elemwise`` in one that stores the results or sorts
    the arguments, and calls that in the loop. Numba puts the code made here into the wrapper before
    it compiles it, so that the mark is on the wrapper.
    """
    names = [f"input_{index}" for index in range(number_of_inputs)]
    arguments = [f"mark({names[0]})", *names[1:]]
    source = f"def core({', '.join(names)}):\n    return function({', '.join(arguments)})\n"
    names_in_source = {"function": function, "mark": _inline_caller}
    core = compile_numba_function_src(source, "core", names_in_source)
    # Numba cannot do so where it is called with a starred argument.
    return dispatch.numba_njit(core, inline=lambda call, caller, callee: call.vararg is None)


def _compile_function(op: ScalarOp, node: Apply | None = None, **kwargs: Any) -> _Compiled:
    """Return what Numba compiles for one of the operations."""
    return _scalar_core(IMPLEMENTATIONS[type(op)], 1), _cache_key(type(op))


for _operation in IMPLEMENTATIONS:
    dispatch.register_funcify_and_cache_key(_operation)(_compile_function)


class VectorisedComposite(Composite):
    """A fused expression with vectorised functions in it."""


@dispatch.register_funcify_and_cache_key(VectorisedComposite)
def _compile_composite(op: Composite, node: Apply | None = None, **kwargs: Any) -> _Compiled:
    """Return what Numba compiles for a fused expression.

    All is inlined, or, if the loop cannot be vectorised anyway, the C library is used, which is
    faster for one element.
    """
    operations = {type(inner.op) for inner in op.fgraph.apply_nodes}
    others = operations.difference(IMPLEMENTATIONS)
    is_vectorised = all(operation.__name__ in _SIMPLE for operation in others)
    kwargs.pop("storage_map", None)
    # PyTensor's own function for the graph has its parts in calls. Only the key is of use.
    key = dispatch.numba_funcify_and_cache_key(op.fgraph, squeeze_output=True, **kwargs)[1]

    def convert(scalar_op: ScalarOp, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
        if type(scalar_op) in IMPLEMENTATIONS:
            if is_vectorised:
                return IMPLEMENTATIONS[type(scalar_op)]
            original: Any = type(scalar_op).__base__
            scalar_op = original(same_out)
        function, _ = dispatch.numba_funcify_and_cache_key(scalar_op, *arguments, **keywords)
        options = {**function.targetoptions, "forceinline": is_vectorised}
        options.pop("nopython", None)
        return numba.njit(**options)(function.py_func)

    source = fgraph_to_python(
        op.fgraph, convert, type_conversion_fn=dispatch.numba_typify, squeeze_output=True, **kwargs
    )
    function = dispatch.numba_njit(source, forceinline=is_vectorised)
    if is_vectorised:
        function = _scalar_core(function, len(op.inputs))
    return function, None if key is None else _cache_key(type(op), key)


@intrinsic
def _as_contiguous(typing_context: Any, view: Any, array: Any) -> Any:
    """Return the view with the type of a contiguous array if the array has this type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        context.nrt.incref(builder, signature.return_type, arguments[0])
        return arguments[0]

    return (view.copy(layout="C") if array.layout == "C" else view)(view, array), generate


@dispatch.register_funcify_and_cache_key(ContiguousDimShuffle)
def _compile_view(op: DimShuffle, node: Apply | None = None, **kwargs: Any) -> _Compiled:
    """Return what Numba compiles for a view."""
    original = DimShuffle(**op._props_dict())
    view, key = dispatch.numba_funcify_and_cache_key(original, node=node, **kwargs)

    @dispatch.numba_njit
    def contiguous_view(array: Any) -> Any:
        return _as_contiguous(view(array), array)

    return contiguous_view, None if key is None else _cache_key(type(op), key)


@node_rewriter([DimShuffle])
def _replace_view(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a view that does not permute axes. PyTensor 3 keeps its type without that."""
    kept = [axis for axis in node.op.new_order if axis != "x"]
    if type(node.op) is DimShuffle and _IS_PYTENSOR_2 and kept and kept == sorted(kept):
        return [ContiguousDimShuffle(**node.op._props_dict())(*node.inputs)]
    return None


@node_rewriter([Elemwise])
def _replace_function(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a function of an array by the vectorised one."""
    replacement = _REPLACEMENTS.get(type(node.op.scalar_op))
    dtypes = {variable.dtype for variable in [*node.inputs, *node.outputs]}
    # A single element is faster by the C library.
    if replacement and dtypes == {"float64"} and not all(node.outputs[0].type.broadcastable):
        return [Elemwise(replacement)(*node.inputs)]
    return None


@node_rewriter([Elemwise])
def _replace_composite(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a fused expression with vectorised functions in it."""
    composite = node.op.scalar_op
    if type(composite) is not Composite:
        return None
    operations = {type(inner.op) for inner in composite.fgraph.apply_nodes}
    if operations.isdisjoint(IMPLEMENTATIONS):
        return None
    vectorised = VectorisedComposite(composite.inputs, composite.outputs)
    return Elemwise(vectorised, dict(node.op.inplace_pattern))(*node.inputs, return_list=True)


vectorised_math = in2out(_replace_function, _replace_view, name="vectorised_math")
vectorised_fusions = in2out(_replace_composite, name="vectorised_fusions")


def with_vectorised_math(mode: Mode | str | None = "NUMBA") -> Mode:
    """Return a mode in which element-wise functions compile to vector instructions.

    It replaces ``exp``, ``log``, ``log1p``, ``sigmoid`` and ``softplus`` of arrays of float64 after
    the usual stabilisations. Inner graphs, as of ``Scan``, remain as they are. Results differ from
    those of the given mode by a few units in the last place.

    Parameters
    ----------
    mode : Mode or str or None
        The mode to start from, a Numba mode to be of use. If None, PyTensor's default mode.

    Returns
    -------
    Mode

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from pymc.pytensorf import compile
    >>> from pymc_apm.compiled.vectorised import with_vectorised_math
    >>> x = pt.vector("x")
    >>> function = compile([x], pt.exp(x), mode=with_vectorised_math("NUMBA"))
    >>> function([0.0, 1.0]).round(4).tolist()
    [1.0, 2.7183]
    """
    # Specialisation is at 2, fusion at 49; what fuses expressions again comes before the end.
    rewrites = (vectorised_math, 48.95), (vectorised_fusions, 1000.0)
    return get_mode(mode).register(*rewrites).excluding("inplace_elemwise")
