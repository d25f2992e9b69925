"""Finding out which parameters and which randomness of a model a step is to update."""

from collections.abc import Sequence
from typing import Any

import pymc as pm
from pymc.util import get_value_vars_from_user_vars
from pytensor.compile.sharedvalue import SharedVariable

from pymc_apm.errors import ModelError, see
from pymc_apm.kinds import AUTO


def continuous_or_all(vars: Any, model: pm.Model | None, step: str) -> list[Any]:
    """Resolve the variables of a step that takes continuous parameters alone.

    All continuous parameters if none are given; an error for a discrete one that is.
    """
    model = pm.modelcontext(model)
    if vars is None:
        if not model.continuous_value_vars:
            raise ModelError(
                f"The model has no continuous parameter, and {step} takes no others. Use "
                f"apm.APMMetropolis() or apm.PseudoMarginalMH(). {see('choosing')}"
            )
        return list(model.continuous_value_vars)
    variables = get_value_vars_from_user_vars(vars, model)
    discrete = [v.name for v in variables if v not in model.continuous_value_vars]
    if discrete:
        raise ModelError(
            f"{step} cannot update discrete parameters: {', '.join(discrete)}. Give them to "
            "apm.APMMetropolis, apm.PseudoMarginalMH or pm.Metropolis, and the continuous ones to "
            f"{step}, in a list of steps. {see('recipes')}"
        )
    return variables


def all_variables(vars: Any, model: pm.Model | None) -> list[Any]:
    """Resolve the variables of a step that takes any parameters; all of them if none are given."""
    model = pm.modelcontext(model)
    return list(model.value_vars) if vars is None else get_value_vars_from_user_vars(vars, model)


def choose_randomness(
    randomness: Sequence[SharedVariable], u: Any, kind: str | None, update: str, step: str
) -> list[SharedVariable]:
    """Find the randomness that a step is to update, among all that the model has."""
    chosen = _chosen_randomness(randomness, u, kind, step)
    for variable in chosen:
        known = variable.tag.apm_randomness.kind.updates
        if update not in (AUTO, *known):
            raise ModelError(
                f"{step} cannot update {variable.name} by {update!r}: for randomness of its kind "
                f"there is {', '.join(map(repr, known))}. Leave it to another step with u=[...]. "
                + see("recipes")
            )
    return chosen


def _chosen_randomness(
    randomness: Sequence[SharedVariable], u: Any, kind: str | None, step: str
) -> list[SharedVariable]:

    def fits(variable: SharedVariable) -> bool:
        return kind is None or variable.tag.apm_randomness.kind.made_of == kind

    if u is None:
        chosen = [variable for variable in randomness if fits(variable)]
        if not chosen:
            raise ModelError(
                f"{step} updates {kind} randomness, and the model has none: "
                + ", ".join(f"{v.name} is {v.tag.apm_randomness.kind.made_of}" for v in randomness)
                + "."
            )
        return chosen
    by_name = {variable.name: variable for variable in randomness}
    chosen = []
    if isinstance(u, list | tuple) and not u:
        raise ModelError(f"{step} was given an empty list of randomness to update.")
    for item in u if isinstance(u, list | tuple) else [u]:
        name = item if isinstance(item, str) else getattr(item, "name", None)
        if name not in by_name:
            raise ModelError(
                f"{step} was given {item!r}, which is not randomness of an estimator in the model. "
                f"There is: {', '.join(by_name)}."
            )
        if not fits(by_name[name]):
            raise ModelError(
                f"{step} updates {kind} randomness, but {name} is "
                f"{by_name[name].tag.apm_randomness.kind.made_of}."
            )
        chosen.append(by_name[name])
    return list(dict.fromkeys(chosen))
