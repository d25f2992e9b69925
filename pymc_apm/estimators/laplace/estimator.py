"""Latent Gaussian models: the latent variables are integrated out by importance sampling.

For y | f with f ~ N(mean, K), p(y | theta) is the integral of p(y | f) over f. A Gaussian
approximation of p(f | y, theta) is the proposal; the mean of the importance weights of N draws from
it is an unbiased estimate, whatever the quality of the approximation (equation (10) of the paper;
Filippone and Girolami, 2014). There are two forms: one latent vector whose entries all depend on
each other (:mod:`pymc_apm.estimators.laplace.dense`), and many small independent blocks
(:mod:`pymc_apm.estimators.laplace.blocks`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_apm.deprecated import once_positional
from pymc_apm.errors import ModelError, see
from pymc_apm.estimators.importance_sampling import log_mean_exp
from pymc_apm.estimators.laplace.likelihood import Likelihood
from pymc_apm.estimators.laplace.ops import (
    LaplaceBlockFit,
    LaplaceDraw,
    LaplaceFit,
    with_fast_exponentials,
)
from pymc_apm.estimators.laplace.reference import block_start, dense_reference
from pymc_apm.estimators.latent import LatentDraws
from pymc_apm.estimators.reference import ParameterSpace
from pymc_apm.potential import Potential
from pymc_apm.randomness import StandardNormal
from pymc_apm.validation import number, one_of, positive_integer

__all__ = ["laplace_importance"]


@once_positional("mean", "samples")
def laplace_importance(
    name: str,
    log_lik: Callable[[TensorVariable], Any],
    cov: TensorVariable | ArrayLike,
    *,
    mean: TensorVariable | ArrayLike = 0.0,
    groups: ArrayLike | None = None,
    samples: int = 1,
    defensive: bool | None = None,
    reference: Mapping[str, ArrayLike] | None = None,
    jitter: float = 1e-8,
    formulation: Literal["fast", "published"] = "fast",
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add the likelihood of a latent Gaussian model, with the latent variables integrated out.

    The latent vector is f ~ N(mean, cov). Its posterior given the parameters is approximated by a
    Gaussian, and the likelihood estimated by importance sampling with draws from that. Declares the
    random numbers ``name + "_u"`` and adds the potential ``name``.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    log_lik : callable
        Maps the latent vector, a symbolic variable, to the vector of log p(y_i | f_i). It may use
        parameters of the model. Entry i may depend on f_i alone. Any likelihood will do that
        PyTensor can differentiate; it need not be log-concave.
    cov : TensorVariable
        The covariance matrix of f, for example from a kernel of ``pm.gp.cov``. With ``groups``, the
        variance of the random effects, or their covariance matrix, see there.
    mean : TensorVariable or float
        The mean of f.
    groups : array of int, optional
        For random effects: the group of each observation, from 0 to n_groups - 1. Then f has one
        row for each group, the rows are independent of each other, and observation i may depend on
        row ``groups[i]`` alone. Where ``cov`` is a variance, ``log_lik`` receives a vector with one
        effect for each group. Where it is a matrix of shape (q, q), the same for all groups, or of
        shape (n_groups, q, q), it receives a matrix of shape (n_groups, q). The potential is then
        a vector with one log-estimate for each group.
    samples : int
        The number N of importance samples. An even number is made of pairs, each draw with its
        reflection at the centre of the proposal, which cancels much of the noise.
    defensive : bool, optional
        With ``groups`` and at least two samples: whether a quarter of them, at least one, are drawn
        from the prior, which keeps the weights bounded. By default this is so where the likelihood
        is not log-concave, because its tails may be heavy then.
    reference : dict, optional
        Values of the random variables that the model of f depends on, by name, in the middle of the
        posterior, such as ``{"sigma": 1.0, "tau": 0.5}``; see below. By default the mode of an
        approximate posterior.
    jitter : float
        What to add to the diagonal of the covariance, in units of its mean, so that it has a
        Cholesky factor. Where that is not enough, 100 and 10,000 times as much is tried.
    formulation : {"fast", "published"}
        How to find the Gaussian: see below, or as the paper's authors did, for comparison.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The log-estimate as it was added to the model.

    Notes
    -----
    *Cost.* One value of the parameters costs two Cholesky factorisations, of the covariance and of
    I + W^1/2 K W^1/2 (three or more far away from the reference), and a new u none. The statistic
    ``n_cubic`` counts them. The published formulation takes one for each iteration of Newton's
    method and three more that cost more. Groups cost no more than their number.

    *The reference.* The Gaussian is found by Newton's method, which starts from what is right at
    the reference, and with a likelihood smoothed by the posterior variances there, which makes the
    Gaussian match the mean of the posterior rather than its mode. The reference is frozen, so that
    the estimate is a function of the parameters and u alone. Far from it, estimates are noisier,
    but never biased. The search for the reference takes some seconds for a thousand observations;
    it is reported in the log.

    *Steps.* There is no gradient with respect to the parameters: use the steps of this package.

    References
    ----------
    Filippone, M. and Girolami, M. (2014). Pseudo-marginal Bayesian inference for Gaussian
    processes. doi:10.1109/TPAMI.2014.2316530.

    Rasmussen, C. E. and Williams, C. K. I. (2006). Gaussian Processes for Machine Learning. MIT
    Press. Chapter 3.

    Examples
    --------
    Gaussian process classification with a probit likelihood:

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> rng = np.random.default_rng(1)
    >>> x = np.linspace(0, 1, 20)[:, None]
    >>> sign = np.where(np.sin(6 * x[:, 0]) + rng.normal(size=20) > 0, 1, -1)
    >>> with pm.Model():
    ...     sigma = pm.Gamma("sigma", 2, 1)
    ...     tau = pm.Gamma("tau", 2, 4)
    ...     log_lik = apm.estimators.laplace_importance(
    ...         "y",
    ...         lambda f: pm.logcdf(pm.Normal.dist(), sign * f),
    ...         sigma**2 * pm.gp.cov.ExpQuad(1, ls=tau)(x),
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)

    Counts with a random intercept for each of five subjects:

    >>> subject = np.repeat(np.arange(5), 4)
    >>> counts = rng.poisson(np.exp(1 + 0.5 * rng.normal(size=5))[subject])
    >>> with pm.Model():
    ...     beta, sd = pm.Normal("beta"), pm.HalfNormal("sd")
    ...     log_lik = apm.estimators.laplace_importance(
    ...         "y",
    ...         lambda b: pm.logp(pm.Poisson.dist(pm.math.exp(beta + b[subject])), counts),
    ...         sd**2,
    ...         groups=subject,
    ...         samples=4,
    ...     )
    """
    model = pm.modelcontext(model)
    where = "laplace_importance"
    samples = positive_integer(f"samples of {where}", samples)
    jitter = number(f"jitter of {where}", jitter)
    if jitter < 0.0:
        raise ModelError(f"jitter of {where} must not be negative, got {jitter!r}.")
    one_of(f"formulation of {where}", formulation, "fast", "published")
    cov = pt.as_tensor_variable(cov).astype("float64")
    mean = pt.as_tensor_variable(mean).astype("float64")
    if groups is None:
        terms = _dense(
            name, log_lik, cov, mean, samples, reference, jitter, formulation == "published", model
        )
    else:
        if formulation == "published":
            raise ModelError(f"formulation of {where} must be 'fast' with groups.")
        terms = _grouped(name, log_lik, cov, mean, samples, reference, groups, defensive, model)
    term = Potential(name, terms.log_estimate, approximation=terms.approximation, model=model)
    term.tag.apm_latent = terms.latent
    return term


