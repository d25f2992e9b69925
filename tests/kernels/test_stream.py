"""Streams: which numbers they are made of, at rest and after a move."""

import pickle

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from pymc_apm.kernels import State
from pymc_apm.kernels.elliptical import ellipse
from pymc_apm.kernels.reflective import reflected_line
from pymc_apm.kernels.stream import (
    ALONG_COPULA,
    ALONG_ELLIPSE,
    ALONG_REFLECTED_LINE,
    AT_REST,
    FIRST_BLOCK,
    HEADER,
    Reader,
    correlated_normal_stream,
    correlated_uniform_stream,
    draw_seed,
    elliptical_slice_of_stream,
    fresh_stream,
    make_scratch,
    reflective_slice_of_stream,
    settled,
    stream_ellipse,
    stream_reflected_line,
)

SIZE = 500
SCRATCH = make_scratch()
KINDS = pytest.mark.parametrize("is_normal", [True, False], ids=["normal", "uniform"])
PURPOSES = pytest.mark.parametrize("purpose", ["tail", "direction"])


def read(stream, is_normal, n=SIZE):
    return Reader(stream, is_normal, SCRATCH).take(n).copy()


def directions_of(seed, n):
    """Read the directions of a tail: where its normal numbers are after a quarter of a circle."""
    quarter = np.array([0.0, seed, 0.5 * np.pi, ALONG_ELLIPSE])
    at_rest = read(np.array([0.0, 0.0, 0.0, AT_REST]), True, n)
    return read(quarter, True, n) - ellipse(at_rest, np.zeros(n), 0.5 * np.pi)


def first_numbers(seeds, purpose, n=3):
    """Return the first numbers of many tails, or of their directions, as normal numbers."""
    if purpose == "direction":
        return np.array([directions_of(seed, n) for seed in seeds])
    return np.array([read(np.array([seed, 0.0, 0.0, AT_REST]), True, n) for seed in seeds])


def streams(is_normal):
    """A stream at rest and after each kind of move, with realised numbers and without."""
    rng = np.random.default_rng(1)
    for size in (0, 1, 7, 100):
        numbers = rng.standard_normal(size) if is_normal else rng.random(size)
        at_rest = settled(rng, numbers)
        direction = np.concatenate([[draw_seed(rng)], rng.standard_normal(size)])
        yield at_rest
        if is_normal:
            yield stream_ellipse(at_rest, direction, 0.7)
            yield correlated_normal_stream(rng, at_rest, 0.9)
        else:
            yield stream_reflected_line(at_rest, direction, -1.3)
            yield correlated_uniform_stream(rng, at_rest, 0.9)


def in_uneven_blocks(reader):
    return np.concatenate([reader.take(n) for n in (0, 1, 33, 2, 130, 64, 0, 270)])


def one_by_one(reader):
    return np.array([reader.take_one() for _ in range(SIZE)])


