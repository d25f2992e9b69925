"""States, forecasts and predictions, after sampling."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pymc_apm._compat import compile_function, dataset_of
from pymc_apm.errors import ModelError, see
from pymc_apm.estimators.copies import of_parameters
from pymc_apm.estimators.reference import FAST
from pymc_apm.estimators.states.bootstrap import Sampler, as_matrix
from pymc_apm.estimators.states.dates import go_on
from pymc_apm.estimators.states.parts import Part
from pymc_apm.estimators.states.sources import Draws, Source, draw_afresh
from pymc_apm.estimators.states.specification import Specification
from pymc_apm.validation import numbers, one_of, positive_integer

__all__ = ["States", "forecast", "predict", "sample_states"]

_log = logging.getLogger("pymc.apm")

Floats = NDArray[np.float64]

FEW = 2.0
"""The effective number of points below which there is a warning."""


class States(NamedTuple):
    """What it takes to draw states that were integrated out; a potential carries it along.

    Attributes
    ----------
    specification : Specification
    source : Source
    dims : str or None
        The name of the dimension of the rows.
    records : bool
        Whether steps record a path of the states with each draw.
    """

    specification: Specification
    source: Source
    dims: str | None
    records: bool = False


def sample_states(
    idata: Any,
    name: str,
    *,
    draws: int | None = None,
    kind: Literal["smoothed", "filtered"] = "smoothed",
    random_seed: int | np.random.Generator | None = None,
    model: pm.Model | None = None,
) -> xr.Dataset:
    """Draw the states of a state-space model, given posterior draws of the parameters.

    A path is drawn for each draw of the parameters, from the points of a pool of its own by the
    backward recursion, or from the particles of a filter: backwards if the transition has a
    density, else one of the last particles with its ancestors. Up to the noise of the estimate
    that is a draw from the posterior of states and parameters.

    If paths were recorded while sampling (``record_states=True``), smoothed states are these, which
    are exact.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.
    name : str
        The name of the estimator: that given to :func:`~pymc_apm.estimators.state_space`.
    draws : int, optional
        How many draws of each chain to take, spread evenly over it; by default all of them.
    kind : {"smoothed", "filtered"}
        Given all data, a path; or in each row given the data up to it, each by itself.
    random_seed : int or Generator, optional
    model : Model, optional
        The model; the one whose context is open if not given.

    Returns
    -------
    Dataset
        With ``smoothed_posterior`` or ``filtered_posterior``, whose dimensions are ``chain``,
        ``draw``, that of the rows of the data, and ``state``. Besides, how good pools and filters
        are: ``effective_points`` and ``reached_points``, the effective numbers of points, or
        particles, that have weight in a row, and of those that the path was chosen from, the
        smallest of all rows. Where they are below 2, points are too few for what they have to
        resolve.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> flow = np.array([1120.0, 1160, 963, 1210, np.nan, 1160, 813, 1230])
    >>> with pm.Model():
    ...     level, error = pm.HalfNormal("level", 100), pm.HalfNormal("error", 200)
    ...     log_lik = apm.estimators.state_space(
    ...         "flow",
    ...         flow,
    ...         initial=pm.Normal.dist(1000, 300),
    ...         transition=lambda x: pm.Normal.dist(x, level),
    ...         observation=lambda x: pm.Normal.dist(x, error),
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    ...     states = apm.sample_states(idata, "flow")
    >>> states["smoothed_posterior"].dims
    ('chain', 'draw', 'time', 'state')
    """
    one_of("kind of sample_states", kind, "smoothed", "filtered")
    run = _Run("sample_states", idata, name, draws, random_seed, model)
    specification = run.how.specification
    dim, coords = _rows_as_coords(run.how)
    coords |= run.coords | {"state": _labels(specification)}
    recorded = run.recorded(idata) if kind == "smoothed" else None
    if recorded is not None:
        dims = ("chain", "draw", dim, "state")
        return xr.Dataset({"smoothed_posterior": (dims, recorded)}, coords)
    drawn = run.drawn()
    if kind == "filtered":
        _warn_of_few(specification, drawn)
    order = np.argsort(specification.rows.order)
    states = (drawn.smoothed if kind == "smoothed" else drawn.filtered)[:, order]
    data = {
        f"{kind}_posterior": (("chain", "draw", dim, "state"), run.shaped(states)),
        "effective_points": (("chain", "draw"), run.shaped(drawn.effective)),
        "reached_points": (("chain", "draw"), run.shaped(drawn.reached)),
    }
    return xr.Dataset(data, coords)


def predict(
    idata: Any,
    name: str,
    *,
    draws: int | None = None,
    random_seed: int | np.random.Generator | None = None,
    model: pm.Model | None = None,
) -> xr.Dataset:
    """Predict the data of each row from those before it, and score the predictions.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.
    name : str
        The name of the estimator: that given to :func:`~pymc_apm.estimators.state_space`.
    draws : int, optional
        How many draws of each chain to take, spread evenly over it; by default all of them.
    random_seed : int or Generator, optional
    model : Model, optional
        The model; the one whose context is open if not given.

    Returns
    -------
    Dataset
        With ``predicted_observed``, draws of the data of each row given those before it, and
        ``log_score``, the log density of the data there, both for each draw of the parameters. A
        row in which all is missing has the score 0, but for noise. ``effective_points`` is as in
        :func:`sample_states`. The predictions belong in a group
        ``posterior_predictive``, under the name of the data, for figures like ``az.plot_ppc``.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     level = pm.HalfNormal("level", 1)
    ...     log_lik = apm.estimators.state_space(
    ...         "y",
    ...         np.array([0.1, 0.5, np.nan, 1.2]),
    ...         initial=pm.Normal.dist(0, 1),
    ...         transition=lambda x: pm.Normal.dist(x, level),
    ...         observation=lambda x: pm.Normal.dist(x, 1),
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    ...     ahead = apm.predict(idata, "y")
    >>> ahead["log_score"].shape
    (1, 20, 4)
    """
    run = _Run("predict", idata, name, draws, random_seed, model)
    specification, rows = run.how.specification, run.how.specification.rows
    _check_observes(specification)
    drawn = run.drawn()
    _warn_of_few(specification, drawn)
    simulate = _Simulation(specification, run)
    arrays = run.row_arrays()
    made = []
    for row in range(len(rows)):
        given = {key: array[row] for key, array in arrays.items()}
        before = None if rows.is_first[row] else drawn.filtered[:, row - 1]
        made.append(simulate.observe(simulate.move(before, given), given))
    observed, dims, coords = _observed(specification, made)
    order = np.argsort(rows.order)
    dim, row_coords = _rows_as_coords(run.how)
    data = {
        "predicted_observed": (("chain", "draw", dim, *dims), run.shaped(observed[:, order])),
        "log_score": (("chain", "draw", dim), run.shaped(drawn.score[:, order])),
        "effective_points": (("chain", "draw"), run.shaped(drawn.effective)),
    }
    return xr.Dataset(data, run.coords | row_coords | coords)


def forecast(
    idata: Any,
    name: str,
    *,
    periods: int | None = None,
    times: Any = None,
    covariates: Mapping[str, Any] | None = None,
    draws: int | None = None,
    random_seed: int | np.random.Generator | None = None,
    model: pm.Model | None = None,
) -> xr.Dataset:
    """Simulate states and data after the last ones, given posterior draws.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.
    name : str
        The name of the estimator: that given to :func:`~pymc_apm.estimators.state_space`.
    periods : int, optional
        For how many rows, each as long after the one before as is usual in the data.
    times : array, optional
        Instead, for which times, all after the last ones.
    covariates : dict, optional
        Those of the new rows, if functions of the model ask for any; all series share them.
    draws : int, optional
        How many draws of each chain to take, spread evenly over it; by default all of them.
    random_seed : int or Generator, optional
    model : Model, optional
        The model; the one whose context is open if not given.

    Returns
    -------
    Dataset
        With ``forecast_latent``, the states, and ``forecast_observed``, the data, both for each
        draw of the parameters. If the model has several series, they have that dimension too, and
        ``time_ahead`` has the times of each. Otherwise the coordinates of the rows go on as they
        did: by their step, by months, years or working days.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     level = pm.HalfNormal("level", 1)
    ...     log_lik = apm.estimators.state_space(
    ...         "y",
    ...         np.array([0.1, 0.5, np.nan, 1.2]),
    ...         initial=pm.Normal.dist(0, 1),
    ...         transition=lambda x: pm.Normal.dist(x, level),
    ...         observation=lambda x: pm.Normal.dist(x, 1),
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    ...     ahead = apm.forecast(idata, "y", periods=3)
    >>> ahead["forecast_observed"].shape
    (1, 20, 3)
    """
    run = _Run("forecast", idata, name, draws, random_seed, model)
    specification, rows = run.how.specification, run.how.specification.rows
    label = f"forecast({name!r})"
    last = np.flatnonzero(np.append(rows.is_first[1:], True))
    ahead = _times_ahead(label, rows.time[last], rows.dt[~rows.is_first], periods, times)
    n_ahead = ahead.shape[1]
    given = _checked_covariates(label, specification, covariates, n_ahead)
    drawn = run.drawn()
    simulate = _Simulation(specification, run)
    latent, observed = [], []
    dims: tuple[str, ...] = ()
    coords: dict[str, Any] = {}
    for series, row in enumerate(last):
        states = drawn.filtered[:, row]
        time, path, seen = rows.time[row], [], []
        for step in range(n_ahead):
            here = {
                "t": rows.t[row] + 1 + step,
                "time": ahead[series, step],
                "dt": ahead[series, step] - time,
                "series": series,
            } | {key: array[step] for key, array in given.items()}
            states = simulate.move(states, here)
            path.append(states)
            if not specification.gives_log_density:
                seen.append(simulate.observe(states, here))
            time = ahead[series, step]
        latent.append(np.stack(path, axis=1))
        if seen:
            made, dims, coords = _observed(specification, seen)
            observed.append(made)
    dim = run.how.dims or "time"
    coords |= run.coords | {"state": _labels(specification)}
    coords |= _coords_ahead(run.how, dim, ahead, times)
    lead: tuple[str, ...] = ("chain", "draw", dim)
    if rows.is_panel:
        lead = ("chain", "draw", "series", dim)
        coords["series"] = rows.labels

    def joined(arrays: list[Floats]) -> Floats:
        return np.stack(arrays, axis=1) if rows.is_panel else arrays[0]

    data = {"forecast_latent": ((*lead, "state"), run.shaped(joined(latent)))}
    if observed:
        data["forecast_observed"] = ((*lead, *dims), run.shaped(joined(observed)))
    return xr.Dataset(data, coords)


# Draws of parameters, and pools for them


class _Run:
    """Some posterior draws of the parameters of a state-space model."""

    def __init__(
        self,
        label: str,
        idata: Any,
        name: str,
        draws: int | None,
        random_seed: Any,
        model: pm.Model | None,
    ) -> None:
        model = pm.modelcontext(model)
        how = getattr(getattr(model.named_vars.get(name), "tag", None), "apm_states", None)
        if how is None:
            known = [term.name for term in model.potentials if hasattr(term.tag, "apm_states")]
            raise ModelError(
                f"The model has no state-space model {name!r}. There is: "
                f"{', '.join(known) or 'none'}."
            )
        self.how: States = how
        self._name = name  # with that of a model in a model
        self.rng = np.random.default_rng(random_seed)
        posterior = dataset_of(idata, "posterior")
        if posterior is None:
            raise ModelError(f"What was given to {label} has no group posterior.")
        specification = how.specification
        self._model = model.root
        parts = specification.initial, specification.transition, specification.observation
        outer = [variable for part in parts for variable in part.closure.values()]
        upstream = set(ancestors(self._in_model([*outer, *how.source.outputs])))
        self.parameters = [rv for rv in self._model.free_RVs if rv in upstream]
        missing = [rv.name for rv in self.parameters if rv.name not in posterior]
        if missing:
            raise ModelError(
                f"The posterior has no draws of {', '.join(missing)}, on which {name!r} depends."
            )
        n_draws = posterior.sizes["draw"]
        kept = np.arange(n_draws)
        if draws is not None:
            draws = min(positive_integer(f"draws of {label}", draws), n_draws)
            kept = np.linspace(0, n_draws - 1, draws).round().astype(int)
        self._shape, self._kept = (posterior.sizes["chain"], len(kept)), kept
        self._labels = {dim: posterior[dim].values for dim in ("chain", "draw")}
        self.coords: dict[str, Any] = self._labels | {"draw": self._labels["draw"][kept]}
        self._values = []
        for rv in self.parameters:
            array = posterior[rv.name].transpose("chain", "draw", ...).values[:, kept]
            array = array.reshape(-1, *array.shape[2:]).astype(rv.type.dtype)
            self._values.append(array)
        self.n = int(np.prod(self._shape))

    def _in_model(self, variables: Sequence[Variable]) -> list[Variable]:
        """Return graphs with the variables of the model at hand; observed ones are data."""
        label = self.how.specification.label
        return of_parameters(variables, self._model, self.how.source.inputs, label)

    def row_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what belongs to each row, by name."""
        arrays = self.how.specification.row_arrays
        made = self._in_model([pt.as_tensor_variable(array) for array in arrays.values()])
        return dict(zip(arrays, compile_function([], made, **FAST)(), strict=True))

    def shaped(self, array: NDArray[Any]) -> NDArray[Any]:
        """Put chains and draws along axes of their own."""
        return array.reshape(*self._shape, *array.shape[1:])

    def closure(self, part: Part) -> list[NDArray[Any]]:
        """Return the values of the closure of a part, with draws along the first axis."""
        if not part.closure:
            return []
        symbols = {rv: rv.type() for rv in self.parameters}
        outer = self._in_model(list(part.closure.values()))
        outer = clone_replace(outer, replace=symbols, rebuild_strict=False)
        function = compile_function(list(symbols.values()), outer, **FAST)
        found = [function(*self._of(place)) for place in range(self.n)]
        return [np.stack(column) for column in zip(*found, strict=True)]

    def _of(self, place: int) -> list[NDArray[Any]]:
        return [np.asarray(array[place]) for array in self._values]

    def recorded(self, idata: Any) -> Floats | None:
        """Return the paths that were recorded with the draws; None if there are none."""
        stats = dataset_of(idata, "sample_stats")
        name = f"{self._name}_states"
        if stats is None or name not in stats:
            return None
        try:  # one of them may have been thinned
            recorded = stats[name].sel(self._labels)
        except KeyError:
            return None
        paths = np.asarray(recorded.values, dtype=np.float64)[:, self._kept]
        if paths.ndim == 5:  # of several steps that moved u the last one left it as it is
            paths = paths[..., -1]
        specification = self.how.specification
        shape = len(specification.rows), specification.n_dims
        if paths.shape != (*self._shape, *shape) or np.isnan(paths).all(axis=(2, 3)).any():
            return None
        return paths

    def drawn(self) -> Draws:
        """Draw states for each draw of the parameters, which are along the first axis."""
        source, label = self.how.source, self.how.specification.label
        symbols = {rv: rv.type() for rv in self.parameters}
        outputs = self._in_model(source.outputs)
        outputs = clone_replace(outputs, replace=symbols, rebuild_strict=False)
        compute = compile_function([*source.inputs, *symbols.values()], outputs, calls_python=True)
        found = [
            draw_afresh(source, self.rng, compute, self._of(place), label)
            for place in range(self.n)
        ]
        return Draws(*(np.stack(column) for column in zip(*found, strict=True)))


class _Simulation:
    """Simulates the parts of a model for all draws of the parameters at once."""

    def __init__(self, specification: Specification, run: _Run) -> None:
        self._source, self._n = run.how.source, run.n
        self._samplers, self._closures = {}, {}
        parts = {"initial": specification.initial, "transition": specification.transition}
        if not specification.gives_log_density:
            parts["observation"] = specification.observation
        for name, part in parts.items():
            seed = int(run.rng.integers(2**31))
            self._samplers[name] = Sampler(specification, part, seed, FAST, is_batch=True)
            self._closures[name] = run.closure(part)

    def _draw(self, name: str, states: Floats | None, row: Mapping[str, Any]) -> dict[str, Any]:
        return self._samplers[name](self._n, states, row, self._closures[name])

    def move(self, states: Floats | None, row: Mapping[str, Any]) -> Floats:
        """Return the states of a row, (draws, numbers), from those before; None is the start."""
        if states is None:
            return as_matrix(self._draw("initial", None, row))
        source = self._source
        states = np.array(states)
        states[:, list(source.resets)] = 0.0
        row = {**row, "dt": row["dt"] / source.substeps}
        for _ in range(source.substeps):
            states = as_matrix(self._draw("transition", states, row))
        return states

    def observe(self, states: Floats, row: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return data of a row."""
        return self._draw("observation", states, row)


# Shapes and coordinates


def _warn_of_few(specification: Specification, drawn: Draws) -> None:
    """Say so if there are few points where states are given the data up to a row alone."""
    least = float(np.min(drawn.effective))
    if least < FEW:
        _log.warning(
            "In some row of %s there are in effect %.2g points where the state is given the data "
            "up to that row, so that it, and predictions of the next, are drawn from too few. "
            "Give more points. Those of a pool are where states are given all data: if these tell "
            'much more, declare the model with method="particles" for what is drawn after '
            "sampling. %s",
            specification.name,
            least,
            see("state_space"),
        )


def _check_observes(specification: Specification) -> None:
    if specification.gives_log_density:
        raise ModelError(
            f"The observation of {specification.label} is the log of a density, from which nothing "
            "can be drawn. Let it return a distribution, as pm.X.dist(...) makes it."
        )


def _labels(specification: Specification) -> list[str]:
    return [label for state in specification.states for label in state.labels]


def _observed(
    specification: Specification, rows: list[dict[str, NDArray[Any]]]
) -> tuple[Floats, tuple[str, ...], dict[str, Any]]:
    """Stack the data of rows: (draws, rows), and one more axis if there are several numbers."""
    names = list(specification.data)
    arrays = [np.stack([row[name] for row in rows], axis=1) for name in names]
    if len(names) == 1 and arrays[0].ndim == 2:
        return arrays[0], (), {}
    labels: list[str] = []
    columns = []
    for name, array in zip(names, arrays, strict=True):
        columns.append(array.reshape(*array.shape[:2], -1))
        width = columns[-1].shape[2]
        labels += [name] if array.ndim == 2 else [f"{name}[{place}]" for place in range(width)]
    return np.concatenate(columns, axis=2), ("observed_state",), {"observed_state": labels}


def _rows_as_coords(how: States) -> tuple[str, dict[str, Any]]:
    """Return the name of the dimension of rows, and its coordinates, in the user's order."""
    rows = how.specification.rows
    order = np.argsort(rows.order)
    dim = how.dims or ("row" if rows.is_panel else "time")
    known = _known_labels(how, dim)
    coords: dict[str, Any] = {}
    if known is not None:
        coords[dim] = known
    elif not rows.is_panel:
        coords[dim] = rows.time[order]
    if rows.is_panel:
        coords["series"] = (dim, rows.labels[rows.series][order])
        if dim != "time":
            coords["time"] = (dim, rows.time[order])
    return dim, coords


def _known_labels(how: States, dim: str) -> NDArray[Any] | None:
    """Return the labels of rows if the model has any; PyMC keeps dates of pandas as objects."""
    known = how.specification.model.root.coords.get(dim)
    return None if known is None else xr.IndexVariable(dim, list(known)).values


def _times_ahead(label: str, last: Floats, dt: Floats, periods: Any, times: Any) -> Floats:
    """Return times after the last of each series, (series, times)."""
    if (periods is None) == (times is None):
        raise ModelError(f"{label} takes either periods or times.")
    if periods is not None:
        n_ahead = positive_integer(f"periods of {label}", periods)
        step = float(np.median(dt)) if dt.size else 1.0
        return last[:, None] + step * np.arange(1, n_ahead + 1)
    ahead = np.atleast_1d(numbers(f"times of {label}", times))
    if ahead.ndim != 1 or not (np.diff(ahead) > 0.0).all() or not ahead[0] > last.max():
        raise ModelError(
            f"times of {label} must increase, and be later than the last of the data, which is "
            f"{last.max():g}."
        )
    return np.broadcast_to(ahead, (last.size, ahead.size))


def _coords_ahead(how: States, dim: str, ahead: Floats, times: Any) -> dict[str, Any]:
    """Go on with the coordinates of the rows if it is plain how; else the times."""
    rows, known = how.specification.rows, _known_labels(how, dim)
    if times is None and known is not None and not rows.is_panel:
        labels = go_on(known, ahead.shape[1])
        if labels is not None:
            return {dim: labels}
    if rows.is_panel and times is None:
        return {dim: np.arange(1, ahead.shape[1] + 1), "time_ahead": (("series", dim), ahead)}
    return {dim: ahead[0]}


def _checked_covariates(
    label: str, specification: Specification, covariates: Any, n_ahead: int
) -> dict[str, NDArray[Any]]:
    asked = {*specification.transition.arguments, *specification.observation.arguments}
    wanted = [name for name in specification.covariates if name in asked]
    given = dict(covariates or {})
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in specification.covariates]
    if missing or unknown:
        raise ModelError(
            f"covariates of {label} must have values of {', '.join(wanted) or 'none'} for the new "
            f"rows, got {', '.join(map(str, given)) or 'none'}."
        )
    checked = {}
    for name in wanted:
        variable = specification.covariates[name]
        values, dtype = np.asarray(given[name]), variable.type.dtype
        array = values.astype(dtype)
        if dtype.startswith(("int", "uint")) and (array != values).any():
            raise ModelError(
                f"The covariate {name} of {label} is made of integers in the model, but its values "
                "for the new rows are not: declare it with floats."
            )
        if array.shape[:1] != (n_ahead,) or array.ndim != variable.type.ndim:
            raise ModelError(
                f"The covariate {name} of {label} must have a row for each of {n_ahead} new rows, "
                f"got the shape {array.shape}."
            )
        checked[name] = array
    return checked
