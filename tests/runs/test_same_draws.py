"""A run is the same whether it is stored, cut, or goes on elsewhere: to the last bit."""

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.state import equal_dataclass_values

import pymc_apm as apm
from pymc_apm.steps.by_gradient import MANY
from tests.marks import others_are_slow
from tests.runs.conftest import Case
from tests.runs.models import KINDS, differences, symbolic

QUICK = ("slice", "PM MH stream")


@pytest.fixture(scope="module", params=others_are_slow(QUICK, KINDS))
def any_case(request):
    case = Case(request.param)
    return case, case.sample(40)


def test_a_stored_run_is_that_of_pymc(any_case, store):
    case, expected = any_case
    assert not differences(expected, case.sample(40, store=store))


@pytest.mark.parametrize("n_done", others_are_slow([11, 30, 55], [1, 11, 29, 30, 31, 55]))
def test_a_run_that_was_cut_goes_on_as_if_nothing_had_been(any_case, store, n_done):
    case, expected = any_case
    case.cut(n_done, store, draws=40)
    assert not differences(expected, case.sample(40, store=store))


def test_more_draws_are_those_of_a_longer_run(any_case, store):
    case, expected = any_case
    case.sample(7, store=store)
    assert not differences(expected, case.sample(40, store=store))


def test_a_comparison_of_runs_notices_another_seed(any_case, store):
    case, expected = any_case
    assert differences(expected, case.sample(40, store=store, random_seed=6))


def test_a_run_that_is_cut_again_and_again(case, store):
    for n_done in (3, 4, 17, 30, 33, 47):
        case.cut(n_done, store)
    assert not differences(case.sample(), case.sample(store=store))


@pytest.mark.parametrize("rows", others_are_slow([7], [1, 7]))
def test_chunks_of_any_length(case, store, rows, monkeypatch):
    monkeypatch.setattr("pymc_apm.runs.sampling.rows_per_chunk", lambda columns, draws: rows)
    for n_done in (35, 37, 38, 45):
        case.cut(n_done, store)
    assert not differences(case.sample(), case.sample(store=store))
    assert not differences(case.sample(33), case.sample(33, store=store))


def test_fewer_draws_are_the_first_ones(case, store):
    case.sample(20, store=store)
    assert not differences(case.sample(8), case.sample(8, store=store))


def test_fewer_draws_than_were_planned_are_enough(case, store):
    case.cut(35, store, draws=1000)
    assert not differences(case.sample(8), case.sample(8, store=store))
    assert not differences(case.sample(12), case.sample(12, store=store))


@pytest.mark.slow
@pytest.mark.in_python
def test_draws_of_tuning_can_be_kept(case, store):
    expected = case.sample(discard_tuned_samples=False)
    case.cut(11, store, discard_tuned_samples=False)
    case.cut(41, store, discard_tuned_samples=False)
    result = case.sample(store=store, discard_tuned_samples=False)
    assert not differences(expected, result)
    for group in ("warmup_posterior", "warmup_sample_stats"):
        for name, values in expected[group].data_vars.items():
            assert values.values.tobytes() == result[group][name].values.tobytes()


def test_no_tuning_at_all(case, store):
    case.cut(1, store, tune=0)
    assert not differences(case.sample(tune=0), case.sample(store=store, tune=0))


def test_without_a_seed_the_stored_generators_go_on(case, store):
    case.cut(40, store, random_seed=None)
    first = apm.open_run(store).posterior["mu"].values
    result = case.sample(store=store, random_seed=None)
    assert np.array_equal(result.posterior["mu"].values[:1, : first.shape[1]], first)
    again = case.sample(store=store, random_seed=None)
    assert not differences(result, again)


@pytest.mark.parametrize(
    "seed", [[1, 2, 3], np.int64(4), np.random.Generator(np.random.Philox(3)), 2**100]
)
def test_seeds_of_any_kind(case, store, seed):
    expected = case.sample(random_seed=seed)
    case.cut(33, store, random_seed=seed)
    assert not differences(expected, case.sample(store=store, random_seed=seed))