def numbers_and_blocks(reader):
    blocks = [np.append(reader.take_one(), reader.take(24)) for _ in range(SIZE // 25)]
    return np.concatenate(blocks)


def test_a_stream_is_two_seeds_a_place_on_a_path_and_its_realised_numbers():
    rng = np.random.default_rng(2)
    used = np.array([0.1, 0.2, 0.3])
    stream = settled(rng, used)
    assert stream.dtype == np.float64 and stream.shape == (HEADER + 3,)
    assert list(stream[1:HEADER]) == [0.0, 0.0, AT_REST]
    np.testing.assert_array_equal(stream[HEADER:], used)
    assert fresh_stream(rng).shape == fresh_stream(rng, 17).shape == (HEADER,)
    moved = stream_ellipse(stream, np.array([12345.0, 1.0, 1.0, 1.0]), 0.5)
    assert list(moved[:HEADER]) == [stream[0], 12345.0, 0.5, ALONG_ELLIPSE]
    moved = stream_reflected_line(stream, np.array([12345.0, 1.0, 1.0, 1.0]), -2.0)
    assert list(moved[:HEADER]) == [stream[0], 12345.0, -2.0, ALONG_REFLECTED_LINE]
    assert correlated_uniform_stream(rng, stream, 0.5)[3] == ALONG_COPULA


def test_seeds_are_integers_that_a_float_holds_exactly():
    rng = np.random.default_rng(3)
    seeds = [draw_seed(rng) for _ in range(2000)]
    assert all(0 <= seed < 2**53 and int(float(seed)) == seed for seed in seeds)
    assert len(set(seeds)) == len(seeds)
    assert stats.kstest(np.array(seeds) / 2.0**53, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("seed", [0.0, 1.0, 2.0**53 - 1.0])
def test_the_smallest_and_the_largest_seed_work(seed):
    numbers = read(np.array([seed, 0.0, 0.0, AT_REST]), True)
    assert stats.kstest(numbers, "norm").pvalue > 1e-4


@KINDS
@pytest.mark.parametrize("how", [one_by_one, in_uneven_blocks, numbers_and_blocks])
def test_numbers_do_not_depend_on_how_they_are_read(is_normal, how):
    for stream in streams(is_normal):
        at_once = read(stream, is_normal)
        np.testing.assert_array_equal(how(Reader(stream, is_normal, make_scratch())), at_once)


@KINDS
@pytest.mark.parametrize("n", [0, 1, FIRST_BLOCK - 1, FIRST_BLOCK, FIRST_BLOCK + 1, 107, 108, 400])
def test_numbers_do_not_depend_on_how_many_are_read(is_normal, n):
    for stream in streams(is_normal):
        np.testing.assert_array_equal(read(stream, is_normal, n), read(stream, is_normal)[:n])


@KINDS
def test_used_numbers_are_those_that_were_read(is_normal):
    for stream in streams(is_normal):
        reader = Reader(stream, is_normal, make_scratch())
        assert reader.used().size == 0
        reader.take(50)
        reader.take_one()
        np.testing.assert_array_equal(reader.used(), read(stream, is_normal, 51))


@KINDS
def test_reading_and_moving_leave_the_stream_as_it_was(is_normal):
    rng = np.random.default_rng(4)
    for stream in streams(is_normal):
        stream.setflags(write=False)
        before = stream.copy()
        read(stream, is_normal)
        direction = np.ones(stream.size - HEADER + 1)
        stream_ellipse(stream, direction, 1.0)
        stream_reflected_line(stream, direction, 1.0)
        (correlated_normal_stream if is_normal else correlated_uniform_stream)(rng, stream, 0.5)
        np.testing.assert_array_equal(stream, before)


@KINDS
def test_scratch_generators_carry_nothing_from_one_reader_to_the_next(is_normal):
    scratch = make_scratch()
    for stream in streams(is_normal):
        Reader(stream, is_normal, scratch).take(37)  # an odd number of draws before the next
        numbers = Reader(stream, is_normal, scratch).take(SIZE)
        np.testing.assert_array_equal(numbers, read(stream, is_normal))


@KINDS
@pytest.mark.parametrize("z", [-2.9, -0.01, 0.3, 1.5])
def test_realised_numbers_and_the_tail_move_along_the_same_path(is_normal, z):
    """A moved stream is the path of the infinite sequence at rest, with the same seeds."""
    rng = np.random.default_rng(5)
    prefix = rng.standard_normal(40) if is_normal else rng.random(40)
    at_rest = settled(rng, prefix)
    direction = np.concatenate([[draw_seed(rng)], rng.standard_normal(40)])
    tail = read(at_rest, is_normal)[40:]
    tail_direction = directions_of(direction[0], tail.size)
    move, path = (stream_ellipse, ellipse) if is_normal else (stream_reflected_line, reflected_line)
    moved = read(move(at_rest, direction, z), is_normal)
    np.testing.assert_array_equal(moved[:40], path(prefix, direction[1:], z))
    np.testing.assert_allclose(moved[40:], path(tail, tail_direction, z), atol=1e-14)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.99])
def test_correlated_proposals_move_all_numbers_by_crank_nicolson_on_the_normal_scale(correlation):
    prefix = np.random.default_rng(6).standard_normal(40)
    for is_normal, propose in [
        (True, correlated_normal_stream),
        (False, correlated_uniform_stream),
    ]:
        at_rest = settled(np.random.default_rng(7), prefix if is_normal else ndtr(prefix))
        moved = propose(np.random.default_rng(8), at_rest, correlation)
        rng = np.random.default_rng(8)
        assert moved[1] == draw_seed(rng)
        noise = np.concatenate([rng.standard_normal(40), directions_of(moved[1], SIZE - 40)])
        before, after = read(at_rest, is_normal), read(moved, is_normal)
        before, after = (before, after) if is_normal else (ndtri(before), ndtri(after))
        expected = correlation * before + np.sqrt(1.0 - correlation**2) * noise
        np.testing.assert_allclose(after, expected, atol=1e-8)


@KINDS
def test_a_move_of_no_length_gives_the_numbers_at_rest(is_normal):
    rng = np.random.default_rng(9)
    at_rest = settled(rng, rng.random(20))
    direction = np.concatenate([[draw_seed(rng)], rng.standard_normal(20)])
    move = stream_ellipse if is_normal else stream_reflected_line
    np.testing.assert_allclose(
        read(move(at_rest, direction, 0.0), is_normal), read(at_rest, is_normal), atol=1e-15
    )


def test_a_settled_stream_keeps_what_was_used_and_has_a_fresh_tail():
    rng = np.random.default_rng(10)
    used = rng.standard_normal(30)
    first, second = settled(rng, used), settled(rng, used)
    np.testing.assert_array_equal(read(first, True)[:30], used)
    np.testing.assert_array_equal(read(second, True)[:30], used)
    assert not np.isclose(read(first, True)[30:], read(second, True)[30:]).any()


@PURPOSES
def test_first_numbers_have_the_right_distribution_over_seeds(purpose):
    rng = np.random.default_rng(11)
    for seeds in (
        np.arange(3000),
        [draw_seed(rng) for _ in range(3000)],
        2.0**40 * np.arange(3000),
    ):
        for column in first_numbers(seeds, purpose).T:
            assert stats.kstest(column, "norm").pvalue > 1e-4


def test_first_uniform_numbers_have_the_right_distribution_over_seeds():
    columns = np.array([read(np.array([s, 0, 0, AT_REST]), False, 3) for s in range(3000)]).T
    for column in columns:
        assert stats.kstest(column, "uniform").pvalue > 1e-4


@PURPOSES
@pytest.mark.parametrize("change", [lambda s: s + 1, lambda s: 2 * s, lambda s: s ^ (1 << 52)])
def test_numbers_of_related_seeds_are_uncorrelated(purpose, change):
    seeds = np.arange(1, 3001)
    first = first_numbers(seeds, purpose)
    second = first_numbers([change(int(seed)) for seed in seeds], purpose)
    for column in range(3):
        for other in range(3):
            assert stats.pearsonr(first[:, column], second[:, other]).pvalue > 1e-4


def test_tail_and_direction_are_independent_even_if_their_seeds_are_equal():
    seeds = np.arange(3000)
    tails, directions = first_numbers(seeds, "tail"), first_numbers(seeds, "direction")
    for column in range(3):
        for other in range(3):
            pair = tails[:, column], directions[:, other]
            assert stats.pearsonr(*pair).pvalue > 1e-4
            assert stats.pearsonr(*np.abs(pair)).pvalue > 1e-4


@pytest.mark.parametrize("is_normal", [True, False], ids=["normal", "uniform"])
def test_moved_tails_keep_the_base_distribution(is_normal):
    for stream in streams(is_normal):
        numbers = read(stream, is_normal, 5000)[stream.size - HEADER :]
        assert stats.kstest(numbers, "norm" if is_normal else "uniform").pvalue > 1e-4
        assert is_normal or (numbers.min() >= 0.0 and numbers.max() <= 1.0)


@KINDS
def test_a_stream_gives_the_same_numbers_after_pickling(is_normal):
    for stream in streams(is_normal):
        restored = pickle.loads(pickle.dumps(stream))
        np.testing.assert_array_equal(read(restored, is_normal), read(stream, is_normal))


@pytest.mark.parametrize("kernel", [elliptical_slice_of_stream, reflective_slice_of_stream])
def test_all_proposals_of_a_slice_update_are_moves_of_one_infinite_sequence(kernel):
    rng = np.random.default_rng(12)
    is_normal = kernel is elliptical_slice_of_stream
    at_rest = settled(rng, rng.random(5))
    proposals = []

    def accepted_at_the_sixth(stream, memo):
        proposals.append(stream)
        return (1.0 if len(proposals) == 6 else -np.inf), len(proposals)

    state, info = kernel(rng, State(at_rest, 0.0), accepted_at_the_sixth)
    assert info.accepted and info.n_evals == 6 and state.memo == 6
    assert state.position is proposals[-1] and state.log_density == 1.0
    assert {stream[0] for stream in proposals} == {at_rest[0]}
    assert len({stream[1] for stream in proposals}) == 1
    assert abs(proposals[-1][2]) <= abs(proposals[0][2]) or is_normal
    # Whatever the place on the path: one direction takes the numbers at rest there.
    path = ellipse if is_normal else reflected_line
    tail = read(at_rest, is_normal)[5:]
    tail_direction = directions_of(proposals[0][1], tail.size)
    for stream in proposals:
        expected = path(tail, tail_direction, stream[2])
        np.testing.assert_allclose(read(stream, is_normal)[5:], expected, atol=1e-14)
