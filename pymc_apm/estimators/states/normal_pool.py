"""The pool estimator where the transition is normal: an op that needs no graph inside.

A normal transition whose standard deviation, or covariance, does not depend on the state before is
a standard normal one after all points are divided by it. What points and means become is made by
PyTensor, point by point, and its gradient too; the op adds up over pairs of points.
"""

import hashlib
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, grad_undefined
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.link.numba.dispatch import basic as numba_dispatch
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import LogNormalRV, MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import with_gradient
from pymc_apm.estimators.states import forward, normal_forward
from pymc_apm.estimators.states.parts import LOG_2_PI, Part, vectorise
from pymc_apm.estimators.states.specification import Specification, attached


class Whitened(NamedTuple):
    """A transition as a standard normal one.

    Attributes
    ----------
    where, centre : list of TensorVariable
        Where a state is, and its mean given the state before: the numbers that they are made of.
    log_factor : TensorVariable
        The log of what to multiply ``exp(-0.5 * sum((where - centre)**2))`` by.
    """

    where: list[TensorVariable]
    centre: list[TensorVariable]
    log_factor: TensorVariable


class Transitions(NamedTuple):
    """All transitions between the points of a pool.

    Attributes
    ----------
    where, centres : TensorVariable
        Where the points of a row are, and the means given those of the row before: (rows, numbers
        of a state, points).
    log_factor : TensorVariable
        (rows, points); 0 in the first row of a series.
    """

    where: TensorVariable
    centres: TensorVariable
    log_factor: TensorVariable


def normal_transitions(specification: Specification, points: TensorVariable) -> Transitions | None:
    """Return the transitions between ``points``; None if they are not of this kind.

    Points are of shape (rows, points, numbers of a state).
    """
    part, rows = specification.transition, specification.rows
    values = {
        state.name: pt.tensor(f"{state.name}_now", dtype="float64", shape=state.shape)
        for state in specification.states
        if not state.is_discrete
    }
    white = _whitened(specification, part, values)
    if white is None:
        return None
    # The first row of a series takes its own points for those before; no use is made of it there.
    before = points[np.arange(len(rows)) - ~rows.is_first]
    names = [state.name for state in specification.states]
    arguments = {name: symbol for name, symbol in part.arguments.items() if name not in names}
    replace = specification.batch_of_rows(arguments, slice(None), 1)
    replace |= {values[name]: batch for name, batch in specification.split(points).items()}
    for name, batch in specification.split(before).items():
        if name in part.arguments:
            replace[part.arguments[name]] = batch
    shape = points.type.shape[:2]
    columns = [white.log_factor, *white.where, *white.centre]
    made = attached(vectorise(columns, replace), part.closure)
    log_factor, *made = [pt.broadcast_to(column, shape) for column in made]
    log_factor = pt.switch(rows.is_first[:, None], 0.0, log_factor)
    where, centre = made[: len(white.where)], made[len(white.where) :]
    return Transitions(pt.stack(where, axis=1), pt.stack(centre, axis=1), log_factor)


def _whitened(
    specification: Specification, part: Part, values: dict[str, TensorVariable]
) -> Whitened | None:
    """Return one transition of all states to ``values``; None if it is not of this kind."""
    draws = set(part.draws)
    previous = {part.arguments[s.name] for s in specification.states if s.name in part.arguments}
    where: list[TensorVariable] = []
    centre: list[TensorVariable] = []
    log_factor = pt.constant(0.0)
    for state in specification.states:
        result, shift = part.results[state.name], []
        if result not in draws and _is_sum(result):
            terms = result.owner.inputs
            shift = [term for term in terms if term not in draws]
            if len(terms) - len(shift) != 1 or draws & set(ancestors(shift)):
                return None
            (result,) = [term for term in terms if term in draws]
        if result not in draws or state.name not in values or result.type.shape != state.shape:
            return None
        if draws & (set(ancestors([result])) - {result}):
            return None
        op, value = result.owner.op, values[state.name]
        if not isinstance(op, NormalRV | LogNormalRV | MvNormalRV) or len(draws) != len(values):
            return None
        if isinstance(op, MvNormalRV) and len(state.shape) != 1:
            return None
        mean, spread = op.dist_params(result.owner)
        if previous & set(ancestors([spread])):
            return None
        means = [_element(sum(shift, mean), k) for k in range(state.size)]
        numbers = [_element(value, k) for k in range(state.size)]
        if isinstance(op, LogNormalRV):
            if shift:
                return None
            for k, number in enumerate(numbers):
                is_inside = number > 0.0
                numbers[k] = pt.log(pt.switch(is_inside, number, 1.0))
                log_factor += pt.switch(is_inside, -numbers[k], -np.inf)
        if isinstance(op, MvNormalRV):
            chol = pt.linalg.cholesky(spread, lower=True, on_error="nan")
            is_positive = pt.all(pt.diagonal(chol) > 0.0)
            chol = pt.switch(is_positive, chol, pt.eye(state.size))
            root = pt.linalg.solve_triangular(chol, pt.eye(state.size), lower=True)
            for k in range(state.size):
                where.append(sum(root[k, i] * numbers[i] for i in range(k + 1)))
                centre.append(sum(root[k, i] * means[i] for i in range(k + 1)))
                log_factor += pt.switch(is_positive, pt.log(root[k, k]), -np.inf)
        else:
            for k in range(state.size):
                sd = _element(spread, k)
                is_positive = sd > 0.0
                sd = pt.switch(is_positive, sd, 1.0)
                where.append(numbers[k] / sd)
                centre.append(means[k] / sd)
                # Where a parameter is none, the density is zero.
                log_factor += pt.switch(is_positive, -pt.log(sd), -np.inf)
    log_factor -= 0.5 * len(where) * LOG_2_PI
    return Whitened(where, centre, log_factor)


