"""The options of steps that propose parameters by a random walk, and what they learn."""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pymc_apm.adaptive.random_walk import WalkLearnt, WalkOptions, freeze_walk, start_walk
from pymc_apm.density.layout import Layout
from pymc_apm.validation import acceptance, cholesky_factor, one_of, positive_number


class WalksRandomly:
    """Gives a step the scale and the covariance of its proposals, learnt while tuning."""

    optimal_scaling = 2.38
    """The scale, times the square root of the dimension, that is best for a Gaussian target."""

    first_scaling = 1.0
    """The scale to start tuning with, relative to that."""

    options: WalkOptions

    def configure(
        self,
        layout: Layout,
        scaling: float | None,
        covariance: ArrayLike | None,
        target_accept: float | tuple[float, float],
        directions: str,
        theta_updates: int = 1,
        correlation: float | Literal["auto"] = 0.0,
        has_pilot: bool = True,
    ) -> None:
        """Take the user's options; a pilot of slices needs a log density."""
        name = type(self).__name__
        one_of(f"directions of {name}", directions, "all", "coordinate")
        self.layout = layout
        self.directions = directions
        self.first_correlation = 0.0 if correlation == "auto" else correlation
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
            tunes_correlation=correlation == "auto",
            tunes_scale=self.scaling is None,
            learns_covariance=learns_covariance,
            # There are no slices of integers.
            has_pilot=has_pilot and learns_covariance and not is_discrete,
        )

    def default_scaling(self) -> float:
        """Return the scale that is best for a Gaussian target."""
        n_together = 1 if self.directions == "coordinate" else self.layout.size
        return self.optimal_scaling / math.sqrt(n_together)

    def start(self) -> WalkLearnt:
        """Return the covariance, the scale and the correlation to start with."""
        cholesky = np.eye(self.layout.size) if self.fixed_cholesky is None else self.fixed_cholesky
        scaling = self.first_scaling * self.default_scaling()
        return start_walk(
            cholesky, scaling if self.scaling is None else self.scaling, self.first_correlation
        )

    def freeze(self, learnt: WalkLearnt) -> WalkLearnt:
        """Return the covariance, the scale and the correlation to use after tuning."""
        return freeze_walk(self.options, learnt)
