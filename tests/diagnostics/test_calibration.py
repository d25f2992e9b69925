"""Simulation-based calibration: what is right passes, what is wrong is seen."""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_apm as apm
from pymc_apm.diagnostics.calibration import _judged, _Ranks
from pymc_apm.errors import ModelError
from tests.models import PYTHON

N_DATA = 4


def simulate(point, rng):
    """Two levels: groups about mu, an observation about each group."""
    return rng.normal(point["mu"] + rng.standard_normal(N_DATA), 1.0)


def build_model(y, average=apm.estimators.log_mean_exp):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        u = apm.StandardNormal("u", shape=(4, N_DATA))
        log_weights = pm.logp(pm.Normal.dist(mu + u, 1.0), y)
        apm.Potential("log_lik", average(log_weights, axis=0))
    return model


def step():
    return apm.APMSlice(compile_kwargs=PYTHON, compile=False)


def check(build_model=build_model, simulate=simulate, **options):
    options = {
        "observed": np.zeros(N_DATA),
        "simulations": 40,
        "draws": 200,
        "tune": 100,
        "n_ranked": 20,
        "step": step,
        "random_seed": 1,
        "progressbar": False,
    } | options
    return apm.calibrate(build_model, simulate, **options)


def shifted(point, rng):
    return simulate(point, rng) + 1.5


@pytest.mark.slow
def test_what_is_right_passes():
    found = check(simulations=80, draws=300)
    assert found.calibrated
    assert found.ranks["mu"].shape == (1, 80)
    assert "no fault seen" in repr(found) and "80 simulations" in found._repr_html_()


def counted_four_times(log_weights, axis):
    return 4.0 * apm.estimators.log_mean_exp(log_weights, axis=axis)


@pytest.mark.slow
def test_data_that_count_four_times_make_posteriors_too_narrow():
    """Ranks have a variance of 0.143 then, not 1/12: seen at 7 standard errors."""
    found = check(lambda y: build_model(y, counted_four_times), simulations=80, draws=300)
    assert not found.calibrated
    assert any("too narrow" in text for text in found.warnings), found


def test_a_likelihood_that_is_shifted_is_seen():
    found = check(simulate=shifted, simulations=20, draws=60, tune=40, n_ranked=15)
    assert not found.calibrated
    assert "too large" in found.warnings[0] and "NOT calibrated" in repr(found)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_ranks_and_a_figure():
    first, second = (check(simulations=20, draws=40, tune=20) for _ in range(2))
    assert first.ranks.equals(second.ranks)
    assert first.plot() is not None
    plt.close("all")


def judge(ranks, ess=1000.0):
    found = [_Ranks({"theta": np.array(rank)}, {"theta": np.array(ess)}) for rank in ranks]
    return _judged(found, [{}] * len(found), 50)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (stats.beta(2, 1).rvs(200, random_state=1), "too small"),
        (stats.beta(1, 2).rvs(200, random_state=1), "too large"),
        (stats.beta(0.5, 0.5).rvs(200, random_state=1), "too narrow"),
        (stats.beta(2, 2).rvs(200, random_state=1), "too wide"),
        (0.5 + np.repeat([-1.0, 1.0], 100) / 12**0.5, "not uniform"),
    ],
)
def test_what_is_wrong_is_put_into_words(ranks, words):
    found = judge(ranks)
    assert not found.calibrated and words in found.warnings[0]


def test_uniform_ranks_raise_no_alarm_more_often_than_said():
    """In 500 calibrations whose ranks are uniform, half an alarm is expected."""
    ranks = np.random.default_rng(3).random((500, 100))
    assert sum(not judge(one).calibrated for one in ranks) <= 4


def test_chains_that_are_too_short_are_told():
    found = judge(np.random.default_rng(1).random(100), ess=20.0)
    assert "effective sample size is below 50" in found.warnings[0]


@pytest.mark.slow
def test_a_vector_and_a_discrete_parameter_have_ranks():
    def build(y):
        with pm.Model() as model:
            theta = pm.Normal("theta", shape=2)
            k = pm.Binomial("k", 4, 0.5)
            u = apm.StandardNormal("u", shape=3)
            apm.Potential("log_lik", 1e-3 * (theta.sum() + k) * u.mean())
        return model

    found = check(
        build, lambda point, rng: None, simulations=20, draws=40, tune=20, n_ranked=4,
        step=lambda: apm.APMMetropolis(compile_kwargs=PYTHON, compile=False),
    )  # fmt: skip
    assert set(found.table.index) == {"k", "theta[0]", "theta[1]"}
    assert ((found.table["mean"] > 0) & (found.table["mean"] < 1)).all()


def test_ranks_that_ignore_signs_are_refused():
    def build(y):
        with pm.Model() as model:
            theta = pm.Normal("theta", 2.0, 1.0)
            estimate = 1.0 - 0.5 * theta * apm.StandardNormal("u")
            apm.Potential("log_lik", pt.log(pt.abs(estimate)), sign=pt.sign(estimate))
        return model

    with pytest.raises(ModelError, match="calibrate takes draws for draws of the posterior"):
        check(build, lambda point, rng: None, simulations=20, draws=40, tune=20)


def test_an_exception_says_which_parameters_it_came_with():
    def fails(point, rng):
        raise ZeroDivisionError("no data")

    with pytest.raises(ZeroDivisionError, match="simulated with mu = "):
        check(simulate=fails)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"simulations": 5}, "simulations"),
        ({"draws": 5}, "draws"),
        ({"build_model": lambda y: None}, "must return a pm.Model"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ModelError, match=words):
        check(**options)


def test_a_flat_prior_is_refused():
    def build(y):
        with pm.Model() as model:
            mu = pm.Flat("mu")
            apm.Potential("log_lik", -(mu**2) * apm.StandardNormal("u") ** 2)
        return model

    with pytest.raises(ModelError, match="flat"):
        check(build)
