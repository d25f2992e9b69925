"""What a user sees when something is wrong: the rows of section 5 of the design."""

import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_apm as apm
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.steps.chain import START_ATTEMPTS
from tests.models import PYTHON, QUIET, PythonOp, mixed_toy, run, toy_gaussian, uniform_toy

FEW_DRAWS = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, "random_seed": 1, **QUIET}


def model_with(log_estimate, **prior):
    """Return a model of a positive parameter ``scale`` with an estimate made by a function."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", **prior)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", log_estimate(scale, u))
    return model


def sample_slice(model, **options):
    with model:
        step = apm.APMSlice(compile_kwargs=PYTHON)
        return pm.sample(step=step, **(FEW_DRAWS | options))


# Estimators that break their contract


@pytest.mark.parametrize(
    "make_step",
    [apm.APMSlice, apm.APMMetropolis, apm.PseudoMarginalMH, apm.APMEllipticalU],
)
def test_an_estimator_with_noise_of_its_own_is_found_out_at_the_start(make_step):
    noise = itertools.count()
    model = model_with(lambda scale, u: PythonOp(lambda x: x + next(noise))(scale * u))
    with model:
        step = make_step(compile_kwargs=PYTHON)
    with pytest.raises(EstimatorError, match=r"log_lik differs between two .* of its own"):
        run(step, model.initial_point(), n_draws=1)


def test_an_estimator_with_noise_of_its_own_is_found_out_under_the_default_backend():
    rng = np.random.default_rng(1)
    model = model_with(lambda scale, u: PythonOp(lambda x: x + rng.random())(scale * u))
    with model, pytest.raises(EstimatorError, match="draws random numbers of its own"):
        pm.sample(step=apm.APMSlice(), **FEW_DRAWS)


def test_noise_that_depends_on_theta_alone_is_found_out_too():
    rng = np.random.default_rng(1)
    model = model_with(lambda scale, u: PythonOp(lambda x: x + rng.random())(scale) * u)
    with pytest.raises(EstimatorError, match="draws random numbers of its own"):
        sample_slice(model)


def nan_where_negative(scale, u):
    return pt.switch(u < -0.5, np.nan, -scale * u**2)


def test_estimates_that_are_not_a_number_are_counted_and_warned_of_once_at_the_end(caplog):
    idata = sample_slice(
        model_with(nan_where_negative),
        draws=20,
        chains=2,
        compute_convergence_checks=True,
    )
    n_nan = int(idata.sample_stats["n_nan"].sum())
    n_evals = int(idata.sample_stats["n_evals"].sum())
    assert n_nan > 0
    assert np.isfinite(idata.sample_stats["log_estimate"].values).all()
    found = [record for record in caplog.records if "NaN" in record.getMessage()]
    assert len(found) == 1
    assert found[0].name == "pymc.stats.convergence"
    assert found[0].levelname == "WARNING"
    assert found[0].getMessage().startswith(f"{n_nan} of {n_evals} estimates after tuning")


def test_no_warning_where_every_estimate_is_a_number(caplog):
    idata = sample_slice(
        model_with(lambda scale, u: -scale * u**2), compute_convergence_checks=True
    )
    assert idata.sample_stats["n_nan"].sum() == 0
    assert not [record for record in caplog.records if "NaN" in record.getMessage()]


def test_models_without_estimators_are_checked_as_ever(caplog):
    with pm.Model():
        pm.Normal("x")
        idata = pm.sample(
            step=pm.Metropolis(compile_kwargs=PYTHON),
            **(FEW_DRAWS | {"compute_convergence_checks": True}),
        )
    assert "n_nan" not in idata.sample_stats
    assert not [record for record in caplog.records if "NaN" in record.getMessage()]


@pytest.mark.parametrize("cores", [1, 2])
def test_an_infinite_estimate_is_an_error_with_the_parameters_on_their_own_scale(cores):
    model = model_with(lambda scale, u: pt.switch(u**2 > 0.0, np.inf, scale), initval=2.5)
    with pytest.raises(Exception, match=r"log-estimate is \+inf at scale = 2\.5") as caught:
        sample_slice(model, chains=cores, cores=cores)
    assert "division by zero" in str(caught.value)
    assert type(original(caught.value)) is EstimatorError


def original(error):
    """Return the exception that PyMC wraps into one of its own where it has to change process."""
    return error if error.__cause__ is None else error.__cause__


def explode(x):
    raise FloatingPointError("the simulator exploded")


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.compiler
@pytest.mark.parametrize("default", [False, True], ids=["python", "default"])
def test_an_exception_inside_the_estimator_comes_with_the_parameters(cores, default):
    model = model_with(lambda scale, u: PythonOp(explode)(scale * u), initval=2.5)
    with model, pytest.raises(Exception, match="the simulator exploded") as caught:
        step = apm.APMSlice(compile_kwargs=None if default else PYTHON)
        pm.sample(step=step, **(FEW_DRAWS | {"chains": cores, "cores": cores}))
    assert "The model was being evaluated at scale = 2.5." in str(caught.value)
    assert type(original(caught.value)) is FloatingPointError


def test_an_exception_in_the_middle_of_a_chain_names_the_parameters_of_that_moment():
    seen = []

    def fail_after_a_while(scale, u):
        seen.append(float(scale))
        if len(seen) == 10:
            raise ValueError("enough")
        return -scale * u**2

    model = model_with(lambda scale, u: PythonOp(fail_after_a_while)(scale, u))
    with pytest.raises(ValueError, match="enough") as caught:
        sample_slice(model)
    *_, value = str(caught.value).strip().rpartition("scale = ")
    np.testing.assert_allclose(float(value.rstrip(".")), seen[-1], rtol=1e-5)


@pytest.mark.parametrize(
    "result", [np.zeros(3), np.array(1j), np.array("x")], ids=["shape", "complex", "text"]
)
def test_an_op_that_does_not_keep_to_its_type_is_an_error_with_the_parameters(result):
    class Liar(PythonOp):
        def perform(self, node, inputs, outputs):
            outputs[0][0] = result

    model = model_with(lambda scale, u: Liar(None)(scale * u), initval=2.5)
    with pytest.raises(Exception) as caught:
        sample_slice(model)
    assert "scale = 2.5" in str(caught.value) + " ".join(getattr(caught.value, "__notes__", []))


def test_an_exception_without_a_message_gets_a_note():
    def fail(x):
        raise KeyError("missing")

    model = model_with(lambda scale, u: PythonOp(fail)(scale * u), initval=2.5)
    with pytest.raises(KeyError) as caught:
        sample_slice(model)
    notes = " ".join(getattr(caught.value, "__notes__", []))
    assert "scale = 2.5" in notes + str(caught.value)


# The start of a chain


def test_an_estimate_of_zero_at_the_start_is_an_error_after_so_many_draws_of_u():
    seen = set()

    def zero(scale, u):
        seen.add(float(u))
        return -np.inf

    model = model_with(lambda scale, u: PythonOp(zero)(scale, u), initval=2.5)
    with pytest.raises(EstimatorError, match="estimate of log_lik is zero at the start") as caught:
        sample_slice(model)
    assert "scale = 2.5" in str(caught.value)
    assert f"each of {START_ATTEMPTS} draws" in str(caught.value)
    assert len(seen) == START_ATTEMPTS


@pytest.mark.parametrize("nothing", [-np.inf, np.nan])
def test_u_is_drawn_again_where_just_some_give_an_estimate_of_zero(nothing):
    model = model_with(lambda scale, u: pt.switch(u < 1.0, nothing, -scale * u))
    for seed in range(3):
        idata = sample_slice(model, random_seed=seed)
        assert np.isfinite(idata.sample_stats["log_estimate"].values).all()
    assert model["u"].get_value() >= 1.0


def test_a_prior_of_zero_at_the_start_is_an_error_and_the_estimator_is_not_called():
    with pm.Model() as model:
        theta = pm.Normal("theta", initval=-2.0)
        pm.Potential("positive", pt.switch(theta > 0.0, 0.0, -np.inf))
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", PythonOp(explode)(theta * u))
    with pytest.raises(EstimatorError, match=r"prior is zero at the start.*theta = -2\. Give"):
        sample_slice(model)


def test_impossible_data_at_the_start_is_an_error_of_its_own():
    with pm.Model() as model:
        theta = pm.Normal("theta", initval=-2.0)
        pm.Uniform("y", 0.0, pt.exp(theta), observed=3.0)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", theta * u)
    with pytest.raises(EstimatorError, match=r"observed variables is zero.*theta = -2"):
        sample_slice(model)


@pytest.mark.parametrize("u_gives_zero", [False, True])
def test_a_point_without_density_where_another_step_left_the_chain_is_an_error(u_gives_zero):
    with pm.Model() as model:
        theta = pm.Uniform("theta", 0.0, 1.0, transform=None)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", pt.log(pt.switch(theta > 0.9, 0.0, 1.0)) + theta * u)
        step = apm.APMMetropolis(scaling=1e-3, compile_kwargs=PYTHON)
    chain = run(step, model.initial_point(), n_draws=1)
    with pytest.raises(EstimatorError, match="zero at the point at which another step"):
        step.step(chain.point | {"theta": np.array(0.95 if u_gives_zero else 2.0)})


# Steps that cannot be made


@pytest.mark.parametrize(
    "make_step",
    [
        apm.APMSlice,
        apm.APMMetropolis,
        apm.PseudoMarginalMH,
        apm.APMEllipticalU,
        apm.APMReflectiveU,
        apm.APMIndependenceU,
    ],
)
def test_a_model_without_randomness_is_an_error_when_the_step_is_made(make_step):
    with pm.Model():
        pm.Normal("theta")
        with pytest.raises(ModelError, match=f"no estimator.* nothing for {make_step.__name__}"):
            make_step()


def test_discrete_parameters_given_to_a_slice_step_are_told_where_to_go():
    with pm.Model():
        count = pm.Poisson("count", 3.0)
        theta = pm.Normal("theta")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", theta * u * count)
        with pytest.raises(ModelError, match=r"discrete parameters: count\..*apm\.APMMetropolis"):
            apm.APMSlice([theta, count])
        step = apm.APMSlice(compile_kwargs=PYTHON)
        assert [variable.name for variable in step.vars] == ["theta"]


def test_a_slice_step_for_a_model_of_discrete_parameters_alone_is_an_error():
    with pm.Model():
        count = pm.Poisson("count", 3.0)
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", u * count)
        with pytest.raises(ModelError, match=r"no continuous parameter.*apm\.APMMetropolis"):
            apm.APMSlice()


@pytest.fixture(scope="module")
def normal():
    return toy_gaussian(2)


def test_randomness_of_the_wrong_kind_is_an_error_when_the_step_is_made(normal):
    with normal:
        with pytest.raises(
            ModelError, match="uniform randomness, and the model has none: u is nor"
        ):
            apm.APMReflectiveU()
        with pytest.raises(ModelError, match="updates uniform randomness, but u is normal"):
            apm.APMReflectiveU(u="u")
    with (
        uniform_toy(),
        pytest.raises(ModelError, match="normal randomness, and the model has none"),
    ):
        apm.APMEllipticalU()
    with mixed_toy() as mixed, pytest.raises(ModelError, match="but v is uniform"):
        apm.APMEllipticalU(u=[mixed["u"], "v"])


@pytest.mark.parametrize("make_step", [apm.APMSlice, apm.APMMetropolis, apm.APMIndependenceU])
@pytest.mark.parametrize("u", ["w", ["u", "w"], "theta", 3])
def test_unknown_randomness_is_an_error_that_lists_what_there_is(normal, make_step, u):
    with normal, pytest.raises(ModelError, match=r"not randomness of an estimator.*There is: u\."):
        make_step(u=u)


@pytest.mark.parametrize("make_step", [apm.APMSlice, apm.PseudoMarginalMH, apm.APMEllipticalU])
def test_no_step_can_be_split_by_variable(make_step):
    with pm.Model():
        theta, phi = pm.Normal("theta"), pm.Normal("phi")
        u = apm.StandardNormal("u")
        apm.Potential("log_lik", theta * phi * u)
        with pytest.raises(ModelError, match=f"{make_step.__name__}.*leave out blocked=False"):
            make_step(blocked=False)


BAD_OPTIONS = [
    (apm.APMSlice, "width", [0.0, -1.0, np.nan, np.inf, [1.0, 2.0, 3.0], [1.0, -1.0], "wide"]),
    (apm.APMSlice, "directions", ["sideways", None]),
    (apm.APMSlice, "step_out", [-1, 2.5, None, "yes"]),
    (apm.APMSlice, "theta_updates", [0, -1, 1.5, None, "two"]),
    (apm.APMMetropolis, "theta_updates", [0, 1.5]),
    (apm.APMSlice, "u_update", ["elliptical", False]),
    (apm.APMMetropolis, "u_update", ["gibbs", 1]),
    (apm.APMMetropolis, "scaling", [0.0, -1.0, np.nan, np.inf, "large"]),
    (
        apm.APMMetropolis,
        "covariance",
        [
            np.eye(3),
            [1.0, 1.0, 1.0],
            1.0,
            -np.eye(2),
            [1.0, 0.0],
            np.ones((2, 2)),
            [np.nan, 1.0],
            [np.inf, 1.0],
            [[1.0, 5.0], [0.0, 1.0]],
            "wide",
        ],
    ),
    (apm.APMMetropolis, "target_accept", [0.0, 1.0, np.nan, (0.3, 0.1), (0.1, 0.2, 0.3), (), "x"]),
    (apm.PseudoMarginalMH, "correlation", [1.0, -0.1, 2.0, np.nan, "high", "Auto", None]),
    (apm.PseudoMarginalMH, "blocks", [0, -1, 1.5, "2", None, 10_000]),
    (apm.PseudoMarginalMH, "scaling", [-1.0]),
    (apm.PseudoMarginalMH, "covariance", [np.eye(3)]),
]


@pytest.mark.parametrize(
    ("make_step", "option", "value"),
    [(step, option, value) for step, option, values in BAD_OPTIONS for value in values],
)
def test_an_option_that_makes_no_sense_is_an_error_that_names_it(normal, make_step, option, value):
    with normal, pytest.raises(ModelError, match=option):
        make_step(compile_kwargs=PYTHON, **{option: value})


@pytest.mark.parametrize("correlation", [0.5, "auto"])
def test_blocks_and_a_correlation_together_are_an_error(normal, correlation):
    with normal, pytest.raises(ModelError, match=r"blocks=2 and correlation=.* cannot be combined"):
        apm.PseudoMarginalMH(blocks=2, correlation=correlation, compile_kwargs=PYTHON)


@pytest.mark.parametrize("make_step", [apm.APMSlice, apm.APMEllipticalU])
def test_an_empty_list_of_randomness_is_an_error(normal, make_step):
    with normal, pytest.raises(ModelError, match="u"):
        make_step(u=[], compile_kwargs=PYTHON)


# Ctrl-C


@pytest.mark.parametrize("make_step", [apm.APMSlice, apm.APMMetropolis, apm.PseudoMarginalMH])
def test_what_was_sampled_so_far_is_returned_after_an_interrupt(normal, make_step):
    def interrupt(trace, draw):
        if not draw.tuning and draw.draw_idx >= 12:
            raise KeyboardInterrupt

    with normal:
        step = make_step(compile_kwargs=PYTHON)
        idata = pm.sample(step=step, **(FEW_DRAWS | {"draws": 50}), callback=interrupt)
    n_draws = idata.posterior.sizes["draw"]
    assert 5 <= n_draws <= 13
    assert np.isfinite(idata.posterior["theta"].values).all()
    assert idata.sample_stats.sizes["draw"] == n_draws


def test_an_interrupt_inside_the_estimator_returns_what_was_sampled_so_far():
    calls = itertools.count()

    def interrupted(scale, u):
        if next(calls) == 60:
            raise KeyboardInterrupt
        return -scale * u**2

    model = model_with(lambda scale, u: PythonOp(interrupted)(scale, u))
    idata = sample_slice(model, tune=0, draws=100)
    assert 5 <= idata.posterior.sizes["draw"] <= 40
