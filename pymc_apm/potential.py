"""From a user's estimator to a term of the model."""

from collections.abc import Sequence

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_apm.black_box import BlackBox
from pymc_apm.errors import ModelError, UnclaimedRandomnessError, see, unclaimed
from pymc_apm.randomness import randomness_in, randomness_of

__all__ = ["Potential", "feeds_potential"]


def Potential(
    name: str,
    log_estimate: TensorVariable,
    *,
    dims: str | Sequence[str] | None = None,
    approximation: TensorVariable | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add the log of an unbiased likelihood estimate to a model.

    The estimate must be a deterministic function of the model's parameters and of declared
    randomness u, and its mean over u must be the likelihood (or any factor of the posterior):
    unbiased on the natural scale, not on the log scale. The joint target of the chain is then
    ``p(theta) * exp(log_estimate(theta, u)) * q(u)``, whose marginal over u is the exact posterior
    of theta.

    Parameters
    ----------
    name : str
        The name of the term, unique in the model.
    log_estimate : TensorVariable
        A scalar, or a vector with one log-estimate for each of several independent factors, which
        are summed. ``-inf`` is an estimate of zero.
    dims : str or tuple of str, optional
        The name of the dimension of a vector.
    approximation : TensorVariable, optional
        A deterministic approximation of the log of what is estimated, a scalar. It never enters
        the target; ``PseudoMarginalMH(tune_on="approximation")`` tunes on it.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The term as it was added to the model.

    Raises
    ------
    ModelError
        If the estimate uses no declared randomness, has a random variable of its own inside, or is
        not a real scalar or vector.

    Examples
    --------
    An importance-sampling estimate, with eight draws, of the likelihood of one observation:

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     u = apm.StandardNormal("u", shape=8)
    ...     log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + u)), 3)
    ...     log_lik = apm.Potential("log_lik", pm.math.logsumexp(log_weights) - np.log(8))
    """
    model = pm.modelcontext(model)
    log_estimate = pt.as_tensor_variable(log_estimate)
    _check_type(name, log_estimate)

    parameters = _parameters_of(name, log_estimate, model)
    _check_sources(log_estimate, model)
    randomness = [variable.tag.apm_randomness for variable in randomness_in([log_estimate])]
    if not randomness:
        raise ModelError(
            f"apm.Potential({name!r}) uses no randomness declared with apm.StandardNormal, "
            "apm.StandardUniform, apm.Stream or apm.Seed. A log density without noise is a "
            "pm.Potential; an estimate must take its random numbers from declared randomness. "
            + see("estimators")
        )

    for parameter in parameters:
        parameter.tag.feeds_apm_potential = True
    for u in randomness:
        guard = CheckAndRaise(UnclaimedRandomnessError, unclaimed([u.name]))
        log_estimate = guard(log_estimate, u.is_claimed)
    term = pm.Potential(name, log_estimate, dims=dims, model=model)
    if approximation is not None:
        term.tag.apm_approximation = _checked_approximation(name, approximation, model)
    return term


def approximations_in(model: pm.Model) -> list[TensorVariable | None]:
    """Return the approximation that comes with each potential of a model, if there is one."""
    return [getattr(term.tag, "apm_approximation", None) for term in model.potentials]


def feeds_potential(rv: Variable) -> bool:
    """Say whether a random variable is a parameter of some estimator."""
    return getattr(rv.tag, "feeds_apm_potential", False)


def _checked_approximation(
    name: str, approximation: TensorVariable, model: pm.Model
) -> TensorVariable:
    approximation = pt.as_tensor_variable(approximation)
    _parameters_of(name, approximation, model)
    if approximation.type.ndim > 0 or randomness_in([approximation]):
        raise ModelError(
            f"The approximation of apm.Potential({name!r}) must be a scalar without randomness."
        )
    return approximation


def _check_type(name: str, log_estimate: TensorVariable) -> None:
    if log_estimate.type.dtype not in ("float32", "float64"):
        raise ModelError(
            f"apm.Potential({name!r}) must be a real floating point number, the log of an "
            f"estimate, but its dtype is {log_estimate.type.dtype}."
        )
    if log_estimate.type.ndim > 1:
        raise ModelError(
            f"apm.Potential({name!r}) must be a scalar, or a vector with one log-estimate per "
            f"independent factor, but it has {log_estimate.type.ndim} dimensions. Sum over factors "
            f"and average over importance samples (on the natural scale) first. {see('estimators')}"
        )


def _check_sources(log_estimate: TensorVariable, model: pm.Model) -> None:
    """Check that each stream and each seed is an argument of one black box, and of it alone."""
    consumers: dict[str, set[Apply]] = {}
    for variable in ancestors([*model.root.potentials, log_estimate]):
        for source in variable.owner.inputs if variable.owner else ():
            randomness = randomness_of(source)
            if randomness is None or not randomness.kind.needs_black_box:
                continue
            if not isinstance(variable.owner.op, BlackBox):
                raise ModelError(
                    f"{randomness.name} can only be an argument of a function made by "
                    f"apm.black_box, but {variable.owner.op} uses it. {see('estimators')}"
                )
            consumers.setdefault(randomness.name, set()).add(variable.owner)
    for source_name, nodes in consumers.items():
        if len(nodes) > 1:
            raise ModelError(
                f"{source_name} is used by {len(nodes)} black boxes: "
                f"{', '.join(sorted(str(node.op) for node in nodes))}. They would use the same "
                "random numbers, and the product of their estimates would not be unbiased. Declare "
                f"one stream or seed for each. {see('estimators')}"
            )


def _parameters_of(name: str, log_estimate: TensorVariable, model: pm.Model) -> list[Variable]:
    """Walk to the model's random variables; a random draw on the way is hidden noise."""
    model_rvs = set(model.root.basic_RVs)
    free_rvs = set(model.root.free_RVs)
    parameters = []
    seen = set()
    stack = [log_estimate]
    while stack:
        variable = stack.pop()
        if variable in seen:
            continue
        seen.add(variable)
        if variable in model_rvs:
            if variable in free_rvs:
                parameters.append(variable)
            continue
        if variable.owner is None:
            continue
        if any(isinstance(source.type, RandomType) for source in variable.owner.inputs):
            label = variable.name or str(variable.owner.op)
            raise ModelError(
                f"apm.Potential({name!r}) draws random numbers of its own: {label}. The estimate "
                "would differ each time that it is computed for the same parameters, and every "
                "step method would silently sample a wrong posterior. Make the draw a function of "
                "u = apm.StandardNormal(...) or u = apm.StandardUniform(...) instead. "
                + see("estimators")
            )
        stack.extend(variable.owner.inputs)
    return parameters
