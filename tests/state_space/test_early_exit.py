"""A particle filter that stops where it cannot reach the slice: draws stay as they are."""

from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.model.fgraph import clone_model
from scipy import stats

import pymc_apm as apm
from pymc_apm._compat import dataset_of
from pymc_apm.density.target import Target
from pymc_apm.errors import EstimatorError, ModelError
from pymc_apm.estimators.states.bounds import ROUNDING, bounds_of_rows
from pymc_apm.estimators.states.particle_op import ParticleFilter
from pymc_apm.estimators.states.specification import parse
from pymc_apm.types import reaching
from tests.marks import others_are_slow
from tests.models import run
from tests.modes import interpreted
from tests.state_space.particle_models import sir

COUNTS = np.array([6.0, np.nan, 9.0, 14.0, 3.0, 8.0, 7.0, 21.0])


@pytest.fixture(autouse=True)
def in_python() -> Any:
    with interpreted():
        yield


def declare(name: str, y: Any, a: Any, s: Any, *, points: int = 4, **options: Any) -> Any:
    return apm.estimators.state_space(
        name,
        y,
        initial=pm.Normal.dist(0.0, s),
        transition=lambda x: pm.Normal.dist(a * x, s),
        **{"observation": lambda x: pm.Poisson.dist(pt.exp(2.0 + x))} | options,
        method="particles",
        points=points,
    )


def counts(y: Any = COUNTS, **options: Any) -> pm.Model:
    """Return counts with a rate that moves, for which u is updated by conditional SMC."""
    with pm.Model() as model:
        a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)
        declare("y", y, a, s, **options)
    return model


def irregular(**options: Any) -> pm.Model:
    times = np.cumsum([1.0, 0.5, 2.0, 1.0, 1.0, 0.1, 3.0, 1.0])
    return counts(times=times, **options)


def panel(**options: Any) -> pm.Model:
    return counts(series=np.array(["b", "a", "a", "b", "a", "b", "b", "c"]), **options)


def with_exact_terms(**options: Any) -> pm.Model:
    with counts(**options) as model:
        b = pm.Normal("b", model["a"], 1.0)
        pm.Normal("seen", b + model["s"], 0.5, observed=np.array([1.0, 0.7]))
        pm.Potential("constraint", pt.switch(b < 1.5, 3.0 - b, -np.inf))
    return model


def two_potentials(**options: Any) -> pm.Model:
    """Return a model with another estimate that may stop, and one that cannot."""
    with counts(**options) as model:
        declare("z", COUNTS[::-1].copy(), model["a"], 0.5, **options)
        v = apm.StandardNormal("v", shape=3)
        apm.Potential("other", -0.5 * pt.sum((v - model["s"]) ** 2))
    return model


def segmented(**options: Any) -> pm.Model:
    return sir(np.array([np.nan, 2.0, 1.0, np.nan, 3.0, 1.0, 0.0]), segments=3, **options)


MODELS = {
    "counts": counts,
    "irregular": irregular,
    "panel": panel,
    "exact": with_exact_terms,
    "two": two_potentials,
    "simulator": sir,
    "segments": segmented,
}


@pytest.fixture
def rows(monkeypatch: Any) -> list[int]:
    """Count the rows that filters with bounds compute."""
    seen: list[int] = []
    original = ParticleFilter.run_rows

    def run_rows(*arguments: Any) -> Any:
        made = original(*arguments)
        seen.append(made[0].n_times)
        return made

    monkeypatch.setattr(ParticleFilter, "run_rows", run_rows)
    return seen


def sampled(model: pm.Model, step: Any, chains: int = 1) -> dict[str, np.ndarray]:
    """Return all draws and statistics of a short run."""
    quiet = {"progressbar": False, "compute_convergence_checks": False}
    with model:
        idata = pm.sample(25, tune=15, chains=chains, cores=1, random_seed=3, step=step(), **quiet)
    groups = ("posterior", "sample_stats")
    return {
        name: values.values for group in groups for name, values in dataset_of(idata, group).items()
    }


