"""From an ordinary PyMC model to its pseudo-marginal one, and what comes after sampling."""

from pymc_apm.marginal.latents import sample_latent
from pymc_apm.marginal.likelihoods import log_likelihood
from pymc_apm.marginal.model import marginalize
from pymc_apm.marginal.predictions import sample_posterior_predictive

__all__ = ["log_likelihood", "marginalize", "sample_latent", "sample_posterior_predictive"]
