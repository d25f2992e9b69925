"""Sample posteriors whose likelihood can only be estimated, with PyMC.

Auxiliary pseudo-marginal methods after Murray and Graham (2016), "Pseudo-Marginal Slice Sampling":
the random numbers u of an unbiased likelihood estimator become part of the state of the Markov
chain, and the parameters are updated with u clamped.
"""

from importlib.metadata import version

from pymc_apm import estimators
from pymc_apm._hooks import install
from pymc_apm.black_box import black_box
from pymc_apm.claims import clamped
from pymc_apm.diagnostics import compare, estimator_report, sticking, tune_estimator
from pymc_apm.marginal import (
    log_likelihood,
    marginalize,
    sample_latent,
    sample_posterior_predictive,
)
from pymc_apm.plots import (
    plot_acceptance,
    plot_compare,
    plot_cost_autocorr,
    plot_estimator,
    plot_trace_sticking,
)
from pymc_apm.potential import Potential
from pymc_apm.randomness import Seed, StandardNormal, StandardUniform, Stream
from pymc_apm.runs import open_run, sample, stop_run
from pymc_apm.steps import (
    APMEllipticalU,
    APMIndependenceU,
    APMMetropolis,
    APMReflectiveU,
    APMSlice,
    ExchangeMH,
    PseudoMarginalMH,
)

__version__ = version("pymc_apm")

__all__ = [
    "APMEllipticalU",
    "APMIndependenceU",
    "APMMetropolis",
    "APMReflectiveU",
    "APMSlice",
    "ExchangeMH",
    "Potential",
    "PseudoMarginalMH",
    "Seed",
    "StandardNormal",
    "StandardUniform",
    "Stream",
    "black_box",
    "clamped",
    "compare",
    "estimator_report",
    "estimators",
    "log_likelihood",
    "marginalize",
    "open_run",
    "plot_acceptance",
    "plot_compare",
    "plot_cost_autocorr",
    "plot_estimator",
    "plot_trace_sticking",
    "sample",
    "sample_latent",
    "sample_posterior_predictive",
    "sticking",
    "stop_run",
    "tune_estimator",
]

# What this does to PyMC is listed there.
install()
