"""Streams: sequences of random numbers without end, of which only what is used exists.

The paper's section "Slice Sampling auxiliary u variables", last paragraph: an estimator may choose
on the fly how many random numbers it uses. A stream is then a *prefix* of realised numbers and an
endless *tail* behind it. The tail is a pure function of a seed, so that all evaluations within an
update see one and the same infinite sequence, and it is independent of everything that happened
before, because numbers that did not affect the current estimate may be drawn afresh at any time.

A move of the stream takes each of its numbers along a path (an ellipse, a reflected line), the
prefix at once and the tail as it is asked for: the direction of the tail is a pure function of a
second seed. Everything is held in one float64 vector::

    tail seed, direction seed, z, kind of move, prefix...

Seeds are integers below 2**53, which a float64 holds exactly. The prefix is stored as it is *after*
the move; the tail is moved as it is realised. Between updates a stream is :func:`settled`: it
consists of just the numbers that the current estimate used, with a fresh tail.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kernels.normal import normal_cdf, normal_quantile
from pymc_apm.kernels.reflective import reflected_line
from pymc_apm.kernels.slice import SliceInfo, shrink
from pymc_apm.types import FloatVector, LogDensity, State

HEADER = 4
"""Elements of the vector ahead of the prefix."""

AT_REST, ALONG_ELLIPSE, ALONG_REFLECTED_LINE, ALONG_COPULA = 0.0, 1.0, 2.0, 3.0
"""Kinds of move. The last is Crank-Nicolson on the normal scale, for uniform numbers."""

FIRST_BLOCK = 32
"""How many numbers of the tail are realised at once, at the least."""


def draw_seed(rng: np.random.Generator) -> int:
    """Draw a seed that a float64 holds exactly."""
    return int(rng.integers(2**53))


def fresh_stream(rng: np.random.Generator, size: int = 0) -> FloatVector:
    """Return a stream of which nothing is realised yet; ``size`` is not used."""
    return np.array([draw_seed(rng), 0.0, 0.0, AT_REST])


def settled(rng: np.random.Generator, used: FloatVector) -> FloatVector:
    """Return a stream at rest that begins with the numbers used, with a fresh tail."""
    return _joined(float(draw_seed(rng)), 0.0, 0.0, AT_REST, used)


def _joined(
    tail_seed: float, direction_seed: float, z: float, move: float, prefix: FloatVector
) -> FloatVector:
    stream = np.empty(HEADER + prefix.size)
    stream[:HEADER] = tail_seed, direction_seed, z, move
    stream[HEADER:] = prefix
    return stream


def stream_ellipse(stream: FloatVector, direction: FloatVector, angle: float) -> FloatVector:
    """Move a stream at rest along an ellipse; the direction's first element is a seed."""
    prefix = ellipse(stream[HEADER:], direction[1:], angle)
    return _joined(stream[0], direction[0], angle, ALONG_ELLIPSE, prefix)


def stream_reflected_line(stream: FloatVector, direction: FloatVector, z: float) -> FloatVector:
    """Move a stream at rest along a reflected line; the direction's first element is a seed."""
    prefix = reflected_line(stream[HEADER:], direction[1:], z)
    return _joined(stream[0], direction[0], z, ALONG_REFLECTED_LINE, prefix)


def _direction(rng: np.random.Generator, stream: FloatVector) -> FloatVector:
    """Draw the direction of a move: a seed for that of the tail, and that of the prefix."""
    return np.concatenate(([draw_seed(rng)], rng.standard_normal(stream.size - HEADER)))


def elliptical_slice_of_stream(
    rng: np.random.Generator, state: State, log_density: LogDensity
) -> tuple[State, SliceInfo]:
    """Update a settled stream of normal numbers by elliptical slice sampling, lazily."""
    direction = _direction(rng, state.position)
    log_height = state.log_density - rng.standard_exponential()
    angle = 2.0 * math.pi * rng.random()
    lower = angle - 2.0 * math.pi
    return shrink(
        rng, state, log_density, stream_ellipse, direction, log_height, angle, lower, upper=angle
    )


def reflective_slice_of_stream(
    rng: np.random.Generator, state: State, log_density: LogDensity, width: float = 1.0
) -> tuple[State, SliceInfo]:
    """Update a settled stream of uniform numbers by reflective slice sampling, lazily."""
    direction = _direction(rng, state.position)
    log_height = state.log_density - rng.standard_exponential()
    lower = -width * rng.random()
    upper = lower + width
    proposal = lower + width * rng.random()
    path = stream_reflected_line
    return shrink(rng, state, log_density, path, direction, log_height, proposal, lower, upper)


