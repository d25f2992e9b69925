"""Importance sampling: an unbiased estimate of an integral over latent variables.

With latent variables x, the likelihood of the parameters is p(y | theta), the integral over x of
p(y, x | theta). For any distribution q(x) that reaches wherever p(y, x | theta) is positive, and
samples x_1, ..., x_N of it,

    f_hat(theta; u) = 1/N sum over n of p(y, x_n | theta) / q(x_n),    x_n = x(u_n, theta) ~ q

has the mean p(y | theta): equation (2) of the paper. The random numbers u are those from which the
samples are made, and q may depend on theta. The noise of the estimate is that of the weights, the
ratios under the sum: it is small where q is close to the shape of p(y, x | theta) in x, and without
bound where q has lighter tails than that.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_apm.deprecated import once_positional
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.potential import Potential
from pymc_apm.randomness import StandardNormal, StandardUniform
from pymc_apm.validation import positive_integer

__all__ = ["importance", "log_mean_exp"]

LOG_2_PI = float(np.log(2.0 * np.pi))

Kind = Literal["normal", "uniform"]


@once_positional("axis")
def log_mean_exp(
    log_weights: TensorVariable, *, axis: int | Sequence[int] | None = 0
) -> TensorVariable:
    """Return the log of the mean of weights that are given by their logs.

    The mean of importance weights is an unbiased estimate; this is its log, as
    :func:`pymc_apm.Potential` takes it. Neither large nor small weights overflow. Weights of zero
    (``-inf``) are fine; if all are zero, the result is ``-inf`` and has the gradient zero.

    Parameters
    ----------
    log_weights : TensorVariable
        The logs of the weights.
    axis : int or tuple of int or None
        The axes to average over, all of them if None.

    Returns
    -------
    TensorVariable

    Examples
    --------
    >>> import numpy as np
    >>> import pymc_apm as apm
    >>> log_weights = np.array([[1000.0, -np.inf], [1000.0, -np.inf]])
    >>> apm.estimators.log_mean_exp(log_weights, axis=0).eval().tolist()
    [1000.0, -inf]
    """
    log_weights = pt.as_tensor_variable(log_weights)
    largest = disconnected_grad(pt.max(log_weights, axis=axis, keepdims=True))
    largest = pt.switch(pt.isinf(largest), 0.0, largest)
    mean = pt.mean(pt.exp(log_weights - largest), axis=axis, keepdims=True)
    # The inner switch keeps the gradient from being 0 / 0 where the outer one has no use for it.
    is_zero = pt.eq(mean, 0.0)
    result = pt.switch(is_zero, -np.inf, largest + pt.log(pt.switch(is_zero, 1.0, mean)))
    return pt.squeeze(result, axis=_all_axes(result) if axis is None else axis)


def importance(
    name: str,
    log_joint: Callable[[Any], TensorVariable],
    proposal: TensorVariable | Callable[[TensorVariable], tuple[Any, TensorVariable]],
    *,
    shape: int | Sequence[int] | None = None,
    kind: Kind | None = None,
    samples: int = 1,
    antithetic: bool = False,
    dims: str | Sequence[str] | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Integrate latent variables out of a model, by importance sampling with a proposal of yours.

    Declares the random numbers ``name + "_u"`` and adds the potential ``name``, the log of the mean
    of the importance weights ``p(y, x | theta) / q(x)``.

    You must guarantee that q is positive wherever ``p(y, x | theta)`` is, or the estimate is
    biased, and the posterior wrong. It should have heavier tails too, or once in a while a weight
    is so large that the chain sticks; and it should be near to ``p(x | y, theta)`` for every
    ``theta`` of the posterior, not for one alone. The samples must be a function of ``theta`` and
    of ``u`` alone, and the density ``log_q`` of a proposal that you write yourself complete,
    constants included where they depend on ``theta``.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    log_joint : callable
        ``log_joint(x)`` returns ``log p(y, x | theta)`` for samples ``x`` that are stacked along
        the first axis: a vector with one number for each sample. If the latent variables come in
        independent groups, it may return a matrix, with a column for each group that depends on
        ``x[:, group]`` alone. Then the integral over each group has an estimate of its own,
        which is far less noisy than one estimate of the integral over all of them.
    proposal : distribution or callable
        Either a distribution of PyMC, made with ``.dist(...)``, whose parameters may depend on
        ``theta``. A :class:`~pymc.Normal` and a :class:`~pymc.MvNormal` are made from standard
        normal numbers, so that slice updates of ``u`` are elliptical. Any other univariate
        continuous distribution is made from uniform numbers by its quantiles, if PyMC knows these.

        Or a function, ``proposal(u)``, that returns ``x`` and ``log_q``, the log of the density of
        q at ``x``: a vector over samples, or an array whose further axes are summed where
        ``log_joint`` does not keep them. ``u`` has the samples along its first axis, and so must
        ``x`` have; the rest is up to you.
    shape : int or tuple of int, optional
        For a function: the shape of the random numbers of one sample; a single one if not given.
        With a matrix from ``log_joint`` it must begin with the number of groups.
    kind : {"normal", "uniform"}, optional
        For a function: the distribution of the random numbers, standard normal if not given.
    samples : int
        The number of samples. Any number is exact; more make the estimate less noisy.
    antithetic : bool
        Whether the second half of the samples is made from ``-u``, or ``1 - u`` if it is uniform,
        where ``u`` makes the first half. This often takes out noise for nothing.
    dims : str or tuple of str, optional
        The name of the dimension of the groups.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The log-estimate as it was added to the model: a scalar, or a vector with an entry for each
        group.

    Raises
    ------
    ModelError
        If the proposal cannot be made from random numbers, or shapes do not fit.

    Examples
    --------
    Counts whose log-rates are normal. Each count has a latent variable, and each of these a
    proposal: about where it is given the parameters and the count, with heavy tails.

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> counts = np.array([3, 0, 8, 2])
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 2)
    ...     sigma = pm.HalfNormal("sigma", 1)
    ...
    ...     def log_joint(x):
    ...         log_prior = pm.logp(pm.Normal.dist(mu, sigma), x)
    ...         return log_prior + pm.logp(pm.Poisson.dist(pm.math.exp(x)), counts)
    ...
    ...     precision = 1 / sigma**2 + counts + 0.5
    ...     centre = (mu / sigma**2 + (counts + 0.5) * np.log(counts + 0.5)) / precision
    ...     proposal = pm.StudentT.dist(nu=5, mu=centre, sigma=precision**-0.5)
    ...     log_lik = apm.estimators.importance("log_lik", log_joint, proposal, samples=16)
    >>> model["log_lik_u"].type.shape, log_lik.type.shape
    ((16, 4), (4,))
    """
    model = pm.modelcontext(model)
    label = f"importance({name!r})"
    samples = positive_integer(f"samples of {label}", samples)
    if antithetic and samples % 2:
        raise ModelError(f"{label} takes antithetic samples in pairs, so that samples is even.")
    if not callable(log_joint):
        raise ModelError(f"log_joint of {label} must be a function of x, got {log_joint!r}.")
    if isinstance(proposal, Variable):
        if shape is not None or kind is not None:
            raise ModelError(
                f"shape and kind of {label} are for a proposal that is a function. The shape of a "
                "distribution is its own: pm.Normal.dist(..., shape=...)."
            )
        sampler = _from_distribution(label, proposal, model)
    else:
        sampler = _from_function(label, proposal, shape, kind)

    declare = {"normal": StandardNormal, "uniform": StandardUniform}[sampler.kind]
    n_drawn = samples // 2 if antithetic else samples
    u = declare(f"{name}_u", shape=(n_drawn, *sampler.shape), model=model)
    mirrored = -u if sampler.kind == "normal" else 1.0 - u
    x, log_q = sampler.draw(pt.concatenate([u, mirrored]) if antithetic else u)
    if u not in ancestors([part for part in _parts(x) if isinstance(part, Variable)]):
        raise ModelError(f"The proposal of {label} makes an x that does not depend on u.")
    log_p = pt.as_tensor_variable(log_joint(x))
    log_weights = _log_weights(label, log_p, log_q, samples, sampler)
    return Potential(name, log_mean_exp(log_weights, axis=0), dims=dims, model=model)


