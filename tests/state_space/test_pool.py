"""The pool as an op: its gradient, its compilers, copies of models, and how it is found."""

import logging
import re
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats as st
from pymc.model.fgraph import clone_model

import pymc_apm as apm
from pymc_apm.claims import randomness_of_model
from pymc_apm.estimators.states import pool_op
from pymc_apm.estimators.states.guide import lattice, supports_of
from pymc_apm.estimators.states.pilot import LOW_NOISE
from pymc_apm.estimators.states.specification import parse
from tests.marks import others_are_slow
from tests.state_space.models import CASES, build

REFERENCE = {"a": 0.5, "s": 0.8}


def functions(model: pm.Model, **options: Any) -> tuple[Any, Any]:
    with apm.clamped(model):
        values = model.value_vars
        logp, slopes = model.logp(), model.dlogp()
        value = pm.compile(values, logp, **options)
        gradient = pm.compile(values, slopes, **options)
    return value, gradient


def check_gradient(model: pm.Model, **options: Any) -> None:
    with apm.clamped(model):
        value, gradient = functions(model, **options)
        at, step = np.array([0.7, -0.4]), 1e-5
        found = gradient(*at)
        for place in range(2):
            move = step * np.eye(2)[place]
            numeric = (value(*(at + move)) - value(*(at - move))) / (2 * step)
            assert found[place] == pytest.approx(numeric, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", others_are_slow(["plain", "panel", "heavy"], CASES))
def test_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several chunks: one for each row.
    monkeypatch.setattr(pool_op, "CHUNK", 1)
    check_gradient(build(name, points=3, reference=REFERENCE))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "panel", "heavy"])
def test_gradient_by_numba(name: str) -> None:
    model = build(name, points=5, reference=REFERENCE)
    check_gradient(model, mode="NUMBA")
    by_numba, by_python = functions(model, mode="NUMBA"), functions(model, mode="FAST_COMPILE")
    with apm.clamped(model):
        for one, other in zip(by_numba, by_python, strict=True):
            np.testing.assert_allclose(one(0.3, 0.2), other(0.3, 0.2), rtol=1e-11)


@pytest.mark.slow
@pytest.mark.in_python
def test_the_size_of_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("heavy", points=5, reference=REFERENCE)
    with apm.clamped(model):
        value, gradient = functions(model)
        one = value(0.3, 0.2), gradient(0.3, 0.2)
        monkeypatch.setattr(pool_op, "CHUNK", 50)
        other = value(0.3, 0.2), gradient(0.3, 0.2)
    np.testing.assert_allclose(one[0], other[0], rtol=1e-13)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-10)


def test_code_with_checks_of_bounds_is_not_taken_for_that_without() -> None:
    bounds, points, sd = pt.lvector(), pt.dtensor3(), pt.dscalar()
    log_f = pm.logp(pm.Normal.dist(0.0, sd), points)
    op = pool_op.Pool([bounds, points, sd], log_f, 1, {})
    keys = []
    for check_bounds in (True, False):
        with pm.Model(check_bounds=check_bounds):
            keys.append(op.cache_key())
    assert None not in keys
    assert op.cache_key() == keys[0] != keys[1]


def test_far_away_nothing_underflows() -> None:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1e4)
        apm.estimators.state_space(
            "y",
            np.zeros(4),
            initial=pm.Normal.dist(mu, 1),
            transition=lambda x: pm.Normal.dist(x + mu, 0.01),
            observation=lambda x: pm.Normal.dist(x, 0.1),
            points=8,
            reference={"mu": 0.0},
        )
    with apm.clamped(model):
        value, gradient = functions(model)
        assert np.isfinite(value(300.0)) and value(300.0) < -1e6
        assert np.isfinite(gradient(300.0)).all() and gradient(300.0)[0] < 0.0


@pytest.mark.slow
@pytest.mark.in_python
@pytest.mark.parametrize(
    "copy",
    [
        clone_model,
        lambda model: cloudpickle.loads(cloudpickle.dumps(model)),
        lambda model: pm.do(model, {"s": 0.9}),
    ],
    ids=["clone", "pickle", "do"],
)
def test_copies_of_a_model(copy: Any) -> None:
    model = build("plain", points=4, reference=REFERENCE)
    copied = copy(model)
    (u,), (own,) = randomness_of_model(model), randomness_of_model(copied)
    assert own is not u
    own.set_value(u.get_value())
    there = {"a_interval__": np.array(0.4), "s_log__": np.log(0.9)}
    found = []
    for one in (model, copied):
        with apm.clamped(one):
            value = pm.compile(one.value_vars, one.replace_rvs_by_values([one["y"]]))
            found.append(float(value(*(there[v.name] for v in one.value_vars))[0]))
    assert found[0] == pytest.approx(found[1])


