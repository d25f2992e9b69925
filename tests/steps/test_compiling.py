"""When a chain is compiled: if it pays, and without a change of a single draw."""

import contextlib
import logging
import multiprocessing

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.compiled import cache, program
from pymc_apm.compiled.program import Program
from pymc_apm.errors import CompileError, ModelError
from pymc_apm.steps import compiling
from tests.compiled.small import small_model, small_step
from tests.models import PythonOp
from tests.steps.models import sample, stacked, toy_gaussian


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def compiled(model):
    """The program, compiled by now, in memory and on disk."""
    return small_step(model, compile=True)


@pytest.fixture(autouse=True)
def automatic(monkeypatch):
    """Let "auto" mean that."""
    monkeypatch.delenv(compiling.SWITCH, raising=False)


@pytest.fixture
def eager(monkeypatch):
    """Compile whatever there is to compile, after the first draw."""
    for name in ("FIRST_LOOK", "LOADING", "COMPILATION"):
        monkeypatch.setattr(compiling, name, 0.0)


@pytest.fixture
def in_memory(monkeypatch):
    """Nothing is in memory; what is loaded is forgotten after the test."""
    monkeypatch.setattr(program, "COMPILED", {})


def draws_of(step, n_tune=40, n_draws=60, announced=True):
    """Run a chain as PyMC does; return the draws, and at which it was compiled, if it was."""
    chain_length = (n_tune, n_draws) if announced else (0, 0)
    step.setup_chain(np.random.default_rng(3), *chain_length)
    point, points, first = step.target.model.initial_point(), [], None
    for number in range(n_tune + n_draws):
        if number == n_tune:
            step.stop_tuning()
        point, (stats,) = step.step(point)
        points.append(point | {"u": step.u["u"].copy(), "estimate": stats["log_estimate"]})
        if first is None and step.is_compiled:
            first = number
    return stacked(points), first


@pytest.fixture(scope="module")
def expected(model):
    """The draws of Python."""
    return draws_of(small_step(model, compile=False))[0]


def assert_same(draws, expected):
    assert draws.shape == expected.shape
    np.testing.assert_allclose(draws, expected, rtol=1e-9, atol=1e-12)


def forbid(monkeypatch, *names):
    for name in names:

        def fail(*arguments, name=name):
            raise AssertionError(f"Program.{name} was called")

        monkeypatch.setattr(Program, name, fail)


# When


def test_nothing_is_compiled_or_even_looked_for_in_a_short_run(model, monkeypatch, expected):
    forbid(monkeypatch, "__init__", "compile", "is_at_hand")
    draws, first = draws_of(small_step(model))
    assert first is None
    np.testing.assert_array_equal(draws, expected)


def test_sampling_starts_in_python_and_goes_on_in_compiled_code(
    model, compiled, eager, in_memory, expected
):
    draws, first = draws_of(small_step(model))
    assert 1 <= first < 10
    assert_same(draws, expected)


def test_a_program_on_disk_is_used_though_it_would_not_be_compiled(
    model, compiled, eager, in_memory, monkeypatch, expected
):
    monkeypatch.setattr(compiling, "COMPILATION", 1e9)
    forbid(monkeypatch, "_make")
    draws, first = draws_of(small_step(model))
    assert first is not None
    assert_same(draws, expected)


def test_a_program_on_disk_is_not_loaded_for_a_few_draws_more(
    model, compiled, eager, in_memory, monkeypatch
):
    monkeypatch.setattr(compiling, "LOADING", 1e3)
    forbid(monkeypatch, "is_at_hand", "compile")
    assert draws_of(small_step(model))[1] is None


def test_what_would_not_pay_is_not_compiled(model, compiled, eager, monkeypatch):
    monkeypatch.setattr(compiling, "COMPILATION", 1e9)
    monkeypatch.setattr(Program, "is_at_hand", lambda *arguments: False)
    forbid(monkeypatch, "compile")
    assert draws_of(small_step(model))[1] is None


@pytest.mark.parametrize("announced", [True, False])
def test_what_pays_is_compiled(model, compiled, eager, monkeypatch, expected, announced):
    """Also if PyMC does not tell how many draws there will be: then as many as there were."""
    monkeypatch.setattr(Program, "is_at_hand", lambda *arguments: False)
    draws, first = draws_of(small_step(model), announced=announced)
    assert first is not None
    assert_same(draws, expected)


def test_the_number_of_draws_that_are_left_decides(model, compiled, eager, monkeypatch):
    """A draw takes less than a second, and a thousand draws take more than a millisecond."""
    monkeypatch.setattr(compiling, "COMPILATION", 1e-3)
    monkeypatch.setattr(Program, "is_at_hand", lambda *arguments: False)
    calls = []
    monkeypatch.setattr(
        compiling.Compiling, "compiled", lambda self, chain: calls.append(chain._n_left())
    )
    step = small_step(model)
    step.compiling = step.chain.compiling
    for n_left, is_worth_it in ((0, False), (10**9, True)):
        calls.clear()
        step.compiling.restart()
        step.compiling.note(1e-4, n_left, False)
        assert step.compiling.is_due
        step.compiling.program(step.chain)
        assert bool(calls) is is_worth_it


def test_little_is_saved_where_the_estimate_is_compiled_anyway(model):
    with pm.Model():
        s = pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            np.array([0.3, -0.2, 0.5]),
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: pm.Normal.dist(x, s),
            observation=lambda x: pm.Normal.dist(x, 1),
            points=4,
            reference={"s": 0.5},
        )
        pool = apm.APMSlice()
    for step, part in ((pool, 0.1), (small_step(model), 0.75)):
        made = step.chain.compiling
        made.restart()
        made.note(1.0, 40, False)
        assert made._saving() == pytest.approx(40.0 * part)


