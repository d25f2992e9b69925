"""What steps learn while tuning, how good it is, and that it is frozen after."""

import functools

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.adaptive.correlation import TARGET_SD
from pymc_apm.adaptive.covariance import FIRST_WINDOW
from pymc_apm.adaptive.pilot import PILOT_DRAWS, is_over
from pymc_apm.errors import ModelError
from pymc_apm.kernels import correlated_normal
from tests.modes import interpreted
from tests.steps.models import (
    COMPLETE,
    STEPS,
    declare_normal,
    recompute_log_estimate,
    run,
    sample,
    start_chain,
    toy_gaussian,
)


def stretched_toy(transform: np.ndarray) -> pm.Model:
    """Return the toy in other coordinates: the posterior of theta is N(0, transform transform')."""
    return stretched_toy_of(tuple(map(tuple, transform)))


@functools.cache
def stretched_toy_of(transform: tuple[tuple[float, ...], ...]) -> pm.Model:
    inverse = np.linalg.inv(transform)
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=len(transform))
        u = apm.StandardNormal("u", shape=len(transform))
        z = (inverse * theta).sum(axis=1)  # to compile a product of matrices takes ten seconds
        apm.Potential("log_lik", -(z**2).sum() - (u * z).sum())
    return model


CORRELATED = np.linalg.cholesky(np.full((3, 3), 0.999) + 0.001 * np.eye(3))
BADLY_SCALED = np.diag([1e-2, 1.0, 1e2])


def learnt(step):
    """Return all that a step may learn, as text of full precision."""
    with np.printoptions(floatmode="unique", threshold=10_000):
        return str(step.sampling_state.learnt)


# Frozen after tuning


@pytest.mark.parametrize("name", COMPLETE)
def test_nothing_is_learnt_after_tuning(name):
    model = stretched_toy(CORRELATED)
    with model:
        step = STEPS[name]()
    start_chain(step, 1)
    points, _ = run(step, model.initial_point(), 250)
    before = learnt(step)
    step.stop_tuning()
    frozen = learnt(step)
    points, stats = run(step, points[-1], 250)
    assert learnt(step) == frozen
    assert step.tune is False
    if "scaling" in stats[0]:
        assert len({stat["scaling"] for stat in stats}) == 1
    if "correlation" in stats[0]:
        assert len({stat["correlation"] for stat in stats}) == 1
    if name == "SS+SS coordinate":
        assert len({stat["width"] for stat in stats}) == 1
    start_chain(step, 1)
    assert step.tune is True
    assert learnt(step) not in (before, frozen)


@pytest.mark.parametrize("name", COMPLETE)
def test_sampling_without_tuning_works_and_learns_nothing(name):
    model = toy_gaussian(dim=2)
    with model:
        step = STEPS[name]()
    start_chain(step, 1)
    at_start = learnt(step)
    idata = sample(model, step, tune=0, draws=150)
    assert idata.posterior["theta"].shape == (2, 150, 2)
    assert learnt(step) == at_start
    for stat in {"scaling", "width", "correlation"} & set(idata.sample_stats.data_vars):
        assert np.ptp(idata.sample_stats[stat].values) < 1e-12


def test_widths_and_scales_that_are_given_stay_as_they_are():
    model = stretched_toy(BADLY_SCALED)
    with model:
        steps = {
            "width": [
                (apm.APMSlice(width=0.7), 0.7),
                (apm.APMSlice(width=0.7, directions="adaptive"), 0.7),
                (apm.APMSlice(width=[0.1, 0.2, 0.6], directions="coordinate"), 0.3),
            ],
            "scaling": [
                (apm.APMMetropolis(scaling=0.7), 0.7),
                (apm.PseudoMarginalMH(scaling=0.7), 0.7),
                (apm.PseudoMarginalMH(scaling=0.7, covariance=[1e-6, 1.0, 1e6]), 0.7),
            ],
        }
    for stat, cases in steps.items():
        for step, value in cases:
            start_chain(step, 2)
            points, stats = run(step, model.initial_point(), 300)
            step.stop_tuning()
            stats += run(step, points[-1], 50)[1]
            assert np.allclose([s[stat] for s in stats], value)


# Random walks


@pytest.mark.parametrize("u_update", ["slice", "independence"])
@pytest.mark.parametrize("transform", [CORRELATED, BADLY_SCALED], ids=["correlated", "scaled"])
def test_a_random_walk_is_tuned_to_its_acceptance_rate(transform, u_update):
    model = stretched_toy(transform)
    with model:
        step = apm.APMMetropolis(u_update=u_update)
    idata = sample(model, step, tune=4000, draws=1500, random_seed=3)
    rates = idata.sample_stats["accept_rate"].values.mean(axis=1)
    assert np.abs(rates - 0.234).max() < 0.08
    # ... because the shape of the posterior was learnt, not by tiny steps.
    z = idata.posterior["theta"].values @ np.linalg.inv(transform).T
    assert (np.square(np.diff(z, axis=1)).mean(axis=(0, 1)) > 0.05).all()


