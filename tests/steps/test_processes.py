"""One process or several, forked, spawned or served: the same draws for the same seed."""

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from tests.steps.models import COMPLETE, STEPS, mixed_model, same_draws, sample, toy_gaussian

STEPS_IN_CHILDREN = {
    "PM MH": lambda m: apm.PseudoMarginalMH(),
    "SS+SS adaptive": lambda m: apm.APMSlice(directions="adaptive"),
    "MI+MH": lambda m: apm.APMMetropolis(u_update="independence"),
    "u and theta apart": lambda m: [apm.APMEllipticalU(), pm.Metropolis([m["theta"]])],
}


@pytest.mark.parametrize("name", COMPLETE)
def test_forked_processes_give_the_draws_of_one_process(name):
    model = toy_gaussian(dim=2)
    with model:
        step = STEPS[name]()
    alone = sample(model, step, tune=120)
    forked = sample(model, step, tune=120, cores=2, mp_ctx="fork")
    assert same_draws(alone, forked)
    for stat in apm.APMSlice.stats_dtypes_shapes.keys() & set(alone.sample_stats.data_vars):
        assert np.array_equal(alone.sample_stats[stat], forked.sample_stats[stat])


@pytest.mark.slow
@pytest.mark.parametrize("mp_ctx", ["spawn", "forkserver"])
@pytest.mark.parametrize("name", STEPS_IN_CHILDREN)
def test_fresh_processes_give_the_draws_of_one_process(name, mp_ctx):
    model = toy_gaussian(dim=2)
    runs = []
    for options in ({"cores": 1}, {"cores": 2, "mp_ctx": mp_ctx}):
        with model:  # steps of PyMC do not forget an earlier run, so each run has its own
            step = STEPS_IN_CHILDREN[name](model)
        runs.append(sample(model, step, tune=120, **options))
    assert same_draws(*runs)


@pytest.mark.slow
def test_a_spawned_process_gives_the_draws_of_one_process():
    """The steps travel with their model; u is shared by one of ours and one of PyMC."""
    model = toy_gaussian(dim=2)
    runs = []
    for options in ({"cores": 1}, {"cores": 2, "mp_ctx": "spawn"}):
        with model:
            step = [apm.APMIndependenceU(), pm.Metropolis([model["theta"]])]
        runs.append(sample(model, step, **options))
    assert same_draws(*runs)


def test_randomness_of_both_kinds_and_automatic_steps_in_forked_processes():
    model = mixed_model()
    alone = sample(model, draws=20, tune=20)
    assert same_draws(alone, sample(model, draws=20, tune=20, cores=2, mp_ctx="fork"))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", ["PM MH", "SS+SS", "SS+MH"])
def test_a_step_can_be_used_for_a_second_run(name, cores):
    """With several cores nothing but the announcement of a chain tells it to forget the first."""
    model = toy_gaussian(dim=2)
    with model:
        step, fresh = STEPS[name](), STEPS[name]()
    options = {"cores": cores, "mp_ctx": "fork"}
    sample(model, step, random_seed=3, initvals={"theta": np.full(2, 3.0)}, **options)
    again = sample(model, step, random_seed=4, **options)
    assert same_draws(again, sample(model, fresh, random_seed=4, **options))


def test_a_step_is_the_same_after_a_run_in_child_processes_as_before():
    model = toy_gaussian(dim=2)
    with model:
        step = apm.APMSlice()
    first = sample(model, step)
    sample(model, step, random_seed=5, cores=2, mp_ctx="fork")
    assert same_draws(first, sample(model, step))


@pytest.mark.parametrize("cores", [1, 2])
def test_chains_differ_and_are_uncorrelated(cores):
    model = toy_gaussian(dim=1)
    with model:
        step = apm.APMSlice()
    idata = sample(model, step, draws=500, chains=3, cores=cores, mp_ctx="fork")
    theta = idata.posterior["theta"].values[..., 0]
    assert len(np.unique(theta)) == theta.size
    correlations = np.corrcoef(theta[:, ::5])[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.4  # 4 standard errors of 100 draws


def test_chains_are_the_same_however_many_processes_share_them():
    model = toy_gaussian(dim=2)
    with model:
        step = apm.APMMetropolis()
    runs = [sample(model, step, chains=3, cores=c, mp_ctx="fork") for c in (1, 2, 3)]
    assert same_draws(runs[0], runs[1]) and same_draws(runs[0], runs[2])


@pytest.mark.parametrize("mp_ctx", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_error_in_a_child_process_arrives_with_its_text(mp_ctx):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", pm.math.log((u * 0.0 + theta * 0.0).sum()))
        step = apm.APMSlice()
    with pytest.raises(Exception) as caught:
        sample(model, step, cores=2, mp_ctx=mp_ctx)
    text = "".join(str(error) for error in (caught.value, caught.value.__cause__))
    assert "estimate of log_lik is zero at the starting point" in text
