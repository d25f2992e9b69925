"""A saved state, set again, gives the same next draws."""

from copy import deepcopy

import cloudpickle
import numpy as np
import pytest
from pymc.step_methods.state import equal_dataclass_values

import pymc_apm as apm
from tests.steps.models import STEPS, mixed_model, run, stacked, start_chain


@pytest.fixture(scope="module")
def model():
    return mixed_model()


@pytest.fixture(scope="module")
def others(model):
    """Vouch for the u that a step leaves to others."""
    with apm.clamped(model):
        yield


def make(name, model):
    with model:
        return STEPS[name]()


@pytest.fixture(scope="module", params=STEPS)
def name(request, others):
    return request.param


@pytest.fixture(scope="module")
def step(name, model):
    return make(name, model)


@pytest.fixture(scope="module")
def another(name, model):
    """A second step of the same kind, made afresh."""
    return make(name, model)


def record(step, point, n_steps=15):
    """Run on; return the parameters, u and all statistics but the costs of the start."""
    points, stats = run(step, point, n_steps)
    u = {name: value.copy() for name, value in step.u.items()}
    estimates = [stat["log_estimate"] for stat in stats]
    return stacked(points), u, estimates


def assert_same(first, second):
    assert np.array_equal(first[0], second[0])
    assert all(np.array_equal(first[1][name], second[1][name]) for name in first[1])
    np.testing.assert_allclose(first[2], second[2], rtol=1e-12)


def u_of(model):
    return {name: model[name].get_value() for name in "uvw"}


def set_u(model, values):
    for name, value in values.items():
        model[name].set_value(value)


@pytest.mark.parametrize("n_before", [0, 1, 110])
def test_a_state_set_again_in_the_same_step_repeats_the_chain(model, step, n_before):
    start_chain(step, 1)
    points, _ = run(step, model.initial_point(), n_before)
    point = points[-1] if points else model.initial_point()
    state, u = step.sampling_state, u_of(model)
    expected = record(step, point)
    set_u(model, u)  # of other steps
    step.sampling_state = state
    assert_same(expected, record(step, point))


@pytest.mark.parametrize("tuning", [True, False])
def test_a_state_set_in_a_fresh_step_continues_the_chain(model, step, another, tuning):
    start_chain(step, 2)
    points, _ = run(step, model.initial_point(), 120)
    if not tuning:
        step.stop_tuning()
    state, u = step.sampling_state, u_of(model)
    expected = record(step, points[-1])
    start_chain(another, 99)
    run(another, model.initial_point(), 3)
    set_u(model, u)
    another.sampling_state = state
    assert another.tune is tuning
    assert_same(expected, record(another, points[-1]))


def test_a_state_is_a_copy_that_later_steps_do_not_change(model, step):
    start_chain(step, 3)
    points, _ = run(step, model.initial_point(), 10)
    state = step.sampling_state
    frozen = deepcopy(state)
    run(step, points[-1], 110)
    assert equal_dataclass_values(state, frozen)
    step.sampling_state = state
    run(step, points[-1], 10)
    assert equal_dataclass_values(state, frozen)


def test_a_state_survives_pickling(model, step):
    start_chain(step, 4)
    points, _ = run(step, model.initial_point(), 30)
    state, u = cloudpickle.loads(cloudpickle.dumps(step.sampling_state)), u_of(model)
    expected = record(step, points[-1])
    set_u(model, u)
    step.sampling_state = state
    assert_same(expected, record(step, points[-1]))


@pytest.mark.parametrize("name", ["PM MH", "SS+SS adaptive", "SS+MH"])
def test_a_step_survives_pickling_with_what_it_has_learnt(model, name):
    step = make(name, model)
    start_chain(step, 5)
    points, _ = run(step, model.initial_point(), 110)
    state = step.sampling_state
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    expected = record(step, points[-1])
    copy.sampling_state = state
    assert_same(expected, record(copy, points[-1]))


def test_u_of_the_copy_of_a_step_is_its_own(model):
    step = make("SS+SS", model)
    start_chain(step, 6)
    points, _ = run(step, model.initial_point(), 5)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    before = {name: value.copy() for name, value in step.u.items()}
    run(copy, points[-1], 5)
    assert all(np.array_equal(step.u[name], before[name]) for name in before)
    assert not np.array_equal(copy.u["u"], before["u"])


def test_a_state_holds_u_and_the_names_of_the_variables(model, step):
    start_chain(step, 7)
    state = step.sampling_state
    assert state.var_names == [variable.name for variable in step.vars]
    assert set(state.u) == set(step.u)
    for name, value in state.u.items():
        assert np.array_equal(value, step.u[name])
        assert not np.shares_memory(value, step.u[name])


def test_a_state_of_other_variables_is_refused(model, others):
    with model:
        first = apm.APMSlice([model["scalar"]])
        second = apm.APMSlice([model["scale"]])
    with pytest.raises(ValueError, match="var_names"):
        first.sampling_state = second.sampling_state


def test_the_state_of_a_fresh_step_as_pymc_tests_its_own_steps(model, name):
    """Two draws, the first state set again in the same step, and the same two draws again."""
    step = make(name, model)
    with apm.clamped(model):  # some leave a u to others
        check_fresh_state(model, step)


def check_fresh_state(model, step):
    start_chain(step, 42)
    initial_point = model.initial_point()
    u = u_of(model)
    first_state = step.sampling_state
    first_point, first_stats = step.step(initial_point)
    second_state = step.sampling_state
    second_point, second_stats = step.step(first_point)
    final_state = step.sampling_state
    assert not equal_dataclass_values(first_state, second_state)
    set_u(model, u)  # of other steps
    step.sampling_state = first_state
    assert equal_dataclass_values(step.sampling_state, first_state)
    again, again_stats = step.step(initial_point)
    assert equal_dataclass_values(step.sampling_state, second_state)
    assert again_stats == first_stats
    second_again, second_again_stats = step.step(again)
    assert equal_dataclass_values(step.sampling_state, final_state)
    assert second_again_stats == second_stats
    for one, two in ((first_point, again), (second_point, second_again)):
        assert np.array_equal(stacked([one]), stacked([two]))