@pytest.mark.parametrize(("target", "low", "high"), [(0.5, 0.42, 0.58), ((0.15, 0.30), 0.12, 0.33)])
def test_other_acceptance_rates_and_bounds_can_be_asked_for(target, low, high):
    model = toy_gaussian(dim=3)
    with model:
        step = apm.APMMetropolis(target_accept=target)
    idata = sample(model, step, tune=3000, draws=2000, random_seed=4)
    assert low < idata.sample_stats["accept_rate"].values.mean() < high


@pytest.mark.parametrize(("correlation", "constant"), [(0.0, 2.56), (0.9, 2.38)])
def test_pseudo_marginal_mh_takes_its_scale_from_the_covariance_that_it_learns(
    correlation, constant
):
    model = stretched_toy(CORRELATED)
    with model:
        step = apm.PseudoMarginalMH(correlation=correlation)
    idata = sample(model, step, tune=4000, draws=50, chains=1, random_seed=5)
    assert np.allclose(idata.sample_stats["scaling"], constant / np.sqrt(3))
    assert (idata.sample_stats["n_evals"].values == 1).all()
    cholesky = step.learnt.covariance.cholesky
    relative = np.linalg.solve(CORRELATED, cholesky)
    variances = np.linalg.eigvalsh(relative @ relative.T)  # 1 where the covariance is exact
    assert 0.3 < variances.min() and variances.max() < 3.0


def test_pseudo_marginal_mh_makes_clamped_updates_while_it_learns():
    model = toy_gaussian(dim=2)
    with model:
        learning, fixed = apm.PseudoMarginalMH(), apm.PseudoMarginalMH(scaling=0.5)
    for step, n_evals in ((learning, 2), (fixed, 1)):
        start_chain(step, 6)
        points, _ = run(step, model.initial_point(), PILOT_DRAWS)
        points, stats = run(step, points[-1], 30)
        assert {stat["n_evals"] for stat in stats} == {n_evals}
        step.stop_tuning()
        assert {stat["n_evals"] for stat in run(step, points[-1], 30)[1]} == {1}


def test_pseudo_marginal_mh_keeps_the_clamped_scale_if_tuning_was_too_short_for_a_covariance():
    model = toy_gaussian(dim=2)
    with model:
        step = apm.PseudoMarginalMH()
    start_chain(step, 7)
    run(step, model.initial_point(), FIRST_WINDOW - 1)
    assert step.sampling_state.learnt.covariance.n_windows == 0
    step.stop_tuning()
    assert step.learnt.scale.scaling != pytest.approx(2.56 / np.sqrt(2))
    assert 0.2 < step.learnt.scale.scaling < 10.0


def test_the_pilot_updates_each_parameter_by_slice_sampling_and_then_makes_way():
    model = toy_gaussian(dim=3)
    with model:
        lines = apm.APMSlice(directions="random")
        steps = [lines, apm.APMMetropolis(), apm.PseudoMarginalMH()]
    for step in steps:
        start_chain(step, 8)
        points, stats = run(step, model.initial_point(), PILOT_DRAWS)
        assert all(stat["n_theta_evals"] >= 3 for stat in stats)
        assert is_over(step.sampling_state.learnt.pilot)
        _, stats = run(step, points[-1], 50)
        assert np.mean([stat["n_theta_evals"] for stat in stats]) < 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [apm.APMSlice, apm.APMMetropolis, apm.PseudoMarginalMH])
def test_parameters_a_million_times_as_wide_as_others_are_explored_after_default_tuning(make):
    scales = np.array([1e-3, 1.0, 1e3])
    model = stretched_toy(np.diag(scales))
    with model:
        step = make()
    idata = sample(model, step, draws=3000, tune=1000, chains=2, random_seed=3)
    spread = idata.posterior["theta"].values.std(axis=1) / scales
    assert (spread > 0.7).all()
    assert (spread < 1.4).all()


# The correlation of u


