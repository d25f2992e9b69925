"""Estimates that may be negative: the sign that is recorded is that of the draw, in every step."""

import copy

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.fgraph import clone_model
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_apm as apm
from pymc_apm.diagnostics.runs import sign_of
from pymc_apm.errors import EstimatorError, ModelError
from tests.steps.models import STEPS, run, sample, start_chain


def values_of(theta, u, v, exp=np.exp):
    """The estimates of the model: three factors that depend on u, and one number on v."""
    factors = exp(-0.5 * (theta + u) ** 2).mean(axis=0) - 0.35
    return factors, theta * (v.mean() - 0.5) + 0.1 * theta * theta + 0.05


def signed_model(declared=False):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 2.0)
        other = pm.Normal("other")
        u = apm.StandardNormal("u", shape=(2, 3))
        v = apm.StandardUniform("v", shape=2)
        factors, number = values_of(theta, u, v, pt.exp)
        options = {}
        if declared:
            outputs = [pt.dvector, pt.dvector]
            factors = apm.black_box(_factors, outputs=outputs)(theta, u)
            log_abs, sign = factors
            options = {"factors": 1}
        else:
            log_abs, sign = pt.log(pt.abs(factors)), pt.sign(factors)
        apm.Potential("first", log_abs, sign=sign, **options)
        apm.Potential("second", pt.log(pt.abs(number)), sign=pt.sign(number))
        apm.Potential("third", -0.1 * (other - u.sum()) ** 2)
    return model


def _factors(theta, u):
    factors, _ = values_of(theta, u, np.zeros(2))
    return np.log(np.abs(factors)), np.sign(factors)


@pytest.fixture(scope="module")
def model():
    return signed_model()


def signs_now(model, theta):
    factors, number = values_of(theta, model["u"].get_value(), model["v"].get_value())
    return np.sign(np.append(factors, number))


def recorded_and_recomputed(step, model, n_draws=150, n_tune=50):
    start_chain(step, 3)
    point = model.initial_point() | {"theta": np.array(0.7)}
    recorded, recomputed = [], []
    with apm.clamped(model):
        for draw in range(n_tune + n_draws):
            if draw == n_tune:
                step.stop_tuning()
            (point,), (stats,) = run(step, point, 1)
            recorded.append(stats["sign"])
            recomputed.append(np.prod(signs_now(model, point["theta"])))
    return np.array(recorded), np.array(recomputed)


def assert_right(recorded, recomputed):
    assert recorded.dtype == np.float64
    np.testing.assert_array_equal(recorded, recomputed)
    assert set(recorded) == {-1.0, 1.0}


@pytest.mark.parametrize("name", STEPS)
def test_the_sign_that_is_recorded_is_that_of_the_draw(model, name):
    with model:
        options = {"compile": False} if "compile" in _parameters(name) else {}
        step = STEPS[name](**options)
    assert_right(*recorded_and_recomputed(step, model))


def _parameters(name):
    return () if name.endswith(" u") else ("compile",)


@pytest.mark.slow
@pytest.mark.parametrize("thin", [1, 3])
@pytest.mark.parametrize("name", ["PM MH", "SS+SS"])
@pytest.mark.compiler
def test_the_sign_of_a_compiled_chain_is_that_of_the_draw(model, name, thin):
    if name == "PM MH":
        with model:
            step = apm.PseudoMarginalMH(scaling=1.0, compile=True, thin=thin)
    else:
        with model:
            step = STEPS[name](compile=True, thin=thin)
    assert step.is_compiled
    assert_right(*recorded_and_recomputed(step, model, 300))


@pytest.mark.parametrize("declared", [False, True])
def test_signs_of_factors_follow_the_factors(declared):
    model = signed_model(declared)
    # The third potential joins all of u; without it there are three factors.
    model.potentials.pop()
    with model:
        step = apm.APMEllipticalU()
    assert step.target.factors["u"].n_factors == 3
    start_chain(step, 3)
    point, seen = model.initial_point() | {"theta": np.array(0.7)}, set()
    for _ in range(100):
        with apm.clamped(model):
            (point,), _ = run(step, point, 1)
        found = [step.evaluation.values[place] for place in step.target.sums["sign"]]
        expected = signs_now(model, point["theta"])
        np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.sort(expected))
        vector = max(found, key=len)
        np.testing.assert_array_equal(vector, expected[:3])
        seen.add(tuple(vector))
    assert len(seen) >= 4