def test_covariates_may_change() -> None:
    with pm.Model() as model:
        a = pm.Uniform("a", -1, 1)
        rain = pm.Data("rain", np.zeros(5))
        apm.estimators.state_space(
            "y",
            np.arange(5.0),
            initial=pm.Normal.dist(0, 1),
            transition=lambda x, rain: pm.Normal.dist(a * x + rain, 1),
            observation=lambda x: pm.Normal.dist(x, 1),
            covariates={"rain": rain},
            reference={"a": 0.5},
        )
    with apm.clamped(model):
        value = model.compile_logp()
        point = model.initial_point()
        before = value(point)
        pm.set_data({"rain": np.ones(5)}, model=model)
        assert value(point) > before + 1.0


@pytest.mark.slow
@pytest.mark.in_python
def test_series_are_factors() -> None:
    model = build("panel", points=3, reference=REFERENCE)
    u = model["y_u"]
    assert u.get_value().shape == (2, 3, 1)
    with apm.clamped(model):
        value = pm.compile(model.value_vars, model.replace_rvs_by_values([model["y"]]))
        before = value(0.3, 0.1)[0].copy()
        changed = u.get_value().copy()
        changed[1] = 1.0 - changed[1]
        u.set_value(changed)
        after = value(0.3, 0.1)[0]
    assert after[0] == before[0] and after[1] != before[1]
    with model:
        idata = pm.sample(20, tune=20, chains=1, progressbar=False, random_seed=1)
    assert np.isfinite(idata.sample_stats["log_estimate"].values).all()


def test_noise_is_put_into_words(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(1)
    y = np.cumsum(0.01 * rng.normal(size=60)) + rng.normal(size=60)
    with pm.Model(), caplog.at_level(logging.WARNING, logger="pymc.apm"):
        s = pm.HalfNormal("s", 0.01)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: pm.Normal.dist(x, 0.001 + s),
            observation=lambda x: pm.Normal.dist(x, 1),
            points=4,
            reference={"s": 0.002},
        )
    assert "reaches less than two points" in caplog.text


