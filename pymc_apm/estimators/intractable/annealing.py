"""Annealed importance sampling of the ratio of two normalisers (Neal, 2001)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def annealed_log_ratio(
    family: Any,
    x: Any,
    parameters: Sequence[Any],
    reference: Sequence[Any],
    u: NDArray[np.float64],
) -> float:
    """Estimate log Z(reference) / Z(parameters) by annealed importance sampling (Neal, 2001).

    Parameters
    ----------
    family : Family
    x : object
        An exact sample at the parameters.
    parameters, reference : sequence
        Both ends of the straight line along which the intermediate distributions are.
    u : ndarray
        The uniform numbers of the transition at each of these, one row for each; without any, this
        is plain importance sampling.

    Returns
    -------
    float
    """
    return annealed(family, x, parameters, reference, u)[0]


def annealed(
    family: Any,
    x: Any,
    parameters: Sequence[Any],
    reference: Sequence[Any],
    u: NDArray[np.float64],
) -> tuple[float, Any]:
    """Return the log weight of annealed importance sampling, and the state at its end."""
    log_weight = 0.0
    here = parameters
    for k, numbers in enumerate(u, start=1):
        weight = k / (len(u) + 1)
        there = [
            (1.0 - weight) * start + weight * end
            for start, end in zip(parameters, reference, strict=True)
        ]
        log_weight += family.log_g(x, *there) - family.log_g(x, *here)
        x = family.transition(x, *there, numbers)
        here = there
    return log_weight + family.log_g(x, *reference) - family.log_g(x, *here), x
