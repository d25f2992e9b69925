"""The normaliser of an Ising model that is small enough to compute it."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp


def all_spins(n_sites: int) -> NDArray[np.int8]:
    """Return all configurations of some sites, one in each row."""
    numbers = np.arange(2**n_sites)[:, None]
    return (2 * (numbers >> np.arange(n_sites) & 1) - 1).astype(np.int8)


def enumerated_log_z(
    edges: NDArray[np.int32], coupling: NDArray[np.float64], field: NDArray[np.float64]
) -> float:
    """Sum over all configurations; coupling and field are given for each edge and site."""
    spins = all_spins(len(field))
    products = spins[:, edges[:, 0]] * spins[:, edges[:, 1]]
    return float(logsumexp(products @ coupling + spins @ field))


def torus_log_z(width: int, length: int, coupling: float, field: float) -> float:
    """Return the log of the trace of a power of the transfer matrix, from ring to ring.

    Each ring of the torus has ``width`` sites; half of the energy within a ring goes to either of
    the two factors that it is part of, so that the matrix is symmetric.
    """
    rings = all_spins(width).astype(np.float64)
    within = coupling * (rings * np.roll(rings, 1, axis=1)).sum(axis=1) + field * rings.sum(axis=1)
    log_matrix = coupling * (rings @ rings.T) + 0.5 * (within[:, None] + within)
    largest = log_matrix.max()
    eigenvalues = np.linalg.eigvalsh(np.exp(log_matrix - largest))
    signs = np.sign(eigenvalues) ** length
    log_trace = logsumexp(length * np.log(np.abs(eigenvalues) + 1e-300), b=signs)
    return float(log_trace + length * largest)
