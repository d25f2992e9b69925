"""The reference of an estimator: parameters in the middle of the posterior, fixed before sampling.

Some estimators are the better, the nearer the parameters are to a *reference* that never changes.
It may be anything without harm but to efficiency. If the user gives none, it is found by a search
for the mode of an approximate posterior, on the unconstrained scale on which PyMC samples.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.mode import get_mode
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.elemwise import Elemwise

from pymc_apm._compat import compile_function
from pymc_apm.density.layout import Layout
from pymc_apm.errors import ModelError, describe_value

_log = logging.getLogger("pymc.apm")

Position: TypeAlias = NDArray[np.float64]


@node_rewriter([Elemwise])
def _two_at_a_time(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Add or multiply two arrays at a time, which numpy does; PyTensor 2 takes number by number."""
    if not isinstance(node.op.scalar_op, Add | Mul) or len(node.inputs) < 3:
        return None
    return [functools.reduce(node.op, node.inputs)]


FAST: dict[str, Any] = {
    "mode": get_mode("FAST_COMPILE")
    .excluding("local_add_canonizer", "local_mul_canonizer")
    .register((in2out(_two_at_a_time, name="two_at_a_time"), 48.9))
}
"""For the compiler: a search calls these functions too seldom to compile them for real."""

POSITION_TOLERANCE = 0.1
"""How exact a line search is, in units of the unconstrained parameters."""

VALUE_TOLERANCE = 0.5
"""The gain in the log posterior below which a search ends."""

MAX_EVALUATIONS = 100
"""Of the log posterior in a search, for each parameter."""

IMPOSSIBLE = 1e15
"""The loss where there is no posterior; that it is finite helps the line searches."""


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
        self._random_variables = _random_variables(expressions, model)
        self._values = [model.rvs_to_values[rv] for rv in self._random_variables]
        given = _checked(reference or {}, self._random_variables)
        point = make_initial_point_fn(model=model, overrides=given)(None)
        self._layout = Layout(self._values, point)
        self.start = self._layout.ravel(point)
        self._expressions = self._compile(expressions)
        self._log_prior = (
            compile_function(self._values, [model.logp(vars=self._random_variables)], **FAST)
            if self._random_variables
            else lambda *_: [0.0]
        )

    def _compile(self, variables: Sequence[Variable]) -> Callable[..., list[NDArray[Any]]]:
        outputs = self._model.replace_rvs_by_values(variables)
        return compile_function(self._values, outputs, **FAST)

    def _point(self, position: Position) -> Iterable[NDArray[Any]]:
        return self._layout.unravel(position).values()

    def values(self, position: Position) -> list[NDArray[Any]]:
        """Return the values of the expressions."""
        return [np.asarray(value) for value in self._expressions(*self._point(position))]

    def log_prior(self, position: Position) -> float:
        """Return the log density of the prior, on the unconstrained scale."""
        return float(self._log_prior(*self._point(position))[0])

    def function(self, expressions: Sequence[Variable]) -> Callable[[Position], list[NDArray[Any]]]:
        """Return further expressions as a function of a position."""
        compiled = self._compile(expressions)
        return lambda position: [np.asarray(value) for value in compiled(*self._point(position))]

    def log_posterior(self, expression: Variable) -> Callable[[Position], tuple[float, Position]]:
        """Return the log density of the prior plus an expression, with its gradient.

        That with respect to a discrete parameter is zero.
        """
        (total,) = self._model.replace_rvs_by_values([expression])
        if self._random_variables:
            total = total + self._model.logp(vars=self._random_variables)
        moved = [value for value in self._values if value.type.dtype.startswith("float")]
        slopes = grad(total, moved, disconnected_inputs="ignore") if moved else []
        function = compile_function(self._values, [total, *slopes], **FAST)

        def evaluate(position: Position) -> tuple[float, Position]:
            value, *found = function(*self._point(position))
            gradient = dict(self._layout.unravel(np.zeros_like(position)))
            gradient |= {v.name: slope for v, slope in zip(moved, found, strict=True)}
            return float(value), self._layout.ravel(gradient)

        return evaluate

    def describe(self, position: Position) -> str:
        """Put the random variables of the model into words."""
        values = self._compile(self._random_variables)(*self._point(position))
        return ", ".join(
            f"{rv.name} = {describe_value(value)}"
            for rv, value in zip(self._random_variables, values, strict=True)
        )


