"""Declaring u, the estimator's randomness, in a model.

A piece of randomness is a shared variable of PyTensor, so that every step method of PyMC sees its
current value, with a :class:`Randomness` attached that says what its distribution
q(u) is. To PyMC it is data of the model, so that a copy of the model has a copy of it. Who updates
it is the business of :mod:`pymc_apm.claims`.
"""

import math
import operator
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.sharedvar import TensorSharedVariable

from pymc_apm.errors import ModelError
from pymc_apm.kinds import KINDS, Kind
from pymc_apm.types import FloatVector

__all__ = ["Seed", "StandardNormal", "StandardUniform", "Stream", "randomness_in", "randomness_of"]


class Randomness:
    """One u: its name, its shape in the graph, its kind.

    Nothing here ever changes, so that copies of a model may share it.

    Attributes
    ----------
    name : str
        The name it has in the model.
    shape : tuple of int
        Its shape in the graph; ``None`` for a length that is not fixed.
    update : str
        The name of the update that suits its estimator.
    """

    def __init__(
        self, name: str, shape: tuple[int | None, ...], kind_name: str, update: str = "slice"
    ) -> None:
        self.name = name
        self.shape = shape
        self.kind_name = kind_name
        self.update = update

    @property
    def kind(self) -> Kind:
        """What is known of its kind."""
        return KINDS[self.kind_name]

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
        return self.kind.draw(rng, self.size or 0)


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
    return declare_array("normal", name, shape, dims, model)


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
    return declare_array("uniform", name, shape, dims, model)


def Stream(
    name: str, kind: Literal["uniform", "normal"] = "uniform", *, model: pm.Model | None = None
) -> TensorSharedVariable:
    """Declare an endless sequence of random numbers, for an estimator that draws as it goes.

    A stream is an argument of a function made by :func:`pymc_apm.black_box`, and of one call alone.
    The function receives an object with the drawing methods of ``numpy.random.Generator``, so that
    code written for a generator works as it is. Numbers come into being as they are asked for, and
    the chain keeps those that the current estimate used. They are updated by slice sampling, which
    works best where the estimate changes little when all of the numbers change a little.

    Parameters
    ----------
    name : str
        Its name, unique in the model.
    kind : {"uniform", "normal"}
        What the sequence is made of. All methods work with both; choose the one that the function
        draws most.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorSharedVariable

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> def log_estimate(theta, rng):
    ...     noise = rng.normal(size=rng.integers(1, 10))
    ...     return -0.5 * theta**2 + np.sum(noise) - noise.size / 2
    >>> with pm.Model():
    ...     theta = pm.Flat("theta")
    ...     log_lik = apm.black_box(log_estimate)(theta, apm.Stream("u", kind="normal"))
    ...     term = apm.Potential("log_lik", log_lik)
    """
    if kind not in ("uniform", "normal"):
        raise ModelError(f'kind of apm.Stream must be "uniform" or "normal", got {kind!r}.')
    return _declare(f"{kind} stream", name, (None,), None, pm.modelcontext(model))


def Seed(name: str, *, model: pm.Model | None = None) -> TensorSharedVariable:
    """Declare the seed of a generator, for an estimator whose code cannot be changed at all.

    A seed is an argument of a function made by :func:`pymc_apm.black_box`. The function receives a
    real ``numpy.random.Generator`` made from it: with the same seed, the same estimate. As nothing
    is known of how the estimate depends on the seed, the one way to update it is to propose a fresh
    one, which works well where the noise of the log-estimate is not much larger than 1.

    Parameters
    ----------
    name : str
        Its name, unique in the model.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorSharedVariable

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> @apm.black_box
    ... def log_estimate(theta, rng):
    ...     return -0.5 * theta**2 + rng.normal(-0.5, 1.0)
    >>> with pm.Model():
    ...     theta = pm.Flat("theta")
    ...     term = apm.Potential("log_lik", log_estimate(theta, apm.Seed("seed")))
    """
    return _declare("seed", name, (1,), None, pm.modelcontext(model))


def declare_array(
    kind: str,
    name: str,
    shape: int | Sequence[int] | None,
    dims: str | Sequence[str] | None,
    model: pm.Model | None,
    update: str = "slice",
) -> TensorSharedVariable:
    """Declare randomness of fixed shape, of some kind, with the update that suits it."""
    model = pm.modelcontext(model)
    dims = (dims,) if isinstance(dims, str) else dims
    return _declare(kind, name, _resolve_shape(name, shape, dims, model), dims, model, update)


def _declare(
    kind: str,
    name: str,
    shape: tuple[int | None, ...],
    dims: Sequence[str] | None,
    model: pm.Model,
    update: str = "slice",
) -> TensorSharedVariable:
    randomness = Randomness(model.name_for(name), shape, kind, update)
    if randomness.name.startswith(":"):
        raise ModelError(
            "The name of randomness must not begin with a colon, as names of inputs that hold "
            f"parameters do, but it is {randomness.name!r}."
        )
    # Any value will do until a chain starts and draws its own; this one is the same every time.
    u = randomness.draw(np.random.default_rng(zlib.crc32(randomness.name.encode())))
    variable = pytensor.shared(randomness.as_array(u), name=randomness.name, shape=shape)
    variable.tag.apm_randomness = randomness
    model.add_named_variable(variable, dims=dims)
    model.data_vars.append(variable)
    return variable


def _resolve_shape(
    name: str,
    shape: int | Sequence[int] | None,
    dims: Sequence[str] | None,
    model: pm.Model,
) -> tuple[int, ...]:
    if shape is not None:
        try:
            shape = tuple(operator.index(length) for length in np.atleast_1d(np.asarray(shape)))
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"The shape of {name!r} must be made of integers, got {shape!r}: randomness has a "
                "fixed shape."
            ) from error
        if min(shape, default=0) < 0:
            raise ModelError(f"The shape of {name!r} has a negative length: {shape}.")
    if dims is None:
        return () if shape is None else shape
    unknown = [str(dim) for dim in dims if dim not in model.dim_lengths]
    if unknown:
        raise ModelError(
            f"{name!r} has dimensions that the model does not know: {', '.join(unknown)}. "
            "Give them to pm.Model(coords=...) or model.add_coord first."
        )
    lengths = tuple(int(model.dim_lengths[dim].eval()) for dim in dims)
    if shape is not None and shape != lengths:
        raise ModelError(f"{name!r} has shape {shape}, but its dims {tuple(dims)} make {lengths}.")
    return lengths


def randomness_of(variable: Variable) -> Randomness | None:
    """Return what is known of a variable as randomness, if it is any."""
    return getattr(variable.tag, "apm_randomness", None)


def randomness_in(outputs: Iterable[Variable]) -> list[SharedVariable]:
    """Return the declared randomness among the ancestors of some variables, each once."""
    found = {variable for variable in ancestors(list(outputs)) if randomness_of(variable)}
    return sorted(found, key=lambda variable: variable.name)
