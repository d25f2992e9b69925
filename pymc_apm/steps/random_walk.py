"""How the steps that propose parameters by a random walk learn its scale and its covariance."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_apm.adaptation import (
    Covariance,
    Scale,
    freeze_scale,
    learn_covariance,
    start_covariance,
    tune_scale,
)
from pymc_apm.kernels.state import FloatVector
from pymc_apm.layout import Layout
from pymc_apm.options import acceptance, cholesky_factor, one_of, positive_number


class TunesRandomWalk:
    """Gives a step the scale and the covariance of its proposals, learnt while tuning."""

    optimal_scaling = 2.38
    """The scale, times the square root of the dimension, that is best for a Gaussian target."""

    first_scaling = 1.0
    """The scale to start tuning with, relative to that."""

    tune: bool
    learnt_covariance: Covariance
    learnt_scale: Scale

    def configure(
        self,
        layout: Layout,
        scaling: float | None,
        covariance: ArrayLike | None,
        target_accept: float | tuple[float, float],
        directions: str,
    ) -> None:
        """Take the user's options, and start with what they leave open."""
        name = type(self).__name__
        one_of(f"directions of {name}", directions, "all", "coordinate")
        self.layout = layout
        self.directions = directions
        self.scaling = None if scaling is None else positive_number(f"scaling of {name}", scaling)
        self.fixed_cholesky = (
            None
            if covariance is None
            else cholesky_factor(f"covariance of {name}", covariance, layout.size)
        )
        self.target_accept = acceptance(f"target_accept of {name}", target_accept)
        self._discrete = layout.discrete if layout.discrete.any() else None
        self.reset_tuning()

    def reset_tuning(self) -> None:
        """Forget what was learnt while tuning."""
        cholesky = np.eye(self.layout.size) if self.fixed_cholesky is None else self.fixed_cholesky
        self.learnt_covariance = start_covariance(cholesky)
        scaling = self.first_scaling * self.default_scaling()
        self.learnt_scale = Scale(scaling if self.scaling is None else self.scaling)

    def default_scaling(self) -> float:
        """Return the scale that is best for a Gaussian target."""
        n_together = 1 if self.directions == "coordinate" else self.layout.size
        return self.optimal_scaling / math.sqrt(n_together)

    def factors(self) -> list[NDArray[np.float64]]:
        """Return the factor of the covariance of each proposal of an update, before scaling.

        That is one for all parameters, or one column for each of them.
        """
        cholesky = self.learnt_covariance.cholesky
        if self.directions == "all":
            return [cholesky]
        deviations = np.diag(np.sqrt((cholesky**2).sum(axis=1)))
        return np.split(deviations, self.layout.size, axis=1)

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        if self.tune and self.scaling is None:
            self.learnt_scale = freeze_scale(self.learnt_scale, self.target_accept)
        super().stop_tuning()  # type: ignore[misc]  # that of the step this is mixed into

    @property
    def learns_covariance(self) -> bool:
        """Whether the covariance is to be learnt while tuning."""
        return self.fixed_cholesky is None and self.scaling is None

    def tune_scale(self, accept_rate: float) -> None:
        """Tune the scale after an update, if it is time to."""
        if self.tune and self.scaling is None:
            self.learnt_scale = tune_scale(self.learnt_scale, accept_rate, self.target_accept)

    def learn_covariance(self, theta: FloatVector) -> None:
        """Take one more draw into account for the covariance, if it is time to."""
        if not (self.tune and self.learns_covariance):
            return
        self.learnt_covariance, changed = learn_covariance(self.learnt_covariance, theta)
        if changed:
            self.learnt_scale = Scale(self.default_scaling())
