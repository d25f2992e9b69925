"""After sampling: latent variables, log-likelihoods and predictions against closed forms."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pymc.model.transform.optimization import freeze_dims_and_data
from scipy.stats import norm, t

import pymc_apm as apm
from pymc_apm._compat import result_of
from pymc_apm.errors import ModelError
from pymc_apm.marginal.likelihoods import relative_variance
from tests.marginal.models import GROUP, Y, intercept, made

Z = 4.8
N_DRAWS = 1500
SIZES = np.bincount(GROUP)
SUMS = np.bincount(GROUP, Y)


def conjugate(**options):
    """Return a model whose latent variables have a known posterior, and draws of its parameters."""
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        group = pm.Data("group_of", GROUP)
        mu = pm.Normal("mu")
        b = pm.Normal("b", mu, 0.8, dims="group")
        pm.Deterministic("twice", 2 * b, dims="group")
        pm.Normal("y", b[group], 1.0, observed=Y, shape=group.shape)
    marginal = apm.marginalize(model, "b", **options)
    mu = np.random.default_rng(3).normal(0.2, 0.3, size=(2, N_DRAWS))
    posterior = xr.Dataset(
        {"mu": (("chain", "draw"), mu)}, coords={"chain": [0, 1], "draw": np.arange(N_DRAWS)}
    )
    return marginal, result_of({"posterior": posterior}), mu[..., None]


def posterior_of_b(mu):
    precision = 1 / 0.8**2 + SIZES
    return (mu / 0.8**2 + SUMS) / precision, precision**-0.5


def log_likelihood_of_groups(mu):
    """Return log p(y_g | mu) by the density of b: p(y | b) p(b) / p(b | y) at b = 0."""
    mean, sd = posterior_of_b(mu)
    at_zero = np.bincount(GROUP, norm.logpdf(Y))
    return at_zero + norm.logpdf(0.0, mu, 0.8) - norm.logpdf(0.0, mean, sd)


@pytest.mark.parametrize("proposal", ["prior", pytest.param("laplace", marks=pytest.mark.slow)])
def test_latent_variables_have_their_posterior(proposal):
    """Given each draw of the parameters; a dozen comparisons."""
    marginal, idata, mu = conjugate(proposal=proposal)
    found = apm.sample_latent(idata, marginal, samples=400, random_seed=1)
    mean, sd = posterior_of_b(mu)
    scores = (found.posterior["b"].values - mean) / sd
    for moment in (scores, scores**2 - 1.0):
        of_groups = moment.reshape(-1, 3)
        z = of_groups.mean(axis=0) / of_groups.std(axis=0) * np.sqrt(len(of_groups))
        assert np.abs(z).max() < Z
    pairs = scores[..., 0] * scores[..., 1]
    assert abs(pairs.mean() / pairs.std() * np.sqrt(pairs.size)) < Z
    assert found.sample_stats["effective_samples"].dims == ("chain", "draw", "group")
    assert found.sample_stats["effective_samples"].min() > 10


def test_too_few_samples_are_noticed():
    """With two samples, the draws are nearly those of the prior."""
    marginal, idata, mu = conjugate(proposal="prior")
    found = apm.sample_latent(idata, marginal, samples=2, random_seed=1)
    mean, sd = posterior_of_b(mu)
    scores = ((found.posterior["b"].values - mean) / sd) ** 2 - 1.0
    assert scores.mean() / scores.std() * np.sqrt(scores.size) > Z


@pytest.mark.parametrize("proposal", ["prior", pytest.param("laplace", marks=pytest.mark.slow)])
def test_log_likelihoods_are_those_of_groups(proposal):
    marginal, idata, mu = conjugate(proposal=proposal)
    found = apm.log_likelihood(idata, marginal, tolerance=0.02, random_seed=1)
    values = found.log_likelihood["y"]
    assert values.dims == ("chain", "draw", "group")
    errors = (values.values - log_likelihood_of_groups(mu)).reshape(-1, 3)
    # The sum of variances is what was asked for, within a factor of two.
    assert errors.var(axis=0).sum() < 2 * values.attrs["monte_carlo_variance"] + 1e-12
    assert values.attrs["monte_carlo_variance"] <= 0.02
    assert np.abs(errors.mean(axis=0)).max() < 0.02
    exact = result_of(
        {
            "posterior": idata.posterior,
            "log_likelihood": xr.Dataset(
                {"y": (values.dims, log_likelihood_of_groups(mu))}, coords=values.coords
            ),
        }
    )
    elpds = [
        float(getattr(az.loo(data), "elpd_loo", None) or az.loo(data).elpd)
        for data in (idata, exact)
    ]
    assert abs(elpds[0] - elpds[1]) < 0.1


def test_a_limit_to_the_draws_is_told(caplog):
    marginal, idata, _ = conjugate(proposal="prior")
    apm.log_likelihood(idata, marginal, tolerance=1e-6, max_samples=16, random_seed=1)
    assert "would need" in caplog.text


def test_predictions_for_known_and_new_groups():
    """Six comparisons of means and of variances."""
    marginal, idata, mu = conjugate(proposal="prior")
    mean, sd = posterior_of_b(mu)
    known = apm.sample_posterior_predictive(
        idata, marginal, var_names=["y", "twice", "b"], samples=400, random_seed=1
    ).posterior_predictive
    assert np.array_equal(2 * known["b"].values, known["twice"].values)
    new = apm.sample_posterior_predictive(
        idata, marginal, new_groups=True, random_seed=1
    ).posterior_predictive
    for values, centre, spread in (
        (known["y"].values, mean[..., GROUP], np.sqrt(1.0 + sd[GROUP] ** 2)),
        (new["y"].values, mu, np.sqrt(1.0 + 0.8**2)),
    ):
        scores = (values - centre) / spread
        for moment in (scores, scores**2 - 1.0):
            of_draws = moment[..., [0, 2, 3]].reshape(-1, 3)  # one of each group
            z = of_draws.mean(axis=0) / of_draws.std(axis=0) * np.sqrt(len(of_draws))
            assert np.abs(z).max() < Z


def test_predictions_for_other_data():
    marginal, idata, mu = conjugate(proposal="prior")
    more = apm.sample_posterior_predictive(
        idata, marginal, data={"group_of": [2, 2]}, predictions=True, random_seed=1
    ).predictions["y"]
    mean, _ = posterior_of_b(mu)
    assert more.shape == (2, N_DRAWS, 2)
    errors = (more.values - mean[..., [2]]).reshape(-1)
    assert abs(errors.mean() / errors.std() * np.sqrt(len(errors) / 2)) < Z
    many = apm.sample_posterior_predictive(
        idata,
        marginal,
        new_groups=True,
        data={"group_of": [0, 1, 2, 3, 4]},
        coords={"group": list("vwxyz")},
        random_seed=1,
    ).posterior_predictive["y"]
    assert many.shape == (2, N_DRAWS, 5)
    assert list(marginal.coords["group"]) == ["a", "b", "c"]
    assert abs(np.corrcoef(many.values.reshape(-1, 5).T)[0, 1] - 0.3**2 / (1.64 + 0.09)) < 0.1


def test_results_can_be_added_to_what_was_given():
    marginal, idata, _ = conjugate(proposal="prior")
    found = apm.sample_latent(idata, marginal, samples=20, random_seed=1, extend_inferencedata=True)
    assert found is idata
    assert {"mu", "b"} <= set(idata.posterior.data_vars)
    found = apm.sample_posterior_predictive(
        idata, marginal, samples=20, random_seed=1, extend_inferencedata=True
    )
    assert found is idata
    assert idata.posterior_predictive["y"].shape == (2, N_DRAWS, 6)
    apm.log_likelihood(idata, marginal, max_samples=20, random_seed=1)
    apm.log_likelihood(idata, marginal, max_samples=20, random_seed=2)
    assert set(idata.log_likelihood.data_vars) == {"y"}


def test_a_correlated_pair_of_which_one_is_observed():
    """The other one follows it: its posterior mean is 0.8 times as large."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        b = pm.MvNormal("b", [0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]], shape=(3, 2))
        pm.Normal("y", mu + b[GROUP, 1], 0.3, observed=5.0 * Y)
    marginal = apm.marginalize(model, "b", proposal="prior")
    posterior = xr.Dataset({"mu": (("chain", "draw"), np.zeros((1, 1000)))})
    idata = result_of({"posterior": posterior.assign_coords(chain=[0], draw=np.arange(1000))})
    found = apm.sample_latent(idata, marginal, samples=400, random_seed=1).posterior["b"].values
    slope = found[0, ..., 0] - 0.8 * found[0, ..., 1]
    z = slope.mean(axis=0) / 0.6 * np.sqrt(1000)
    assert np.abs(z).max() < Z