def _element(variable: Any, place: int) -> TensorVariable:
    """Return one of the numbers that a state, or a parameter of its distribution, is made of."""
    variable = pt.as_tensor_variable(variable)
    if variable.type.ndim == 0:
        return variable
    return variable[0 if variable.type.shape[-1] == 1 else place]


def _is_sum(variable: TensorVariable) -> bool:
    op = variable.owner.op if variable.owner else None
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, Add)


@with_gradient
class NormalPool(Op):
    """The log-estimate of each series by the forward recursion, and the logs of its weights."""

    __props__ = ()
    is_compiled = True
    """To compile a chain saves little: most of the time is spent in here, and that is compiled."""

    def make_node(
        self,
        log_w: Variable,
        where: Variable,
        is_first: Variable,
        series: Variable,
        centres: Variable,
        points: Variable,
    ) -> Apply:
        """Make a node; ``points`` say what there is no gradient by."""
        log_w = pt.as_tensor_variable(log_w).astype("float64")
        outputs = [pt.dvector("estimates"), log_w.type("log_alpha")]
        return Apply(self, [log_w, where, is_first, series, centres, points], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Run the forward recursion."""
        log_w, where, is_first, series, centres, _ = map(np.ascontiguousarray, inputs)
        log_alpha, scale = np.empty_like(log_w), np.empty(len(log_w))
        normal_forward.normal_forward(log_w, where, centres, is_first, log_alpha, scale)
        outputs[0][0] = forward.totals(log_alpha, scale, is_first, series)
        outputs[1][0] = log_alpha

    def transitions(self, start: int, stop: int, where: Any, centres: Any, points: Any) -> Any:
        """Return the log densities of transitions to some rows, with the points before first."""
        z = where[start:stop, :, None, :] - centres[start:stop, :, :, None]
        return -0.5 * np.sum(z**2, axis=1)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that there is a gradient of the estimates alone."""
        return [[is_float, False] for is_float in (True, True, False, False, True, True)]

    def vector_jacobian(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], gradients: Sequence[Variable]
    ) -> list[Variable]:
        """Return the gradient, by one op for all inputs."""
        gamma, of_where, of_centres = NormalPoolGradient()(gradients[0], outputs[1], *inputs[:5])
        none = DisconnectedType()
        undefined = grad_undefined(self, 5, inputs[5])
        return [gamma, of_where, none(), none(), of_centres, undefined]


class NormalPoolGradient(Op):
    """The gradient of the sum of weighted log-estimates."""

    __props__ = ()

    def make_node(self, weight: Variable, log_alpha: Variable, *others: Variable) -> Apply:
        """Make a node: the weight of each series, ``log_alpha``, and the inputs of a pool."""
        weight = pt.as_tensor_variable(weight).astype("float64")
        outputs = [log_alpha.type("gamma"), others[1].type(), others[4].type()]
        return Apply(self, [weight, log_alpha, *others], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Run the backward recursion."""
        weight, log_alpha, log_w, where, is_first, series, centres = map(
            np.ascontiguousarray, inputs
        )
        made = [np.zeros_like(log_w), np.zeros_like(where), np.zeros_like(centres)]
        normal_forward.normal_backward(
            log_w, where, centres, is_first, log_alpha, weight[series], *made
        )
        for storage, value in zip(outputs, made, strict=True):
            storage[0] = value


def _cache_key(name: str) -> str:
    sources = [inspect.getsource(module) for module in (forward, normal_forward)]
    return hashlib.sha256(repr((name, *sources)).encode()).hexdigest()


@numba_dispatch.register_funcify_and_cache_key(NormalPool)
def _compile_pool(op: NormalPool, node: Apply | None = None, **kwargs: Any) -> Any:
    run, totals = normal_forward.normal_forward, forward.totals

    @numba_dispatch.numba_njit
    def pool(log_w: Any, where: Any, is_first: Any, series: Any, centres: Any, points: Any) -> Any:
        log_w, where = np.ascontiguousarray(log_w), np.ascontiguousarray(where)
        log_alpha, scale = np.empty(log_w.shape), np.empty(len(log_w))
        run(log_w, where, np.ascontiguousarray(centres), is_first, log_alpha, scale)
        return totals(log_alpha, scale, is_first, series), log_alpha

    return pool, _cache_key("NormalPool")


@numba_dispatch.register_funcify_and_cache_key(NormalPoolGradient)
def _compile_gradient(op: NormalPoolGradient, node: Apply | None = None, **kwargs: Any) -> Any:
    run = normal_forward.normal_backward

    @numba_dispatch.numba_njit
    def gradient(
        of_series: Any,
        log_alpha: Any,
        log_w: Any,
        where: Any,
        is_first: Any,
        series: Any,
        centres: Any,
    ) -> Any:
        log_w, where = np.ascontiguousarray(log_w), np.ascontiguousarray(where)
        log_alpha, centres = np.ascontiguousarray(log_alpha), np.ascontiguousarray(centres)
        weight = np.empty(len(log_w))
        for row in range(len(log_w)):
            weight[row] = of_series[series[row]]
        gamma, of_where, of_centres = (
            np.zeros(log_w.shape),
            np.zeros(where.shape),
            np.zeros(centres.shape),
        )
        run(log_w, where, centres, is_first, log_alpha, weight, gamma, of_where, of_centres)
        return gamma, of_where, of_centres

    return gradient, _cache_key("NormalPoolGradient")
