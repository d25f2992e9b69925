"""Normal transitions have an op of their own, which is compared with that for any transition."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace

from pymc_apm._compat import compile_function
from pymc_apm.estimators.reference import FAST
from pymc_apm.estimators.states import normal_pool, pool
from pymc_apm.estimators.states.draw_op import draw_from
from pymc_apm.estimators.states.guide import Guide
from pymc_apm.estimators.states.specification import Specification, parse
from tests.marks import others_are_slow
from tests.state_space.models import CASES

NORMAL = [name for name in CASES if name != "heavy"]


def results(
    specification: Specification,
    parameters: list[Any],
    at: tuple[float, ...],
    guide: Guide,
    n_points: int = 6,
    options: dict[str, Any] = FAST,
) -> list[NDArray[Any]]:
    """Return estimates, their gradient by parameters and by weights, and draws of states."""
    n_rows = len(specification.rows)
    rng = np.random.default_rng(1)
    u = pytensor.shared(rng.random((n_rows, specification.n_dims)))
    u = pt.specify_shape(u, (n_rows, specification.n_dims))
    made = pool.make_pool(specification, guide, u, n_points, options)
    weights = pt.constant(np.arange(1.0, 1.0 + specification.rows.n_series))
    total = pt.sum(weights * made.estimates)
    drawn = draw_from(made, pt.constant(rng.random(n_rows)))
    outputs = [made.estimates, *pytensor.grad(total, [*parameters, made.log_w])]
    outputs += [drawn.smoothed, drawn.score]
    symbols = [parameter.type() for parameter in parameters]
    outputs = clone_replace(outputs, dict(zip(parameters, symbols, strict=True)))
    return compile_function(symbols, outputs, **options)(*map(np.array, at))


def declared(name: str) -> tuple[Specification, list[Any]]:
    with pm.Model():
        parameters = [pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)]
        given = CASES[name].declare(*parameters)
        return parse("y", given.pop("data"), **given), parameters


def guide_of(specification: Specification, scale: float = 1.5) -> Guide:
    shape = len(specification.rows), specification.n_dims
    supports: Any = ("positive" if "rate" in specification.transition.results else "real",)
    chol = np.tile(scale * np.eye(shape[1]), (shape[0], 1, 1))
    return Guide(np.full(shape, 0.2), chol, supports * shape[1], "logistic")


def compare(
    monkeypatch: pytest.MonkeyPatch, *args: Any, tolerance: float = 1e-10, **options: Any
) -> None:
    own = results(*args, **options)
    monkeypatch.setattr(pool, "normal_transitions", lambda *_: None)
    for one, other in zip(own, results(*args, **options), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", others_are_slow(["panel", "times", "positive", "named"], NORMAL))
def test_it_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    specification, parameters = declared(name)
    guide = guide_of(specification)
    points = pt.constant(np.ones((len(specification.rows), 3, specification.n_dims)))
    assert normal_pool.normal_transitions(specification, points) is not None
    compare(monkeypatch, specification, parameters, (0.7, 0.6), guide)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["panel", "named"])
def test_it_is_the_same_by_numba(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    specification, parameters = declared(name)
    guide = guide_of(specification)
    compare(monkeypatch, specification, parameters, (0.7, 0.6), guide, options={"mode": "NUMBA"})


@pytest.mark.parametrize("name", ["plain", "two"])
@pytest.mark.parametrize("s", [0.02, 0.002])
def test_what_underflows_is_made_by_logs(
    name: str, s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Points are some hundred, or some thousand, standard deviations apart.
    specification, parameters = declared(name)
    guide = guide_of(specification, 2.0)
    compare(monkeypatch, specification, parameters, (0.7, s), guide, tolerance=1e-7)


@pytest.mark.filterwarnings("ignore:invalid value")  # there is nothing to draw states from
def test_impossible_parameters_have_no_likelihood() -> None:
    specification, parameters = declared("plain")
    assert results(specification, parameters, (0.7, -0.6), guide_of(specification))[0] == -np.inf


@pytest.mark.parametrize(
    "transition",
    [
        lambda x: pm.StudentT.dist(nu=5, mu=x, sigma=1.0),
        lambda x: pm.Normal.dist(x, pt.exp(x)),  # how far a point is depends on where it comes from
        lambda x: x + 2.0 * pm.Normal.dist(0.0, 1.0),
        lambda x: x + pm.Normal.dist(0.0, 1.0) + pm.Normal.dist(0.0, 1.0),
    ],
)
def test_of_what_is_not_of_this_kind_nothing_is_made(transition: Any) -> None:
    with pm.Model():
        specification = parse(
            "y",
            np.zeros(3),
            initial=pm.Normal.dist(0, 1),
            transition=transition,
            observation=lambda x: pm.Normal.dist(x, 1),
        )
    assert normal_pool.normal_transitions(specification, pt.constant(np.ones((3, 2, 1)))) is None
