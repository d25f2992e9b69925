"""``method="particles"``: the likelihood of a state-space model by a particle filter."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.particle_graphs import make_graphs
from pymc_apm.estimators.states.particle_op import Options, ParticleFilter
from pymc_apm.estimators.states.sorting import MAX_BITS
from pymc_apm.estimators.states.specification import Specification
from pymc_apm.randomness import StandardNormal
from pymc_apm.validation import positive_integer

_log = logging.getLogger("pymc.apm")

POINTS = 100
"""How many particles there are if the user does not say."""


def particle_estimate(
    specification: Specification,
    *,
    points: int | None = None,
    sort_by: Callable[..., Any] | None = None,
    substeps: int = 1,
    accumulate: str | Sequence[str] | None = None,
    proposal: Callable[..., Any] | None = None,
    lookahead: Callable[..., Any] | None = None,
) -> TensorVariable:
    """Return the log-estimate of a particle filter, one for each series of a panel.

    Its random numbers are declared in the model, with the name of the estimate and ``_u``.

    Parameters
    ----------
    specification : Specification
    points : int, optional
        The number of particles.
    sort_by : callable, optional
        A number, computed from states, by which particles are sorted.
    substeps : int
        How often the transition is made between two rows; its ``dt`` is a part of that.
    accumulate : str or list of str, optional
        The states that are set to zero after each row, to add up what happens between two.
    proposal : callable, optional
        The distribution by which particles are moved to a row, all of whose data are there.
    lookahead : callable, optional
        The log of what particles are favoured by before they move to such a row.
    """
    label = specification.label
    n_points = positive_integer(f"points of {label}", POINTS if points is None else points)
    substeps = positive_integer(f"substeps of {label}", substeps)
    if sort_by is None and specification.n_dims > MAX_BITS:
        raise ModelError(
            f"The states of {label} are made of {specification.n_dims} numbers, too many for a "
            "curve through all of them: say by sort_by= what to sort particles by."
        )
    resets = _resets(specification, accumulate)
    graphs = make_graphs(
        specification, n_points, sort_by, substeps, bool(resets), proposal, lookahead
    )
    rows = specification.rows
    lengths = tuple(int(length) for length in rows.lengths)
    options = Options(specification.n_dims, substeps, resets, lengths, rows.is_panel)
    shape: tuple[int, ...] = (max(lengths), 1 + graphs.n_numbers, n_points)
    if rows.is_panel:
        shape = (len(lengths), *shape)
    u = StandardNormal(f"{specification.name}_u", shape=shape, model=specification.model)
    op = ParticleFilter(graphs, options)
    if proposal is not None and not op.can_refresh:
        _log.info(
            f"u of {label} is updated as any other, not by conditional SMC: for that each state "
            "must be a draw, pm.X.dist(...), whose distribution function is known, of the "
            "transition and of the proposal, which must take as many random numbers."
        )
    return op(u, graphs.table, *graphs.closure.values())


def _resets(
    specification: Specification, accumulate: str | Sequence[str] | None
) -> tuple[int, ...]:
    """Return the places of states that are set to zero after each row."""
    names = [accumulate] if isinstance(accumulate, str) else list(accumulate or ())
    known = {state.name: state for state in specification.states}
    unknown = [str(name) for name in names if name not in known]
    if unknown:
        raise ModelError(
            f"accumulate of {specification.label} names {', '.join(unknown)}, but its states are "
            f"{', '.join(known)}."
        )
    places = [range(known[n].place, known[n].place + known[n].size) for n in dict.fromkeys(names)]
    return tuple(place for each in places for place in each)
