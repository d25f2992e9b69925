import re
import time

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray

import pymc_apm as apm
from pymc_apm.diagnostics.probe import Probe
from pymc_apm.diagnostics.report import _with_errors
from pymc_apm.errors import ModelError, UnclaimedRandomnessError
from tests.diagnostics.models import black_box_model, cauchy_weights, normal_noise, steps_in
from tests.diagnostics.runs import CONTAINERS, as_idata, in_container, sampled
from tests.models import PYTHON, Calls
from tests.steps.models import toy_gaussian


def report(model, **options):
    options = {"random_seed": 1, "draws": 1000, "n_points": 3, "compile_kwargs": PYTHON} | options
    return apm.estimator_report(model, **options)


def says(texts, what):
    return any(what in text for text in texts)


# What the paper's toy must give


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_sd_on_the_toy_is_the_norm_of_theta(container):
    idata = in_container(sampled("SS+SS"), container)
    found = apm.estimator_report(toy_gaussian(8), idata, random_seed=1)
    norms = np.sqrt((found.points["theta"] ** 2).sum("theta_dim_0")).values
    assert found.dataset.sizes["draw"] == 10_000
    np.testing.assert_allclose(found.dataset["sd"], norms, rtol=0.03)
    np.testing.assert_allclose(found.dataset["mean"], -(norms**2), rtol=0.1)
    assert np.abs(found.dataset["skewness"]).max() < 0.15
    assert says(found.warnings, "may stick there")  # 2.2 as a rule, up to 3
    assert says(found.warnings, "A normal log f_hat with so large an sd has such tails")
    assert says(found.advice, "by that independent proposals of u would be viable, but not with")


def test_the_points_are_draws_of_the_posterior():
    idata = sampled("SS+SS")
    found = report(toy_gaussian(8), idata=idata, n_points=3)
    draws = idata.posterior["theta"].values.reshape(-1, 8)
    for theta in found.points["theta"].values:
        assert (theta == draws).all(axis=1).any()


def test_known_noise():
    """The variance of a log-normal estimate over its squared mean is exp(v) - 1."""
    found = report(normal_noise(0.8), points=[{"theta": 0.0}, {"theta": 2.0}], draws=10_000)
    np.testing.assert_allclose(found.dataset["mean"], [-0.32, -2.32], atol=0.03)
    np.testing.assert_allclose(found.dataset["sd"], 0.8, rtol=0.03)
    np.testing.assert_allclose(found.dataset["relative_variance"], np.expm1(0.64), rtol=0.15)
    assert found.sd == pytest.approx(0.8, rel=0.03)


# Warnings, and their absence


def test_a_good_estimator_has_no_warning():
    found = report(normal_noise(1.0), draws=5000, n_points=8, compile_kwargs=None)
    assert found.warnings == []
    assert (found.dataset["khat"] < 0.7).all()
    assert says(found.advice, "independent proposals of u are viable")
    assert says(found.advice, "No jump of log f_hat was found along theta and u")
    assert (found.dataset["jump"] == 0).all()


def test_heavy_tails():
    found = report(cauchy_weights(), draws=5000, n_points=8, compile_kwargs=None)
    assert says(found.warnings, "heavy tails at 8 of 8 points")
    assert not says(found.warnings, "reduce the noise")
    assert (found.dataset["khat"] > 0.7).mean() > 0.8
    assert says(found.advice, "but not with such tails")


@pytest.mark.parametrize("what, other", [("u", "theta"), ("theta", "u")])
def test_jumps(what, other):
    found = report(steps_in(what), points=[{"theta": -1.0}, {"theta": 1.0}])
    assert says(found.warnings, f"not continuous along {what}: it jumps by up to 1 on")
    assert not says(found.warnings, f"along {other}")
    sizes = found.dataset["jump"].sel(along=what).values
    np.testing.assert_allclose(sizes[sizes > 0], 1.0, rtol=1e-6)
    assert (found.dataset["jump"].sel(along=other) == 0).all()
    assert says(found.advice, f"No jump of log f_hat was found along {other}:")


