"""What estimators take by keyword only they once took by position: it works, with a warning."""

import inspect

import numpy as np
import pymc as pm
import pytest

import pymc_apm as apm
from pymc_apm.black_box import black_boxes_in
from pymc_apm.deprecated import once_positional
from pymc_apm.estimators import Ising, Unnormalised, doubly_intractable, log_mean_exp
from tests.modes import interpreted

ISING = Ising.torus(3, 3)


@pytest.fixture(autouse=True, scope="module")
def without_a_compiler():
    with interpreted():
        yield


@once_positional("b", "c")
def function(a, *, b=2, c=3, d=4):
    return a, b, c, d


def test_arguments_by_position_become_keywords_and_warn_who_called():
    assert function(1, b=5) == (1, 5, 3, 4)
    with pytest.warns(FutureWarning, match="function takes b, c by keyword only .b=.*c=") as w:
        assert function(1, 5, 6, d=7) == (1, 5, 6, 7)
    assert w[0].filename == __file__
    for too_many_or_few in [(1, 2, 3, 4), ()]:
        with pytest.raises(TypeError):
            function(*too_many_or_few)
    with pytest.raises(TypeError, match="multiple values"), pytest.warns(FutureWarning):
        function(1, 2, b=3)


def test_log_mean_exp():
    values = np.log([[1.0, 3.0], [5.0, 7.0]])
    with pytest.warns(FutureWarning, match="log_mean_exp takes axis by keyword only"):
        assert np.allclose(log_mean_exp(values, 1).eval(), np.log([2.0, 6.0]))


def test_ising_and_unnormalised():
    with pytest.warns(FutureWarning, match="^Ising takes n_sites by keyword only"):
        assert Ising([[0, 1]], 4).n_sites == 4
    with pytest.warns(FutureWarning, match="^Unnormalised takes transition, transition_size by"):
        family = Unnormalised(ISING.log_g, ISING.sample, ISING.transition, 9)
    assert family.transition_size == 9


def test_the_mean_and_the_samples_of_a_latent_gaussian_model():
    with pm.Model() as model:
        sd = pm.HalfNormal("sd")
        with pytest.warns(FutureWarning, match="laplace_importance takes mean, samples by keyword"):
            apm.estimators.laplace_importance(
                "y", lambda f: -(f**2), sd * np.eye(2), 0.5, 3, reference={"sd": 1.0}
            )
    assert model["y_u"].type.shape == (2, 3, 2)


def test_a_reference_that_is_a_list():
    y = ISING.sample(0.2, 0.0, np.random.default_rng(1))
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", 0.0, 0.4)
        with pytest.warns(
            FutureWarning, match=r"reference=\{'coupling': \.\.\., 'parameter_2'"
        ) as w:
            doubly_intractable("y", ISING, [coupling, 0.1], y, reference=[0.3, 0.2])
        assert w[0].filename == __file__
        (node,) = black_boxes_in(model.potentials)
        assert node.op.fn.reference == [0.3, 0.2]
        for wrong in ([0.3], [0.3, [0.2]], [0.3, np.nan]):
            with (
                pytest.warns(FutureWarning),
                pytest.raises(apm.errors.ModelError, match="one finite value for each of coupling"),
            ):
                doubly_intractable("z", ISING, [coupling, 0.1], y, reference=wrong)


def test_options_of_the_exchange_algorithm():
    with pm.Model() as model:
        coupling = pm.Uniform("coupling", 0.0, 0.4)
        doubly_intractable("y", ISING, [coupling, 0.1], np.ones(9), reference={"coupling": 0.1})
        with pytest.warns(FutureWarning, match="^ExchangeMH takes scaling by keyword only"):
            assert apm.ExchangeMH([model["coupling"]], 0.7).scaling == 0.7


@pytest.mark.parametrize("name", ["importance", "laplace_importance", "doubly_intractable"])
def test_estimators_have_one_shape(name):
    """A name and what it is of by position, all else by keyword, in the same order."""
    parameters = inspect.signature(getattr(apm.estimators, name)).parameters
    keywords = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    order = ["mean", "groups", "shape", "kind", "samples", "anneal", "antithetic", "defensive"]
    order += ["reference", "pilot_draws", "jitter", "formulation"]
    order += ["normaliser", "at_least", "mean_length", "dims", "model"]
    assert keywords == [known for known in order if known in keywords]
    assert next(iter(parameters)) == "name"
    assert parameters["model"].default is None


@pytest.mark.parametrize("name", apm.estimators.__all__)
def test_no_module_takes_the_place_of_a_public_name(name):
    """Whatever is imported first: a module of that name would replace the function."""
    with pytest.raises(ModuleNotFoundError):
        __import__(f"pymc_apm.estimators.{name}")
