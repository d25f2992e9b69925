"""How the steps that propose parameters by a random walk learn its scale and its covariance."""

import math

import numpy as np
from numpy.typing import ArrayLike

from pymc_apm.adaptation import Covariance, Scale, freeze_scale, start_covariance
from pymc_apm.layout import Layout
from pymc_apm.updates.random_walk import WalkOptions
from pymc_apm.validation import acceptance, cholesky_factor, one_of, positive_number


class TunesRandomWalk:
    """Gives a step the scale and the covariance of its proposals, learnt while tuning."""

    optimal_scaling = 2.38
    """The scale, times the square root of the dimension, that is best for a Gaussian target."""

    first_scaling = 1.0
    """The scale to start tuning with, relative to that."""

    tune: bool
    options: WalkOptions
    learnt_covariance: Covariance
    learnt_scale: Scale

    def configure(
        self,
        layout: Layout,
        scaling: float | None,
        covariance: ArrayLike | None,
        target_accept: float | tuple[float, float],
        directions: str,
        theta_updates: int = 1,
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
        learns_covariance = self.fixed_cholesky is None and self.scaling is None
        is_discrete = bool(layout.discrete.any())
        self.options = WalkOptions(
            is_coordinate=directions == "coordinate",
            theta_updates=theta_updates,
            discrete=layout.discrete if is_discrete else None,
            target_accept=acceptance(f"target_accept of {name}", target_accept),
            default_scaling=self.default_scaling(),
            tunes_scale=self.scaling is None,
            learns_covariance=learns_covariance,
            has_pilot=learns_covariance and not is_discrete,  # there are no slices of integers
        )
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

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        if self.tune and self.scaling is None:
            self.learnt_scale = freeze_scale(self.learnt_scale, self.options.target_accept)
        super().stop_tuning()  # type: ignore[misc]  # that of the step this is mixed into
