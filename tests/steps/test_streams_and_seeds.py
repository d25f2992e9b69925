"""Every step with every kind of randomness, alone and in one model."""

from copy import deepcopy

import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.adaptive.correlation import TARGET_SD
from pymc_apm.errors import ModelError
from pymc_apm.kernels.stream import AT_REST, HEADER
from tests.models import PYTHON
from tests.steps.models import (
    recompute_log_estimate,
    run,
    same_draws,
    sample,
    stacked,
    start_chain,
)
from tests.stream_models import declare, lazy_model, mixed_model

COMPLETE = {
    "PM MH": lambda **options: apm.PseudoMarginalMH(**options),
    "SS+SS": lambda **options: apm.APMSlice(**options),
    "SS+SS adaptive": lambda **options: apm.APMSlice(
        directions="adaptive", theta_updates=2, **options
    ),
    "MI+SS": lambda **options: apm.APMSlice(u_update="independence", **options),
    "SS+MH": lambda **options: apm.APMMetropolis(**options),
    "MI+MH": lambda **options: apm.APMMetropolis(u_update="independence", **options),
}
CORRELATED = {
    "correlated PM": lambda **options: apm.PseudoMarginalMH(correlation=0.9, **options),
    "correlated PM auto": lambda **options: apm.PseudoMarginalMH(correlation="auto", **options),
}
U_ONLY = {
    "elliptical u": lambda **options: apm.APMEllipticalU(**options),
    "reflective u": lambda **options: apm.APMReflectiveU(**options),
    "independence u": lambda **options: apm.APMIndependenceU(**options),
}
STEPS = COMPLETE | CORRELATED | U_ONLY
NAMES = ("u", "v", "normals", "uniforms", "seed")


@pytest.fixture(scope="module")
def model():
    return mixed_model()


@pytest.fixture(scope="module")
def others(model):
    """Vouch for the u that a step leaves to others."""
    with apm.clamped(model):
        yield


def make(name, model, **options):
    with model:
        return STEPS[name](**options)


def make_quickly(name, model):
    """Make a step for a test in which the backend does not matter."""
    return make(name, model, compile_kwargs=PYTHON)


# Which step takes what


def test_steps_over_u_take_the_randomness_of_their_kind_and_leave_the_rest(model):
    taken = {name: set(make_quickly(name, model).u) for name in U_ONLY}
    assert taken["elliptical u"] == {"u", "normals"}
    assert taken["reflective u"] == {"v", "uniforms"}
    assert taken["independence u"] == set(NAMES)


@pytest.mark.parametrize("kind", ["normal", "uniform", "seed"])
def test_steps_of_another_kind_are_refused_when_they_are_made(kind):
    wrong = {
        "normal": [apm.APMReflectiveU],
        "uniform": [apm.APMEllipticalU],
        "seed": [apm.APMEllipticalU, apm.APMReflectiveU],
    }
    with lazy_model(kind):
        for step in wrong[kind]:
            with pytest.raises(ModelError, match=f"u is {kind}"):
                step()
            with pytest.raises(ModelError, match=f"u is {kind}"):
                step(u="u")


@pytest.mark.parametrize("build", [lambda: lazy_model("seed"), mixed_model], ids=["alone", "mixed"])
@pytest.mark.parametrize("correlation", [0.5, "auto"])
def test_a_correlated_proposal_of_a_seed_is_refused_when_the_step_is_made(build, correlation):
    with build(), pytest.raises(ModelError, match=r"which is a seed.*correlation=0.*apm.Stream"):
        apm.PseudoMarginalMH(correlation=correlation)


