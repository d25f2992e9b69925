"""Draws of compiled blocks are handed out as if each had been made when it was asked for."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.step_methods.compound import CompoundStep
from pytensor.link.numba.cache import NUMBA_CACHE_PATH

import pymc_apm as apm
from pymc_apm.errors import CompileError, EstimatorError, ModelError
from pymc_apm.steps import blocks
from tests.models import PythonOp
from tests.steps.models import run, same_draws, sample, stacked, start_chain, toy_gaussian


def with_rest():
    """Build a model with a parameter that another step may update, and u of both kinds."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        other = pm.Normal("other")
        u = apm.StandardNormal("u", shape=3)
        v = apm.StandardUniform("v")
        noise = 0.3 * theta[0] * u.sum() + theta[1] * (v - 0.5)
        apm.Potential("log_lik", noise - 0.5 * (other - theta.sum()) ** 2)
    return model


@pytest.fixture(scope="module")
def model():
    return with_rest()


@pytest.fixture(scope="module")
def steps(model):
    """The same step twice, compiled and not."""
    with model:
        return [apm.APMSlice([model["theta"]], compile=compile) for compile in (True, False)]


def chains(steps, point, play):
    """Let ``play(step, point)`` drive a chain of each step, and return what it returns."""
    results = []
    for step in steps:
        start_chain(step, 11)
        results.append(play(step, {name: value.copy() for name, value in point.items()}))
    return results


def assert_same(results):
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11)


def test_blocks_grow_while_nothing_disturbs_them(steps, model):
    step = steps[0]
    start_chain(step, 1)
    run(step, model.initial_point(), 200)
    assert 10 < step._blocks._length <= blocks.MAX_DRAWS


def test_a_point_that_is_changed_in_between_is_taken_up_with_its_own_u(steps, model):
    """So the chain is that of one transition after the other, whatever disturbs it and when."""

    def play(step, point):
        rng = np.random.default_rng(2)
        draws, estimates = [], []
        for draw in range(300):
            if draw == 120:
                step.stop_tuning()
            if rng.random() < 0.03:
                point = point | {"theta": rng.normal(size=2)}
            if rng.random() < 0.03:
                point = point | {"other": np.array(rng.normal())}
            point, (stats,) = step.step(point)
            draws.append(point["theta"])
            estimates.append([stats["log_estimate"], stats["n_evals"], stats["n_theta_evals"]])
        return np.array(draws), np.array(estimates)

    assert_same(chains(steps, model.initial_point(), play))


def test_a_value_that_is_overwritten_in_place_is_noticed(steps, model):
    def play(step, point):
        draws = []
        for draw in range(100):
            point, _ = step.step(point)
            if draw % 17 == 5:
                point["theta"][...] = 0.25
            draws.append(point["theta"].copy())
        return (np.array(draws),)

    assert_same(chains(steps, model.initial_point(), play))


def test_randomness_that_somebody_else_changes_is_taken_up(steps, model):
    def play(step, point):
        draws = []
        for draw in range(150):
            if draw % 40 == 30:
                model["u"].set_value(np.full(3, 0.01 * draw))
            point, (stats,) = step.step(point)
            draws.append([*point["theta"], stats["log_estimate"], stats["n_evals"]])
        return (np.array(draws),)

    assert_same(chains(steps, model.initial_point(), play))


def test_current_randomness_can_be_seen_after_each_draw(steps, model):
    log_estimate = model.compile_logp(vars=model.potentials, jacobian=False)
    step = steps[0]
    start_chain(step, 3)
    point = model.initial_point()
    for _ in range(60):
        point, (stats,) = step.step(point)
        with apm.clamped(model):
            recomputed = log_estimate(point)
        np.testing.assert_allclose(stats["log_estimate"], recomputed, rtol=1e-9)
        np.testing.assert_allclose(step.log_density, step.evaluation.log_density, rtol=1e-9)


def test_together_with_a_step_of_pymc_the_draws_are_the_same(model):
    results = []
    for compile in (True, False):
        with model:
            step = CompoundStep(
                [apm.APMSlice([model["theta"]], compile=compile), pm.Slice([model["other"]])]
            )
        start_chain(step, 4)
        point, points = model.initial_point(), []
        with apm.clamped(model):
            for _ in range(150):
                point, _ = step.step(point)
                points.append(point)
        results.append((stacked(points),))
    assert_same(results)


@pytest.mark.parametrize("when", [1, 2, 50, 93])
def test_a_state_that_is_saved_within_a_block_is_that_of_the_last_draw(steps, model, when):
    """And to look at it does not change the chain."""

    def play(step, point):
        points, _ = run(step, point, when)
        state = step.sampling_state
        u = {name: model[name].get_value() for name in "uv"}
        expected, _ = run(step, points[-1], 80)
        for name, value in u.items():
            model[name].set_value(value)
        step.sampling_state = state
        again, _ = run(step, points[-1], 80)
        np.testing.assert_array_equal(stacked(expected), stacked(again))
        return stacked(points + expected), np.array([state.widths.n_updates])

    assert_same(chains(steps, model.initial_point(), play))


def test_a_chain_that_looks_at_its_state_is_the_same_chain(steps, model):
    step = steps[0]
    start_chain(step, 5)
    expected, _ = run(step, model.initial_point(), 120)
    start_chain(step, 5)
    point, points = model.initial_point(), []
    for draw in range(120):
        point, _ = step.step(point)
        if draw % 7 == 3:
            _ = step.sampling_state
        points.append(point)
    np.testing.assert_array_equal(stacked(expected), stacked(points))


# Thinning


