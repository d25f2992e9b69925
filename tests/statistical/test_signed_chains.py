"""Chains on estimates that are negative one time in ten: right with their signs, wrong without.

The likelihood is f(theta) = exp(-theta / 2), the prior N(0, 1) and the posterior N(-1/2, 1). An
estimate of f is negative with a probability p(theta) between 0 and 0.2, and its absolute value is
f / (1 - 2 p) times noise with the mean 1, so that it is unbiased. A chain that ignores the sign has
a target with the density of the posterior divided by 1 - 2 p(theta).
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_apm as apm
from tests.marks import others_are_slow
from tests.statistical.checks import Z
from tests.steps.models import sample

GRID = np.linspace(-9.0, 9.0, 20_001)
WITHOUT = stats.norm.pdf(GRID, -0.5, 1.0) / (1.0 - 0.4 / (1.0 + np.exp(-2.0 * GRID - 1.0)))
WITHOUT /= WITHOUT.sum()
MEAN, SD = -0.5, 1.0
WRONG_MEAN = float((WITHOUT * GRID).sum())

STEPS = {
    "SS+SS": lambda: apm.APMSlice(),
    "MI+MH": lambda: apm.APMMetropolis(u_update="independence"),
    "PM MH": lambda: apm.PseudoMarginalMH(scaling=2.0),
    "NUTS": lambda: [pm.NUTS(), apm.APMReflectiveU(), apm.APMEllipticalU()],
}


def toy():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=2)
        v = apm.StandardUniform("v", shape=2)
        negative = 0.2 * pt.sigmoid(2.0 * theta + 1.0)
        # Two factors of the likelihood: the square root of it each, with half of its sign.
        ratio = pt.sqrt(1.0 - 2.0 * negative)
        share = 0.5 * (1.0 - ratio)
        log_abs = -0.25 * theta - pt.log(ratio) + 0.5 * u - 0.125
        apm.Potential("log_lik", log_abs, sign=pt.switch(v < share, -1.0, 1.0))
    return model


@pytest.mark.parametrize("name", others_are_slow(["SS+SS", "PM MH"], STEPS))
def test_a_chain_is_right_with_its_signs_and_wrong_without(name):
    model = toy()
    with model:
        step = STEPS[name]()
    idata = sample(model, step, draws=6000, tune=300, chains=2, random_seed=7)
    found = apm.signed(idata)
    row = found.table.loc["theta"]
    assert 0.75 < found.mean_sign < 0.9  # negative about one time in ten
    assert abs(row["mean"] - MEAN) < Z * row["mcse_mean"]
    assert abs(row["sd"] - SD) < Z * row["mcse_sd"]
    assert row["mcse_mean"] < 0.04
    # Without the signs the chain is where the absolute value of the estimate has it.
    naive = float(idata.posterior["theta"].mean())
    assert abs(naive - WRONG_MEAN) < Z * row["mcse_mean"]
    assert abs(naive - MEAN) > Z * row["mcse_mean"]
