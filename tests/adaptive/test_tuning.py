"""What is learnt while tuning: covariances, scales and widths, on problems with known answers."""

import math

import numpy as np
import pytest
from scipy import stats

from pymc_apm.adaptive.covariance import FIRST_WINDOW, learn_covariance, start_covariance
from pymc_apm.adaptive.tuning import (
    BATCH,
    ENOUGH,
    Scale,
    Width,
    freeze_scale,
    freeze_width,
    tune_scale,
    tune_width,
)
from pymc_apm.kernels import UNLIMITED, State, linear_slice

FACTOR = np.array([[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [30.0, 10.0, 40.0]])
COVARIANCE = FACTOR @ FACTOR.T


def learn(learnt, draws, diagonal=False):
    """Return what was learnt, and after how many draws the factor changed."""
    changes = []
    for i, draw in enumerate(draws, start=1):
        learnt, changed = learn_covariance(learnt, draw, diagonal)
        if changed:
            changes.append(i)
    return learnt, changes


def gaussian_draws(seed, size):
    rng = np.random.default_rng(seed)
    return np.array([100.0, -5.0, 0.0]) + rng.standard_normal((size, 3)) @ FACTOR.T


def test_factor_changes_at_the_end_of_windows_that_double():
    ends = FIRST_WINDOW * np.array([1, 3, 7, 15])
    learnt, changes = learn(start_covariance(np.eye(3)), gaussian_draws(1, ends[-1] + 10))
    assert changes == list(ends)
    assert learnt.n_windows == 4
    assert learnt.window == 16 * FIRST_WINDOW
    assert learnt.n_draws == 10


def test_first_window_grows_with_the_dimension():
    assert start_covariance(np.eye(3)).window == FIRST_WINDOW
    assert start_covariance(np.eye(FIRST_WINDOW)).window == 5 * FIRST_WINDOW


def test_factor_is_that_of_the_covariance_of_the_last_window_alone():
    """The correlations are shrunk by one part in the number of draws, the variances are not."""
    draws = gaussian_draws(2, 3 * FIRST_WINDOW)
    draws[:FIRST_WINDOW] *= 1000.0  # the way from a bad start, to be forgotten
    learnt, _ = learn(start_covariance(np.eye(3)), draws)
    n = 2 * FIRST_WINDOW
    expected = np.cov(draws[FIRST_WINDOW:], rowvar=False)
    expected = np.where(np.eye(3) > 0, expected, (1.0 - 1.0 / n) * expected)
    np.testing.assert_allclose(learnt.cholesky @ learnt.cholesky.T, expected, rtol=1e-9)
    np.testing.assert_array_equal(learnt.cholesky, np.tril(learnt.cholesky))


def test_covariance_is_recovered_from_independent_draws():
    """The last window has 6400 draws: a standard error of at most 1.8 per cent, times 5."""
    learnt, changes = learn(
        start_covariance(np.diag([9.0, 0.1, 1.0])), gaussian_draws(3, 127 * FIRST_WINDOW)
    )
    assert len(changes) == 7
    estimate = learnt.cholesky @ learnt.cholesky.T
    sd = np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose(
        estimate / np.outer(sd, sd), COVARIANCE / np.outer(sd, sd), atol=0.09
    )


def test_diagonal_variant_learns_the_variances_alone():
    draws = gaussian_draws(4, FIRST_WINDOW)
    learnt, changes = learn(start_covariance(np.eye(3)), draws, diagonal=True)
    assert changes == [FIRST_WINDOW]
    np.testing.assert_allclose(learnt.cholesky, np.diag(draws.std(axis=0, ddof=1)))


def test_far_from_zero_the_covariance_is_still_accurate():
    draws = gaussian_draws(5, FIRST_WINDOW)
    near, _ = learn(start_covariance(np.eye(3)), draws)
    far, _ = learn(start_covariance(np.eye(3)), draws + 1e7)
    np.testing.assert_allclose(far.cholesky, near.cholesky, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("stuck", [[0, 1, 2], [1]])
def test_chain_that_does_not_move_keeps_the_factor_and_learns_later(stuck, diagonal):
    """The odd number is one whose mean cannot be computed exactly by adding it up."""
    factor = np.diag([1.0, 2.0, 3.0])
    draws = gaussian_draws(6, FIRST_WINDOW)
    draws[:, stuck] = 0.1
    learnt, changes = learn(start_covariance(factor), draws, diagonal)
    assert changes == []
    assert learnt.cholesky is factor
    assert learnt.n_windows == 0
    assert learnt.n_draws == 0
    learnt, changes = learn(learnt, gaussian_draws(7, 2 * FIRST_WINDOW), diagonal)
    assert len(changes) >= 1
    assert not np.array_equal(learnt.cholesky, factor)


def test_number_of_windows_survives_a_window_without_a_move():
    learnt, _ = learn(start_covariance(np.eye(3)), gaussian_draws(8, FIRST_WINDOW))
    factor = learnt.cholesky
    learnt, changes = learn(learnt, np.full((2 * FIRST_WINDOW, 3), 0.1))
    assert changes == []
    assert learnt.n_windows == 1
    assert learnt.cholesky is factor


def test_draws_that_lie_on_a_line_still_have_a_factor():
    line = np.random.default_rng(9).standard_normal((FIRST_WINDOW, 1)) * [1.0, -2.0, 1e-6]
    learnt, changes = learn(start_covariance(np.eye(3)), line)
    assert changes == [FIRST_WINDOW]
    assert np.isfinite(learnt.cholesky).all()
    assert (np.diag(learnt.cholesky) > 0.0).all()


def test_learning_returns_a_new_value_and_edits_nothing():
    learnt, _ = learn(start_covariance(np.eye(3)), gaussian_draws(10, 30))
    for array in [learnt.cholesky, learnt.mean, learnt.scatter]:
        array.setflags(write=False)
    kept = [learnt.n_draws, learnt.mean.copy(), learnt.scatter.copy()]
    draw = np.array([1.0, 2.0, 3.0])
    draw.setflags(write=False)
    once, _ = learn_covariance(learnt, draw)
    again, _ = learn_covariance(learnt, draw)
    assert once.n_draws == again.n_draws == kept[0] + 1
    np.testing.assert_array_equal(once.scatter, again.scatter)
    np.testing.assert_array_equal(learnt.mean, kept[1])
    np.testing.assert_array_equal(learnt.scatter, kept[2])


def acceptance(scaling):
    """Acceptance rate of a random walk on N(0, 1): 2/pi * atan(2/scaling)."""
    return 2.0 / math.pi * math.atan(2.0 / scaling)


def scale_with_acceptance(rate):
    return 2.0 / math.tan(0.5 * math.pi * rate)


def tuned_scale(scale, target, n_updates, seed):
    """Tune on acceptance probabilities that scatter about the curve of a random walk on N(0, 1)."""
    rng = np.random.default_rng(seed)
    for _ in range(n_updates):
        x, step = rng.standard_normal(2)
        ratio = math.exp(min(0.0, 0.5 * (x * x - (x + scale.scaling * step) ** 2)))
        scale = tune_scale(scale, ratio, target)
    return scale


@pytest.mark.parametrize("target", [0.15, 0.234, 0.44, 0.7])
@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
def test_scale_converges_to_the_target_acceptance(start, target):
    scale = freeze_scale(
        tuned_scale(Scale(start), (target, target), 4000, seed=31), (target, target)
    )
    assert acceptance(scale.scaling) == pytest.approx(target, abs=0.03)


def test_scale_goes_up_after_acceptance_and_down_after_rejection_in_ever_smaller_steps():
    steps = []
    for n_updates in [0, 10, 100, 1000]:
        up = tune_scale(Scale(1.0, n_updates), 1.0, (0.25, 0.25)).scaling
        down = tune_scale(Scale(1.0, n_updates), 0.0, (0.25, 0.25)).scaling
        assert down < 1.0 < up
        assert math.log(up) == pytest.approx(-3.0 * math.log(down))
        steps.append(up)
    assert steps == sorted(steps, reverse=True)


def test_scale_rests_at_the_target():
    assert tune_scale(Scale(1.7, 12), 0.25, (0.25, 0.25)).scaling == 1.7


@pytest.mark.parametrize(("rate", "power"), [(0.5, 1.0), (0.2, 0.0), (0.05, -1.0)])
def test_scale_with_bounds_changes_after_batches_by_the_factors_of_the_paper(rate, power):
    """Batch b = 0, 1, ... multiplies or divides by 5 - 3.9 min(b + 1, 4) / 4."""
    scale, expected = Scale(0.5), 0.5
    for batch in range(6):
        for _ in range(BATCH - 1):
            scale = tune_scale(scale, rate, (0.15, 0.30))
            assert scale.scaling == expected
        scale = tune_scale(scale, rate, (0.15, 0.30))
        expected *= (5.0 - 3.9 * min(batch + 1, 4) / 4.0) ** power
        assert scale.scaling == pytest.approx(expected)
        expected = scale.scaling
        assert scale.accepted == 0.0


def test_scale_with_bounds_takes_the_mean_acceptance_of_the_batch():
    scale = Scale(1.0)
    for i in range(BATCH):
        scale = tune_scale(scale, float(i % 4 == 0), (0.15, 0.30))  # 0.25 on average
    assert scale.scaling == 1.0
    for i in range(BATCH):
        scale = tune_scale(scale, float(i % 2 == 0), (0.15, 0.30))  # 0.5 on average
    assert scale.scaling == pytest.approx(5.0 - 3.9 * 2.0 / 4.0)


@pytest.mark.parametrize("start", [0.5, 4.0, 50.0])
def test_scale_with_bounds_ends_within_them(start):
    """A batch of 100 has a standard error of 0.04, hence the margin."""
    bounds = (0.15, 0.30)
    scale = freeze_scale(tuned_scale(Scale(start), bounds, 40 * BATCH, seed=32), bounds)
    assert 0.12 < acceptance(scale.scaling) < 0.34


def test_frozen_scale_is_the_average_after_enough_updates_and_the_last_one_before():
    target = (0.44, 0.44)
    few = tuned_scale(Scale(1.0), target, ENOUGH - 1, seed=33)
    assert freeze_scale(few, target) is few
    enough = tuned_scale(Scale(1.0), target, ENOUGH, seed=33)
    assert freeze_scale(enough, target).scaling == pytest.approx(math.exp(enough.mean_log))
    batches = Scale(1.3, 3 * BATCH)
    assert freeze_scale(batches, (0.15, 0.30)) is batches


def test_average_weighs_the_updates_in_proportion_to_their_number():
    scale, logs = Scale(1.0), []
    for rate in [1.0, 0.3, 0.0, 0.9, 0.2]:
        scale = tune_scale(scale, rate, (0.4, 0.4))
        logs.append(math.log(scale.scaling))
    assert scale.mean_log == pytest.approx(np.average(logs, weights=[1, 2, 3, 4, 5]))


def test_frozen_scale_is_less_noisy_than_the_last_one():
    target = (0.3, 0.3)
    ends = [tuned_scale(Scale(1.0), target, 300, seed) for seed in range(60)]
    last = np.std([math.log(end.scaling) for end in ends])
    frozen = np.std([math.log(freeze_scale(end, target).scaling) for end in ends])
    assert frozen < last


def slice_counts(rng, width, max_step_out):
    """Update an exact draw from N(0, 1): the numbers of rejections and of expansions."""
    x = rng.standard_normal(1)

    def log_density(position, memo):
        return -0.5 * float(position[0] ** 2), memo

    start = State(x, log_density(x, None)[0])
    _, info = linear_slice(rng, start, log_density, np.ones(1), width, max_step_out)
    return info.n_evals - info.n_step_out - 1, max(info.n_step_out - 2, 0)


@pytest.mark.parametrize("start", [0.01, 1.0, 300.0])
def test_width_without_stepping_out_converges_to_one_rejection_per_update(start):
    rng = np.random.default_rng(34)
    learnt = Width(start)
    for _ in range(3000):
        learnt = tune_width(learnt, slice_counts(rng, learnt.width, 0)[0], 1)
    width = freeze_width(learnt).width
    rejected = [slice_counts(rng, width, 0)[0] for _ in range(3000)]
    assert np.mean(rejected) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("start", [0.05, 1.0, 100.0])
def test_width_with_stepping_out_balances_expansions_and_rejections(start):
    rng = np.random.default_rng(35)
    learnt = Width(start)
    for _ in range(3000):
        learnt = tune_width(learnt, *slice_counts(rng, learnt.width, UNLIMITED))
    width = freeze_width(learnt).width
    counts = np.array([slice_counts(rng, width, UNLIMITED) for _ in range(3000)])
    rejected, expanded = counts.mean(axis=0)
    assert expanded == pytest.approx(rejected, abs=0.15)
    assert stats.norm.ppf(0.75) < width < 10.0


@pytest.mark.parametrize(
    ("n_rejected", "n_expanded", "surplus"),
    [(1, 1, 0), (0, 1, 1), (3, 1, -2), (40, 1, -3), (2, 2, 0), (0, 900, 3), (2, 1, -1)],
)
def test_width_changes_by_the_bounded_surplus_of_expansions(n_rejected, n_expanded, surplus):
    tuned = tune_width(Width(2.0, 7, 0.5), n_rejected, n_expanded)
    assert tuned.width == pytest.approx(2.0 * math.exp(surplus / 9.0**0.6))
    assert tuned.n_updates == 8
    assert tuned.mean_log == pytest.approx(0.5 + 2.0 / 9.0 * (math.log(tuned.width) - 0.5))


def test_frozen_width_is_the_average_after_enough_updates_and_the_last_one_before():
    few, enough = Width(2.0, ENOUGH - 1, 0.1), Width(2.0, ENOUGH, 0.1)
    assert freeze_width(few) is few
    assert freeze_width(enough) == Width(math.exp(0.1))


def test_tuning_returns_new_values():
    scale, width = Scale(1.0), Width(1.0)
    assert tune_scale(scale, 1.0, (0.3, 0.3)) is not scale
    assert tune_scale(scale, 1.0, (0.1, 0.3)) is not scale
    assert tune_width(width, 0, 1) is not width
    assert scale == Scale(1.0, 0, 0.0, 0.0)
    assert width == Width(1.0, 0, 0.0)
