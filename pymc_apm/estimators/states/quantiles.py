"""Draws made from normal numbers, and normal numbers that make a draw: as PyTensor graphs.

:func:`quantile_at` is how a simulation is made from the very distributions of which PyMC knows the
density: each draw is its quantile at the probability of being below a standard normal number z.
:func:`score_of` goes back: it draws z given the draw. Where a draw is continuous there is one z
alone; where it is a count, z is uniform on the interval that makes it, in terms of probability.

Numbers are normal and not uniform because both tails of a normal number are known to all digits.
"""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch import basic as dispatch
from pytensor.scalar.basic import ScalarOp, upgrade_to_float64
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random import basic as random
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError
from pymc_apm.estimators.states import counts, tails
from pymc_apm.estimators.states.parts import without_checks
from pymc_apm.kernels.quantiles import LARGEST, SMALLEST


class _CountOp(ScalarOp):
    """A function of numbers from :mod:`~pymc_apm.estimators.states.counts`."""

    def __init__(self, function: Callable[..., float], n_inputs: int) -> None:
        self.function = function
        self.nin = n_inputs
        self.nout = 1
        super().__init__(upgrade_to_float64, name=function.__name__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CountOp) and other.function is self.function

    def __hash__(self) -> int:
        return hash((type(self), self.function.__name__))

    def __reduce__(self) -> Any:
        return _CountOp, (self.function, self.nin)

    def impl(self, *inputs: Any) -> float:
        """Compute it in Python."""
        return self.function(*map(float, inputs))

    def c_code(self, *args: Any) -> str:
        """Refuse: there is none."""
        raise NotImplementedError


@dispatch.register_funcify_and_cache_key(_CountOp)
def _compiled(op: _CountOp, node: Apply | None = None, **kwargs: Any) -> Any:
    source = inspect.getsource(counts) + inspect.getsource(tails) + op.function.__name__
    key = hashlib.sha256(source.encode()).hexdigest()
    return dispatch.numba_njit(op.function), key


POISSON = Elemwise(_CountOp(counts.poisson_quantile, 2))
BINOMIAL = Elemwise(_CountOp(counts.binomial_quantile, 3))
NEGATIVE_BINOMIAL = Elemwise(_CountOp(counts.negative_binomial_quantile, 3))
POISSON_SCORE = Elemwise(_CountOp(counts.poisson_score, 3))
BINOMIAL_SCORE = Elemwise(_CountOp(counts.binomial_score, 4))
NEGATIVE_BINOMIAL_SCORE = Elemwise(_CountOp(counts.negative_binomial_score, 4))

COUNTS = {
    random.PoissonRV: (POISSON, POISSON_SCORE),
    random.BinomialRV: (BINOMIAL, BINOMIAL_SCORE),
    random.NegBinomialRV: (NEGATIVE_BINOMIAL, NEGATIVE_BINOMIAL_SCORE),
}
"""Counts whose quantiles PyMC does not know, with those, and how to go back."""


def normal_probability(z: TensorVariable) -> TensorVariable:
    """Return the probability of being below standard normal numbers."""
    return 0.5 * pt.erfc(-z / pt.sqrt(2.0))


def normal_score(below: TensorVariable, above: TensorVariable) -> TensorVariable:
    """Return finite normal numbers from the probabilities of being below and above them."""
    root = pt.sqrt(2.0)
    tail = pt.clip(pt.minimum(below, above), SMALLEST, 0.5)
    magnitude = root * pt.erfcinv(2.0 * tail)
    return pt.switch(below < above, -magnitude, magnitude)


def quantile_at(draw: TensorVariable, z: TensorVariable) -> TensorVariable:
    """Return a draw made from standard normal numbers, which have its shape.

    Parameters
    ----------
    draw : TensorVariable
        As ``pm.X.dist`` makes it.
    z : TensorVariable

    Returns
    -------
    TensorVariable

    Raises
    ------
    ModelError
        If it is not known how; the message names the distribution.

    Examples
    --------
    >>> import pymc as pm
    >>> import pytensor.tensor as pt
    >>> from pymc_apm.estimators.states.quantiles import quantile_at
    >>> draw = pm.Poisson.dist(3.0)
    >>> quantile_at(draw, pt.constant([-2.0, 0.0, 2.0])).eval().tolist()
    [0.0, 3.0, 7.0]
    """
    op = draw.owner.op
    parameters = _parameters(draw)
    if isinstance(op, random.NormalRV):
        mean, sd = parameters
        return mean + _nan_unless(sd >= 0.0, sd) * z
    if isinstance(op, random.LogNormalRV):
        mean, sd = parameters
        return pt.exp(mean + _nan_unless(sd >= 0.0, sd) * z)
    if isinstance(op, random.MvNormalRV) and draw.type.ndim == 1:
        mean, cov = parameters
        chol = pt.linalg.cholesky(cov, lower=True, on_error="nan")
        return mean + pt.sum(chol * z[None, :], axis=1)
    for family, (quantile, _) in COUNTS.items():
        if isinstance(op, family):
            return quantile(z, *parameters)
    if isinstance(op, random.BernoulliRV):
        (p,) = parameters
        value = pt.where(z >= 0.0, normal_probability(-z) < p, normal_probability(z) >= 1.0 - p)
        return _nan_unless((p >= 0.0) & (p <= 1.0), value)
    if isinstance(op, random.CategoricalRV) and draw.type.ndim == 0:
        (p,) = parameters
        below, above = _cumulated(p)
        n_before = pt.sum(below[:-1] < normal_probability(z))
        n_after = pt.sum(above[:-1] > normal_probability(-z))
        # As PyMC has it for the density.
        is_valid = pt.all(p >= 0.0) & pt.isclose(pt.sum(p), 1.0)
        return _nan_unless(is_valid, pt.where(z < 0.0, n_before, n_after))
    try:
        value = pm.icdf(draw, pt.clip(normal_probability(z), SMALLEST, LARGEST))
    except Exception as error:
        raise ModelError(
            f"there are no quantiles of {op}, from which a draw is made: use another distribution, "
            "or write the draw as a function of those that have them"
        ) from error
    return _nan_where_checks_fail(value)


