"""Whole runs with few particles against the exact posterior, and how fast u forgets."""

import math

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm._compat import dataset_of
from pymc_apm.density.target import Target
from tests.estimators.state_space.particle_models import CASES, sir, sir_log_likelihood
from tests.statistical.checks import mean_z_scores

pytestmark = pytest.mark.slow
