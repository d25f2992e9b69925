"""What PyMC expects of a step, and what it does to steps that are not careful (DESIGN.md, 4)."""

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.compound import CompoundStep

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from tests.statistical.test_negative_controls import UsesStaleLogDensity
from tests.steps.models import (
    COMPLETE,
    STEPS,
    mixed_model,
    recompute_log_estimate,
    run,
    same_draws,
    sample,
    stacked,
    start_chain,
    toy_gaussian,
)


@pytest.fixture(scope="module")
def model():
    return mixed_model()


@pytest.fixture(scope="module")
def log_estimate(model):
    return recompute_log_estimate(model)


@pytest.fixture(scope="module")
def log_density(model):
    return model.compile_logp()


@pytest.fixture(scope="module", params=STEPS)
def step(request, model):
    """A step of each kind, alone or together with those that see to the rest of u."""
    with model:
        step = STEPS[request.param]()
        others = [apm.APMIndependenceU()] if request.param not in COMPLETE else []
    step.others = others
    with apm.clamped(model):
        yield step


@pytest.fixture
def point(model):
    return model.initial_point()


# Points


def test_the_point_keeps_its_keys_their_order_the_dtypes_and_the_shapes(step, point):
    reordered = {name: point[name] for name in reversed(point)}
    start_chain(step, 1)
    new_points, _ = run(step, reordered, 20)
    for new in new_points:
        assert list(new) == list(reordered)
        for name, value in new.items():
            assert type(value) is np.ndarray
            assert value.dtype == point[name].dtype
            assert value.shape == point[name].shape


def test_the_order_of_the_keys_does_not_swap_variables(model, step, point):
    start_chain(step, 2)
    expected, _ = run(step, point, 20)
    start_chain(step, 2)
    reordered, _ = run(step, {name: point[name] for name in reversed(point)}, 20)
    for a, b in zip(expected, reordered, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in point)


def test_the_arrays_of_a_point_are_neither_changed_nor_kept(step, point):
    start_chain(step, 3)
    for value in point.values():
        value.flags.writeable = False
    before = {name: value.copy() for name, value in point.items()}
    for _ in range(20):
        new, _ = step.step(point)
        assert new is not point
        assert all(np.array_equal(point[name], before[name]) for name in point)
        for variable in step.vars:
            assert not np.shares_memory(new[variable.name], point[variable.name])
        point = {name: value.copy() for name, value in new.items()}
        for value in point.values():
            value.flags.writeable = False
        before = {name: value.copy() for name, value in point.items()}


def test_a_point_that_is_overwritten_in_place_between_steps_gives_the_same_chain(step, point):
    start_chain(step, 4)
    expected, _ = run(step, point, 30)
    start_chain(step, 4)
    shared = {name: value.copy() for name, value in point.items()}
    for wanted in expected:
        new, _ = step.step(shared)
        for name, value in shared.items():
            value[...] = new[name]
            if not np.shares_memory(value, new[name]):
                new[name][...] = 0  # what was returned is not looked at again either
            assert np.array_equal(value, wanted[name])


def test_a_parameter_that_somebody_else_overwrites_in_place_is_seen(step, point, log_estimate):
    start_chain(step, 5)
    rng = np.random.default_rng(5)
    for _ in range(20):
        for name, value in point.items():
            value[...] = rng.poisson(3) if name == "count" else rng.normal(size=value.shape)
        new, (stats,) = step.step(point)
        np.testing.assert_allclose(stats["log_estimate"], log_estimate(new), rtol=1e-9)
        for name, value in point.items():
            value[...] = new[name]


def test_u_that_somebody_else_changes_is_seen(model, step, point, log_estimate):
    start_chain(step, 6)
    rng = np.random.default_rng(6)
    for i in range(20):
        name = "uvw"[i % 3]
        shape = model[name].type.shape
        model[name].set_value(rng.random(shape))
        point, (stats,) = step.step(point)
        np.testing.assert_allclose(stats["log_estimate"], log_estimate(point), rtol=1e-9)


