"""The first draws of tuning, which learn the scale of each parameter."""

import numpy as np

from pymc_apm.adaptation import Pilot, learn_from_pilot
from pymc_apm.kernels import LogDensity, SliceInfo, State, coordinate_slice


class HasPilot:
    """A step that can update its parameters one by one while it knows nothing of their scales."""

    pilot: Pilot
    rng: np.random.Generator
    _theta_density: LogDensity

    def update_pilot(self, state: State) -> tuple[State, list[SliceInfo]]:
        """Update each parameter once by slice sampling, and learn from it."""
        widths = [learnt.width for learnt in self.pilot.widths]
        state, infos = coordinate_slice(self.rng, state, self._theta_density, widths)
        self.pilot = learn_from_pilot(self.pilot, infos)
        return state, infos
