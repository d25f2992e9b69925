"""``method="particles"``: from what a user says to an unbiased estimate, and to its own update."""

import math

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.fgraph import clone_model
from scipy import stats

import pymc_apm as apm
from pymc_apm.density.target import Target
from pymc_apm.errors import ModelError
from tests.modes import interpreted
from tests.state_space.linear import Args, kalman
from tests.state_space.particle_models import (
    Y,
    ar,
    hidden_markov,
    hidden_markov_log_likelihood,
    sir,
    sir_log_likelihood,
)

Z_BOUND = 4.5
"""Two-sided: all checks together fail by chance less than once in 5000 times."""


@pytest.fixture(autouse=True)
def in_python():
    with interpreted():
        yield


def estimates(model, point, n, seed=20160509):
    """Return log-estimates at a point for fresh random numbers."""
    (potential,) = model.potentials
    (u,) = [v for v in model.data_vars if hasattr(v.tag, "apm_randomness")]
    rng = np.random.default_rng(seed)
    made = []
    with apm.clamped(model):
        logp = model.compile_logp(potential, sum=False)
        values = {name: np.asarray(value) for name, value in point.items()}
        for _ in range(n):
            u.set_value(rng.standard_normal(u.type.shape))
            made.append(logp(values)[0])
    return np.array(made)


def z_score(log_estimates, log_truth):
    ratios = np.exp(log_estimates - log_truth)
    return (ratios.mean() - 1.0) / (ratios.std() / math.sqrt(ratios.size))


def test_it_is_unbiased_with_missing_data():
    logs = estimates(ar(), {"a": 0.8, "s": 1.0}, 2500)
    assert abs(z_score(logs, kalman(Y, Args()))) < Z_BOUND


@pytest.mark.slow
@pytest.mark.in_python
@pytest.mark.parametrize("points", [2, 4])
def test_a_simulator_is_unbiased_with_substeps_and_sums(points):
    logs = estimates(sir(points=points), {"beta_log__": math.log(1.3)}, 1200)
    assert abs(z_score(logs, sir_log_likelihood(1.3))) < Z_BOUND


