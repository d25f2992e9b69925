"""Draws of compiled batches are handed out as if each had been made when it was asked for."""

import contextlib
import copy

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numba.core.runtime import _nrt_python, rtsys
from pymc.step_methods.compound import CompoundStep
from pymc.step_methods.state import equal_dataclass_values

import pymc_apm as apm
from pymc_apm.compiled.program import Program
from pymc_apm.errors import EstimatorError
from pymc_apm.steps import chain as chains_module
from tests.steps.models import run, sample, stacked, start_chain

pytestmark = pytest.mark.slow  # to compile them takes long

DATA = {"x": np.zeros(3), "limit": np.array(1e9), "a": np.array(1.0), "b": np.array(-1.0)}

BROKEN = {np.nan: {"a": 1.0, "b": -1.0}, -np.inf: {"a": 1.0, "b": 0.0}, np.inf: {"a": -1.0, "b": 0}}
"""Data for which a * log(b) is what it says: PyMC takes no nan for data."""


@pytest.fixture(scope="module")
def model():
    """A model with a parameter that another step may update, u of both kinds, and data.

    Where theta[0] is above a limit, which is data, the estimate is no proper number.
    """
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        other = pm.Normal("other")
        u = apm.StandardNormal("u", shape=3)
        v = apm.StandardUniform("v")
        data = {name: pm.Data(name, value) for name, value in DATA.items()}
        noise = 0.3 * theta[0] * (u + data["x"]).sum() + theta[1] * (v - 0.5)
        log_lik = noise - 0.5 * (other - theta.sum()) ** 2
        broken = data["a"] * pt.log(data["b"])
        apm.Potential("log_lik", pt.switch(theta[0] > data["limit"], broken, log_lik))
    return model


@pytest.fixture(scope="module")
def both(model):
    """The same step twice, compiled and not."""
    with model:
        return [apm.APMSlice([model["theta"]], compile=compile) for compile in (True, False)]


@pytest.fixture
def steps(model, both):
    yield both
    set_data(model, DATA)


def set_data(model, values):
    with model:
        pm.set_data(values)


def play_both(steps, model, play, seed=11):
    """Let ``play(step, point)`` drive a chain of each step, and compare what it returns."""
    results = []
    for step in steps:
        set_data(model, DATA)
        start_chain(step, seed)
        point = {name: value.copy() for name, value in model.initial_point().items()}
        results.append(play(step, point))
    assert steps[0].is_compiled and not steps[1].is_compiled
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11)
    return results[0]


def row(point, stats):
    costs = [stats[name] for name in ("n_evals", "n_theta_evals", "n_nan", "n_cubic", "n_random")]
    return [*point["theta"], stats["log_estimate"], stats["accepted"], stats["u_accepted"], *costs]


def disturbed(step, point, n_draws, disturb):
    """Make draws; ``disturb(number, point)`` may return another point before each of them."""
    rows = []
    for number in range(n_draws):
        point = disturb(number, point) or point
        point, (stats,) = step.step(point)
        rows.append(row(point, stats))
    return np.array(rows)


@pytest.mark.slow
def test_batches_grow_while_nothing_disturbs_them(steps, model):
    step = steps[0]
    start_chain(step, 1)
    run(step, model.initial_point(), 200)
    assert 10 < step.chain._length <= chains_module.MAX_DRAWS


def test_a_chain_that_nothing_disturbs_runs_in_compiled_code_alone(steps, model, monkeypatch):
    """A program that is called with other types than those that it was made for would fall back."""
    step = steps[0]
    start_chain(step, 1)

    def never(*arguments):
        raise AssertionError("a draw was made in Python")

    monkeypatch.setattr(step.chain, "_advance_in_python", never)
    points, _ = run(step, model.initial_point(), 300)
    step.stop_tuning()
    run(step, points[-1], 100)


def test_a_point_that_is_changed_in_between_is_taken_up_with_its_own_u(steps, model):
    """So the chain is that of one transition after the other, whatever disturbs it and when."""

    def play(step, point):
        rng = np.random.default_rng(2)

        def disturb(number, point):
            if number == 120:
                step.stop_tuning()
            if rng.random() < 0.03:
                point = point | {"theta": rng.normal(size=2)}
            if rng.random() < 0.03:
                point = point | {"other": np.array(rng.normal())}
            return point

        return (disturbed(step, point, 300, disturb),)

    play_both(steps, model, play)


def test_a_value_that_is_overwritten_in_place_is_noticed(steps, model):
    def play(step, point):
        def disturb(number, point):
            if number % 17 == 6:
                point["theta"][...] = 0.25

        return (disturbed(step, point, 100, disturb),)

    play_both(steps, model, play)


