"""The distributions of the drawing methods of streams, against scipy and numpy."""

import itertools

import numpy as np
import pytest
from scipy import stats

from pymc_apm.kernels.stream import Reader, make_scratch
from pymc_apm.stream_generator import StreamGenerator
from tests.stream_models import stream_generator

METHODS = sorted(name for name in vars(StreamGenerator) if not name.startswith("_"))
N = 4000
SMALLEST_P = 1e-4


@pytest.fixture(params=[True, False], ids=["normal", "uniform"])
def rng(request):
    return stream_generator(request.param)


@pytest.fixture
def numpy_rng():
    return np.random.default_rng(1)


CONTINUOUS = {
    "random": (lambda rng, n: rng.random(n), stats.uniform()),
    "random one by one": (lambda rng, n: [rng.random() for _ in range(n)], stats.uniform()),
    "uniform": (lambda rng, n: rng.uniform(-2.0, 3.0, n), stats.uniform(-2.0, 5.0)),
    "standard_normal": (lambda rng, n: rng.standard_normal(n), stats.norm()),
    "standard_normal one by one": (
        lambda rng, n: [rng.standard_normal() for _ in range(n)],
        stats.norm(),
    ),
    "normal": (lambda rng, n: rng.normal(1.0, 3.0, n), stats.norm(1.0, 3.0)),
    "normal one by one": (
        lambda rng, n: [rng.normal(1.0, 3.0) for _ in range(n)],
        stats.norm(1.0, 3.0),
    ),
    "lognormal": (lambda rng, n: rng.lognormal(1.0, 0.5, n), stats.lognorm(0.5, scale=np.e)),
    "standard_exponential": (lambda rng, n: rng.standard_exponential(n), stats.expon()),
    "exponential": (lambda rng, n: rng.exponential(3.0, n), stats.expon(scale=3.0)),
    "standard_gamma": (lambda rng, n: rng.standard_gamma(0.5, n), stats.gamma(0.5)),
    "gamma": (lambda rng, n: rng.gamma(2.5, 3.0, n), stats.gamma(2.5, scale=3.0)),
    "beta": (lambda rng, n: rng.beta(0.5, 2.0, n), stats.beta(0.5, 2.0)),
}

DISCRETE = {
    "integers": (lambda rng, n: rng.integers(7, size=n), np.full(7, 1 / 7)),
    "integers from low": (lambda rng, n: rng.integers(-3, 2, n) + 3, np.full(5, 0.2)),
    "integers to endpoint": (
        lambda rng, n: rng.integers(3, size=n, endpoint=True),
        np.full(4, 0.25),
    ),
    "integers one by one": (lambda rng, n: [rng.integers(4) for _ in range(n)], np.full(4, 0.25)),
    "poisson": (lambda rng, n: rng.poisson(2.0, n), stats.poisson(2.0).pmf(np.arange(40))),
    "binomial": (lambda rng, n: rng.binomial(6, 0.3, n), stats.binom(6, 0.3).pmf(np.arange(7))),
    "choice": (lambda rng, n: rng.choice(5, n), np.full(5, 0.2)),
    "choice one by one": (lambda rng, n: [rng.choice(3) for _ in range(n)], np.full(3, 1 / 3)),
    "choice with p": (lambda rng, n: rng.choice(4, n, p=[0.1, 0, 0.6, 0.3]), [0.1, 0, 0.6, 0.3]),
    "choice with p one by one": (
        lambda rng, n: [rng.choice([0, 1, 2], p=[0.2, 0.5, 0.3]) for _ in range(n)],
        [0.2, 0.5, 0.3],
    ),
}

PAIRS = list(itertools.permutations(range(3), 2))
SUCCESSIVE = [0.5, 0.3, 0.2]

ARRANGEMENTS = {
    "choice without replacement": (
        lambda rng: rng.choice(3, 2, replace=False),
        dict.fromkeys(PAIRS, 1 / 6),
    ),
    "choice without replacement, with p": (
        lambda rng: rng.choice(3, 2, replace=False, p=SUCCESSIVE),
        {(i, j): SUCCESSIVE[i] * SUCCESSIVE[j] / (1.0 - SUCCESSIVE[i]) for i, j in PAIRS},
    ),
    "permutation": (
        lambda rng: rng.permutation(4),
        dict.fromkeys(itertools.permutations(range(4)), 1 / 24),
    ),
    "shuffle": (
        lambda rng: shuffled(rng, np.arange(4)),
        dict.fromkeys(itertools.permutations(range(4)), 1 / 24),
    ),
    "shuffle of a list": (
        lambda rng: shuffled(rng, [0, 1, 2, 3]),
        dict.fromkeys(itertools.permutations(range(4)), 1 / 24),
    ),
}


