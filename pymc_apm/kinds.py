"""The kinds of randomness u: a table of what each draws and how it is updated.

A new update of u is a kernel in :mod:`pymc_apm.kernels` and an entry in ``updates`` here: its name
is then a value of the option ``u_update``. Numpy only.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pymc_apm.kernels import (
    correlated_normal,
    correlated_uniform,
    elliptical_slice,
    make_independence,
    reflective_slice,
)
from pymc_apm.kernels.draws import draw_normal, draw_uniform
from pymc_apm.kernels.factors import (
    elliptical_slice_of_factors,
    make_independence_of_factors,
    reflective_slice_of_factors,
)
from pymc_apm.kernels.stream import (
    correlated_normal_stream,
    correlated_uniform_stream,
    draw_seed,
    elliptical_slice_of_stream,
    fresh_stream,
    reflective_slice_of_stream,
)
from pymc_apm.types import FloatVector


class Kind(NamedTuple):
    """What is known of a kind of randomness. Kernels see u as a float64 vector.

    Attributes
    ----------
    made_of : str
        What it is made of, in words.
    draw : callable
        ``draw(rng, size)`` draws from q(u).
    updates : dict
        Its updates, by name: kernels ``update(rng, state, log_density) -> (state, info)``, where
        the log density is that with respect to q(u).
    updates_of_factors : dict
        The same for estimates that are products of factors, each with a part of u of its own:
        kernels as in :mod:`pymc_apm.kernels.factors`. An update without an entry here takes all
        factors together.
    correlated : callable or None
        ``correlated(rng, u, correlation)`` proposes a new u that is correlated with the old one,
        reversibly under q(u), where that makes sense.
    is_lazy : bool
        Whether it must be settled before it is moved (see :mod:`pymc_apm.kernels.stream`).
    needs_black_box : bool
        Whether it makes sense only as an argument of a black box.
    variance : float
        That of each number under q(u), by which the statistic ``u_moved`` says how far u went.
    """

    made_of: str
    draw: Callable[[np.random.Generator, int], FloatVector]
    updates: Mapping[str, Callable[..., Any]]
    correlated: Callable[[np.random.Generator, FloatVector, float], FloatVector] | None
    updates_of_factors: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    is_lazy: bool = False
    needs_black_box: bool = False
    variance: float = 1.0


def draw_seed_vector(rng: np.random.Generator, size: int) -> FloatVector:
    """Draw a seed, as a vector of one number; ``size`` is not used."""
    return np.array([float(draw_seed(rng))])


KINDS = {
    "normal": Kind(
        "normal",
        draw_normal,
        {"slice": elliptical_slice, "independence": make_independence(draw_normal)},
        correlated_normal,
        {
            "slice": elliptical_slice_of_factors,
            "independence": make_independence_of_factors(draw_normal),
        },
    ),
    "uniform": Kind(
        "uniform",
        draw_uniform,
        {"slice": reflective_slice, "independence": make_independence(draw_uniform)},
        correlated_uniform,
        {
            "slice": reflective_slice_of_factors,
            "independence": make_independence_of_factors(draw_uniform),
        },
        variance=1.0 / 12.0,
    ),
    "normal stream": Kind(
        "normal",
        fresh_stream,
        {"slice": elliptical_slice_of_stream, "independence": make_independence(fresh_stream)},
        correlated_normal_stream,
        is_lazy=True,
        needs_black_box=True,
    ),
    "uniform stream": Kind(
        "uniform",
        fresh_stream,
        {"slice": reflective_slice_of_stream, "independence": make_independence(fresh_stream)},
        correlated_uniform_stream,
        is_lazy=True,
        needs_black_box=True,
        variance=1.0 / 12.0,
    ),
    # Only a fresh seed makes sense as a proposal.
    "seed": Kind(
        "seed",
        draw_seed_vector,
        dict.fromkeys(("slice", "independence"), make_independence(draw_seed_vector)),
        None,
        needs_black_box=True,
        variance=2.0**106 / 12.0,
    ),
}
"""All kinds of randomness, by name."""

U_UPDATES = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.updates))
"""The names of all updates of u, in the order of the table."""

AUTO = "auto"
"""The update that an estimator brings along for its own u, or else the one that suits it.

That is "slice" as a rule, and "independence" where an estimator knows that its noise is low.
"""