class _Terms(NamedTuple):
    """What an estimator adds to a model.

    Attributes
    ----------
    log_estimate : TensorVariable
    approximation : TensorVariable
        The value that it has at the centre of the proposal, without noise.
    latent : LatentDraws
        How to draw the latent variables.
    """

    log_estimate: TensorVariable
    approximation: TensorVariable
    latent: LatentDraws


def _dense(
    name: str,
    log_lik: Callable[[TensorVariable], Any],
    cov: TensorVariable,
    mean: TensorVariable,
    samples: int,
    reference: Mapping[str, Any] | None,
    jitter: float,
    is_published: bool,
    model: pm.Model,
) -> _Terms:
    """Build the graph of the estimator for one latent vector."""
    if cov.type.ndim != 2:
        raise ModelError(
            f"cov of {name!r} must be the covariance matrix of the latent vector, but it has "
            f"{cov.type.ndim} dimensions. For random effects of groups, give groups. "
            + see("latent_gaussian")
        )
    size = _size(name, cov, model)
    cov = with_fast_exponentials(cov, model.basic_RVs)
    if mean.type.ndim > 1:
        raise ModelError(f"mean of {name!r} must be a number or a vector.")
    mean = pt.broadcast_to(mean, (size,))
    likelihood = Likelihood(name, log_lik, (size,))
    fit_op = LaplaceFit(
        likelihood,
        None if is_published else dense_reference(likelihood, cov, mean, jitter, model, reference),
        jitter,
    )
    centre, weights, curvature, log_det, ridge, _, factor, prior_factor = fit_op(
        cov, mean, *likelihood.inputs
    )
    draw_op = LaplaceDraw(is_published)
    constant = -0.5 * pt.sum(weights * centre) - log_det

    def draw(u: TensorVariable, signs: Sequence[float] = (1.0,)) -> _Draws:
        drawn = draw_op(cov, ridge, curvature, factor, prior_factor, u)
        drawn = pt.specify_shape(drawn, u.type.shape[-2:])
        shared = constant + 0.5 * (curvature * drawn**2).sum(axis=1)
        latents = [mean + centre + sign * drawn for sign in signs]
        log_weights = [
            likelihood.log_lik(latent).sum(axis=1) - sign * (drawn * weights).sum(axis=1) + shared
            for sign, latent in zip(signs, latents, strict=True)
        ]
        return _Draws(pt.concatenate(latents), pt.concatenate(log_weights))

    def u_shape(n_draws: int) -> tuple[int, ...]:
        return (n_draws, size) if is_published else (2, n_draws, size)

    n_draws, signs = _pairs(samples)
    u = StandardNormal(f"{name}_u", shape=u_shape(n_draws), model=model)
    at_centre = likelihood.log_lik((mean + centre)[None]).sum() + constant
    return _Terms(log_mean_exp(draw(u, signs).log_weights), at_centre, LatentDraws(u_shape, draw))


