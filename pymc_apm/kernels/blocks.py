"""Proposals that refresh one block of u and keep the others: block pseudo-marginal.

Tran, M.-N., Kohn, R., Quiroz, M. and Villani, M. (2016), "The block pseudo-marginal sampler",
arXiv:1603.02485. The estimates at two values of u that differ in one of K blocks are correlated,
by about 1 - 1/K where each block feeds its own share of the factors of the likelihood.
"""

from collections.abc import Callable

import numpy as np

from pymc_apm.types import FloatVector


def refresh_block(
    rng: np.random.Generator,
    u: FloatVector,
    draw: Callable[[np.random.Generator, int], FloatVector],
    row: int,
    n_blocks: int,
    block: int,
) -> FloatVector:
    """Propose u with one block drawn afresh from q(u), which is reversible under q(u).

    Parameters
    ----------
    rng : Generator
    u : ndarray
        A vector, or a matrix row by row.
    draw : callable
        ``draw(rng, size)`` draws ``size`` numbers from q(u).
    row : int
        The length of a row; that of ``u`` for a vector. The blocks are ranges of columns, as equal
        as can be, and empty ones if there are fewer columns than blocks.
    n_blocks, block : int
        The number of blocks, and which of them to refresh. It must not be chosen by the value of
        ``u``.

    Returns
    -------
    ndarray
    """
    first = -(-block * row // n_blocks)
    last = -(-(block + 1) * row // n_blocks)
    n_rows = u.size // row if row > 0 else 0
    return with_columns(u, draw(rng, n_rows * (last - first)), row, first, last)


def with_columns(
    u: FloatVector, numbers: FloatVector, row: int, first: int, last: int
) -> FloatVector:
    """Return a copy of a matrix, row by row, with other numbers in some columns."""
    result = u.copy()
    if numbers.size > 0:
        result.reshape(-1, row)[:, first:last] = numbers.reshape(-1, last - first)
    return result


def choose_block(rng: np.random.Generator, n_blocks: int) -> int:
    """Choose one of some blocks at random."""
    return int(rng.random() * n_blocks)