@pytest.mark.parametrize("sd, factor", [(3.6, 9.0), (1.5, 1.56), (1.2, None), (0.12, None)])
def test_by_what_factor_to_change_the_number_of_particles(sd, factor):
    found = report(normal_noise(sd), points={"theta": 0.5}, draws=10_000)
    given = re.search(r"([\d.]+) times as many", found.advice[0])
    assert (given is None) == (factor is None)
    assert given is None or float(given[1]) == pytest.approx(factor, rel=0.06)
    assert says(found.warnings, "will stick") == (sd == 3.6)
    # Nobody is told to take a part of what may be a single draw.
    assert "1/" not in found.advice[0].replace("1/N", "")
    assert says(found.advice, "If there are many particles or importance draws, fewer") == (
        sd == 0.12
    )


def test_the_advice_quotes_the_curves():
    found = report(normal_noise(1.2), points={"theta": 0.5}, draws=10_000)
    shares = re.search(r"they have (\d+)% of .* and (\d+)% where", found.advice[0]).groups()
    assert [int(share) for share in shares] == pytest.approx([78, 88], abs=2)
    assert "1.2 is a compromise" in found.advice[0]


def noisy_far_out():
    """Return a model whose sd of log f_hat is |theta| or somewhat more."""
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", shape=2)
        apm.Potential("log_lik", -0.5 * theta**2 + theta * u[0] + 0.1 * theta**2 * u[1])
    return model


def test_the_largest_noise_and_where_it_is():
    points = [{"theta": value} for value in (0.5, 3.0, 1.0)]
    found = report(noisy_far_out(), points=points, draws=4000)
    assert found.largest_sd == pytest.approx(np.hypot(3.0, 0.9), rel=0.05)
    assert found.worst_point["theta"] == 3.0
    assert says(found.warnings, "is up to 3.1, at point 1 (")
    assert np.isnan(found.dataset["sd_ratio"]).all() and "log ratio" not in repr(found)


def test_the_log_ratio_at_jumps_of_the_chain():
    theta = np.array([[0.0, 0.0, 1.0, 3.0], [5.0, 5.0, 5.0, 5.0]])
    found = report(noisy_far_out(), idata=as_idata({"theta": theta}), n_points=8)
    jumps = [(0.0, 1.0), (1.0, 3.0), (3.0, 1.0)]  # from the last draw of a chain one looks back
    exact = {a: np.hypot(b - a, 0.1 * (b**2 - a**2)) for a, b in jumps}
    for here, sd, error in zip(
        found.points["theta"].values,
        found.dataset["sd_ratio"].values,
        found.dataset["sd_ratio_error"].values,
        strict=True,
    ):
        if here == 5.0:  # a chain that never moved has no jump
            assert np.isnan(sd)
        else:
            assert abs(sd - exact[here]) < 4.0 * error < exact[here]
    assert says(found.advice, "At jumps of theta that the chain made")
    assert "sd of log ratio" in repr(found)


def test_monte_carlo_errors_are_the_spread_of_repeated_reports():
    rng = np.random.default_rng(1)
    rows = [_with_errors(rng.normal(0.0, 0.7, size=1000)) for _ in range(60)]
    for name in ("mean", "sd", "skewness", "khat", "relative_variance"):
        spread = np.std([row[name] for row in rows], ddof=1)
        errors = [row[f"{name}_error"] for row in rows]
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.4), name


def test_an_exact_estimate():
    found = report(normal_noise(0.0), points={"theta": 0.5})
    assert "it is exact there" in found.advice[0]
    assert found.warnings == []


