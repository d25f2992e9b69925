"""The exact posterior of the paper's Ising model, to compare the samplers with."""

from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev, legendre
from numpy.typing import NDArray

from pymc_apm.estimators import Ising

LARGEST_COUPLING = 0.4


class Posterior(NamedTuple):
    """The exact posterior of (J, h) on a grid of quadrature nodes."""

    coupling: NDArray[np.float64]
    field: NDArray[np.float64]
    log_z: NDArray[np.float64]
    probability: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        """The posterior means of J and h."""
        weights = self.probability
        return np.array([weights.sum(axis=1) @ self.coupling, weights.sum(axis=0) @ self.field])

    @property
    def sd(self) -> NDArray[np.float64]:
        """The posterior standard deviations of J and h."""
        weights, (coupling, field) = self.probability, self.mean
        variances = [
            weights.sum(axis=1) @ (self.coupling - coupling) ** 2,
            weights.sum(axis=0) @ (self.field - field) ** 2,
        ]
        return np.sqrt(variances)

    def draw(self, rng: np.random.Generator, n_draws: int) -> list[tuple[float, float, float]]:
        """Draw nodes of the grid: J, h and the log of the normaliser there."""
        chosen = rng.choice(self.probability.size, size=n_draws, p=self.probability.ravel())
        rows, columns = np.unravel_index(chosen, self.probability.shape)
        values = (self.coupling[rows], self.field[columns], self.log_z[rows, columns])
        return list(zip(*(column.tolist() for column in values), strict=True))


def exact_posterior(
    ising: Ising, y: NDArray[np.int8], n_couplings: int = 12, n_fields: int = 9
) -> Posterior:
    """Compute the posterior by quadrature, with an interpolation of log Z.

    Log Z is computed at few nodes, and interpolated by polynomials in J and asinh(h / 0.02)^2: it
    is even in h, and its singularities nearest to the real line are at imaginary h, about that far
    away. Twice as many nodes, or a larger box, change means and standard deviations by less than
    1e-6.
    """
    lower, upper, largest_field, scale = 0.1, LARGEST_COUPLING, 0.2, 0.02
    largest = np.arcsinh(largest_field / scale)
    rows, columns = chebyshev.chebpts1(n_couplings), chebyshev.chebpts1(n_fields)
    couplings = lower + (upper - lower) * (rows + 1) / 2
    fields = scale * np.sinh(largest * np.sqrt((columns + 1) / 2))
    values = np.array([[ising.log_z(j, h) for h in fields] for j in couplings])
    by_row = np.linalg.solve(chebyshev.chebvander(rows, n_couplings - 1), values)
    coefficients = np.linalg.solve(chebyshev.chebvander(columns, n_fields - 1), by_row.T).T

    nodes, weights = legendre.leggauss(200)
    coupling, field = lower + (upper - lower) * (nodes + 1) / 2, largest_field * nodes
    place = 2 * (np.arcsinh(field / scale) / largest) ** 2 - 1
    log_z = chebyshev.chebgrid2d(nodes, place, coefficients)
    interactions, magnetisation = ising.statistics(y)
    log_density = coupling[:, None] * interactions + field * magnetisation - log_z
    probability = np.exp(log_density - log_density.max()) * weights[:, None] * weights
    return Posterior(coupling, field, log_z, probability / probability.sum())
