"""What a user says of a state-space model, and what he is told if it cannot be."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats as st

import pymc_apm as apm
from pymc_apm.errors import ModelError
from pymc_apm.estimators.reference import FAST
from pymc_apm.estimators.states.afterwards import _checked_covariates
from pymc_apm.estimators.states.bootstrap import Sampler
from pymc_apm.estimators.states.parts import vectorise
from pymc_apm.estimators.states.specification import attached, parse

Y = np.array([0.3, np.nan, 1.2, 2.0])
RNG = np.random.default_rng(5)


def given(**changes: Any) -> dict[str, Any]:
    return {
        "data": Y,
        "initial": pm.Normal.dist(0, 1),
        "transition": lambda x: pm.Normal.dist(0.5 * x, 1),
        "observation": lambda x: pm.Normal.dist(x, 1),
    } | changes


def specify(**changes: Any) -> Any:
    options = given(**changes)
    with pm.Model():
        return parse("y", options.pop("data"), **options)


def test_density_of_a_transition_with_all_arguments() -> None:
    with pm.Model():
        rho, mu, phi = pm.Uniform("rho", -1, 1), pm.Normal("mu"), pm.Normal("phi", shape=4)
        rain = pm.Data("rain", np.arange(4.0))

        def transition(x: Any, t: Any, dt: Any, rain: Any) -> Any:
            return mu + phi[t] * rain + pm.Normal.dist(rho * (x - mu), dt)

        specification = parse(
            "y",
            Y,
            initial=pm.Normal.dist(mu, 1),
            transition=transition,
            observation=lambda x: pm.Normal.dist(x, pt.exp(x)),
            times=[0, 1, 3, 4],
            covariates={"rain": rain},
        )
    density = specification.transition_density()
    x = RNG.normal(size=(4, 3))
    replace = specification.batch_of_rows(density.inputs, slice(1, None), 2) | {
        density.previous["x"]: pt.as_tensor(x[:-1, :, None]),
        density.current["x"]: pt.as_tensor(x[1:, None, :]),
    }
    (value,) = attached(vectorise([density.value], replace), density.closure)
    found = value.eval({rho: 0.5, mu: 0.2, phi: np.arange(4.0)})
    shift = (np.arange(4.0) ** 2)[1:, None, None]
    centre = 0.2 + shift + 0.5 * (x[:-1, :, None] - 0.2)
    scale = np.array([1.0, 2.0, 1.0])[:, None, None]
    np.testing.assert_allclose(found, st.norm.logpdf(x[1:, None, :], centre, scale))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transition": lambda x: 0.5 * x}, "makes x without a draw"),
        ({"transition": lambda z: pm.Normal.dist(z, 1)}, "asks for z, but what there is are x, t"),
        (
            {"transition": lambda x: x + pm.Normal.dist(0, 1) + pm.Normal.dist(0, 2)},
            "cannot derive the density of x in the transition",
        ),
        ({"transition": lambda x: pm.Poisson.dist(pt.exp(x))}, "makes x of counts"),
        ({"observation": lambda x: x}, "there is no draw in it"),
        ({"observation": lambda x, y: pm.Normal.dist(x, y)}, "there are draws in what it returns"),
        ({"observation": lambda x, y: pt.stack([y - x, x])}, "a number, or one for each element"),
        ({"observation": lambda x: pm.Poisson.dist(pt.exp(x))}, "no integers"),
        ({"initial": pm.Poisson.dist(3.0)}, "initial .* makes x of counts"),
        ({"initial": pm.Normal.dist(np.zeros(3), 1)}, "a row of its data y has the shape"),
        ({"transition": lambda x: pm.Normal.dist([x, x], 1)}, "makes a state x of shape"),
        (
            {"initial": 0, "transition": lambda x: pm.Normal.dist(pt.arange(3.0)[x], 1)},
            "an index that is no integer",
        ),
        ({"times": [0, 1, 1, 2]}, "row 2 is not later"),
        ({"covariates": {"t": np.zeros(4)}}, "is called 't'"),
        ({"covariates": {"rain": np.full(4, np.nan)}}, "only data may be missing"),
        (
            {"covariates": {"rain": np.ma.masked_equal([1, 2, -9, 4], -9)}},
            "only data may be missing",
        ),
        ({"covariates": {"rain": np.zeros(3)}}, "for each of the 4 rows"),
        ({"series": [1, 2]}, "a label for each of the 4 rows"),
        ({"data": np.array([np.inf, 1.0])}, "infinite"),
        ({"states": ("x", "z")}, "a dict with x, z"),
        ({"method": "particle"}, "method of state_space"),
        ({"points": 1}, "at least 2"),
        ({"width": -1.0}, "must be positive"),
    ],
)
def test_errors_name_what_is_wrong(changes: Any, message: str) -> None:
    options = given(**({"method": "pool"} | changes))
    with pm.Model(), pytest.raises(ModelError, match=message):
        apm.estimators.state_space("y", options.pop("data"), **options)


def test_a_start_that_is_a_parameter() -> None:
    with pm.Model(), pytest.raises(ModelError, match="is a function of start"):
        options = given(initial=2 * pm.Normal("start"), method="pool")
        apm.estimators.state_space("y", options.pop("data"), **options)


def test_one_draw_for_two_states_has_no_density() -> None:
    def transition(x: Any, z: Any) -> dict[str, Any]:
        draw = pm.Normal.dist(x + z, 1)
        return {"x": draw, "z": draw}

    specification = specify(
        initial={"x": pm.Normal.dist(), "z": pm.Normal.dist()}, transition=transition
    )
    with pytest.raises(ModelError, match="x and z are one and the same draw"):
        specification.transition_density()


def test_a_state_that_depends_on_the_draw_of_another() -> None:
    def transition(x: Any, v: Any) -> dict[str, Any]:
        new = pm.Normal.dist(0.5 * v, 1)
        return {"x": x + new + pm.Normal.dist(0, 0.3), "v": new}

    specification = specify(
        initial={"x": pm.Normal.dist(), "v": pm.Normal.dist()}, transition=transition
    )
    density = specification.transition_density()
    symbols = [*density.previous.values(), *density.current.values()]
    values = dict(zip(symbols, [0.3, -0.7, 1.1, 0.4], strict=True))
    exact = st.norm.logpdf(0.4, -0.35, 1) + st.norm.logpdf(1.1, 0.3 + 0.4, 0.3)
    assert float(density.value.eval(values)) == pytest.approx(exact)


def test_rows_of_series_are_put_in_order() -> None:
    specification = specify(
        data=np.arange(5.0), series=["b", "a", "b", "a", "b"], times=[0, 0, 2, 5, 3]
    )
    rows = specification.rows
    assert rows.order.tolist() == [1, 3, 0, 2, 4]
    assert rows.t.tolist() == [0, 1, 0, 1, 2]
    assert rows.dt.tolist() == [1, 5, 1, 2, 1]
    assert specification.data["y"].tolist() == [1, 3, 0, 2, 4]
    assert rows.labels.tolist() == ["a", "b"]


@pytest.mark.parametrize("missing", [-999.0, -999])
def test_what_is_masked_is_missing(missing: Any) -> None:
    data = np.ma.masked_equal(np.array([3, missing, 5, 4]), missing)
    np.testing.assert_equal(specify(data=data).data["y"], [3.0, np.nan, 5.0, 4.0])


def test_a_mixture_with_a_point_has_a_density() -> None:
    specification = specify(
        data=np.array([0.0, 2.0, np.nan]),
        observation=lambda x: pm.ZeroInflatedPoisson.dist(0.6, pt.exp(x)),
    )
    log_density = specification.log_observation(pt.constant(np.full((3, 1, 1), 0.3)))
    pmf = 0.6 * st.poisson.pmf([0, 2], np.exp(0.3)) + [0.4, 0.0]
    np.testing.assert_allclose(log_density.eval()[:, 0], [*np.log(pmf), 0.0])


def test_integers_of_new_rows_are_integers() -> None:
    specification = specify(
        transition=lambda x, rain: pm.Normal.dist(x + rain, 1),
        covariates={"rain": np.array([0, 1, 0, 2])},
    )
    made = _checked_covariates("forecast", specification, {"rain": [1.0, 2.0]}, 2)
    assert made["rain"].tolist() == [1, 2]
    with pytest.raises(ModelError, match="rain of forecast is made of integers"):
        _checked_covariates("forecast", specification, {"rain": [1.0, 0.5]}, 2)


def sampler(transition: Any) -> Any:
    """Return what draws 1000 transitions from zero, each time others."""
    specification = specify(transition=transition, initial=pm.Normal.dist(0, 1))
    made = Sampler(specification, specification.transition, 1, FAST)
    return lambda: np.asarray(made(1000, np.zeros((1000, 1)), {}, [])["x"], dtype=float)


def test_draws_that_others_depend_on_are_new_ones_each_time() -> None:
    draw = sampler(lambda x: pm.Normal.dist(pm.Normal.dist(x, 1.0), 0.01))
    first, second = draw(), draw()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.2
    assert first.std() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda x: pm.Binomial.dist(10, pm.math.sigmoid(x)), 5.0),
        (lambda x: pm.Weibull.dist(1.0, pt.exp(x)), 1.0),
        (lambda x: pm.LogitNormal.dist(x, 1.0), 0.5),
    ],
)
def test_draws_of_any_distribution(draw: Any, mean: float) -> None:
    found = sampler(draw)()
    assert abs(found.mean() - mean) < 5.0 * found.std() / np.sqrt(1000)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.2
