"""Whether to trust a run, and the estimator behind it."""

from pymc_apm.diagnostics.compare import compare
from pymc_apm.diagnostics.sticking import Sticking, sticking

__all__ = ["Sticking", "compare", "sticking"]
