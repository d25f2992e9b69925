"""Gaussian approximations of the posterior of many small, independent blocks of latent variables.

Block g is f_g = mean_g + C nu_g with nu_g ~ N(0, I) and C the Cholesky factor of its covariance,
the same for all blocks or not. In terms of nu a covariance may be as small as it likes. Newton's
method finds the mode of each block, all of them at once, and with H the matrix of minus the second
derivatives of the log-likelihood, A = I + C'H C = L L', a proposal and its weight are

    nu = mode + L^-T u,    log w = log p(y_g | f_g) - nu'nu / 2 + u'u / 2 - log |L|.

The weight is exact for any centre and any A, so that nothing depends on convergence but the noise.

The tails of a likelihood that is not log-concave, such as Student's t, may be so heavy that the
weights have no variance. Then a share of the draws comes from the prior, and the weights are those
of the mixture (Hesterberg, 1995, doi:10.1080/00401706.1995.10484303), which are bounded if the
likelihood is.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]

Hessians: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]]
"""``hessians(f)``: at (blocks, size) latents, log-likelihoods, gradients and minus the Hessians."""

CLOSE = 0.3
"""The squared distance to the mode, in standard deviations, from which a step is the last one."""

MAX_STEPS = 30
"""Steps of Newton's method at most."""

MAX_HALVINGS = 20
"""How often a step is halved at most, in blocks where the log posterior falls."""


DIRECTIONS = 4
"""In so many directions of each block it is looked for places where a likelihood is not concave."""


class BlockFit(NamedTuple):
    """Proposals for the whitened variables nu of blocks.

    Attributes
    ----------
    centre : ndarray
        Shape (blocks, size).
    spread : ndarray
        L^-T, shape (blocks, size, size).
    root : ndarray
        Its inverse L^T.
    log_det : ndarray
        log |L|, shape (blocks,).
    value : ndarray
        The log posterior of nu at the last point where it was computed, without its constant.
    """

    centre: FloatArray
    spread: FloatArray
    root: FloatArray
    log_det: FloatArray
    value: FloatArray


def fit_blocks(
    prior_factor: FloatArray, mean: FloatArray, hessians: Hessians, start: FloatArray
) -> BlockFit:
    """Fit a proposal to each block.

    Parameters
    ----------
    prior_factor : ndarray
        C, of shape (1, size, size) or (blocks, size, size).
    mean : ndarray
        Shape (blocks, size).
    hessians : callable
    start : ndarray
        Where to start, in terms of nu.

    Returns
    -------
    BlockFit
    """
    nu = start
    log_lik, gradient, hessian = hessians(mean + scale(prior_factor, nu))
    value = log_lik - 0.5 * (nu * nu).sum(axis=1)
    for _ in range(MAX_STEPS):
        step, spread, root, log_det, distance = newton_steps(prior_factor, gradient, hessian, nu)
        if distance.max(initial=0.0) < CLOSE:
            return BlockFit(nu + step, spread, root, log_det, value)
        for _ in range(MAX_HALVINGS):
            new = nu + step
            log_lik, gradient, hessian = hessians(mean + scale(prior_factor, new))
            new_value = log_lik - 0.5 * (new * new).sum(axis=1)
            falls = ~(new_value >= value - 1e-10 * np.abs(value)) & np.isfinite(value)
            if not falls.any():
                break
            step[falls] *= 0.5
        nu, value = new, new_value
    return BlockFit(nu, spread, root, log_det, value)


def is_log_concave(
    prior_factor: FloatArray, mean: FloatArray, hessians: Hessians, centre: FloatArray
) -> bool:
    """Look for places around the modes where the log-likelihood is not concave.

    One direction is not enough where there are several: a contrast of effects does not change where
    all of them do alike.
    """
    directions: list[FloatArray] = [np.ones(centre.shape)]
    if centre.shape[1] > 1:
        directions += list(np.random.default_rng(0).standard_normal((DIRECTIONS, *centre.shape)))
    places = [centre]
    for distance in (-4.0, -2.0, -1.0, 1.0, 2.0, 4.0):
        places += [centre + distance * direction for direction in directions]
    for place in places:
        _, _, hessian = hessians(mean + scale(prior_factor, place))
        if not np.linalg.eigvalsh(np.nan_to_num(hessian)).min() > -1e-8 * np.abs(hessian).max():
            return False
    return True


