"""When ``pm.sample()`` leaves the parameters of estimates to NUTS, with u clamped."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

from pymc_apm.claims import randomness_of_model
from pymc_apm.potential import feeds_potential
from pymc_apm.signs import signed_nodes
from pymc_apm.steps.recording import records_states
from pymc_apm.steps.slice import APMSlice
from pymc_apm.steps.u_only import APMEllipticalU, APMReflectiveU

logger = logging.getLogger("pymc.apm")

MANY = 25
"""The number of parameters from which NUTS has more effective draws per second.

A regression with 200 random intercepts and so many parameters, effective draws per second of the
slowest one or of its square, `APMSlice()` and NUTS: 20 parameters 116 to 174 and 94 to 141, 32
parameters 147 to 152 and 235 to 327, 62 parameters 28 to 40 and 158 to 189: two chains each, of a
trial. ``examples/defaults.py --only "32 parameters"`` has a model like it.
"""


def steps_beside_nuts(model: pm.Model, options: Mapping[str, Any]) -> list[Any]:
    """Return steps for the randomness of a model, if its parameters are to be updated by NUTS.

    They are if there are many of them, all continuous, and the log density has a gradient; unless
    there is a step among the options of ``pm.sample``, or they are about another one. PyMC then
    finds NUTS by itself.

    Parameters
    ----------
    model : Model
    options : dict
        The options that ``pm.sample`` was called with.
    """
    parameters = [rv for rv in model.free_RVs if feeds_potential(rv)]
    is_free = options.get("step") is None and APMSlice.name not in options
    is_chosen = is_free and _suits_nuts(model, parameters)
    for rv in parameters:
        rv.tag.apm_by_gradient = is_chosen
    if not is_chosen:
        return []
    kinds = {u.tag.apm_randomness.kind.made_of for u in randomness_of_model(model)}
    steps = {"normal": APMEllipticalU, "uniform": APMReflectiveU}
    logger.info(f"{', '.join(sorted(kinds))} u by slice sampling; parameters by NUTS.")
    return [steps[kind](model=model) for kind in sorted(kinds)]


def _suits_nuts(model: pm.Model, parameters: list[Any]) -> bool:
    randomness = randomness_of_model(model)
    if any(u.tag.apm_randomness.kind.needs_black_box for u in randomness):
        return False
    # The step that records signs, or states, has to be the last one.
    if signed_nodes(model.potentials) or records_states(model):
        return False
    values = [model.rvs_to_values[rv] for rv in parameters]
    if any(value not in model.continuous_value_vars for value in values):
        return False
    point = model.initial_point()
    if sum(np.size(point[value.name]) for value in values) < MANY:
        return False
    try:
        model.dlogp(parameters)
    except Exception:  # each op without a gradient says so in its own way
        return False
    return True
