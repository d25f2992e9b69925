"""Declaring u, the estimator's randomness, in a model; what each kind is and how it is drawn.

A piece of randomness is a shared variable of PyTensor, so that every step method of PyMC sees its
current value, with a :class:`Randomness` attached that says what its distribution q(u) is. Steps
that update it *claim* it; as long as nobody does, evaluating the model's log density is an error
(see :func:`pymc_apm.Potential`), because a u that never changes would silently give the posterior
of one fixed estimate.
"""

import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.sharedvar import TensorSharedVariable

from pymc_apm.errors import ModelError
from pymc_apm.kernels import correlated_normal, correlated_uniform

__all__ = ["Randomness", "StandardNormal", "StandardUniform", "randomness_in"]


class Randomness(ABC):
    """What is known of one u: its name, its distribution and whether a step updates it.

    Kernels see u as a flat float64 vector; its shape is the business of the graph.

    Attributes
    ----------
    name : str
        The name it has in the model.
    is_claimed : SharedVariable
        The flag that the model's log density checks: true while some step updates this u.
    """

    kind: ClassVar[str]

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_claimed = pytensor.shared(np.array(False), name=f"{name}_is_claimed")
        self._claims = 0

    @staticmethod
    @abstractmethod
    def draw(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Draw ``size`` numbers from q(u)."""

    @staticmethod
    @abstractmethod
    def correlated(
        rng: np.random.Generator, u: NDArray[np.float64], correlation: float
    ) -> NDArray[np.float64]:
        """Propose a new u that is correlated with the old one, reversibly under q(u)."""

    def claim(self, owner: object) -> "weakref.finalize[[], Any]":
        """Register that ``owner`` updates this u, until the owner is no more."""
        self._claims += 1
        self.is_claimed.set_value(np.array(True))
        claim = weakref.finalize(owner, self._release)
        claim.atexit = False
        return claim

    def _release(self) -> None:
        self._claims -= 1
        if self._claims <= 0:
            self.is_claimed.set_value(np.array(False))

    def __getstate__(self) -> dict[str, Any]:
        # Claims are held by steps of this process; one that is sent elsewhere claims anew there.
        return self.__dict__ | {"_claims": 0}


class Gaussian(Randomness):
    """q(u) = N(0, I)."""

    kind = "normal"

    @staticmethod
    def draw(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Draw ``size`` standard normal numbers."""
        return rng.standard_normal(size)

    @staticmethod
    def correlated(
        rng: np.random.Generator, u: NDArray[np.float64], correlation: float
    ) -> NDArray[np.float64]:
        """Propose by Crank-Nicolson."""
        return correlated_normal(rng, u, correlation)


class Uniform(Randomness):
    """q(u) = U(0, 1)^n."""

    kind = "uniform"

    @staticmethod
    def draw(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Draw ``size`` uniform numbers."""
        return rng.random(size)

    @staticmethod
    def correlated(
        rng: np.random.Generator, u: NDArray[np.float64], correlation: float
    ) -> NDArray[np.float64]:
        """Propose by Crank-Nicolson on the normal scale."""
        return correlated_uniform(rng, u, correlation)


def StandardNormal(
    name: str,
    *,
    shape: int | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    model: pm.Model | None = None,
) -> TensorSharedVariable:
    """Declare standard normal randomness, u ~ N(0, I), for an estimator in a model.

    The result goes into the PyTensor expression of a log-estimate, which is added to the model by
    :func:`pymc_apm.Potential`. It is part of the state of the Markov chain and never recorded in
    the trace. :class:`~pymc_apm.APMSlice` and its kin update it by elliptical slice sampling,
    which works best where the estimate is a continuous function of u.

    Parameters
    ----------
    name : str
        Its name, unique in the model.
    shape : int or tuple of int, optional
        Its fixed shape; a scalar if neither ``shape`` nor ``dims`` is given.
    dims : str or tuple of str, optional
        Names of dimensions of the model, instead of ``shape``.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorSharedVariable

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model(coords={"group": range(3)}):
    ...     u = apm.StandardNormal("u", shape=(8, 3))
    ...     v = apm.StandardNormal("v", dims="group")
    >>> u.type.shape, v.type.shape
    ((8, 3), (3,))
    """
    return _declare(Gaussian, name, shape, dims, model)


def StandardUniform(
    name: str,
    *,
    shape: int | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    model: pm.Model | None = None,
) -> TensorSharedVariable:
    """Declare uniform randomness, u ~ U(0, 1)^n, for an estimator in a model.

    As :func:`StandardNormal`, but with independent uniform numbers, which are updated by slice
    sampling with reflections at the boundary of the unit cube.

    Parameters
    ----------
    name : str
        Its name, unique in the model.
    shape : int or tuple of int, optional
        Its fixed shape; a scalar if neither ``shape`` nor ``dims`` is given.
    dims : str or tuple of str, optional
        Names of dimensions of the model, instead of ``shape``.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorSharedVariable

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     u = apm.StandardUniform("u", shape=4)
    >>> u.type.shape
    (4,)
    """
    return _declare(Uniform, name, shape, dims, model)


def _declare(
    kind: type[Randomness],
    name: str,
    shape: int | Sequence[int] | None,
    dims: str | Sequence[str] | None,
    model: pm.Model | None,
) -> TensorSharedVariable:
    model = pm.modelcontext(model)
    dims = (dims,) if isinstance(dims, str) else dims
    full_shape = _resolve_shape(name, shape, dims, model)
    full_name = model.name_for(name)
    # Any value will do until a chain starts and draws its own; this one is the same every time.
    rng = np.random.default_rng(zlib.crc32(full_name.encode()))
    value = kind.draw(rng, int(np.prod(full_shape))).reshape(full_shape)
    variable = pytensor.shared(value, name=full_name, shape=full_shape)
    variable.tag.apm_randomness = kind(full_name)
    model.add_named_variable(variable, dims=dims)
    return variable


def _resolve_shape(
    name: str,
    shape: int | Sequence[int] | None,
    dims: Sequence[str] | None,
    model: pm.Model,
) -> tuple[int, ...]:
    if shape is not None:
        shape = (shape,) if isinstance(shape, int | np.integer) else shape
        try:
            shape = tuple(int(length) for length in shape)
        except TypeError as error:
            raise ModelError(
                f"The shape of {name!r} must be made of integers, got {shape!r}: randomness has a "
                "fixed shape."
            ) from error
        if min(shape, default=0) < 0:
            raise ModelError(f"The shape of {name!r} has a negative length: {shape}.")
    if dims is None:
        return () if shape is None else shape
    unknown = [dim for dim in dims if dim not in model.dim_lengths]
    if unknown:
        raise ModelError(
            f"{name!r} has dimensions that the model does not know: {', '.join(unknown)}. "
            "Give them to pm.Model(coords=...) or model.add_coord first."
        )
    lengths = tuple(int(model.dim_lengths[dim].eval()) for dim in dims)
    if shape is not None and shape != lengths:
        raise ModelError(f"{name!r} has shape {shape}, but its dims {tuple(dims)} make {lengths}.")
    return lengths


def randomness_in(outputs: Iterable[Variable]) -> list[SharedVariable]:
    """Return the declared randomness among the ancestors of some variables, each once."""
    found = {
        variable: None
        for variable in ancestors(list(outputs))
        if hasattr(variable.tag, "apm_randomness")
    }
    return sorted(found, key=lambda variable: variable.name)