def test_it_is_asked_less_and_less_often(model, monkeypatch):
    made = compiling.Compiling("auto", "step", None)
    monkeypatch.setattr(made, "_saving", lambda: 0.0)
    looks = []
    for number in range(1000):
        made.note(0.05, 0, False)
        if made.is_due:
            looks.append(number)
            assert made.program(None) is None
    assert 5 < len(looks) < 12


def test_a_chain_that_others_disturb_at_most_draws_stays_in_python(eager, monkeypatch):
    """Each batch would be run for one draw."""
    made = compiling.Compiling("auto", "step", None)
    monkeypatch.setattr(made, "_worthwhile", lambda chain: "a program")
    for number in range(10):
        made.note(1.0, 1000, number % 3 > 0)
    assert made.program(None) is None
    for _ in range(10):
        made.note(1.0, 1000, False)
    assert made.program(None) == "a program"


def test_what_is_ready_is_used_by_the_next_chain_from_its_first_draw_on(
    model, compiled, eager, expected
):
    step = small_step(model)
    draws_of(step)
    draws, first = draws_of(step)
    assert first == 0
    assert_same(draws, expected)


@contextlib.contextmanager
def held_by_another_process(digest):
    context = multiprocessing.get_context("fork")
    is_held, may_go = context.Event(), context.Event()

    def hold():
        with cache.the_only_one(digest) as is_mine:
            assert is_mine
            is_held.set()
            may_go.wait(60)

    process = context.Process(target=hold)
    process.start()
    assert is_held.wait(60)
    try:
        yield
    finally:
        may_go.set()
        process.join()


def test_while_another_process_compiles_it_this_one_goes_on_in_python(
    model, compiled, eager, monkeypatch, expected, tmp_path
):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(Program, "is_at_hand", lambda *arguments: False)
    step = small_step(model)
    digest = step.chain.compiling._unready(step.chain).digest
    with held_by_another_process(digest), pytest.MonkeyPatch.context() as patch:
        forbid(patch, "compile")
        draws, first = draws_of(step)
    assert first is None
    np.testing.assert_array_equal(draws, expected)
    draws, first = draws_of(step)
    assert first is not None
    assert_same(draws, expected)


@pytest.mark.parametrize("where", ["__init__", "is_at_hand", "compile"])
def test_if_it_fails_sampling_goes_on_in_python(model, eager, monkeypatch, expected, caplog, where):
    step = small_step(model)
    forbid(monkeypatch, where)
    with caplog.at_level(logging.INFO, logger="pymc.apm"):
        draws, first = draws_of(step)
    assert first is None
    np.testing.assert_array_equal(draws, expected)
    assert caplog.text.count("runs in Python") == 1
    assert f"Program.{where} was called" in caplog.text


def test_a_whole_run_of_pymc_has_the_same_draws(model, compiled, eager):
    runs = [sample(model, small_step(model, compile=choice)) for choice in ("auto", False, True)]
    for other in runs[1:]:
        for group in ("posterior", "sample_stats"):
            one, two = getattr(runs[0], group), getattr(other, group)
            assert set(one.data_vars) == set(two.data_vars)
            for name in one.data_vars:
                np.testing.assert_allclose(one[name], two[name], rtol=1e-9, err_msg=name)


# Whether


def black_box_model():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", PythonOp(lambda x: 0.1 * x)(theta * u))
    return model


def test_what_stands_in_the_way_is_named():
    with black_box_model(), pytest.raises(CompileError, match="PythonOp"):
        apm.APMSlice(compile=True)
    with pm.Model():
        theta = pm.Normal("theta")
        log_estimate = apm.black_box(lambda theta, rng: -theta * rng.random())
        apm.Potential("log_lik", log_estimate(theta, apm.Stream("u")))
        with pytest.raises(CompileError, match="black boxes"):
            apm.APMMetropolis(compile=True)


def test_automatic_steps_fall_back_to_python_and_say_why(eager, caplog):
    model = black_box_model()
    with caplog.at_level(logging.INFO, logger="pymc.apm"):
        with model:
            step = apm.APMSlice()
        idata = sample(model, step)
    assert not step.is_compiled
    assert "runs in Python" in caplog.text and "PythonOp" in caplog.text
    assert idata.posterior["theta"].shape == (2, 50)


@pytest.mark.parametrize(("value", "when"), [("0", "never"), ("1", "at once"), (None, "later")])
def test_automatic_compilation_can_be_switched(model, compiled, eager, monkeypatch, value, when):
    if value is not None:
        monkeypatch.setenv(compiling.SWITCH, value)
    _, first = draws_of(small_step(model))
    assert first is None if when == "never" else (first == 0) == (when == "at once")


def test_the_user_is_told_of_a_compilation_that_takes_long(model, compiled, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "PATIENCE", 0.0)
    with caplog.at_level(logging.INFO, logger="pymc.apm"):
        small_step(model, compile=True)
    assert "Compiling PseudoMarginalMH" in caplog.text
    assert "PseudoMarginalMH is compiled, in" in caplog.text


@pytest.mark.parametrize("option", [{"compile": "yes"}, {"compile": None}, {"thin": 0}])
def test_bad_options_are_refused(option):
    (name,) = option
    with toy_gaussian(dim=2), pytest.raises(ModelError, match=f"{name} of APMSlice"):
        apm.APMSlice(**option)
