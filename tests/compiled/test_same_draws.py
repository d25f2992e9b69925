"""Compiled or not, a step with the same seed makes the same draws.

Draws are compared to nine digits, not to the last one: sums in compiled code are taken in another
order, and the exponential is another implementation, so that log densities differ in their last
digits. Slice sampling and Metropolis only compare log densities with random heights, so that this
shows in the draws where a scale or a covariance was learnt from them. The costs, which count every
evaluation, are compared exactly.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from tests.marks import others_are_slow
from tests.steps.models import COMPLETE, STEPS, run, stacked, start_chain

EXACT = ("n_evals", "n_theta_evals", "n_nan", "n_random", "n_cubic")

OPTIONS = {
    **{name: STEPS[name] for name in COMPLETE},
    "SS+SS step out 3": lambda **k: apm.APMSlice(step_out=3, **k),
    "SS+SS theta_updates": lambda **k: apm.APMSlice(theta_updates=3, **k),
    "SS+SS width": lambda **k: apm.APMSlice(width=1.5, **k),
    "SS+SS width adaptive": lambda **k: apm.APMSlice(width=1.5, directions="adaptive", **k),
    "SS+SS widths": lambda **k: apm.APMSlice(width=np.arange(1.0, 5.0) / 4, **k),
    "SS+SS ellipse": lambda **k: apm.APMSlice(directions="ellipse", **k),
    "SS+SS as one": lambda **k: apm.APMSlice(factorwise=False, **k),
    "SS+SS some u": lambda **k: apm.APMSlice(u=["u", "v"], **k),
    "SS+MH bounds": lambda **k: apm.APMMetropolis(target_accept=(0.15, 0.3), **k),
    "SS+MH scaling": lambda **k: apm.APMMetropolis(scaling=0.2, **k),
    "SS+MH covariance": lambda **k: apm.APMMetropolis(covariance=np.full(5, 0.04), **k),
    "SS+MH theta_updates": lambda **k: apm.APMMetropolis(theta_updates=2, **k),
    "PM MH scaling": lambda **k: apm.PseudoMarginalMH(scaling=0.1, **k),
    "correlated PM scaling": lambda **k: apm.PseudoMarginalMH(correlation=0.99, scaling=0.1, **k),
    "correlated PM auto scaling": lambda **k: apm.PseudoMarginalMH(
        correlation="auto", scaling=0.1, **k
    ),
    "block PM scaling": lambda **k: apm.PseudoMarginalMH(blocks=3, scaling=0.1, **k),
}


@pytest.fixture(scope="module")
def model():
    """A model with parameters of several shapes and types, and u of both kinds."""
    with pm.Model() as model:
        scalar = pm.Normal("scalar")
        count = pm.Poisson("count", 3.0)
        vector = pm.Normal("vector", shape=2)
        scale = pm.HalfNormal("scale")
        u = apm.StandardNormal("u", shape=(3, 2))
        v = apm.StandardUniform("v", shape=3)
        w = apm.StandardNormal("w", shape=())
        shift = scalar + vector + 0.3 * count
        apm.Potential("first", pt.log(pt.mean(pt.exp(-0.5 * (shift + scale * u) ** 2), axis=0)))
        apm.Potential("second", v.sum() * (scalar + w) - w * w)
        pm.Normal("observed", scalar, 2.0, observed=np.array([0.3, -0.2]))
    return model


def chain(step, point, n_tune=260, n_draws=120):
    start_chain(step, 20260)
    points, stats = run(step, point, n_tune)
    step.stop_tuning()
    more_points, more_stats = run(step, points[-1], n_draws)
    u = {name: value.copy() for name, value in step.u.items()}
    return stacked(points + more_points), stats + more_stats, u


def assert_same_chain(first, second):
    np.testing.assert_allclose(first[0], second[0], rtol=1e-9, atol=1e-9)
    for name in first[1][0]:
        one, two = ([stat[name] for stat in stats] for stats in (first[1], second[1]))
        if name in EXACT:
            assert one == two, name
        else:
            np.testing.assert_allclose(one, two, rtol=1e-7, atol=1e-7, err_msg=name)
    for name in first[2]:
        np.testing.assert_allclose(first[2][name], second[2][name], rtol=1e-9, atol=1e-9)


QUICK = "PM MH scaling"
"""The smallest program; SS+SS on a smaller model is in test_batches.py."""


@pytest.mark.parametrize("thin", others_are_slow([3], [1, 3]))
@pytest.mark.parametrize("name", others_are_slow([QUICK], OPTIONS))
def test_a_chain_is_the_same_compiled_and_not(model, name, thin):
    with model:
        steps = [OPTIONS[name](compile=compile, thin=thin) for compile in (True, False)]
    assert [step.is_compiled for step in steps] == [True, False]
    with apm.clamped(model):  # some leave a u to others
        chains = [chain(step, model.initial_point()) for step in steps]
    assert len(np.unique(chains[0][0], axis=0)) > 5
    assert_same_chain(*chains)


def test_chains_of_other_seeds_are_told_apart(model):
    with model:
        step = OPTIONS[QUICK](compile=True)
    first = chain(step, model.initial_point())
    start_chain(step, 1)
    points, stats = run(step, model.initial_point(), len(first[1]))
    with pytest.raises(AssertionError):
        assert_same_chain(first, (stacked(points), stats, step.u))
