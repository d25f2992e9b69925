"""From random numbers to draws of a distribution.

A draw must be a function of random numbers u whose distribution is known, so that a chain can have
u for its state. It is a transform of standard normal numbers where there is one, and else the
quantile function of the distribution at a uniform number. Where PyMC knows no quantile function of
a distribution of counts, the quantile is found by bisection of the distribution function.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.discrete import Binomial, NegativeBinomial, Poisson
from pytensor.tensor.random.basic import (
    BernoulliRV,
    CategoricalRV,
    LogNormalRV,
    MvNormalRV,
    NormalRV,
)
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_apm.density.labels import Joined, UnknownError, Walk
from pymc_apm.errors import ModelError, see
from pymc_apm.marginal.validity import unchecked

__all__ = ["Maker", "maker_of"]

Make = Callable[[TensorVariable, TensorVariable], TensorVariable]

COUNTS: tuple[type, ...] = tuple(
    type(distribution.rv_op) for distribution in (Binomial, NegativeBinomial, Poisson)
)
"""Distributions of counts from 0 on."""

BISECTIONS = 31
"""Halvings of the range from -1 to 2**31 - 1, of which one number is left."""


class Maker(NamedTuple):
    """How to make draws of a distribution.

    Attributes
    ----------
    kind : {"normal", "uniform"}
        What they are made of. There is one random number for each number of a draw.
    make : callable
        ``make(rv, u)`` returns a draw, of the shape of ``u``.
    is_valid : callable
        ``is_valid(rv, shape)`` says whether the parameters are what they may be, where the density
        of the model is not zero.
    is_smooth : bool
        Whether it is a differentiable function of the random numbers.
    """

    kind: Literal["normal", "uniform"]
    make: Make
    is_valid: Callable[[TensorVariable, tuple[int, ...]], TensorVariable]
    is_smooth: bool = True


def maker_of(name: str, rv: TensorVariable) -> Maker:
    """Find out how to make draws of a distribution, by its kind.

    Raises
    ------
    ModelError
        If that is not known.
    """
    op: Any = rv.owner.op if rv.owner else None
    for kind, maker in MAKERS.items():
        if isinstance(op, kind):
            return maker
    reason = _reason_against(rv, op)
    if reason is None:
        is_discrete = rv.type.dtype not in ("float32", "float64")
        return _by_quantiles(_quantile, is_smooth=not is_discrete)
    raise ModelError(
        f"{name} cannot be integrated out with its distribution as the proposal: {reason}. Give a "
        f"proposal of your own, proposal={{{name!r}: pm.Normal.dist(...)}}, or leave {name} in the "
        f"model. {see('marginalize')}"
    )


def _reason_against(rv: TensorVariable, op: Any) -> str | None:
    label = getattr(op, "_print_name", (str(op),))[0]
    if getattr(op, "ndim_supp", None) is None:
        return f"{label} is not a distribution"
    if type(op).__name__ in ("RandomWalkRV", "AutoRegressiveRV"):
        return (
            f"the steps of {label} depend on each other, so that they are one integral of many "
            "dimensions (for a state-space model there are estimators that take its steps one by "
            "one)"
        )
    if op.ndim_supp > 0:
        return f"draws of {label} are vectors, which cannot be made from quantiles"
    try:
        pm.icdf(rv, pt.full((1,) * rv.type.ndim, 0.5))
    except NotImplementedError:
        return f"PyMC knows no quantiles of {label}"
    return None


def _normal(rv: TensorVariable, u: TensorVariable) -> TensorVariable:
    location, scale = rv.owner.op.dist_params(rv.owner)
    return location + scale * u


def _mv_normal(rv: TensorVariable, u: TensorVariable) -> TensorVariable:
    location, cov = rv.owner.op.dist_params(rv.owner)
    chol = pt.linalg.cholesky(cov, lower=True, on_error="nan")
    shift = pt.dot(u, chol.T) if chol.type.ndim == 2 else pt.sum(chol * u[..., None, :], axis=-1)
    return location + shift


def _bernoulli(rv: TensorVariable, u: TensorVariable) -> TensorVariable:
    (p,) = rv.owner.op.dist_params(rv.owner)
    return pt.gt(u, 1.0 - p).astype(rv.type.dtype)


def _categorical(rv: TensorVariable, u: TensorVariable) -> TensorVariable:
    (p,) = rv.owner.op.dist_params(rv.owner)
    below = pt.cumsum(p, axis=-1)[..., :-1]
    return pt.sum(pt.gt(u[..., None], below), axis=-1).astype(rv.type.dtype)


def _quantile(rv: TensorVariable, u: TensorVariable) -> TensorVariable:
    return pm.icdf(_with_known_constants(rv), u).astype(rv.type.dtype)


def _with_known_constants(rv: TensorVariable) -> TensorVariable:
    """Make parameters constants that are, once they are computed.

    PyMC looks for bounds that are constant and infinite, and its quantiles of a truncated normal
    distribution are not numbers if it does not find them. A constant that has been given the shape
    of the variable is none.
    """
    walk = Walk(Joined(0))
    inputs = list(rv.owner.inputs)
    for place, source in enumerate(inputs):
        with contextlib.suppress(UnknownError):
            if isinstance(source.type, TensorType):
                inputs[place] = pt.constant(walk.value_of(source), dtype=source.type.dtype)
    known: TensorVariable = rv.owner.clone_with_new_inputs(inputs, strict=False).outputs[rv.index]
    return known


def _count(rv: TensorVariable, u: TensorVariable) -> TensorVariable:
    """Return the smallest count whose distribution function is not less than u."""
    log_u = pt.log(u)
    low = pt.zeros_like(u, dtype="int64") - 1
    width = 2**BISECTIONS
    for _ in range(BISECTIONS):
        width //= 2
        is_less = pt.lt(pm.logcdf(rv, low + width), log_u)
        low = pt.switch(is_less, low + width, low)
    return (low + 1).astype(rv.type.dtype)


def _by_quantiles(make: Make, is_smooth: bool = False) -> Maker:
    def is_valid(rv: TensorVariable, shape: tuple[int, ...]) -> TensorVariable:
        # Whatever the parameters, the density is positive at a quantile; but that of a gamma or
        # beta distribution of small shape may be rounded to an end of the support.
        quantiles = (unchecked(make(rv, pt.full(shape, p))) for p in (0.01, 0.99))
        low, high = (pt.gt(pm.logp(rv, quantile), -np.inf) for quantile in quantiles)
        return low | high

    return Maker("uniform", make, is_valid, is_smooth)


def _has_scale(rv: TensorVariable, shape: tuple[int, ...]) -> TensorVariable:
    return pt.gt(rv.owner.op.dist_params(rv.owner)[1], 0.0)


def _has_root(rv: TensorVariable, shape: tuple[int, ...]) -> TensorVariable:
    cov = rv.owner.op.dist_params(rv.owner)[1]
    chol = pt.linalg.cholesky(cov, lower=True, on_error="nan")
    return pt.all(pt.gt(pt.diagonal(chol, axis1=-2, axis2=-1), 0.0), axis=-1, keepdims=True)


MAKERS: dict[Any, Maker] = {
    NormalRV: Maker("normal", _normal, _has_scale),
    LogNormalRV: Maker("normal", lambda rv, u: pt.exp(_normal(rv, u)), _has_scale),
    MvNormalRV: Maker("normal", _mv_normal, _has_root),
    BernoulliRV: _by_quantiles(_bernoulli),
    CategoricalRV: _by_quantiles(_categorical),
    COUNTS: _by_quantiles(_count),
}