def shuffled(rng, x):
    assert rng.shuffle(x) is None
    return x


def p_value_of_counts(counts, probabilities):
    """Pearson's test, with cells of small expectation put together."""
    counts, expected = np.asarray(counts, float), np.asarray(probabilities) * np.sum(counts)
    assert counts[expected == 0.0].sum() == 0.0
    small = expected < 5.0
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    positive = expected > 1e-9
    return stats.chisquare(counts[positive], expected[positive], sum_check=False).pvalue


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_draws_have_their_distribution(rng, name):
    draw, distribution = CONTINUOUS[name]
    draws = np.asarray(draw(rng, N))
    assert stats.kstest(draws, distribution.cdf).pvalue > SMALLEST_P
    assert abs(stats.spearmanr(draws[1:], draws[:-1]).statistic) < 5.0 / np.sqrt(N)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_draws_have_their_distribution(rng, name):
    draw, probabilities = DISCRETE[name]
    counts = np.bincount(draw(rng, N), minlength=len(probabilities))
    assert p_value_of_counts(counts, probabilities) > SMALLEST_P


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_arrangements_have_their_distribution(rng, name):
    draw, probabilities = ARRANGEMENTS[name]
    counts = dict.fromkeys(probabilities, 0)
    for _ in range(N):
        counts[tuple(int(i) for i in draw(rng))] += 1
    assert p_value_of_counts(list(counts.values()), list(probabilities.values())) > SMALLEST_P


def test_every_method_is_tested_against_its_distribution():
    tested = {name.split()[0] for name in [*CONTINUOUS, *DISCRETE, *ARRANGEMENTS]}
    assert tested == set(METHODS)


def test_continuous_draws_use_one_base_number_each_and_move_with_it(rng):
    """Slice sampling needs draws that change little if the stream does."""
    reader = rng._reader
    for name in ("random", "standard_normal", "exponential", "lognormal"):
        before = reader.used().size
        getattr(rng, name)(size=5)
        assert reader.used().size == before + 5
    is_normal = reader.is_normal
    base = np.array([-1.2, -0.3, 0.4, 1.1]) if is_normal else np.array([0.1, 0.3, 0.6, 0.9])
    for name, arguments in [("normal", (2.0, 3.0)), ("gamma", (0.7, 2.0)), ("beta", (2.0, 3.0))]:
        draws = [
            getattr(
                StreamGenerator(
                    Reader(np.append(np.zeros(4), base + shift), is_normal, make_scratch()), "u"
                ),
                name,
            )(*arguments, size=4)
            for shift in (0.0, 1e-6)
        ]
        assert np.all(np.diff(draws[0]) > 0.0)
        assert np.all((draws[1] > draws[0]) & (draws[1] - draws[0] < 1e-4))


# Code written for a generator


def queue_with_rejection(rng):
    """Draw with nearly every method, in loops whose length depends on the draws."""
    total = 0.0
    for customer in rng.permutation(rng.integers(2, 6)):
        service = rng.gamma(2.0, 0.5)
        while service > rng.exponential(4.0):
            service = rng.gamma(2.0, 0.5)
        total += service * rng.choice([0.5, 1.0, 2.0], p=[0.3, 0.4, 0.3]) + 0.1 * customer
        order = np.arange(3)
        rng.shuffle(order)
        total += rng.uniform(-0.1, 0.1) + 0.1 * rng.normal(order[0], size=2).sum()
    return total + rng.poisson(1.5) + rng.binomial(4, 0.3)


def test_code_written_for_a_generator_gives_the_same_distribution_with_a_stream(rng, numpy_rng):
    ours = [queue_with_rejection(rng) for _ in range(1500)]
    numpys = [queue_with_rejection(numpy_rng) for _ in range(3000)]
    assert stats.ks_2samp(ours, numpys).pvalue > SMALLEST_P


def test_a_stream_gives_the_same_draws_each_time_it_is_read():
    first, second, other = (
        stream_generator(seed=1),
        stream_generator(seed=1),
        stream_generator(seed=2),
    )
    draws = [queue_with_rejection(rng) for rng in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]
    assert first._reader.used().size == second._reader.used().size
