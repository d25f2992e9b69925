"""Exact samplers must be exact, and the samples a function of parameters and numbers alone."""

import functools

import numpy as np
import pytest
from scipy import stats

from pymc_apm.errors import CoalescenceError, ModelError
from pymc_apm.estimators import Ising
from pymc_apm.kernels.stream import Reader, fresh_stream, make_scratch
from pymc_apm.stream_generator import StreamGenerator
from tests.estimators import truth
from tests.statistical.checks import Z, assert_exact, assert_not_exact, z_scores_of_means

SMALLEST_P = 2 * stats.norm.sf(Z)
TORUS = truth.torus_edges(3, 4)
SITES = 12
POINTS = [(0.1, 0.0), (0.3, 0.0), (0.4, 0.2), (0.0, 0.3), (-0.2, 0.0), (-0.3, 0.4)]


def p_value(samples, coupling, field, edges=TORUS, n_sites=SITES):
    """Compare samples with the enumerated distribution by two chi-square tests.

    The first is of the configurations, the rare ones pooled until 20 are expected in each cell; the
    second of the pairs of sufficient statistics, which finds a small bias of these. Returns the
    smaller of the two p-values.
    """
    expected = len(samples) * truth.probabilities(edges, n_sites, coupling, field)
    index = [truth.index_of(x) for x in samples]
    x = truth.configurations(n_sites).astype(int)
    statistics = 1000 * (x[:, edges[:, 0]] * x[:, edges[:, 1]]).sum(axis=1) + x.sum(axis=1)
    return min(
        chi_square(index, expected, np.arange(len(x))), chi_square(index, expected, statistics)
    )


def chi_square(index, expected, labels):
    """Test how often each label occurs, with rare ones pooled."""
    _, labels = np.unique(labels, return_inverse=True)
    by_label = np.bincount(labels, weights=expected)
    order = np.argsort(by_label)
    cells = np.empty(len(by_label), dtype=int)
    cells[order] = np.floor(np.cumsum(by_label[order]) / 20.0).astype(int)
    _, cells = np.unique(cells, return_inverse=True)
    counts = np.bincount(cells[labels[index]], minlength=cells.max() + 1)
    wanted = np.bincount(cells, weights=by_label)
    return stats.chisquare(counts, wanted * counts.sum() / wanted.sum()).pvalue


def draw(ising, coupling, field, n_draws=20_000, seed=1):
    rng = np.random.default_rng(seed)
    return [ising.sample(coupling, field, rng) for _ in range(n_draws)]


@pytest.mark.parametrize(("coupling", "field"), POINTS)
def test_summary_states_are_exact(coupling, field):
    ising = Ising(TORUS, method="summary_states")
    assert p_value(draw(ising, coupling, field), coupling, field) > SMALLEST_P


@pytest.mark.parametrize(("coupling", "field"), [p for p in POINTS if p[0] >= 0])
def test_coupling_from_the_past_is_exact(coupling, field):
    ising = Ising(TORUS, method="monotone")
    assert p_value(draw(ising, coupling, field), coupling, field) > SMALLEST_P


@pytest.mark.parametrize("method", ["summary_states", "monotone"])
def test_any_graph_with_a_parameter_for_each_edge_and_site_is_sampled_exactly(method):
    rng = np.random.default_rng(2)
    edges = np.array([[0, 1], [1, 2], [2, 0], [2, 3], [4, 1], [4, 5], [5, 0]])
    coupling, field = rng.normal(scale=0.3, size=7), rng.normal(scale=0.5, size=7)
    coupling = np.abs(coupling) if method == "monotone" else coupling
    samples = draw(Ising(edges, n_sites=7, method=method), coupling, field)
    assert p_value(samples, coupling, field, edges, 7) > SMALLEST_P


class FreshNumbers(Ising):
    """Draws all numbers anew where it starts further back: a mistake that many have made."""

    def sample(self, coupling, field, rng):
        run = self._runner(coupling, field)
        start = 1
        while True:
            spins, n_unknown = run(rng.random((start, self.n_sites)))
            if n_unknown == 0:
                return spins
            start += 1


class ForwardCoupling(Ising):
    """Goes on into the future until nothing is unknown: the other mistake."""

    def sample(self, coupling, field, rng):
        run = self._runner(coupling, field)
        numbers = rng.random((1, self.n_sites))
        while True:
            spins, n_unknown = run(numbers)
            if n_unknown == 0:
                return spins
            numbers = np.concatenate((rng.random((1, self.n_sites)), numbers))


@functools.cache
def z_of_interactions(sampler):
    """Compare the mean of the first sufficient statistic at one point with the exact one."""
    ising = sampler(TORUS)
    x = truth.configurations(SITES).astype(int)
    interactions = (x[:, TORUS[:, 0]] * x[:, TORUS[:, 1]]).sum(axis=1)
    exact = truth.probabilities(TORUS, SITES, 0.4, 0.0) @ interactions
    drawn = np.array([ising.statistics(x)[0] for x in draw(ising, 0.4, 0.0, 80_000, seed=2)])
    return z_scores_of_means([drawn - exact])


@pytest.mark.slow
@pytest.mark.parametrize("broken", [FreshNumbers, ForwardCoupling])
def test_broken_samplers_are_noticed(broken):
    assert_not_exact(z_of_interactions(broken))
    assert_exact(z_of_interactions(Ising))


