"""The estimate: the mean weight of some draws, for each factor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_apm.density.labels import Labels
from pymc_apm.estimators.importance_sampling import log_mean_exp
from pymc_apm.marginal.structure import Structure, guarded
from pymc_apm.marginal.weights import Weights
from pymc_apm.potential import Potential
from pymc_apm.randomness import StandardNormal, StandardUniform

__all__ = ["add_estimate", "by_laplace", "log_weights_of", "numbers_of_blocks"]


def add_estimate(
    name: str, weights: Weights, structure: Structure, samples: int, model: pm.Model
) -> TensorVariable:
    """Add the log of the mean weight of draws from the proposals to a model."""
    u = []
    for latent, maker in weights.makers.items():
        declare = {"normal": StandardNormal, "uniform": StandardUniform}[maker.kind]
        shape = (samples, *weights.u[latent].type.shape)
        u.append(declare(f"{latent}_u", shape=shape, model=model))
    _, log_weights = log_weights_of(weights, structure, u)
    estimate = log_mean_exp(log_weights, axis=0)
    estimate = guarded(estimate + _penalty(weights), structure.read)
    return Potential(name, estimate, model=model)


def _penalty(weights: Weights) -> Any:
    return 0.0 if weights.is_valid is None else pt.switch(weights.is_valid, 0.0, -np.inf)


def log_weights_of(
    weights: Weights, structure: Structure, u: Sequence[TensorVariable]
) -> tuple[list[TensorVariable], TensorVariable]:
    """Return draws, along the first axis, and the logs of their weights for each factor."""
    latents, terms = weights.at(u)
    total: Any = None
    for name, values in zip(weights.terms, terms, strict=True):
        if structure.n_factors == 1:
            sums = pt.sum(values, axis=tuple(range(1, values.type.ndim)))[:, None]
        else:
            flat = values if values.type.ndim == 2 else values.reshape((values.shape[0], -1))
            sums = _sums_of_factors(flat, structure.of_terms[name], structure.n_factors)
        total = sums if total is None else total + sums
    # What is no number has the density zero, as for PyMC's own samplers: a square root of a
    # latent variable is none where that is negative. One such draw must not spoil the mean.
    return latents, pt.switch(pt.isnan(total), -np.inf, total) if structure.nan_is_zero else total


def _sums_of_factors(values: TensorVariable, factors: Labels, n_factors: int) -> TensorVariable:
    """Add up (samples, terms) by factor, to (samples, factors)."""
    if np.array_equal(factors, np.arange(n_factors)):
        return values
    counts = np.bincount(factors, minlength=n_factors)
    order = np.argsort(factors, kind="stable")
    if (counts == counts[0]).all():
        # Groups of equal size, which is the common case, are an axis of their own.
        if not np.array_equal(order, np.arange(len(order))):
            values = values[:, order]
        return values.reshape((values.shape[0], n_factors, int(counts[0]))).sum(axis=-1)
    sums = pt.zeros((values.shape[0], n_factors), dtype=values.dtype)
    return pt.inc_subtensor(sums[:, factors], values)


# Blocks of standard normal numbers, as the Laplace approximation wants them


def numbers_of_blocks(structure: Structure) -> tuple[int, int]:
    """Return how many blocks there are, one for each integral, and the size of the largest."""
    n_latents = structure.n_latents
    return len(n_latents), int(n_latents.max())


def n_unused(structure: Structure) -> int:
    """Return how many random numbers feed nothing that was observed."""
    return sum(int((labels < 0).sum()) for labels in structure.of_u.values())


def from_blocks(
    structure: Structure, blocks: TensorVariable, unused: TensorVariable | None = None
) -> list[TensorVariable]:
    """Return the random numbers of all latent variables.

    Parameters
    ----------
    structure : Structure
    blocks : TensorVariable
        Shape (..., blocks, size of a block). Smaller blocks leave the last numbers out.
    unused : TensorVariable, optional
        Shape (..., n_unused(structure)). Numbers that feed nothing; any will do if not given.
    """
    used = np.zeros(len(structure.n_latents), dtype=np.int64)
    n_blocks, size = numbers_of_blocks(structure)
    flat = blocks.reshape(
        (*(blocks.shape[i] for i in range(blocks.type.ndim - 2)), n_blocks * size)
    )
    if unused is not None:
        flat = pt.concatenate([flat, unused], axis=-1)
    found, n_skipped = [], 0
    for labels in structure.of_u.values():
        places = np.zeros(labels.size, dtype=np.int64)
        for element, factor in enumerate(labels.ravel()):
            if factor >= 0:
                places[element] = factor * size + used[factor]
                used[factor] += 1
            elif unused is not None:
                places[element] = n_blocks * size + n_skipped
                n_skipped += 1
        taken = flat[..., places]
        lead = [taken.shape[i] for i in range(taken.type.ndim - 1)]
        found.append(pt.reshape(taken, (*lead, *labels.shape), ndim=len(lead) + labels.ndim))
    return found


def by_laplace(
    name: str, weights: Weights, structure: Structure, samples: int, model: pm.Model
) -> TensorVariable:
    """Add an estimate whose proposal is the Laplace approximation of the random numbers.

    Latent variables that are functions of standard normal numbers z have the posterior of z
    approximated by a Gaussian.
    """
    from pymc_apm.estimators.laplace.estimator import laplace_importance

    n_blocks, size = numbers_of_blocks(structure)
    labels = {
        term: structure.of_terms.get(term, np.zeros(1, dtype=np.int64)) for term in weights.terms
    }
    chosen = {term: np.flatnonzero(of < n_blocks) for term, of in labels.items()}

    def log_lik(blocks: TensorVariable) -> TensorVariable:
        u = [
            pt.specify_shape(part, one.type.shape)
            for part, one in zip(from_blocks(structure, blocks), weights.u.values(), strict=True)
        ]
        replaced = weights.replaced(dict(zip(weights.u.values(), u, strict=True)))
        if not structure.of_terms:
            total = [pt.sum(term)[None] for term in replaced.terms.values()]
        else:
            total = [
                term.ravel()[chosen[label]]
                if len(chosen[label]) < labels[label].size
                else term.ravel()
                for label, term in replaced.terms.items()
            ]
        terms = pt.concatenate(total) + _penalty(weights)
        if structure.nan_is_zero:  # see log_weights_of
            terms = pt.switch(pt.isnan(terms), -np.inf, terms)
        return guarded(terms, structure.read)

    groups = np.concatenate([of[chosen[term]] for term, of in labels.items()])
    result = laplace_importance(
        name, log_lik, np.eye(size), groups=groups, samples=samples, model=model
    )
    # What depends on no latent variable is the same for all of their values.
    zeros = {u: pt.zeros(u.type.shape, dtype=u.type.dtype) for u in weights.u.values()}
    anywhere = weights.replaced(zeros)
    rest = [
        term.ravel()[np.flatnonzero(labels[label] >= n_blocks)]
        for label, term in anywhere.terms.items()
        if (labels[label] >= n_blocks).any()
    ]
    if rest:
        pm.Potential(f"{name}_rest", pt.concatenate(rest), model=model)
    return result
