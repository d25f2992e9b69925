"""The cut into stages: what has to run, and just that, how often, under real steps."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.density.target import REST, THETA, Target
from tests.models import PYTHON, QUIET, SETUP_RUNS, Calls, PythonOp, run

STEPS = {
    "slice": lambda **options: apm.APMSlice(**options),
    "slice-coordinate": lambda **options: apm.APMSlice(
        directions="coordinate", step_out=3, **options
    ),
    "slice-independence": lambda **options: apm.APMSlice(
        u_update="independence", theta_updates=3, **options
    ),
    "metropolis": lambda **options: apm.APMMetropolis(**options),
    "metropolis-independence": lambda **options: apm.APMMetropolis(
        u_update="independence", **options
    ),
    "pseudo-marginal": lambda **options: apm.PseudoMarginalMH(**options),
    "correlated": lambda **options: apm.PseudoMarginalMH(correlation=0.9, scaling=0.5, **options),
}


def counting_model():
    """Return a model with a counted op for each set of inputs that work can depend on."""
    calls = Calls()
    with pm.Model() as model:
        x = pm.Data("x", np.linspace(-1.0, 1.0, 3))
        theta = pm.Normal("theta", shape=3)
        u = apm.StandardNormal("u", shape=3)
        v = apm.StandardUniform("v", shape=3)
        from_data = calls.counted("data", x)
        from_theta = calls.counted("theta", theta)
        from_u = calls.counted("u", u)
        from_v = calls.counted("v", v)
        from_both = calls.counted("theta and u", from_theta + from_data + from_u)
        apm.Potential("log_lik", -(from_both**2).sum())
        apm.Potential("other", -calls.counted("theta and v", from_theta * from_v))
    return model, calls


@pytest.fixture(scope="module")
def counting():
    return counting_model()


@pytest.fixture
def target(counting):
    model, calls = counting
    made = Target(model, model.value_vars, model.initial_point(), PYTHON)
    calls.clear()
    return made


def start(target, seed=0):
    rng = np.random.default_rng(seed)
    sizes = {THETA: target.layout.size, REST: target.rest.size}
    sizes |= {u.name: int(np.prod(u.type.shape)) for u in target.randomness}
    return target.start({name: rng.random(size) for name, size in sizes.items()})


# One evaluation


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([THETA], {"theta", "theta and u", "theta and v"}),
        (["u"], {"u", "theta and u"}),
        (["v"], {"v", "theta and v"}),
        (["u", "v"], {"u", "v", "theta and u", "theta and v"}),
        ([THETA, "v"], {"theta", "v", "theta and u", "theta and v"}),
    ],
)
def test_a_change_of_some_blocks_runs_what_depends_on_them_and_nothing_else(
    counting, target, blocks, expected
):
    _, calls = counting
    evaluation = start(target)
    assert calls == dict.fromkeys(["data", "theta", "u", "v", "theta and u", "theta and v"], 1), (
        "everything runs once at first"
    )
    calls.clear()
    positions = [np.full(3, 0.3) for _ in blocks]
    position = positions[0] if len(blocks) == 1 else tuple(positions)
    target.along(*blocks)(position, evaluation)
    assert calls == dict.fromkeys(expected, 1)


def test_work_that_is_written_twice_is_done_once():
    calls = Calls()

    def count(value):
        calls["theta"] += 1
        return value

    op = PythonOp(count)
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        u = apm.StandardNormal("u", shape=3)
        apm.Potential("first", (op(theta) * u).sum())
        apm.Potential("second", (op(theta) + u).sum())
    start(Target(model, model.value_vars, model.initial_point(), PYTHON))
    assert calls["theta"] == 1


def test_work_that_prior_and_estimate_share_is_done_once():
    calls = Calls()
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        shared = calls.counted("shared", theta)
        u = apm.StandardNormal("u", shape=3)
        pm.Potential("constraint", pt.switch(shared.sum() > -10.0, 0.0, -np.inf))
        apm.Potential("log_lik", (shared * u).sum())
    start(Target(model, model.value_vars, model.initial_point(), PYTHON))
    assert calls["shared"] == 1


def test_an_expensive_part_of_a_large_graph_is_exported_and_not_repeated():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        u = apm.StandardNormal("u", shape=100)
        distance = np.abs(np.subtract.outer(np.arange(100), np.arange(100)))
        cholesky = pt.linalg.cholesky(pt.exp(-distance / scale) + 1e-6 * np.eye(100))
        apm.Potential("log_lik", -((cholesky @ u) ** 2).sum())
    target = Target(model, model.value_vars, model.initial_point(), PYTHON)
    stages = {(stage.is_prior, stage.depends_on): stage for stage, *_ in target.stages}
    before = stages[False, frozenset({THETA})]
    after = stages[False, frozenset({THETA, "u"})]
    assert [variable.type.shape for variable in before.exports] == [(100, 100)]
    assert before.exports[0] in after.inputs
    assert not before.sums
    assert set(after.sums) == {"estimate"}


# Whole chains


@pytest.mark.parametrize("name", STEPS)
def test_each_stage_runs_once_per_value_that_is_considered_and_never_on_acceptance(counting, name):
    model, calls = counting
    with model:
        step = STEPS[name](compile_kwargs=PYTHON)
    calls.clear()
    chain = run(step, model.initial_point(), n_draws=10, n_tune=10, seed=1)
    n_evals, n_theta_evals = chain.total("n_evals"), chain.total("n_theta_evals")
    assert n_theta_evals >= 20
    assert calls["theta"] == n_theta_evals + SETUP_RUNS
    assert calls["data"] == SETUP_RUNS, "data-only work belongs to the start of a chain"
    if name == "correlated":  # everything changes at once, in each of the draws
        assert n_evals == n_theta_evals == 20
        assert set(calls.values()) == {20 + SETUP_RUNS, SETUP_RUNS}
        return
    joint = sum(chain.stats[draw]["n_evals"] == 1 for draw in range(20))
    n_u_evals = n_evals - n_theta_evals
    assert joint == (10 if name == "pseudo-marginal" else 0)
    assert calls["u"] + calls["v"] == n_u_evals + 2 * joint + 2 * SETUP_RUNS
    # With theta both are computed; with one of them, what depends on the other is kept.
    assert calls["theta and u"] == n_theta_evals + calls["u"] - joint
    assert calls["theta and v"] == n_theta_evals + calls["v"] - joint


@pytest.mark.compiler
@pytest.mark.parametrize("compile_kwargs", [None, PYTHON], ids=["default", "python"])
def test_counts_hold_through_pm_sample_with_several_chains(compile_kwargs):
    model, calls = counting_model()
    with model:
        step = apm.APMSlice(compile_kwargs=compile_kwargs)
        calls.clear()
        idata = pm.sample(8, tune=0, chains=2, cores=1, step=step, random_seed=1, **QUIET)
    stats = idata.sample_stats
    assert calls["theta"] == stats["n_theta_evals"].values.sum() + 2 * SETUP_RUNS
    assert calls["data"] == 2 * SETUP_RUNS
    n_u_evals = (stats["n_evals"] - stats["n_theta_evals"]).values.sum()
    assert calls["u"] + calls["v"] == n_u_evals + 4 * SETUP_RUNS


def test_a_step_for_u_alone_never_touches_the_work_for_theta(counting):
    model, calls = counting
    with model:
        others = apm.APMReflectiveU(compile_kwargs=PYTHON)
        step = apm.APMEllipticalU(compile_kwargs=PYTHON)
    calls.clear()
    with apm.clamped(model):
        chain = run(step, model.initial_point(), n_draws=20)
    assert chain.total("n_theta_evals") == 0
    assert calls["u"] == chain.total("n_evals") + SETUP_RUNS
    assert calls["theta"] == calls["v"] == calls["theta and v"] == calls["data"] == SETUP_RUNS
    assert others.u.keys() == {"v"}


def test_a_parameter_that_another_step_moved_costs_one_evaluation_of_theta():
    calls = Calls()
    with pm.Model() as model:
        theta = pm.Normal("theta")
        phi = pm.Normal("phi")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", -((calls.counted("phi", phi) + theta + u) ** 2))
        step = apm.APMMetropolis([theta], compile_kwargs=PYTHON)
    chain = run(step, model.initial_point(), n_draws=1)
    calls.clear()
    _, [unmoved] = step.step(chain.point)
    assert (calls["phi"], unmoved["n_theta_evals"]) == (0, 1)
    _, [moved] = step.step(chain.point | {"phi": np.array(0.2)})
    assert (calls["phi"], moved["n_theta_evals"]) == (1, 2)


def test_data_that_changed_between_two_runs_of_a_step_is_seen():
    with pm.Model() as model:
        x = pm.Data("x", np.zeros(3))
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", x.sum() + theta * u)
        step = apm.APMSlice(compile_kwargs=PYTHON)
    for data in (np.zeros(3), np.full(3, 7.0), np.full(5, 2.0)):
        with model:
            pm.set_data({"x": data})
        chain = run(step, model.initial_point(), n_draws=2)
        expected = data.sum() + chain.point["theta"] * model["u"].get_value()
        np.testing.assert_allclose(chain.stats[-1]["log_estimate"], expected)


# Where the prior is zero


def estimator_that_counts_and_checks(calls, is_possible):
    def estimate(theta, u):
        calls["estimator"] += 1
        assert is_possible(theta)
        return -((theta - u) ** 2)

    return PythonOp(estimate)


@pytest.mark.parametrize("name", STEPS)
def test_the_estimator_never_sees_parameters_outside_of_their_support(name):
    calls = Calls()
    with pm.Model() as model:
        theta = pm.Uniform("theta", 0.0, 1.0, shape=2, transform=None)
        u = apm.StandardNormal("u", shape=2)
        op = estimator_that_counts_and_checks(calls, lambda x: np.all((x >= 0) & (x <= 1)))
        apm.Potential("log_lik", op(theta, u))
        step = STEPS[name](compile_kwargs=PYTHON)
    chain = run(step, model.initial_point(), n_draws=20, seed=2)
    assert calls["estimator"] == chain.total("n_evals") + SETUP_RUNS
    assert chain.total("n_nan") == 0


def test_the_estimator_is_not_called_where_a_constraint_is_broken():
    calls = Calls()
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        pm.Potential("ordered", pt.switch(theta[0] <= theta[1], 0.0, -np.inf))
        u = apm.StandardNormal("u", shape=2)
        op = estimator_that_counts_and_checks(calls, lambda x: x[0] <= x[1])
        apm.Potential("log_lik", op(theta, u))
        step = apm.APMMetropolis(scaling=1.0, compile_kwargs=PYTHON)
    chain = run(step, model.initial_point(), n_draws=30, seed=3)
    assert calls["estimator"] == chain.total("n_evals") + SETUP_RUNS
    assert chain.total("n_theta_evals") < 30, "some proposals broke the constraint"
    assert chain.point["theta"][0] < chain.point["theta"][1]
