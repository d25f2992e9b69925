"""The ops of the Laplace estimators: what depends on the parameters alone, and the draws.

The fits are ops of their own without randomness among their inputs, so that the staged target runs
them once per value of the parameters. They count their cubic operations in an output that the
target adds up (``n_cubic`` in the statistics).
"""

import functools
import logging
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.scalar import Exp
from pytensor.tensor.elemwise import Elemwise

from pymc_apm._compat import with_gradient
from pymc_apm.black_box import nodes_between
from pymc_apm.errors import EstimatorError, see
from pymc_apm.estimators.laplace.blocks import BlockFit, fit_blocks
from pymc_apm.estimators.laplace.dense import (
    Fit,
    deviations,
    deviations_as_published,
    fit,
    fit_as_published,
    smooth,
)
from pymc_apm.estimators.laplace.likelihood import Likelihood
from pymc_apm.estimators.laplace.matrices import JITTERS, Buffers, Covariance, NotPositiveDefinite

_log = logging.getLogger("pymc.apm")

# Under Numba they run in Python, where they call LAPACK.
warnings.filterwarnings("ignore", message="Numba will use object mode to run (Laplace|NumpyExp)")


class DenseReference(NamedTuple):
    """The fit at the reference parameter: where Newton's method starts, and how to smooth.

    Attributes
    ----------
    latent : ndarray
    variance : ndarray
    """

    latent: NDArray[np.float64]
    variance: NDArray[np.float64]


@with_gradient
class _PythonOp(Op):
    """An op that calls Python and has no gradient."""

    __props__ = ()
    calls_python = True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def vector_jacobian(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], gradients: Sequence[Variable]
    ) -> list[Variable]:
        """Refuse: there is no gradient."""
        raise NotImplementedError(
            "apm.estimators.laplace_importance has no gradient with respect to the parameters, "
            "which steps like pm.NUTS need. Use a step that needs none, such as apm.APMSlice() or "
            "apm.APMMetropolis(), for all parameters that it depends on. " + see("latent_gaussian")
        )


class NumpyExp(_PythonOp):
    """The exponential of a matrix, by numpy, which has vector instructions for it."""

    def __init__(self) -> None:
        self._buffers = Buffers()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_buffers": Buffers()}

    def make_node(self, x: Variable) -> Apply:
        """Make a node of the graph."""
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Compute it."""
        (x,) = inputs
        is_square = x.shape[0] == x.shape[1]
        outputs[0][0] = np.exp(x, out=self._buffers.take(len(x)).T if is_square else None)


def with_fast_exponentials(matrix: Variable, inputs: Sequence[Variable]) -> Variable:
    """Let numpy compute the exponentials in a graph of matrices, of which covariances are made.

    What PyTensor compiles computes them one after the other. For a covariance of size 768 that
    takes five times as long, a fifth of the time for a value of the parameters.
    """
    while True:
        nodes = nodes_between([matrix], inputs)
        node = next(filter(_is_exponential_of_matrix, nodes), None)
        if node is None:
            return matrix
        (matrix,) = graph_replace([matrix], {node.outputs[0]: NumpyExp()(node.inputs[0])})


def _is_exponential_of_matrix(node: Apply) -> bool:
    return (
        isinstance(node.op, Elemwise)
        and isinstance(node.op.scalar_op, Exp)
        and node.outputs[0].type.ndim == 2
        and node.outputs[0].type.dtype == "float64"
    )


class LaplaceFit(_PythonOp):
    """The fit for one latent vector, from its covariance, its mean and the likelihood's inputs.

    Parameters
    ----------
    likelihood : Likelihood
    reference : DenseReference, optional
        Without it, the fit is made as the paper's authors made it.
    jitter : float
    """

    n_cubic_output = 5

    def __init__(
        self, likelihood: Likelihood, reference: DenseReference | None, jitter: float
    ) -> None:
        self.likelihood = likelihood
        self.reference = reference
        self.jitter = jitter
        self._buffers = Buffers()
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_buffers": Buffers()}

    def make_node(self, cov: Variable, mean: Variable, *inputs: Variable) -> Apply:
        """Make a node of the graph."""
        vector, matrix = pt.TensorType("float64", self.likelihood.shape), pt.dmatrix
        outputs = [
            vector(name="centre"),
            vector(name="weights"),
            vector(name="curvature"),
            pt.dscalar("log_det"),
            pt.dscalar("ridge"),
            pt.lscalar("n_cubic"),
            matrix("factor"),
            matrix("prior_factor"),
        ]
        return Apply(self, [cov, mean, *inputs], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Fit."""
        cov, mean, *others = inputs
        fitted = self.fit(cov, mean, others)
        for storage, value in zip(
            outputs,
            (
                fitted.centre,
                fitted.weights,
                fitted.curvature,
                np.array(fitted.log_det),
                np.array(fitted.ridge),
                np.array(fitted.n_cubic),
                fitted.factor,
                fitted.prior_factor,
            ),
            strict=True,
        ):
            storage[0] = value

    def fit(
        self, cov: NDArray[np.float64], mean: NDArray[np.float64], inputs: Sequence[Any]
    ) -> Fit:
        """Fit a proposal; all of it is NaN if the covariance is not finite."""
        derivatives = functools.partial(self.likelihood.derivatives, inputs=inputs)
        try:
            if self.reference is None:
                exact = smooth(derivatives, np.zeros(self.likelihood.shape))
                fitted = fit_as_published(cov, mean, exact, self.jitter)
            else:
                smoothed = smooth(derivatives, self.reference.variance)
                fitted = fit(
                    cov, mean, smoothed, *self.reference, self.jitter, buffers=self._buffers
                )
        except NotPositiveDefinite as error:
            if math.isfinite(cov.sum()):
                raise not_positive_definite(self.likelihood.name, error) from None
            vector, matrix = np.full(self.likelihood.shape, np.nan), np.full((1, 1), np.nan)
            return Fit(vector, vector, vector, np.nan, matrix, matrix, np.nan, np.nan, 0)
        if fitted.ridge > 1.5 * self.jitter * cov.diagonal().mean() and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "The covariance of %s is ill-conditioned: %.1e had to be added to its diagonal, "
                "%.0e times its mean. Give a larger jitter, at best with the reason why it is.",
                self.likelihood.name,
                fitted.ridge,
                fitted.ridge / cov.diagonal().mean(),
            )
        return fitted