@pytest.mark.slow
@pytest.mark.in_python
def test_counts_that_tell_little_do_not_lead_the_search_astray(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No point may be far out: few events say little against states that are nearly none."""
    rng = np.random.default_rng(1)
    y = rng.poisson(np.exp(1.0 + np.cumsum(0.2 * rng.normal(size=120))))
    with pm.Model() as model, caplog.at_level(logging.INFO, logger="pymc.apm"):
        level, s = pm.Normal("level", 1, 1), pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(0, 0.5),
            transition=lambda x: pm.Normal.dist(x, s),
            observation=lambda x: pm.Poisson.dist(pm.math.exp(level + x)),
        )
    source = model["y"].tag.apm_states.source
    assert source.noise < LOW_NOISE
    found = re.search(r"level = ([^,\s]+)", caplog.text)
    assert found and abs(float(found[1]) - 1.2) < 0.5
    # A guide for the mode alone is wrong there: states are as much lower as the level is higher.
    level, u = 2.2, model["y_u"]
    with apm.clamped(model):
        value = pm.compile(model.value_vars, model.replace_rvs_by_values([model["y"]]))
        estimates = []
        for _ in range(16):
            u.set_value(rng.random(u.get_value().shape))
            estimates.append(value(level, np.log(0.12))[0])
    assert np.std(estimates) < 0.3


@pytest.mark.slow
@pytest.mark.in_python
def test_points_are_chosen_by_the_noise_and_so_is_the_update_of_u(
    caplog: pytest.LogCaptureFixture,
) -> None:
    low = build("plain", reference=REFERENCE)
    assert low["y"].tag.apm_states.source.n_points == 16
    with clone_model(low), caplog.at_level(logging.INFO, logger="pymc.apm"):
        apm.APMSlice(compile=False)
    with build("plain", points=2, reference=REFERENCE), caplog.at_level(logging.INFO):
        apm.APMSlice(compile=False)
    told = [text for text in caplog.messages if text.startswith("APMSlice: ")]
    assert "y_u drawn afresh as one" in told[0] and "y_u as one" in told[1]


def test_u_that_is_drawn_afresh_is_accepted_as_a_whole() -> None:
    with build("plain", reference=REFERENCE):
        options = {"tune": 20, "chains": 1, "progressbar": False, "random_seed": 1}
        own = pm.sample(30, **options)
        said = pm.sample(30, step=apm.APMSlice(u_update="independence"), **options)
    np.testing.assert_array_equal(own.posterior["a"].values, said.posterior["a"].values)


def test_a_lattice_is_even() -> None:
    np.testing.assert_allclose(lattice(4, 1)[:, 0], [0, 0.25, 0.5, 0.75])
    for n_points, n_dims in ((31, 2), (31, 3), (64, 5), (96, 6)):
        points = lattice(n_points, n_dims)
        for column in points.T:
            np.testing.assert_allclose(np.sort(column), np.arange(n_points) / n_points)


def test_there_is_no_gradient_by_u() -> None:
    model = build("plain", points=3, reference=REFERENCE)
    with apm.clamped(model), pytest.raises(Exception, match=r"(?i)undefined|null|grad"):
        pytensor.grad(model["y"], model["y_u"])


def test_a_state_that_starts_elsewhere_than_it_moves_to() -> None:
    """It starts below zero now and then, and is positive from then on."""
    y = np.array([0.3, 0.6])
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.Normal.dist(1.0, 0.5),
            transition=lambda x: pm.LogNormal.dist(0.5 * x, sd),
            observation=lambda x: pm.Normal.dist(x, 1),
            points=128,
            reference={"sd": 0.5},
        )
    x, log_z = np.linspace(-3, 5, 801)[:, None], np.linspace(-5, 5, 1001)
    first = st.norm.pdf(x, 1.0, 0.5) * st.norm.pdf(y[0], x)
    second = st.norm.pdf(log_z, 0.5 * x, 0.5) * st.norm.pdf(y[1], np.exp(log_z))
    exact = np.log((first * second).sum() * 0.01 * 0.01)
    with apm.clamped(model):
        value = pm.compile(model.value_vars, model.replace_rvs_by_values([model["y"]]))
        assert value(np.log(0.5))[0] == pytest.approx(exact, abs=2e-3)


@pytest.mark.parametrize(
    ("initial", "transition", "support"),
    [
        (lambda: pm.Gamma.dist(2, 1), lambda x: pm.LogNormal.dist(x, 1), "positive"),
        (lambda: pm.Beta.dist(2, 1), lambda x: pm.LogNormal.dist(x, 1), "positive"),
        (lambda: pm.Uniform.dist(0, 9), lambda x: pm.LogNormal.dist(x, 1), "positive"),
        (lambda: pm.Uniform.dist(-1, 9), lambda x: pm.LogNormal.dist(x, 1), "real"),
        (lambda: 3.0, lambda x: pm.LogNormal.dist(x, 1), "positive"),
        (lambda: pm.Beta.dist(2, 1), lambda x: pm.Beta.dist(x + 1, 1), "unit"),
        (lambda: pm.Uniform.dist(0, 1), lambda x: pm.Beta.dist(x + 1, 1), "unit"),
        (lambda: pm.Uniform.dist(0, 2), lambda x: pm.Beta.dist(x + 1, 1), "real"),
        (lambda: pm.Gamma.dist(2, 1), lambda x: pm.Beta.dist(x + 1, 1), "real"),
        (lambda: pm.Gamma.dist(2, 1), lambda x: pm.Normal.dist(x, 1), "real"),
    ],
)
def test_points_are_wherever_a_state_may_be(initial: Any, transition: Any, support: str) -> None:
    with pm.Model():
        specification = parse(
            "y",
            np.ones(2),
            initial=initial,
            transition=transition,
            observation=lambda x: pm.Normal.dist(x, 1),
        )
    assert supports_of(specification) == (support,)


@pytest.mark.slow
@pytest.mark.in_python
def test_five_dimensions_are_told_by_64_points() -> None:
    rng = np.random.default_rng(3)
    y = np.cumsum(rng.normal(size=(30, 5)), axis=0) + rng.normal(size=(30, 5))
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        apm.estimators.state_space(
            "y",
            y,
            initial=pm.MvNormal.dist(np.zeros(5), np.eye(5)),
            transition=lambda x: pm.MvNormal.dist(x, s**2 * np.eye(5)),
            observation=lambda x: pm.Normal.dist(x, 1),
            points=64,
            reference={"s": 1.0},
        )
    assert model["y"].tag.apm_states.source.noise < 0.2