def test_nan_and_zero_estimates():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        u = apm.StandardUniform("u")
        log_estimate = pt.switch(u < 0.2, np.nan, pt.switch(u < 0.5, -np.inf, 0.1 * u * theta))
        apm.Potential("log_lik", log_estimate)
    found = report(model, draws=4000, n_points=2)
    np.testing.assert_allclose(found.dataset["share_nan"], 0.2, atol=0.03)
    np.testing.assert_allclose(found.dataset["share_zero"], 0.5, atol=0.04)
    assert says(found.warnings, "not a number (NaN)")
    assert says(found.warnings, "of the estimates were zero")
    assert says(found.warnings, "jumps to zero")
    assert "zero" in repr(found)


def test_an_estimator_with_noise_of_its_own():
    rng = np.random.default_rng(1)

    @apm.black_box
    def log_estimate(theta, u):
        return -0.5 * theta**2 + 0.1 * u + 0.1 * rng.standard_normal()

    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("log_lik", log_estimate(theta, apm.StandardNormal("u")))
    assert says(report(model).warnings, "draws random numbers of its own")


# Streams and seeds


def test_a_seed():
    found = report(black_box_model(apm.Seed))
    assert found.dataset["along"].values.tolist() == ["theta"]
    assert says(found.advice, "A seed can only be replaced by a fresh one")
    assert found.sd == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_stream(kind):
    found = report(black_box_model(lambda name: apm.Stream(name, kind=kind)))
    assert found.dataset["along"].values.tolist() == ["theta", "r"]
    assert found.warnings == []
    assert found.sd == pytest.approx(1.0, rel=0.1)


# Where it looks


def test_draws_from_the_prior():
    found = report(normal_noise(), n_points=5)
    assert found.points.sizes["point"] == 5
    assert says(found.notes, "5 points (draws from the prior), 1,000 draws")


def test_one_draw_from_the_prior_is_a_whole_point():
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        apm.Potential("log_lik", theta.sum() * apm.StandardNormal("u"))
    assert report(model, n_points=1, draws=10).points["theta"].shape == (1, 3)


def test_a_flat_prior_takes_a_pilot_run():
    found = report(toy_gaussian(2), n_points=4)
    assert says(found.notes, "draws of a pilot run")
    assert 0.3 < np.abs(found.points["theta"].values).mean() < 3.0


def test_parameters_with_transforms_and_shapes():
    """What is given on the scale of the user arrives there in the estimator."""
    seen = []

    @apm.black_box
    def log_estimate(scale, bounded, simplex, count, u):
        seen.append((float(scale), float(bounded), *map(float, simplex), int(count)))
        return 0.1 * u

    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        bounded = pm.Uniform("bounded", -scale, scale)
        simplex = pm.Dirichlet("simplex", np.ones(3))
        count = pm.Poisson("count", 3.0)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", log_estimate(scale, bounded, simplex, count, u))
    point = {"scale": 2.0, "bounded": -1.5, "simplex": np.array([0.2, 0.3, 0.5]), "count": 4}
    report(model, points=point, draws=10)
    np.testing.assert_allclose(seen[:10], [(2.0, -1.5, 0.2, 0.3, 0.5, 4)] * 10)
    assert {row[-1] for row in seen} == {4}  # a line in theta leaves integers alone


def test_integer_parameters_only():
    with pm.Model() as model:
        count = pm.Poisson("count", 3.0)
        apm.Potential("log_lik", 0.1 * count * apm.StandardNormal("u"))
    assert report(model).dataset["along"].values.tolist() == ["u"]


def test_points_where_the_prior_is_zero_are_left_out():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        pm.Potential("positive", pt.switch(theta > 0, 0.0, -np.inf))
        apm.Potential("log_lik", theta * apm.StandardNormal("u"))
    found = report(model, points=[{"theta": -1.0}, {"theta": 1.0}])
    assert found.points["theta"].values.tolist() == [1.0]
    assert says(found.notes, "At 1 point the prior was zero")
    with pytest.raises(ModelError, match="The prior is zero at each of the 1 point"):
        report(model, points={"theta": -1.0})


# What it costs