def test_moments_on_the_torus_of_the_paper():
    ising = Ising.torus(10, 30)
    statistics = np.array([ising.statistics(x) for x in draw(ising, 0.3, 0.0, 10_000)])
    scores = z_scores_of_means([statistics[:, 0] - 211.630, statistics[:, 1] ** 2.0 - 2169.1])
    assert_exact(scores, 4.0)
    assert_not_exact(z_scores_of_means([statistics[:, 0] - 209.0]))


@pytest.mark.parametrize("kind", ["torus", "lattice"])
def test_summary_states_and_coupling_from_the_past_agree_draw_by_draw(kind):
    """The torus takes the fast path, the lattice the general one."""
    shape = (6, 7)
    make = getattr(Ising, kind)
    summary, monotone = make(*shape, method="summary_states"), make(*shape, method="monotone")
    rng = np.random.default_rng(3)
    for seed in range(300):
        coupling, field = rng.uniform(0, 0.4), rng.normal(scale=0.2)
        first = summary.exact_sample(coupling, field, np.random.default_rng(seed))
        second = monotone.exact_sample(coupling, field, np.random.default_rng(seed))
        np.testing.assert_array_equal(first.spins, second.spins)
        assert first.start == second.start and first.n_sweeps == second.n_sweeps


@pytest.mark.parametrize("coupling", [-0.25, 0.1, 0.35])
@pytest.mark.parametrize("field", [0.0, 0.2])
def test_samples_are_those_of_the_algorithm_word_by_word(coupling, field):
    edges = truth.torus_edges(4, 5)
    regular, general = Ising.torus(4, 5), Ising.torus(4, 5)
    general._table_of_neighbours = None
    for seed in range(20):
        u = np.random.default_rng(seed).random((512, 20))
        expected = truth.plain_summary_states(edges, 20, coupling, field, u)
        for ising in (regular, general):
            spins = ising.sample(coupling, field, np.random.default_rng(seed))
            np.testing.assert_array_equal(spins, expected)


def test_general_and_fast_path_agree_with_monotone_coupling():
    fast, general = Ising.torus(4, 5, method="monotone"), Ising.torus(4, 5, method="monotone")
    general._table_of_neighbours = None
    for seed in range(50):
        samples = [
            ising.exact_sample(0.35, 0.05, np.random.default_rng(seed)) for ising in (fast, general)
        ]
        np.testing.assert_array_equal(samples[0].spins, samples[1].spins)
        assert samples[0].start == samples[1].start


def test_a_stream_gives_the_same_sample_as_a_generator_and_keeps_what_was_used():
    ising = Ising.torus(4, 5)
    rng = np.random.default_rng(5)
    for _ in range(20):
        stream = fresh_stream(rng)
        reader = Reader(stream, False, make_scratch())
        first = ising.exact_sample(0.3, 0.0, StreamGenerator(reader, "u"))
        used = reader.used()
        assert used.size == first.start * 20
        again = Reader(np.concatenate((stream, used)), False, make_scratch())
        second = ising.exact_sample(0.3, 0.0, StreamGenerator(again, "u"))
        np.testing.assert_array_equal(first.spins, second.spins)


@pytest.mark.parametrize("coupling", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("name", ["torus", "lattice"])
def test_a_transition_leaves_the_model_invariant(name, coupling):
    """Exact draws stay exact after a sweep; with the parameters of another model they do not."""
    ising = getattr(Ising, name)(3, 4)
    rng = np.random.default_rng(6)
    cells = truth.configurations(SITES)
    weights = truth.probabilities(ising.edges, SITES, coupling, 0.1)
    starts = cells[rng.choice(len(cells), size=20_000, p=weights)]
    u = rng.random((len(starts), SITES))
    moved = [ising.transition(x, coupling, 0.1, n) for x, n in zip(starts, u, strict=True)]
    assert p_value(moved, coupling, 0.1, ising.edges) > SMALLEST_P
    wrong = [ising.transition(x, coupling, 0.2, n) for x, n in zip(starts, u, strict=True)]
    assert p_value(wrong, coupling, 0.1, ising.edges) < SMALLEST_P


def test_a_transition_does_not_change_its_argument():
    ising = Ising.torus(3, 4)
    x = np.ones(SITES, dtype=np.int8)
    ising.transition(x, -0.5, 0.0, np.full(SITES, 0.99))
    assert (x == 1).all()


def test_a_sampler_that_cannot_finish_says_where():
    ising = Ising.torus(10, 10, max_sweeps=64)
    with pytest.raises(CoalescenceError, match=r"coupling = 0\.9, field = 0: .* last 64 sweeps"):
        ising.sample(0.9, 0.0, np.random.default_rng(1))
    with pytest.raises(CoalescenceError, match=r"field = \[0\."):
        ising.sample(0.9, np.zeros(100), np.random.default_rng(1))


def test_the_limit_is_kept_whatever_it_is():
    for limit in (1, 3, 5):
        ising = Ising.torus(10, 10, max_sweeps=limit)
        with pytest.raises(
            CoalescenceError, match=f"last {2 ** int(np.log2(limit))} sweeps|last 3"
        ):
            ising.sample(0.9, 0.0, np.random.default_rng(1))


def test_monotone_coupling_refuses_negative_couplings():
    ising = Ising(TORUS, method="monotone")
    with pytest.raises(ModelError, match='method="summary_states"'):
        ising.sample(-0.1, 0.0, np.random.default_rng(1))