def test_a_step_on_some_of_the_parameters_leaves_the_others_alone(model, point, log_estimate):
    with model:
        steps = [
            apm.APMSlice([model["scale"]]),
            apm.APMMetropolis([model["count"]]),
            apm.PseudoMarginalMH([model["matrix"]], scaling=0.1),
        ]
    for step, own in zip(steps, ["scale_log__", "count", "matrix"], strict=True):
        start_chain(step, 7)
        points, stats = run(step, point, 30)
        assert len({new[own].tobytes() for new in points}) > 2
        others = set(point) - {own}
        assert all(np.array_equal(new[name], point[name]) for new in points for name in others)
        np.testing.assert_allclose(stats[-1]["log_estimate"], log_estimate(points[-1]), rtol=1e-9)


def test_discrete_parameters_stay_integers_of_their_own_dtype(model, point):
    for make in (apm.APMMetropolis, apm.PseudoMarginalMH):
        with model:
            step = make([model["count"]])
        start_chain(step, 8)
        points, _ = run(step, point, 50)
        counts = [new["count"] for new in points]
        assert all(count.dtype == np.int64 and count >= 0 for count in counts)
        assert len({int(count) for count in counts}) > 2


# Statistics


def test_statistics_are_one_dict_with_the_declared_names_and_types(step, point):
    start_chain(step, 9)
    for _ in range(10):
        point, stats = step.step(point)
        assert isinstance(stats, list) and len(stats) == 1
        assert set(stats[0]) == set(step.stats_dtypes_shapes)
        for name, (dtype, shape) in step.stats_dtypes_shapes.items():
            value = np.asarray(stats[0][name])
            assert value.shape == tuple(shape) == ()
            assert value.dtype == dtype


def test_acceptance_is_float64_and_steps_of_u_record_that_of_u_alone():
    for make in (apm.APMSlice, apm.APMMetropolis, apm.PseudoMarginalMH):
        assert make.stats_dtypes_shapes["accepted"] == (np.float64, [])
        assert make.stats_dtypes_shapes["u_accepted"] == (np.float64, [])
    for make in (apm.APMEllipticalU, apm.APMReflectiveU, apm.APMIndependenceU):
        assert "accepted" not in make.stats_dtypes_shapes
        assert make.stats_dtypes_shapes["u_accepted"] == (np.float64, [])


def test_evaluations_are_counted_and_those_of_the_start_are_not():
    with toy_gaussian():
        expected = [
            (apm.PseudoMarginalMH(scaling=0.5), 1, 1),
            (apm.APMMetropolis(u_update="independence", scaling=0.5), 2, 1),
            (apm.APMMetropolis(u_update="independence", scaling=0.5, theta_updates=4), 5, 4),
            (apm.APMIndependenceU(), 1, 0),
        ]
    for step, n_evals, n_theta_evals in expected:
        start_chain(step, 10)
        _, stats = run(step, {"theta": np.ones(5)}, 20)
        assert {stat["n_evals"] for stat in stats} == {n_evals}
        assert {stat["n_theta_evals"] for stat in stats} == {n_theta_evals}


def test_a_change_from_outside_costs_one_more_evaluation():
    with toy_gaussian():
        step = apm.PseudoMarginalMH(scaling=0.5)
    start_chain(step, 11)
    counts = []
    for i in range(5):
        _, (stats,) = step.step({"theta": np.full(5, 0.1 * i)})
        counts.append(stats["n_evals"])
    assert counts == [1, 2, 2, 2, 2]


