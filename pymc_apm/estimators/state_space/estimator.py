"""State-space models: the likelihood with all states integrated out."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError
from pymc_apm.estimators.state_space.specification import Specification, parse
from pymc_apm.potential import Potential
from pymc_apm.randomness import StandardUniform
from pymc_apm.validation import one_of, positive_integer, positive_number

__all__ = ["state_space"]

_log = logging.getLogger("pymc.apm")


def state_space(
    name: str,
    data: Any,
    *,
    initial: Any,
    transition: Callable[..., Any],
    observation: Callable[..., Any],
    states: str | Sequence[str] | None = None,
    times: Any = None,
    covariates: Mapping[str, Any] | None = None,
    series: Any = None,
    dims: str | None = None,
    method: Literal["auto", "pool", "particles"] = "auto",
    points: int | None = None,
    width: float | None = None,
    sort_by: Callable[..., Any] | None = None,
    substeps: int = 1,
    accumulate: str | Sequence[str] | None = None,
    reference: Mapping[str, Any] | None = None,
    random_seed: int | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add the likelihood of a state-space model, with all states integrated out."""
    model = pm.modelcontext(model)
    label = f"state_space({name!r})"
    one_of(f"method of {label}", method, "auto", "pool", "particles")
    specification = parse(
        name,
        data,
        initial=initial,
        transition=transition,
        observation=observation,
        states=states,
        times=times,
        covariates=covariates,
        series=series,
        model=model,
    )
    of_pool = {"width": width, "reference": reference, "random_seed": random_seed}
    of_particles = {
        "sort_by": sort_by,
        "substeps": None if substeps == 1 else substeps,
        "accumulate": accumulate,
    }
    if method == "auto":
        method = _choose(specification, of_particles)
    others = of_pool if method == "particles" else of_particles
    given = [option for option, value in others.items() if value is not None]
    if given:
        raise ModelError(
            f"{', '.join(given)} of {label} has no meaning for method={method!r}: leave it out."
        )
    if method == "pool":
        return _pool(specification, points, width, reference, random_seed, dims)
    return _particles(specification, points, sort_by, substeps, accumulate)


def _choose(
    specification: Specification, of_particles: Mapping[str, Any]
) -> Literal["pool", "particles"]:
    """Choose the pool estimator where it can be made, and say so where it cannot."""
    from pymc_apm.estimators.state_space.pool import check_suits

    if any(value is not None for value in of_particles.values()):
        return "particles"
    try:
        check_suits(specification)
    except ModelError as error:
        _log.info(f"{specification.label} is estimated by particles. {error}")
        return "particles"
    return "pool"


def _particles(
    specification: Specification,
    points: int | None,
    sort_by: Callable[..., Any] | None,
    substeps: int,
    accumulate: str | Sequence[str] | None,
) -> TensorVariable:
    from pymc_apm.estimators.state_space.particles import particle_estimate

    log_estimate = particle_estimate(
        specification, points=points, sort_by=sort_by, substeps=substeps, accumulate=accumulate
    )
    factors = 0 if specification.rows.is_panel else None
    return Potential(specification.name, log_estimate, factors=factors, model=specification.model)


def _pool(
    specification: Specification,
    points: int | None,
    width: float | None,
    reference: Mapping[str, Any] | None,
    random_seed: int | None,
    dims: str | None,
) -> TensorVariable:
    # These import Numba, which takes long.
    from pymc_apm.estimators.state_space.pilot import default_width, find_guide
    from pymc_apm.estimators.state_space.pool import check_suits, make_pool

    label, rows = specification.label, specification.rows
    if points is not None:
        points = positive_integer(f"points of {label}", points, 2)
    if width is None:
        width = default_width(specification.n_dims)
    width = positive_number(f"width of {label}", width)
    check_suits(specification)
    rng = np.random.default_rng(0 if random_seed is None else random_seed)
    pilot = find_guide(specification, width, points, reference, rng)
    name, model, n_dims = specification.name, specification.model, specification.n_dims
    if rows.is_panel:
        shape = (rows.n_series, int(rows.lengths.max()), n_dims)
        u = StandardUniform(f"{name}_u", shape=shape, model=model)
        of_rows = u[rows.series, rows.t]
    else:
        u = StandardUniform(f"{name}_u", shape=(len(rows), n_dims), model=model)
        of_rows = u
    pool = make_pool(specification, pilot.guide, of_rows, pilot.n_points)
    if rows.is_panel:
        return Potential(name, pool.estimates, factors=0, model=model)
    return Potential(name, pool.estimates[0], model=model)
