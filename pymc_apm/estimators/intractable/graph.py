"""The graph of an Ising model: edges, and the neighbours of each site."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_apm.errors import ModelError, describe_value
from pymc_apm.validation import positive_integer


def checked_edges(edges: ArrayLike) -> NDArray[np.int32]:
    """Check the edges that a user gives, pairs of sites."""
    array = np.asarray(edges)
    if array.size == 0:
        return np.empty((0, 2), np.int32)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu" or array.min() < 0:
        raise ModelError(
            "The edges of an Ising model must be pairs of sites, numbered from 0, with shape "
            f"(n_edges, 2), got {describe_value(array)}."
        )
    if (array[:, 0] == array[:, 1]).any():
        raise ModelError("An edge of an Ising model joins a site to itself.")
    if len(np.unique(np.sort(array, axis=1), axis=0)) < len(array):
        raise ModelError("An edge of an Ising model is given twice.")
    return np.ascontiguousarray(array, dtype=np.int32)


def lattice_edges(n_rows: int, n_columns: int, torus: bool) -> NDArray[np.int64]:
    """Return the edges of a square lattice whose sites are numbered row by row."""
    n_rows = positive_integer("n_rows of Ising.lattice", n_rows)
    n_columns = positive_integer("n_columns of Ising.lattice", n_columns)
    if torus and min(n_rows, n_columns) < 3:
        raise ModelError(
            f"A torus needs at least 3 rows and columns, got {n_rows} x {n_columns}: with 2, each "
            "site would be a neighbour of another one twice."
        )
    sites = np.arange(n_rows * n_columns).reshape(n_rows, n_columns)
    below, right = np.roll(sites, -1, axis=0), np.roll(sites, -1, axis=1)
    rows, columns = (n_rows, n_columns) if torus else (n_rows - 1, n_columns - 1)
    vertical = np.column_stack((sites[:rows].ravel(), below[:rows].ravel()))
    horizontal = np.column_stack((sites[:, :columns].ravel(), right[:, :columns].ravel()))
    return np.concatenate((vertical, horizontal))


def neighbours_of(
    edges: NDArray[np.int32], n_sites: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """List the neighbours of all sites, one site after the other.

    Returns
    -------
    starts : ndarray
        Where the neighbours of each site start, and where those of the last one end.
    neighbours : ndarray
    edge_of_neighbour : ndarray
        The edge that leads to each.
    """
    # Each edge twice, sorted by the site that it is seen from.
    ends = np.concatenate((edges, edges[:, ::-1]))
    order = np.argsort(ends[:, 0], kind="stable")
    degrees = np.bincount(ends[:, 0], minlength=n_sites)
    starts = np.concatenate(([0], np.cumsum(degrees))).astype(np.int32)
    return starts, np.ascontiguousarray(ends[order, 1]), order % max(len(edges), 1)