def test_work_on_theta_alone_is_done_once_per_point():
    calls = Calls()
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=100)
        u = apm.StandardNormal("u", shape=100)
        moved = calls.counted("theta", pt.exp(theta))
        apm.Potential("log_lik", -calls.counted("both", (moved + u) ** 2).sum())
    probe = Probe(model, PYTHON)
    rng = np.random.default_rng(1)
    evaluation = probe.start({"theta": np.zeros(100)}, rng)
    calls.clear()
    probe.sample(evaluation, 500, rng)
    assert calls == {"both": 500}


def test_the_time_of_a_change_and_of_each_stage():
    @apm.black_box
    def slow(theta):
        time.sleep(0.003)
        return theta

    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("log_lik", slow(theta) * apm.StandardNormal("u"))
    found = report(model, draws=100, n_points=2)
    seconds = found.dataset["seconds"]
    assert seconds.sel(change="theta") > 0.003 > 10 * seconds.sel(change="u")
    assert found.dataset["seconds_of_stage"].sel(stage="theta") > 0.003
    assert found.dataset["seconds_of_stage"].sel(stage="theta, u") < 0.001
    assert says(found.advice, "updates of u are cheap")


def test_a_costly_estimator_is_called_less_often():
    n_calls = 0

    @apm.black_box
    def slow(theta, u):
        nonlocal n_calls
        n_calls += 1
        time.sleep(0.002)
        return -0.5 * theta**2 + u

    with pm.Model() as model:
        theta = pm.Normal("theta")
        apm.Potential("log_lik", slow(theta, apm.StandardNormal("u")))
    found = apm.estimator_report(model, random_seed=1, max_seconds=1.0)
    assert found.dataset.sizes["draw"] == 100
    assert found.dataset.sizes["point"] < 8
    assert n_calls < 1200
    assert says(found.notes, "Fewer draws or points than usual")


def test_the_model_is_left_as_it_was():
    model = normal_noise()
    (u,) = Probe(model).target.randomness
    before = u.get_value()
    report(model)
    assert u.get_value() == before
    with pytest.raises(UnclaimedRandomnessError):
        model.compile_logp()(model.initial_point())


def test_the_same_seed_gives_the_same_numbers():
    first, second, other = (
        report(normal_noise(), random_seed=seed, draws=200, n_points=2) for seed in (5, 5, 6)
    )
    xarray.testing.assert_identical(first.dataset["log_estimate"], second.dataset["log_estimate"])
    assert not first.dataset["sd"].equals(other.dataset["sd"])


def test_how_it_reads():
    found = report(cauchy_weights(), draws=3000, n_points=1)
    text, html = repr(found), found._repr_html_()
    assert text.startswith("Estimator report")
    for part in (
        "k-hat",
        "Warning: The estimate has heavy tails",
        "Advice: ",
        "An evaluation takes",
    ):
        assert part in text
    assert "<table" in html and "heavy tails" in html and "<li>" in html
    assert "Warning" not in repr(report(normal_noise(1.0), draws=3000, n_points=1))


# Bad input


@pytest.mark.parametrize(
    "options, message",
    [
        ({"draws": 0}, "draws of estimator_report must be an integer of at least 2, got 0"),
        ({"n_points": 0}, "n_points"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"points": []}, "points must be a dict of parameter values"),
        ({"points": {"mu": 1.0}}, "a value for each parameter, theta, .*; got mu"),
        ({"points": [3.0]}, "got 3.0"),
        ({"points": {"theta": [1.0, 2.0]}}, "does not fit the model"),
        ({"points": {"theta": 1.0}, "idata": as_idata({"theta": np.ones((1, 4))})}, "not both"),
        ({"idata": as_idata({"mu": np.ones((1, 4))})}, "no draws of theta, a parameter"),
        ({"idata": "file.nc"}, "but got builtins.str"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ModelError, match=message):
        report(normal_noise(), **options)


def test_a_model_without_an_estimator():
    with pm.Model() as model:
        pm.Normal("theta")
    with pytest.raises(ModelError, match="no estimator to look at"):
        report(model)
    with pytest.raises(ModelError, match=r"A pm\.Model is needed"):
        report("model")
