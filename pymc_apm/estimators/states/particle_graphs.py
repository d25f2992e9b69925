"""The functions of a particle filter as graphs, made from what a user says of a model.

Each is a function of all particles, which are the columns of a matrix, of random numbers, of a row
of a table with all that belongs to a time, and of variables of the model. What depends on
variables of the model alone is cut off: it is computed once, and not at each time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.parts import (
    Part,
    draw_of,
    is_draw,
    make_part,
    vectorise,
    with_data,
)
from pymc_apm.estimators.states.quantiles import has_score, quantile_at, score_of
from pymc_apm.estimators.states.rows import filled
from pymc_apm.estimators.states.specification import Specification, attached


class Column(NamedTuple):
    """Where something is in a row of the table."""

    place: int
    shape: tuple[int, ...]

    def of(self, row: TensorVariable) -> TensorVariable:
        """Take it from a row."""
        if self.shape == ():
            return row[self.place]
        return row[self.place : self.place + self.shape[0]]


class Table(NamedTuple):
    """All that belongs to times, as one matrix of floats with a row for each.

    Attributes
    ----------
    values : TensorVariable
    columns : dict
        Where what functions may ask for is, by name, and the data: ``("data", name)``, and
        ``("seen", name)`` for whether they are observed.
    """

    values: TensorVariable
    columns: dict[Any, Column]


class Graphs(NamedTuple):
    """The functions of a particle filter, as graphs.

    Attributes
    ----------
    inputs : dict
        For each function its own inputs, those that it has besides variables of the model.
    outputs : dict
        What each returns.
    closure : dict
        The symbols of variables of the model, and what each of them stands for.
    table : TensorVariable
    n_numbers : int
        How many normal numbers a particle takes at each time.
    n_moving : int
        How many of these a call of ``move`` takes.
    """

    inputs: dict[str, list[TensorVariable]]
    outputs: dict[str, TensorVariable]
    closure: dict[TensorVariable, TensorVariable]
    table: TensorVariable
    n_numbers: int
    n_moving: int


def make_graphs(
    specification: Specification,
    points: int,
    sort_by: Callable[..., Any] | None = None,
    substeps: int = 1,
    has_resets: bool = False,
    proposal: Callable[..., Any] | None = None,
    lookahead: Callable[..., Any] | None = None,
) -> Graphs:
    """Make the functions of a particle filter.

    The density of the transition too, if there is one and there are neither substeps nor states
    that are set to zero; and those of the inverse, if besides each state is a draw whose
    distribution function is known.
    """
    is_markov = substeps == 1 and not has_resets
    if proposal is not None and not is_markov:
        raise ModelError(
            f"proposal of {specification.label} cannot be combined with substeps or accumulate: it "
            "stands for one transition, from row to row."
        )
    maker = _Maker(specification, points, substeps, proposal)
    return maker.make(sort_by, lookahead, is_markov)


class Simulation(NamedTuple):
    """Results of a part as functions of normal numbers.

    Attributes
    ----------
    results : dict
    numbers : list of TensorVariable
        The symbols of the numbers of each draw.
    """

    results: dict[str, TensorVariable]
    numbers: list[TensorVariable]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(int(np.prod(z.type.shape)) for z in self.numbers)


def simulate(part: Part) -> Simulation:
    """Replace the draws of a part by their quantiles at normal numbers.

    Counts remain floats, in which NaN stands for parameters that make no sense, unless the function
    needs integers, as indices are.
    """
    results, numbers = list(part.results.values()), []
    for place in range(len(part.draws)):
        # Draws that depend on draws are replaced from the first to the last.
        draw = next(draw_of(node) for node in toposort(results) if is_draw(node))
        if any(length is None for length in draw.type.shape):
            raise ModelError(
                f"The {part.label} draws from {draw.owner.op}, in a shape that is not known before "
                "it is drawn: give it a shape, pm.X.dist(..., shape=...)."
            )
        z = pt.tensor(f"z_{place}", dtype="float64", shape=draw.type.shape)
        try:
            value = quantile_at(draw, z)
        except Exception as error:
            raise ModelError(f"The {part.label} cannot be simulated: {error}.") from error
        numbers.append(z)
        value = pt.specify_shape(value, draw.type.shape)
        try:
            results = clone_replace(results, replace={draw: value}, rebuild_strict=False)
        except TypeError:  # an integer has no NaN, which goes into the results instead
            is_lost = pt.any(pt.isnan(value))
            value = pt.switch(pt.isnan(value), 0, value).astype(draw.type.dtype)
            results = clone_replace(results, replace={draw: value}, rebuild_strict=False)
            results = [pt.switch(is_lost, np.nan, result) for result in results]
    return Simulation(dict(zip(part.results, results, strict=True)), numbers)


def make_table(specification: Specification) -> Table:
    """Put all that belongs to times into one matrix."""
    arrays: dict[Any, Any] = dict(specification.row_arrays)
    for name, array in specification.data.items():
        arrays["data", name] = filled(specification.label, array, False).values
        arrays["seen", name] = ~np.isnan(array)
    columns, parts, place = {}, [], 0
    is_constant = not any(isinstance(array, Variable) for array in arrays.values())
    for name, array in arrays.items():
        shape = tuple(array.type.shape[1:] if isinstance(array, Variable) else array.shape[1:])
        if None in shape:
            raise ModelError(
                f"The number of columns of the covariate {name} of {specification.label} is not "
                "known: give pm.Data a shape that is."
            )
        columns[name] = Column(place, shape)
        place += int(np.prod(shape))
        part = array.astype("float64")
        parts.append(part if shape else part[:, None])
    if is_constant:
        return Table(pt.as_tensor_variable(np.concatenate(parts, axis=1)), columns)
    return Table(pt.concatenate([pt.as_tensor_variable(p) for p in parts], axis=1), columns)


class _Maker:
    """Makes the graphs of one model."""

    def __init__(
        self,
        specification: Specification,
        points: int,
        substeps: int,
        proposal: Callable[..., Any] | None,
    ) -> None:
        self.specification = specification
        self.substeps = substeps
        self.table = make_table(specification)
        self.starting = simulate(specification.initial)
        self.moving = simulate(specification.transition)
        self.n_moving = self.moving.size
        self.proposal = None if proposal is None else self._part("proposal", proposal)
        if self.proposal is not None:
            self.proposing = simulate(self.proposal)
            self.n_moving = max(self.n_moving, self.proposing.size)
        n_numbers = max(self.starting.size, substeps * self.n_moving)
        dim, width = specification.n_dims, self.table.values.type.shape[1]

        def matrix(name: str, length: int, n: int) -> TensorVariable:
            return pt.tensor(name, dtype="float64", shape=(length, n))

        self.row = pt.tensor("row", dtype="float64", shape=(width,))
        self.x, self.before = matrix("x", dim, points), matrix("before", dim, points)
        self.z_start = matrix("z_start", n_numbers, points)
        self.z = matrix("z", self.n_moving, points)
        self.n_points = points
        self.n_numbers = n_numbers
        self.one, self.one_before = matrix("one", dim, 1), matrix("one_before", dim, 1)
        self.jitter = matrix("jitter", n_numbers, 1)

    def make(
        self,
        sort_by: Callable[..., Any] | None,
        lookahead: Callable[..., Any] | None,
        may_have_density: bool,
    ) -> Graphs:
        """Make all graphs."""
        x, before, row = self.x, self.before, self.row
        inputs = {
            "start": [self.z_start, row],
            "move": [before, self.z, row],
            "log_weights": [x, row],
        }
        specification = self.specification
        outputs = {
            "start": self._simulated(specification.initial, self.starting, None, self.z_start),
            "move": self._moved(),
            "log_weights": self._log_observation(),
        }
        if sort_by is not None:
            inputs["keys"] = [x, row]
            outputs["keys"] = self._number("sort_by", sort_by)
        if lookahead is not None:
            inputs["lookahead"] = [x, row]
            # Not zero, so that no particle is excluded: its weight is divided by this afterwards.
            eta = pt.clip(self._number("lookahead", lookahead), -700.0, 700.0)
            outputs["lookahead"] = pt.switch(self.is_seen, eta, 0.0)
        if self.proposal is not None:
            inputs["guided"] = [before, x, row]
            outputs["guided"] = self._guided_log_weights(outputs["log_weights"])
        if may_have_density and self._has_density():
            inputs["log_transition"] = [before, x, row]
            outputs["log_transition"] = self._log_transition()
        if "log_transition" in outputs and self._has_inverse():
            inputs["unstart"] = [self.one, self.jitter, row]
            inputs["unmove"] = [self.one_before, self.one, self.jitter, row]
            outputs["unstart"] = self._numbers(specification.initial, self.starting, None)
            outputs["unmove"] = self._numbers_of_move()
        own = {symbol for symbols in inputs.values() for symbol in symbols}
        made, closure = closed(list(outputs.values()), own, specification.model)
        return Graphs(
            inputs,
            dict(zip(outputs, made, strict=True)),
            closure,
            self.table.values,
            self.n_numbers,
            self.n_moving,
        )

    def _states(self, x: TensorVariable) -> dict[str, TensorVariable]:
        """Return states, each with the particles along its first axis, from a matrix of them."""
        made = {}
        for state in self.specification.states:
            if state.shape == ():
                made[state.name] = x[state.place]
            else:
                made[state.name] = x[state.place : state.place + state.size].T
        return made

    def _arguments(
        self, arguments: Mapping[str, TensorVariable], x: TensorVariable | None, substeps: int = 1
    ) -> dict[TensorVariable, TensorVariable]:
        """Return what to replace the symbols of arguments by."""
        columns = self.table.columns
        known = {n: columns["data", d].of(self.row) for n, d in self._data.items()}
        # Covariates may have names of data: a function that asks for either is refused.
        known |= {n: column.of(self.row) for n, column in columns.items() if isinstance(n, str)}
        known["dt"] = known["dt"] / substeps
        known |= self._states(x) if x is not None else {}
        for state in self.specification.states:
            if state.is_discrete and state.name in known:
                # The integer that NaN would be is out of the bounds of any array.
                value = known[state.name]
                known[state.name] = pt.switch(pt.isnan(value), 0.0, value)
        return {
            symbol: known[name].astype(symbol.type.dtype)
            for name, symbol in arguments.items()
            if name in known
        }

    def _simulated(
        self,
        part: Part,
        simulation: Simulation,
        x: TensorVariable | None,
        z: TensorVariable,
        substeps: int = 1,
    ) -> TensorVariable:
        """Return particles made from those before and normal numbers."""
        replace = self._arguments(part.arguments, x, substeps) | _taken(simulation.numbers, z)
        results = vectorise(list(simulation.results.values()), replace)
        made = dict(zip(simulation.results, attached(results, part.closure), strict=True))
        rows = []
        for state in self.specification.states:
            shape = (self.n_points, *state.shape)
            value = pt.zeros(shape) + made[state.name].astype("float64")
            rows.append(value.T if state.shape else value[None, :])
        made_of_all = pt.concatenate(rows, axis=0) if len(rows) > 1 else rows[0]
        if x is None or not any(state.is_discrete for state in self.specification.states):
            return made_of_all
        return pt.switch(pt.any(pt.isnan(x), axis=0), np.nan, made_of_all)

    def _log_observation(self) -> TensorVariable:
        """Return the log density of what was observed; NaN for a state that is none."""
        specification, part = self.specification, self.specification.observation
        replace = self._arguments(part.arguments, self.x)
        data = {name: self.table.columns["data", name].of(self.row) for name in specification.data}
        if specification.gives_log_density:
            (name,) = data
            if "y" in part.arguments:
                replace[part.arguments["y"]] = data[name]
            densities = part.results
        else:
            values = {}
            for name, result in part.results.items():
                is_integer = result.type.dtype.startswith(("int", "uint"))
                filled(specification.label, specification.data[name], is_integer)
                shape = self.table.columns["data", name].shape
                dtype = "int64" if is_integer else "float64"
                values[name] = pt.tensor(name, dtype=dtype, shape=shape)
                replace[values[name]] = data[name].astype(dtype)
            densities = part.log_density(values)
        made = vectorise(list(densities.values()), replace)
        total = pt.zeros(self.n_points)
        for name, batch in zip(densities, attached(made, part.closure), strict=True):
            total += self._where_observed(name, densities[name], batch)
        return pt.switch(pt.any(pt.isnan(self.x), axis=0), np.nan, total)

    def _where_observed(
        self, name: str, density: TensorVariable, batch: TensorVariable
    ) -> TensorVariable:
        column = self.table.columns["seen", name]
        is_seen, is_constant = (
            column.of(self.row),
            not np.isnan(self.specification.data[name]).any(),
        )
        if column.shape and density.type.ndim == 0:
            missing = np.isnan(self.specification.data[name])
            if (missing.any(axis=1) != missing.all(axis=1)).any():
                raise ModelError(
                    f"Some rows of the data of {self.specification.label} are missing in part, but "
                    "the observation has one density for all of a row. Make it of independent "
                    "parts: a dict of data and a dict of distributions, or a distribution of each "
                    "element."
                )
            is_seen = is_seen[0]
        if not is_constant:
            batch = pt.switch(is_seen > 0.0, batch, 0.0)
        return pt.sum(batch, axis=-1) if density.type.ndim else batch

    # Functions that the user gives besides

    @property
    def _data(self) -> dict[str, str]:
        """By what names functions may ask for data: ``y``, or their own if they are several."""
        names = list(self.specification.data)
        return {"y": names[0]} if len(names) == 1 else {name: name for name in names}

    @property
    def is_seen(self) -> TensorVariable:
        """Whether all data of the row are there."""
        columns = [self.table.columns["seen", name] for name in self.specification.data]
        return pt.all(pt.stack([pt.all(column.of(self.row) > 0.0) for column in columns]))

    def _part(self, option: str, function: Callable[..., Any], names: Sequence[str] = ()) -> Part:
        """Call a function of states, of what belongs to a row, and of its data."""
        specification = self.specification
        shapes = {
            name: pt.tensor(name, dtype="float64", shape=self.table.columns["data", d].shape)
            for name, d in self._data.items()
        }
        known, label = specification.symbols(), f"{option} of {specification.label}"
        if option != "sort_by":
            known = with_data(label, function, known, shapes)
        results = names or [state.name for state in specification.states]
        return make_part(label, function, known, results, specification.model)

    def _number(self, option: str, function: Callable[..., Any]) -> TensorVariable:
        """Return a number for each particle, computed from its states."""
        part = self._part(option, function, ["number"])
        (number,) = part.results.values()
        if part.draws or number.type.ndim:
            raise ModelError(f"{part.label} must be a number, computed from states without a draw.")
        (made,) = vectorise([number], self._arguments(part.arguments, self.x))
        (made,) = attached([made], part.closure)
        return pt.zeros(self.n_points) + made.astype("float64")

    def _moved(self) -> TensorVariable:
        """Return particles after a move: by the proposal, if there is one, where all is seen."""
        moved = self._simulated(
            self.specification.transition, self.moving, self.before, self.z, self.substeps
        )
        if self.proposal is None:
            return moved
        proposed = self._simulated(self.proposal, self.proposing, self.before, self.z)
        return pt.switch(self.is_seen, proposed, moved)

    def _guided_log_weights(self, log_weights: TensorVariable) -> TensorVariable:
        """Return the log weights of particles that a proposal made."""
        assert self.proposal is not None
        proposed = self.specification._replace(transition=self.proposal)
        log_ratio = self._log_transition() - self._log_transition(proposed)
        return log_weights + pt.switch(self.is_seen, log_ratio, 0.0)

    def _numbers_of_move(self) -> TensorVariable:
        """Return the normal numbers that make a move of one particle."""

        def of(part: Part, simulation: Simulation) -> TensorVariable:
            return self._numbers(part, simulation, self.one_before)

        moved = of(self.specification.transition, self.moving)
        if self.proposal is None:
            return moved
        return pt.switch(self.is_seen, of(self.proposal, self.proposing), moved)

    # The inverse

    def _has_inverse(self) -> bool:
        """Say whether random numbers can be found that make given states."""
        specification = self.specification
        parts = [specification.transition]
        if self.proposal is not None:
            if self.proposing.size != self.moving.size:
                return False  # numbers that a move does not take would have to be left as they are
            parts.append(self.proposal)
        if not specification.is_fixed_start:
            parts.append(specification.initial)
        for part in parts:
            draws = part.draws
            results = list(part.results.values())
            if set(draws) != set(results) or len(draws) != len(results):
                return False
            if not all(part.depends_on_no_other(name) for name in part.results):
                return False
            if not all(map(has_score, draws)):
                return False
        return True

    def _has_density(self) -> bool:
        """Say whether PyMC can derive the density of the transition."""
        try:
            self.specification.transition_density()
        except ModelError:
            return False
        return True

    def _log_transition(self, specification: Specification | None = None) -> TensorVariable:
        density = (specification or self.specification).transition_density()
        replace = self._arguments({**density.inputs, **density.previous}, self.before)
        for name, batch in self._states(self.x).items():
            replace[density.current[name]] = batch.astype(density.current[name].type.dtype)
        (made,) = vectorise([density.value], replace)
        (made,) = attached([made], density.closure)
        return pt.zeros(self.n_points) + made

    def _numbers(
        self, part: Part, simulation: Simulation, before: TensorVariable | None
    ) -> TensorVariable:
        """Return the normal numbers that make the states of one particle."""
        if not simulation.numbers:
            return pt.zeros((0, 1))
        replace = self._arguments(part.arguments, before)
        values, jitters, scores = self._states(self.one), [], []
        for draw, z in zip(part.draws, simulation.numbers, strict=True):
            (name,) = [name for name, result in part.results.items() if result is draw]
            value = pt.tensor(name, dtype=draw.type.dtype, shape=draw.type.shape)
            jitters.append(z.type("jitter"))
            scores.append(score_of(draw, value, jitters[-1]))
            replace[value] = values[name].astype(draw.type.dtype)
        replace |= _taken(jitters, self.jitter)
        made = attached(vectorise(scores, replace), part.closure)
        rows = []
        for score, z in zip(made, simulation.numbers, strict=True):
            value = pt.zeros((1, *z.type.shape)) + score
            rows.append(value.T if z.type.ndim else value[None, :])
        return pt.concatenate(rows, axis=0) if len(rows) > 1 else rows[0]


def _taken(
    symbols: Sequence[TensorVariable], z: TensorVariable
) -> dict[TensorVariable, TensorVariable]:
    """Take the numbers of some draws from the rows of a matrix, one draw after the other."""
    taken, place = {}, 0
    for symbol in symbols:
        if symbol.type.ndim == 0:
            taken[symbol] = z[place]
            place += 1
            continue
        if symbol.type.ndim > 1:
            raise ModelError("Draws in transitions must be numbers or vectors.")
        size = symbol.type.shape[0]
        taken[symbol] = z[place : place + size].T
        place += size
    return taken


def closed(
    outputs: Sequence[TensorVariable], own: set[Variable], model: pm.Model
) -> tuple[list[TensorVariable], dict[TensorVariable, TensorVariable]]:
    """Replace what depends on none of a graph's own inputs by symbols.

    Constants, and what is computed from these alone, remain, and so do views: they are worth
    nothing by themselves.

    Returns
    -------
    outputs : list of TensorVariable
    closure : dict
        The symbols, and what each of them stands for.
    """
    blockers = set(model.root.basic_RVs)
    inner, varies = set(own), set(blockers)
    for node in toposort(list(outputs), blockers=blockers):
        for source in node.inputs:
            if source.owner is None and not isinstance(source, Constant):
                varies.add(source)
        if any(source in inner for source in node.inputs):
            inner.update(node.outputs)
        if any(source in varies for source in node.inputs):
            varies.update(node.outputs)
    closure: dict[TensorVariable, TensorVariable] = {}
    replacements: dict[Variable, Variable] = {}
    seen: set[Variable] = set()
    stack: list[Variable] = list(outputs)
    while stack:
        variable = stack.pop()
        if variable in seen or variable in own or variable not in inner | varies:
            continue
        seen.add(variable)
        node = None if variable in blockers else variable.owner
        is_worth_it = isinstance(variable.type, pt.TensorType) and not (
            node is not None and isinstance(node.op, DimShuffle | ScalarFromTensor)
        )
        if node is not None and (variable in inner or not is_worth_it):
            stack.extend(node.inputs)
        else:
            symbol = variable.type(name=variable.name)
            replacements[variable] = symbol
            closure[symbol] = variable
    return clone_replace(list(outputs), replacements, rebuild_strict=False), closure
