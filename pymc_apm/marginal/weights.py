"""The weights of one draw of the latent variables, as a graph.

With a draw x of the latent variables that is made from random numbers u, the weight is
p(y | x, theta) where x is drawn from its distribution in the model, and p(y | x, theta)
p(x | theta) / q(x | theta) where it is drawn from another one, q. It is a product of *terms*, one
for each observation and so on, whose logs are the elements of arrays here. Which of them belong
together is found from this graph, see :mod:`pymc_apm.marginal.structure`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.basic import conditional_logp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.marginal.draws import Maker, maker_of
from pymc_apm.marginal.split import Split
from pymc_apm.marginal.validity import checked_by_element, unchecked

__all__ = ["Weights", "weights_of"]


class Weights(NamedTuple):
    """The graph of one draw and its weight.

    Attributes
    ----------
    makers : dict
        How each latent variable is made.
    u : dict
        The random numbers of each latent variable, inputs of the graph.
    latents : dict
        The draws.
    terms : dict
        The logs of terms of the weight, arrays.
    is_valid : TensorVariable or None
        Whether parameters of the latent variables are what they may be, as far as this depends on
        no latent variable; where they are not, the density of the model is zero.
    """

    makers: dict[str, Maker]
    u: dict[str, TensorVariable]
    latents: dict[str, TensorVariable]
    terms: dict[str, TensorVariable]
    is_valid: TensorVariable | None

    @property
    def size(self) -> int:
        """How many random numbers there are."""
        return sum(math.prod(u.type.shape) for u in self.u.values())

    def replaced(self, replacements: dict[Variable, Variable]) -> "Weights":
        """Return the same with other variables in place of some."""
        valid = [] if self.is_valid is None else [self.is_valid]
        graphs = [*self.latents.values(), *self.terms.values(), *valid]
        found = iter(graph_replace(graphs, replacements, strict=False))
        return self._replace(
            latents={name: next(found) for name in self.latents},
            terms={name: next(found) for name in self.terms},
            is_valid=next(found, None),
        )

    def at(self, u: Sequence[TensorVariable]) -> tuple[list[TensorVariable], list[TensorVariable]]:
        """Return draws and terms for many draws, which are along the first axis of each u."""
        graphs = [*self.latents.values(), *self.terms.values()]
        replacements = dict(zip(self.u.values(), u, strict=True))
        try:
            found = vectorize_graph(graphs, replace=replacements)
        except NotImplementedError as error:
            raise ModelError(
                f"PyTensor cannot compute what depends on {', '.join(self.latents)} for many draws "
                f"at once: {error}"
            ) from error
        # What depends on no random numbers is the same for all draws.
        found = [
            new if new.type.ndim > old.type.ndim else pt.shape_padleft(new)
            for new, old in zip(found, graphs, strict=True)
        ]
        return found[: len(self.latents)], found[len(self.latents) :]


def weights_of(parts: Split) -> Weights:
    """Build the graph of one draw and its weight."""
    for name, rv in parts.latents.items():
        maker_of(name, parts.proposals.get(name, rv))  # or say what cannot be made
    values = {
        name: pt.tensor(name, dtype=rv.type.dtype, shape=_shape_of(name, rv))
        for name, rv in parts.latents.items()
    }
    log_prior, terms = _log_densities(parts, values)
    makers: dict[str, Maker] = {}
    u: dict[str, TensorVariable] = {}
    made: dict[Variable, TensorVariable] = {}
    is_valid = []
    for name, value in values.items():
        shape = value.type.shape
        earlier = {other: values[other] for other in makers}
        # Their parameters may depend on latent variables that have been made before.
        rv, source = (
            clone_replace(variable, _by_rv(parts, earlier), rebuild_strict=False)
            for variable in (parts.latents[name], parts.proposals.get(name, parts.latents[name]))
        )
        makers[name] = maker_of(name, source)
        u[name] = pt.tensor(f"{name}_u", dtype="float64", shape=shape)
        drawn = unchecked(makers[name].make(source, u[name]))
        if name in parts.proposals:
            _check_proposal(name, rv, source)
            drawn = _checked_proposal(name, drawn, makers[name].is_valid(source, shape))
            terms[name] = log_prior[name] - pm.logp(source, value)
        else:
            check = makers[name].is_valid(rv, shape)
            if set(values.values()).isdisjoint(ancestors([check])):
                is_valid.append(pt.all(check))
            else:
                terms[name + VALID] = pt.switch(check, 0.0, -np.inf)
        drawn = graph_replace([drawn], made, strict=False)[0] if made else drawn
        made[value] = pt.specify_shape(drawn.astype(value.type.dtype), shape)
    _check_noise(terms)
    checked = checked_by_element(list(terms.values()), values.values())
    found = graph_replace(checked, made, strict=False)
    return Weights(
        makers,
        u,
        dict(zip(values, made.values(), strict=True)),
        dict(zip(terms, found, strict=True)),
        pt.all(pt.stack(is_valid)) if is_valid else None,
    )


def _check_noise(terms: dict[str, TensorVariable]) -> None:
    for name, term in terms.items():
        for variable in ancestors([term]):
            inputs = variable.owner.inputs if variable.owner else []
            if any(isinstance(source.type, RandomType) for source in inputs):
                raise ModelError(
                    f"{name} depends on random draws that are no variable of the model: "
                    f"{variable.name or variable.owner.op}. (pm.Minibatch makes such draws.) The "
                    "likelihood would differ each time that it is computed."
                )


def _by_rv(parts: Split, values: dict[str, TensorVariable]) -> dict[Variable, Variable]:
    return {parts.latents[name]: value for name, value in values.items()}


def _log_densities(
    parts: Split, values: dict[str, TensorVariable]
) -> tuple[dict[str, TensorVariable], dict[str, TensorVariable]]:
    """Return the log densities of latent variables at some values, and those of all else."""
    stand_ins = {name: value.type() for name, (_, value) in parts.observed.items()}
    pairs = _by_rv(parts, values)
    pairs |= {rv: stand_ins[name] for name, (rv, _) in parts.observed.items()}
    try:
        log_densities = list(conditional_logp(pairs, warn_rvs=False).values())
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"PyMC cannot compute the density of {', '.join([*values, *parts.observed])}: {error}"
        ) from error
    potentials = clone_replace(list(parts.potentials.values()), pairs, rebuild_strict=False)
    actual = {stand_ins[name]: value for name, (_, value) in parts.observed.items()}
    found = graph_replace([*log_densities, *potentials], actual, strict=False)
    n_latents = len(values)
    names = [*parts.observed, *parts.potentials]
    return (
        dict(zip(values, found[:n_latents], strict=True)),
        dict(zip(names, found[n_latents:], strict=True)),
    )


def _shape_of(name: str, rv: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a latent variable, which must not depend on parameters."""
    if None not in rv.type.shape:
        return tuple(rv.type.shape)
    try:
        return tuple(int(length) for length in rv.shape.eval())
    except Exception as error:
        raise ModelError(
            f"The shape of {name} is unknown. Give it as shape=... or dims=... ."
        ) from error


def _check_proposal(name: str, rv: TensorVariable, source: TensorVariable) -> None:
    if source.type.ndim != rv.type.ndim or source.owner.op.ndim_supp != rv.owner.op.ndim_supp:
        raise ModelError(
            f"The proposal of {name} must be for arrays of the same shape, but it has "
            f"{source.type.ndim} dimensions and {name} has {rv.type.ndim}."
        )
    if (source.type.dtype in DISCRETE) != (rv.type.dtype in DISCRETE):
        raise ModelError(
            f"The proposal of {name} must be discrete where {name} is, and continuous where it is."
        )


def _checked_proposal(
    name: str, drawn: TensorVariable, condition: TensorVariable
) -> TensorVariable:
    """Raise an error where a proposal has wrong parameters: its density would be divided by."""
    message = (
        f"The proposal of {name} has parameters that it may not have, for some values of the "
        "parameters of the model."
    )
    result: TensorVariable = CheckAndRaise(EstimatorError, message)(drawn, pt.all(condition))
    return result


VALID = " is valid"
"""What the name of a term ends with that is zero, or minus infinity where parameters are wrong."""

DISCRETE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