def draws_of(**variables):
    n_draws = len(next(iter(variables.values())))
    data = {name: (("chain", "draw"), values[None]) for name, values in variables.items()}
    posterior = xr.Dataset(data, coords={"chain": [0], "draw": np.arange(n_draws)})
    return result_of({"posterior": posterior})


@pytest.mark.parametrize("proposal", ["prior", "laplace"])
def test_a_group_without_observations_has_its_prior(proposal):
    """And the other one of a correlated pair follows the one that was observed."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        b = pm.Normal("b", mu, 1.0, shape=3)
        pair = pm.MvNormal("pair", [0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]])
        pm.Normal("y", pt.stack([b[0], b[2], pair[0]]), 0.5, observed=[3.0, -3.0, 2.0])
    marginal = apm.marginalize(model, ["b", "pair"], proposal=proposal)
    found = apm.sample_latent(draws_of(mu=np.zeros(800)), marginal, samples=200, random_seed=1)
    b, pair = (found.posterior[name].values[0] for name in ("b", "pair"))
    empty, rest = b[:, 1], (pair[:, 1] - 0.8 * pair[:, 0]) / 0.6
    for scores in (empty, rest):
        assert abs(scores.mean()) < Z / np.sqrt(800)
        assert abs((scores**2).mean() - 1.0) < Z * np.sqrt(2 / 800)
    others = np.stack([b[:, 0], b[:, 2], pair[:, 0], empty, rest])
    assert np.abs(np.corrcoef(others)[3:] - np.eye(5)[3:]).max() < Z / np.sqrt(800)


def regression(coords):
    """Return a model whose latent variables depend on data, of which no run has a record."""
    with pm.Model(coords=coords) as model:
        if not coords:
            model.add_coord("group", length=3)
        x = pm.Data("x", np.array([-1.0, 0.0, 1.0]))
        b = pm.Normal("b", pm.Normal("mu") + x, 1.0, dims="group")
        pm.Normal("y", b, 0.5, observed=[1.5, 0.0, -1.5], dims="group")
    return apm.marginalize(model, "b")


@pytest.mark.parametrize("coords", [{}, {"group": ["a", "b", "c"]}], ids=["length", "names"])
def test_predictions_keep_known_groups(coords):
    """Whatever PyMC takes for changed, and would draw anew: their means would be -1, 0 and 1."""
    idata = draws_of(mu=np.zeros(400))
    known = apm.sample_posterior_predictive(idata, regression(coords), random_seed=1)
    means = known.posterior_predictive["y"].values.mean(axis=(0, 1))
    assert np.abs(means - [1.0, 0.0, -1.0]).max() < 0.3


def test_known_groups_are_those_that_were_observed():
    marginal = regression({"group": ["a", "b", "c"]})
    idata = draws_of(mu=np.zeros(5))
    for data, names in (([0.0, 0.0, 0.0], "cba"), ([0.0, 0.0], "ab")):
        options = {"data": {"x": np.array(data)}, "coords": {"group": list(names)}}
        with pytest.raises(ModelError, match="new_groups=True"):
            apm.sample_posterior_predictive(idata, marginal, random_seed=1, **options)
        new = apm.sample_posterior_predictive(
            idata, marginal, new_groups=True, predictions=True, random_seed=1, **options
        )
        assert list(new.predictions["group"].values) == list(names)


@pytest.mark.parametrize(
    "function", [apm.sample_latent, apm.log_likelihood, apm.sample_posterior_predictive]
)
def test_data_that_were_changed_after_sampling_are_refused(function):
    marginal = regression({"group": ["a", "b", "c"]})
    idata = draws_of(mu=np.zeros(5))
    constant = xr.Dataset({"x": ("x_dim_0", np.array([-1.0, 0.0, 1.0]))})
    idata = result_of({"posterior": idata.posterior, "constant_data": constant})
    function(idata, marginal)
    pm.set_data({"x": np.array([0.0, 0.0, 1.0])}, model=marginal)
    with pytest.raises(ModelError, match="x has been changed since the model was sampled"):
        function(idata, marginal)


@pytest.mark.parametrize(
    "function", [apm.sample_latent, apm.log_likelihood, apm.sample_posterior_predictive]
)
def test_other_models_are_refused(function):
    _, idata, _ = conjugate(proposal="prior")
    with pytest.raises(ModelError, match=r"not made by apm\.marginalize"):
        function(idata, made(intercept))


def test_changed_groups_are_refused():
    marginal, idata, _ = conjugate(proposal="prior")
    pm.set_data({"group_of": GROUP[::-1].copy()}, model=marginal)
    with pytest.raises(ModelError, match="group_of has been changed"):
        apm.sample_latent(idata, marginal)


@pytest.mark.slow
@pytest.mark.in_python
def test_a_second_mode_that_a_laplace_approximation_does_not_see_is_drawn_too():
    """With heavy tails: the chain takes draws from the prior too, and so must what comes after."""
    first, second, scale = -1.0, 9.0, 0.5
    with pm.Model() as model:
        b = pm.Normal("b", pm.Normal("mu"), 3.0, shape=2)
        pm.StudentT("y", nu=1.5, mu=b[:, None], sigma=scale, observed=[[first, second], [0.4, 0.5]])
    marginal = apm.marginalize(model, "b", proposal="laplace")
    idata = draws_of(mu=np.zeros(1200))
    grid = np.linspace(-30.0, 30.0, 20_001)
    log_p = norm.logpdf(grid, 0.0, 3.0)
    log_p = log_p + sum(t.logpdf((y - grid) / scale, 1.5) - np.log(scale) for y in (first, second))
    weights = np.exp(log_p)
    expected = 1200 * weights[grid > 4.0].sum() / weights.sum()
    found = apm.sample_latent(idata, marginal, samples=200, random_seed=1).posterior["b"].values
    assert abs((found[..., 0] > 4.0).sum() - expected) < Z * np.sqrt(expected)
    assert expected > Z * np.sqrt(expected)  # it would be noticed if there were none
    found = apm.log_likelihood(idata, marginal, random_seed=1).log_likelihood["y"]
    exact = np.log(weights.sum() * (grid[1] - grid[0]))
    assert abs(np.log(np.exp(found.values[..., 0]).mean()) - exact) < 0.03


def test_weights_that_are_all_zero_are_as_noisy_as_can_be():
    weights = np.full((8, 2), -np.inf)
    assert (relative_variance(weights) == 8).all()
    weights[0, 0] = 0.0
    np.testing.assert_allclose(relative_variance(weights), 8)


def test_groups_whose_distribution_is_another_one_are_not_known():
    """Draws given the data of the run are none of groups with other covariates."""
    idata, marginal = draws_of(mu=np.zeros(20)), regression({"group": ["a", "b", "c"]})
    options = {"samples": 20, "random_seed": 1}
    apm.sample_posterior_predictive(idata, marginal, data={"x": [-1.0, 0.0, 1.0]}, **options)
    other = {"data": {"x": [50.0, 50.0, 50.0]}} | options
    with pytest.raises(ModelError, match="Give new_groups=True"):
        apm.sample_posterior_predictive(idata, marginal, **other)
    new = apm.sample_posterior_predictive(idata, marginal, new_groups=True, **other)
    assert new.posterior_predictive["y"].values.min() > 40


def test_an_observation_of_a_group_that_there_is_not_is_refused():
    """Compiled by Numba, the index would read what is beyond the array."""
    marginal, idata, _ = conjugate(proposal="prior")
    for new_groups in (False, True):
        with pytest.raises(ModelError, match=r"b has the shape \(3,\), and an index into"):
            apm.sample_posterior_predictive(
                idata, marginal, data={"group_of": [0, 3]}, samples=2, new_groups=new_groups
            )
    with pytest.raises(ModelError, match="no variable nothing"):
        apm.sample_posterior_predictive(idata, marginal, var_names=["nothing"], samples=2)


def test_a_copy_has_the_data_with_which_it_was_frozen():
    marginal = regression({})
    pm.set_data({"x": np.array([9.0, 0.0, 1.0])}, model=marginal)
    idata, frozen = draws_of(mu=np.zeros(300)), freeze_dims_and_data(marginal)
    latent, same = (
        apm.sample_latent(idata, one, samples=50, random_seed=1).posterior["b"].values
        for one in (marginal, frozen)
    )
    np.testing.assert_allclose(latent, same)
    new = apm.sample_posterior_predictive(idata, frozen, new_groups=True, random_seed=1)
    assert new.posterior_predictive["y"].values[..., 0].mean() > 8
