"""Estimators that are Python, numba or compiled code: from a function to an op of PyTensor."""

import functools
import inspect
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_apm._compat import with_gradient
from pymc_apm.errors import EstimatorError, ModelError, add_context, describe_value, see
from pymc_apm.kernels.stream import Reader, Scratch, make_scratch
from pymc_apm.randomness import Randomness, randomness_of
from pymc_apm.stream_generator import StreamGenerator

__all__ = ["BlackBox", "black_box"]

# Under Numba a function of Python runs in Python, which is what a user of a black box expects.
warnings.filterwarnings("ignore", message="Numba will use object mode to run BlackBox")


class Source(NamedTuple):
    """An argument of a black box that is a stream or a seed.

    Attributes
    ----------
    name : str
    is_stream : bool
        A stream, or else a seed.
    is_normal : bool
        Whether a stream is made of normal numbers, or else of uniform ones.
    """

    name: str
    is_stream: bool
    is_normal: bool


def black_box(
    fn: Callable[..., Any] | None = None,
    outputs: Sequence[TensorType] | None = None,
    *,
    gradient: Callable[..., Any] | None = None,
) -> Any:
    """Make an op of PyTensor from a Python function; also a decorator.

    The function may be anything that Python can call: a simulator, a particle filter, code compiled
    by numba. It must be deterministic: called with the same arguments it must return the same
    values. All its random numbers come from an argument that is declared randomness:

    - :func:`~pymc_apm.StandardNormal`, :func:`~pymc_apm.StandardUniform`: it receives an array;
    - :func:`~pymc_apm.Stream`: an object with the drawing methods of ``numpy.random.Generator``;
    - :func:`~pymc_apm.Seed`: a ``numpy.random.Generator``.

    Parameters
    ----------
    fn : callable
        The function. Scalars arrive as numpy scalars, arrays as read-only arrays.
    outputs : list of TensorType, optional
        The types of what it returns, for example ``[pt.dmatrix, pt.dvector]``; one float64 scalar,
        the log-estimate, if not given. A function of the parameters alone whose results enter
        another black box is computed once per value of the parameters, and not when u moves.
    gradient : callable, optional
        ``gradient(*arguments, *output_gradients)`` returns, for each argument that is not
        randomness, the gradient of ``sum(output_gradient * output)`` with respect to it. Without
        it, steps that need gradients, such as ``pm.NUTS``, refuse the model.

    Returns
    -------
    callable
        A function of PyTensor variables. Called with numbers and a numpy generator it is the
        function that it was.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> @apm.black_box
    ... def log_lik(mu, rng):
    ...     x = rng.normal(mu, 1.0, size=16)
    ...     return np.log(np.mean(np.exp(-0.5 * (x - 1.0) ** 2)))
    >>> with pm.Model():
    ...     mu = pm.Normal("mu")
    ...     term = apm.Potential("log_lik", log_lik(mu, apm.Stream("u", kind="normal")))
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    """
    if fn is None:
        return functools.partial(black_box, outputs=outputs, gradient=gradient)
    if not callable(fn):
        raise ModelError(f"apm.black_box takes a function, got {fn!r}.")
    if not isinstance(fn, Hashable):
        fn = functools.partial(fn)  # which is the same and has a hash, as PyTensor wants
    return _Function(fn, _checked_outputs(outputs), gradient)


