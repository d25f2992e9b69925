"""A user's log-likelihood of a latent vector, as the pieces that an estimator is made of.

The user gives a function that maps a symbolic latent f to the vector of log p(y_i | f_i), and may
refer to parameters of the model in it. Its graph is cut where it stops to depend on f: what lies
beyond are the *inputs* of the likelihood, which an op can take as its own. What is left is a
function of f and of these inputs that can be differentiated, compiled and applied to many f at
once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs, io_toposort
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import compile_function
from pymc_apm.errors import ModelError, see

__all__ = ["Likelihood"]


class Likelihood:
    """The log-likelihood of each observation as a function of a latent array.

    Parameters
    ----------
    name : str
        The name of the estimator, for error messages.
    log_lik : callable
        Maps a latent variable to the vector of the log-likelihoods.
    shape : tuple of int
        The shape of the latent array.
    groups : ndarray of int, optional
        Which entry along the first axis of the latent array each observation depends on. Without
        it, observation i depends on entry i.

    Attributes
    ----------
    shape : tuple of int
    groups : ndarray of int or None
    inputs : list of Variable
        What the likelihood depends on beside the latent array, in the graph of the model.
    """

    def __init__(
        self,
        name: str,
        log_lik: Callable[[TensorVariable], Any],
        shape: tuple[int, ...],
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self.groups = groups
        self._latent = pt.tensor(f"{name}_latent", dtype="float64", shape=shape)
        self._log_lik = self._checked(log_lik)
        self.inputs = _boundary(self._log_lik, self._latent)
        self._functions: dict[str, Callable[..., list[NDArray[np.float64]]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Another process compiles its own.
        return self.__dict__ | {"_functions": {}}

    def _checked(self, log_lik: Callable[[TensorVariable], Any]) -> TensorVariable:
        if not callable(log_lik):
            raise ModelError(
                f"log_lik of {self.name!r} must be a function of the latent vector, got "
                f"{log_lik!r}."
            )
        result = pt.as_tensor_variable(log_lik(self._latent))
        size = self.shape[0] if self.groups is None else len(self.groups)
        if result.type.ndim != 1 or result.type.shape[0] not in (None, size):
            raise ModelError(
                f"log_lik of {self.name!r} must return a vector of {size} log-likelihoods, one for "
                f"each observation, but returned an array of shape {result.type.shape}. Do not sum "
                "it. " + see("latent_gaussian")
            )
        if self._latent not in set(ancestors([result])):
            raise ModelError(f"log_lik of {self.name!r} does not depend on the latent vector.")
        return result.astype("float64")

    def log_lik(self, latents: TensorVariable) -> TensorVariable:
        """Return the log-likelihoods at several latent arrays, which lie along the first axis.

        Shape (samples, observations), or (samples, groups) with those of a group added up.
        """
        (values,) = vectorize_graph([self._log_lik], replace={self._latent: latents})
        return (
            values if self.groups is None else _sums_of_groups(values, self.groups, self.shape[0])
        )

    def derivatives(
        self, latents: NDArray[np.float64], inputs: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute log-likelihoods at several latent arrays, and the gradient of their sum at each.

        Parameters
        ----------
        latents : ndarray
            Shape (several, *shape).
        inputs : sequence of ndarray
            The values of :attr:`inputs`.

        Returns
        -------
        log_lik : ndarray
            Shape (several, observations), or (several, groups).
        gradient : ndarray
            Shape (several, *shape).
        """
        values, gradient = self._compiled("derivatives")(latents, *inputs)
        return values, gradient

    def hessians(
        self, latent: NDArray[np.float64], inputs: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Compute, at one latent array of shape (groups, size), all that Newton's method wants.

        Returns
        -------
        log_lik : ndarray
            For each group.
        gradient : ndarray
            Shape (groups, size).
        hessian : ndarray
            Minus the second derivatives, shape (groups, size, size).
        """
        values, gradient, hessian = self._compiled("hessians")(latent, *inputs)
        return values, gradient, hessian

    def _compiled(self, name: str) -> Callable[..., list[NDArray[np.float64]]]:
        if name not in self._functions:
            build = self._build_derivatives if name == "derivatives" else self._build_hessians
            latent, outputs = build()
            placeholders = {variable: variable.type() for variable in self.inputs}
            outputs = clone_replace(outputs, replace=placeholders, rebuild_strict=False)
            self._functions[name] = compile_function([latent, *placeholders.values()], outputs)
        return self._functions[name]

    def _build_derivatives(self) -> tuple[Variable, list[Variable]]:
        latents = pt.tensor("latents", dtype="float64", shape=(None, *self.shape))
        (gradient,) = vectorize_graph(
            [pt.grad(self._log_lik.sum(), self._latent)], replace={self._latent: latents}
        )
        return latents, [self.log_lik(latents), gradient]

    def _build_hessians(self) -> tuple[Variable, list[Variable]]:
        gradient = pt.grad(self._log_lik.sum(), self._latent)
        columns = [
            -pt.grad(gradient[:, column].sum(), self._latent) for column in range(self.shape[1])
        ]
        log_lik = self.log_lik(self._latent[None])[0]
        return self._latent, [log_lik, gradient, pt.stack(columns, axis=-1)]

    def check_factorises(self, latent: NDArray[np.float64], inputs: Sequence[Any]) -> None:
        """Check that what belongs to one entry does not change when the other entries do."""
        # Any two entries differ in some bit of their index; either is changed without the other.
        index = np.arange(self.shape[0])
        bits = [index >> bit & 1 for bit in range(max(self.shape[0] - 1, 1).bit_length())]
        changed = np.array([kept == value for kept in bits for value in (0, 1)])
        moved = latent + 0.5 * changed.reshape(*changed.shape, *[1] * (latent.ndim - 1))
        latents = np.concatenate([latent[None], moved])
        if self.groups is None:
            values, gradients = self.derivatives(latents, inputs)
        else:  # which need the other function anyway, and to compile one takes longer than calls
            found_by_one = [self.hessians(one, inputs)[:2] for one in latents]
            values, gradients = (np.array(found) for found in zip(*found_by_one, strict=True))
        for found in (values, gradients):
            kept = np.where(changed.reshape(*changed.shape, *[1] * (found.ndim - 2)), 0.0, 1.0)
            if not np.allclose(kept * found[1:], kept * found[0], 1e-7, 1e-9, equal_nan=True):
                raise ModelError(
                    f"log_lik of {self.name!r} does not factorise: observation i may depend on "
                    f"entry {'i' if self.groups is None else 'groups[i]'} of the latent array "
                    "alone, but it changes when others do. " + see("latent_gaussian")
                )


def _boundary(output: Variable, variable: Variable) -> list[Variable]:
    """Return what a graph depends on beside a variable, as close to the variable as possible."""
    depends: dict[Variable, tuple[bool, bool]] = {}
    for node in io_toposort(list(graph_inputs([output])), [output]):
        sources = [depends.get(source, _of_input(source, variable)) for source in node.inputs]
        found = (any(latent for latent, _ in sources), any(other for _, other in sources))
        depends.update(dict.fromkeys(node.outputs, found))
    boundary: dict[Variable, None] = {}
    stack = [output]
    seen = set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        on_latent, on_others = depends.get(current, _of_input(current, variable))
        if not on_latent and on_others and isinstance(current.type, TensorType):
            boundary[current] = None
        elif current.owner is not None:
            stack.extend(current.owner.inputs)
    return list(boundary)


def _of_input(source: Variable, variable: Variable) -> tuple[bool, bool]:
    """Say of an input of a graph whether it is the latent variable, and whether it can vary."""
    return source is variable, source is not variable and not isinstance(source, Constant)


def _sums_of_groups(
    values: TensorVariable, groups: NDArray[np.int64], n_groups: int
) -> TensorVariable:
    """Add up (samples, observations) by group, to (samples, groups)."""
    if np.array_equal(groups, np.arange(n_groups)):
        return values
    n_samples = values.shape[0]
    offsets = pt.arange(n_samples)[:, None] * n_groups
    index = (offsets + groups[None, :]).ravel()
    flat = pt.inc_subtensor(pt.zeros(n_samples * n_groups)[index], values.ravel())
    return flat.reshape((n_samples, n_groups))
