"""apm.Potential: what it refuses, what it adds to a model, and its guard against a u left alone."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.errors import ModelError, UnclaimedRandomnessError
from pymc_apm.potential import feeds_potential
from tests.models import PYTHON, QUIET, mixed_toy, toy_gaussian

FEW_DRAWS = {"draws": 3, "tune": 3, "chains": 1, "cores": 1, "random_seed": 1, **QUIET}


@pytest.fixture
def parts():
    """An open model with a parameter and a piece of randomness."""
    with pm.Model():
        theta = pm.Normal("theta", shape=3)
        u = apm.StandardNormal("u", shape=3)
        yield theta, u


# What is refused


def test_an_estimate_without_randomness_is_refused(parts):
    theta, _ = parts
    with pytest.raises(ModelError, match=r"'log_lik'\) uses no randomness .* is a pm\.Potential"):
        apm.Potential("log_lik", -(theta**2).sum())


def test_a_constant_is_refused(parts):
    with pytest.raises(ModelError, match="uses no randomness"):
        apm.Potential("log_lik", 1.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "draw",
    [
        lambda: pm.Normal.dist(name="my_noise"),
        lambda: pm.Normal.dist(),
        lambda: pm.Dirichlet.dist(np.ones(3)),
        lambda: pm.Mixture.dist(w=[0.5, 0.5], comp_dists=[pm.Normal.dist(), pm.Normal.dist(3)]),
        lambda: pm.Truncated.dist(pm.Normal.dist(), lower=0.0),
        lambda: pt.random.normal(size=3),
        lambda: pt.random.utils.RandomStream(1).uniform(size=3),
    ],
    ids=["named", "Normal", "Dirichlet", "Mixture", "Truncated", "pt.random", "RandomStream"],
)
def test_a_random_draw_inside_the_estimate_is_refused_and_named(parts, draw):
    theta, u = parts
    noise = draw()
    label = noise.name or str(noise.owner.op)
    with pytest.raises(ModelError) as caught:
        apm.Potential("log_lik", -((theta + u + pt.exp(noise)) ** 2).sum())
    assert f"'log_lik') draws random numbers of its own: {label}" in str(caught.value)
    assert "apm.StandardNormal" in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_random_draw_inside_a_scan_is_refused(parts):
    theta, u = parts
    rng = pytensor.shared(np.random.default_rng(1))

    def walk(x, rng):
        next_rng, noise = pt.random.normal(rng=rng).owner.outputs
        return x + noise, {rng: next_rng}

    path, _ = pytensor.scan(walk, outputs_info=[theta.sum()], non_sequences=[rng], n_steps=3)
    with pytest.raises(ModelError, match="draws random numbers of its own"):
        apm.Potential("log_lik", path[-1] + u.sum())


@pytest.mark.parametrize("dtype", ["complex128", "int64", "bool"])
def test_an_estimate_that_is_not_a_real_number_is_refused(parts, dtype):
    theta, u = parts
    estimate = (theta * u).sum()
    estimate = estimate > 0 if dtype == "bool" else pt.cast(estimate, dtype)
    with pytest.raises(ModelError, match=rf"real floating point number.* dtype is {dtype}"):
        apm.Potential("log_lik", estimate)


def test_a_matrix_is_refused_with_advice(parts):
    theta, u = parts
    with pytest.raises(ModelError, match=r"has 2 dimensions.* average over importance samples"):
        apm.Potential("log_lik", theta[:, None] * u)


def test_a_refused_estimate_leaves_the_model_as_it_was(parts):
    theta, u = parts
    for estimate in (theta.sum(), theta * u * pm.Normal.dist(), theta[:, None] * u):
        with pytest.raises(ModelError):
            apm.Potential("log_lik", estimate)
    assert pm.modelcontext(None).potentials == []
    assert not feeds_potential(theta)


def test_a_name_that_is_taken_is_refused(parts):
    theta, u = parts
    with pytest.raises(ValueError, match="theta already exists"):
        apm.Potential("theta", (theta * u).sum())


# What is added


def test_a_vector_counts_as_the_sum_of_its_elements(parts):
    theta, u = parts
    model = pm.modelcontext(None)
    vector = apm.Potential("factors", theta * u)
    step = apm.APMSlice(compile_kwargs=PYTHON)
    point = {"theta": np.array([0.5, -1.0, 2.0])}
    expected = (point["theta"] * u.get_value()).sum()
    assert model.potentials == [vector]
    logp = model.compile_logp([vector], mode="FAST_COMPILE")
    with apm.clamped():
        np.testing.assert_allclose(logp(point), expected)
    assert step.u.keys() == {"u"}


def test_it_can_be_added_to_a_model_that_is_not_open():
    model = pm.Model()
    with model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
    assert apm.Potential("log_lik", theta * u, model=model) is model["log_lik"]


def test_only_parameters_that_feed_it_directly_are_tagged():
    with pm.Model():
        scale = pm.HalfNormal("scale")
        theta = pm.Normal("theta", 0.0, scale)
        count = pm.Poisson("count", 3.0)
        other = pm.Normal("other")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", (theta * u) + count)
        apm.Potential("second", pt.exp(u))
    assert feeds_potential(theta)
    assert feeds_potential(count)
    assert not feeds_potential(scale)
    assert not feeds_potential(other)


def test_deterministics_observed_variables_and_data_may_stand_between():
    with pm.Model() as model:
        x = pm.Data("x", np.ones(3))
        theta = pm.Normal("theta")
        twice = pm.Deterministic("twice", 2.0 * theta)
        y = pm.Normal("y", theta, observed=np.arange(3.0))
        u = apm.StandardNormal("u", shape=3)
        potential = apm.Potential("log_lik", (twice + y + x * u).sum())
        step = apm.APMSlice(compile_kwargs=PYTHON)
    assert feeds_potential(theta)
    assert step.target.estimates == ["log_lik"]
    logp = model.compile_logp([potential], mode="FAST_COMPILE")
    with apm.clamped(model):
        found = logp({"theta": np.array(0.5)})
    np.testing.assert_allclose(found, 3 * 1.0 + 3.0 + u.get_value().sum())


def test_the_log_density_of_a_distribution_is_no_random_draw(parts):
    theta, u = parts
    log_weights = pm.logp(pm.Poisson.dist(pm.math.exp(theta + u)), 3)
    apm.Potential("log_lik", pm.math.logsumexp(log_weights) - np.log(3))
    assert feeds_potential(theta)


def test_parameters_of_an_outer_model_are_parameters():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        with pm.Model(name="sub"):
            u = apm.StandardNormal("u")
            apm.Potential("log_lik", theta * u)
    assert feeds_potential(theta)
    assert [potential.name for potential in model.potentials] == ["sub::log_lik"]


def test_a_vector_may_have_a_dimension_of_the_model():
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u", dims="group")
        apm.Potential("log_lik", theta * u, dims="group")
    assert model.named_vars_to_dims["log_lik"] == ("group",)


# The guard


@pytest.fixture(scope="module")
def toy():
    return toy_gaussian(2)


@pytest.fixture(scope="module")
def mixed():
    return mixed_toy()


STEPS = {
    "NUTS": lambda: pm.NUTS(),
    "Slice": lambda: pm.Slice(),
    "Metropolis": lambda: pm.Metropolis(),
    "DEMetropolisZ": lambda: pm.DEMetropolisZ(),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_pymc_refuse_randomness_that_nobody_updates_and_take_one_that_somebody_does(
    toy, name
):
    message = "No step updates the randomness 'u'"
    with toy:
        with pytest.raises(UnclaimedRandomnessError, match=message):
            pm.sample(step=STEPS[name](), **FEW_DRAWS)
        idata = pm.sample(
            step=[apm.APMEllipticalU(compile_kwargs=PYTHON), STEPS[name]()], **FEW_DRAWS
        )
        assert idata.posterior.sizes["draw"] == 3
        assert np.isfinite(idata.posterior["theta"].values).all()
        with pytest.raises(UnclaimedRandomnessError, match=message):
            pm.sample(step=STEPS[name](), **FEW_DRAWS)


@pytest.mark.compiler
@pytest.mark.parametrize("options", [{}, PYTHON], ids=["default", "python"])
def test_the_log_density_of_the_model_is_refused_unless_it_is_clamped(toy, options):
    point = toy.initial_point()
    logp = toy.compile_logp(**options)
    with pytest.raises(UnclaimedRandomnessError, match="'u'"):
        logp(point)
    with toy:
        step = apm.APMIndependenceU(compile_kwargs=PYTHON)
    with pytest.raises(UnclaimedRandomnessError, match="'u'"):
        logp(point)
    with apm.clamped(toy):
        assert np.isfinite(logp(point))
    assert step.u.keys() == {"u"}
    with pytest.raises(UnclaimedRandomnessError, match="'u'"):
        logp(point)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (lambda: apm.APMSlice(u="u", compile_kwargs=PYTHON), "'v'"),
        (lambda: apm.APMMetropolis(u_update=None, compile_kwargs=PYTHON), "'u', 'v'"),
        (
            lambda: [
                apm.APMReflectiveU(compile_kwargs=PYTHON),
                pm.Metropolis(compile_kwargs=PYTHON),
            ],
            "'u'",
        ),
    ],
)
def test_a_piece_of_randomness_that_is_left_out_is_named(mixed, steps, left):
    with mixed, pytest.raises(UnclaimedRandomnessError, match=f"the randomness {left},"):
        pm.sample(step=steps(), **FEW_DRAWS)


def test_a_step_that_is_kept_does_not_vouch_for_a_run_in_which_it_has_no_part(toy):
    with toy:
        kept = apm.APMSlice(compile_kwargs=PYTHON)
        pm.sample(step=kept, **FEW_DRAWS)
        with pytest.raises(UnclaimedRandomnessError, match="'u'"):
            pm.sample(step=pm.Metropolis(compile_kwargs=PYTHON), **FEW_DRAWS)
        pm.sample(step=kept, **FEW_DRAWS)


def test_randomness_outside_of_an_apm_potential_is_guarded_by_sample_too():
    with pm.Model():
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        pm.Poisson("y", pm.math.exp(theta + u), observed=3)
        with pytest.raises(UnclaimedRandomnessError, match="'u'"):
            pm.sample(step=pm.Metropolis(compile_kwargs=PYTHON), **FEW_DRAWS)
        pm.sample(step=apm.APMSlice(compile_kwargs=PYTHON), **FEW_DRAWS)


def test_several_steps_may_share_the_randomness_between_them(mixed):
    with mixed:
        steps = [
            apm.APMEllipticalU(compile_kwargs=PYTHON),
            apm.APMReflectiveU(compile_kwargs=PYTHON),
            pm.Metropolis(compile_kwargs=PYTHON),
        ]
        idata = pm.sample(step=steps, **FEW_DRAWS)
    assert idata.posterior.sizes["draw"] == 3
