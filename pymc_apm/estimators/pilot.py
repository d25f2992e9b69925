"""Looking at the parameters of a model before it is sampled, for a good reference value.

Some estimators are the better, the nearer the parameters are to a *reference* that is fixed once
and for all. It may be anything without harm but to efficiency. Where the user gives none, it is
found by a search for the mode of an approximate posterior, on the unconstrained scale on which PyMC
samples.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.initial_point import make_initial_point_fn
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_apm._compat import compile_function
from pymc_apm.errors import ModelError, describe_value
from pymc_apm.density.layout import Layout

FAST: dict[str, Any] = {"mode": "FAST_COMPILE"}
"""For the compiler: a search calls these functions too seldom to compile them for real."""


class ParameterSpace:
    """Some expressions of a model as functions of its unconstrained parameters, as one vector.

    Parameters
    ----------
    expressions : sequence of Variable
        Expressions of random variables of the model.
    model : Model
    reference : dict, optional
        Values of random variables, by name and on their own scale, to start from.

    Attributes
    ----------
    start : ndarray
        The position at which a chain would start, but for the reference.
    """

    def __init__(
        self,
        expressions: Sequence[Variable],
        model: pm.Model,
        reference: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        upstream = set(ancestors(expressions))
        self._random_variables = [rv for rv in model.free_RVs if rv in upstream]
        self._values = [model.rvs_to_values[rv] for rv in self._random_variables]
        point = self._point_of(reference) if reference else model.initial_point()
        self._layout = Layout(self._values, point)
        self.start = self._layout.ravel(point)
        self._expressions = self._compile(expressions)
        self._log_prior = (
            compile_function(self._values, [model.logp(vars=self._random_variables)], **FAST)
            if self._random_variables
            else lambda *_: [0.0]
        )

    def _point_of(self, reference: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        known = {rv.name: rv for rv in self._random_variables}
        unknown = [name for name in reference if name not in known]
        if unknown:
            raise ModelError(
                f"The reference has values for {', '.join(map(str, unknown))}, but the parameters "
                f"that matter are {', '.join(known)}."
            )
        overrides = {known[name]: np.asarray(value) for name, value in reference.items()}
        return make_initial_point_fn(model=self._model, overrides=overrides)(None)

    def _compile(self, variables: Sequence[Variable]) -> Callable[..., list[NDArray[Any]]]:
        outputs = self._model.replace_rvs_by_values(variables)
        return compile_function(self._values, outputs, **FAST)

    def _point(self, position: NDArray[np.float64]) -> Iterable[NDArray[Any]]:
        return self._layout.unravel(position).values()

    def values(self, position: NDArray[np.float64]) -> list[NDArray[Any]]:
        """Return the values of the expressions."""
        return [np.asarray(value) for value in self._expressions(*self._point(position))]

    def log_prior(self, position: NDArray[np.float64]) -> float:
        """Return the log density of the prior, on the unconstrained scale."""
        return float(self._log_prior(*self._point(position))[0])

    def describe(self, position: NDArray[np.float64]) -> str:
        """Put the random variables of the model into words."""
        values = self._compile(self._random_variables)(*self._point(position))
        return ", ".join(
            f"{rv.name} = {describe_value(value)}"
            for rv, value in zip(self._random_variables, values, strict=True)
        )


def maximise(
    log_density: Callable[[NDArray[np.float64]], float],
    start: NDArray[np.float64],
    tolerance: float = 1e-2,
    evaluations: int = 60,
) -> NDArray[np.float64]:
    """Maximise a function of a few parameters without its gradient.

    Parameters
    ----------
    log_density : callable
        What is not a finite number counts as minus infinity.
    start : ndarray
    tolerance : float
        Of the position and of the value.
    evaluations : int
        The largest number of evaluations, for each parameter and one more.

    Returns
    -------
    ndarray
    """
    from scipy.optimize import minimize  # takes long to import, and is not always needed

    def loss(position: NDArray[np.float64]) -> float:
        value = log_density(position)
        return -value if math.isfinite(value) else math.inf

    result = minimize(
        loss,
        start,
        method="Nelder-Mead",
        options={
            "initial_simplex": start + np.vstack((np.zeros(start.size), 0.3 * np.eye(start.size))),
            "xatol": tolerance,
            "fatol": tolerance,
            "maxfev": evaluations * (start.size + 1),
            "adaptive": True,
        },
    )
    return np.asarray(result.x)
