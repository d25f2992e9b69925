"""The seed of a run, and the generators of its chains: those that ``pm.sample`` gives them."""

import json
from typing import Any, NamedTuple

import numpy as np
from pymc.util import get_random_generator

BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""Those of numpy."""


class SeedOfRun(NamedTuple):
    """The seed of a run.

    Attributes
    ----------
    bit_generator : str
        The name of the generator in ``numpy.random``.
    state : dict
        That of a ``numpy.random.SeedSequence``, in plain numbers.
    """

    bit_generator: str
    state: dict[str, Any]

    def generator(self, chain: int) -> np.random.Generator:
        """Return a generator whose first child is that of a chain of ``pm.sample``."""
        spawned = self.state["n_children_spawned"] + chain
        sequence = np.random.SeedSequence(**self.state | {"n_children_spawned": spawned})
        if self.bit_generator not in BIT_GENERATORS:
            raise ValueError(f"unknown generator {self.bit_generator!r:.100}")
        return np.random.Generator(getattr(np.random, self.bit_generator)(sequence))


def seed_of(random_seed: Any) -> SeedOfRun:
    """Return the seed of a run, from all that ``pm.sample`` takes for one."""
    if isinstance(random_seed, int) and random_seed == -1:
        raise ValueError("random_seed = -1 is not allowed: leave it out to have none.")
    bit_generator = get_random_generator(random_seed).bit_generator
    state = json.dumps(bit_generator.seed_seq.state, default=lambda v: np.asarray(v).tolist())
    return SeedOfRun(type(bit_generator).__name__, json.loads(state))