def test_a_sign_that_did_not_follow_its_factor_would_be_noticed(monkeypatch):
    model = signed_model()
    model.potentials.pop()
    with model:
        step = apm.APMEllipticalU()  # after which theta does not move
    factors = step.target.factors["u"]
    assert any(place in step.target.sums["sign"] for place, _ in factors.changed)
    changed = [pair for pair in factors.changed if pair[0] not in step.target.sums["sign"]]
    monkeypatch.setitem(step.target.factors, "u", factors._replace(changed=changed))
    recorded, recomputed = recorded_and_recomputed(step, model)
    assert (recorded != recomputed).any()


def test_one_sign_of_several_factors_is_taken_apart_or_ties_them():
    with pm.Model():
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=4)
        values = theta + u
        apm.Potential("a", pt.log(pt.abs(values)).sum(), sign=pt.prod(pt.sign(values)))
        assert apm.APMSlice(compile=False).target.factors["u"].n_factors == 4
    with pm.Model():
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=4)
        values = theta + u
        apm.Potential("a", pt.log(pt.abs(values)).sum(), sign=pt.sign(values.sum()))
        assert "u" not in apm.APMSlice(compile=False).target.factors


def test_factors_that_are_declared_are_checked_for_signs_too():
    def broken(theta, u):
        values = theta + u
        return np.log(np.abs(values)), np.sign(values) * np.sign(values[0])

    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=4)
        log_abs, sign = apm.black_box(broken, outputs=[pt.dvector, pt.dvector])(theta, u)
        apm.Potential("a", log_abs, sign=sign, factors=0)
    with pytest.raises(EstimatorError, match="depend on more of u"):
        sample(model, draws=5, tune=5)


def test_randomness_of_the_sign_alone_is_updated(model):
    with pm.Model() as only:
        theta = pm.Normal("theta")
        u = apm.StandardUniform("u", shape=2)
        v = apm.StandardUniform("v")
        sign = pt.switch(v < 0.25, -1.0, 1.0)
        apm.Potential("a", -((theta + u.sum()) ** 2), sign=sign)
    idata = sample(only, draws=2000, chains=1)
    share = float((idata.sample_stats["sign"] < 0).mean())
    assert abs(share - 0.25) < 4 * np.sqrt(0.1875 / 500)


def copies():
    yield "do", lambda m: pm.do(m, {"other": 0.3})
    yield "clone", clone_model
    yield "freeze", freeze_dims_and_data
    yield "deepcopy", copy.deepcopy
    yield "pickle", lambda m: cloudpickle.loads(cloudpickle.dumps(m))


@pytest.mark.parametrize("make", [c[1] for c in copies()], ids=[c[0] for c in copies()])
def test_a_copy_of_a_model_has_its_signs(model, make):
    copied = make(model)
    with copied:
        step = apm.APMSlice(compile=False)
    assert_right(*recorded_and_recomputed(step, copied))


@pytest.mark.parametrize("first", [pm.Metropolis, pm.NUTS])
def test_beside_steps_of_pymc_the_sign_is_that_of_the_draw(model, first):
    seen = []

    def note(trace, draw):
        expected = np.prod(signs_now(model, draw.point["theta"]))
        seen.append((draw.stats[-1]["sign"], expected))

    with model:
        values = [model["theta"], model["other"]]
        steps = [first(values), apm.APMReflectiveU(), apm.APMEllipticalU()]
    idata = sample(model, steps, draws=100, tune=20, chains=1, callback=note)
    assert_right(*np.array(seen).T)
    # Two steps record it, the last one after all that has moved.
    recorded = idata.sample_stats["sign"].values
    assert recorded.shape == (1, 100, 2)
    np.testing.assert_array_equal(sign_of(idata)[0], [s for s, _ in seen][20:])