def test_values_that_were_handed_out_are_not_changed_by_later_draws(steps, model):
    step = steps[0]
    start_chain(step, 1)
    points, _ = run(step, model.initial_point(), 150)
    before = stacked(points).copy()
    run(step, points[-1], 150)
    np.testing.assert_array_equal(stacked(points), before)
    assert len(np.unique(before, axis=0)) > 140


@pytest.mark.parametrize("how", ["set_value", "in place", "step.u"])
def test_randomness_that_somebody_else_changes_is_taken_up(steps, model, how):
    def play(step, point):
        def disturb(number, point):
            if number % 40 != 30:
                return
            new = np.full(3, 0.01 * number)
            if how == "set_value":
                model["u"].set_value(new)
            elif how == "in place":
                model["u"].get_value(borrow=True)[...] = new
                model["v"].get_value(borrow=True)[...] = 0.125
            else:
                step.u = step.u | {"u": new}

        return (disturbed(step, point, 150, disturb),)

    rows = play_both(steps, model, play)[0]
    assert (rows[[30, 70, 110], 5] >= 3).all()  # one estimate for that, and two updates


def test_current_randomness_can_be_seen_after_each_draw(steps, model):
    log_estimate = model.compile_logp(vars=model.potentials, jacobian=False)

    def play(step, point):
        seen = []
        for _ in range(60):
            point, (stats,) = step.step(point)
            with apm.clamped(model):
                recomputed = log_estimate(point)
            np.testing.assert_allclose(stats["log_estimate"], recomputed, rtol=1e-9)
            np.testing.assert_allclose(step.evaluation.log_estimate, recomputed, rtol=1e-9)
            assert step.log_density == step.evaluation.log_density
            seen.append(np.concatenate([step.u["u"], [step.u["v"]]]))
        return (np.array(seen),)

    play_both(steps, model, play)


# Data


def test_data_that_is_set_between_draws_counts_from_the_next_draw_on(steps, model):
    def play(step, point):
        def disturb(number, point):
            if number in (1, 40, 41, 90):
                set_data(model, {"x": np.full(3, 0.1 * number)})

        return (disturbed(step, point, 120, disturb),)

    changed = play_both(steps, model, play)[0]
    start_chain(steps[0], 11)
    set_data(model, DATA)
    plain = disturbed(steps[0], model.initial_point(), 120, lambda number, point: None)
    np.testing.assert_allclose(changed[0], plain[0], rtol=1e-12)
    assert not np.allclose(changed[1:3, :3], plain[1:3, :3])


def test_the_estimate_of_a_draw_is_that_of_the_data_it_was_made_with(steps, model):
    log_estimate = model.compile_logp(vars=model.potentials, jacobian=False)
    for step in steps:
        start_chain(step, 5)
        point = model.initial_point()
        for number in range(60):
            if number % 20 == 15:
                set_data(model, {"x": np.full(3, 1.0 + number)})
            point, (stats,) = step.step(point)
            with apm.clamped(model):
                np.testing.assert_allclose(stats["log_estimate"], log_estimate(point), rtol=1e-9)


def test_a_callback_of_pymc_may_set_data(steps, model):
    """And the draws are the same in Python and compiled."""
    draws = []
    for step in steps:
        set_data(model, DATA)

        def callback(trace, draw):
            if draw.draw_idx in (20, 55, 70):
                set_data(model, {"x": np.full(3, 0.05 * draw.draw_idx)})

        compound = [step, pm.Metropolis([model["other"]], model=model)]
        idata = sample(model, compound, chains=1, callback=callback)
        draws.append(idata.posterior["theta"].values)
    np.testing.assert_allclose(*draws, rtol=1e-9)


# Other steps, states, tuning


def test_together_with_a_step_of_pymc_the_draws_are_the_same(steps, model):
    results = []
    for step in steps:
        with model:
            compound = CompoundStep([step, pm.Slice([model["other"]])])
        start_chain(compound, 4)
        point, points = model.initial_point(), []
        with apm.clamped(model):
            for _ in range(100):
                point, _ = compound.step(point)
                points.append(point)
        results.append(stacked(points))
    np.testing.assert_allclose(*results, rtol=1e-9)


@pytest.mark.parametrize("when", [1, 2, 50, 93])
def test_a_state_that_is_saved_within_a_batch_is_that_of_the_last_draw(steps, model, when):
    """And to look at it does not change the chain."""

    def play(step, point):
        points, _ = run(step, point, when)
        state = copy.deepcopy(step.sampling_state)
        expected, stats = run(step, points[-1], 80)
        step.sampling_state = state
        assert equal_dataclass_values(step.sampling_state, state)
        again, stats_again = run(step, points[-1], 80)
        np.testing.assert_array_equal(stacked(expected), stacked(again))
        assert stats == stats_again
        return stacked(points + expected), state.learnt.covariance.cholesky

    play_both(steps, model, play)


