"""What every kernel takes and returns."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatVector: TypeAlias = NDArray[np.float64]


class State(NamedTuple):
    """A point of the chain with its log density.

    Attributes
    ----------
    position : ndarray
        The variables that the kernel updates (for a joint proposal, a tuple of such arrays).
    log_density : float
        The log density at ``position``, as it was computed when the chain came here.
    memo : object
        What the log density wants to keep of that computation. Kernels hand it on unread.
    """

    position: Any
    log_density: float
    memo: Any = None


LogDensity: TypeAlias = Callable[[Any, Any], tuple[float, Any]]
"""``log_density(position, memo) -> (value, new_memo)``; ``-inf`` where the density is zero."""