def test_a_sign_that_would_be_that_of_another_state_is_refused(model):
    theta, other = model["theta"], model["other"]
    with model:
        last = [apm.APMReflectiveU(), apm.APMEllipticalU()]
        for wrong in ([*last, pm.Metropolis([theta, other])], [*last, pm.NUTS([theta, other])]):
            with pytest.raises(ModelError, match="theta would be updated after"):
                pm.sample(5, tune=5, step=wrong, progressbar=False)
    # No sign depends on the other parameter, so that its step may be the last one.
    with model:
        step = [pm.Metropolis([theta]), *last, pm.Metropolis([other])]
    assert "sign" in sample(model, step, draws=5, tune=5).sample_stats
    assert "sign" in sample(model, draws=5, tune=5).sample_stats


def test_many_parameters_with_signs_are_not_left_to_nuts():
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=30)
        u = apm.StandardNormal("u")
        value = 1 + u * theta.sum()
        apm.Potential("a", pt.log(pt.abs(value)), sign=pt.sign(value))
    idata = sample(model, draws=5, tune=5)
    assert "sign" in idata.sample_stats
    assert "n_steps" not in idata.sample_stats


def test_signs_in_several_processes_and_in_a_store(model, tmp_path):
    whole = sample(model, draws=30, tune=10)
    parallel = sample(model, draws=30, tune=10, cores=2)
    np.testing.assert_array_equal(whole.sample_stats["sign"], parallel.sample_stats["sign"])
    with model:
        stored = apm.sample(
            30, tune=10, chains=2, cores=1, random_seed=1, store=tmp_path / "run", progressbar=False
        )
    np.testing.assert_array_equal(whole.sample_stats["sign"], stored.sample_stats["sign"])


def test_without_signs_nothing_is_recorded():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("a", theta * apm.StandardNormal("u"))
    idata = sample(model, draws=5, tune=5)
    assert "sign" not in idata.sample_stats
    with pytest.raises(ModelError, match="no statistic 'sign'"):
        apm.signed(idata)


def test_the_log_density_and_its_gradient_are_those_of_the_absolute_value(model):
    with apm.clamped(model):
        point = {"theta": np.array(0.7), "other": np.array(0.1)}
        u, v = model["u"].get_value(), model["v"].get_value()
        factors, number = values_of(0.7, u, v)
        expected = np.log(np.abs(np.append(factors, number))).sum()
        terms = [model["first"], model["second"]]
        assert model.compile_logp(terms)(point) == pytest.approx(expected)
        slope = [values_of(0.7 + d, u, v) for d in (-1e-6, 1e-6)]
        logs = [np.log(np.abs(np.append(f, n))).sum() for f, n in slope]
        gradient = model.compile_dlogp(vars=[model["theta"]])(point)
        others = -0.7 / 4
        assert gradient[0] == pytest.approx((logs[1] - logs[0]) / 2e-6 + others, rel=1e-5)


@pytest.mark.parametrize(
    ("sign", "log_abs", "message"),
    [
        (lambda u: pt.sign(u).sum(), lambda u: u, "one sign for each"),
        (lambda u: pt.sign(u)[:2], lambda u: u, "one sign for each"),
        (lambda u: pt.sign(u), lambda u: u.sum(), "one sign for each"),
        (lambda u: u > 0, lambda u: u, "dtype is bool"),
    ],
)
def test_signs_that_do_not_fit_are_refused(sign, log_abs, message):
    with pm.Model():
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=3)
        with pytest.raises(ModelError, match=message):
            apm.Potential("a", theta * log_abs(u), sign=sign(u))


def test_signs_of_another_length_are_refused_where_it_is_known_late():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=3)
        mask = pm.Data("mask", np.array([0, 1]))
        apm.Potential("a", theta * u, sign=pt.sign(u)[mask])
    with pytest.raises(EstimatorError, match="one sign for each"):
        sample(model, draws=5, tune=5)


@pytest.mark.parametrize("value", [0.0, 0.5, np.nan])
def test_what_is_no_sign_is_an_error(value):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("a", theta * u, sign=pt.switch(u > 0.5, value, 1.0))
    with pytest.raises(EstimatorError, match="must be 1 or -1"):
        sample(model, draws=200, tune=5)


@pytest.mark.slow
@pytest.mark.compiler
def test_what_is_no_sign_is_an_error_in_compiled_code():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("a", theta * u, sign=pt.switch(u > 1.5, 0.0, 1.0))
        step = apm.PseudoMarginalMH(scaling=1.0, compile=True)
    with pytest.raises(EstimatorError, match="must be 1 or -1"):
        sample(model, step, draws=500, tune=5)
