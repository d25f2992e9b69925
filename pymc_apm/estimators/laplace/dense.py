"""Gaussian approximations of the posterior of one latent vector, and draws from them.

The latent vector is f = mean + g with g ~ N(0, K), and the likelihood factorises over its entries.
For *any* vector a and any W >= 0 that depend on the parameters alone,

    q(g) = N(K a, (K^-1 + W)^-1)

is a proposal whose importance weight needs no inverse of K. With B = I + W^1/2 K W^1/2 = L L',

    log w = log p(y | f) - a'g + a'K a / 2 + (g - K a)' W (g - K a) / 2 - log |L|

and a draw comes from 2n standard normal numbers by Matheron's rule, with e = chol(K) u_1,

    g = K a + e - K W^1/2 B^-1 (W^1/2 e + u_2).

So a proposal costs two Cholesky factorisations, those of K and of B, and how good it is depends on
the choice of a and W. Here they come from Newton's method (Rasmussen and Williams, 2006, Algorithm
3.1), with three changes.

- The log-likelihood is *smoothed*: replaced by its mean over N(f_i, v_i), with variances v that are
  those of the posterior at a reference parameter, frozen. The fixed point is then, but for the
  frozen v, the Gaussian that is closest to the posterior in the sense of variational inference
  (Opper and Archambeau, 2009, doi:10.1162/neco.2008.08-07-592). The posterior of a classifier is
  skewed, its mode far from its mean, and a proposal around the mode (v = 0) makes noisy estimates.
- It starts at the fixed point for the reference parameter, where W is about right already, and
  keeps the factor of B for a few steps that solve for a alone (chord steps, quadratic in n).
- B is factorised again only if the curvature at the new f is so different that it matters.

All choices are functions of the parameters alone, never of the way by which a chain came there.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.linalg.blas import dsyrk, dtrmm, dtrmv, dtrsm
from scipy.linalg.lapack import dpotrf

from pymc_apm.estimators.laplace.matrices import (
    Buffers,
    Covariance,
    FloatArray,
    NotPositiveDefinite,
    solve,
)

CHORD_STEPS = 3
"""Steps that reuse a factor of B, the first one included."""

MISMATCH = 0.25
"""The variance of the log-weight, about, that a wrong curvature may cause before B is renewed."""

MAX_FACTORS = 20
"""How often B is factorised at most."""

MAX_HALVINGS = 20
"""How often a step of Newton's method is halved at most."""


class Derivatives(NamedTuple):
    """The (smoothed) log-likelihood at a latent vector, as Newton's method needs it.

    Attributes
    ----------
    value : float
        The sum of the log-likelihoods.
    gradient : ndarray
    curvature : ndarray
        Minus the second derivatives, not below zero.
    """

    value: float
    gradient: FloatArray
    curvature: FloatArray


Smoothed: TypeAlias = Callable[[FloatArray], Derivatives]

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()

SMALLEST_VARIANCE = 1e-6
"""Smoothing with this variance gives the derivatives themselves, for all practical purposes."""


def smooth(
    derivatives: Callable[[FloatArray], tuple[FloatArray, FloatArray]], variance: FloatArray
) -> Smoothed:
    """Smooth a log-likelihood that factorises: take its mean over N(f_i, v_i), by quadrature.

    Parameters
    ----------
    derivatives : callable
        For latent vectors along the first axis, returns the log-likelihoods and their first
        derivatives. The second ones follow by Stein's identity, E[l''] = E[(f - m) l'(f)] / v.
    variance : ndarray
        v.

    Returns
    -------
    callable
        It returns derivatives that are finite in any case, for a value that is perhaps not.
    """
    deviation = np.sqrt(np.maximum(variance, SMALLEST_VARIANCE))
    offsets = NODES[:, None] * deviation

    def smoothed(latent: FloatArray) -> Derivatives:
        values, slopes = derivatives(latent + offsets)
        gradient = NODE_WEIGHTS @ slopes
        curvature = -(NODE_WEIGHTS * NODES) @ slopes / deviation
        return Derivatives(
            float((NODE_WEIGHTS @ values).sum()),
            np.where(np.isfinite(gradient), gradient, 0.0),
            np.where(np.isfinite(curvature), np.maximum(curvature, 0.0), 0.0),
        )

    return smoothed