def scale(factor: FloatArray, nu: FloatArray) -> FloatArray:
    """Return C nu for each block."""
    if len(factor) == 1:
        return np.asarray(nu @ factor[0].T)
    return np.asarray(np.einsum("gij,gj->gi", factor, nu))


@numba.njit(cache=True)
def newton_steps(
    prior_factor: FloatArray, gradient: FloatArray, hessian: FloatArray, nu: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Compute the step of Newton's method in each block.

    Negative directions of the curvature of a likelihood that is not log-concave are taken for flat.

    Returns
    -------
    step : ndarray
    spread : ndarray
        L^-T.
    root : ndarray
        L^T.
    log_det : ndarray
        log |L|.
    distance : ndarray
        The squared length of the step in standard deviations.
    """
    n_blocks, size = nu.shape
    step = np.empty((n_blocks, size))
    spread = np.zeros((n_blocks, size, size))
    root = np.zeros((n_blocks, size, size))
    log_det = np.empty(n_blocks)
    distance = np.empty(n_blocks)
    slope = np.empty(size)
    inner = np.empty((size, size))
    curvature = np.empty((size, size))
    lower = np.empty((size, size))
    for g in range(n_blocks):
        c = prior_factor[g if prior_factor.shape[0] > 1 else 0]
        for i in range(size):
            total = -nu[g, i]
            for j in range(i, size):
                total += c[j, i] * gradient[g, j]
            slope[i] = total if math.isfinite(total) else 0.0
            for j in range(size):
                total = 0.0
                for k in range(j, size):
                    total += hessian[g, i, k] * c[k, j]
                inner[i, j] = total
        for i in range(size):
            for j in range(size):
                total = 0.0
                for k in range(i, size):
                    total += c[k, i] * inner[k, j]
                curvature[i, j] = total if math.isfinite(total) else 0.0
        if not _factorise(curvature, lower):
            values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
            curvature = (vectors * np.maximum(values, 0.0)) @ vectors.T
            _factorise(curvature, lower)
        total = 0.0
        for i in range(size):
            total += math.log(lower[i, i])
            for j in range(i + 1):
                root[g, j, i] = lower[i, j]
        log_det[g] = total
        # The inverse of L, transposed, column by column.
        for j in range(size):
            spread[g, j, j] = 1.0 / lower[j, j]
            for i in range(j + 1, size):
                total = 0.0
                for k in range(j, i):
                    total -= lower[i, k] * spread[g, j, k]
                spread[g, j, i] = total / lower[i, i]
        squared = 0.0
        for i in range(size):
            step[g, i] = 0.0
        for j in range(size):
            total = 0.0
            for i in range(j + 1):
                total += spread[g, i, j] * slope[i]
            squared += total * total
            for i in range(j + 1):
                step[g, i] += spread[g, i, j] * total
        distance[g] = squared
    return step, spread, root, log_det, distance


@numba.njit(cache=True)
def _factorise(curvature: FloatArray, lower: FloatArray) -> bool:
    """Put the Cholesky factor of I + curvature into ``lower``; say whether it is fit for use."""
    size = len(curvature)
    for j in range(size):
        total = 1.0 + curvature[j, j]
        for k in range(j):
            total -= lower[j, k] * lower[j, k]
        # Less than 1 means that the likelihood makes the posterior wider than the prior.
        if not total > 0.5:
            return False
        lower[j, j] = math.sqrt(total)
        for i in range(j + 1, size):
            total = curvature[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = total / lower[j, j]
    return True