@pytest.mark.parametrize(
    ("kind", "what"), [("normal", "stream"), ("uniform", "stream"), ("seed", "seed")]
)
def test_a_stream_or_a_seed_is_not_cut_into_blocks(kind, what):
    with lazy_model(kind), pytest.raises(ModelError, match=f"cannot cut u, which is a {what}"):
        apm.PseudoMarginalMH(blocks=2)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_the_correlation_of_a_stream_is_learnt_from_how_often_it_is_accepted(kind):
    """The log-estimate of five normal numbers has an sd of 4, whatever theta is."""

    def fn(theta, rng):
        return 4.0 * rng.standard_normal(5).sum() / np.sqrt(5.0) - 0.5 * np.sum(theta**2)

    model = lazy_model(kind, fn=fn)
    step = make_quickly("correlated PM auto", model)
    start_chain(step, 8)
    run(step, model.initial_point(), 1500)
    step.stop_tuning()
    sd_of_ratio = 4.0 * np.sqrt(2.0 * (1.0 - step.learnt.correlation.value))
    assert sd_of_ratio == pytest.approx(TARGET_SD, rel=0.2)


@pytest.mark.parametrize("kind", ["normal", "uniform", "seed"])
@pytest.mark.parametrize("name", [*COMPLETE, *CORRELATED])
def test_every_step_samples_every_kind_of_randomness(name, kind):
    if name in CORRELATED and kind == "seed":
        pytest.skip("there is no correlated proposal for a seed")
    model = lazy_model(kind)
    idata = sample(model, make_quickly(name, model), draws=60, tune=60)
    assert list(idata.posterior.data_vars) == ["theta"]
    assert len(np.unique(idata.posterior["theta"])) > 3
    assert len(np.unique(idata.sample_stats["log_estimate"])) > 1
    used = np.unique(idata.sample_stats["n_random"])
    assert list(used) == [0] if kind == "seed" else 2 <= used.min() and used.max() <= 11


@pytest.mark.parametrize("name", COMPLETE)
def test_every_step_samples_all_kinds_of_randomness_in_one_model(model, name):
    step = make(name, model)
    before = {u: model[u].get_value() for u in NAMES}
    idata = sample(model, step, chains=1)
    assert not any(np.array_equal(before[u], model[u].get_value()) for u in NAMES)
    assert list(idata.posterior.data_vars) == ["theta"]
    # Ten numbers in arrays, and of the streams one and from one to five more, and one integer.
    assert set(np.unique(idata.sample_stats["n_random"])) <= set(range(13, 18))


def test_steps_for_each_kind_of_randomness_together_with_a_step_of_pymc(model):
    with model:
        steps = [
            apm.APMEllipticalU(),
            apm.APMReflectiveU(),
            apm.APMIndependenceU(u="seed"),
            pm.Slice(),
        ]
    idata = sample(model, steps, chains=1)
    assert len(np.unique(idata.posterior["theta"])) == 50
    assert idata.sample_stats["u_accepted"].shape[-1] == 3


# What the state of the chain is


@pytest.fixture(scope="module")
def recomputed(model):
    return recompute_log_estimate(model)


@pytest.mark.parametrize("name", COMPLETE | U_ONLY)
def test_the_log_estimate_that_is_kept_is_that_of_the_current_u(model, recomputed, others, name):
    step = make_quickly(name, model)
    start_chain(step, 2)
    point = model.initial_point()
    for _ in range(15):
        point, (stats,) = step.step(point)
        np.testing.assert_allclose(stats["log_estimate"], recomputed(point), rtol=1e-12)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("name", [*COMPLETE, *CORRELATED])
def test_n_random_is_how_many_numbers_the_estimate_of_the_state_uses(kind, name):
    seen = {}

    def fn(theta, rng):
        n = int(rng.integers(1, 10))
        value = -0.5 * np.sum(theta**2) + 0.1 * rng.standard_normal(n).sum() - 0.005 * n
        seen[float(value)] = n + 1
        return value

    model = lazy_model(kind, fn=fn)
    step = make_quickly(name, model)
    start_chain(step, 3)
    _, stats = run(step, model.initial_point(), 40)
    assert [stat["n_random"] for stat in stats] == [seen[stat["log_estimate"]] for stat in stats]
    assert len({stat["n_random"] for stat in stats}) > 3


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("name", [*COMPLETE, *CORRELATED])
def test_a_stream_is_never_longer_than_what_some_estimate_used(kind, name):
    """What was not used is not kept: the vector does not grow with the length of the chain."""
    model = lazy_model(kind)
    step = make_quickly(name, model)
    start_chain(step, 4)
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(100):
        point, _ = step.step(point)
        assert HEADER <= step.u["u"].size <= HEADER + 11
        assert 0 <= step.u["u"][0] < 2**53


