"""Drawing randomness from q(u)."""

import numpy as np

from pymc_apm.types import FloatVector


def draw_normal(rng: np.random.Generator, size: int) -> FloatVector:
    """Draw from N(0, I)."""
    return rng.standard_normal(size)


def draw_uniform(rng: np.random.Generator, size: int) -> FloatVector:
    """Draw from U(0, 1)^n."""
    return rng.random(size)


def draw_exponential(rng: np.random.Generator, size: int) -> FloatVector:
    """Draw from the exponential distribution with mean 1."""
    return rng.standard_exponential(size)
