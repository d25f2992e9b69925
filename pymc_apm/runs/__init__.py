"""Runs that survive: draws and checkpoints in a store, chains that go on, here or elsewhere.

A chain is one call of ``pm.sample``. Its steps are wrapped so that they go on from a checkpoint
(:mod:`pymc_apm.runs.chain`), and its trace writes draws as they come
(:mod:`pymc_apm.runs.recorder`). :mod:`pymc_apm.runs.store` says where things are and what is
checked; :mod:`pymc_apm.runs.sampling` puts it together.
"""

from pymc_apm.runs.reading import open_run, stop_run
from pymc_apm.runs.sampling import sample

__all__ = ["open_run", "sample", "stop_run"]