class Fit(NamedTuple):
    """A proposal for the deviations g of a latent vector from its mean.

    Attributes
    ----------
    centre : ndarray
        K a.
    weights : ndarray
        a.
    curvature : ndarray
        W.
    log_det : float
        log |L|.
    factor : ndarray
        L; only its lower triangle counts. For the published form, a factor of the covariance.
    prior_factor : ndarray
        The Cholesky factor of K, likewise. The published form has none.
    ridge : float
        What was added to the diagonal of K.
    value : float
        The sum of the (smoothed) log-likelihoods at the centre.
    n_cubic : int
        Operations of order n^3.
    """

    centre: FloatArray
    weights: FloatArray
    curvature: FloatArray
    log_det: float
    factor: FloatArray
    prior_factor: FloatArray
    ridge: float
    value: float
    n_cubic: int


def fit(
    cov: FloatArray,
    mean: FloatArray,
    smoothed: Smoothed,
    start: FloatArray,
    variance: FloatArray,
    jitter: float,
    mismatch: float = MISMATCH,
    buffers: Buffers | None = None,
) -> Fit:
    """Fit a proposal with as few factorisations as it takes.

    Parameters
    ----------
    cov, mean : ndarray
        The prior of f.
    smoothed : callable
        The smoothed log-likelihood.
    start : ndarray
        The latent vector to start from.
    variance : ndarray
        The variances with which it is smoothed, for the decision whether a curvature is good
        enough.
    jitter : float
        Relative to the mean variance.
    mismatch : float
        The variance of the log-weight that a wrong curvature may cause; small values make an exact
        fit.
    buffers : Buffers, optional
        Where to take the memory of the factors from.

    Returns
    -------
    Fit
    """
    prior = Covariance(cov, buffers=buffers)
    prior_factor = prior.factorise(jitter)
    search = _Newton(prior, mean, smoothed)
    latent, at = start, smoothed(start)
    n_cubic = 1
    while n_cubic <= MAX_FACTORS:
        curvature = at.curvature
        root = np.sqrt(curvature)
        factor, log_det = prior.balanced(root)
        n_cubic += 1
        for _ in range(CHORD_STEPS):
            b = curvature * (latent - mean) + at.gradient
            weights = b - root * solve(factor, root * (prior @ b))
            latent, at = search.move(weights)
        if 0.5 * np.sum(((at.curvature - curvature) * variance) ** 2) <= mismatch:
            break
    return Fit(
        search.centre,
        search.weights,
        curvature,
        log_det,
        factor,
        prior_factor,
        prior.ridge,
        at.value,
        n_cubic,
    )


def fit_as_published(
    cov: FloatArray, mean: FloatArray, exact: Smoothed, jitter: float, tolerance: float = 1e-4
) -> Fit:
    """Fit the Laplace approximation as Murray and Graham (2016) did.

    Newton's method starts from the mean, with a factorisation for each step, until the mean of the
    squared changes is below the tolerance; then the posterior covariance is computed and
    factorised. By the paper's count, this is one cubic operation per step and three more.
    """
    prior = Covariance(cov)
    prior.factorise(jitter)
    search = _Newton(prior, mean, exact)
    latent, at = mean, exact(mean)
    change = math.inf
    n_steps = 0
    while not change < tolerance and n_steps < MAX_FACTORS:
        curvature = at.curvature
        root = np.sqrt(curvature)
        factor, log_det = prior.balanced(root)
        b = curvature * (latent - mean) + at.gradient
        weights = b - root * solve(factor, root * (prior @ b))
        old = latent
        latent, at = search.move(weights)
        change = float(np.mean((latent - old) ** 2))
        n_steps += 1
    covariance = _posterior_covariance(cov, prior.ridge, root, factor)
    lower, info = dpotrf(covariance, lower=1, clean=1, overwrite_a=1)
    if info != 0:
        raise NotPositiveDefinite("that of the posterior, computed as a difference, is not")
    return Fit(
        search.centre,
        search.weights,
        curvature,
        log_det,
        lower,
        np.zeros((1, 1)),
        prior.ridge,
        at.value,
        n_steps + 3,
    )


