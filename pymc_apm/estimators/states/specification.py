"""What a user says of a state-space model, parsed: the front end of all its estimators.

A :class:`Specification` is a value. It has three parts, functions of the user's as graphs
(:class:`~pymc_apm.estimators.states.parts.Part`), the rows of the data with what goes with
each of them, and how states are laid out in one vector. From these it makes

- log densities, :meth:`Specification.log_initial`, :meth:`~Specification.log_observation` and
  :meth:`~Specification.transition_density`, with errors that name what has none;
- simulations: ``specification.transition.simulation()`` has each draw made from uniform numbers by
  its quantiles, ``.random(...)`` by a generator.

The functions describe one state at one time, and ``vectorise`` of that module makes functions of
batches of them. Variables of the model are symbols in all parts, their *closure*, so that a part is
a graph of its own; :func:`attached` puts the variables back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import compile_function
from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.parts import Part, argument_names, make_part, vectorise
from pymc_apm.estimators.states.rows import (
    RESERVED,
    Data,
    Rows,
    filled,
    make_covariates,
    make_data,
    make_rows,
)

__all__ = ["Specification", "State", "TransitionDensity", "attached", "parse"]


class State(NamedTuple):
    """One of the states of a model.

    Attributes
    ----------
    name : str
        Its name as an argument of functions.
    shape : tuple of int
        ``()`` for a number, ``(k,)`` for a vector.
    is_discrete : bool
    place : int
        Where it begins in the vector of all states.
    """

    name: str
    shape: tuple[int, ...]
    is_discrete: bool
    place: int

    @property
    def size(self) -> int:
        """How many numbers it is made of."""
        return math.prod(self.shape)

    def of(self, vector: Any) -> Any:
        """Take it from vectors of all states, which are along the last axis."""
        if self.shape == ():
            return vector[..., self.place]
        return vector[..., self.place : self.place + self.size]

    @property
    def labels(self) -> list[str]:
        """A name for each of its numbers."""
        if self.shape == ():
            return [self.name]
        return [f"{self.name}[{place}]" for place in range(self.size)]


class TransitionDensity(NamedTuple):
    """The log density of a transition, as a graph of symbols, for one state at one time.

    Attributes
    ----------
    value : TensorVariable
        A scalar.
    previous, current : dict
        The symbols of states before and after, by name.
    inputs : dict
        The symbols of what else is asked for: ``t``, ``dt``, ``time``, ``series``, covariates.
    closure : dict
        Symbols for variables of the model, and what each of them stands for.
    """

    value: TensorVariable
    previous: dict[str, TensorVariable]
    current: dict[str, TensorVariable]
    inputs: dict[str, TensorVariable]
    closure: dict[TensorVariable, TensorVariable]


class Specification(NamedTuple):
    """A state-space model, parsed.

    Attributes
    ----------
    name : str
        The name of the estimate in the model.
    states : tuple of State
    rows : Rows
        When and of which series the data are.
    data : dict
        Arrays of data, by name; one of them unless the user gave a dict. They are in the order of
        rows, and NaN where they are missing.
    covariates : dict
        Variables with the rows along the first axis, by name.
    initial, transition, observation : Part
        The results of the first two are states, those of the third are data. The transition into a
        row is given what belongs to that row: its ``t``, its ``time``, its covariates, and the time
        ``dt`` since the row before.
    gives_log_density : bool
        Whether the observation is not a distribution but the log of a density, a function of ``y``.
    model : Model
    """

    name: str
    states: tuple[State, ...]
    rows: Rows
    data: dict[str, NDArray[np.float64]]
    covariates: dict[str, TensorVariable]
    initial: Part
    transition: Part
    observation: Part
    gives_log_density: bool
    model: pm.Model

    @property
    def label(self) -> str:
        """What it is, for messages."""
        return f"state_space({self.name!r})"

    @property
    def n_dims(self) -> int:
        """The length of the vector of all states."""
        return sum(state.size for state in self.states)

    @property
    def is_fixed_start(self) -> bool:
        """Whether the first states are given, not drawn."""
        return len(self.initial.without_draws()) == len(self.states)

    @property
    def row_arrays(self) -> dict[str, Any]:
        """What functions may ask for besides states, with the rows along the first axis."""
        rows = self.rows
        own = {"t": rows.t, "dt": rows.dt, "time": rows.time, "series": rows.series}
        return own | self.covariates

    def symbols(self) -> dict[str, TensorVariable]:
        """Return symbols of all that functions may ask for, by name: states, and what rows have."""
        return _symbols_of_rows(self.covariates) | _symbols_of_states(self.states)

    def split(self, vector: Any) -> dict[str, Any]:
        """Return the states, by name, in vectors of all states along the last axis."""
        return {state.name: state.of(vector) for state in self.states}

    def batch_of_rows(
        self, arguments: Mapping[str, TensorVariable], rows: Any, n_axes: int
    ) -> dict[TensorVariable, TensorVariable]:
        """Return what belongs to some rows, for :func:`vectorise`, by the symbol of the argument.

        Parameters
        ----------
        arguments : dict
            Symbols by name; those of states are left out.
        rows : index
            Which rows: an array of integers, a slice, ...
        n_axes : int
            How many axes of length one to put after that of the rows.
        """
        arrays = self.row_arrays
        made = {}
        for name, symbol in arguments.items():
            if name in arrays:
                taken = pt.as_tensor_variable(arrays[name])[rows]
                made[symbol] = with_axes(taken, n_axes).astype(symbol.type.dtype)
        return made

    # Densities

    def log_initial(self, states: TensorVariable) -> TensorVariable:
        """Return the log density of first states.

        Parameters
        ----------
        states : TensorVariable
            Of shape (series, points, numbers of a state).

        Returns
        -------
        TensorVariable
            Of shape (series, points).
        """
        values = self._symbols_of_states()
        densities = self.initial.log_density(values)
        total = sum(_summed(density) for density in densities.values())
        first = np.flatnonzero(self.rows.is_first)
        replace = self.batch_of_rows(self.initial.arguments, first, 1)
        replace |= {values[name]: batch for name, batch in self.split(states).items()}
        (made,) = vectorise([pt.as_tensor_variable(total)], replace)
        return attached([made], self.initial.closure)[0]

    def fixed_start(self) -> TensorVariable:
        """Return the first states of all series, of shape (series, numbers), if they are given."""
        first = np.flatnonzero(self.rows.is_first)
        replace = self.batch_of_rows(self.initial.arguments, first, 0)
        results = vectorise(list(self.initial.results.values()), replace)
        results = attached(results, self.initial.closure)
        columns = []
        for state, result in zip(self.states, results, strict=True):
            shape = (self.rows.n_series, *state.shape)
            column = pt.broadcast_to(result.astype("float64"), shape)
            columns.append(column[:, None] if state.shape == () else column)
        return pt.concatenate(columns, axis=1)

    def transition_density(self) -> TransitionDensity:
        """Return the log density of a transition, as a graph of symbols."""
        current = self._symbols_of_states()
        densities = self.transition.log_density(current)
        total = sum(_summed(density) for density in densities.values())
        arguments, names = self.transition.arguments, [state.name for state in self.states]
        return TransitionDensity(
            pt.as_tensor_variable(total),
            {name: symbol for name, symbol in arguments.items() if name in names},
            current,
            {name: symbol for name, symbol in arguments.items() if name not in names},
            self.transition.closure,
        )

    def log_observation(
        self, states: TensorVariable, rows: Any = None, is_attached: bool = True
    ) -> TensorVariable:
        """Return the log density of all data of a row given states; 0 for what is missing.

        Parameters
        ----------
        states : TensorVariable
            Of shape (rows, points, numbers of a state).
        rows : vector of int, optional
            Which rows; all if not given.
        is_attached : bool
            Whether variables of the model are in it; if not, the closure of the observation is.

        Returns
        -------
        TensorVariable
            Of shape (rows, points).
        """
        part = self.observation
        rows = slice(None) if rows is None else rows
        replace = self.batch_of_rows(part.arguments, rows, 1)
        replace |= {
            part.arguments[name]: batch
            for name, batch in self.split(states).items()
            if name in part.arguments
        }
        if self.gives_log_density:
            ((name, array),) = self.data.items()
            data = filled(self.label, array, False)
            if "y" in part.arguments:
                replace[part.arguments["y"]] = with_axes(
                    pt.as_tensor_variable(data.values)[rows], 1
                )
            totals = {name: (part.results[name], data)}
        else:
            totals = {}
            values = {}
            for name, result in part.results.items():
                data = filled(
                    self.label, self.data[name], result.type.dtype.startswith(("int", "uint"))
                )
                values[name] = pt.tensor(
                    name, dtype=data.values.dtype.name, shape=data.values.shape[1:]
                )
                replace[values[name]] = with_axes(pt.as_tensor_variable(data.values)[rows], 1)
                totals[name] = (result, data)
            densities = part.log_density(values)
            totals = {name: (densities[name], data) for name, (_, data) in totals.items()}
        made = vectorise([density for density, _ in totals.values()], replace)
        made = attached(made, part.closure) if is_attached else made
        terms = []
        for (density, data), batch in zip(totals.values(), made, strict=True):
            terms.append(_where_observed(self.label, density, batch, data, rows))
        total = sum(terms)
        return pt.broadcast_to(total, (states.shape[0], states.shape[1]))

    def _symbols_of_states(self) -> dict[str, TensorVariable]:
        return {
            state.name: pt.tensor(
                f"{state.name}_now",
                dtype="int64" if state.is_discrete else "float64",
                shape=state.shape,
            )
            for state in self.states
        }


def attached(
    outputs: Sequence[TensorVariable], closure: Mapping[TensorVariable, TensorVariable]
) -> list[TensorVariable]:
    """Put variables of the model back in the place of their symbols."""
    # It leaves variables of the model as they are, where clone_replace would copy them.
    return list(graph_replace(list(outputs), replace=dict(closure), strict=False))


def with_axes(array: TensorVariable, n_axes: int) -> TensorVariable:
    """Put axes of length one after the first axis."""
    order = [0, *["x"] * n_axes, *range(1, array.type.ndim)]
    return array.dimshuffle(*order)


def _summed(density: TensorVariable) -> TensorVariable:
    """Add up independent elements, written out, which is faster in batches."""
    if density.type.ndim == 0:
        return density
    if density.type.ndim == 1 and density.type.shape[0] is not None:
        return sum((density[place] for place in range(1, density.type.shape[0])), density[0])
    return pt.sum(density)


def _where_observed(
    label: str, density: TensorVariable, batch: TensorVariable, data: Data, rows: Any
) -> TensorVariable:
    """Add up the densities of what is observed; ``density`` is for one row and state."""
    n_axes = density.type.ndim
    seen = data.is_observed
    if n_axes < seen.ndim - 1:
        if (seen.any(axis=1) != seen.all(axis=1)).any():
            raise ModelError(
                f"Some rows of the data of {label} are missing in part, but the observation has "
                "one density for all of a row. Make it of independent parts: a dict of data and a "
                "dict of distributions, or a distribution of each element."
            )
        seen = np.asarray(seen.all(axis=1))
    if seen.all():
        return pt.sum(batch, axis=-1) if n_axes else batch
    mask = with_axes(pt.as_tensor_variable(seen)[rows], 1)
    batch = pt.switch(mask, batch, 0.0)
    return pt.sum(batch, axis=-1) if n_axes else batch


# Parsing


def parse(
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
    model: pm.Model | None = None,
) -> Specification:
    """Parse what a user says of a state-space model.

    Parameters
    ----------
    name : str
    data : array or dict of arrays
        With a row for each time. NaN, or what is masked, is missing.
    initial : distribution, number, array, function, or dict of these
        The first state of a series. A function is given what belongs to its first row.
    transition : callable
        From the states of the row before to those of a row.
    observation : callable
        From the states of a row to its data: a distribution, a dict of them if the data are a dict,
        or, if it has the argument ``y``, the log of the density.
    states : str or tuple of str, optional
        The names of the states; by default those of the dict ``initial``, or ``"x"``.
    times : array, optional
    covariates : dict, optional
    series : array, optional
        The label of the series of each row.
    model : Model, optional

    Returns
    -------
    Specification

    Raises
    ------
    ModelError

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from pymc_apm.estimators.states.specification import parse
    >>> with pm.Model():
    ...     rho = pm.Uniform("rho", -1, 1)
    ...     model = parse(
    ...         "y",
    ...         np.array([0.3, np.nan, 1.2]),
    ...         initial=pm.Normal.dist(0, 1),
    ...         transition=lambda x: pm.Normal.dist(rho * x, 1),
    ...         observation=lambda x: pm.Poisson.dist(pm.math.exp(x)),
    ...     )
    >>> model.n_dims, len(model.rows), [str(draw.owner.op) for draw in model.transition.draws]
    (1, 3, ['normal_rv{"(),()->()"}'])
    """
    model = pm.modelcontext(model)
    label = f"state_space({name!r})"
    names = _names_of_states(label, states, initial)
    arrays = (
        {str(key): make_data(label, array) for key, array in data.items()}
        if isinstance(data, Mapping)
        else {name: make_data(label, data)}
    )
    if not arrays or len({len(array) for array in arrays.values()}) != 1:
        raise ModelError(f"All data of {label} must have the same number of rows.")
    rows = make_rows(label, len(next(iter(arrays.values()))), times, series)
    arrays = {key: array[rows.order] for key, array in arrays.items()}
    made = make_covariates(label, covariates, rows, names)
    for key, variable in made.items():
        if not set(model.root.basic_RVs).isdisjoint(ancestors([variable])):
            raise ModelError(
                f"The covariate {key} of {label} depends on variables of the model, which functions"
                " use as they are, without being given them."
            )

    known = _symbols_of_rows(made)
    first = make_part(
        f"initial of {label}",
        initial if callable(initial) else lambda: initial,
        known,
        names,
        model,
    )
    fixed = first.without_draws()
    if fixed and len(fixed) < len(names):
        raise ModelError(
            f"initial of {label} has draws for some states and fixed values for {', '.join(fixed)}:"
            " give all states a distribution, or none."
        )
    all_states = _states(label, first, rows, made)
    symbols = _symbols_of_states(all_states)
    next_ = make_part(f"transition of {label}", transition, symbols | known, names, model)
    counts = [state.name for state in all_states if state.is_discrete]
    moved = [name for name in counts if next_.results[name].type.dtype.startswith("float")]
    if moved:  # they start as counts, and do not remain so
        all_states = tuple(
            state._replace(is_discrete=state.is_discrete and state.name not in moved)
            for state in all_states
        )
        symbols = _symbols_of_states(all_states)
        next_ = make_part(f"transition of {label}", transition, symbols | known, names, model)
    _check_shapes(label, next_, all_states)
    gives_log_density = "y" in argument_names(f"observation of {label}", observation)
    if gives_log_density:
        if len(arrays) > 1:
            raise ModelError(
                f"The observation of {label} is a log density of y, for which the data must be one "
                "array."
            )
        (array,) = arrays.values()
        known = {**known, "y": pt.tensor("y", dtype="float64", shape=array.shape[1:])}
    seen = make_part(f"observation of {label}", observation, symbols | known, list(arrays), model)
    _check_observation(label, seen, arrays, gives_log_density)
    return Specification(
        name, all_states, rows, arrays, made, first, next_, seen, gives_log_density, model
    )


def _names_of_states(label: str, states: Any, initial: Any) -> tuple[str, ...]:
    if states is None:
        names = tuple(initial) if isinstance(initial, Mapping) else ("x",)
    else:
        names = (states,) if isinstance(states, str) else tuple(states)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            raise ModelError(
                f"A state of {label} is called {name!r}: that must be the name of an argument, and "
                f"none of {', '.join(RESERVED)}."
            )
    if not names or len(set(names)) < len(names):
        raise ModelError(f"states of {label} must be different names, got {states!r}.")
    return names


def _symbols_of_states(states: Sequence[State]) -> dict[str, TensorVariable]:
    return {
        state.name: pt.tensor(
            state.name, dtype="int64" if state.is_discrete else "float64", shape=state.shape
        )
        for state in states
    }


def _symbols_of_rows(covariates: Mapping[str, TensorVariable]) -> dict[str, TensorVariable]:
    symbols: dict[str, TensorVariable] = {
        "t": pt.tensor("t", dtype="int64", shape=()),
        "dt": pt.tensor("dt", dtype="float64", shape=()),
        "time": pt.tensor("time", dtype="float64", shape=()),
        "series": pt.tensor("series", dtype="int64", shape=()),
    }
    for name, variable in covariates.items():
        symbols[name] = pt.tensor(name, dtype=variable.type.dtype, shape=variable.type.shape[1:])
    return symbols


def _states(
    label: str, initial: Part, rows: Rows, covariates: Mapping[str, TensorVariable]
) -> tuple[State, ...]:
    """Find out what states look like, from the first ones."""
    made: list[State] = []
    for name, result in initial.results.items():
        if result.type.ndim > 1:
            raise ModelError(
                f"The state {name} of {label} must be a number or a vector, but its initial value "
                f"has {result.type.ndim} axes."
            )
        shape = result.type.shape
        if None in shape:
            shape = _computed_shape(label, name, result, initial)
        is_discrete = result.type.dtype.startswith(("int", "uint", "bool"))
        if name in initial.without_draws():
            is_discrete = False
        place = made[-1].place + made[-1].size if made else 0
        made.append(State(name, tuple(map(int, shape)), is_discrete, place))
    return tuple(made)


def _computed_shape(
    label: str, name: str, result: TensorVariable, initial: Part
) -> tuple[int, ...]:
    try:
        inputs: list[Variable] = [*initial.arguments.values(), *initial.closure]
        function = compile_function(inputs, [result.shape], mode="FAST_COMPILE")
        values = [
            np.zeros([n or 1 for n in symbol.type.shape], symbol.type.dtype) for symbol in inputs
        ]
        return tuple(int(length) for length in function(*values)[0])
    except Exception as error:
        raise ModelError(
            f"The length of the state {name} of {label} is unknown: give its initial distribution "
            "a shape, pm.Normal.dist(..., shape=...)."
        ) from error


def _check_shapes(label: str, transition: Part, states: Sequence[State]) -> None:
    for state in states:
        result = transition.results[state.name]
        fits = result.type.ndim == len(state.shape) and all(
            found in (None, wanted)
            for found, wanted in zip(result.type.shape, state.shape, strict=True)
        )
        if not fits:
            raise ModelError(
                f"The transition of {label} makes a state {state.name} of shape "
                f"{result.type.shape}, but at first its shape is {state.shape}."
            )


def _check_observation(
    label: str, part: Part, arrays: Mapping[str, NDArray[Any]], gives_log_density: bool
) -> None:
    if gives_log_density:
        (result,) = part.results.values()
        if part.draws:
            raise ModelError(
                f"The observation of {label} has the argument y, so that it must return the log of "
                "a density, but there are draws in what it returns."
            )
        (array,) = arrays.values()
        if result.type.ndim > array.ndim - 1:
            raise ModelError(
                f"The observation of {label} must return the log of the density of a row: a "
                "number, or one for each element of y."
            )
        return
    fixed = part.without_draws()
    if fixed:
        raise ModelError(
            f"The observation of {label} must return a distribution, as pm.X.dist(...) makes it, "
            f"but for {', '.join(fixed)} there is no draw in it. A function that returns the log "
            "of the density has y, the data of a row, among its arguments."
        )
    for name, array in arrays.items():
        result = part.results[name]
        if result.type.ndim != array.ndim - 1 or any(
            found not in (None, wanted)
            for found, wanted in zip(result.type.shape, array.shape[1:], strict=True)
        ):
            raise ModelError(
                f"The observation of {label} has the shape {result.type.shape}, but a row of its "
                f"data {name} has the shape {array.shape[1:]}."
            )
