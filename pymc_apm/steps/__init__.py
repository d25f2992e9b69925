"""Step methods for ``pm.sample``: PyMC's protocol around kernels; no algorithm lives here."""

from pymc_apm.steps.exchange import ExchangeMH
from pymc_apm.steps.metropolis import APMMetropolis
from pymc_apm.steps.pseudo_marginal import PseudoMarginalMH
from pymc_apm.steps.slice import APMSlice
from pymc_apm.steps.u_only import APMEllipticalU, APMIndependenceU, APMReflectiveU

__all__ = [
    "APMEllipticalU",
    "APMIndependenceU",
    "APMMetropolis",
    "APMReflectiveU",
    "APMSlice",
    "ExchangeMH",
    "PseudoMarginalMH",
]
