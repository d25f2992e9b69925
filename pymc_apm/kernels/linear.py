"""Products of small matrices and vectors."""

import math

import numpy as np

from pymc_apm.kernels.state import FloatVector


def product(matrix: FloatVector, vector: FloatVector) -> FloatVector:
    """Return the product of a matrix and a vector."""
    return np.dot(matrix, vector)


def length(vector: FloatVector) -> float:
    """Return the Euclidean length of a vector."""
    return math.sqrt(np.dot(vector, vector))