class _Function:
    """What :func:`black_box` returns."""

    def __init__(
        self,
        fn: Callable[..., Any],
        outputs: tuple[TensorType, ...],
        gradient: Callable[..., Any] | None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.outputs = outputs
        self.gradient = gradient

    def __repr__(self) -> str:
        return f"black_box({_name(self.fn)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(arg, Variable) for arg in [*args, *kwargs.values()]):
            return self.fn(*args, **kwargs)
        if kwargs:
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
            if bound.kwargs:
                raise ModelError(
                    f"The black box {_name(self.fn)} takes {', '.join(bound.kwargs)} by keyword "
                    "alone: give such arguments with functools.partial first."
                )
            args = bound.args
        inputs = [self._as_variable(position, arg) for position, arg in enumerate(args)]
        sources = tuple(map(_source, inputs))
        names = [source.name for source in sources if source is not None]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ModelError(
                f"The black box {_name(self.fn)} was given {', '.join(sorted(repeated))} more than "
                "once: its arguments would yield the same random numbers."
            )
        kind = _kind_of_box(self.fn, self.outputs, sources)
        op = kind(self.fn, self.outputs, sources, self.gradient)
        results = op(*inputs, return_list=True)[: len(self.outputs)]
        return results[0] if len(results) == 1 else results

    def _as_variable(self, position: int, arg: Any) -> Variable:
        try:
            return pt.as_tensor_variable(arg)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ModelError(
                f"Argument {position + 1} of the black box {_name(self.fn)} is neither a variable "
                f"nor a number or an array: {arg!r}. Give such arguments with functools.partial "
                f"first. {see('estimators')}"
            ) from error


@with_gradient
class BlackBox(Op):
    """The op of a black box.

    Beside the outputs of the function it has, for each stream, the numbers that were used.
    """

    __props__ = ("fn", "output_types", "sources", "gradient")
    calls_python = True

    def __init__(
        self,
        fn: Callable[..., Any],
        output_types: tuple[TensorType, ...],
        sources: tuple[Source | None, ...],
        gradient: Callable[..., Any] | None = None,
    ) -> None:
        self.fn = fn
        self.output_types = output_types
        self.sources = sources
        self.gradient = gradient
        self._scratch: list[Scratch] = []  # not in use: a call takes what it needs and returns it

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_scratch": []}

    def __str__(self) -> str:
        return f"BlackBox({_name(self.fn)})"

    def make_node(self, *inputs: Variable) -> Apply:
        """Make a node of the graph."""
        used = [
            pt.vector(dtype="float64") for source in self.sources if source and source.is_stream
        ]
        return Apply(self, list(inputs), [*(output() for output in self.output_types), *used])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Call the function."""
        arguments, readers = self.arguments(inputs)
        try:
            results = self.fn(*arguments)
        except Exception as error:
            add_context(error, f"{self} was called with {self._describe(inputs)}.")
            raise
        if len(self.output_types) == 1:
            results = (results,)
        for storage, value in zip(outputs, self._checked(results, inputs), strict=False):
            storage[0] = value
        for storage, reader in zip(outputs[len(self.output_types) :], readers, strict=True):
            storage[0] = reader.used()
            self._scratch.append(reader.close(self))

    def arguments(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Reader]]:
        """Make the arguments of the function, and return also the readers of its streams."""
        arguments: list[Any] = []
        readers = []
        for value, source in zip(inputs, self.sources, strict=True):
            if source is None:
                arguments.append(_read_only(value))
            elif source.is_stream:
                try:
                    scratch = self._scratch.pop()
                except IndexError:
                    scratch = make_scratch()
                reader = Reader(value, source.is_normal, scratch)
                readers.append(reader)
                arguments.append(StreamGenerator(reader, source.name))
            else:
                arguments.append(np.random.default_rng(int(value[0])))
        return arguments, readers

    def _checked(self, results: Any, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        if not isinstance(results, tuple | list) or len(results) != len(self.output_types):
            raise EstimatorError(
                f"{self} must return {len(self.output_types)} values, one for each of its outputs, "
                f"but returned {results!r} when called with {self._describe(inputs)}."
            )
        checked = []
        for value, output in zip(results, self.output_types, strict=True):
            if isinstance(value, float) and output is pt.dscalar:  # as a rule; the rest is slower
                checked.append(np.array(value))
                continue
            array = np.asarray(value)
            if np.ma.is_masked(value):
                raise EstimatorError(
                    f"{self} must return numbers, but returned masked ones when called with "
                    f"{self._describe(inputs)}."
                )
            if array.ndim != output.ndim or not _fits(array.shape, output.shape):
                wanted = "a scalar" if output.ndim == 0 else f"an array of shape {output.shape}"
                raise EstimatorError(
                    f"{self} must return {wanted}, but returned one of shape {array.shape} when "
                    f"called with {self._describe(inputs)}."
                )
            if array.dtype != output.dtype and not np.can_cast(
                array.dtype, output.dtype, casting="same_kind"
            ):
                what = f"a {type(value).__name__}" if array.dtype == object else array.dtype
                raise EstimatorError(
                    f"{self} must return {output.dtype}, but returned {what} when called "
                    f"with {self._describe(inputs)}."
                )
            # A copy, because the function may use the memory of what it returned for the next call.
            copied = array.astype(output.dtype)
            if array.dtype.kind in "iu" and copied.dtype.kind in "iu" and (copied != array).any():
                raise EstimatorError(
                    f"{self} must return {output.dtype}, but returned numbers beyond its range "
                    f"when called with {self._describe(inputs)}."
                )
            checked.append(copied)
        return checked

    def _describe(self, inputs: Sequence[Any]) -> str:
        try:
            names = list(inspect.signature(self.fn).parameters)
        except (TypeError, ValueError):
            names = []
        names += [f"argument {position + 1}" for position in range(len(names), len(inputs))]
        return ", ".join(
            f"{name} = {describe_value(value) if source is None else source.name}"
            for name, value, source in zip(names, inputs, self.sources, strict=False)
        )

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say which outputs have a gradient with respect to which inputs."""
        n_used = len(node.outputs) - len(self.output_types)
        return [
            [source is None] * len(self.output_types) + [False] * n_used for source in self.sources
        ]

    def vector_jacobian(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], gradients: Sequence[Variable]
    ) -> list[Variable]:
        """Return the gradient as another black box, if the user gave one."""
        if self.gradient is None:
            raise NotImplementedError(
                f"{self} has no gradient, which steps like pm.NUTS need. Give one with "
                "apm.black_box(fn, gradient=...), or use a step that needs none, such as "
                f"apm.APMSlice(). {see('recipes')}"
            )
        known = [
            output.zeros_like() if isinstance(gradient.type, DisconnectedType) else gradient
            for output, gradient in zip(outputs, gradients, strict=True)
        ][: len(self.output_types)]
        wrt = [
            variable for variable, source in zip(inputs, self.sources, strict=True) if not source
        ]
        op = BlackBox(
            self.gradient,
            tuple(TensorType("float64", variable.type.shape) for variable in wrt),
            (*self.sources, *[None] * len(known)),
        )
        results = iter(op(*inputs, *known, return_list=True))
        return [
            next(results) if source is None else DisconnectedType()() for source in self.sources
        ]


