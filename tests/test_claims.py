"""An estimate may be computed while ``pm.sample`` runs, and where u is clamped on purpose."""

import contextlib
import copy
import threading

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.step_methods import STEP_METHODS, CompoundStep
from pytensor.compile.mode import JAX
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace

import pymc_apm as apm
from pymc_apm.claims import Guard, flags_in, terms_of
from pymc_apm.errors import UnclaimedRandomnessError
from tests.marks import others_are_slow
from tests.models import PYTHON, QUIET, mixed_toy, toy_gaussian

FEW = {"draws": 3, "tune": 3, "chains": 1, "cores": 1, "random_seed": 1} | QUIET
refused = pytest.raises(UnclaimedRandomnessError, match="'u'")


def claims(model):
    """Return how many vouch for the randomness of each estimate of a model."""
    return [int(flag.get_value()) for flag in flags_in(terms_of(model))]


FUNCTIONS = {
    "logp": lambda model, **options: model.compile_logp(**options),
    "dlogp": lambda model, **options: model.compile_dlogp(**options),
    "d2logp": lambda model, **options: model.compile_d2logp(negate_output=False, **options),
}


@pytest.mark.parametrize(
    "mode", others_are_slow([None, "FAST_COMPILE"], [None, "FAST_COMPILE", "CVM", "NUMBA"])
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_density_work_where_it_is_clamped_and_nowhere_else(name, mode):
    model = toy_gaussian(2)
    point = model.initial_point()
    options = {} if mode is None else {"mode": mode}
    before = FUNCTIONS[name](model, **options)
    with refused:
        before(point)
    with apm.clamped(model):
        within = FUNCTIONS[name](model, **options)
        np.testing.assert_array_equal(within(point), before(point))
        assert np.isfinite(within(point)).all()
    for function in (before, within, FUNCTIONS[name](model, **options)):
        with refused:
            function(point)


def test_they_are_refused_whatever_steps_there_are():
    """A step that is kept does not vouch for anything, nor does its death matter."""
    model = toy_gaussian(2)
    logp, point = model.compile_logp(**PYTHON), model.initial_point()
    with model:
        step = apm.APMSlice(compile_kwargs=PYTHON)
    with refused:
        logp(point)
    pm.sample(step=step, model=model, **FEW)
    with refused:
        logp(point)


ELSEWHERE = {
    "find_MAP": lambda model: pm.find_MAP(model=model, progressbar=False),
    "fit": lambda model: pm.fit(20, model=model, progressbar=False),
    "sample_smc": lambda model: pm.sample_smc(
        20, model=model, chains=1, cores=1, progressbar=False, compute_convergence_checks=False
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_does_not_update_u_is_refused_while_a_step_lives_and_after(name):
    model = toy_gaussian(2)
    with model:
        step = apm.APMSlice(compile_kwargs=PYTHON)
    with refused:
        ELSEWHERE[name](model)
    del step
    with refused:
        ELSEWHERE[name](model)
    with apm.clamped(model):
        ELSEWHERE[name](model)


def test_clamped_takes_the_model_whose_context_is_open():
    with toy_gaussian(2) as model, apm.clamped() as clamped:
        assert clamped is model
        assert claims(model) == [1]
    assert claims(model) == [0]
    with pytest.raises(TypeError, match=r"[Nn]o model on context stack"), apm.clamped():
        pass


def test_clamped_contexts_nest_and_end_by_exceptions_too():
    model = toy_gaussian(2)
    with apm.clamped(model):
        with contextlib.suppress(KeyboardInterrupt), apm.clamped(model):
            assert claims(model) == [2]
            raise KeyboardInterrupt
        assert claims(model) == [1]
    assert claims(model) == [0]


def test_a_model_without_estimates_can_be_clamped():
    with pm.Model() as model:
        pm.Normal("x")
    with apm.clamped(model):
        assert np.isfinite(model.compile_logp(**PYTHON)(model.initial_point()))


def test_clamping_one_model_does_not_clamp_another():
    first, second = toy_gaussian(2), toy_gaussian(2)
    logp = second.compile_logp(**PYTHON)
    with apm.clamped(first), refused:
        logp(second.initial_point())


def test_randomness_is_clamped_at_the_value_that_it_has():
    model = toy_gaussian(2)
    logp = model.compile_logp([model["log_lik"]], **PYTHON)
    point = {"theta": np.array([0.5, 1.0])}
    with apm.clamped(model):
        for u in ([0.0, 0.0], [1.0, -2.0]):
            model["u"].set_value(np.array(u))
            np.testing.assert_allclose(logp(point), -0.5 * ((point["theta"] + u) ** 2).sum())


def test_clamped_does_not_vouch_for_a_run():
    with toy_gaussian(2) as model, apm.clamped(), refused:
        pm.sample(step=pm.Metropolis(compile_kwargs=PYTHON), **FEW)
    assert claims(model) == [0]


# Runs


def test_estimates_may_be_computed_during_a_run_and_not_after():
    model = toy_gaussian(2)
    before, found, functions = model.compile_logp(**PYTHON), [], []

    def callback(trace, draw):
        functions.append(model.compile_dlogp(**PYTHON))
        found.append((before(draw.point), functions[-1](draw.point), claims(model)))

    pm.sample(model=model, callback=callback, step=slice_of(model), **FEW)
    assert np.isfinite([value for value, *_ in found]).all()
    assert all(count == [1] for *_, count in found)
    for function in (before, *functions):
        with refused:
            function(model.initial_point())


def slice_of(model):
    return apm.APMSlice(model=model, compile_kwargs=PYTHON)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_is_cut_short_leaves_no_claim(error):
    model = toy_gaussian(2)

    def callback(trace, draw):
        if draw.draw_idx == 4:
            raise error

    # PyMC returns what was sampled before Ctrl-C, and lets other exceptions through.
    expected = contextlib.nullcontext() if error is KeyboardInterrupt else pytest.raises(error)
    with expected:
        pm.sample(model=model, callback=callback, step=slice_of(model), **FEW)
    assert claims(model) == [0]


def test_a_run_that_does_not_start_leaves_no_claim():
    model = toy_gaussian(2)
    with pytest.raises((TypeError, ValueError)):
        pm.sample(model=model, step=slice_of(model), no_such_option=True, **FEW)
    with refused:
        pm.sample(model=model, step=pm.Metropolis(model=model, compile_kwargs=PYTHON), **FEW)
    assert claims(model) == [0]


def test_runs_nest_and_each_is_checked_by_itself():
    model, other = toy_gaussian(2), toy_gaussian(3)
    counts = []

    def callback(trace, draw):
        if draw.draw_idx == 1:
            pm.sample(model=other, step=slice_of(other), **FEW)
            counts.append(claims(other))
            with refused:
                metropolis = pm.Metropolis(model=model, compile_kwargs=PYTHON)
                pm.sample(model=model, step=metropolis, **FEW)
            with apm.clamped(model):
                counts.append(claims(model))
            counts.append(claims(model))

    pm.sample(model=model, callback=callback, step=slice_of(model), **FEW)
    assert counts == [[0], [2], [1]]
    assert claims(model) == [0]


def test_the_step_of_another_model_does_not_count():
    model, other = toy_gaussian(2), toy_gaussian(2)
    steps = [
        apm.APMEllipticalU(model=other, compile_kwargs=PYTHON),
        pm.Metropolis(model=model, compile_kwargs=PYTHON),
    ]
    with refused:
        pm.sample(model=model, step=steps, **FEW)


@pytest.mark.parametrize(
    ("options", "left"),
    [({"u_update": None}, "'u', 'v'"), ({"u": "u"}, "'v'"), ({"u": ["v"]}, "'u'")],
)
def test_a_step_that_pymc_chooses_counts_for_what_it_updates(options, left):
    model = mixed_toy()
    with pytest.raises(UnclaimedRandomnessError, match=f"the randomness {left},"):
        pm.sample(model=model, apm_slice=options, **FEW)


def test_a_step_that_pymc_chooses_may_share_the_randomness_with_one_that_is_given():
    with mixed_toy():
        step = apm.APMReflectiveU(compile_kwargs=PYTHON)
        idata = pm.sample(step=step, apm_slice={"u": "u"}, compile_kwargs=PYTHON, **FEW)
    assert idata.sample_stats["u_accepted"].values.shape[-1] == 2


def test_a_step_that_pymc_does_not_choose_does_not_count(monkeypatch):
    model = toy_gaussian(2)
    methods = [step for step in STEP_METHODS if step is not apm.APMSlice]
    monkeypatch.setattr("pymc.step_methods.STEP_METHODS", methods)
    with refused:
        pm.sample(model=model, **FEW)


def test_steps_within_steps_count():
    model = toy_gaussian(2)
    with model:
        compound = CompoundStep(
            [apm.APMEllipticalU(compile_kwargs=PYTHON), pm.Metropolis(compile_kwargs=PYTHON)]
        )
        pm.sample(step=compound, **FEW)
        pm.sample(step=(compound,), **FEW)


@pytest.mark.parametrize("mp_ctx", others_are_slow(["fork"], ["fork", "spawn"]))
def test_claims_go_with_the_model_to_child_processes(mp_ctx):
    """There each step sees to it that others update what it leaves to them."""
    model = mixed_toy()
    with model:
        steps = [
            apm.APMEllipticalU(compile_kwargs=PYTHON),
            apm.APMReflectiveU(compile_kwargs=PYTHON),
            pm.Metropolis(compile_kwargs=PYTHON),
        ]
        idata = pm.sample(step=steps, mp_ctx=mp_ctx, **(FEW | {"chains": 2, "cores": 2}))
    assert idata.posterior.sizes["chain"] == 2
    assert claims(model) == [0]


def test_a_model_that_is_pickled_during_a_run_takes_no_claim_along():
    model = toy_gaussian(2)
    with apm.clamped(model):
        logp = model.compile_logp()
        other, function = cloudpickle.loads(cloudpickle.dumps((model, logp)))
        assert claims(other) == [0]
        for copied in (function, copy.deepcopy(logp)):
            with refused:
                copied(other.initial_point())
        assert claims(model) == [1]
        assert np.isfinite(logp(model.initial_point()))


def test_two_threads_count_right():
    model = toy_gaussian(2)
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        for _ in range(300):
            with apm.clamped(model):
                assert claims(model)[0] > 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claims(model) == [0]


# Steps by hand


def test_a_step_by_hand_needs_nobody_for_the_randomness_that_it_updates():
    model = toy_gaussian(2)
    step = slice_of(model)
    point, _ = step.step(model.initial_point())
    assert point["theta"].shape == (2,)
    assert claims(model) == [0]


def test_a_step_by_hand_needs_clamped_for_the_randomness_of_others():
    model = mixed_toy()
    with model:
        step = apm.APMEllipticalU(compile_kwargs=PYTHON)
    with pytest.raises(UnclaimedRandomnessError, match="the randomness 'v',"):
        step.step(model.initial_point())
    with apm.clamped(model):
        step.step(model.initial_point())


# Guards


def test_a_potential_that_is_used_elsewhere_is_guarded_there_too():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        term = apm.Potential("log_lik", -((theta + apm.StandardNormal("u")) ** 2))
        pm.Deterministic("likelihood", pt.exp(term))
    function = model.compile_fn(model["likelihood"], inputs=[theta], **PYTHON)
    with refused:
        function({"theta": 0.0})
    with apm.clamped(model):
        assert function({"theta": 0.0}) <= 1.0


def test_each_estimate_names_its_own_randomness():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        first = apm.Potential("first", theta * apm.StandardNormal("u"))
        second = apm.Potential("second", theta * apm.StandardNormal("v"))
    point = model.initial_point()
    for term, name in ((first, "'u'"), (second, "'v'")):
        with pytest.raises(UnclaimedRandomnessError, match=f"the randomness {name},"):
            model.compile_logp([term], **PYTHON)(point)


def test_the_gradient_of_a_vector_is_guarded():
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        apm.Potential("log_lik", theta * apm.StandardNormal("u", shape=3))
    gradient = model.compile_dlogp([theta], **PYTHON)
    with refused:
        gradient(model.initial_point())
    with apm.clamped(model):
        expected = model["u"].get_value()  # that of the prior is zero at the starting point
        np.testing.assert_allclose(gradient(model.initial_point()), expected)


def rewritten_for_jax(model):
    """Return the conditions of the guards in what JAX is given to compile."""
    graph = FunctionGraph(outputs=[model.logp()], clone=True)
    JAX.optimizer.rewrite(graph)
    return [node.inputs[1] for node in graph.apply_nodes if isinstance(node.op, Guard)]


def test_a_guard_fails_for_sure_where_jax_would_leave_it_out():
    """PyTensor's JAX backend raises the error of a check whose condition is a constant false."""
    model = toy_gaussian(2)
    for context in (contextlib.nullcontext(), apm.clamped(model)):
        with context:
            (condition,) = rewritten_for_jax(model)
        assert isinstance(condition, Constant)
        assert not condition.data


def test_a_guard_is_no_obstacle_where_pymc_makes_constants_for_jax():
    """As ``pm.sampling.jax.get_jaxified_graph`` does, before it calls JAX."""
    model = toy_gaussian(2)
    (flag,) = flags_in(terms_of(model))
    for value, n_guards in ((0, 1), (1, 0)):
        constants = {flag: pt.constant(np.array(value))}
        (logp,) = clone_replace([model.logp()], replace=constants)
        graph = FunctionGraph(outputs=[logp], clone=True)
        JAX.optimizer.rewrite(graph)
        guards = [node for node in graph.apply_nodes if isinstance(node.op, Guard)]
        assert len(guards) == n_guards
        assert not any(guard.inputs[1].data for guard in guards)


def test_there_is_no_other_way_in_than_the_tests_know():
    """The last estimate of a run is not to be had by asking for the value of a term."""
    model = toy_gaussian(2)
    with refused:
        model["log_lik"].eval({model["theta"]: np.zeros(2)})