def test_a_stream_is_settled_with_a_fresh_tail_before_each_update():
    model = lazy_model("normal")
    with model:
        step = apm.PseudoMarginalMH(scaling=100.0)  # nearly all proposals are rejected
    start_chain(step, 5)
    point, (stats,) = step.step(model.initial_point())
    seeds = set()
    for _ in range(20):
        before = stats["n_random"]
        point, (stats,) = step.step(point)
        if stats["accepted"]:
            continue
        stream = step.u["u"]
        assert stream[3] == AT_REST and stream.size == HEADER + before == HEADER + stats["n_random"]
        seeds.add(stream[0])
    assert len(seeds) > 10


# Restoring, pickling, processes


def record(step, point, n_steps=12):
    points, stats = run(step, point, n_steps)
    u = {name: value.copy() for name, value in step.u.items()}
    return stacked(points), u, [stat["log_estimate"] for stat in stats]


def assert_same(first, second):
    assert np.array_equal(first[0], second[0])
    assert first[1].keys() == second[1].keys()
    assert all(np.array_equal(first[1][name], second[1][name]) for name in first[1])
    np.testing.assert_allclose(first[2], second[2], rtol=1e-12)


def streams_only():
    """Build a model with two streams, for steps that cannot take a seed."""

    def fn(theta, first, second):
        n = first.integers(1, 6)
        return -0.5 * theta**2 + 0.1 * second.normal(size=n).sum() - 0.005 * n

    with pm.Model() as model:
        theta = pm.Normal("theta")
        streams = declare("uniform", "first"), declare("normal", "second")
        apm.Potential("log_lik", apm.black_box(fn)(theta, *streams))
    return model


@pytest.mark.parametrize("name", [*COMPLETE, *CORRELATED])
def test_a_state_set_again_repeats_the_chain(model, name):
    model = streams_only() if name in CORRELATED else model
    step, another = make_quickly(name, model), make_quickly(name, model)
    for n_before in (0, 1, 40):
        start_chain(step, 6)
        points, _ = run(step, model.initial_point(), n_before)
        point = points[-1] if points else model.initial_point()
        state = deepcopy(step.sampling_state)
        expected = record(step, point)
        for one in (step, another):
            one.sampling_state = deepcopy(state)
            assert_same(expected, record(one, point))


def test_a_pickled_step_continues_with_the_same_stream():
    model = streams_only()
    step = make_quickly("SS+SS", model)
    start_chain(step, 7)
    points, _ = run(step, model.initial_point(), 10)
    restored = cloudpickle.loads(cloudpickle.dumps(step))
    assert_same(record(step, points[-1]), record(restored, points[-1]))


@pytest.mark.parametrize("name", [*COMPLETE, *CORRELATED])
def test_forked_processes_give_the_draws_of_one_process(model, name):
    model = streams_only() if name in CORRELATED else model
    step = make(name, model)
    alone = sample(model, step)
    assert same_draws(alone, sample(model, step, cores=2, mp_ctx="fork"))
    chains = alone.posterior["theta"].values
    assert not np.array_equal(chains[0], chains[1])


@pytest.mark.slow
@pytest.mark.parametrize("mp_ctx", ["spawn", "forkserver"])
def test_fresh_processes_give_the_draws_of_one_process(model, mp_ctx):
    alone = sample(model, make("SS+SS", model))
    assert same_draws(alone, sample(model, make("SS+SS", model), cores=2, mp_ctx=mp_ctx))


def test_steps_that_pymc_chooses_give_the_same_draws_in_forked_processes(model):
    alone = sample(model)
    assert "width" in alone.sample_stats
    assert same_draws(alone, sample(model, cores=2, mp_ctx="fork"))


def test_the_same_seed_gives_the_same_draws_again_with_the_same_step(model):
    step = make("SS+SS", model)
    first, other, again = (sample(model, step, random_seed=seed) for seed in (1, 2, 1))
    assert same_draws(first, again) and not same_draws(first, other)
