"""Whether to trust a run, and the estimator behind it."""

from pymc_apm.diagnostics.calibration import Calibration, calibrate
from pymc_apm.diagnostics.compare import compare
from pymc_apm.diagnostics.report import EstimatorReport, estimator_report
from pymc_apm.diagnostics.signed import Expectation, SignedPosterior, signed
from pymc_apm.diagnostics.sticking import Sticking, sticking
from pymc_apm.diagnostics.tune import EstimatorTuning, tune_estimator
from pymc_apm.diagnostics.unbiased import UnbiasedCheck, check_unbiased

__all__ = [
    "Calibration",
    "EstimatorReport",
    "EstimatorTuning",
    "Expectation",
    "SignedPosterior",
    "Sticking",
    "UnbiasedCheck",
    "calibrate",
    "check_unbiased",
    "compare",
    "estimator_report",
    "signed",
    "sticking",
    "tune_estimator",
]
