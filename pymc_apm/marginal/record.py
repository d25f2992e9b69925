"""What a marginalised model remembers, for what comes after sampling."""

from typing import Any, NamedTuple

import pymc as pm
from pytensor.graph.basic import Variable

from pymc_apm.errors import ModelError
from pymc_apm.marginal.structure import Structure
from pymc_apm.marginal.weights import Weights

__all__ = ["Record", "record_of"]


class Record(NamedTuple):
    """How latent variables were integrated out of a model.

    It is attached to the potential, and goes with it when the model is copied. So variables are
    looked up by name.

    Attributes
    ----------
    ordinary : Model
        A copy of the model as it was.
    weights : Weights
        The graph of a draw and its weight, a function of the variables of the first copy.
    structure : Structure
    parameters : list of Variable
        The random variables in that graph.
    blocks : LatentDraws or None
        How draws of blocks are made, if the proposal is a Laplace approximation.
    observed, unobserved, deterministics : list of str
        What was observed, what was not although it depends on latent variables, and functions of
        them.
    """

    ordinary: pm.Model
    weights: Weights
    structure: Structure
    parameters: list[Variable]
    blocks: Any
    observed: list[str]
    unobserved: list[str]
    deterministics: list[str]


def record_of(model: pm.Model) -> Record:
    """Return what a model remembers of how it was made.

    Raises
    ------
    ModelError
        If it was not made by ``apm.marginalize``, or by several calls of it.
    """
    found = [
        term.tag.apm_marginal for term in model.potentials if hasattr(term.tag, "apm_marginal")
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelError(
            "The model was made by several calls of apm.marginalize. Name all latent variables in "
            "one call, so that what comes after sampling knows of all of them."
        )
    names = [term.name for term in model.potentials if hasattr(term.tag, "apm_latent")]
    hint = (
        f" For the estimator {names[0]!r} there is apm.estimators.sample_latent." if names else ""
    )
    raise ModelError(f"The model was not made by apm.marginalize.{hint}")