@pytest.mark.parametrize("compile", [True, False])
def test_a_thinned_chain_is_every_kth_draw_of_the_other(compile):
    model = toy_gaussian(dim=2)
    with model:
        one, three = (apm.APMSlice(width=2.0, thin=k, compile=compile) for k in (1, 3))
    chains = []
    for step, n_draws in ((one, 90), (three, 30)):  # one after the other: they share the model's u
        start_chain(step, 6)
        step.stop_tuning()
        chains.append(run(step, model.initial_point(), n_draws))
    (points, stats), (thinned, thinned_stats) = chains
    np.testing.assert_array_equal(stacked(points)[2::3], stacked(thinned))
    for name, combine in [("n_evals", np.sum), ("accepted", np.mean), ("width", np.mean)]:
        expected = combine(np.reshape([s[name] for s in stats], (30, 3)), axis=1)
        np.testing.assert_allclose([s[name] for s in thinned_stats], expected)


# Errors


def breaks(kind):
    """Build a model whose estimate is no proper number where theta is above 1."""
    broken = {"infinite": np.inf, "nan": np.nan, "zero": -np.inf}[kind]
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 3)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", pt.switch(theta > 1.0, broken, 0.1 * u * theta))
    return model


def test_an_infinite_estimate_is_the_same_error_at_the_same_draw():
    model = breaks("infinite")
    results = []
    for compile in (True, False):
        with model:
            step = apm.APMSlice(compile=compile)
        start_chain(step, 7)
        point, n_draws = model.initial_point(), 0
        with pytest.raises(EstimatorError, match=r"log-estimate is \+inf at theta = ") as caught:
            while n_draws < 1000:
                point, _ = step.step(point)
                n_draws += 1
        results.append((n_draws, str(caught.value)[:60]))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", ["nan", "zero"])
def test_an_estimate_that_is_no_number_counts_as_zero(kind):
    model = breaks(kind)
    with model:
        steps = [apm.APMSlice(compile=compile) for compile in (True, False)]

    def play(step, point):
        points, stats = run(step, point, 200)
        return stacked(points), np.array([stat["n_nan"] for stat in stats])

    results = chains(steps, model.initial_point(), play)
    assert_same(results)
    assert (results[0][1].sum() > 0) == (kind == "nan")
    assert results[0][0].max() <= 1.0


# Whether to compile


def black_box_model():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", PythonOp(lambda x: 0.1 * x)(theta * u))
    return model


def test_what_stands_in_the_way_is_named():
    with black_box_model(), pytest.raises(CompileError, match=r"APMSlice cannot .* PythonOp"):
        apm.APMSlice(compile=True)
    with pm.Model():
        theta = pm.Normal("theta")
        log_estimate = apm.black_box(lambda theta, rng: -theta * rng.random())
        apm.Potential("log_lik", log_estimate(theta, apm.Stream("u")))
        with pytest.raises(CompileError, match="black boxes"):
            apm.APMMetropolis(compile=True)


def test_a_derived_step_is_not_compiled_because_it_may_differ():
    class Derived(apm.APMSlice):
        pass

    with toy_gaussian(dim=2), pytest.raises(CompileError, match="derived"):
        Derived(compile=True)


def test_automatic_steps_fall_back_to_python_and_say_why(monkeypatch, caplog):
    monkeypatch.delenv(blocks.SWITCH)
    model = black_box_model()
    with model, caplog.at_level(logging.INFO, logger="pymc.apm"):
        step = apm.APMSlice()
    assert not step.is_compiled
    assert "runs in Python" in caplog.text and "PythonOp" in caplog.text
    assert sample(model, step).posterior["theta"].shape == (2, 50)


@pytest.mark.parametrize(("value", "is_compiled"), [("0", False), ("1", True), (None, True)])
def test_automatic_compilation_can_be_switched_off(monkeypatch, value, is_compiled):
    if value is None:
        monkeypatch.delenv(blocks.SWITCH)
    else:
        monkeypatch.setenv(blocks.SWITCH, value)
    with toy_gaussian(dim=2):
        assert apm.APMSlice().is_compiled is is_compiled


def test_the_user_is_told_of_a_compilation_that_takes_long(monkeypatch, caplog):
    monkeypatch.setattr(blocks, "PATIENCE", 0.0)
    with caplog.at_level(logging.INFO, logger="pymc.apm"):
        with toy_gaussian(dim=2):
            apm.APMSlice(compile=True)
    assert "Compiling APMSlice" in caplog.text
    assert "APMSlice is compiled, in" in caplog.text


@pytest.mark.parametrize("option", [{"compile": "yes"}, {"compile": None}, {"thin": 0}])
def test_bad_options_are_refused(option):
    (name,) = option
    with toy_gaussian(dim=2), pytest.raises(ModelError, match=f"{name} of APMSlice"):
        apm.APMSlice(**option)


# Other processes


def machine_code(step):
    """Return the files that hold the code of a step, and when each was written."""
    keys = step._blocks._chain.keys.values()
    return {
        path: path.stat().st_mtime for key in keys for path in NUMBA_CACHE_PATH.glob(f"*{key}*")
    }


def test_child_processes_do_not_compile_again():
    with pm.Model() as model:  # one that no other test has: these may run at the same time
        theta = pm.Normal("theta", shape=3)
        u = apm.StandardNormal("u", shape=3)
        apm.Potential("log_lik", -0.987654 * (u * theta).sum())
        step = apm.APMSlice(compile=True)
    alone = sample(model, step)
    before = machine_code(step)
    assert len(before) >= 4  # an index and some code for each of two functions
    for mp_ctx in ("fork", "spawn"):
        assert same_draws(alone, sample(model, step, cores=2, mp_ctx=mp_ctx))
        assert machine_code(step) == before
