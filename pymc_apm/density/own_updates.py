"""Estimators that know how to refresh their own u, found in the graph of a log density.

An op can bring an update of u along, such as conditional SMC does for a particle filter. It says so
by three attributes and a method,

    can_refresh       whether it can
    u_input           which of its inputs is u
    n_refresh_evals   what that costs, in estimates
    refresh(rng, *values_of_inputs) -> new u, or None if u is to stay as it is

and has to leave ``f_hat(theta; u) q(u)`` invariant, where the log of ``f_hat`` is the sum of its
output. So such an update is right if the op's output, as it is, is the one term of the log density
that depends on u, and u comes to it as it is. That is checked here; where it is not so, u is
updated as any other. As the op is part of the graph, copies of a model have its update too.
"""

from collections.abc import Mapping, Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.shape import Reshape


def find_own_updates(terms: Sequence[Variable], inputs: Mapping[str, Variable]) -> dict[str, Apply]:
    """Find the ops that can refresh an input of a log density by themselves.

    Parameters
    ----------
    terms : sequence of Variable
        The terms of the log density, as functions of its inputs.
    inputs : dict
        Vectors, by name.

    Returns
    -------
    dict
        For each input that can be updated so, the node of the op.
    """
    found = {}
    above = [set(ancestors([term])) for term in terms]
    for name, u in inputs.items():
        own = [term for term, variables in zip(terms, above, strict=True) if u in variables]
        if len(own) == 1:
            node = _node_of(own[0], u)
            if node is not None:
                found[name] = node
    return found


def _node_of(term: Variable, u: Variable) -> Apply | None:
    """Return the op that a term is the output of, if it can refresh u and takes it as it is."""
    while term.owner is not None and isinstance(term.owner.op, CheckAndRaise):
        term = term.owner.inputs[0]
    node = term.owner
    if node is None or not getattr(node.op, "can_refresh", False):
        return None
    place = node.op.u_input
    own, others = node.inputs[place], [*node.inputs[:place], *node.inputs[place + 1 :]]
    while own.owner is not None and isinstance(own.owner.op, Reshape):
        own = own.owner.inputs[0]
    return node if own is u and u not in set(ancestors(others)) else None
