"""From a user's estimator to a term of the model."""

from collections.abc import Sequence

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, walk
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_apm.black_box import BlackBox
from pymc_apm.claims import flags_in, guarded
from pymc_apm.errors import EstimatorError, ModelError, see
from pymc_apm.randomness import Randomness, randomness_in, randomness_of
from pymc_apm.signs import with_sign

__all__ = ["Potential", "feeds_potential"]


def Potential(
    name: str,
    log_estimate: TensorVariable,
    *,
    sign: TensorVariable | None = None,
    dims: str | Sequence[str] | None = None,
    factors: int | str | None = None,
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
    sign : TensorVariable, optional
        For estimates that may be negative: 1 or -1, or a vector with the sign of each factor, while
        ``log_estimate`` is the log of the *absolute value*. The chain samples with the absolute
        value, the product of all signs is recorded for each draw as the statistic ``sign``, and
        :func:`pymc_apm.signed` takes it into account. Averages that ignore it are wrong.
    dims : str or tuple of str, optional
        The name of the dimension of a vector.
    factors : int or str, optional
        For a vector whose estimator is a black box, or anything else of which the package cannot
        find out by itself which random numbers an entry depends on: the axis of the randomness, or
        the name of that dimension, that runs along the entries. Entry ``g`` must depend on no other
        numbers than those with index ``g`` there. This is checked where a chain starts.
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

    if sign is not None:
        log_estimate = with_sign(log_estimate, _checked_sign(name, sign, log_estimate))

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
    axes = [] if factors is None else _axes(name, log_estimate, randomness, factors, model)
    log_estimate = guarded(log_estimate, [u.name for u in randomness], axes)
    term = pm.Potential(name, log_estimate, dims=dims, model=model)
    if approximation is not None:
        term.tag.apm_approximation = _checked_approximation(name, approximation, model)
    return term


def _axes(
    name: str,
    log_estimate: TensorVariable,
    randomness: Sequence[Randomness],
    factors: int | str,
    model: pm.Model,
) -> list[int]:
    """Return the axis of each randomness that runs along the entries of a vector, as declared."""
    if log_estimate.type.ndim != 1:
        raise ModelError(
            f"factors={factors!r} of apm.Potential({name!r}) is for a vector with one log-estimate "
            "per independent factor, but it is a scalar."
        )
    axes = []
    for u in randomness:
        if u.kind.needs_black_box:
            raise ModelError(
                f"factors={factors!r} of apm.Potential({name!r}) has no meaning for {u.name}, "
                "which is no array: use apm.StandardNormal or apm.StandardUniform."
            )
        dims = model.named_vars_to_dims.get(u.name, ())
        try:
            axis = dims.index(factors) if isinstance(factors, str) else range(len(u.shape))[factors]
        except (ValueError, IndexError, TypeError) as error:
            raise ModelError(
                f"{u.name}, of shape {u.shape} and with the dims {tuple(dims)}, has no axis "
                f"{factors!r} along which apm.Potential({name!r}) could have factors."
            ) from error
        (length,) = log_estimate.type.shape
        if length not in (None, u.shape[axis]):
            raise ModelError(
                f"apm.Potential({name!r}) has {length} entries, but {u.name} has the length "
                f"{u.shape[axis]} along {factors!r}: there must be a part of it for each entry."
            )
        axes.append(axis)
    return axes


def approximations_in(model: pm.Model) -> list[TensorVariable | None]:
    """Return the approximation that comes with each potential of a model, if there is one.

    That of a potential in a copy of a model is still about the variables of the first, and of no
    use.
    """
    return [_approximation_of(term, model) for term in model.potentials]


def _approximation_of(term: TensorVariable, model: pm.Model) -> TensorVariable | None:
    approximation = getattr(term.tag, "apm_approximation", None)
    if approximation is None:
        return None
    own = set(model.basic_RVs)
    is_own = all(variable in own for variable in _random_sources([approximation], own))
    return approximation if is_own else None


def feeds_potential(rv: Variable) -> bool:
    """Say whether a random variable is a parameter of some estimator.

    It is told by a tag, because that is all that PyMC lets a step know that it asks for its
    competence. Tags go with the variables when a model is copied; :func:`tag_parameters` puts them
    right.
    """
    return getattr(rv.tag, "feeds_apm_potential", False)


def tag_parameters(model: pm.Model) -> None:
    """Tag those random variables of a model that are parameters of its estimators, and no others.

    In a copy they may have lost their tags, or lost the estimators.
    """
    has_estimates = bool(flags_in(model.potentials))
    estimates = [term for term in model.potentials if has_estimates and flags_in([term])]
    parameters = _random_sources(estimates, set(model.basic_RVs))
    for rv in model.free_RVs:
        if feeds_potential(rv) != (rv in parameters):
            rv.tag.feeds_apm_potential = rv in parameters


def _random_sources(outputs: Sequence[Variable], rvs: set[Variable]) -> set[Variable]:
    """Return the random variables that others are functions of.

    The walk back stops at known ones; others are found as what takes the state of a generator.
    """
    found = set()
    for variable in walk(outputs, lambda v: None if v in rvs else v.owner and v.owner.inputs):
        node = variable.owner
        if variable in rvs or (node and any(isinstance(v.type, RandomType) for v in node.inputs)):
            found.add(variable)
    return found


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


def _checked_sign(name: str, sign: TensorVariable, log_abs: TensorVariable) -> TensorVariable:
    """Check that there is a sign for each estimate, now or, where lengths are not known, later."""
    sign = pt.as_tensor_variable(sign)
    if sign.type.dtype.startswith(("bool", "uint", "complex")):
        raise ModelError(
            f"The sign of apm.Potential({name!r}) must be 1 or -1, but its dtype is "
            f"{sign.type.dtype}: use pm.math.switch(is_negative, -1.0, 1.0)."
        )
    wrong = (
        f"apm.Potential({name!r}) must have one sign for each log-estimate, but their shapes differ"
    )
    if sign.type.ndim != log_abs.type.ndim:
        raise ModelError(f"{wrong}: {sign.type.shape} and {log_abs.type.shape}.")
    for length, wanted in zip(sign.type.shape, log_abs.type.shape, strict=True):
        if length is None or wanted is None:
            check = CheckAndRaise(EstimatorError, f"{wrong}.")
            sign = check(sign, pt.eq(sign.shape[0], log_abs.shape[0]))
        elif length != wanted:
            raise ModelError(f"{wrong}: {sign.type.shape} and {log_abs.type.shape}.")
    return sign


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