# From random numbers to samples


class _Sampler(NamedTuple):
    """How a proposal makes samples: the random numbers of one sample, and what is made of them."""

    kind: Kind
    shape: tuple[int, ...]
    draw: Callable[[TensorVariable], tuple[Any, TensorVariable]]
    """From u, with samples along the first axis, to x and log_q."""


def _from_function(
    label: str, proposal: Any, shape: int | Sequence[int] | None, kind: Kind | None
) -> _Sampler:
    if not callable(proposal):
        raise ModelError(
            f"The proposal of {label} must be a distribution, as pm.Normal.dist(...) makes it, or "
            f"a function of u that returns x and log_q; got {proposal!r}."
        )
    if kind not in (None, "normal", "uniform"):
        raise ModelError(f'kind of {label} must be "normal" or "uniform", got {kind!r}.')
    lengths = () if shape is None else np.atleast_1d(np.asarray(shape)).tolist()
    lengths = tuple(positive_integer(f"A length in the shape of {label}", n) for n in lengths)

    def draw(u: TensorVariable) -> tuple[Any, TensorVariable]:
        made = proposal(u)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise ModelError(
                f"The proposal of {label} must return the pair x, log_q, but it returned {made!r}."
            )
        return made[0], pt.as_tensor_variable(made[1])

    return _Sampler(kind or "normal", lengths, draw)