def test_numbers_of_numpy_are_numbers(case, store):
    options = {name: np.int64(n) for name, n in (("draws", 8), ("tune", 5), ("chains", 1))}
    expected = case.sample(8, tune=5, chains=1)
    assert not differences(expected, case.sample(store=store, **options))


def test_several_processes_make_the_draws_of_one(case, store):
    case.cut(40, store, chains=3)
    result = case.sample(store=store, cores=2, chains=3)
    assert not differences(case.sample(chains=3), result)


def test_a_step_is_left_as_it_was(case, store):
    before = case.step.sampling_state
    case.sample(store=store)
    assert equal_dataclass_values(case.step.sampling_state, before)


def test_steps_that_pymc_chooses(store):
    case = Case("slice")
    case.step = None
    expected = case.sample()
    case.cut(35, store)
    assert not differences(expected, case.sample(store=store))


def test_many_parameters_are_left_to_nuts_here_too(store):
    with pm.Model():
        theta = pm.Normal("theta", shape=MANY)
        apm.Potential("log_lik", theta.sum() * apm.StandardNormal("u", shape=()))
        options = {"tune": 5, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
        expected = pm.sample(3, **options)
        assert not differences(expected, apm.sample(3, store=store, **options))


def test_starting_points_and_recorded_variables(case, store):
    options = {"initvals": [{"mu": 0.3}, {"mu": -0.4}], "var_names": ["mu"]}
    expected = case.sample(**options)
    case.cut(3, store, **options)
    result = case.sample(store=store, **options)
    assert not differences(expected, result)
    assert set(result.posterior.data_vars) == {"mu"}


def test_labels_and_data_are_those_of_pymc(store):
    with pm.Model(coords={"place": ["a", "b"]}):
        theta = pm.Normal("theta", dims="place")
        x = pm.Data("x", [1.0, 2.0], dims="place")
        apm.Potential("log_lik", (theta * x * apm.StandardNormal("u", dims="place")).sum())
        pm.Normal("y", theta, observed=[0.1, 0.2], dims="place")
        options = {"tune": 5, "chains": 2, "cores": 1, "random_seed": 1, "quiet": True}
        expected = pm.sample(10, **options)
        result = apm.sample(10, store=store, **options)
    assert not differences(expected, result)
    assert result.posterior["theta"].coords["place"].values.tolist() == ["a", "b"]
    for group in ("observed_data", "constant_data"):
        for name, values in expected[group].data_vars.items():
            assert np.array_equal(values.values, result[group][name].values)


@pytest.mark.slow
def test_a_model_for_nuts_alone(store):
    """PyMC starts NUTS from the points of all chains."""
    with pm.Model() as model:
        pm.Normal("theta", 0, [1.0, 2.0])
        pm.HalfNormal("sigma")
        options = {"tune": 60, "chains": 3, "cores": 1, "random_seed": 1, "quiet": True}
        expected = pm.sample(30, nuts_sampler="pymc", **options)
        apm.sample(4, store=store, **options)
        assert not differences(expected, apm.sample(30, store=store, **options))
    assert len(model.free_RVs) == 2


def test_estimates_can_be_recorded(store):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        log_lik = apm.Potential("log_lik", theta * apm.StandardNormal("u", shape=()))
        pm.Deterministic("estimate", pm.math.exp(log_lik))
        step = apm.APMSlice(compile=False)
    options = {"step": step, "model": model, "tune": 5, "chains": 2, "cores": 1, "quiet": True}
    expected = pm.sample(9, random_seed=1, **options)
    apm.sample(4, store=store, random_seed=1, **options)
    assert not differences(expected, apm.sample(9, store=store, **options))


def test_a_callback_sees_every_draw_by_its_number(case, store):
    seen = []
    case.cut(33, store)
    case.sample(store=store, callback=lambda trace, draw: seen.append((draw.chain, draw.draw_idx)))
    assert seen == [*((0, n) for n in range(33, 50)), *((1, n) for n in range(50))]


def test_without_a_store_it_is_pymc(case):
    model = symbolic()
    with model:
        step = apm.APMSlice(compile=False)
        options = {"tune": 5, "chains": 1, "cores": 1, "random_seed": 1, "quiet": True}
        assert not differences(
            pm.sample(5, step=step, **options), apm.sample(5, step=step, **options)
        )
