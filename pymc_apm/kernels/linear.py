"""Arithmetic with vectors and small matrices.

Compiled code has plain loops for these (:mod:`pymc_apm.compiled.primitives`); the update rules
that call them have one source.
"""

import math

import numpy as np

from pymc_apm.types import FloatVector


def product(matrix: FloatVector, vector: FloatVector) -> FloatVector:
    """Return the product of a matrix and a vector."""
    return np.dot(matrix, vector)


def length(vector: FloatVector) -> float:
    """Return the Euclidean length of a vector."""
    return math.sqrt(np.dot(vector, vector))


def solved(factor: FloatVector, vector: FloatVector) -> FloatVector:
    """Return the vector whose product with a lower triangular matrix is the given one."""
    return np.asarray(np.linalg.solve(factor, vector), dtype=np.float64)


def axis(dim: int, coordinate: int) -> FloatVector:
    """Return the unit vector along a coordinate."""
    vector = np.zeros(dim)
    vector[coordinate] = 1.0
    return vector
