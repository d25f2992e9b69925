"""The reference of the Laplace estimators: where their fits start, found before sampling."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import EstimatorError, see
from pymc_apm.estimators.laplace.blocks import is_log_concave
from pymc_apm.estimators.laplace.dense import NODES, fit, marginal_variances, smooth
from pymc_apm.estimators.laplace.likelihood import Likelihood
from pymc_apm.estimators.laplace.matrices import NotPositiveDefinite
from pymc_apm.estimators.laplace.ops import DenseReference, LaplaceBlockFit
from pymc_apm.estimators.reference import ParameterSpace, Position, maximise, search

VARIATIONAL_STEPS = 10
"""How often the variances of the reference are made again at most."""

VARIATIONAL_TOLERANCE = 0.02
"""Relative changes of all variances with which they are taken for final."""

FEW = 300
"""As many data as tell about where the reference is."""


def dense_reference(
    likelihood: Likelihood,
    cov: TensorVariable,
    mean: TensorVariable,
    jitter: float,
    model: pm.Model,
    reference: Mapping[str, Any] | None,
) -> DenseReference:
    """Find the reference parameters, and fit the Gaussian there as well as can be."""
    space = ParameterSpace([cov, mean, *likelihood.inputs], model, reference)
    size = likelihood.shape[0]
    latest = np.zeros(size)

    def log_posterior(position: Position, rows: NDArray[np.int64]) -> float:
        log_prior = space.log_prior(position)
        if not math.isfinite(log_prior):
            return -math.inf
        cov, mean, *inputs = space.values(position)
        latents = np.broadcast_to(mean, (len(NODES), size)).copy()

        def derivatives(f: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            latents[:, rows] = f
            values, slopes = likelihood.derivatives(latents, inputs)
            return values[:, rows], slopes[:, rows]

        cov = cov[np.ix_(rows, rows)]
        exact = smooth(derivatives, np.zeros(len(rows)))
        start = (latest if latest.any() else mean)[rows]
        try:
            fitted = fit(cov, mean[rows], exact, start, cov.diagonal(), jitter)
        except NotPositiveDefinite:
            return -math.inf
        latest[rows] = mean[rows] + fitted.centre
        laplace = fitted.value - 0.5 * float(fitted.weights @ fitted.centre) - fitted.log_det
        return log_prior + laplace

    everything = np.arange(size)

    def find_mode(start: Position) -> Position:
        if size > FEW:
            # Some of the data tell about where the mode is, in a fraction of the time.
            some = np.sort(np.random.default_rng(0).permutation(size)[:FEW])
            start = maximise(lambda position: log_posterior(position, some), start)
            latest[:] = 0.0
        return maximise(lambda position: log_posterior(position, everything), start)

    position = space.start if reference is not None else search(likelihood.name, space, find_mode)
    cov_there, mean_there, *inputs = space.values(position)
    likelihood.check_factorises(mean_there, inputs)
    if not math.isfinite(log_posterior(position, everything)):
        raise _no_start(likelihood.name, space.describe(position))
    latent, variance = latest, np.zeros(size)
    wide = cov_there.diagonal()
    for _ in range(VARIATIONAL_STEPS):
        smoothed = smooth(lambda f: likelihood.derivatives(f, inputs), variance)
        fitted = fit(cov_there, mean_there, smoothed, latent, wide, jitter, mismatch=1e-3)
        latent = mean_there + fitted.centre
        old, variance = variance, marginal_variances(fitted, cov_there)
        if np.allclose(variance, old, rtol=VARIATIONAL_TOLERANCE):
            break
    return DenseReference(latent, variance)


def block_start(
    likelihood: Likelihood,
    cov: TensorVariable,
    mean: TensorVariable,
    model: pm.Model,
    reference: Mapping[str, Any] | None,
) -> tuple[NDArray[np.float64], bool]:
    """Find the reference parameters, the modes of the blocks there, and if all is log-concave."""
    space = ParameterSpace([cov, mean, *likelihood.inputs], model, reference)
    op = LaplaceBlockFit(likelihood, np.zeros(likelihood.shape))
    modes = op.start

    def log_posterior(position: Position) -> float:
        nonlocal modes
        log_prior = space.log_prior(position)
        if not math.isfinite(log_prior):
            return -math.inf
        cov, mean, *inputs = space.values(position)
        try:
            fitted = op.fit(op.factorise(cov), mean, inputs, modes)
        except EstimatorError:
            return -math.inf
        if np.isfinite(fitted.centre).all():
            modes = fitted.centre
        return log_prior + float((fitted.value - fitted.log_det).sum())

    position = (
        space.start
        if reference is not None
        else search(likelihood.name, space, lambda start: maximise(log_posterior, start))
    )
    if not math.isfinite(log_posterior(position)):
        raise _no_start(likelihood.name, space.describe(position))
    cov_there, mean_there, *inputs = space.values(position)
    likelihood.check_factorises(mean_there, inputs)
    hessians = functools.partial(likelihood.hessians, inputs=inputs)
    return modes, is_log_concave(op.factorise(cov_there), mean_there, hessians, modes)


def _no_start(name: str, where: str) -> EstimatorError:
    return EstimatorError(
        f"There is no Laplace approximation of {name} at the reference, {where}: the covariance "
        "has no Cholesky factor there, or the likelihood is zero or not a number. Give a "
        "reference, or other initial values to the random variables of the model. "
        + see("latent_gaussian")
    )
