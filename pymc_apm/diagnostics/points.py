"""The parameter points at which an estimator is looked at."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace

from pymc_apm._compat import compile_function
from pymc_apm.density.layout import Layout
from pymc_apm.diagnostics.runs import FloatArray, posterior_of
from pymc_apm.errors import ModelError
from pymc_apm.kernels.stream import draw_seed

Point = Mapping[str, NDArray[Any]]

PILOT_DRAWS = 300
"""Draws, after as many of tuning, of a pilot run that finds the posterior."""


class Points(NamedTuple):
    """Parameter values, on the scale on which the user declared them.

    Attributes
    ----------
    source : str
        Where they come from, in words.
    values : list of dict
        Each a value for every free variable of a model.
    jumps : list of dict
        Where the chain went from each of them: its next draw that differs. Empty if they are not
        draws of a chain.
    """

    source: str
    values: list[Point]
    jumps: Sequence[Point] = ()


def choose_points(
    model: pm.Model, idata: Any, points: Any, n_points: int, rng: np.random.Generator
) -> Points:
    """Return the points that are given, or draws from the posterior, the prior or a pilot run."""
    if points is not None:
        if idata is not None:
            raise ModelError("Give either idata or points, not both.")
        return _given_points(model, points)
    if idata is not None:
        return _posterior_points("draws from the posterior", model, idata, n_points, rng)
    try:
        return Points("draws from the prior", prior_points(model, n_points, rng))
    except NotImplementedError:  # a flat prior
        return pilot_points(model, n_points, rng)


def pilot_points(model: pm.Model, n_points: int, rng: np.random.Generator) -> Points:
    """Draw from the posterior by a short run of the steps that ``pm.sample`` chooses."""
    idata = pilot_run(model, None, PILOT_DRAWS, rng)
    return _posterior_points("draws of a pilot run", model, idata, n_points, rng)


def pilot_run(model: pm.Model, step: Any, draws: int, rng: np.random.Generator) -> Any:
    """Sample two short chains, quietly."""
    with model:
        return pm.sample(
            draws=draws,
            tune=draws,
            chains=2,
            cores=1,
            step=step() if step is not None else None,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )


def _given_points(model: pm.Model, points: Any) -> Points:
    points = [points] if isinstance(points, Mapping) else points
    if not isinstance(points, Sequence) or not points:
        raise ModelError(
            f"points must be a dict of parameter values by name, or a list of such, got {points!r}."
        )
    names = {rv.name for rv in model.free_RVs}
    for point in points:
        if not isinstance(point, Mapping) or set(point) != names:
            got = ", ".join(map(str, point)) if isinstance(point, Mapping) else repr(point)
            raise ModelError(
                f"A point must have a value for each parameter, {', '.join(sorted(names))}, on the "
                f"scale on which it was declared; got {got}."
            )
    return Points("points given", [{n: np.asarray(v) for n, v in p.items()} for p in points])


def _posterior_points(
    source: str, model: pm.Model, idata: Any, n_points: int, rng: np.random.Generator
) -> Points:
    posterior = posterior_of(idata)
    missing = [rv.name for rv in model.free_RVs if rv.name not in posterior]
    if missing:
        raise ModelError(
            f"The posterior has no draws of {', '.join(missing)}, a parameter of the model: is it "
            "of another model, or was it sampled with var_names?"
        )
    stacked = {
        rv.name: posterior[rv.name].transpose("chain", "draw", ...).values for rv in model.free_RVs
    }
    n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    chosen = rng.choice(n_draws, size=min(n_points, n_draws), replace=False)
    flat = {name: values.reshape(n_draws, *values.shape[2:]) for name, values in stacked.items()}
    n_in_chain = posterior.sizes["draw"]
    return Points(
        source,
        [{name: values[i] for name, values in flat.items()} for i in chosen],
        [_jump_from(flat, int(i), n_in_chain) for i in chosen],
    )


def _jump_from(flat: Mapping[str, NDArray[Any]], i: int, n_in_chain: int) -> Point:
    """Return the next draw of a chain that differs; at its end the last one that did."""
    first = i - i % n_in_chain
    for j in [*range(i + 1, first + n_in_chain), *range(i - 1, first - 1, -1)]:
        if any((values[j] != values[i]).any() for values in flat.values()):
            return {name: values[j] for name, values in flat.items()}
    return {name: values[i] for name, values in flat.items()}


def prior_points(model: pm.Model, n_points: int, rng: np.random.Generator) -> list[Point]:
    """Draw points from the prior; a flat prior raises NotImplementedError."""
    draws = pm.draw(model.free_RVs, draws=n_points, random_seed=draw_seed(rng) % 2**31)
    if n_points == 1:  # of which PyMC makes no axis
        draws = [np.asarray(values)[None] for values in draws]
    names = [rv.name for rv in model.free_RVs]
    return [dict(zip(names, values, strict=True)) for values in zip(*draws, strict=True)]


class ToVector:
    """Takes points from the scale of the user to the vectors on which samplers work.

    Parameters
    ----------
    model : Model
    layout : Layout
        How all value variables of the model lie in a vector.
    compile_kwargs : dict, optional
        What to pass on to the compiler.
    """

    def __init__(
        self, model: pm.Model, layout: Layout, compile_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._layout = layout
        self._names = [rv.name for rv in model.free_RVs]
        self._value_names = [model.rvs_to_values[rv].name for rv in model.free_RVs]
        self._dtypes = [rv.type.dtype for rv in model.free_RVs]
        given = {rv: rv.type() for rv in model.free_RVs}
        transformed = []
        for rv in model.free_RVs:
            transform = model.rvs_to_transforms.get(rv)
            transformed.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
        self._function = compile_function(
            list(given.values()),
            clone_replace(transformed, replace=given, rebuild_strict=False),
            **(compile_kwargs or {}),
        )

    def __call__(self, point: Point) -> FloatArray:
        """Return one point as a vector."""
        values = [
            np.asarray(point[name], dtype=dtype)
            for name, dtype in zip(self._names, self._dtypes, strict=True)
        ]
        shapes = {entry.name: entry.shape for entry in self._layout.entries}
        try:
            vectors = self._function(*values)
        except (TypeError, ValueError, AssertionError) as error:
            raise ModelError(f"The point {dict(point)} does not fit the model: {error}") from error
        found = dict(zip(self._value_names, map(np.asarray, vectors), strict=True))
        for name, value in found.items():
            if value.shape != shapes[name]:
                raise ModelError(
                    f"The point {dict(point)} does not fit the model: {name} has the shape "
                    f"{value.shape} instead of {shapes[name]}."
                )
        return self._layout.ravel(found)
