"""The drawing methods of ``numpy.random.Generator`` on top of a stream of base numbers.

Code that was written for a numpy generator runs unchanged with :class:`StreamGenerator`. Every
method turns base numbers into what is asked for by the inverse of the distribution function, with
one base number for each continuous draw, so that a small move of the stream is a small change of
the draws: that is what lets slice sampling shrink to a move that is accepted.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_apm.kernels import special
from pymc_apm.kernels.stream import Reader

Size = int | tuple[int, ...] | None


class StreamGenerator:
    """Draws random numbers from a stream, with the methods of ``numpy.random.Generator``.

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

    # Base numbers

    def _uniform(self, size: Size) -> Any:
        if size is None:
            number = self._reader.take_one()
            return float(special.ndtr(number)) if self._reader.is_normal else number
        shape = _shape(size)
        numbers = self._reader.take(math.prod(shape))
        numbers = special.ndtr(numbers) if self._reader.is_normal else numbers.copy()
        return numbers.reshape(shape)

    def _normal(self, size: Size) -> Any:
        if size is None:
            number = self._reader.take_one()
            return number if self._reader.is_normal else float(special.ndtri(number))
        shape = _shape(size)
        numbers = self._reader.take(math.prod(shape))
        numbers = numbers.copy() if self._reader.is_normal else special.ndtri(numbers)
        return numbers.reshape(shape)

    def _transformed(self, size: Size, inverse: Callable[..., Any], *parameters: ArrayLike) -> Any:
        """Draw uniform numbers of the right shape and put them through an inverse."""
        size = _broadcast(size, *parameters)
        return inverse(self._uniform(size), *(np.asarray(p)[()] for p in parameters))

    # Continuous distributions

    def random(self, size: Size = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Draw uniform numbers from [0, 1)."""
        if out is not None and size is None and not self._reader.is_normal:
            out[...] = self._reader.take(out.size).reshape(out.shape)
            return out
        return _deliver(self._uniform(_size_of(size, out)), dtype, out)

    def uniform(self, low: ArrayLike = 0.0, high: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw uniform numbers from [low, high)."""
        return self._transformed(size, lambda u, a, b: a + (b - a) * u, low, high)

    def standard_normal(self, size: Size = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Draw standard normal numbers."""
        return _deliver(self._normal(_size_of(size, out)), dtype, out)

    def normal(self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw normal numbers."""
        _check("scale", scale, np.less, 0)
        size = _broadcast(size, loc, scale)
        return np.asarray(loc)[()] + np.asarray(scale)[()] * self._normal(size)

    def lognormal(self, mean: ArrayLike = 0.0, sigma: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw log-normal numbers."""
        return np.exp(self.normal(mean, sigma, size))

    def standard_exponential(
        self, size: Size = None, dtype: Any = np.float64, method: str = "inv", out: Any = None
    ) -> Any:
        """Draw standard exponential numbers, by inversion whatever the ``method``."""
        return _deliver(-np.log1p(-self._uniform(_size_of(size, out))), dtype, out)

    def exponential(self, scale: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw exponential numbers."""
        _check("scale", scale, np.less, 0)
        return self._transformed(size, lambda u, s: -s * np.log1p(-u), scale)

    def standard_gamma(
        self, shape: ArrayLike, size: Size = None, dtype: Any = np.float64, out: Any = None
    ) -> Any:
        """Draw standard gamma numbers."""
        _check("shape", shape, np.less, 0)
        numbers = self._transformed(_size_of(size, out), _gamma_inverse, shape)
        return _deliver(numbers, dtype, out)

    def gamma(self, shape: ArrayLike, scale: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw gamma numbers."""
        _check("shape", shape, np.less, 0)
        _check("scale", scale, np.less, 0)
        return self._transformed(size, lambda u, a, s: s * _gamma_inverse(u, a), shape, scale)

    def beta(self, a: ArrayLike, b: ArrayLike, size: Size = None) -> Any:
        """Draw beta numbers."""
        _check("a", a, np.less_equal, 0)
        _check("b", b, np.less_equal, 0)
        return self._transformed(size, lambda u, a, b: special.betaincinv(a, b, u), a, b)

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
        if high is None:
            low, high = 0, low
        high = np.asarray(high) + (1 if endpoint else 0)
        if np.any(np.asarray(low) >= high):
            raise ValueError("low >= high")
        kind = np.dtype(dtype)
        if kind.kind in "iu" and (
            np.any(np.asarray(low) < np.iinfo(kind).min) or np.any(high - 1 > np.iinfo(kind).max)
        ):
            raise ValueError(f"low or high is out of bounds for {kind}")

        def inverse(u: Any, low: Any, high: Any) -> Any:
            # Rounding may take the largest u to high itself.
            return np.minimum(low + np.floor((high - low) * u), high - 1)

        return np.asarray(self._transformed(size, inverse, low, high)).astype(dtype)[()]

    def poisson(self, lam: ArrayLike = 1.0, size: Size = None) -> Any:
        """Draw Poisson counts."""
        from scipy.stats import poisson  # takes longer to import than all of this package

        _check("lam", lam, np.less, 0)
        return np.asarray(self._transformed(size, poisson.ppf, lam)).astype(np.int64)[()]

    def binomial(self, n: ArrayLike, p: ArrayLike, size: Size = None) -> Any:
        """Draw binomial counts."""
        from scipy.stats import binom  # as above

        _check("n", n, np.less, 0)
        _check("p", p, np.less, 0)
        _check("p", p, np.greater, 1)
        return np.asarray(self._transformed(size, binom.ppf, n, p)).astype(np.int64)[()]

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
        if values.ndim == 0 and values.dtype.kind not in "iu":
            raise ValueError(f"a must be a sequence or an integer, not {a!r}")
        population = int(values) if values.ndim == 0 else values.shape[axis]
        n_drawn = 1 if size is None else math.prod(_shape(size))
        if population <= 0 and n_drawn > 0:
            raise ValueError("a cannot be empty unless no samples are taken")
        if p is not None:
            p = _checked_probabilities(p, population)
        if n_drawn == 0:
            index = np.zeros(0, dtype=np.int64)
        elif replace:
            index = self._index(population, n_drawn, p)
        else:
            index = self._index_without_replacement(population, n_drawn, p)
        index = index[0] if size is None else index.reshape(_shape(size))
        return index if values.ndim == 0 else np.take(values, index, axis=axis)

    def _index(self, population: int, n: int, p: NDArray[np.float64] | None) -> NDArray[np.int64]:
        if p is None:
            return np.asarray(self.integers(population, size=n))
        cumulative = np.cumsum(p)
        index = np.searchsorted(cumulative / cumulative[-1], self._uniform(n), side="right")
        return np.minimum(index, population - 1).astype(np.int64)

    def _index_without_replacement(
        self, population: int, n: int, p: NDArray[np.float64] | None
    ) -> NDArray[np.int64]:
        if n > population or (p is not None and n > np.count_nonzero(p)):
            raise ValueError("Cannot take a larger sample than population when replace is False")
        if p is None:
            return np.argsort(self._uniform(population), kind="stable")[:n]
        # Exponential clocks with rates p ring in the order of successive sampling.
        with np.errstate(divide="ignore"):
            arrivals = -np.log1p(-self._uniform(population)) / p
        return np.argsort(arrivals, kind="stable")[:n]

    def permutation(self, x: ArrayLike, axis: int = 0) -> Any:
        """Return a permuted copy of ``x``, or of the integers below it."""
        values = np.arange(int(np.asarray(x))) if np.ndim(x) == 0 else np.asarray(x)
        order = np.argsort(self._uniform(values.shape[axis]), kind="stable")
        return np.take(values, order, axis=axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Permute ``x`` in place."""
        if isinstance(x, np.ndarray):
            x[...] = self.permutation(x, axis)
        else:
            order = np.argsort(self._uniform(len(x)), kind="stable")
            x[:] = [x[i] for i in order]


def _shape(size: Any) -> tuple[int, ...]:
    """Return a size as a tuple; a negative one would read the stream backwards."""
    lengths = size if type(size) is tuple else np.atleast_1d(size).tolist()
    shape = tuple([operator.index(length) for length in lengths])
    if shape and min(shape) < 0:
        raise ValueError("negative dimensions are not allowed")
    return shape


def _broadcast(size: Size, *parameters: ArrayLike) -> Size:
    """Return the shape to draw: that of the parameters, or one that they fit into."""
    shape = np.broadcast_shapes(*(np.shape(parameter) for parameter in parameters))
    if size is None:
        return shape or None
    if np.broadcast_shapes(shape, _shape(size)) != _shape(size):
        raise ValueError(
            f"Output size {size} is not compatible with the shape {shape} of the parameters."
        )
    return size


def _check(name: str, value: ArrayLike, is_wrong: Callable[..., Any], bound: float) -> None:
    if np.any(is_wrong(value, bound)):
        raise ValueError(f"{name} is out of range: {value!r}")


def _gamma_inverse(u: Any, shape: Any) -> Any:
    is_zero = np.equal(shape, 0)
    return np.where(is_zero, 0.0, special.gammaincinv(np.where(is_zero, 1.0, shape), u))[()]


def _size_of(size: Size, out: Any) -> Size:
    if out is None:
        return size
    if size is not None and _shape(size) != out.shape:
        raise ValueError("size must match out.shape when used together")
    return tuple(out.shape)


def _deliver(numbers: Any, dtype: Any, out: Any) -> Any:
    """Return numbers in the type or the memory that was asked for."""
    if out is not None:
        out[...] = numbers
        return out
    return numbers if dtype is np.float64 else np.asarray(numbers).astype(dtype)[()]


def _checked_probabilities(p: ArrayLike, population: int) -> NDArray[np.float64]:
    probabilities = np.asarray(p, dtype=np.float64)
    if probabilities.shape != (population,):
        raise ValueError("a and p must have same size")
    if (probabilities < 0).any() or not math.isclose(probabilities.sum(), 1.0, abs_tol=1e-7):
        raise ValueError("probabilities must be non-negative and sum to 1")
    return probabilities
