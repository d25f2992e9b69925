"""Figures, with matplotlib, which is imported when one is drawn."""

from pymc_apm.plots.acceptance import plot_acceptance
from pymc_apm.plots.autocorr import plot_cost_autocorr
from pymc_apm.plots.compare import plot_compare
from pymc_apm.plots.estimator import plot_estimator
from pymc_apm.plots.states import plot_states
from pymc_apm.plots.trace import plot_trace_sticking

__all__ = [
    "plot_acceptance",
    "plot_compare",
    "plot_cost_autocorr",
    "plot_estimator",
    "plot_states",
    "plot_trace_sticking",
]
