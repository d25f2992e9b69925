"""A function of the user's as a graph: the initial distribution, the transition, the observation.

A function is called once, with a symbolic variable for each of its arguments. What it returns
refers to variables of the model too; these are cut off and replaced by symbols, the *closure* of
the part. So a part is a graph of its own, for one state at one time, and can be turned into

- a log density, with :meth:`Part.log_density`, if PyMC can derive one,
- a simulation, with :meth:`Part.simulation`,

and :func:`vectorise` makes either of these a function of as many states, times and parameters as
one likes. The graph is for one state, so that users need not think of axes of batches.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.logprob.basic import conditional_logp
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar import basic as scalar
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.random.basic import BetaBinomialRV, BinomialRV, MultinomialRV, MvNormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError

OF_INTEGERS = (BinomialRV, BetaBinomialRV, MultinomialRV)
"""Draws whose first parameter NumPy wants as an integer; states that are counts are floats."""

MAKE_ATOMS = (
    scalar.Ceil,
    scalar.Floor,
    scalar.Trunc,
    scalar.RoundHalfToEven,
    scalar.RoundHalfAwayFromZero,
    scalar.IntDiv,
    scalar.Sign,
    scalar.Clip,
    scalar.Maximum,
    scalar.Minimum,
)
"""Functions that make some values of a continuous draw have positive probability."""

HAVE_ATOMS = ("CensoredRV", "_HurdleRV", "DiracDeltaRV")
"""Distributions of floats of which some values have positive probability."""

LOG_2_PI = float(np.log(2.0 * np.pi))


class Part(NamedTuple):
    """What a function of the user's returns, as a graph of its own.

    Attributes
    ----------
    label : str
        What it is, for messages.
    arguments : dict
        The symbol of each argument that the function has, by name.
    results : dict
        What it returned, by name of the state or of the data: a draw (what ``pm.X.dist`` makes), an
        expression with draws inside, or one without.
    closure : dict
        The symbols that stand for variables of the model: what each of them stands for.
    """

    label: str
    arguments: dict[str, TensorVariable]
    results: dict[str, TensorVariable]
    closure: dict[TensorVariable, TensorVariable]

    @property
    def draws(self) -> list[TensorVariable]:
        """The draws inside, those that others depend on first."""
        nodes = toposort(list(self.results.values()))
        return [draw_of(node) for node in nodes if is_draw(node)]

    def without_draws(self) -> list[str]:
        """Return the names of results that have no draws inside."""
        draws = set(self.draws)
        return [
            name for name, result in self.results.items() if draws.isdisjoint(ancestors([result]))
        ]

    def with_atoms(self) -> list[str]:
        """Return the names of results some values of which have positive probability.

        PyMC derives densities for some of them, of which single values count, not areas: counts
        that were made floats, what is rounded or clipped.
        """
        draws = set(self.draws)
        varies: set[Variable] = set(draws)
        for node in toposort(list(self.results.values())):
            if any(source in varies for source in node.inputs):
                varies.update(node.outputs)
        found = []
        for name, result in self.results.items():
            inside = [v for v in ancestors([result], blockers=draws) if v in varies]
            own = draws.intersection(inside)
            if (
                any(not draw.type.dtype.startswith("float") for draw in own)
                or any(
                    isinstance(getattr(v.owner.op, "scalar_op", None), MAKE_ATOMS) for v in inside
                )
                or any(
                    v.owner is not None and type(v.owner.op).__name__ in HAVE_ATOMS
                    for v in ancestors([result])
                )
            ):
                found.append(name)
        return found

    def log_density(self, values: Mapping[str, TensorVariable]) -> dict[str, TensorVariable]:
        """Return the log density of each result at a value, given the arguments and results before.

        Parameters
        ----------
        values : dict
            A symbol for each result, of the shape of one state.

        Returns
        -------
        dict
            Each with as many axes as the result has independent elements.

        Raises
        ------
        ModelError
            If there is none; it names the results.
        """
        fixed = self.without_draws()
        if fixed:
            raise ModelError(
                f"The {self.label} has no density, because it makes {', '.join(fixed)} without a "
                "draw: return what pm.X.dist(...) makes, or a function of it."
            )
        self._check_different()
        made = {}
        if len(self.results) == 1 or all(result in self.draws for result in self.results.values()):
            made = {
                name: _log_density_of_draw(result, values[name])
                for name, result in self.results.items()
                if result in self.draws and self.depends_on_no_other(name)
            }
        if len(made) < len(self.results):
            made = self._by_pymc(values)
        replaced = without_checks(list(made.values()))
        return dict(zip(made, replaced, strict=True))

    def depends_on_no_other(self, name: str) -> bool:
        """Say whether a result that is a draw has no other draw among its parameters."""
        result = self.results[name]
        return not set(self.draws) - {result} & set(ancestors([result]))

    def _check_different(self) -> None:
        of_result: dict[TensorVariable, list[str]] = {}
        for name, result in self.results.items():
            of_result.setdefault(result, []).append(name)
        twice = [names for names in of_result.values() if len(names) > 1]
        if twice:
            raise ModelError(
                f"The {self.label} has no density, because {' and '.join(twice[0])} are one and "
                "the same draw."
            )

    def _by_pymc(self, values: Mapping[str, TensorVariable]) -> dict[str, TensorVariable]:
        try:
            found = conditional_logp({r: values[name] for name, r in self.results.items()})
            made = {name: found[values[name]] for name in self.results}
        except Exception as error:  # each op that PyMC does not know says so in its own way
            raise ModelError(self._no_density(error)) from error
        if any(is_draw(node) for node in toposort(list(made.values()))):
            raise ModelError(self._no_density("more draws go into it than come out"))
        shapes = [v.type.shape for v in (*self.draws, *self.results.values())]
        if not any(None in shape for shape in shapes):
            sizes = [int(np.prod(shape)) for shape in shapes]
            if sum(sizes[: len(self.draws)]) < sum(sizes[len(self.draws) :]):
                raise ModelError(self._no_density("more numbers come out of it than are drawn"))
        return made

    def _no_density(self, reason: Any) -> str:
        simple = [name for name, result in self.results.items() if result in self.draws]
        others = [name for name in self.results if name not in simple] or simple
        return (
            f"PyMC cannot derive the density of {', '.join(others)} in the {self.label} ({reason})."
            " What works is a draw, as pm.X.dist(...) makes it, for each state, or a function of "
            "one that pm.logp knows, such as a + b * draw or exp(draw)."
        )

    def simulation(
        self, quantile: Callable[[TensorVariable, TensorVariable], TensorVariable] | None = None
    ) -> tuple[dict[str, TensorVariable], list[TensorVariable]]:
        """Return the results as functions of numbers from which their draws are made.

        Parameters
        ----------
        quantile : callable, optional
            ``quantile(draw, u)`` returns the quantile of a draw at ``u``, which has the shape of
            the draw; by default ``pm.icdf``. If there is none, it raises an exception.

        Returns
        -------
        results : dict
        u : list of TensorVariable
            A symbol for the uniform numbers of each of :attr:`draws`.

        Raises
        ------
        ModelError
            If a draw has no quantiles; it names the distribution.
        """
        quantile = quantile or pm.icdf
        results, symbols = list(self.results.values()), []
        for place in range(len(self.draws)):
            # Draws that depend on draws are replaced from the first to the last.
            draw = next(draw_of(node) for node in toposort(results) if is_draw(node))
            u = pt.tensor(f"u_{place}", dtype="float64", shape=draw.type.shape)
            try:
                value = quantile(draw, u)
            except Exception as error:
                raise ModelError(
                    f"The {self.label} draws from {draw.owner.op}, whose quantiles are not known "
                    f"({error})."
                ) from error
            symbols.append(u)
            value = pt.specify_shape(value.astype(draw.type.dtype), draw.type.shape)
            results = clone_replace(results, replace={draw: value}, rebuild_strict=False)
        return dict(zip(self.results, results, strict=True)), symbols

    def random(self, batch: TensorVariable) -> dict[str, TensorVariable]:
        """Return the results with random draws that become independent of each other in a batch.

        Parameters
        ----------
        batch : TensorVariable
            A symbol for the number 0. Where it is vectorised, there is a draw for each element,
            also of what depends on nothing else that is.
        """
        made: dict[Variable, Variable] = {}
        for node in toposort(list(self.results.values())):
            # Each node once, or a draw that others depend on were several of one generator.
            inputs = [made.get(source, source) for source in node.inputs]
            if is_draw(node):
                first = node.inputs.index(node.op.dist_params(node)[0])
                if isinstance(node.op, OF_INTEGERS):
                    inputs[first] = pt.round(inputs[first].astype("float64")).astype("int64")
                inputs[first] = inputs[first] + batch.astype(inputs[first].type.dtype)
            if inputs != node.inputs:
                new = node.clone_with_new_inputs(inputs, strict=False)
                made.update(zip(node.outputs, new.outputs, strict=True))
        return {name: made.get(result, result) for name, result in self.results.items()}


def make_part(
    label: str,
    function: Callable[..., Any],
    known: Mapping[str, TensorVariable],
    names: Sequence[str],
    model: pm.Model,
) -> Part:
    """Call a function of the user's with the arguments that it names.

    Parameters
    ----------
    label : str
    function : callable
    known : dict
        The symbols of all arguments that there are, by name.
    names : sequence of str
        The names of what it has to return: a dict if there are several.
    model : Model

    Raises
    ------
    ModelError
    """
    wanted = argument_names(label, function)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ModelError(
            f"The {label} asks for {', '.join(unknown)}, but what there is are "
            f"{', '.join(known)}. Variables of the model are used as they are, without being "
            "arguments; other data are given as covariates."
        )
    arguments = {name: known[name] for name in wanted}
    try:
        returned = function(**arguments)
    except TypeError as error:
        if "indices must be integers" not in str(error) and "Expected an integer" not in str(error):
            raise
        raise ModelError(
            f"The {label} takes an index that is no integer. A state that starts as a number is a "
            'float, also where it counts: write x.astype("int64") where it is an index.'
        ) from error
    if not isinstance(returned, Mapping):
        if len(names) > 1:
            raise ModelError(
                f"The {label} must return a dict with {', '.join(names)}, got {returned!r}."
            )
        returned = {names[0]: returned}
    if set(returned) != set(names):
        raise ModelError(
            f"The {label} returns a dict with {', '.join(map(str, returned))}, but it must have "
            f"{', '.join(names)}."
        )
    try:
        results = {name: pt.as_tensor_variable(returned[name]) for name in names}
    except Exception as error:
        raise ModelError(
            f"The {label} must return what pm.X.dist(...) makes, or expressions with such draws; "
            f"got {returned!r}."
        ) from error
    own = [name for name in names if results[name] in set(model.root.basic_RVs)]
    if own:
        raise ModelError(
            f"The {label} returns {results[own[0]].name}, a variable of the model. Make a draw of "
            "its own: pm.Normal.dist(...) instead of pm.Normal(name, ...)."
        )
    return _cut_off(label, arguments, results, model)


def argument_names(label: str, function: Any) -> list[str]:
    """Return the names of the arguments of a function."""
    import inspect

    if not callable(function):
        raise ModelError(f"The {label} must be a function, got {function!r}.")
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ModelError(f"The {label} must name its arguments, but it has {parameter}.")
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.default is parameter.empty
    ]


def with_data(
    label: str,
    function: Any,
    known: Mapping[str, TensorVariable],
    data: Mapping[str, TensorVariable],
) -> dict[str, TensorVariable]:
    """Return symbols of what a function may ask for, and of data; it is told what is both."""
    twice = [name for name in argument_names(label, function) if name in data and name in known]
    if twice:
        raise ModelError(
            f"The {label} asks for {', '.join(twice)}, which is data as well as a state or a "
            "covariate: give one of them another name."
        )
    return {**known, **data}


def _cut_off(
    label: str,
    arguments: dict[str, TensorVariable],
    results: dict[str, TensorVariable],
    model: pm.Model,
) -> Part:
    """Replace what depends on neither arguments nor draws by symbols."""
    own = set(model.root.basic_RVs)
    inner: set[Variable] = set(arguments.values())
    for node in toposort(list(results.values()), blockers=own):
        # What is distributed without a generator, at one point, may be a part of a mixture.
        is_random = is_draw(node) or isinstance(node.op, SymbolicRandomVariable)
        if is_random or any(source in inner for source in node.inputs):
            inner.update(node.outputs)
    symbols: dict[Variable, TensorVariable] = {}
    seen: set[Variable] = set()
    stack: list[Variable] = list(results.values())
    while stack:
        variable = stack.pop()
        if variable in seen or isinstance(variable, Constant):
            continue
        seen.add(variable)
        if variable in inner:
            stack.extend(variable.owner.inputs if variable.owner else ())
        elif not isinstance(variable.type, RandomType):
            if not hasattr(variable.type, "dtype"):  # a slice, or no type: made of what it needs
                stack.extend(variable.owner.inputs if variable.owner else ())
            else:
                outer = _as_tensor(variable)
                symbols[variable] = outer.type(name=variable.name)
    replacements = {
        variable: symbol if variable.type == symbol.type else pt.scalar_from_tensor(symbol)
        for variable, symbol in symbols.items()
    }
    made = clone_replace(list(results.values()), replace=replacements, rebuild_strict=False)
    closure = {symbol: _as_tensor(variable) for variable, symbol in symbols.items()}
    return Part(label, arguments, dict(zip(results, made, strict=True)), closure)


def _as_tensor(variable: Variable) -> TensorVariable:
    is_number = not isinstance(variable.type, pt.TensorType)
    return pt.tensor_from_scalar(variable) if is_number else variable


def is_draw(node: Any) -> bool:
    """Say whether a node draws from a distribution."""
    return any(isinstance(source.type, RandomType) for source in node.inputs)


def draw_of(node: Any) -> TensorVariable:
    """Return what a node draws; it returns the state of its generator too."""
    return next(output for output in node.outputs if not isinstance(output.type, RandomType))


# Densities


def _log_density_of_draw(draw: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Return the log density of what ``pm.X.dist`` made, in a form that is fast in batches."""
    op = draw.owner.op
    if isinstance(op, MvNormalRV) and draw.type.ndim == 1 and draw.type.shape[0] is not None:
        mean, cov = op.dist_params(draw.owner)
        return _log_mv_normal(value, mean, cov, draw.type.shape[0])
    is_vector = draw.type.ndim == 1 and draw.type.shape[0] is not None
    if is_vector and isinstance(op, RandomVariable) and not any(op.ndims_params):
        # Element by element: arrays of a whole batch have one axis less.
        parameters = [pt.as_tensor_variable(p) for p in op.dist_params(draw.owner)]
        elements = []
        for place in range(draw.type.shape[0]):
            own = [_element(parameter, place) for parameter in parameters]
            single = op.make_node(draw.owner.inputs[0], None, *own).outputs[1]
            elements.append(pm.logp(single, value[place]))
        return pt.stack(elements)
    return pm.logp(draw, value)


