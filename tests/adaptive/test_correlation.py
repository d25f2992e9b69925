"""The correlation of proposals of u, learnt from log ratios whose distribution is known."""

import math

import numpy as np
import pytest
from scipy import stats

from pymc_apm.adaptive.correlation import (
    FRESH,
    LONGEST,
    SHORTEST,
    TARGET_ACCEPT,
    TARGET_SD,
    freeze_correlation,
    start_correlation,
    tune_correlation,
)
from pymc_apm.adaptive.tuning import ENOUGH


def ratio_sd(sd, correlation):
    """Return the sd of the log ratio of two normal log-estimates with this correlation."""
    return sd * math.sqrt(2.0 * (1.0 - correlation))


def learn(accept_rate, n_updates=2000, seed=1):
    """Learn from updates that are accepted with ``accept_rate(rng, correlation)``."""
    rng = np.random.default_rng(seed)
    learnt = start_correlation(0.0)
    for _ in range(n_updates):
        learnt = tune_correlation(learnt, accept_rate(rng, learnt.value))
    return learnt


def of_normal_ratio(sd):
    def accept_rate(rng, correlation):
        sd_here = ratio_sd(sd, correlation)
        return math.exp(min(rng.normal(-0.5 * sd_here**2, sd_here), 0.0))

    return accept_rate


def test_the_acceptance_rate_is_that_of_a_normal_log_ratio_with_the_target_sd():
    assert pytest.approx(2.0 * stats.norm.cdf(-0.5 * TARGET_SD)) == TARGET_ACCEPT


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.99])
def test_a_correlation_that_is_given_is_kept_to_the_last_digit(correlation):
    assert start_correlation(correlation).value == correlation


@pytest.mark.parametrize("sd", [1.2, 2.0, 5.0, 50.0])
def test_the_log_ratio_gets_the_target_sd(sd):
    frozen = freeze_correlation(learn(of_normal_ratio(sd)))
    assert ratio_sd(sd, frozen.value) == pytest.approx(TARGET_SD, rel=0.1)


@pytest.mark.parametrize("sd", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("n_updates", [ENOUGH, 100, 2000])
def test_where_fresh_u_is_accepted_often_enough_the_correlation_is_zero(sd, n_updates):
    assert freeze_correlation(learn(of_normal_ratio(sd), n_updates)).value == 0.0


def test_it_comes_back_after_a_start_where_the_estimate_was_very_noisy():
    noisy, noisier = of_normal_ratio(3.0), of_normal_ratio(100.0)
    rates = iter([noisier] * 100 + [noisy] * 1900)
    frozen = freeze_correlation(learn(lambda rng, correlation: next(rates)(rng, correlation)))
    assert ratio_sd(3.0, frozen.value) == pytest.approx(TARGET_SD, rel=0.1)


def test_it_goes_up_again_after_a_start_where_the_estimate_was_precise():
    precise, noisy = of_normal_ratio(0.0), of_normal_ratio(3.0)
    rates = iter([precise] * 500 + [noisy] * 1500)
    learnt = learn(lambda rng, correlation: next(rates)(rng, correlation))
    assert ratio_sd(3.0, freeze_correlation(learnt).value) == pytest.approx(TARGET_SD, rel=0.25)


def test_estimates_of_zero_count_as_rejections_and_do_no_harm():
    """One fresh estimate in five is zero: the rate is reached, which is what is asked for."""
    rates = []

    def accept_rate(rng, correlation):
        rate = of_normal_ratio(3.0)(rng, correlation) if rng.random() > 0.2 else 0.0
        rates.append(rate)
        return rate

    frozen = freeze_correlation(learn(accept_rate, 3000))
    assert 0.9 < frozen.value < 1.0
    assert np.mean(rates[1000:]) == pytest.approx(TARGET_ACCEPT, abs=0.04)


@pytest.mark.parametrize(("rate", "length"), [(0.0, SHORTEST), (1.0, LONGEST)])
def test_the_step_stays_within_bounds(rate, length):
    learnt = learn(lambda rng, correlation: rate, 5000)
    assert learnt.step.scaling == length
    assert learnt.value == max(1.0 - 0.5 * length**2, 0.0) < 1.0


def test_without_enough_updates_the_last_value_is_kept():
    learnt = learn(of_normal_ratio(5.0), ENOUGH - 1)
    assert freeze_correlation(learnt) == learnt
    assert freeze_correlation(start_correlation(0.0)).value == 0.0
    assert start_correlation(0.0).step.scaling == FRESH