def score_of(draw: TensorVariable, value: TensorVariable, jitter: TensorVariable) -> TensorVariable:
    """Return standard normal numbers that make a draw: the inverse of :func:`quantile_at`.

    Parameters
    ----------
    draw : TensorVariable
        As ``pm.X.dist`` makes it.
    value : TensorVariable
        What it came out as.
    jitter : TensorVariable
        Uniform numbers of the same shape, to choose among the numbers that make a discrete draw.
    """
    op = draw.owner.op
    parameters = _parameters(draw)
    if isinstance(op, random.NormalRV):
        mean, sd = parameters
        return (value - mean) / sd
    if isinstance(op, random.LogNormalRV):
        mean, sd = parameters
        return (pt.log(value) - mean) / sd
    if isinstance(op, random.MvNormalRV) and draw.type.ndim == 1:
        mean, cov = parameters
        chol = pt.linalg.cholesky(cov, lower=True, on_error="nan")
        root = pt.linalg.solve_triangular(chol, pt.eye(cov.shape[0]), lower=True)
        return pt.sum(root * (value - mean)[None, :], axis=1)
    for family, (_, score) in COUNTS.items():
        if isinstance(op, family):
            return score(jitter, value, *parameters)
    if isinstance(op, random.BernoulliRV):
        (p,) = parameters
        below = pt.where(value > 0, (1.0 - p) + jitter * p, jitter * (1.0 - p))
        return normal_score(below, 1.0 - below)
    if isinstance(op, random.CategoricalRV) and draw.type.ndim == 0:
        below, _ = _cumulated(parameters[0])
        value = value.astype("int64")
        high = below[value]
        low = pt.where(value > 0, below[pt.maximum(value - 1, 0)], 0.0)
        level = low + jitter * (high - low)
        return normal_score(level, 1.0 - level)
    (log_below,) = without_checks([pm.logcdf(draw, value)])
    if draw.type.dtype.startswith(("int", "uint")):
        (log_before,) = without_checks([pm.logcdf(draw, value - 1)])
        before = pt.exp(log_before)
        level = before + jitter * (pt.exp(log_below) - before)
        return normal_score(level, 1.0 - level)
    return normal_score(pt.exp(log_below), -pt.expm1(log_below))


def has_score(draw: TensorVariable) -> bool:
    """Say whether :func:`score_of` knows a draw."""
    value = pt.tensor(dtype=draw.type.dtype, shape=draw.type.shape)
    try:
        score_of(draw, value, pt.tensor(dtype="float64", shape=draw.type.shape))
        quantile_at(draw, pt.tensor(dtype="float64", shape=draw.type.shape))
    except Exception:  # each distribution says in its own way that it has no distribution function
        return False
    return True


def _parameters(draw: TensorVariable) -> list[TensorVariable]:
    op = draw.owner.op
    if not hasattr(op, "dist_params"):
        return []
    return [pt.as_tensor_variable(parameter) for parameter in op.dist_params(draw.owner)]


def _cumulated(p: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return the probabilities of at most each category, and of more than it."""
    total = pt.sum(p, axis=-1)
    below = pt.cumsum(p, axis=-1)
    above = pt.cumsum(p[::-1], axis=-1)[::-1] - p
    return below / total, above / total


def _nan_unless(is_valid: TensorVariable, value: TensorVariable) -> TensorVariable:
    return pt.switch(is_valid, value, float("nan"))


def _nan_where_checks_fail(value: TensorVariable) -> TensorVariable:
    """Replace checks of parameters by NaN where they fail, for each number by itself."""
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.traversal import toposort

    while True:
        nodes = [n for n in toposort([value]) if isinstance(n.op, CheckParameterValue)]
        if not nodes:
            return value
        inner, *conditions = nodes[0].inputs
        for condition in conditions:
            inner = pt.switch(pt.as_tensor_variable(condition), inner, float("nan"))
        (value,) = clone_replace([value], {nodes[0].outputs[0]: inner}, rebuild_strict=False)
