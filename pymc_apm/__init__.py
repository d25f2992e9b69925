"""Sample posteriors whose likelihood can only be estimated, with PyMC.

Auxiliary pseudo-marginal methods after Murray and Graham (2016), "Pseudo-Marginal Slice Sampling":
the random numbers u of an unbiased likelihood estimator become part of the state of the Markov
chain, and the parameters are updated with u clamped.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pymc_apm import estimators
from pymc_apm._hooks import install
from pymc_apm.black_box import black_box
from pymc_apm.claims import clamped
from pymc_apm.diagnostics import (
    calibrate,
    check_unbiased,
    compare,
    estimator_report,
    signed,
    sticking,
    tune_estimator,
)
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
    plot_states,
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

if TYPE_CHECKING:
    from pymc_apm.estimators.states.afterwards import forecast, predict, sample_states

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
    "calibrate",
    "check_unbiased",
    "clamped",
    "compare",
    "estimator_report",
    "estimators",
    "forecast",
    "log_likelihood",
    "marginalize",
    "open_run",
    "plot_acceptance",
    "plot_compare",
    "plot_cost_autocorr",
    "plot_estimator",
    "plot_states",
    "plot_trace_sticking",
    "predict",
    "sample",
    "sample_latent",
    "sample_posterior_predictive",
    "sample_states",
    "signed",
    "sticking",
    "stop_run",
    "tune_estimator",
]

# These import Numba, which takes longer to import than all else.
_WHEN_ASKED_FOR = {
    "forecast": "pymc_apm.estimators.states.afterwards",
    "predict": "pymc_apm.estimators.states.afterwards",
    "sample_states": "pymc_apm.estimators.states.afterwards",
}


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHEN_ASKED_FOR[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# What this does to PyMC is listed there.
install()
