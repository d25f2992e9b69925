"""A chain whose u moves in each draw, and by next to nothing, is flagged; a healthy one is not."""

import logging
from functools import cache

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.diagnostics.problems import problems
from pymc_apm.diagnostics.sticking import find_sticking
from tests.diagnostics.runs import CONTAINERS, as_idata, in_container, sampled


def random_effects(groups=40, samples=2):
    """Return a model of many groups with few importance draws, whose estimate is very noisy."""
    y = np.random.default_rng(1).poisson(np.exp(np.linspace(-2.0, 3.0, groups)))
    with pm.Model() as model:
        mu = pm.Normal("mu")
        u = apm.StandardNormal("u", shape=(samples, groups))
        log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(mu + 1.5 * u)), y)
        apm.Potential("log_lik", apm.estimators.log_mean_exp(log_weights, axis=0))
    return model


@cache
def run(factorwise, draws=600):
    with random_effects():
        return pm.sample(
            draws=draws,
            tune=200,
            chains=2,
            cores=1,
            step=apm.APMSlice(factorwise=factorwise, compile=False),
            random_seed=1,
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_chain_that_creeps(container):
    idata = in_container(run(factorwise=False), container)
    with pytest.warns(UserWarning, match="u creeps in chain . and 1 other chain: it moves in each"):
        found = apm.sticking(idata)
    assert found.longest_run("u") == found.longest_run("mu") == 0  # nothing sticks
    movement = found.movement
    assert movement["creeps"].all()
    assert (movement["u_moved"] < 0.02).all() and (movement["u_moved"] > 0.0).all()
    assert (600 / movement["iat_u"] < 25).all()
    assert (movement["iat_log_estimate"] > 20).all()
    assert "CREEPS" in repr(found) and "CREEPS" in found._repr_html_()
    (line,) = problems(idata)
    assert line.startswith("u creeps in") and "factorwise=True" in line


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_healthy_chain_of_the_same_model(container, recwarn):
    idata = in_container(run(factorwise=True), container)
    found = apm.sticking(idata)
    assert found.warnings == [] and problems(idata) == [] and len(recwarn) == 0
    assert not found.movement["creeps"].any()
    assert (found.movement["u_moved"] > 0.2).all()
    assert (600 / found.movement["iat_u"] > 40).all()


def test_the_line_at_the_end_of_a_run(caplog):
    with random_effects(), caplog.at_level(logging.WARNING, logger="pymc"):
        for factorwise in (False, True):
            step = apm.APMSlice(factorwise=factorwise, compile=False)
            pm.sample(100, tune=50, chains=1, step=step, random_seed=1, progressbar=False)
    lines = [record.message for record in caplog.records if "creeps" in record.message]
    assert len(lines) == 1 and lines[0].startswith("u creeps in chain 0: it moves in each draw")


def test_sticking_is_not_creeping():
    with pytest.warns(UserWarning):
        found = apm.sticking(sampled("PM MH"))
    assert found.table["stuck"].any() and not found.movement["creeps"].any()
    assert (found.movement["u_moved"] < 0.2).all()


def test_small_moves_in_a_small_place_are_not_creeping():
    with pm.Model():
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", -0.5 * theta**2 - 0.5 * ((u / 0.02) ** 2).sum())
        idata = pm.sample(500, tune=100, chains=1, progressbar=False, quiet=True, random_seed=1)
    found = apm.sticking(idata)
    assert found.movement["u_moved"].item() < 0.05
    assert found.warnings == [] and not found.movement["creeps"].any()


def chain_with(step, n_draws=1000, seed=1):
    """Return the statistics of a made-up u of 50 numbers, moved by Crank-Nicolson steps."""
    rng, u, rho = np.random.default_rng(seed), np.zeros((n_draws + 1, 50)), 1.0 - step
    u[0] = rng.standard_normal(50)
    for i in range(n_draws):
        u[i + 1] = rho * u[i] + np.sqrt(1.0 - rho**2) * rng.standard_normal(50)
    moved = np.square(np.diff(u, axis=0)).mean(axis=1) / 2.0
    return moved, u[1:].mean(axis=1), u[1:].sum(axis=1)


@pytest.mark.parametrize("step, creeps", [(0.001, True), (0.01, True), (0.2, False), (0.9, False)])
def test_the_limit(step, creeps):
    chains = [chain_with(step, seed=seed) for seed in range(4)]
    moved, projection, log_estimate = np.transpose(chains, (1, 0, 2))
    stats = {"u_moved": moved, "u_projection": projection, "log_estimate": log_estimate}
    idata = as_idata({"x": np.random.default_rng(1).random((4, 1000))}, stats)
    assert bool(problems(idata)) == creeps
    if creeps:
        with pytest.warns(UserWarning, match="creeps in chain . and 3 other chains"):
            found = apm.sticking(idata)
    else:
        found = apm.sticking(idata)
        # What is known of such steps: they forget in (1 + rho) / (1 - rho) draws.
        exact = (2.0 - step) / step
        assert found.movement["iat_u"].mean() == pytest.approx(exact, rel=0.4)
    np.testing.assert_allclose(found.movement["u_moved"], step, rtol=0.1)


def test_runs_without_these_statistics():
    x = np.random.default_rng(1).random((1, 100))
    found = apm.sticking(as_idata({"x": x}, {"log_estimate": x}))
    assert len(found.movement) == 0 and "How far" not in repr(found)


def test_each_step_that_updates_u_has_its_rows():
    moved, projection, log_estimate = chain_with(0.5)
    none = np.zeros(1000)
    stats = {
        "u_moved": np.stack([none, moved, moved], axis=-1)[None],
        "u_projection": np.stack([none, projection, projection], axis=-1)[None],
        "log_estimate": np.stack([log_estimate] * 3, axis=-1)[None],
    }
    found = apm.sticking(as_idata({"x": np.random.default_rng(1).random((1, 1000))}, stats))
    assert found.movement.index.tolist() == [("u[0]", 0), ("u[1]", 0)]


def test_what_never_changes_is_not_taken_for_independent_draws():
    """ArviZ has as many effective draws as there are where all of them are the same."""
    shape = (2, 100)
    constant = {"u_projection": np.full(shape, 0.7), "log_estimate": np.full(shape, -3.0)}
    idata = as_idata(
        {"x": np.zeros(shape)}, constant | {"u_moved": np.zeros(shape), "n_evals": np.ones(shape)}
    )
    movement = find_sticking(idata).movement
    assert movement[["iat_u", "iat_log_estimate"]].isna().all(axis=None)
    assert (movement["u_moved"] == 0.0).all() and not movement["creeps"].any()
