"""The particle filter is unbiased with few particles, whatever its options, and in order."""

import math

import numba
import numpy as np
import pytest
from scipy.special import ndtr

from pymc_apm.estimators.states.filter import (
    Bounds,
    ParticleModel,
    ancestors_of,
    make_filter,
    make_piece,
    nothing_before,
    weigh,
)
from pymc_apm.estimators.states.sorting import (
    hilbert_keys,
    order_by_key,
    order_by_value,
    order_in_boxes,
)
from tests.state_space.linear import (
    AR,
    SUM,
    VAR,
    Args,
    kalman,
    kalman_2,
    log_density_of_sums,
)

Y = np.array([0.5, -1.2, 1.9, 0.3, 0.8])
Z_BOUND = 4.5
"""Two-sided: all checks together fail by chance less than once in 5000 times."""

REPETITIONS = 40_000
"""A bias of 4% is noticed at N = 2, of 2% at N = 4."""


def compiled(model):
    run = numba.njit(make_filter(model, numba.njit))

    @numba.njit
    def repeat(u, data, args):
        logs = np.empty(len(u))
        for i in range(len(u)):
            logs[i] = run(u[i], data, args, False).log_estimate
        return logs

    return repeat


@pytest.fixture(scope="module")
def ar():
    return compiled(AR)


@pytest.fixture(scope="module")
def var():
    return compiled(VAR)


@pytest.fixture(scope="module")
def sums():
    return compiled(SUM)


def in_python(model):
    """Return a model whose functions are not compiled."""
    functions = model._asdict().items()
    return model._replace(**{k: f.py_func for k, f in functions if hasattr(f, "py_func")})


def z_score(log_estimates, log_truth):
    """Return by how many standard errors the mean of estimates is off."""
    ratios = np.exp(log_estimates - log_truth)
    return (ratios.mean() - 1.0) / (ratios.std() / math.sqrt(ratios.size))


def numbers(n, rows=2, seed=20160509, n_times=5):
    return np.random.default_rng(seed).standard_normal((REPETITIONS, n_times, rows, n))