def leaves_of(item):
    if isinstance(item, tuple):
        return [leaf for element in item for leaf in leaves_of(element)]
    return [np.ravel(np.asarray(item, dtype=float))]


@pytest.mark.parametrize("look", ["learnt", "rng", "u", "log_density", "state"])
def test_a_chain_that_is_looked_at_is_the_same_chain(steps, model, look):
    """And what is seen is that of the last draw handed out, not of a later one."""

    def play(step, point):
        points, seen = [], []
        for number in range(150):
            point, _ = step.step(point)
            points.append(point)
            if number % 7 != 3:
                continue
            if look == "learnt":
                seen.append(np.concatenate(leaves_of(step.learnt)))
            elif look == "rng":
                seen.append(copy.deepcopy(step.rng).random(3))
            elif look == "u":
                seen.append(step.u["u"].copy())
            elif look == "log_density":
                seen.append(step.log_density)
            else:
                seen.append(step.sampling_state.u["u"])
        return stacked(points), np.array(seen)

    looked_at = play_both(steps, model, play)[0]
    start_chain(steps[0], 11)
    plain = stacked(run(steps[0], model.initial_point(), 150)[0])
    np.testing.assert_array_equal(looked_at, plain)


def test_tuning_ends_with_the_draw_before_it_was_stopped(steps, model):
    def play(step, point):
        points, _ = run(step, point, 137)
        step.stop_tuning()
        learnt = np.concatenate(leaves_of(step.learnt))
        more, _ = run(step, points[-1], 60)
        np.testing.assert_array_equal(np.concatenate(leaves_of(step.learnt)), learnt)
        return stacked(points + more), learnt

    play_both(steps, model, play)


def test_tuning_that_is_set_or_forgotten_by_hand_counts_from_the_next_draw_on(steps, model):
    def play(step, point):
        points, _ = run(step, point, 60)
        step.tune = False
        more, _ = run(step, points[-1], 60)
        step.tune = True
        step.reset_tuning()
        most, _ = run(step, more[-1], 60)
        return stacked(points + more + most), np.concatenate(leaves_of(step.learnt))

    play_both(steps, model, play)


def test_a_generator_that_is_given_in_between_is_used_from_the_next_draw_on(steps, model):
    def play(step, point):
        points, _ = run(step, point, 60)
        step.rng = rng = np.random.default_rng(77)
        more, _ = run(step, points[-1], 30)
        assert step.rng is rng
        return stacked(points + more), step.rng.random(2)

    play_both(steps, model, play)


def test_a_chain_that_is_started_again_is_a_new_chain(steps, model):
    def play(step, point):
        run(step, point, 77)  # within a batch
        start_chain(step, 3)
        points, _ = run(step, point, 50)
        return (stacked(points),)

    (again,) = play_both(steps, model, play)
    start_chain(steps[0], 3)
    np.testing.assert_array_equal(again, stacked(run(steps[0], model.initial_point(), 50)[0]))


@pytest.mark.parametrize("is_done", [False, True])
def test_ctrl_c_within_a_batch_loses_nothing(steps, model, monkeypatch, is_done):
    """Whether it comes before the batch is run or, as with compiled code, right after."""
    step = steps[0]
    start_chain(step, 8)
    expected = stacked(run(step, model.initial_point(), 200)[0])
    original, countdown = Program.run, iter(range(4))

    def interrupted(program, *arguments):
        if next(countdown, None) == 3:
            if is_done:
                original(program, *arguments)
            raise KeyboardInterrupt
        return original(program, *arguments)

    monkeypatch.setattr(Program, "run", interrupted)
    start_chain(step, 8)
    point, points, n_interrupted = model.initial_point(), [], 0
    while len(points) < 200:
        with contextlib.suppress(KeyboardInterrupt):
            point, _ = step.step(point)
            points.append(point)
            continue
        n_interrupted += 1
        state = step.sampling_state
        assert equal_dataclass_values(state, step.sampling_state)
    assert n_interrupted == 1
    np.testing.assert_allclose(stacked(points), expected, rtol=1e-9)


# Thinning


@pytest.mark.parametrize("compile", [True, False])
def test_a_thinned_chain_is_every_kth_draw_of_the_other(model, steps, compile):
    with model:
        one, three = (
            apm.APMSlice([model["theta"]], width=2.0, thin=k, compile=compile) for k in (1, 3)
        )
    chains = []
    for step, n_draws in ((one, 90), (three, 30)):  # one after the other: they share the model's u
        start_chain(step, 6)
        step.stop_tuning()
        chains.append(run(step, model.initial_point(), n_draws))
    (points, stats), (thinned, thinned_stats) = chains
    np.testing.assert_allclose(stacked(points)[2::3], stacked(thinned), rtol=1e-12)
    for name, combine in [("n_evals", np.sum), ("accepted", np.mean), ("width", np.mean)]:
        expected = combine(np.reshape([s[name] for s in stats], (30, 3)), axis=1)
        np.testing.assert_allclose([s[name] for s in thinned_stats], expected)