class _Draws(NamedTuple):
    """Draws of latent variables, along the first axis, and the logs of their weights."""

    latents: TensorVariable
    log_weights: TensorVariable


def _pairs(samples: int) -> tuple[int, tuple[float, ...]]:
    """Return how many deviations to draw, and with which signs to use each of them."""
    return (samples // 2, (1.0, -1.0)) if samples % 2 == 0 else (samples, (1.0,))


def _grouped(
    name: str,
    log_lik: Callable[[TensorVariable], Any],
    cov: TensorVariable,
    mean: TensorVariable,
    samples: int,
    reference: Mapping[str, Any] | None,
    groups: ArrayLike,
    defensive: bool | None,
    model: pm.Model,
) -> _Terms:
    """Build the graph of the estimator for independent blocks."""
    index, n_groups = _checked_groups(name, groups)
    if cov.type.ndim not in (0, 2, 3):
        raise ModelError(
            f"cov of {name!r} must be a variance, a covariance matrix for all groups or a matrix "
            f"for each group, but it has {cov.type.ndim} dimensions. " + see("latent_gaussian")
        )
    is_scalar = cov.type.ndim == 0
    size = 1 if is_scalar else _size(name, cov, model)
    cov = cov.reshape((-1 if cov.type.ndim == 3 else 1, size, size))
    cov = pt.specify_shape(cov, (None if cov.type.shape[0] != 1 else 1, size, size))
    if is_scalar and mean.type.ndim == 1:
        mean = mean[:, None]
    mean = pt.broadcast_to(mean, (n_groups, size))
    likelihood = Likelihood(
        name, (lambda f: log_lik(f[:, 0])) if is_scalar else log_lik, (n_groups, size), index
    )
    start, is_concave = block_start(likelihood, cov, mean, model, reference)
    centre, spread, root, log_det, prior_factor = LaplaceBlockFit(likelihood, start)(
        cov, mean, *likelihood.inputs
    )
    is_defensive = not is_concave if defensive is None else bool(defensive)

    def n_from_prior(samples: int) -> int:
        return max(samples // 4, 1) if is_defensive and samples > 1 else 0

    n_prior = n_from_prior(samples)
    n_draws, signs = _pairs(samples - n_prior)

    def draw(u: TensorVariable, n_prior: int = 0, signs: Sequence[float] = (1.0,)) -> _Draws:
        # Draws from the proposal, with all signs; the last numbers are for those from the prior.
        n_draws = u.type.shape[0] - n_prior
        deviation = _products(spread, u[:n_draws])
        whitened = [centre + sign * deviation for sign in signs]
        standardised = [u[:n_draws]] * len(signs)
        if n_prior:
            whitened.append(u[n_draws:])
            standardised.append(_products(root, u[n_draws:] - centre))
        nu = pt.concatenate(whitened)
        # The log of the density of the proposal, relative to the prior.
        log_ratio = log_det + 0.5 * (nu**2 - pt.concatenate(standardised) ** 2).sum(axis=-1)
        if n_prior:
            share = n_prior / (n_prior + n_draws * len(signs))
            log_ratio = pt.logaddexp(log_ratio + math.log1p(-share), math.log(share))
        latents = mean + _products(prior_factor, nu)
        values = latents[:, :, 0] if is_scalar else latents
        return _Draws(values, likelihood.log_lik(latents) - log_ratio)

    def draw_afterwards(u: TensorVariable) -> _Draws:
        return draw(u, n_from_prior(u.type.shape[0]))

    def u_shape(n_draws: int) -> tuple[int, ...]:
        return (n_draws, n_groups, size)

    u = StandardNormal(f"{name}_u", shape=u_shape(n_draws + n_prior), model=model)
    at_centre = (
        likelihood.log_lik(mean + _products(prior_factor, centre[None]))[0]
        - 0.5 * (centre**2).sum(axis=-1)
        - log_det
    )
    return _Terms(
        log_mean_exp(draw(u, n_prior, signs).log_weights, axis=0),
        at_centre.sum(),
        LatentDraws(u_shape, draw_afterwards),
    )


def _products(matrices: TensorVariable, vectors: TensorVariable) -> TensorVariable:
    """Return matrix times vector for each block; the vectors are (samples, blocks, size).

    Written out, because PyTensor makes one loop without intermediate arrays of a sum of products.
    """
    size = vectors.type.shape[-1]
    return sum(matrices[:, :, j] * vectors[:, :, j, None] for j in range(size))


def _size(name: str, cov: TensorVariable, model: pm.Model) -> int:
    """Return the number of rows of a covariance matrix, which may have to be computed."""
    rows, columns = cov.type.shape[-2:]
    if rows is None or columns is None:
        rows, columns = map(int, _values(cov.shape[-2:], model))
    if rows != columns:
        raise ModelError(f"cov of {name!r} must be square, but it is {rows} x {columns}.")
    return rows


def _values(expression: Variable, model: pm.Model) -> NDArray[Any]:
    space = ParameterSpace([expression], model)
    return space.values(space.start)[0]


def _checked_groups(name: str, groups: ArrayLike) -> tuple[NDArray[np.int64], int]:
    index = np.asarray(groups)
    if index.ndim != 1 or index.dtype.kind not in "iu" or index.size == 0 or index.min() < 0:
        raise ModelError(
            f"groups of {name!r} must be a vector of integers, the group of each observation "
            f"counted from 0, got {groups!r}. pandas.factorize makes it from labels."
        )
    return index.astype(np.int64), int(index.max()) + 1