OPTIONS = {
    "bootstrap": Args(),
    "guided": Args(guide=0.5),
    "auxiliary": Args(eta=0.7),
    "guided and auxiliary": Args(guide=0.4, eta=0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_unbiased(ar, name, is_missing, n):
    args, y = OPTIONS[name], Y.copy()
    if is_missing:
        y[[0, 3]] = np.nan
    assert abs(z_score(ar(numbers(n), y[:, None], args), kalman(y, args))) < Z_BOUND


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_it_is_unbiased_whatever_the_key(var, n):
    u = numbers(n, rows=3)
    for key in (0.0, 1.0, 2.0):  # Hilbert, a coordinate, one with many ties
        assert abs(z_score(var(u, Y[:, None], (key,)), kalman_2(Y))) < Z_BOUND


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_it_is_unbiased_with_substeps_and_sums_that_begin_anew(sums, n):
    logs = sums(numbers(n, rows=4), Y[:, None], (1.0,))
    assert abs(z_score(logs, log_density_of_sums(Y))) < Z_BOUND


def malik_pitt(u, y, args):
    """Return log-estimates with Malik and Pitt's interpolation, which is biased."""
    n = u.shape[-1]
    total = np.zeros(len(u))
    x = args.s / math.sqrt(1.0 - args.a**2) * u[:, 0, 1]
    for t in range(len(y)):
        x = np.sort(x if t == 0 else args.a * x + args.s * u[:, t, 1], axis=1)
        weights = np.exp(-0.5 * ((y[t] - x) / args.r) ** 2)
        total += np.log(weights.mean(1) / (args.r * math.sqrt(2.0 * math.pi)))
        weights /= weights.sum(1, keepdims=True)
        middles = np.cumsum(weights, axis=1) - 0.5 * weights
        levels = (np.arange(n) + ndtr(u[:, t, 0])) / n
        x = np.array([np.interp(*row) for row in zip(levels, middles, x, strict=True)])
    return total


def test_interpolation_is_biased_and_is_noticed():
    args = Args()
    assert abs(z_score(malik_pitt(numbers(4), Y, args), kalman(Y, args))) > 2.0 * Z_BOUND


@pytest.mark.slow
def test_python_and_numba_agree(ar):
    args, u = Args(guide=0.4, eta=0.5), numbers(7)[:3]
    run = make_filter(in_python(AR))
    expected = [run(one, Y[:, None], args, False).log_estimate for one in u]
    np.testing.assert_allclose(ar(u, Y[:, None], args), expected, rtol=1e-13)


def test_it_stops_where_the_rest_cannot_reach_the_limit():
    u = np.random.default_rng(1).standard_normal((5, 2, 7))
    args, data = Args(guide=0.4, eta=0.0), Y[:, None]
    run, piece = make_filter(in_python(AR)), make_piece(in_python(AR))
    whole = run(u, data, args, True)
    sums, peak = np.cumsum(whole.log_means), whole.log_weights.max(axis=1) + 1e-9
    later = np.append(np.cumsum(peak[:0:-1])[::-1], 0.0)

    def stopped(limit, each=peak, is_strict=False):
        bounds = Bounds(each, later, limit, is_strict)
        return piece(u, data, args, False, nothing_before(u.shape[2]), bounds)[0]

    for t in range(len(Y)):
        limit = float(sums[t] + later[t]) + 1e-6
        made = stopped(limit)
        assert made.log_estimate == -math.inf and made.n_times == t + 1 and not made.is_above
    for limit in (-math.inf, float(sums[-1]) - 1e-9, math.nan):
        made = stopped(limit)
        assert made.log_estimate == whole.log_estimate and made.n_times == len(Y)
    # A bound between the mean and the largest weight is found where each weight is compared.
    between = np.where(np.arange(len(Y)) == 2, whole.log_means[2] + 1e-6, peak)
    assert between[2] < peak[2] and not stopped(-math.inf, between).is_above
    made = stopped(-math.inf, between, True)
    assert made.is_above and made.n_times == 3
    assert made.log_estimate == whole.log_weights[2].max()
    made = stopped(-math.inf, np.where(np.arange(len(Y)) == 2, whole.log_means[2] - 1e-6, peak))
    assert made.is_above and made.log_estimate == whole.log_means[2]


def test_it_is_nearly_continuous_because_it_is_sorted():
    """Particles that cross each other change nothing, which in a filter without order they do."""

    def changes(order):
        run = make_filter(in_python(AR)._replace(order=order))
        u = np.random.default_rng(1).standard_normal((10, 2, 40))
        y = np.random.default_rng(2).standard_normal((10, 1))
        grid = [run(u, y, Args(a=a), False).log_estimate for a in np.linspace(0.7, 0.72, 201)]
        return np.abs(np.diff(grid)).max()

    assert changes(order_by_value) < 0.2 * changes(lambda x, keys: np.arange(keys.size))


def test_an_observation_that_no_particle_explains():
    def log_weights(before, x, row, args):
        return np.full(x.shape[1], row[0])

    model = ParticleModel(
        lambda z, row, args: z[:1],
        lambda x, z, row, args: x + z[:1],
        lambda x, row, args: log_weights(x, x, row, args),
        log_weights,
    )
    u = np.zeros((3, 2, 4))
    for value in (-math.inf, math.nan, math.inf):
        data = np.array([[0.0], [value], [0.0]])
        np.testing.assert_equal(make_filter(model)(u, data, (), False).log_estimate, value)


def test_one_weight_that_is_not_a_number_spoils_the_estimate():
    for weights in ([0.0, math.nan], [math.nan, 0.0], [-math.inf, math.nan]):
        assert math.isnan(weigh(np.array(weights))[1])


def test_long_sums_lose_nothing():
    def log_weights(before, x, row, args):
        return np.full(x.shape[1], row[0])

    model = ParticleModel(
        lambda z, row, args: z[:1],
        lambda x, z, row, args: x,
        lambda x, row, args: log_weights(x, x, row, args),
        log_weights,
    )
    data = np.random.default_rng(3).standard_normal((2000, 1))
    data[::2] *= 1e12
    total = make_filter(model)(np.zeros((2000, 2, 1)), data, (), False).log_estimate
    assert total == pytest.approx(math.fsum(data[:, 0]), rel=1e-15)


def test_each_slot_takes_the_particle_at_its_level():
    weights = np.array([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    rng = np.random.default_rng(5)
    v = rng.standard_normal((20_000, 6))
    chosen = np.array([ancestors_of(weights, row) for row in v])
    counts = np.array([np.bincount(row, minlength=6) for row in chosen]) / 6.0
    np.testing.assert_allclose(counts.mean(0), weights / 8.0, atol=0.005)
    assert (np.diff(chosen, axis=1) >= 0).all()
    assert not np.isin(chosen, [0, 3, 5]).any()
    extreme = ancestors_of(weights, np.full(6, 40.0))
    assert not np.isin(extreme, [0, 3, 5]).any()


def test_equal_keys_are_sorted_by_state_whatever_the_numbers_of_particles():
    rng = np.random.default_rng(6)
    x = rng.integers(0, 3, size=(3, 40)).astype(float)
    keys = x[1]
    shuffled = rng.permutation(40)
    first, second = x[:, order_by_key(x, keys)], x[:, shuffled]
    second = second[:, order_by_key(second, keys[shuffled])]
    np.testing.assert_array_equal(first, second)
    expected = x[:, np.lexsort((x[2], x[1], x[0], keys))]
    np.testing.assert_array_equal(first, expected)


SORTED_ALIKE = {
    "normal": lambda rng: rng.normal(size=50),
    "heavy tails": lambda rng: rng.standard_cauchy(200),
    "ties": lambda rng: rng.integers(4, size=60).astype(float),
    "one value": lambda rng: np.ones(5),
    "one number": lambda rng: np.zeros(1),
    "huge": lambda rng: 1e308 * rng.uniform(-1, 1, 20),
    "infinite": lambda rng: np.append(rng.normal(size=9), [np.inf, -np.inf]),
    "no number": lambda rng: np.append(rng.normal(size=9), np.nan),
}


@pytest.mark.parametrize("name", SORTED_ALIKE)
def test_order_in_boxes_is_that_by_merging(name: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        keys = SORTED_ALIKE[name](rng)
        with np.errstate(over="ignore"):
            found = order_in_boxes(keys[None], keys)
        np.testing.assert_array_equal(found, order_by_value(keys[None], keys))


@pytest.mark.parametrize("dim", [2, 3])
def test_neighbours_on_the_curve_are_neighbours_in_space(dim):
    """On a full grid each step along a Hilbert curve goes to an adjacent cell."""
    side = 8
    grid = np.stack(np.meshgrid(*[np.arange(side)] * dim, indexing="ij")).reshape(dim, -1)
    share = (grid + 0.5) / side
    # The inverse of what the key does to coordinates, apart from standardising.
    x = np.log(share / (1.0 - share)) / 1.702
    x /= np.sqrt(np.mean(x**2, axis=1, keepdims=True))
    order = np.argsort(hilbert_keys(x, None, None), kind="stable")
    steps = np.abs(np.diff(grid[:, order], axis=1)).sum(0)
    assert np.mean(steps) < 1.6 and np.median(steps) == 1