def _element(parameter: TensorVariable, place: int) -> TensorVariable:
    if parameter.type.ndim == 0:
        return parameter
    return parameter[0 if parameter.type.shape[-1] == 1 else place]


def _log_mv_normal(
    value: TensorVariable, mean: TensorVariable, cov: TensorVariable, size: int
) -> TensorVariable:
    """Return the log density of a normal vector, by what does not depend on pairs of states."""
    chol = pt.linalg.cholesky(cov, lower=True, on_error="nan")
    is_positive = pt.all(pt.diagonal(chol) > 0.0)
    root = pt.linalg.solve_triangular(chol, pt.eye(size), lower=True)
    whitened = pt.sum(root * value[None, :], axis=1)
    centre = pt.sum(root * pt.broadcast_to(mean, (size,))[None, :], axis=1)
    square = sum((whitened[place] - centre[place]) ** 2 for place in range(size))
    log_det = pt.sum(pt.log(pt.diagonal(chol)))
    return pt.switch(is_positive, -0.5 * square - (0.5 * size * LOG_2_PI + log_det), -np.inf)


def without_checks(outputs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Replace checks of parameters by a density of zero where they fail, for each state by itself.

    In a batch a check would fail for all if it fails for one.
    """
    results = list(outputs)
    while True:
        nodes = [n for n in toposort(results) if isinstance(n.op, CheckParameterValue)]
        if not nodes:
            return results
        node = nodes[0]
        value, *conditions = node.inputs
        for condition in conditions:
            value = pt.switch(_as_tensor(condition), value, -np.inf)
        results = clone_replace(results, replace={node.outputs[0]: value}, rebuild_strict=False)


# Batches


def vectorise(
    outputs: Sequence[TensorVariable], replace: Mapping[TensorVariable, TensorVariable]
) -> list[TensorVariable]:
    """Make some graphs functions of batches of some of their inputs.

    Parameters
    ----------
    outputs : sequence of TensorVariable
    replace : dict
        For each input that comes in a batch its replacement, with the axes of the batch before its
        own. The axes of different batches broadcast.
    """
    replace = dict(replace)
    batched: set[Variable] = set(replace)
    for node in toposort(list(outputs)):
        if any(source in batched for source in node.inputs):
            taken = _batch_of_elements(node, batched, replace)
            if taken is not None:
                replace[node.outputs[0]] = taken
            batched.update(node.outputs)
    return list(vectorize_graph(list(outputs), replace=replace))


def _batch_of_elements(
    node: Any, batched: set[Variable], replace: Mapping[Variable, Variable]
) -> TensorVariable | None:
    """Return elements of an array for a batch of indices; None if a node is something else.

    PyTensor would loop over the batch.
    """
    if not isinstance(node.op, Subtensor) or node.inputs[0] in batched or len(node.inputs) != 2:
        return None
    if len(node.op.idx_list) != 1 or isinstance(node.op.idx_list[0], slice):
        return None
    index = node.inputs[1]
    while index.owner is not None and isinstance(
        index.owner.op, ScalarFromTensor | TensorFromScalar
    ):
        index = index.owner.inputs[0]
    if index not in replace:
        return None
    return node.inputs[0][replace[index]]
