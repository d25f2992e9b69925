"""State-space models: the likelihood with all states integrated out."""

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
    method: Literal["auto", "pool"] = "auto",
    points: int | None = None,
    width: float | None = None,
    reference: Mapping[str, Any] | None = None,
    random_seed: int | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add the likelihood of a state-space model, with all states integrated out.
    """
    model = pm.modelcontext(model)
    label = f"state_space({name!r})"
    one_of(f"method of {label}", method, "auto", "pool")
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
    return _pool(specification, points, width, reference, random_seed, dims)


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