def correlated_normal_stream(
    rng: np.random.Generator, stream: FloatVector, correlation: float
) -> FloatVector:
    """Propose a correlated move of a settled stream of normal numbers."""
    return stream_ellipse(stream, _direction(rng, stream), math.acos(correlation))


def correlated_uniform_stream(
    rng: np.random.Generator, stream: FloatVector, correlation: float
) -> FloatVector:
    """Propose a correlated move of a settled stream of uniform numbers, on the normal scale."""
    direction = _direction(rng, stream)
    angle = math.acos(correlation)
    prefix = _along_copula(stream[HEADER:], direction[1:], angle)
    return _joined(stream[0], direction[0], angle, ALONG_COPULA, prefix)


def _along_copula(u: FloatVector, direction: FloatVector, angle: float) -> FloatVector:
    return normal_cdf(ellipse(normal_quantile(u), direction, angle))


class Scratch(NamedTuple):
    """Two generators whose state is set again for each tail, to save the cost of making them."""

    tail: np.random.Generator
    direction: np.random.Generator


def make_scratch() -> Scratch:
    """Return generators for the tail of one stream at a time."""
    return Scratch(*(np.random.Generator(np.random.PCG64(0)) for _ in range(2)))


MASK = (1 << 128) - 1


def _reseed(generator: np.random.Generator, seed: float, purpose: int) -> None:
    """Put a generator into a state that is a well-mixed function of a seed and a purpose."""
    state = ((int(seed) << 2) | purpose) * 0x9E3779B97F4A7C15F39CC0605CEDC835 & MASK
    state = (state ^ (state >> 67)) * 0xD1342543DE82EF95AEF17502108EF2D9 & MASK
    state ^= state >> 71
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": 0x5851F42D4C957F2D14057B7EF767814F},
        "has_uint32": 0,
        "uinteger": 0,
    }


class Reader:
    """Reads the numbers of a stream one after the other, realising the tail as needed.

    Parameters
    ----------
    stream : ndarray
        A stream, moved or at rest.
    is_normal : bool
        Whether its numbers are standard normal; uniform otherwise.
    scratch : Scratch
        Generators for the tail. No two readers may use them at the same time.
    """

    __slots__ = (
        *("_generators", "_is_normal", "_numbers", "_owner", "_position", "_scratch", "_stream"),
    )

    def __init__(self, stream: FloatVector, is_normal: bool, scratch: Scratch) -> None:
        self._stream = stream
        self._is_normal = is_normal
        self._scratch = scratch
        self._numbers = stream[HEADER:]
        self._position = 0
        self._generators: Any = None
        self._owner: object = None

    @property
    def is_normal(self) -> bool:
        """Whether the numbers are standard normal; uniform otherwise."""
        return self._is_normal

    def take(self, n: int) -> FloatVector:
        """Return the next ``n`` numbers, in memory that is not to be written to."""
        start = self._position
        stop = start + n
        if stop > self._numbers.size:
            self._realise(stop)
        self._position = stop
        return self._numbers[start:stop]

    def take_one(self) -> float:
        """Return the next number."""
        position = self._position
        if position >= self._numbers.size:
            self._realise(position + 1)
        self._position = position + 1
        return float(self._numbers[position])

    def used(self) -> FloatVector:
        """Return the numbers read so far, in memory that is not to be written to."""
        return self._numbers[: self._position]

    def close(self, owner: object) -> Scratch:
        """Refuse to read on, in the name of an owner, and return the generators for another."""
        self._owner = owner
        self._numbers = self._numbers[:0]
        return self._scratch

    def _realise(self, size: int) -> None:
        """Append numbers of the tail, so that there are ``size`` numbers or some more."""
        if self._owner is not None:
            raise RuntimeError(
                f"A random stream was read after {self._owner}, which it was given to, had "
                "returned. A function must draw all its random numbers before it returns, and not "
                "keep its generator for a later call: each call is given its own."
            )
        tail_seed, direction_seed, z, move = self._stream[:HEADER]
        if self._generators is None:
            self._generators = self._scratch
            _reseed(self._scratch.tail, tail_seed, 0)
            if move != AT_REST:
                _reseed(self._scratch.direction, direction_seed, 1)
        n = max(size - self._numbers.size, self._numbers.size // 2, FIRST_BLOCK)
        rng = self._generators.tail
        numbers = rng.standard_normal(n) if self._is_normal else rng.random(n)
        if move != AT_REST:
            direction = self._generators.direction.standard_normal(n)
            if move == ALONG_ELLIPSE:
                numbers = ellipse(numbers, direction, z)
            elif move == ALONG_REFLECTED_LINE:
                numbers = reflected_line(numbers, direction, z)
            else:
                numbers = _along_copula(numbers, direction, z)
        self._numbers = np.concatenate((self._numbers, numbers))