@functools.cache
def noisy_estimate(sd: float, kind: str = "normal") -> pm.Model:
    """Build a model whose log-estimate is normal, with the same sd whatever theta is."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        u = declare_normal("u", (3, 4), kind)
        v = apm.StandardNormal("v")
        noise = (u.sum() + v) / np.sqrt(13.0)
        apm.Potential("log_lik", -(theta**2).sum() + sd * noise - 0.5 * sd**2)
    return model


def random_effects() -> pm.Model:
    """Build a model whose log-estimate is that of importance sampling in 40 groups."""
    counts = np.random.default_rng(13).poisson(3.0, size=40)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        u = apm.StandardNormal("u", shape=(8, 40))
        log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + u)), counts)
        apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
    return model


def learn_correlation(model, n_tune=1500, **options):
    with model:
        step = apm.PseudoMarginalMH(correlation="auto", compile=False, **options)
    start_chain(step, 11)
    points, stats = run(step, model.initial_point(), n_tune)
    step.stop_tuning()
    return step, points[-1], stats


@pytest.mark.parametrize("options", [{}, {"scaling": 0.5}, {"directions": "coordinate"}])
@pytest.mark.parametrize(("sd", "kind"), [(2.0, "normal"), (5.0, "normal"), (5.0, "uniform")])
def test_the_correlation_is_tuned_to_the_sd_of_the_log_ratio(sd, kind, options):
    step, _, stats = learn_correlation(noisy_estimate(sd, kind), **options)
    correlation = step.learnt.correlation.value
    assert sd * np.sqrt(2.0 * (1.0 - correlation)) == pytest.approx(TARGET_SD, rel=0.15)
    assert np.mean([stat["u_accepted"] for stat in stats[300:]]) == pytest.approx(0.55, abs=0.07)
    assert len({stat["correlation"] for stat in stats}) > 1000


def test_log_ratios_at_the_correlation_that_was_learnt_have_the_target_sd():
    """Measured on proposals of u, from draws after tuning, of an estimate that is not normal."""
    model = random_effects()
    with interpreted():
        step, point, _ = learn_correlation(model)
        log_estimate = recompute_log_estimate(model)
    correlation = step.learnt.correlation.value
    assert 0.3 < correlation < 1.0
    rng, ratios = np.random.default_rng(12), []
    for _ in range(400):
        point, (stats,) = step.step(point)
        here = step.u["u"].copy()
        step.u = {"u": correlated_normal(rng, here.ravel(), correlation).reshape(here.shape)}
        ratios.append(log_estimate(point) - stats["log_estimate"])
        step.u = {"u": here}
    assert np.std(ratios) == pytest.approx(TARGET_SD, rel=0.25)


@pytest.mark.parametrize(("options", "constant"), [({}, 2.56), ({"scaling": 0.5}, None)])
def test_the_correlation_is_zero_where_the_estimate_is_precise(options, constant):
    step, point, _ = learn_correlation(noisy_estimate(0.5), **options)
    _, stats = run(step, point, 50)
    assert {stat["correlation"] for stat in stats} == {0.0}
    scaling = 0.5 if constant is None else constant / np.sqrt(2)
    assert np.allclose([stat["scaling"] for stat in stats], scaling)


def test_the_scale_goes_with_the_correlation_that_was_learnt():
    step, point, _ = learn_correlation(noisy_estimate(3.0))
    _, stats = run(step, point, 50)
    assert np.allclose([stat["scaling"] for stat in stats], 2.38 / np.sqrt(2))
    assert {stat["correlation"] for stat in stats} == {step.learnt.correlation.value}
    assert {stat["n_evals"] for stat in stats} == {1}


def test_the_correlation_is_learnt_from_the_estimate_where_the_scale_is_from_an_approximation():
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        u = apm.StandardNormal("u")
        approximation = -(theta**2).sum()
        apm.Potential("log_lik", approximation + 4.0 * u - 8.0, approximation=approximation)
    step, _, stats = learn_correlation(model, tune_on="approximation")
    sd_of_ratio = 4.0 * np.sqrt(2.0 * (1.0 - step.learnt.correlation.value))
    assert sd_of_ratio == pytest.approx(TARGET_SD, rel=0.2)
    assert 0.4 < np.mean([stat["u_accepted"] for stat in stats]) < 0.7


def test_a_correlation_that_is_given_is_recorded_and_stays_as_it_is():
    model = noisy_estimate(1.0)
    with model:
        step = apm.PseudoMarginalMH(correlation=0.9, compile=False)
    start_chain(step, 14)
    points, stats = run(step, model.initial_point(), 100)
    assert {stat["correlation"] for stat in stats} == {0.0}  # fresh u is proposed while tuning
    step.stop_tuning()
    assert {stat["correlation"] for stat in run(step, points[-1], 20)[1]} == {0.9}


# Blocks of u


@pytest.mark.parametrize("scaling", [None, 0.5])
def test_a_proposal_refreshes_one_block_of_each_u(scaling):
    """Columns of a matrix that has as many, and neighbours in the flat vector of others."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=(2, 6))
        v = apm.StandardUniform("v", shape=(3, 2))
        w = apm.StandardNormal("w")
        apm.Potential("log_lik", -(theta**2) + 0.01 * (u.sum() + v.sum() + w))
        step = apm.PseudoMarginalMH(blocks=3, scaling=scaling, compile=False)
    start_chain(step, 15)
    point, seen = model.initial_point(), set()
    for number in range(120):
        if number == 60:
            step.stop_tuning()
        before = {name: value.copy() for name, value in step.u.items()}
        point, (stats,) = step.step(point)
        changed = {name: before[name] != value for name, value in step.u.items()}
        if not stats["u_accepted"]:
            assert not any(value.any() for value in changed.values())
            continue
        (block,) = set(np.flatnonzero(changed["u"].any(axis=0)) // 2)
        seen.add(int(block))
        np.testing.assert_array_equal(changed["u"], np.tile(np.arange(6) // 2 == block, (2, 1)))
        np.testing.assert_array_equal(changed["v"].ravel(), np.arange(6) // 2 == block)
        assert changed["w"] == (block == 0)
    assert seen == {0, 1, 2}


def test_one_block_is_the_plain_method():
    model = toy_gaussian(dim=2)
    with model:
        steps = [apm.PseudoMarginalMH(compile=False), apm.PseudoMarginalMH(blocks=1, compile=False)]
    draws = []
    for step in steps:
        start_chain(step, 16)
        points, _ = run(step, model.initial_point(), 100)
        step.stop_tuning()
        draws.append(run(step, points[-1], 50)[0])
    assert all(np.array_equal(a["theta"], b["theta"]) for a, b in zip(*draws, strict=True))


# Slices


@pytest.mark.parametrize(
    "options", [{"directions": "random"}, {"step_out": True}, {"directions": "coordinate"}]
)
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_width_of_a_slice_finds_the_scale_of_the_posterior(scale, options):
    model = stretched_toy(scale * np.eye(1))
    with model:
        step = apm.APMSlice(**options)
    idata = sample(model, step, tune=1000, draws=500, random_seed=8)
    width = idata.sample_stats["width"].values / scale
    assert 0.5 < width.min() and width.max() < 20.0
    assert idata.sample_stats["n_theta_evals"].values.mean() < 7.0


def test_ellipses_are_used_once_there_is_something_to_learn_from():
    model = toy_gaussian(dim=2)
    with model:
        step = apm.APMSlice(directions="ellipse", compile=False)
    start_chain(step, 9)
    points, stats = run(step, model.initial_point(), PILOT_DRAWS + FIRST_WINDOW - 1)
    assert all(stat["width"] != 2 * np.pi for stat in stats)
    step.stop_tuning()
    points, stats = run(step, points[-1], 400)
    assert all(stat["width"] == 2 * np.pi for stat in stats)
    assert np.mean([stat["n_theta_evals"] for stat in stats]) < 3.0
    center = step.sampling_state.learnt.covariance.center
    assert np.abs(center).max() < 1.0 and center.all()


def test_a_width_is_refused_where_there_is_no_bracket():
    with toy_gaussian(dim=2), pytest.raises(ModelError, match="no meaning"):
        apm.APMSlice(directions="ellipse", width=1.0)


@pytest.mark.parametrize("directions", ["random", "coordinate", "adaptive"])
@pytest.mark.slow
def test_parameters_of_very_different_scales_all_move(directions):
    model = stretched_toy(BADLY_SCALED)
    with model:
        step = apm.APMSlice(directions=directions)
    idata = sample(model, step, tune=4000, draws=1000, random_seed=9)
    theta = idata.posterior["theta"].values / np.diag(BADLY_SCALED)
    assert (theta.std(axis=1) > 0.4).all()
    assert (np.square(np.diff(theta, axis=1)).mean(axis=1) > 0.05).all()
    assert idata.sample_stats["n_theta_evals"].values.mean() < 15.0


def lag_autocorrelation(x: np.ndarray, lag: int) -> float:
    """Autocorrelation of (chain, draw) draws about a mean of zero."""
    return float((x[:, lag:] * x[:, :-lag]).mean() / (x**2).mean())


@pytest.mark.slow
def test_adaptive_directions_help_where_parameters_are_correlated():
    model = stretched_toy(CORRELATED)
    lag_20 = {}
    for directions in ("random", "coordinate", "adaptive"):
        with model:
            step = apm.APMSlice(directions=directions, factorwise=False)
        idata = sample(model, step, tune=1500, draws=1500, random_seed=10)
        lag_20[directions] = lag_autocorrelation(idata.posterior["theta"].values.mean(axis=2), 20)
    assert lag_20["adaptive"] < 0.6
    assert lag_20["random"] > lag_20["adaptive"] + 0.2
    assert lag_20["coordinate"] > lag_20["adaptive"] + 0.2
