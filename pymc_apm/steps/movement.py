"""How far u goes in a draw, and where it is: two numbers of each draw, whatever moved it.

A slice update always moves u, perhaps by next to nothing: "u moved" says little about whether it
mixes. So how far it went is measured, from u before a draw and after it, as the mean squared
distance of its numbers over that of two independent draws from q(u). That is 0 if u stayed, and 1
on average if it is fresh. An angle a on an ellipse makes it 1 - cos(a), a proposal with correlation
rho 1 - rho, each on average over fresh noise; factors count by their numbers. For a stream it is
taken over the numbers that both estimates used; those that one alone used are fresh.

Where u is, for autocorrelations, is its projection on a fixed random direction.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from pymc_apm.types import FloatVector

SEED = 20160509
"""Of the directions of projections: the same in every chain, so that chains can be compared."""

IN_CACHE = 2**15
"""So many numbers are looked at in one go: more would be written to memory and read again."""


class Movement:
    """Measures how far some randomness goes.

    Of several u, it is that of the one which went least; the projection is the sum of theirs.

    Parameters
    ----------
    variables : sequence of SharedVariable
        The randomness that a chain moves.
    """

    def __init__(self, variables: Sequence[SharedVariable]) -> None:
        self._variances = [u.tag.apm_randomness.kind.variance for u in variables]
        self._directions = [np.zeros(0) for _ in variables]

    def of_draw(
        self, before: Sequence[FloatVector], after: Sequence[FloatVector]
    ) -> tuple[float, float]:
        """Return how far each u went in a draw, at the least, and where it is now."""
        moved, projection = math.inf, 0.0
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            n_common, n_fresh = old.size, 0
            if new.size != n_common:
                n_common, n_fresh = min(old.size, new.size), abs(old.size - new.size)
                old = old[:n_common]
            distance = float(self._distances(number, old[None], new[None, :n_common])[0])
            if n_fresh > 0:
                distance = (distance * n_common + n_fresh) / (n_common + n_fresh)
            moved = min(moved, distance)
            projection += float(self._projections(number, new[None])[0])
        return (moved if before else 0.0), projection

    def of_batch(
        self, n_draws: int, before: Sequence[FloatVector], after: Sequence[Any]
    ) -> tuple[FloatVector, FloatVector]:
        """Return the same for many draws, of which there are rows, as two vectors.

        Parameters
        ----------
        n_draws : int
        before : sequence of ndarray
            Each u before the first draw.
        after : sequence of ndarray
            Each u after each draw, one a row.
        """
        moved = np.full(n_draws, np.inf if before else 0.0)
        projection = np.zeros(n_draws)
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            n_rows = max(IN_CACHE // max(old.size, 1), 1)
            for start in range(0, n_draws, n_rows):
                here = slice(start, start + n_rows)
                last = old if start == 0 else new[start - 1]
                rows = np.concatenate((last[None], new[here][:-1]))
                distances = self._distances(number, rows, new[here])
                moved[here] = np.minimum(moved[here], distances)
                projection[here] += self._projections(number, new[here])
        return moved, projection

    def _distances(self, number: int, before: Any, after: Any) -> Any:
        difference = after - before
        # By einsum, in which the sum of a row does not depend on how many rows there are.
        squares = np.einsum("ij,ij->i", difference, difference)
        return squares / max(2.0 * self._variances[number] * after.shape[1], 1e-300)

    def _projections(self, number: int, rows: Any) -> Any:
        size = rows.shape[1]
        direction = self._directions[number]
        if direction.size < size:
            direction = np.random.default_rng([SEED, number]).standard_normal(2 * size)
            self._directions[number] = direction
        scale = math.sqrt(max(size, 1) * self._variances[number])
        return np.einsum("ij,j->i", rows, direction[:size]) / scale