# Errors


def until_it_breaks(step, model, broken):
    """Run until there is an error; return the draws before it, and what it says."""
    start_chain(step, 7)
    set_data(model, DATA | {"limit": 1.0} | BROKEN[broken])
    point, points = model.initial_point(), []
    with pytest.raises(EstimatorError, match=r"log-estimate is \+inf at theta = ") as caught:
        while len(points) < 1000:
            point, _ = step.step(point)
            points.append(point)
    state = step.sampling_state
    return stacked(points), str(caught.value)[:60], state.u["u"], state.learnt.widths.width


def test_an_infinite_estimate_is_the_same_error_at_the_same_draw(steps, model):
    compiled, python = (until_it_breaks(step, model, np.inf) for step in steps)
    assert compiled[1] == python[1]
    for one, two in zip(compiled[::2], python[::2], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)
    np.testing.assert_allclose(compiled[3], python[3], rtol=1e-9)


@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_an_estimate_that_is_no_number_counts_as_zero(steps, model, broken):
    def play(step, point):
        set_data(model, {"limit": 1.0} | BROKEN[broken])
        return (disturbed(step, point, 200, lambda number, point: None),)

    (rows,) = play_both(steps, model, play)
    assert (rows[:, 7].sum() > 0) == np.isnan(broken)
    assert rows[:, 0].max() <= 1.0


def test_a_callback_that_leaves_the_chain_where_the_estimate_is_zero_is_told(steps, model):
    for step in steps:
        set_data(model, DATA | {"limit": 1.0})
        start_chain(step, 9)
        points, _ = run(step, model.initial_point(), 40)
        with pytest.raises(EstimatorError, match="another step, or a callback"):
            step.step(points[-1] | {"theta": np.array([2.0, 0.0])})
        more, _ = run(step, points[-1], 5)
        assert len(more) == 5


def test_a_program_that_raises_where_python_does_not_is_given_up_and_told(
    model, monkeypatch, caplog
):
    with model:
        steps = [apm.APMSlice([model["theta"]], compile=compile) for compile in (True, False)]
    working, calls = Program.run, []

    def broken(program, *arguments):
        calls.append(arguments)
        if len(calls) > 3:
            raise RuntimeError("no such luck")
        return working(program, *arguments)

    monkeypatch.setattr(Program, "run", broken)
    made = []
    for step in steps:
        start_chain(step, 10)
        points, _ = run(step, model.initial_point(), 60)
        made.append(stacked(points))
    np.testing.assert_allclose(*made, rtol=1e-9)
    assert len(calls) == 4
    assert not steps[0].is_compiled
    (record,) = [record for record in caplog.records if "no such luck" in record.message]
    assert "APMSlice goes on in Python" in record.message


@pytest.mark.slow
def test_parameters_of_another_type_are_rounded_where_they_are_handed_out_alone():
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2, dtype="float32")
        u = apm.StandardNormal("u", shape=3)
        apm.Potential("log_lik", 0.3 * (theta.sum() * u).sum())
        steps = [apm.APMSlice(width=2.0, compile=compile) for compile in (True, False)]
    made = []
    for step in steps:
        start_chain(step, 11)
        points, stats = run(step, model.initial_point(), 60)
        assert points[-1]["theta"].dtype == np.float32
        theta = step.target.value(step.evaluation, ":theta")
        assert (theta != theta.astype(np.float32)).all()
        made.append([*stacked(points).T, [row["n_evals"] for row in stats]])
    np.testing.assert_allclose(*made, rtol=1e-6)
    # An update along a line needs at least one evaluation, and none to come to where it was.
    assert min(row["n_theta_evals"] for row in stats) == 1


@pytest.mark.parametrize("tune", [True, False])
def test_compiled_code_frees_all_that_it_allocates(steps, model, tune):
    """References to arrays are counted in a way of our own: see ``compiled/parts.py``."""
    chain = steps[0].chain
    start_chain(steps[0], 12)
    run(steps[0], model.initial_point(), 20)
    program = chain.compiling.compiled(chain)
    evaluation = program.densities.to_numba(chain.evaluation)
    arguments = chain.arguments(50, evaluation, chain.learnt, tune)
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        for _ in range(5):
            program.run(*arguments)
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.alloc - before.alloc > 5 * 50
    assert after.alloc - before.alloc == after.free - before.free