def search(name: str, space: ParameterSpace, find_mode: Callable[[Position], Position]) -> Position:
    """Find the mode of an approximate posterior from where a chain would start, and report it.

    Parameters
    ----------
    name : str
        The name of the estimator, for the report.
    space : ParameterSpace
    find_mode : callable
        ``find_mode(start)`` returns the position of the mode.

    Returns
    -------
    ndarray
    """
    if space.start.size == 0:
        return space.start
    position = find_mode(space.start)
    _log.info("Reference of %s by a pilot estimate: %s", name, space.describe(position))
    return position


def maximise(log_posterior: Callable[[Position], float], start: Position) -> Position:
    """Maximise a function of a few parameters by line searches, without its gradient (Powell).

    They bear the noise of approximations that are not exact. What is not a finite number counts as
    minus infinity.
    """
    from scipy.optimize import minimize  # takes long to import, and is not always needed

    def loss(position: Position) -> float:
        value = log_posterior(position)
        return -value if math.isfinite(value) else IMPOSSIBLE

    result = minimize(
        loss,
        start,
        method="Powell",
        options={
            "xtol": POSITION_TOLERANCE,
            "ftol": VALUE_TOLERANCE / max(abs(loss(start)), 1.0),
            "maxfev": MAX_EVALUATIONS * start.size,
        },
    )
    return np.asarray(result.x)


def values_at(
    reference: Mapping[str, Any], expressions: Sequence[Variable], model: pm.Model
) -> list[NDArray[Any]]:
    """Return the values of expressions at a reference that the user gives.

    It is on the scale of the random variables, and may be one that the prior excludes. Random
    variables that it does not name have the values with which a chain would start.
    """
    random_variables = _random_variables(expressions, model)
    given = _checked(reference, random_variables)
    if len(given) < len(random_variables):
        start = make_initial_point_fn(model=model, return_transformed=False)(None)
        given = {rv: start[rv.name] for rv in random_variables} | given
    constants = {rv: rv.type.filter(value, allow_downcast=True) for rv, value in given.items()}
    replace = {rv: pt.constant(value) for rv, value in constants.items()}
    outputs = clone_replace(list(expressions), replace=replace, rebuild_strict=False)
    return [np.asarray(value) for value in compile_function([], outputs, **FAST)()]


def _random_variables(expressions: Sequence[Variable], model: pm.Model) -> list[Variable]:
    upstream = set(ancestors(expressions))
    return [rv for rv in model.free_RVs if rv in upstream]


def _checked(
    reference: Mapping[str, Any], random_variables: Sequence[Variable]
) -> dict[Variable, NDArray[Any]]:
    """Check a reference that the user gives, and return it by random variable."""
    known = {rv.name: rv for rv in random_variables}
    if not isinstance(reference, Mapping):
        raise ModelError(
            f"A reference must be a dict with values for {', '.join(known)}, got {reference!r}."
        )
    unknown = [name for name in reference if name not in known]
    if unknown:
        raise ModelError(
            f"The reference has values for {', '.join(map(str, unknown))}, but the parameters "
            f"that matter are {', '.join(known)}."
        )
    checked = {}
    for name, value in reference.items():
        array, rv = np.asarray(value), known[name]
        if array.ndim != rv.type.ndim or not np.isfinite(array).all():
            raise ModelError(
                f"The reference of {name} must be made of finite numbers and have {rv.type.ndim} "
                f"dimensions, got {value!r}."
            )
        checked[rv] = array
    return checked