def nodes_between(outputs: Iterable[Variable], inputs: Iterable[Variable] = ()) -> list[Apply]:
    """Return the nodes that compute some variables from others, or from scratch."""
    given = set(inputs)
    return list(
        dict.fromkeys(
            variable.owner
            for variable in ancestors(list(outputs), blockers=given)
            if variable.owner is not None and variable not in given
        )
    )


def black_boxes_in(outputs: Iterable[Variable], inputs: Iterable[Variable] = ()) -> list[Apply]:
    """Return the calls of black boxes between some variables and their ancestors."""
    return [node for node in nodes_between(outputs, inputs) if isinstance(node.op, BlackBox)]


def used_numbers(nodes: Iterable[Apply]) -> dict[str, Variable]:
    """Return, by the name of the stream, the variable of the numbers that a black box used."""
    used: dict[str, Variable] = {}
    for node in nodes:
        streams = [source.name for source in node.op.sources if source and source.is_stream]
        used |= zip(streams, node.outputs[len(node.op.output_types) :], strict=True)
    return used


def _source(variable: Variable) -> Source | None:
    randomness: Randomness | None = randomness_of(variable)
    if randomness is None or not randomness.kind.needs_black_box:
        return None
    kind = randomness.kind
    return Source(randomness.name, kind.is_lazy, kind.made_of == "normal")


def _kind_of_box(
    fn: Callable[..., Any], outputs: Sequence[TensorType], sources: Sequence[Source | None]
) -> type[BlackBox]:
    """Return the op for a function: whether Numba can compile calls of it."""
    is_of_numba = hasattr(fn, "py_func") and hasattr(fn, "targetoptions")
    if not is_of_numba or any(sources) or any(output.dtype != "float64" for output in outputs):
        return BlackBox
    from pymc_apm.numba_box import NumbaBox

    return NumbaBox


def _checked_outputs(outputs: Sequence[TensorType] | None) -> tuple[TensorType, ...]:
    if outputs is None:
        return (pt.dscalar,)
    outputs = (outputs,) if isinstance(outputs, TensorType) else tuple(outputs)
    wrong = [output for output in outputs if not isinstance(output, TensorType)]
    if wrong or not outputs:
        raise ModelError(
            "outputs of apm.black_box must be a list of types of PyTensor, for example "
            f"[pt.dscalar] or [pt.dmatrix, pt.dvector], got {outputs!r}."
        )
    return outputs


def _name(fn: Callable[..., Any]) -> str:
    function = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(function, "__name__", None) or str(function)


def _read_only(value: Any) -> Any:
    """Return a scalar, or an array that cannot be written to, and neither can its base.

    The base of a view that was merely marked as read-only is the array itself.
    """
    if value.ndim == 0:
        return value[()]
    return np.asarray(memoryview(value).toreadonly())


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return all(b is None or a == b for a, b in zip(shape, wanted, strict=True))
