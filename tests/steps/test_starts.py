"""Where chains start: u that another step updates may make the estimate zero; empty parameters."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from tests.models import PYTHON
from tests.steps.models import sample


@pytest.fixture(scope="module")
def often_zero():
    """A model whose estimate is zero for nine of ten values of u2."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u1 = apm.StandardNormal("u1")
        u2 = apm.StandardUniform("u2")
        apm.Potential("log_lik", pt.switch(u2 < 0.9, -np.inf, 0.3 * theta * u1))
    return model


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_chain_starts_if_the_u_of_another_step_makes_the_estimate_zero(often_zero, order):
    with often_zero:
        steps = [
            apm.APMSlice(u=[often_zero["u1"]], compile_kwargs=PYTHON),
            apm.APMIndependenceU(u=[often_zero["u2"]], compile_kwargs=PYTHON),
        ]
    for seed in range(20):
        steps_in_order = [steps[number] for number in order]
        idata = sample(often_zero, steps_in_order, draws=10, tune=5, chains=1, random_seed=seed)
        assert np.isfinite(idata.sample_stats["log_estimate"].values).all()
        assert often_zero["u2"].get_value() >= 0.9


def test_a_chain_that_cannot_start_says_so():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardUniform("u")
        apm.Potential("log_lik", pt.switch(u < 2.0, -np.inf, theta))
        step = apm.APMSlice(compile_kwargs=PYTHON)
    with pytest.raises(EstimatorError, match="zero at the starting point for each of"):
        sample(model, step, chains=1)


@pytest.mark.parametrize("step", [apm.APMSlice, apm.APMMetropolis, apm.PseudoMarginalMH])
@pytest.mark.parametrize("shape", [0, (0, 3)])
def test_parameters_without_elements_are_refused(step, shape):
    with pm.Model() as model:
        empty = pm.Normal("empty", shape=shape)
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", 0.3 * theta * u)
        with pytest.raises(ModelError, match=r"no elements: empty\."):
            step([empty])
        assert step().target.layout.size == 1
    assert model["empty"].type.shape.count(0) == 1
