"""Graphs for the copies of a model that ``pm.do``, ``clone_model`` and pickling make."""

from collections.abc import Collection, Sequence

import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pymc_apm.errors import ModelError


def in_model(
    variables: Sequence[Variable], model: pm.Model, own: Collection[Variable] = ()
) -> list[Variable]:
    """Return graphs with the variables of a model in the place of those of the same names.

    Parameters
    ----------
    variables : sequence of Variable
        Functions of variables of a model.
    model : Model
        That one, or a copy of it, in which some may be data now.
    own : collection of Variable
        Symbols that stay as they are, whatever they are called.
    """
    named = model.root.named_vars
    replace: dict[Variable, Variable] = {}
    seen, stack = set(own), list(variables)
    while stack:  # what is above a variable that has its like there is of no account
        variable = stack.pop()
        if variable in seen:
            continue
        seen.add(variable)
        like = named.get(variable.name)
        if like is not None and variable.type.in_same_class(like.type):
            replace[variable] = like
        elif variable.owner is not None:
            stack.extend(variable.owner.inputs)
    replace = {variable: like for variable, like in replace.items() if variable is not like}
    # clone_replace would copy variables of the model, which were then no longer those of the model.
    return list(graph_replace(list(variables), replace=replace, strict=False))


def of_parameters(
    variables: Sequence[Variable], model: pm.Model, own: Collection[Variable], label: str
) -> list[Variable]:
    """Return graphs as functions of the parameters of a model, with what is observed as data.

    Parameters
    ----------
    variables, model, own
        As for :func:`in_model`.
    label : str
        What depends on them, for an error.
    """
    model = model.root
    seen = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    made = list(graph_replace(in_model(variables, model, own), replace=seen, strict=False))
    if any(isinstance(v.type, RandomType) for v in ancestors(made, model.free_RVs)):
        raise ModelError(
            f"{label} depends on random variables that the model at hand has not: give the model "
            "that was sampled, or a copy of it."
        )
    return made