def not_positive_definite(name: str, error: object) -> EstimatorError:
    """Put into words that a covariance has no Cholesky factor."""
    return EstimatorError(
        f"The covariance of {name} is not positive definite: {error}. If it should be, its rows "
        "are too much alike for double precision: give a larger jitter (up to "
        f"{JITTERS[-1]:.0e} times the present one was tried), or remove inputs that occur twice. "
        + see("latent_gaussian")
    )


class LaplaceDraw(_PythonOp):
    """Deviations of draws from the centre of a fit, from standard normal numbers.

    Parameters
    ----------
    is_published : bool
        Whether the fit was made as the paper's authors made it.
    """

    def __init__(self, is_published: bool) -> None:
        self.is_published = is_published

    def make_node(self, cov: Variable, *inputs: Variable) -> Apply:
        """Make a node of the graph: the inputs are ridge, curvature, both factors and u."""
        return Apply(self, [cov, *inputs], [pt.dmatrix("deviations")])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Draw."""
        cov, ridge, curvature, factor, prior_factor, u = inputs
        if np.isnan(ridge):
            drawn = np.full(u.shape[-2:], np.nan)
        elif self.is_published:
            drawn = deviations_as_published(factor, u)
        else:
            drawn = deviations(Covariance(cov, float(ridge)), prior_factor, factor, curvature, u)
        outputs[0][0] = drawn


class LaplaceBlockFit(_PythonOp):
    """The fits of many blocks, from their covariances, their means and the likelihood's inputs.

    Parameters
    ----------
    likelihood : Likelihood
    start : ndarray
        Where Newton's method starts, in terms of the whitened variables.
    """

    def __init__(self, likelihood: Likelihood, start: NDArray[np.float64]) -> None:
        self.likelihood = likelihood
        self.start = start

    def make_node(self, cov: Variable, mean: Variable, *inputs: Variable) -> Apply:
        """Make a node of the graph; the covariance has the shape (1 or blocks, size, size)."""
        n_blocks, size = self.likelihood.shape
        shapes = {
            "centre": (n_blocks, size),
            "spread": (n_blocks, size, size),
            "root": (n_blocks, size, size),
            "log_det": (n_blocks,),
            "prior_factor": cov.type.shape,
        }
        outputs = [pt.tensor(name, dtype="float64", shape=shape) for name, shape in shapes.items()]
        return Apply(self, [cov, mean, *inputs], outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Fit."""
        cov, mean, *others = inputs
        prior_factor = self.factorise(cov)
        fitted = self.fit(prior_factor, mean, others, self.start)
        results = (fitted.centre, fitted.spread, fitted.root, fitted.log_det, prior_factor)
        for storage, value in zip(outputs, results, strict=True):
            storage[0] = value

    def factorise(self, cov: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Cholesky factors of the covariances; a variance may be zero."""
        if cov.shape[-1] == 1:
            if not (cov < 0.0).any():
                return np.sqrt(cov)
            raise not_positive_definite(self.likelihood.name, f"it is {cov.min():.3g}")
        try:
            return np.asarray(np.linalg.cholesky(cov), dtype=np.float64)
        except np.linalg.LinAlgError as error:
            raise not_positive_definite(self.likelihood.name, error) from None

    def fit(
        self,
        prior_factor: NDArray[np.float64],
        mean: NDArray[np.float64],
        inputs: Sequence[Any],
        start: NDArray[np.float64],
    ) -> BlockFit:
        """Fit proposals."""
        hessians = functools.partial(self.likelihood.hessians, inputs=inputs)
        return fit_blocks(prior_factor, mean, hessians, start)