@pytest.mark.parametrize("directions", ["random", "coordinate", "adaptive"])
@pytest.mark.parametrize("k", [1, 3])
def test_theta_updates_moves_theta_k_times_for_each_move_of_u(directions, k):
    with toy_gaussian(dim=2):
        # A tiny bracket is in the slice at once: one evaluation for each line.
        step = apm.APMSlice(
            u_update="independence", width=1e-9, directions=directions, theta_updates=k
        )
    start_chain(step, 12)
    _, stats = run(step, {"theta": np.ones(2)}, 20)
    lines = k * (2 if directions == "coordinate" else 1)
    assert {stat["n_theta_evals"] for stat in stats} == {lines}
    assert {stat["n_evals"] for stat in stats} == {lines + 1}


def test_the_recorded_statistics_are_those_of_a_run(model):
    idata = sample(model, step=model_step(model, apm.APMSlice), draws=20, tune=20)
    stats = idata.sample_stats
    for name, (dtype, _) in apm.APMSlice.stats_dtypes_shapes.items():
        assert stats[name].dtype == dtype
        assert stats[name].shape[:2] == (2, 20)


def model_step(model, make):
    """Make a step for the continuous parameters, and one for the discrete one."""
    continuous = [model[name] for name in ("scalar", "matrix", "scale")]
    with model:
        return [make(continuous), pm.Metropolis([model["count"]])]


# u


def test_u_is_never_recorded(model):
    idata = sample(model, step=model_step(model, apm.APMSlice), draws=5, tune=5)
    assert set(idata.posterior.data_vars) == {"scalar", "count", "matrix", "scale"}
    assert not {"u", "v", "w"} & set(idata.sample_stats.data_vars)
    groups = idata.groups if isinstance(idata.groups, tuple) else idata.groups()
    assert not any("constant_data" in group for group in groups)


def test_u_starts_afresh_in_every_chain_with_the_rng_of_the_chain(model, step):
    names = sorted(step.u)
    values = []
    for seed in (1, 2, 1):
        start_chain(step, seed)
        values.append({name: step.u[name].copy() for name in names})
    for name in names:
        assert np.array_equal(values[0][name], values[2][name])
        assert not np.array_equal(values[0][name], values[1][name])


def test_every_update_of_u_moves_each_kind_and_keeps_it_in_its_domain(model, step, point):
    start_chain(step, 13)
    seen = {name: set() for name in step.u}
    for _ in range(50):
        point, _ = step.step(point)
        for name, value in step.u.items():
            assert value.shape == model[name].type.shape
            assert value.dtype == np.float64
            seen[name].add(value.tobytes())
            assert name != "v" or ((value >= 0) & (value <= 1)).all()
    assert all(len(values) > 5 for values in seen.values())


STEPS_THAT_SHARE_U = {
    "u by two steps, theta by another": lambda m: [
        apm.APMEllipticalU(),
        apm.APMReflectiveU(),
        apm.APMSlice(u_update=None),
    ],
    "u by one step, theta by another": lambda m: [
        apm.APMIndependenceU(),
        apm.APMMetropolis(u_update=None),
    ],
    "all u by both steps": lambda m: [
        apm.APMSlice([m["matrix"]]),
        apm.PseudoMarginalMH([m["scale"]], correlation=0.5),
    ],
    "u chosen by name, and a slice step of PyMC": lambda m: [
        apm.APMEllipticalU("u"),
        apm.APMIndependenceU(["v", "w"]),
        pm.Slice([m["scalar"]]),
    ],
    "a step of PyMC between two that update u": lambda m: [
        apm.APMMetropolis([m["count"]]),
        pm.Metropolis([m["scale"]]),
        apm.APMReflectiveU(),
    ],
}


@pytest.mark.parametrize("make_steps", STEPS_THAT_SHARE_U.values(), ids=STEPS_THAT_SHARE_U)
def test_u_that_steps_share_stays_consistent(model, point, log_estimate, make_steps):
    """After a draw, the estimate on record is that at the recorded theta and the current u."""
    with model:
        compound = CompoundStep(make_steps(model))
    start_chain(compound, 14)
    for i in range(60):
        if i == 30:
            compound.stop_tuning()
        for method in compound.methods:  # as CompoundStep does, but with a look after each
            point, (stats,) = method.step(point)
            if "log_estimate" in stats:
                np.testing.assert_allclose(stats["log_estimate"], log_estimate(point), rtol=1e-9)