def _from_distribution(label: str, proposal: TensorVariable, model: pm.Model) -> _Sampler:
    op: Any = proposal.owner.op if proposal.owner else None
    if proposal in model.root.basic_RVs:
        raise ModelError(
            f"The proposal of {label} is {proposal.name}, a variable of the model, which would be "
            "sampled too. Make a distribution that is not: pm.Normal.dist(...) instead of "
            "pm.Normal(name, ...)."
        )
    if not hasattr(op, "ndim_supp"):
        raise ModelError(
            f"The proposal of {label} is not a distribution, as pm.Normal.dist(...) makes it, but "
            f"{proposal}."
        )
    shape = _shape_of(label, proposal)
    if isinstance(op, NormalRV | MvNormalRV):
        location_scale = _normal if isinstance(op, NormalRV) else _mv_normal
        location, scale = op.dist_params(proposal.owner)
        return _Sampler("normal", shape, lambda u: location_scale(location, scale, u))
    reason = None
    if op.ndim_supp > 0:
        reason = "its samples are vectors"
    elif proposal.type.dtype not in ("float32", "float64"):
        reason = "it is discrete"
    else:
        try:
            pm.icdf(proposal, 0.5)
        except NotImplementedError:
            reason = "PyMC does not know its quantiles"
    if reason is not None:
        raise ModelError(
            f"{label} cannot make samples of its proposal {op} from random numbers: {reason}. What "
            "works is a Normal, a MvNormal, or another univariate continuous distribution for "
            "which pm.icdf exists; or give a function of u that returns x and log_q."
        )

    def by_quantiles(u: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        x = pm.icdf(proposal, u)
        return x, pm.logp(proposal, x)

    return _Sampler("uniform", shape, by_quantiles)


def _normal(
    mu: TensorVariable, sigma: TensorVariable, u: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    return mu + sigma * u, -0.5 * u**2 - 0.5 * LOG_2_PI - pt.log(sigma)


def _mv_normal(
    mu: TensorVariable, cov: TensorVariable, u: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    chol = pt.linalg.cholesky(cov, lower=True)
    # One matrix for all is one large product; with a matrix for each group these are small.
    shift = pt.dot(u, chol.T) if chol.type.ndim == 2 else pt.sum(chol * u[..., None, :], axis=-1)
    log_det = pt.sum(pt.log(pt.diagonal(chol, axis1=-2, axis2=-1)), axis=-1)
    log_q = -0.5 * pt.sum(u**2, axis=-1) - 0.5 * LOG_2_PI * u.shape[-1] - log_det
    return mu + shift, log_q


def _shape_of(label: str, proposal: TensorVariable) -> tuple[int, ...]:
    """Return the shape of one sample of a distribution, which must not depend on parameters."""
    if None not in proposal.type.shape:
        return tuple(proposal.type.shape)
    try:
        return tuple(int(length) for length in proposal.shape.eval())
    except Exception as error:
        raise ModelError(
            f"The shape of the proposal of {label} is unknown. Give it as "
            f"pm.Normal.dist(..., shape=...)."
        ) from error


# Shapes


def _log_weights(
    label: str, log_p: TensorVariable, log_q: TensorVariable, samples: int, sampler: _Sampler
) -> TensorVariable:
    """Check both densities, and take their ratio: for each sample, or each sample and group."""
    if log_p.type.ndim not in (1, 2):
        raise ModelError(
            f"log_joint of {label} must return a vector with one number for each sample, or a "
            f"matrix of samples and independent groups, but its result has {log_p.type.ndim} "
            "dimensions. x has the samples along its first axis: sum over the others."
        )
    if log_q.type.ndim < log_p.type.ndim:
        raise ModelError(
            f"log_joint of {label} returns {log_p.type.ndim} dimensions, but log_q of the proposal "
            f"has {log_q.type.ndim}. It needs one number for each sample and, where log_joint "
            "returns a matrix of samples and groups, for each group, whose latent variables are "
            "along the second axis of x."
        )
    log_p = _check_length(f"The result of log_joint of {label}", log_p, 0, samples)
    log_q = _check_length(f"log_q of the proposal of {label}", log_q, 0, samples)
    if log_p.type.ndim == 2:
        if not sampler.shape:
            raise ModelError(
                f"log_joint of {label} returns a matrix of samples and groups, but there is one "
                "random number for each sample, which all groups would share, and the product of "
                "their estimates would be biased. The shape must begin with the number of groups."
            )
        groups = sampler.shape[0]
        log_p = _check_length(f"The result of log_joint of {label}", log_p, 1, groups)
        log_q = _check_length(f"log_q of the proposal of {label}", log_q, 1, groups)
    summed = tuple(range(log_p.type.ndim, log_q.type.ndim))
    return log_p - pt.sum(log_q, axis=summed)


def _check_length(what: str, variable: TensorVariable, axis: int, length: int) -> TensorVariable:
    """Check the length of an axis now if it is known, or else whenever it is computed."""
    axis_of = ("samples, the first axis", "groups, the second axis")[axis]
    message = f"{what} must have {length} {axis_of}, but has "
    actual = variable.type.shape[axis]
    if actual is None:
        guard = CheckAndRaise(EstimatorError, f"{message}another number of them.")
        return guard(variable, pt.eq(variable.shape[axis], length))
    if actual != length:
        raise ModelError(f"{message}{actual}.")
    return variable


def _parts(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple | list) else [x]


def _all_axes(variable: TensorVariable) -> tuple[int, ...]:
    return tuple(range(variable.type.ndim))
