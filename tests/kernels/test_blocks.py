"""Which numbers of u a block proposal refreshes, and how they are drawn."""

import numpy as np
import pytest

from pymc_apm.kernels import refresh_block
from pymc_apm.kernels.blocks import choose_block
from pymc_apm.kernels.draws import draw_normal, draw_uniform
from tests.kernels.targets import Scripted, frozen


def refreshed(shape, row, n_blocks):
    """Return, for each block, which numbers of an array are refreshed with it."""
    u = np.full(np.prod(shape, dtype=int), np.nan)
    u.setflags(write=False)
    blocks = [
        ~np.isnan(refresh_block(np.random.default_rng(1), u, draw_normal, row, n_blocks, block))
        for block in range(n_blocks)
    ]
    return [block.reshape(shape) for block in blocks]


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("shape", "row"), [((7,), 7), ((12,), 12), ((3, 7), 7), ((2, 3, 8), 8), ((2, 3), 6)]
)
def test_every_number_is_in_one_block_and_blocks_are_as_equal_as_can_be(shape, row, n_blocks):
    blocks = refreshed(shape, row, n_blocks)
    np.testing.assert_array_equal(np.sum(blocks, axis=0), 1)
    sizes = [int(block.sum()) for block in blocks]
    assert max(sizes) - min(sizes) <= np.prod(shape) // row


def test_blocks_of_a_matrix_are_neighbouring_columns():
    blocks = refreshed((3, 5), 5, 2)
    np.testing.assert_array_equal(blocks[0], np.tile([True, True, True, False, False], (3, 1)))


def test_blocks_of_a_vector_are_neighbouring_numbers():
    (first, second) = refreshed((4,), 4, 2)
    assert first.tolist() == [True, True, False, False]
    assert second.tolist() == [False, False, True, True]


def test_with_fewer_numbers_than_blocks_some_blocks_are_empty():
    assert [int(block.sum()) for block in refreshed((2,), 2, 4)] == [1, 0, 1, 0]
    assert [int(block.sum()) for block in refreshed((0,), 0, 2)] == [0, 0]


def test_a_block_is_filled_with_what_draw_returns_and_the_rest_is_kept():
    u = frozen(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    rng = Scripted(random=[np.array([0.7, 0.8])])
    proposal = refresh_block(rng, u, draw_uniform, 3, 3, 1)
    np.testing.assert_array_equal(proposal, [0.1, 0.7, 0.3, 0.4, 0.8, 0.6])
    assert rng.exhausted


def test_one_block_is_a_fresh_u():
    u = frozen(1.0, 2.0, 3.0)
    proposal = refresh_block(np.random.default_rng(2), u, draw_normal, 3, 1, 0)
    np.testing.assert_array_equal(proposal, np.random.default_rng(2).standard_normal(3))


def test_every_block_is_chosen_equally_often():
    """Counts of 6000 choices, to 5 standard errors."""
    rng = np.random.default_rng(3)
    counts = np.bincount([choose_block(rng, 6) for _ in range(6000)], minlength=6)
    assert len(counts) == 6
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(6000 * 5 / 36)
    almost_one = np.nextafter(1.0, 0.0)
    assert choose_block(Scripted(random=[almost_one]), 7) == 6