def test_substeps_share_out_the_time_of_transitions_alone():
    """Observations are given all of it: a Poisson process that is counted since the last row."""
    with pm.Model() as model:
        rate = pm.Flat("rate")
        apm.estimators.state_space(
            "y",
            [1.0, 3.0, 2.0],
            initial=lambda dt: pm.Uniform.dist(dt - 1e-9, dt + 1e-9),
            transition=lambda x, dt: x + pm.Uniform.dist(dt - 1e-9, dt + 1e-9),
            observation=lambda x, dt: pm.Normal.dist(x, dt * rate),
            times=[0.0, 2.0, 6.0],
            sort_by=lambda x, dt: x * dt,
            substeps=4,
            points=3,
        )
    exact = stats.norm.logpdf([1.0, 3.0, 2.0], [1.0, 3.0, 7.0], 0.5 * np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(estimates(model, {"rate": 0.5}, 2), exact.sum(), rtol=1e-6)


def test_a_state_that_starts_as_a_count_may_go_on_as_a_fraction():
    with pm.Model() as model:
        sd = pm.Flat("sd")
        apm.estimators.state_space(
            "y",
            [np.nan, 0.5],
            initial=pm.Bernoulli.dist(0.4),
            transition=lambda x: pm.Normal.dist(x, 1.0),
            observation=lambda x: pm.Normal.dist(x, sd),
            points=4,
        )
    exact = np.log([0.6, 0.4] @ stats.norm.pdf(0.5, [0.0, 1.0], math.sqrt(1.25)))
    assert abs(z_score(estimates(model, {"sd": 0.5}, 2500), exact)) < Z_BOUND


@pytest.mark.parametrize(
    "transition",
    [
        lambda x: pt.clip(pm.Normal.dist(x, 1), 0.0, 9.0),
        lambda x: pt.round(pm.Normal.dist(x, 1)),
        lambda x: pm.Censored.dist(pm.Normal.dist(x, 1), 0.0, 9.0),
        lambda x: 1.0 * pm.Binomial.dist(10, pt.sigmoid(x)),
    ],
    ids=["clipped", "rounded", "censored", "count"],
)
def test_states_with_values_of_positive_probability_are_not_for_a_pool(transition):
    """PyMC derives densities for them, of which single values count."""
    with pm.Model() as model:
        pm.Flat("a")
        apm.estimators.state_space(
            "y",
            [0.3, 0.1],
            initial=0.5,
            transition=transition,
            observation=lambda x: pm.Normal.dist(x, 1),
            points=2,
        )
    assert model["y_u"].tag.apm_randomness.kind.made_of == "normal"


@pytest.mark.slow
@pytest.mark.in_python
def test_a_simulator_sorted_along_a_curve_is_unbiased():
    model = sir(substeps=1, sort_by=None)
    logs = estimates(model, {"beta_log__": math.log(1.3)}, 1200)
    assert abs(z_score(logs, sir_log_likelihood(1.3, substeps=1))) < Z_BOUND


@pytest.mark.slow
@pytest.mark.in_python
def test_a_hidden_markov_model_is_unbiased():
    """It has no density that the pool estimator takes, so that particles are chosen."""
    logs = estimates(hidden_markov(), {"sd": 0.6}, 2500)
    assert abs(z_score(logs, hidden_markov_log_likelihood(0.6))) < Z_BOUND


@pytest.mark.slow
@pytest.mark.in_python
def test_vectors_covariates_and_irregular_times():
    """A random walk of two dimensions with drift, against a Kalman filter."""
    rng = np.random.default_rng(1)
    y, times = rng.standard_normal((4, 2)), np.array([0.0, 0.5, 2.0, 2.5])
    drift, cov = np.array([0.0, 1.0, -0.5, 0.3]), np.array([[1.0, 0.4], [0.4, 0.8]])
    with pm.Model() as model:
        b = pm.Flat("b")
        rain = pm.Data("rain", np.zeros(4))

        def transition(x, dt, rain):
            return pm.MvNormal.dist(x + b * rain, cov * dt)

        apm.estimators.state_space(
            "y",
            y,
            initial=pm.MvNormal.dist(np.zeros(2), np.eye(2)),
            transition=transition,
            observation=lambda x: pm.Normal.dist(x, 0.8),
            times=times,
            covariates={"rain": rain},
            method="particles",
            points=4,
        )
        pm.set_data({"rain": drift})
    logs = estimates(model, {"b": 0.7}, 2000)
    mean, whole, total = np.zeros(2), np.eye(2), 0.0
    for t in range(4):
        if t:
            mean, whole = mean + 0.7 * drift[t], whole + cov * (times[t] - times[t - 1])
        s, error = whole + 0.64 * np.eye(2), y[t] - mean
        total -= 0.5 * (np.linalg.slogdet(2 * np.pi * s)[1] + error @ np.linalg.solve(s, error))
        gain = whole @ np.linalg.inv(s)
        mean, whole = mean + gain @ error, whole - gain @ whole
    assert abs(z_score(logs, total)) < Z_BOUND


def test_a_panel_has_an_estimate_for_each_series():
    series = np.array(["b", "a", "a", "b", "a"])
    model = ar(np.array([0.3, 1.0, -0.4, 0.1, 0.6]), series=series)
    logs = estimates(model, {"a": 0.8, "s": 1.0}, 2500)
    assert logs.shape == (2500, 2)
    assert abs(z_score(logs[:, 0], kalman([1.0, -0.4, 0.6], Args()))) < Z_BOUND
    assert abs(z_score(logs[:, 1], kalman([0.3, 0.1], Args()))) < Z_BOUND
    target = Target(model, model.value_vars, model.initial_point())
    assert target.factors["y_u"].n_factors == 2
    assert "y_u" in target.own_updates


# The update that it brings along


def weighted_change(model, point, statistics, n):
    """Return z-scores of the change of statistics of u by an update, as in test_conditional."""
    target = Target(model, model.value_vars, model.initial_point())
    (u,) = target.randomness
    refresh, density = target.refreshing(u.name), target.along(u.name)
    rng = np.random.default_rng(5)
    theta = target.layout.ravel({name: np.asarray(value) for name, value in point.items()})
    inputs = {":theta": theta, ":rest": np.zeros(0)}
    before = target.start(inputs | {u.name: u.tag.apm_randomness.draw(rng)})
    changes = []
    for _ in range(n):
        _, before = density(u.tag.apm_randomness.draw(rng), before)
        new, cost = refresh(rng, before)
        assert cost.n_evals == 0
        _, after = density(new, before)
        pair = [
            statistics(target.value(e, u.name).reshape(u.type.shape), e.log_estimate)
            for e in (before, after)
        ]
        changes.append(math.exp(before.log_estimate) * (pair[1] - pair[0]))
    changes = np.array(changes)
    return changes.mean(0) / (changes.std(0) / math.sqrt(n))


def numbers_and_estimate(u, log_estimate):
    return np.array([*u.ravel(), *(u.ravel() ** 2), math.exp(log_estimate)])


@pytest.mark.slow
@pytest.mark.in_python
@pytest.mark.parametrize(
    ("make", "point"),
    [(ar, {"a": 0.8, "s": 1.0}), (hidden_markov, {"sd": 0.6})],
    ids=["continuous", "discrete"],
)
def test_its_own_update_leaves_the_target_invariant(make, point):
    z = weighted_change(make(), point, numbers_and_estimate, 1500)
    assert np.abs(z).max() < 4.8


@pytest.mark.slow
@pytest.mark.in_python
@pytest.mark.parametrize(
    ("make", "point"), [(ar, {"a": 0.8, "s": 1.0}), (hidden_markov, {"sd": 0.6})]
)
def test_a_wrong_update_is_noticed(make, point, monkeypatch):
    """One that draws u afresh, as if the estimate did not matter."""
    from pymc_apm.estimators.states.particle_op import ParticleFilter

    monkeypatch.setattr(
        ParticleFilter, "refresh", lambda op, rng, u, *others: rng.standard_normal(u.shape)
    )
    z = weighted_change(make(), point, numbers_and_estimate, 1500)
    assert np.abs(z).max() > 6.0


def own_updates(model):
    return Target(model, model.value_vars, model.initial_point()).own_updates


def test_simulators_have_no_update_of_their_own():
    assert not own_updates(sir())
    assert not own_updates(ar(substeps=2))
    assert not own_updates(ar(accumulate="x"))


def test_an_update_is_not_taken_if_more_depends_on_u():
    model = ar()
    with model:
        apm.Potential("more", pt.exp(-pt.sum(model["y_u"] ** 2)))
    assert not own_updates(model)


def test_copies_of_a_model_have_the_update_too():
    model = ar()
    copies = [
        clone_model(model),
        pm.do(model, {"a": 0.5}),
        cloudpickle.loads(cloudpickle.dumps(model)),
    ]
    for copy in copies:
        assert list(own_updates(copy)) == ["y_u"]
        assert copy["y_u"] is not model["y_u"]
    with copies[1]:
        idata = pm.sample(20, tune=20, chains=1, progressbar=False, random_seed=1)
    assert idata["posterior"]["s"].shape == (1, 20)


def run(model, **options):
    settings = {"draws": 30, "tune": 30, "chains": 1, "progressbar": False, "random_seed": 2}
    with model:
        return pm.sample(**settings | options)


def test_steps_take_the_update():
    model = ar(points=10)
    with model:
        step = apm.APMMetropolis()
        assert step.brings_update(model["y_u"])
        assert not apm.APMSlice(u_update="slice").brings_update(model["y_u"])
    for chosen in (None, step):
        stats = run(model, step=chosen)["sample_stats"]
        assert (stats["u_accepted"] == 1.0).all()
        assert (stats["n_evals"] >= 1).all()


def test_other_updates_of_u_work_too():
    model = ar(points=10)
    with model:
        for step in (apm.APMSlice(u_update="independence"), apm.PseudoMarginalMH()):
            run(model, step=step)
        run(model, step=[apm.APMEllipticalU(), pm.Metropolis()])


def test_it_is_not_compiled_and_says_why():
    with ar(), pytest.raises(Exception, match="ParticleFilter"):
        apm.APMSlice(compile=True)


def test_there_is_no_gradient_and_the_message_says_what_to_do():
    model = ar()
    with pytest.raises(NotImplementedError, match="no gradient"):
        model.dlogp()


def test_a_run_on_two_cores_is_that_on_one():
    model = ar(points=5)
    options = {"chains": 2, "draws": 10, "tune": 10}
    first, second = (run(model, cores=cores, **options)["posterior"]["a"] for cores in (1, 2))
    np.testing.assert_array_equal(first, second)


# What is refused


def test_options_of_the_other_method_are_refused():
    with pytest.raises(ModelError, match="width"):
        ar(width=2.0)
    with pm.Model(), pytest.raises(ModelError, match="substeps"):
        apm.estimators.state_space(
            "y",
            Y,
            initial=pm.Normal.dist(),
            transition=lambda x: pm.Normal.dist(x),
            observation=lambda x: pm.Normal.dist(x),
            method="pool",
            substeps=2,
        )


def test_what_cannot_be_simulated_is_named():
    with pm.Model(), pytest.raises(ModelError, match="wald"):
        apm.estimators.state_space(
            "y",
            Y,
            initial=pm.Normal.dist(),
            transition=lambda x: x + pm.Wald.dist(1.0, 2.0),
            observation=lambda x: pm.Normal.dist(x),
            method="particles",
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": "new"}, "new"),
        ({"sort_by": lambda y: y}, "asks for y"),
        ({"sort_by": lambda x: pm.Normal.dist(x)}, "without a draw"),
        ({"substeps": 0}, "substeps"),
        ({"points": 0}, "points"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        ar(**options)


def test_parameters_that_make_no_sense_make_the_estimate_nan():
    with pm.Model() as model:
        p = pm.Flat("p")
        apm.estimators.state_space(
            "y",
            [1.0, 1.0, 1.0],
            initial=3,
            transition=lambda x: x + pm.Binomial.dist(5, p),
            observation=lambda x: pm.Poisson.dist(x),
            points=3,
        )
    assert np.isfinite(estimates(model, {"p": 0.5}, 3)).all()
    assert np.isnan(estimates(model, {"p": 1.5}, 3)).all()


MEANS = pt.constant([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    "draw",
    [
        lambda p: pm.Normal.dist(0.0, p - 1.0),
        lambda p: pm.LogNormal.dist(0.0, p - 1.0),
        lambda p: pm.Bernoulli.dist(2.0 - p),
        lambda p: pm.Categorical.dist(pt.stack([p - 1.0, 2.0 - p])),
        lambda p: MEANS[pm.Binomial.dist(2, 2.0 - p)],
    ],
    ids=["normal", "log-normal", "Bernoulli", "categorical", "index"],
)
def test_no_draw_is_made_with_parameters_that_make_no_sense(draw):
    with pm.Model() as model:
        p = pm.Flat("p")
        apm.estimators.state_space(
            "y",
            [1.0, 1.0, 1.0],
            initial=lambda: draw(1.5),
            transition=lambda x: draw(p),
            observation=lambda x: pm.Normal.dist(MEANS[x] if x.dtype == "int64" else x, 1.0),
            method="particles",
            points=3,
            substeps=2,
        )
    assert np.isfinite(estimates(model, {"p": 1.5}, 3)).all()
    assert np.isnan(estimates(model, {"p": 0.9}, 3)).all()
    assert np.isnan(estimates(model, {"p": math.nan}, 3)).all()
