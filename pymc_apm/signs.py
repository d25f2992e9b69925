"""Estimates that may be negative: the chain samples their absolute value, and records the sign.

The sign of an estimate is part of the graph of a model, an input of an op that hands on the log of
the absolute value. So it goes with every copy of the model, and what it depends on, parameters and
randomness, is seen wherever the graph of the model is looked at.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.scalar.basic import Cast, Mul
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import with_gradient
from pymc_apm.errors import ModelError, see

__all__ = ["check_order", "signed_nodes", "with_sign", "without_signs"]


@with_gradient
class Signed(Op):
    """Hands on the log of the absolute value of an estimate, and remembers its sign."""

    __props__ = ()
    view_map = {0: [0]}  # noqa: RUF012  # as PyTensor has it

    def make_node(self, log_abs: Variable, sign: Variable) -> Apply:
        """Make a node of the graph."""
        return Apply(self, [log_abs, sign], [log_abs.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Hand on the first input."""
        outputs[0][0] = inputs[0]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Say that the sign has no gradient."""
        return [[True], [False]]

    def vector_jacobian(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        output_gradients: Sequence[Variable],
    ) -> list[Variable]:
        """Return the gradient of the log of the absolute value."""
        return [output_gradients[0], disconnected_type()]


@node_rewriter([Signed])
def _leave_out(fgraph: Any, node: Apply) -> list[Variable]:
    """Leave the sign out of what is compiled: whoever wants it takes it from the model."""
    return [node.inputs[0]]


# After the graph is in its canonical form, which models may be put into: they keep their signs.
optdb.register("apm_leave_out_signs", in2out(_leave_out), "fast_run", "fast_compile", position=1.1)


def with_sign(log_abs: TensorVariable, sign: TensorVariable) -> TensorVariable:
    """Return the log of the absolute value of an estimate, with its sign attached to it."""
    signed: TensorVariable = Signed()(log_abs, pt.cast(sign, "float64"))
    return signed


def signed_nodes(outputs: Iterable[Variable]) -> list[Apply]:
    """Return the nodes that have a sign among the ancestors of some variables."""
    nodes = [variable.owner for variable in ancestors(list(outputs)) if variable.owner]
    return list(dict.fromkeys(node for node in nodes if isinstance(node.op, Signed)))


def without_signs(outputs: Sequence[Variable]) -> list[Variable]:
    """Return variables that do not depend on signs; the graph is changed in place."""
    graph = FunctionGraph(list(graph_inputs(outputs)), list(outputs), clone=False)
    for node in signed_nodes(outputs):
        graph.replace(node.outputs[0], node.inputs[0])
    return list(graph.outputs)


def unmultiplied(sign: Variable) -> Variable:
    """Return a vector of signs whose product is that of the given ones, one for each factor."""
    while sign.owner and isinstance(sign.owner.op, Elemwise | CAReduce):
        op = sign.owner.op
        is_product = isinstance(op, CAReduce) and sign.type.ndim == 0
        if not isinstance(op.scalar_op, Mul if is_product else Cast):
            break
        (sign,) = sign.owner.inputs
    return pt.cast(sign, "float64").ravel()


def sign_parameters(model: pm.Model) -> list[Variable]:
    """Return the free random variables of a model that signs of estimates depend on."""
    signs = [node.inputs[1] for node in signed_nodes(model.potentials)]
    above = set(ancestors(signs))
    return [rv for rv in model.free_RVs if rv in above]


def check_order(model: pm.Model, steps: Sequence[Any], later: Iterable[Variable] = ()) -> None:
    """Check that the sign that is recorded of a draw is that of the draw.

    A step records the sign where it leaves the chain. If another one moves a parameter after it,
    what is recorded is the sign of a state that is not the draw.

    Parameters
    ----------
    model : Model
    steps : list
        The steps of a run, in their order.
    later : list of Variable
        Random variables that steps of PyMC will update after these.

    Raises
    ------
    ModelError
        If a parameter that a sign depends on is moved after the last step that records signs.
    """
    parameters = sign_parameters(model)
    moved = set(later)
    for step in reversed(steps):
        if "sign" in getattr(step, "stats_dtypes_shapes", {}):
            break
        values = set(getattr(step, "vars", ()))
        moved |= {rv for rv in parameters if model.rvs_to_values[rv] in values}
    late = [rv.name for rv in parameters if rv in moved]
    if late:
        raise ModelError(
            f"{', '.join(late)} would be updated after the last step of this package, which "
            "records the signs of the estimates, and what is recorded would not be the signs of "
            "the draws. Give a step for every parameter, and let one of this package be the last: "
            f"step=[pm.NUTS([{late[0]}]), apm.APMEllipticalU()]. {see('series')}"
        )
