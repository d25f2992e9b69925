"""Ready-made estimators, and models to use them with."""

from pymc_apm.estimators.importance import importance, log_mean_exp
from pymc_apm.estimators.ising import Ising
from pymc_apm.estimators.laplace import laplace_importance
from pymc_apm.estimators.latent import sample_latent
from pymc_apm.estimators.unnormalised import Unnormalised, doubly_intractable

__all__ = [
    "Ising",
    "Unnormalised",
    "doubly_intractable",
    "importance",
    "laplace_importance",
    "log_mean_exp",
    "sample_latent",
]
