"""The drawing methods of ``numpy.random.Generator`` on top of a stream of base numbers.

Code that was written for a numpy generator runs unchanged with :class:`StreamGenerator`. Every
method turns base numbers into what is asked for by the inverse of the distribution function, with
one base number for each continuous draw, so that a small move of the stream is a small change of
the draws: that is what lets slice sampling shrink to a move that is accepted.

Arguments that numpy refuses are refused with numpy's own error: where they are not plainly valid,
numpy is asked.
"""

import copy
import math
import operator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_apm.kernels import quantiles, special
from pymc_apm.kernels.quantiles import LARGEST
from pymc_apm.kernels.stream import Reader

Size = int | tuple[int, ...] | None

LARGEST_SINGLE = np.float32(1.0) - np.float32(2.0**-24)
"""The largest number below 1 in single precision."""

WIDE = 2**32
"""A range of more integers than this takes two base numbers for a draw: one has 53 bits."""

SPARSE = 50
"""Choices without replacement are made one by one out of so many times as many elements."""


class StreamGenerator:
    """Draws random numbers from a stream, with the methods of ``numpy.random.Generator``.

    It belongs to one call of a black box: it cannot be copied or sent to another process, and it
    ends when the function returns.

    Parameters
    ----------
    reader : Reader
        Where the base numbers come from.
    name : str
        The name of the stream, for error messages.
    """

    __slots__ = ("_name", "_reader")

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._name = name

    def __repr__(self) -> str:
        kind = "normal" if self._reader.is_normal else "uniform"
        return f"StreamGenerator({self._name!r}, {kind} numbers)"

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(np.random.Generator, name):
            raise AttributeError(
                f"The random stream {self._name!r} does not support the method {name!r} of "
                "numpy.random.Generator. It has: "
                + ", ".join(sorted(m for m in dir(type(self)) if not m.startswith("_")))
                + ". Build what you need from these, or use apm.Seed, which gives the function a "
                "real numpy generator."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"The random stream {self._name!r} can be neither copied nor pickled: numbers drawn "
            "from the copy would not be known to belong to the estimate. Draw what is needed from "
            "the stream itself and hand the numbers on, or use apm.Seed, which gives the function "
            "a real numpy generator."
        )

    # Base numbers

    def _uniform(self, shape: tuple[int, ...] | None) -> Any:
        """Return base numbers from [0, 1), or one if ``shape`` is None."""
        reader = self._reader
        if shape is None:
            number = reader.take_one()
            if reader.is_normal:
                number = float(special.ndtr(number))
            return number if number < 1.0 else LARGEST
        numbers = reader.take(math.prod(shape))
        if reader.is_normal:
            numbers = special.ndtr(numbers)
        return np.minimum(numbers, LARGEST).reshape(shape)

    def _normal(self, shape: tuple[int, ...] | None) -> Any:
        """Return standard normal numbers, or one if ``shape`` is None."""
        reader = self._reader
        if shape is None:
            number = reader.take_one()
            return number if reader.is_normal else float(quantiles.normal(number))
        numbers = reader.take(math.prod(shape))
        numbers = numbers.copy() if reader.is_normal else quantiles.normal(numbers)
        return numbers.reshape(shape)

    # Continuous distributions

    def random(self, size: Size = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Draw uniform numbers from [0, 1)."""
        if size is None and out is None and dtype is np.float64:
            return self._uniform(None)
        shape = _shape_of(size, out, dtype, "random")
        if out is not None and dtype is np.float64 and not self._reader.is_normal:
            numbers = self._reader.take(out.size).reshape(out.shape)
            return np.minimum(numbers, LARGEST, out=out)
        numbers = self._uniform(shape)
        if dtype is not np.float64 and np.dtype(dtype) == np.float32:
            numbers = np.minimum(numbers, LARGEST_SINGLE)  # rounded, it could be 1
        return _deliver(numbers, dtype, out)

    def uniform(self, low: ArrayLike = 0.0, high: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw uniform numbers from [low, high)."""
        shape, (a, b) = _parameters("uniform", size, low, high)
        if type(a) is float and type(b) is float:
            width = b - a
            is_valid = 0.0 < width < math.inf
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                width = np.subtract(b, a)
            is_valid = bool(np.all((width > 0.0) & (width < np.inf)))
        if not is_valid:
            _ask_numpy("uniform", low, high, size)
        return _returned(a + width * self._uniform(shape), shape)

    def standard_normal(self, size: Size = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Draw standard normal numbers."""
        if size is None and out is None and dtype is np.float64:
            return self._normal(None)
        shape = _shape_of(size, out, dtype, "standard_normal")
        return _deliver(self._normal(shape), dtype, out)

    def normal(self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw normal numbers."""
        shape, (centre, sd) = _parameters("normal", size, loc, scale)
        if not _all_positive(sd):
            _ask_numpy("normal", loc, scale, size)
        return _returned(centre + sd * self._normal(shape), shape)

    def lognormal(self, mean: ArrayLike = 0.0, sigma: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw log-normal numbers."""
        shape, (centre, sd) = _parameters("lognormal", size, mean, sigma)
        if not _all_positive(sd):
            _ask_numpy("lognormal", mean, sigma, size)
        with np.errstate(over="ignore"):
            return _returned(np.exp(centre + sd * self._normal(shape)), shape)

    def standard_exponential(
        self, size: Size = None, dtype: Any = np.float64, method: str = "inv", out: Any = None
    ) -> Any:
        """Draw standard exponential numbers, by inversion whatever the ``method``."""
        shape = _shape_of(size, out, dtype, "standard_exponential")
        return _deliver(_returned(-np.log1p(-self._uniform(shape)), shape), dtype, out)

    def exponential(self, scale: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw exponential numbers."""
        shape, (mean,) = _parameters("exponential", size, scale)
        if not _all_positive(mean):
            _ask_numpy("exponential", scale, size)
        return _returned(-mean * np.log1p(-self._uniform(shape)), shape)

    def standard_gamma(
        self, shape: ArrayLike, size: Size = None, dtype: Any = np.float64, out: Any = None
    ) -> Any:
        """Draw standard gamma numbers."""
        if dtype is not np.float64 or out is not None:
            _check_output("standard_gamma", dtype, out, shape, size)
            if out is not None and size is not None and _shape(size) != out.shape:
                _ask_numpy("standard_gamma", shape, size, dtype, out)
            size = size if out is None else out.shape
        drawn, (k,) = _parameters("standard_gamma", size, shape)
        if not _all_positive(k):
            _ask_numpy("standard_gamma", shape, size)
        return _deliver(_returned(self._gamma(drawn, k), drawn), dtype, out)

    def gamma(self, shape: ArrayLike, scale: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw gamma numbers."""
        drawn, (k, theta) = _parameters("gamma", size, shape, scale)
        if not (_all_positive(k) and _all_positive(theta)):
            _ask_numpy("gamma", shape, scale, size)
        with np.errstate(over="ignore", invalid="ignore"):
            return _returned(theta * self._gamma(drawn, k), drawn)

    def _gamma(self, drawn: tuple[int, ...] | None, shape: Any) -> Any:
        u = self._uniform(drawn)
        if type(shape) is float and quantiles.SMALLEST < shape <= quantiles.LARGE_SHAPE:
            return special.gammaincinv(shape, u)
        return quantiles.gamma(u, shape)

    def beta(self, a: ArrayLike, b: ArrayLike, size: Size = None) -> Any:
        """Draw beta numbers."""
        shape, (first, second) = _parameters("beta", size, a, b)
        if not (_all_positive(first) and _all_positive(second)):
            _ask_numpy("beta", a, b, size)
        return _returned(special.betaincinv(first, second, self._uniform(shape)), shape)

    # Discrete distributions

    def integers(
        self,
        low: ArrayLike,
        high: ArrayLike | None = None,
        size: Size = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Any:
        """Draw integers from [low, high), or [low, high] with ``endpoint``."""
        first, last = (0, low) if high is None else (low, high)
        if type(first) is int and type(last) is int and dtype is np.int64:
            n = last - first + bool(endpoint)
            if 0 < n <= WIDE and -(2**63) <= first and first + n <= 2**63:
                if size is None:
                    return np.int64(first + int(n * self._uniform(None)))
                offsets = (n * self._uniform(_shape(size))).astype(np.int64)
                return offsets + first if offsets.ndim else np.asarray(offsets + first)
        like = _ask_numpy("integers", low, high, size, dtype, endpoint)
        return self._integers_like(like, first, last, endpoint)

    def _integers_like(self, like: Any, low: Any, high: Any, endpoint: bool) -> Any:
        """Draw integers of the shape and the type of some that numpy drew."""
        shape = like.shape if isinstance(like, np.ndarray) else None
        first = _integers_of(low)
        n = np.asarray(_integers_of(high) - first + bool(endpoint), dtype=object)
        if np.all(n <= WIDE):
            whole = np.uint64 if np.asarray(like).dtype == np.uint64 else np.int64
            offsets = np.asarray(n.astype(np.float64) * self._uniform(shape)).astype(whole)
            drawn = first.astype(whole) + offsets
        else:
            drawn = first + self._fractions_of(n, shape or ())
        if shape is None:
            return type(like)(int(drawn))
        return np.asarray(drawn).reshape(shape).astype(like.dtype)

    def _fractions_of(self, n: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Multiply integers with uniform numbers of 106 bits, and round down, exactly."""
        coarse, fine = (
            np.ravel(np.floor(2.0**53 * self._uniform(shape))).astype(np.int64).astype(object)
            for _ in range(2)
        )
        numbers = (coarse * 2**53 + fine).reshape(shape)
        return np.asarray(numbers * n, dtype=object) // 2**106

    def poisson(self, lam: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw Poisson counts."""
        shape, (mean,) = _parameters("poisson", size, lam)
        if not np.all((mean >= 0.0) & (mean < 1e18)):
            _ask_numpy("poisson", lam, size)
        counts = np.asarray(quantiles.poisson(self._uniform(shape), mean)).astype(np.int64)
        return int(counts) if shape is None else counts

    def binomial(self, n: ArrayLike, p: ArrayLike, size: Size = None) -> Any:
        """Draw binomial counts."""
        shape, (_, chance) = _parameters("binomial", size, n, p)
        is_plain = type(n) is int and 0 <= n < 2**63
        if not (is_plain and np.all((chance >= 0.0) & (chance <= 1.0))):
            _ask_numpy("binomial", n, p, size)
        trials = np.asarray(_integers_of(n).astype(np.int64))
        count, is_missing = quantiles.binomial(self._uniform(shape), trials, chance)
        # A float64 may exceed n by rounding, which only the largest n do.
        count = np.minimum(count, np.nextafter(2.0**63, 0.0)).astype(np.int64)
        count = np.minimum(count, trials)
        counts = np.where(is_missing, trials - count, count)
        return int(counts) if shape is None else counts

    def choice(
        self,
        a: ArrayLike,
        size: Size = None,
        replace: bool = True,
        p: ArrayLike | None = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        """Draw from the elements of ``a``, or from the integers below it."""
        values = np.asarray(a)
        n_drawn = 1 if size is None else math.prod(_shape(size))
        if values.ndim > 0 and -values.ndim <= axis < values.ndim:
            population = values.shape[axis]
        else:
            population = int(values) if values.ndim == 0 and values.dtype.kind in "biu" else 0
        is_valid = 0 < n_drawn and 0 < population and (replace or n_drawn <= population)
        if p is not None:
            is_valid = is_valid and _are_probabilities(p, population, n_drawn, replace)
        if not is_valid:
            like = _ask_numpy("choice", a, size, replace, p, axis, shuffle)
            if n_drawn == 0:
                return like
        draw = self._index if replace else self._index_without_replacement
        index = draw(population, n_drawn, None if p is None else np.asarray(p, dtype=np.float64))
        if values.ndim == 0:
            return int(index[0]) if size is None else index.reshape(_shape(size))
        if size is not None:
            index = index.reshape(_shape(size))
            return np.asarray(np.take(values, index, axis=axis), dtype=values.dtype)
        return np.take(values, index[0], axis=axis)

    def _index(self, population: int, n: int, p: NDArray[np.float64] | None) -> NDArray[np.int64]:
        if p is None:
            return np.asarray(self.integers(population, size=n))
        cumulative = np.cumsum(p)
        index = np.searchsorted(cumulative / cumulative[-1], self._uniform((n,)), side="right")
        return np.minimum(index, population - 1).astype(np.int64)

    def _index_without_replacement(
        self, population: int, n: int, p: NDArray[np.float64] | None
    ) -> NDArray[np.int64]:
        if p is not None:
            # Exponential clocks with rates p ring in the order of successive sampling.
            with np.errstate(divide="ignore", invalid="ignore"):
                arrivals = -np.log1p(-self._uniform((population,))) / p
            arrivals[p == 0.0] = np.inf
            return np.argsort(arrivals, kind="stable")[:n]
        if population <= SPARSE * n:
            return np.argsort(self._uniform((population,)), kind="stable")[:n]
        # Fisher and Yates's shuffle of a list that is written down only where it was changed.
        moved: dict[int, int] = {}
        index = np.empty(n, dtype=np.int64)
        for i in range(n):
            j = int(self.integers(i, population))
            index[i] = moved.get(j, j)
            moved[j] = moved.get(i, i)
        return index

    def permutation(self, x: ArrayLike, axis: int = 0) -> Any:
        """Return a permuted copy of ``x``, or of the integers below it."""
        if isinstance(x, int | np.integer):
            values, axis = np.arange(int(x)), 0
        else:
            values = np.asarray(x)
            if not 0 <= axis < values.ndim:
                _ask_numpy("permutation", x, axis)
        order = np.argsort(self._uniform((values.shape[axis],)), kind="stable")
        return np.take(values, order, axis=axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Permute ``x`` in place."""
        if isinstance(x, np.ndarray):
            if not (0 <= axis < x.ndim and x.flags.writeable):
                _ask_numpy("shuffle", x, axis)
            x[...] = self.permutation(x, axis)
            return
        if type(x) is not list or axis != 0:
            _ask_numpy("shuffle", copy.copy(x), axis)
        items = [x[i] for i in np.argsort(self._uniform((len(x),)), kind="stable").tolist()]
        for i, item in enumerate(items):
            x[i] = item


_NUMPY = np.random.Generator(np.random.PCG64(0))  # asked for errors; its numbers go nowhere


def _ask_numpy(method: str, *arguments: Any, **options: Any) -> Any:
    """Raise what numpy raises for some arguments, or return what it returns."""
    return getattr(_NUMPY, method)(*arguments, **options)


def _shape(size: Any) -> tuple[int, ...]:
    """Return a size as a tuple; a negative one would read the stream backwards."""
    if type(size) is int and size >= 0:
        return (size,)
    try:
        if size is True or size is False:
            raise TypeError
        lengths = size if type(size) is tuple else np.atleast_1d(size).tolist()
        shape = tuple([operator.index(length) for length in lengths])
        if min(shape, default=0) < 0:
            raise ValueError
    except (TypeError, ValueError):
        _ask_numpy("random", size)
        raise
    return shape


def _parameters(
    method: str, size: Size, *parameters: Any
) -> tuple[tuple[int, ...] | None, tuple[Any, ...]]:
    """Return the shape to draw, None for a single number, and the parameters as float64."""
    if size is None and all([type(parameter) is float for parameter in parameters]):
        return None, parameters
    if all([type(parameter) in (float, int) for parameter in parameters]):
        numbers = tuple([float(parameter) for parameter in parameters])
        return (None if size is None else _shape(size)), numbers
    if not all([_is_real(parameter) for parameter in parameters]):
        _ask_numpy(method, *parameters, size=size)
    values = tuple([_float(parameter) for parameter in parameters])
    try:
        shape = np.broadcast_shapes(*[np.shape(value) for value in values])
        wanted = shape if size is None else _shape(size)
        if shape and np.broadcast_shapes(shape, wanted) != wanted:
            raise ValueError(f"Output size {size} is not that of the parameters, {shape}.")
    except (TypeError, ValueError):
        _ask_numpy(method, *parameters, size=size)
        raise
    return (None if size is None and not shape else wanted), values


def _is_real(value: Any) -> bool:
    """Say whether a parameter is plainly made of real numbers."""
    if type(value) in (float, int):
        return True
    try:
        kind = np.asarray(value).dtype
    except ValueError:  # it is ragged
        return False
    return kind.kind in "biu" or (kind.kind == "f" and kind.itemsize <= 8)


def _float(value: Any) -> Any:
    """Return a parameter as float64, a scalar as a float."""
    if type(value) is float:
        return value
    array = np.asarray(value, dtype=np.float64)
    return array if array.ndim else float(array)


def _integers_of(value: Any) -> NDArray[Any]:
    """Return a parameter as integers of Python, rounded towards zero as by numpy."""
    array = np.asarray(value)
    integers = np.empty(array.shape, dtype=object)
    integers[...] = np.array([int(n) for n in array.ravel().tolist()] + [None], object)[
        :-1
    ].reshape(array.shape)
    return integers


def _all_positive(value: Any) -> bool:
    return value > 0.0 if type(value) is float else bool(np.all(value > 0.0))


def _returned(numbers: Any, shape: tuple[int, ...] | None) -> Any:
    """Return a float or an array, as numpy does."""
    return float(numbers) if shape is None else np.asarray(numbers)


def _check_output(method: str, dtype: Any, out: Any, *arguments: Any) -> None:
    """Raise what numpy raises if it cannot draw numbers of that type into that memory."""
    kind = np.dtype(dtype)
    is_float = kind in (np.float64, np.float32) and kind.isnative
    is_fit = out is None or (
        type(out) is np.ndarray and out.dtype == kind and out.flags.carray and out.flags.writeable
    )
    if not (is_float and is_fit):
        _ask_numpy(method, *arguments, dtype=dtype, out=out)


def _shape_of(size: Size, out: Any, dtype: Any, method: str) -> tuple[int, ...] | None:
    """Return the shape to draw, None for a single number."""
    if dtype is not np.float64 or out is not None:
        _check_output(method, dtype, out, size)
    shape = None if size is None else _shape(size)
    if out is None:
        return shape
    if shape is not None and shape != out.shape:
        _ask_numpy(method, size, dtype=dtype, out=out)
    return tuple(out.shape)


def _deliver(numbers: Any, dtype: Any, out: Any) -> Any:
    """Return numbers in the type or the memory that was asked for."""
    if out is not None:
        out[...] = numbers
        return out
    if not isinstance(numbers, np.ndarray):
        return float(numbers if dtype is np.float64 else np.dtype(dtype).type(numbers))
    return numbers if dtype is np.float64 else numbers.astype(dtype)


def _are_probabilities(p: Any, population: int, n: int, replace: bool) -> bool:
    """Say whether numpy takes ``p`` for probabilities of so many elements, and draws of them."""
    probabilities = np.asarray(p)
    if probabilities.shape != (population,) or probabilities.dtype.kind not in "fiub":
        return False
    is_single = isinstance(p, np.ndarray) and p.dtype.kind == "f"
    tolerance = math.sqrt(np.finfo(p.dtype if is_single else np.float64).eps)
    return bool(
        (probabilities >= 0).all()
        and abs(math.fsum(probabilities.tolist()) - 1.0) <= max(tolerance, 1.4e-8)
        and (replace or n <= np.count_nonzero(probabilities))
    )