class _Newton:
    """Where Newton's method is: a and K a, with steps cut short while the objective falls.

    The objective is log p(y | f) - a'K a / 2, smoothed. It starts at no particular a: the first
    step is taken in full if it leads to finite values.
    """

    def __init__(self, prior: Covariance, mean: FloatArray, smoothed: Smoothed) -> None:
        self._prior = prior
        self._mean = mean
        self._smoothed = smoothed
        self.weights = np.zeros(len(mean))
        self.centre = np.zeros(len(mean))
        self._objective = -math.inf

    def move(self, weights: FloatArray) -> tuple[FloatArray, Derivatives]:
        """Move towards a new a; return the latent vector there, and the derivatives."""
        centre = self._prior @ weights
        for halvings in range(MAX_HALVINGS + 1):
            step = 0.5**halvings
            new_weights = self.weights + step * (weights - self.weights)
            new_centre = self.centre + step * (centre - self.centre)
            latent = self._mean + new_centre
            at = self._smoothed(latent)
            objective = at.value - 0.5 * float(new_weights @ new_centre)
            slack = 1e-10 * abs(self._objective) if self._objective > -math.inf else 0.0
            if objective >= self._objective - slack:
                self._objective = objective
                self.weights, self.centre = new_weights, new_centre
                return latent, at
        latent = self._mean + self.centre
        return latent, self._smoothed(latent)


def marginal_variances(fitted: Fit, cov: FloatArray) -> FloatArray:
    """Return the variances of a proposal; cubic, for use at the reference parameter alone."""
    root = np.sqrt(fitted.curvature)
    covariance = _posterior_covariance(cov, fitted.ridge, root, fitted.factor)
    return np.maximum(covariance.diagonal(), 0.0)


def _posterior_covariance(
    cov: FloatArray, ridge: float, root: FloatArray, factor: FloatArray
) -> FloatArray:
    """Return the lower triangle of (K^-1 + W)^-1 = K - V'V, with V = L^-1 W^1/2 K."""
    prior = np.array(cov, order="F")
    np.einsum("ii->i", prior)[...] += ridge
    half = dtrsm(1.0, factor, root[:, None] * prior, lower=1, overwrite_b=1)
    return dsyrk(-1.0, half, beta=1.0, c=prior, trans=1, lower=1, overwrite_c=1)


def deviations(
    prior: Covariance,
    prior_factor: FloatArray,
    factor: FloatArray,
    curvature: FloatArray,
    u: FloatArray,
) -> FloatArray:
    """Draw deviations from the centre of a fit by Matheron's rule.

    Parameters
    ----------
    prior : Covariance
        K, with its ridge.
    prior_factor, factor, curvature : ndarray
        Those of the fit.
    u : ndarray
        Standard normal numbers of shape (2, samples, n).

    Returns
    -------
    ndarray
        Shape (samples, n).
    """
    root = np.sqrt(curvature)
    if u.shape[1] == 1:
        e = dtrmv(prior_factor, u[0, 0], lower=1)
        return (e - prior @ (root * solve(factor, root * e + u[1, 0])))[None]
    e = dtrmm(1.0, prior_factor, u[0].T, lower=1)
    root = root[:, None]
    return (e - prior @ (root * solve(factor, root * e + u[1].T))).T


def deviations_as_published(factor: FloatArray, u: FloatArray) -> FloatArray:
    """Draw deviations from the centre with a factor of the covariance; u is (samples, n)."""
    return dtrmm(1.0, factor, u.T, lower=1).T
