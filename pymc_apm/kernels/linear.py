"""Arithmetic with vectors and small matrices.

These functions have a second source, of plain loops, for Numba
(:mod:`pymc_apm.compiled.substitutes`); the update rules that call them have one for both.
"""

import math

import numpy as np

from pymc_apm.kernels.state import FloatVector


def product(matrix: FloatVector, vector: FloatVector) -> FloatVector:
    """Return the product of a matrix and a vector."""
    return np.dot(matrix, vector)


def stretched(cholesky: FloatVector, noise: FloatVector, scale: float) -> FloatVector:
    """Return ``scale * cholesky @ noise``, for a lower triangular matrix; may overwrite noise."""
    return np.dot(cholesky, noise) * scale


def length(vector: FloatVector) -> float:
    """Return the Euclidean length of a vector."""
    return math.sqrt(np.dot(vector, vector))


def another(vector: FloatVector) -> FloatVector:
    """Return memory for another vector of the same size, when this one is not wanted any more.

    In Python that is new memory: an estimator that is Python too may have kept the vector. A
    compiled one keeps nothing, so that there it is the vector itself.
    """
    return np.empty(vector.size)
