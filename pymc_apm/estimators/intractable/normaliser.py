"""The normaliser of an Ising model that is small enough to compute it."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

WIDEST = 12
"""The largest width of a torus whose transfer matrix is taken apart in about a second."""


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
    the two factors that it is part of, so that the matrix is symmetric. It commutes with a rotation
    of the rings, which takes it apart into ``width`` blocks, one for each Fourier component.
    """
    rings, periods = _rings_up_to_rotation(width)
    energy = coupling * (rings * np.roll(rings, 1, axis=1)).sum(axis=1) + field * rings.sum(axis=1)
    within = 0.5 * (energy[:, None] + energy)
    log_matrices = [
        coupling * (rings @ np.roll(rings, shift, axis=1).T) + within for shift in range(width)
    ]
    largest = max(matrix.max() for matrix in log_matrices)
    components = np.fft.fft(np.exp(np.array(log_matrices) - largest), axis=0)

    log_terms = []
    weights = []
    for wave in range(width // 2 + 1):  # the other waves are their mirror images
        # A ring that repeats itself has only the waves that fit into its period.
        fits = wave * periods % width == 0
        norms = np.sqrt(periods[fits] / width)
        block = components[wave][np.ix_(fits, fits)] * norms[:, None] * norms
        eigenvalues = np.linalg.eigvalsh(block)
        eigenvalues = eigenvalues[eigenvalues != 0.0]
        log_terms.append(length * np.log(np.abs(eigenvalues)))
        weights.append(np.sign(eigenvalues) ** length * (1 if 2 * wave in (0, width) else 2))
    log_trace = logsumexp(np.concatenate(log_terms), b=np.concatenate(weights))
    return float(log_trace + length * largest)


def _rings_up_to_rotation(width: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return one ring of each set of rings that are rotations of each other, and its period."""
    rings = all_spins(width)
    powers = 2 ** np.arange(width)
    rotated = np.array(
        [(np.roll(rings, shift, axis=1) > 0) @ powers for shift in range(1, width + 1)]
    )
    numbers = np.arange(2**width)
    is_first = (numbers <= rotated).all(axis=0)
    periods = 1 + (rotated == numbers).argmax(axis=0)
    return rings[is_first].astype(np.float64), periods[is_first]
