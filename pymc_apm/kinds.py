"""What each kind of randomness u is: how it is drawn and how it is updated."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_apm.errors import ModelError
from pymc_apm.kernels import (
    LogDensity,
    State,
    correlated_normal,
    correlated_uniform,
    elliptical_slice,
    metropolis_independence,
    reflective_slice,
)
from pymc_apm.kernels.draws import draw_normal, draw_uniform
from pymc_apm.kernels.state import FloatVector
from pymc_apm.kernels.stream import (
    correlated_normal_stream,
    correlated_uniform_stream,
    draw_seed,
    elliptical_slice_of_stream,
    fresh_stream,
    reflective_slice_of_stream,
)

__all__ = [
    "GeneratorSeed",
    "NormalArray",
    "NormalStream",
    "Randomness",
    "UniformArray",
    "UniformStream",
]


class Randomness(ABC):
    """What is known of one u: its name, its distribution and its updates.

    Nothing here ever changes, so that copies of a model may share it. Kernels see u as a float64
    vector; what it is in the graph is the business of the subclass.

    Attributes
    ----------
    name : str
        The name it has in the model.
    shape : tuple of int
        Its shape in the graph; ``None`` for a length that is not fixed.
    kind : str
        What it is made of, in words.
    is_lazy : bool
        Whether it must be settled before it is moved (see :mod:`pymc_apm.kernels.stream`).
    needs_black_box : bool
        Whether it makes sense only as an argument of a black box.
    slice_kernel, correlated_kernel : callable
        How it is updated by slice sampling, and how a correlated one is proposed, where it can be.
    """

    kind: ClassVar[str]
    is_lazy: ClassVar[bool] = False
    needs_black_box: ClassVar[bool] = False
    slice_kernel: ClassVar[Any] = None
    correlated_kernel: ClassVar[Any] = None

    def __init__(self, name: str, shape: tuple[int | None, ...]) -> None:
        self.name = name
        self.shape = shape

    @property
    def size(self) -> int | None:
        """The number of its elements, if that is fixed."""
        if any(length is None for length in self.shape):
            return None
        return math.prod(length for length in self.shape if length is not None)

    def as_array(self, u: FloatVector) -> NDArray[np.float64]:
        """Return a vector in the shape that it has in the graph."""
        return u.reshape([-1 if length is None else length for length in self.shape])

    def draw(self, rng: np.random.Generator) -> FloatVector:
        """Draw a fresh u from q(u)."""
        return self.draw_elements(rng, self.size or 0)

    @staticmethod
    @abstractmethod
    def draw_elements(rng: np.random.Generator, size: int) -> FloatVector:
        """Draw fresh elements from q(u)."""

    def correlated(self, rng: np.random.Generator, u: FloatVector, correlation: float) -> Any:
        """Propose a new u that is correlated with the old one, reversibly under q(u)."""
        if self.correlated_kernel is None:
            raise ModelError(f"There is no correlated proposal for a {self.kind}: {self.name}.")
        return type(self).correlated_kernel(rng, u, correlation)

    def slice_update(self, rng: np.random.Generator, state: State, log_density: LogDensity) -> Any:
        """Update u by slice sampling, or by Metropolis independence where that is all there is."""
        if self.slice_kernel is None:
            return self.independence_update(rng, state, log_density)
        return type(self).slice_kernel(rng, state, log_density)

    def independence_update(
        self, rng: np.random.Generator, state: State, log_density: LogDensity
    ) -> Any:
        """Update u by Metropolis independence."""
        return metropolis_independence(rng, state, log_density, self.draw_elements)


class NormalArray(Randomness):
    """q(u) = N(0, I)."""

    kind = "normal"
    draw_elements = staticmethod(draw_normal)
    slice_kernel = staticmethod(elliptical_slice)
    correlated_kernel = staticmethod(correlated_normal)


class UniformArray(Randomness):
    """q(u) = U(0, 1)^n."""

    kind = "uniform"
    draw_elements = staticmethod(draw_uniform)
    slice_kernel = staticmethod(reflective_slice)
    correlated_kernel = staticmethod(correlated_uniform)


class NormalStream(Randomness):
    """An endless sequence of standard normal numbers."""

    kind = "normal"
    is_lazy = True
    needs_black_box = True
    draw_elements = staticmethod(fresh_stream)
    slice_kernel = staticmethod(elliptical_slice_of_stream)
    correlated_kernel = staticmethod(correlated_normal_stream)


class UniformStream(Randomness):
    """An endless sequence of uniform numbers."""

    kind = "uniform"
    is_lazy = True
    needs_black_box = True
    draw_elements = staticmethod(fresh_stream)
    slice_kernel = staticmethod(reflective_slice_of_stream)
    correlated_kernel = staticmethod(correlated_uniform_stream)


class GeneratorSeed(Randomness):
    """A seed of a random number generator: only a fresh one makes sense as a proposal."""

    kind = "seed"
    needs_black_box = True

    @staticmethod
    def draw_elements(rng: np.random.Generator, size: int) -> FloatVector:
        """Draw a seed."""
        return np.array([float(draw_seed(rng))])
