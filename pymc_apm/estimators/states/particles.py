"""``method="particles"``: the likelihood of a state-space model by a particle filter."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_apm.density.limits import NO_LIMIT
from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.bounds import bounds_of_rows
from pymc_apm.estimators.states.particle_graphs import make_graphs
from pymc_apm.estimators.states.particle_op import Options, ParticleFilter
from pymc_apm.estimators.states.segments import bounds_of, segmented_estimate
from pymc_apm.estimators.states.sorting import MAX_BITS
from pymc_apm.estimators.states.sources import FilterSource
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
    segments: int = 1,
    bound: Any = None,
    early_exit: bool | Literal["check"] = True,
) -> tuple[TensorVariable, FilterSource]:
    """Return the log-estimate of a particle filter, one for each series of a panel.

    And what draws states from it. Its random numbers are declared in the model, with the name of
    the estimate and ``_u``, and the number of the segment if there are several.

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
    segments : int
        Into how many pieces of time random numbers are cut.
    bound : number, array or callable, optional
        Upper bounds of the log density of each row.
    early_exit : bool or "check"
        Whether to stop by these bounds, or to check them.
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
    is_bootstrap = proposal is None and lookahead is None
    bounds = _bounds(specification, bound, early_exit, is_bootstrap)
    options = Options(specification.n_dims, substeps, resets, lengths, rows.is_panel)
    others = [graphs.table, *graphs.closure.values()]
    if bounds is not None:
        use: Literal["check", "stop"] = "check" if early_exit == "check" else "stop"
        options = options._replace(bounds=use, order=rows.order)
        others += [bounds, TensorConstant(pt.dscalar, NO_LIMIT)]
    op = ParticleFilter(graphs, options)
    if proposal is not None and not op.can_refresh:
        _log.info(
            f"u of {label} is updated as any other, not by conditional SMC: for that each state "
            "must be a draw, pm.X.dist(...), whose distribution function is known, of the "
            "transition and of the proposal, which must take as many random numbers."
        )
    segments = positive_integer(f"segments of {label}", segments)
    if segments > 1:
        _check_segments(label, segments, op)
    sizes = 1 + graphs.n_numbers, n_points
    shapes: list[tuple[int, ...]] = [
        (stop - start, *sizes) for start, stop in bounds_of(max(lengths), segments)
    ]
    if rows.is_panel:
        shapes = [(len(lengths), *shapes[0])]
    name = f"{specification.name}_u"
    names = [name] if segments == 1 else [f"{name}_{number}" for number in range(segments)]
    us = [
        StandardNormal(own, shape=shape, model=specification.model)
        for own, shape in zip(names, shapes, strict=True)
    ]
    if segments == 1:
        log_estimate = op(us[0], *others)
        return log_estimate, FilterSource(op, us, log_estimate.owner.inputs[1:])
    # As the whole filter would take them.
    inputs = op.make_node(us[0], *others).inputs[1:]
    return segmented_estimate(op, us, inputs), FilterSource(op, us, inputs)


def _bounds(
    specification: Specification,
    bound: Any,
    early_exit: bool | Literal["check"],
    is_bootstrap: bool,
) -> Variable | None:
    """Return upper bounds of the log weights of each row, if they are known and of use."""
    label = specification.label
    if bound is not None and not (early_exit and is_bootstrap):
        reason = "weights are made of more where there is proposal= or lookahead="
        reason = reason if early_exit else "nothing is done with it where early_exit is False"
        raise ModelError(f"bound of {label} has no meaning: {reason}. Leave it out.")
    bounds = bounds_of_rows(specification, bound) if early_exit and is_bootstrap else None
    if bounds is None and early_exit == "check":
        raise ModelError(
            f"early_exit of {label} is 'check', but there is nothing to check: no bound of the log "
            "density is known. It is where data are discrete, and there is neither proposal= nor "
            "lookahead=; or give one by bound=."
        )
    return bounds


def _check_segments(label: str, segments: int, op: ParticleFilter) -> None:
    (*_, length) = op.options.lengths
    if op.options.is_panel:
        raise ModelError(
            f"segments of {label} is for one series; those of a panel are updated one by one as "
            "they are: leave it out."
        )
    if segments > length:
        raise ModelError(f"segments of {label} is {segments}, but the data have {length} rows.")
    if op.can_refresh:
        _log.info(
            f"{label} has segments, so that u is not updated by conditional SMC, which is faster: "
            "leave segments out."
        )


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
