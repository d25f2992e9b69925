"""Covariance matrices and their Cholesky factors, by LAPACK and without needless memory."""

import math
import sys
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsymm, dsymv, dtrsm, dtrsv
from scipy.linalg.lapack import dpotrf

FloatArray: TypeAlias = NDArray[np.float64]

MAX_BUFFERS = 8
"""How many matrices are kept for further use at most."""

JITTERS = (1.0, 1e2, 1e4)
"""Factors of the jitter to try, one after the other, until the covariance has a factor."""


class NotPositiveDefinite(ValueError):
    """A covariance has no Cholesky factor, even with more jitter."""


class Buffers:
    """Matrices that are used again as soon as nobody else holds them.

    Fresh memory for a large matrix costs a good part of its factorisation, because the system hands
    it out page by page. A chain holds the factors of a few evaluations at a time.
    """

    def __init__(self) -> None:
        self._matrices: list[FloatArray] = []

    def take(self, size: int) -> FloatArray:
        """Return a square matrix by columns, with anything in it."""
        for place in range(len(self._matrices)):
            if _references(self._matrices, place) == UNHELD and len(self._matrices[place]) == size:
                return self._matrices[place]
        matrix = np.empty((size, size), order="F")
        self._matrices = [*self._matrices[-MAX_BUFFERS + 1 :], matrix]
        return matrix


def _references(matrices: list[FloatArray], place: int) -> int:
    return sys.getrefcount(matrices[place])


UNHELD = _references([np.empty(0)], 0)
"""The count of references to a matrix in a list that nobody else holds; Pythons differ in it."""


class Covariance:
    """A covariance matrix, with a ridge, of which only one triangle is read.

    Parameters
    ----------
    matrix : ndarray
    ridge : float
        What to add to the diagonal.
    buffers : Buffers, optional
        Where to take the memory of factors from.
    """

    def __init__(
        self, matrix: FloatArray, ridge: float = 0.0, buffers: Buffers | None = None
    ) -> None:
        # LAPACK wants its matrices by column; the transpose of a symmetric one is free.
        self.matrix = matrix.T if matrix.flags.c_contiguous else np.asfortranarray(matrix)
        self.ridge = ridge
        self._buffers = buffers or Buffers()

    def __matmul__(self, x: FloatArray) -> FloatArray:
        if x.ndim == 1:
            product: FloatArray = dsymv(1.0, self.matrix, x, lower=1)
        else:
            product = dsymm(1.0, self.matrix, x, lower=1)
        if self.ridge:
            product += self.ridge * x
        return product

    def factorise(self, jitter: float) -> FloatArray:
        """Return the Cholesky factor, with as much of a ridge as it takes; keep the ridge.

        The ridge is ``jitter`` times the mean variance, or a multiple of it if that is too little.
        """
        diagonal = self.matrix.diagonal()
        scale = float(diagonal.mean())
        if not (math.isfinite(scale) and scale > 0.0):
            raise NotPositiveDefinite(f"its mean variance is {scale}")
        n_tries = len(JITTERS) if jitter else 1
        for factor in JITTERS[:n_tries]:
            self.ridge = factor * jitter * scale
            lower = self._buffers.take(len(self.matrix))
            np.copyto(lower, self.matrix)
            np.einsum("ii->i", lower)[...] += self.ridge
            lower, info = dpotrf(lower, lower=1, clean=0, overwrite_a=1)
            if info == 0:
                return lower
        raise NotPositiveDefinite(
            f"the leading minor of order {info} is not positive, with {self.ridge:.3g} added to "
            "its diagonal"
        )

    def balanced(self, root: FloatArray) -> tuple[FloatArray, float]:
        """Factorise B = I + S K S, S = diag(root); return the factor and its log determinant."""
        b = self._buffers.take(len(self.matrix))
        np.multiply(self.matrix, root, out=b)
        b *= root[:, None]
        np.einsum("ii->i", b)[...] += 1.0 + self.ridge * root * root
        lower, info = dpotrf(b, lower=1, clean=0, overwrite_a=1)
        log_det = float(np.log(lower.diagonal()).sum()) if info == 0 else math.nan
        if not math.isfinite(log_det):  # LAPACK may let pass what is not a number
            raise NotPositiveDefinite("I + S K S is not, so that K has negative eigenvalues")
        return lower, log_det


def solve(factor: FloatArray, x: FloatArray) -> FloatArray:
    """Solve L L' z = x."""
    if x.ndim == 1:
        return dtrsv(factor, dtrsv(factor, x, lower=1), lower=1, trans=1, overwrite_x=1)
    half = dtrsm(1.0, factor, x, lower=1)
    return dtrsm(1.0, factor, half, lower=1, trans_a=1, overwrite_b=1)