STEPS = {
    "default": apm.APMSlice,
    "slices of u": lambda: apm.APMSlice(u_update="slice", directions="coordinate"),
    "all of u": lambda: apm.APMSlice(u_update="slice", factorwise=False, directions="random"),
    "stepping out": lambda: apm.APMSlice(u_update="slice", step_out=True, directions="random"),
    "Metropolis": lambda: apm.APMMetropolis(u_update="independence"),
}


QUICK = [("exact", "default")]
CASES = [(make, "default") for make in MODELS]
CASES += [("panel", step) for step in STEPS if step != "default"]
CASES += [("two", "slices of u"), ("segments", "stepping out"), ("counts", "Metropolis")]


@pytest.mark.parametrize("case", others_are_slow(QUICK, CASES))
def test_draws_and_statistics_are_the_same_with_fewer_rows(
    case: tuple[str, str], rows: list[int]
) -> None:
    make, step = case
    plain = sampled(MODELS[make](early_exit=False), STEPS[step])
    rows.clear()
    checked = sampled(MODELS[make](early_exit="check"), STEPS[step])
    n_rows, n_runs = sum(rows), len(rows)
    if make == "counts":
        assert n_rows == len(COUNTS) * n_runs
    rows.clear()
    stopped = sampled(MODELS[make](), STEPS[step])
    assert sum(rows) < n_rows
    for other in (checked, stopped):
        assert other.keys() == plain.keys()
        for name in plain:
            np.testing.assert_array_equal(other[name], plain[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.in_python
def test_several_chains_of_one_step() -> None:
    made = [sampled(panel(early_exit=early), apm.APMSlice, 2) for early in (True, False)]
    for name in made[0]:
        np.testing.assert_array_equal(made[0][name], made[1][name], err_msg=name)


@pytest.mark.slow
@pytest.mark.compiler
def test_draws_are_the_same_where_the_filter_is_compiled(rows: list[int]) -> None:
    made = [sampled(counts(early_exit=early), apm.APMSlice) for early in (True, False)]
    assert min(rows) < len(COUNTS)
    for name in made[0]:
        np.testing.assert_array_equal(made[0][name], made[1][name], err_msg=name)


def test_a_chain_that_is_restored_goes_on_in_the_same_way() -> None:
    ends = []
    for early in (True, False):
        with panel(early_exit=early) as model, apm.clamped(model):
            step = apm.APMSlice()
            first = run(step, model.initial_point(), 5, seed=1, n_tune=5)
            state, u = step.sampling_state, model["y_u"].get_value()
            on = [step.step(first.point)[0] for _ in range(5)][-1]
            other = apm.APMSlice()
            model["y_u"].set_value(u)
            other.sampling_state = state
            again = [other.step(first.point)[0] for _ in range(5)][-1]
        assert on == again
        ends.append(on)
    assert ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.in_python
def test_a_bound_that_is_none_would_change_draws(monkeypatch: Any) -> None:
    """The test above finds a filter that stops too early."""
    original = ParticleFilter.split

    def too_low(op: Any, others: Any) -> Any:
        args, bounds = original(op, others)
        return args, bounds._replace(later=bounds.later - 0.5)

    expected = sampled(counts(), apm.APMSlice)
    monkeypatch.setattr(ParticleFilter, "split", too_low)
    stopped = sampled(counts(), apm.APMSlice)
    assert not np.array_equal(expected["s"], stopped["s"])


# The density


def start(model: pm.Model) -> tuple[Target, Any]:
    target = Target(model, model.value_vars, model.initial_point())
    rng = np.random.default_rng(8)
    inputs = {u.name: u.tag.apm_randomness.draw(rng) for u in target.randomness}
    inputs[":theta"] = rng.uniform(-0.5, 0.5, target.layout.size)
    return target, target.start(inputs | {":rest": np.zeros(0)})


@pytest.mark.parametrize("make", MODELS)
def test_what_is_above_the_height_is_what_it_is(make: str, rows: list[int]) -> None:
    target, evaluation = start(MODELS[make]())
    assert len(target.limits) == 1 + (make == "two")
    assert ("y_u" in target.factors) == (make == "panel")
    rng = np.random.default_rng(9)
    for name in target.inputs:
        if name == ":rest":
            continue
        density = target.along(name)
        values = []
        for _ in range(5):
            position = target.value(evaluation, name) + 0.1 * rng.standard_normal(
                target.value(evaluation, name).size
            )
            value, whole = density(position, evaluation)
            assert np.isfinite(value)
            for below in (1e-9, 0.1, 1.0, 100.0):
                again, new = density(position, reaching(evaluation, value - below))
                assert again == value and new[1:] == whole[1:]
                for one, other in zip(new.values, whole.values, strict=True):
                    np.testing.assert_array_equal(one, other)
            for above in (0.01, 1.0, 30.0):
                density(target.value(evaluation, name), evaluation)  # a filter remembers one run
                again, new = density(position, reaching(evaluation, value + above))
                assert again in (value, -np.inf) and new.log_height == -np.inf
                values.append(again)
        assert name == "v" or -np.inf in values  # `other` is no estimate that stops


def test_zero_elsewhere_and_what_is_no_number() -> None:
    """Another estimate of zero, or one that is no number, is no reason for another value."""
    with counts() as model:
        v = apm.StandardNormal("v", shape=())
        apm.Potential("other", pt.log(v))
    target, evaluation = start(model)
    theta = target.value(evaluation, ":theta")
    for v, n_nan in ((0.0, 0), (-1.0, 1)):
        _, there = target.along("v")(np.array([v]), evaluation)
        value, new = target.along(":theta")(theta + 0.1, reaching(there, 0.0))
        assert value == -np.inf and new.cost.n_nan == n_nan


def test_it_survives_copies_and_is_off_where_the_estimate_is_used_twice() -> None:
    model = counts()
    for copy in (clone_model(model), cloudpickle.loads(cloudpickle.dumps(model)), pm.do(model, {})):
        assert len(start(copy)[0].limits) == 1
    with model:
        pm.Potential("tempered", -0.5 * model["y"])
    assert not start(model)[0].limits
    assert not start(counts(early_exit=False))[0].limits
    assert not start(counts(early_exit="check"))[0].limits


def test_an_estimate_in_the_stage_of_another_term_does_not_stop() -> None:
    """That term would not be known when the limit is set."""
    with counts() as model:
        pm.Potential("also of u", 0.01 * model["s"] * model["a"] * pt.sum(model["y_u"]))
    target, _ = start(model)
    assert not target.limits
    for name in (":theta", "y_u"):
        value, _ = target.along(name)(*[f(target, name) for f in (_moved, _here)])
        assert np.isfinite(value)


def _here(target: Target, name: str) -> Any:
    rng = np.random.default_rng(8)
    inputs = {u.name: u.tag.apm_randomness.draw(rng) for u in target.randomness}
    theta = np.zeros(target.layout.size)
    evaluation = target.start(inputs | {":theta": theta, ":rest": np.zeros(0)})
    return reaching(evaluation, 1e3)


def _moved(target: Target, name: str) -> Any:
    return target.value(_here(target, name), name) + 0.1


# Bounds


def bounds_for(observation: Any, data: Any, **options: Any) -> Any:
    """Return the bounds of rows, less what is allowed for rounding; None if there are none."""
    bound = options.pop("bound", None)
    with pm.Model():
        specification = parse(
            "y",
            data,
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: pm.Normal.dist(x, 1),
            observation=observation,
            **options,
        )
    bounds = bounds_of_rows(specification, bound)
    return None if bounds is None else bounds.eval()


N = np.array([0, 3, 5, 50, 50, 9])
Y = np.array([0.0, 0.0, 5.0, 20.0, 1.0, np.nan])


def neg_binomial(y: Any, mean: Any, alpha: float) -> Any:
    return stats.nbinom.logpmf(y, alpha, alpha / (alpha + mean))


@pytest.mark.parametrize(
    ("observation", "log_pmf", "largest"),
    [
        (
            lambda x: pm.Poisson.dist(pt.exp(x)),
            lambda y, x: stats.poisson.logpmf(y, np.exp(x)),
            lambda y: stats.poisson.logpmf(y, y),
        ),
        (
            lambda x: pm.NegativeBinomial.dist(pt.exp(x), 3.0),
            lambda y, x: neg_binomial(y, np.exp(x), 3.0),
            lambda y: neg_binomial(y, y, 3.0),
        ),
        (
            lambda x: pm.NegativeBinomial.dist(pt.exp(x), pt.exp(x)),
            lambda y, x: neg_binomial(y, np.exp(x), np.exp(x)),
            lambda y: stats.poisson.logpmf(y, y),
        ),
        (
            lambda x, n: pm.Binomial.dist(n, pm.math.invlogit(x)),
            lambda y, x: stats.binom.logpmf(y, N[:-1], 1 / (1 + np.exp(-x))),
            lambda y: stats.binom.logpmf(y, N[:-1], y / np.maximum(N[:-1], 1)),
        ),
        (
            lambda x, n: pm.BetaBinomial.dist(pt.exp(x), 2.0, n),
            lambda y, x: stats.betabinom.logpmf(y, N[:-1], np.exp(x), 2.0),
            lambda y: stats.binom.logpmf(y, N[:-1], y / np.maximum(N[:-1], 1)),
        ),
        (
            lambda x: pm.Binomial.dist(50 + pt.cast(x**2, "int64"), 0.3),
            lambda y, x: stats.binom.logpmf(y, 50 + int(x**2), 0.3),
            lambda y: np.zeros(y.size),
        ),
        (
            lambda x: pm.ZeroInflatedPoisson.dist(0.3, pt.exp(x)),
            lambda y, x: np.log(0.3 * stats.poisson.pmf(y, np.exp(x)) + 0.7 * (y == 0)),
            lambda y: np.zeros(y.size),
        ),
    ],
    ids=["Poisson", "negative binomial", "of states", "binomial", "beta-binomial", "n", "mixture"],
)
def test_bounds_are_the_largest_densities(observation: Any, log_pmf: Any, largest: Any) -> None:
    found = bounds_for(observation, Y, covariates={"n": N})
    y = Y[:-1]
    allowed = ROUNDING[0] + ROUNDING[1] * y
    np.testing.assert_allclose(found[:-1], largest(y) + allowed, atol=1e-12, rtol=1e-12)
    assert found[-1] == 0.0
    with np.errstate(divide="ignore"):
        for x in np.linspace(-9.0, 9.0, 181):
            assert (log_pmf(y, x) <= found[:-1]).all()


def test_bounds_of_vectors_and_of_several_data() -> None:
    vectors = np.array([[1.0, np.nan], [2.0, 7.0], [np.nan, np.nan]])
    found = bounds_for(lambda x: pm.Poisson.dist(pt.exp(x), shape=2), vectors)
    peaks = stats.poisson.logpmf(vectors, vectors)
    np.testing.assert_allclose(found, np.nansum(peaks, axis=1), atol=3e-5)
    both = {"n": vectors[:, 1], "k": np.array([0.0, 1.0, 1.0])}
    found = bounds_for(
        lambda x: {"n": pm.Poisson.dist(pt.exp(x)), "k": pm.Bernoulli.dist(logit_p=x)}, both
    )
    np.testing.assert_allclose(found, [0.0, peaks[1, 1], 0.0], atol=3e-5)


def unnormalised(value: Any, mean: Any) -> Any:
    return value * pt.log(mean) - mean  # without the factorial: it may be positive


@pytest.mark.parametrize(
    "observation",
    [
        lambda x: pm.Normal.dist(x, 1.0),
        lambda x, y: y * x - pt.exp(x),
        lambda x: pm.CustomDist.dist(pt.exp(x), logp=unnormalised, dtype="int64"),
    ],
    ids=["continuous", "log density", "by the user"],
)
def test_nothing_is_known_of_other_densities(observation: Any) -> None:
    assert bounds_for(observation, Y) is None
    with pytest.raises(ModelError, match="nothing to check"):
        counts(Y, observation=observation, early_exit="check")


def test_bounds_that_a_user_gives() -> None:
    options: dict[str, Any] = {"series": np.array([1, 0, 1, 0, 0, 1])}
    order = [1, 3, 4, 0, 2, 5]

    def bounds(bound: Any) -> Any:
        return bounds_for(lambda x: pm.Normal.dist(x, 1.0), Y, bound=bound, **options)

    seen = np.where(np.isnan(Y), 0.0, 1.0)[order]
    np.testing.assert_allclose(bounds(-0.9), -0.9 * seen, atol=3e-5)
    each = np.arange(6.0)
    np.testing.assert_allclose(bounds(each), each[order] * seen, atol=3e-5)
    computed = bounds(lambda y, t: y + 100.0 * t)
    t = np.array([0, 1, 2, 0, 1, 2])
    np.testing.assert_allclose(computed, (np.nan_to_num(Y)[order] + 100.0 * t) * seen, atol=3e-5)
    for wrong, match in (
        (np.zeros(5), "6 rows"),
        ("high", "finite numbers"),
        (lambda y: pm.Normal.dist(y, 1.0), "without a draw"),
        (lambda x: x, "asks for x"),
    ):
        with pytest.raises(ModelError, match=match):
            bounds(wrong)


def test_a_bound_of_a_continuous_density(rows: list[int]) -> None:
    """It may depend on parameters; draws are the same."""

    def noisy(has_bound: bool) -> pm.Model:
        with pm.Model() as model:
            a, s = pm.Uniform("a", -1, 1), pm.HalfNormal("s", 1)
            noise = pm.HalfNormal("noise", 1)
            bound = {"bound": lambda: -pt.log(noise) - peak} if has_bound else {}
            declare("y", Y, a, s, observation=lambda x: pm.Normal.dist(x, noise), **bound)
        return model

    peak = 0.5 * np.log(2.0 * np.pi)
    plain = sampled(noisy(False), apm.APMSlice)
    assert not rows
    stopped = sampled(noisy(True), apm.APMSlice)
    assert min(rows) < len(Y)
    for name in plain:
        np.testing.assert_array_equal(stopped[name], plain[name], err_msg=name)


@pytest.mark.parametrize("early", ["check", True])
@pytest.mark.parametrize("options", [{}, {"segments": 3}], ids=["whole", "segments"])
def test_a_bound_that_is_none_is_an_error_that_names_the_row(early: Any, options: Any) -> None:
    bound = np.where(np.arange(8) == 4, -30.0, 0.0)
    with (
        counts(bound=bound, early_exit=early, **options),
        pytest.raises(EstimatorError, match=r"row 4 of the data .* above its bound, -30"),
    ):
        pm.sample(5, tune=5, chains=1, progressbar=False, random_seed=1)


def test_the_row_is_that_of_the_user() -> None:
    bound = np.where(np.arange(8) == 5, -30.0, 0.0)
    with pytest.raises(EstimatorError, match="row 5 of the data"):
        start(panel(bound=bound, early_exit="check"))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ModelError, match="proposal= or lookahead="):
        counts(bound=0.0, lookahead=lambda x, y: x * y)
    with pytest.raises(ModelError, match="early_exit is False"):
        counts(bound=0.0, early_exit=False)
    with pytest.raises(ModelError, match="nothing to check"):
        counts(early_exit="check", lookahead=lambda x, y: x * y)
    with pytest.raises(ModelError, match="early_exit"):
        counts(early_exit="always")
    assert not start(counts(lookahead=lambda x, y: 0.1 * x * y))[0].limits
    with (
        pytest.raises(ModelError, match=r"bound of .* has no meaning"),
        pm.Model(),
    ):
        apm.estimators.state_space(
            "y",
            COUNTS,
            initial=pm.Normal.dist(0, 1),
            transition=lambda x: pm.Normal.dist(x, 1),
            observation=lambda x: pm.Poisson.dist(pt.exp(x)),
            method="pool",
            bound=0.0,
        )