def assert_cached_log_density_is_current(step, log_density, point):
    np.testing.assert_allclose(step.log_density, log_density(point), rtol=1e-9)


def test_the_cached_log_density_is_that_of_the_point_and_the_current_u(step, log_density, point):
    """Exactly so: a stale one may bias a chain too little for statistical tests to see."""
    start_chain(step, 15)
    for _ in range(40):
        point, _ = step.step(point)
        assert_cached_log_density_is_current(step, log_density, point)


def test_a_stale_log_density_would_be_noticed(model, log_density, point):
    with model:
        step = UsesStaleLogDensity(scaling=0.3)
    start_chain(step, 16)
    with apm.clamped(model), pytest.raises(AssertionError):
        for _ in range(40):
            point, _ = step.step(point)
            assert_cached_log_density_is_current(step, log_density, point)


# Chains


@pytest.mark.parametrize("name", COMPLETE)
def test_the_same_seed_gives_the_same_draws_and_another_seed_others(name):
    model = toy_gaussian(dim=2)
    with model:
        step = STEPS[name]()
    first = sample(model, step=step)
    assert same_draws(first, sample(model, step=step))
    assert not same_draws(first, sample(model, step=step, random_seed=2))


def test_a_chain_does_not_depend_on_the_chains_before_it(step, point):
    """One step object serves all chains where cores=1."""
    chains = {}
    for order in ((1, 2), (2, 1)):
        for seed in order:
            start_chain(step, seed)
            points, _ = run(step, point, 10)
            step.stop_tuning()
            chains[order, seed] = stacked(points + run(step, points[-1], 10)[0])
    assert np.array_equal(chains[(1, 2), 1], chains[(2, 1), 1])
    assert np.array_equal(chains[(1, 2), 2], chains[(2, 1), 2])
    assert step.target.layout.size == 0 or not np.array_equal(chains[(1, 2), 1], chains[(1, 2), 2])


def test_a_step_used_again_after_a_change_of_data_sees_the_new_data():
    with pm.Model() as model:
        data = pm.Data("data", np.zeros(3))
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=3)
        apm.Potential("log_lik", -0.5 * ((data - theta - u) ** 2).sum())
        step = apm.APMMetropolis(scaling=1e-9)
    for value in (0.0, 30.0):
        with model:
            pm.set_data({"data": np.full(3, value)})
        start_chain(step, 1)
        points, stats = run(step, model.initial_point(), 3)
        expected = recompute_log_estimate(model)(points[-1])
        np.testing.assert_allclose(stats[-1]["log_estimate"], expected)


def test_the_starting_point_is_checked_because_pymc_does_not():
    with pm.Model():
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=2)
        pm.Potential("constraint", pm.math.switch(theta > 0, 0.0, -np.inf))
        apm.Potential("log_lik", -((u - theta) ** 2).sum())
        step = apm.APMSlice()
    start_chain(step, 1)
    with pytest.raises(EstimatorError, match="prior is zero at the starting point"):
        step.step({"theta": np.array(-1.0)})
    start_chain(step, 1)
    step.step({"theta": np.array(1.0)})
    with pytest.raises(EstimatorError, match="another step, or a callback"):
        step.step({"theta": np.array(-1.0)})


@pytest.mark.parametrize("make", [apm.APMSlice, apm.APMMetropolis, apm.PseudoMarginalMH])
def test_a_step_refuses_to_be_split_by_variable(model, make):
    with model, pytest.raises(ModelError, match="blocked=False"):
        make([model["scalar"], model["scale"]], blocked=False)
