"""The staged, memoised log density of (theta, u), compiled from a model.

The joint target of the paper is ``p(theta) * exp(log_estimate(theta, u)) * q(u)``. Here is its log
density with respect to q(u), in stages (see :mod:`pymc_apm.density.staging`). A new
:class:`~pymc_apm.types.Evaluation` is made from an old one by changing some of the inputs, and only
the stages that depend on these run: an update of u never repeats work that depends on theta alone,
a rejected proposal costs nothing afterwards, and an accepted one brings its stages along.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_apm._compat import compile_function, get_shared
from pymc_apm.black_box import black_boxes_in, nodes_between, used_numbers
from pymc_apm.claims import declared_axes, flags_in
from pymc_apm.density.evaluate import make_density
from pymc_apm.density.factors import Factors, find_factors, unsummed
from pymc_apm.density.layout import Layout
from pymc_apm.density.limits import NO_LIMIT, Limit, find_limits, less, limit_at, new_limits
from pymc_apm.density.own_updates import find_own_updates
from pymc_apm.density.staging import Stage, Term, TermKind, cut
from pymc_apm.errors import EstimatorError, add_context, describe_value, see
from pymc_apm.kernels.stream import settled
from pymc_apm.potential import approximations_in
from pymc_apm.randomness import randomness_in
from pymc_apm.signs import signed_nodes, unmultiplied, without_signs
from pymc_apm.types import FREE, Cost, Evaluation, FactorPlaces, FloatVector, LogDensity, summed

THETA = ":theta"
"""The input that holds the parameters that a step updates."""

REST = ":rest"
"""The input that holds all other parameters of the model."""

CHECKS_OF_SIGNS = 8
"""How often declared factors are checked where there are signs, which seldom change."""


class PlacedStage(NamedTuple):
    """A stage: where its inputs and outputs are among the values of an evaluation."""

    stage: Stage
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class StageFunction:
    """A stage that is compiled when it is first called: not every step calls it."""

    def __init__(self, stage: Stage, model: pm.Model, compile_kwargs: Mapping[str, Any]) -> None:
        self._stage = stage
        self._model = model
        self._compile_kwargs = compile_kwargs
        self.compiled: Callable[..., Sequence[Any]] | None = None

    def compile(self) -> Callable[..., Sequence[Any]]:
        """Compile it, if that has not been done yet."""
        if self.compiled is None:
            stage = self._stage
            with self._model:  # the compiler heeds its check_bounds
                self.compiled = compile_function(
                    list(stage.inputs),
                    stage.results,
                    calls_python=bool(_ops_in_python(stage)),
                    **self._compile_kwargs,
                )
        return self.compiled

    def __call__(self, *values: Any) -> Sequence[Any]:
        """Run the stage."""
        return (self.compiled or self.compile())(*values)


class Call(NamedTuple):
    """A stage that can be called: how to take its inputs from values, and where its outputs go."""

    function: StageFunction
    take: Callable[[Sequence[Any]], Sequence[Any]]
    outputs: slice


class Plan(NamedTuple):
    """Which stages to run after a change of some inputs, and what that counts as.

    Attributes
    ----------
    places : tuple of int
        Where the inputs are among the values of an evaluation.
    prior, others : tuple of int
        The numbers of the stages that the prior needs, and of all others.
    computes_estimate, changes_theta : bool
    """

    places: tuple[int, ...]
    prior: tuple[int, ...]
    others: tuple[int, ...]
    computes_estimate: bool
    changes_theta: bool


class Target:
    """The log density of a model as a function of its parameters and its randomness.

    The inputs are :data:`THETA`, :data:`REST` and the names of all randomness in the model; the
    value of each is a flat float64 vector.

    Parameters
    ----------
    model : Model
    variables : list of Variable
        The value variables that make up :data:`THETA`; may be empty.
    initial_point : dict
        A point of the model, for shapes.
    compile_kwargs : dict, optional
        What to pass on to the compiler, for example ``mode``.

    Attributes
    ----------
    randomness : list of SharedVariable
        The randomness of the model; the name of each is that of its input.
    data : list of SharedVariable
        All other shared variables in the graph of the log density, such as those of ``pm.Data``.
    black_boxes : list of Apply
        The black boxes in the graph of the log density.
    estimates : list of str
        The names of the terms that depend on randomness.
    layout, rest : Layout
        How parameters lie in the inputs :data:`THETA` and :data:`REST`.
    stages : list of PlacedStage
        The stages of the log density, in an order in which they can run.
    places : dict
        Where the value of each input is among those of an evaluation.
    sums : dict
        Where the sums of the terms of each kind are among them, and vectors of estimates.
    factors : dict
        By the name of the randomness, what belongs to which factor of the estimate, where there
        are several.
    own_updates : dict
        By the name of the randomness, the node of an op that can refresh it, where there is one.
    n_fixed : int
        How many random numbers there are in arrays of fixed shape.
    limits : list of Limit
        The estimates that may stop where they cannot reach a limit.
    has_signs : bool
        Whether an estimate may be negative.
    has_approximation : bool
        Whether every estimate comes with a deterministic approximation.
    """

    def __init__(
        self,
        model: pm.Model,
        variables: Sequence[Variable],
        initial_point: Mapping[str, NDArray[np.generic]],
        compile_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.layout = Layout(variables, initial_point)
        self.rest = Layout([v for v in model.value_vars if v not in variables], initial_point)

        logps = model.logp(sum=False)
        self.randomness: list[SharedVariable] = randomness_in(logps)
        sizes: dict[str, int | None] = {THETA: self.layout.size, REST: self.rest.size}
        sizes |= {u.name: u.tag.apm_randomness.size for u in self.randomness}
        self.n_fixed = sum(
            u.tag.apm_randomness.size
            for u in self.randomness
            if not u.tag.apm_randomness.kind.needs_black_box
        )
        self.inputs = {
            name: pt.vector(name, shape=(size,), dtype="float64") for name, size in sizes.items()
        }
        self.places = {name: place for place, name in enumerate(self.inputs)}

        self._parameters = self._as_functions_of_inputs(model.replace_rvs_by_values(model.free_RVs))
        self._parameter_names = [rv.name for rv in model.free_RVs]
        kinds = _term_kinds(model, logps)
        named = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        self.estimates = [
            term.name for term, kind in zip(named, kinds, strict=True) if kind == "estimate"
        ]
        self.black_boxes = black_boxes_in(logps)
        used = used_numbers(self.black_boxes)
        costs = _cubic_operations(logps)
        approximations = _approximations(model, kinds)
        self.has_approximation = bool(approximations)
        signed = {node: i for i, logp in enumerate(logps) for node in signed_nodes([logp])}
        others = [*used.values(), *costs, *approximations]
        wanted = [*logps, *others, *(node.inputs[1] for node in signed)]
        n_before_signs = len(logps) + len(others)
        values = without_signs(self._as_functions_of_inputs(wanted))
        self.data = [
            variable for variable in graph_inputs(values) if isinstance(variable, SharedVariable)
        ]
        us = {u.name: self.inputs[u.name] for u in self.randomness}
        self.own_updates = find_own_updates(values[: len(logps)], us)
        limits = new_limits(find_limits(values[: len(logps)], values[len(logps) :]))
        if limits:
            values = clone_replace(values, replace=limits)
        terms = self._terms(kinds, values[: len(logps)])
        terms += [
            Term("sign", unmultiplied(sign), self._as_declared(values[number]))
            for sign, number in zip(values[n_before_signs:], signed.values(), strict=True)
        ]
        self.has_signs = bool(signed)
        reports = values[len(logps) : n_before_signs]
        stages, reports = cut(terms, self.inputs, reports, limits.values())
        place_of = self._give_places(stages, list(limits.values()))
        self._find_factors()
        self._compile_kwargs = compile_kwargs or {}
        self._calls = [
            Call(
                StageFunction(placed.stage, model, self._compile_kwargs),
                _taking(placed.inputs),
                slice(placed.outputs[0], placed.outputs[-1] + 1),
            )
            for placed in self.stages
        ]
        places = [place_of[report] for report in reports]
        self._used_place = dict(zip(used, places, strict=False))
        self._cubic_places = frozenset(places[len(used) : len(used) + len(costs)])
        self._approximation_places = places[len(used) + len(costs) :]

    def _as_functions_of_inputs(self, variables: Sequence[Variable]) -> list[Variable]:
        replacements: dict[Variable, Variable] = {
            **self.layout.split(self.inputs[THETA]),
            **self.rest.split(self.inputs[REST]),
        }
        for u in self.randomness:
            replacements[u] = self.inputs[u.name]
            if u.tag.apm_randomness.size is not None:
                replacements[u] = self.inputs[u.name].reshape(u.type.shape)
        # Only steps evaluate the target, and they see to it that all randomness is claimed.
        replacements |= {flag: pt.constant(np.array(1)) for flag in flags_in(variables)}
        return clone_replace(list(variables), replace=replacements, rebuild_strict=False)

    def _terms(self, kinds: Sequence[TermKind], logps: Sequence[Variable]) -> list[Term]:
        """Return the terms of the log density: scalars, and vectors if an estimate has factors."""
        terms = [Term(kind, logp.sum()) for kind, logp in zip(kinds, logps, strict=True)]
        parts = [
            Term(kind, part, self._as_declared(logp))
            for kind, logp in zip(kinds, logps, strict=True)
            for part in (unsummed(logp) if logp.type.ndim == 0 else [logp])
            if kind == "estimate"
        ]
        dependencies = [part.dependence for part in parts]
        if not any(self._factors_of(u, dependencies) for u in self.randomness):
            return terms
        return [*(term for term in terms if term.kind != "estimate"), *parts]

    def _as_declared(self, logp: Variable) -> Variable | None:
        """Return a vector that depends on randomness as the user has declared of a term."""
        axes = declared_axes(logp)
        by_name = {u.name: u.tag.apm_randomness.shape for u in self.randomness}
        sums = []
        for name, axis in axes.items():
            others = [other for other in range(len(by_name[name])) if other != axis]
            sums.append(self.inputs[name].reshape(by_name[name]).sum(axis=others))
        return pt.add(*sums) if len(sums) > 1 else (sums or [None])[0]

    def _factors_of(
        self, u: SharedVariable, outputs: Sequence[Variable], terms: Sequence[bool] | None = None
    ) -> Factors | None:
        """Find out which part of u feeds which factor, if there are several.

        If need be with data, such as the numbers of groups, as they are now.
        """
        if u.tag.apm_randomness.kind.needs_black_box:
            return None
        values = {data: pt.constant(get_shared(data)) for data in self.data}
        for replacements in [{}, values] if values else [{}]:
            try:
                given = clone_replace(list(outputs), replacements, rebuild_strict=False)
            except ValueError:  # shapes that do not fit, as the estimator will say
                return None
            found = find_factors(given, self.inputs[u.name], terms)
            if found is not None and found.n_factors > 1:
                return found
        return None

    def _find_factors(self) -> None:
        """Find out which part of each u, and of all that is computed from it, is of which factor.

        The factors of elements are constants, whose places follow those of all that is computed.
        """
        self.factors: dict[str, FactorPlaces] = {}
        constants: dict[bytes, tuple[int, NDArray[np.int64]]] = {}

        def place_of(labels: NDArray[np.int64]) -> int:
            number = self._n_values + len(constants)
            return constants.setdefault(labels.tobytes(), (number, labels))[0]

        for u in self.randomness if self._vectors else ():
            stages = [placed for placed in self.stages if u.name in placed.stage.depends_on]
            places = [place for placed in stages for place in placed.outputs]
            outputs = [result for placed in stages for result in _dependencies(placed.stage)]
            are_terms = [place in self._terms_and_signs for place in places]
            found = self._factors_of(u, outputs, are_terms)
            if found is None:
                continue
            places.insert(0, self.places[u.name])
            labels = [found.of_u, *found.of_outputs]
            changed = {place: place_of(of) for place, of in zip(places, labels, strict=True)}
            self.factors[u.name] = FactorPlaces(
                found.n_factors,
                changed[self.places[u.name]],
                [(place, of) for place, of in changed.items() if place in self.sums["estimate"]],
                sorted(changed.items()),
            )
        self.constants = [labels for _, labels in constants.values()]
        vectors = [term for placed in self.stages for term in placed.stage.vectors]
        self._has_declared = any(term.depends_like is not None for term in vectors)
        self._data_then = [get_shared(data) for data in self.data]

    def check_declared_factors(self, evaluation: Evaluation) -> None:
        """Check that an entry stays the same while the numbers of other factors change.

        The factors are divided in two by each digit of their numbers, so that any two of them are
        told apart.

        Raises
        ------
        EstimatorError
            If it does not, as it should where factors are declared by the user.
        """
        rng = np.random.default_rng(0)
        for u in self.randomness if self._has_declared else ():
            factors = self.factors.get(u.name)
            if factors is None:
                continue
            number = evaluation.values[factors.u]
            old = self.value(evaluation, u.name)
            n_times = range(CHECKS_OF_SIGNS if self.has_signs else 1)
            digits = range(factors.n_factors.bit_length())
            for _, digit, which in itertools.product(n_times, digits, (0, 1)):
                fresh = u.tag.apm_randomness.draw(rng)
                has_moved = (np.arange(factors.n_factors) >> digit) & 1 == which
                _, new = self.along(u.name)(np.where(has_moved[number], fresh, old), evaluation)
                for place, of in factors.changed:
                    if place not in self._terms_and_signs:
                        continue
                    stays = ~has_moved[evaluation.values[of]]
                    entries = evaluation.values[place][stays], new.values[place][stays]
                    if not np.allclose(*entries, rtol=1e-8, atol=1e-10, equal_nan=True):
                        wrong = ~np.isclose(*entries, rtol=1e-8, atol=1e-10, equal_nan=True)
                        names = ", ".join(map(str, np.flatnonzero(stays)[wrong][:10]))
                        raise EstimatorError(
                            f"Entries {names} of {', '.join(self.estimates)} depend on more of "
                            f"{u.name} than was declared by factors= of apm.Potential: they change "
                            "with numbers that belong to other entries. Leave out factors=, or "
                            f"mend the estimator. {see('estimators')}"
                        )

    def check_factors(self) -> None:
        """Check that data which have changed leave all factors as they are.

        Raises
        ------
        EstimatorError
            If they do not.
        """
        factors, constants, data_then = self.factors, self.constants, self._data_then
        now = [get_shared(data) for data in self.data]
        if not factors or all(map(np.array_equal, now, data_then)):
            return
        self._find_factors()
        is_same = len(constants) == len(self.constants) and all(
            map(np.array_equal, constants, self.constants)
        )
        if self.factors != factors or not is_same:
            # With the old data too, or else the same step would pass the next time.
            self.factors, self.constants, self._data_then = factors, constants, data_then
            raise EstimatorError(
                "The data of the model have changed, and with them which random numbers belong to "
                f"which factor of {', '.join(self.estimates)}. Make the step again with the new "
                "data."
            )

    def _give_places(
        self, stages: Sequence[Stage], limits: Sequence[TensorVariable]
    ) -> dict[Variable, int]:
        """Give all that the stages compute a place among an evaluation's values."""
        place_of = {variable: self.places[name] for name, variable in self.inputs.items()}
        place_of |= {limit: len(place_of) + number for number, limit in enumerate(limits)}
        self._limit_places = [place_of[limit] for limit in limits]
        n_values = len(place_of)
        kinds: tuple[TermKind, ...] = ("prior", "exact", "estimate", "sign")
        self.sums: dict[TermKind, list[int]] = {kind: [] for kind in kinds}
        self.stages: list[PlacedStage] = []
        self._vectors: set[int] = set()
        for stage in stages:
            outputs = range(n_values, n_values + len(stage.results))
            n_values = outputs.stop
            place_of.update(zip(stage.exports, outputs, strict=False))
            vectors = outputs[len(outputs) - len(stage.vectors) :]
            for kind, place in zip(stage.sums, outputs[len(stage.exports) :], strict=False):
                self.sums[kind].append(place)
            for term, place in zip(stage.vectors, vectors, strict=True):
                self.sums[term.kind].append(place)
            self._vectors.update(set(vectors) & set(self.sums["estimate"]))
            takes = tuple(place_of[variable] for variable in stage.inputs)
            self.stages.append(PlacedStage(stage, takes, tuple(outputs)))
        self._terms_and_signs = {*self.sums["estimate"], *self.sums["sign"]}
        self._n_values = n_values
        placed_stages = [(placed.stage, placed.outputs) for placed in self.stages]
        found = [limit_at(limit, place_of[limit], placed_stages) for limit in limits]
        self.limits = [limit for limit in found if limit is not None]
        return place_of

    def compile(self) -> None:
        """Compile all stages now, not when they are first called."""
        for call in self._calls:
            call.function.compile()

    def start(self, values: Mapping[str, FloatVector]) -> Evaluation:
        """Evaluate from scratch, given the value of every input."""
        known: list[Any] = [*[None] * self._n_values, *self.constants]
        for place in self._limit_places:
            known[place] = NO_LIMIT
        nothing = Evaluation(tuple(known), 0.0, 0.0, 0.0, 0.0, FREE, -math.inf)
        _, evaluation = self.along(*self.inputs)(tuple(values[n] for n in self.inputs), nothing)
        return evaluation

    def plan(self, *names: str) -> Plan:
        """Return what to run after a change of some inputs; a stage without inputs always runs."""
        everything = set(names) == set(self.inputs)
        numbers = [
            number
            for number, placed in enumerate(self.stages)
            if everything or placed.stage.depends_on & set(names)
        ]
        outputs = {place for number in numbers for place in self.stages[number].outputs}
        return Plan(
            tuple(self.places[name] for name in names),
            tuple(number for number in numbers if self.stages[number].stage.is_prior),
            tuple(number for number in numbers if not self.stages[number].stage.is_prior),
            any(place in outputs for place in self.sums["estimate"]),
            not {THETA, REST}.isdisjoint(names),
        )

    def along(self, *names: str) -> LogDensity:
        """Return the log density as a function of some inputs, in the form that kernels take.

        The position is the value of the input, or a tuple of values if there are several.
        """
        plan = self.plan(*names)
        prior_calls = [self._calls[number] for number in plan.prior]
        limit = self._limit_of(plan)
        last = frozenset() if limit is None else limit.stages
        other_calls = [self._calls[number] for number in plan.others if number not in last]
        last_calls = [self._calls[number] for number in plan.others if number in last]
        cubic = [place for number in plan.others for place in self.stages[number].outputs]
        cubic = [place for place in cubic if place in self._cubic_places]
        sums, places = self.sums, plan.places
        exact, estimate = sums["exact"], sums["estimate"]
        others_known = [
            place for place in (*exact, *estimate) if limit is None or place != limit.estimate
        ]
        place = places[0] if len(places) == 1 else None

        def prior(position: Any, evaluation: Evaluation) -> tuple[float, list[Any]]:
            values = list(evaluation.values)
            if place is not None:
                values[place] = position
            else:
                for number, value in zip(places, position, strict=True):
                    values[number] = value
            log_prior = evaluation.log_prior
            if prior_calls:
                self._run(prior_calls, values)
                log_prior = self._sum_at(sums["prior"], values)
            if limit is not None:
                values[limit.place] = less(evaluation.log_height, log_prior)
            return log_prior, values

        def others(values: list[Any]) -> tuple[float, float, int, tuple[Any, ...]]:
            self._run(other_calls, values)
            if limit is not None:
                to_reach = less(values[limit.place], self._sum_at(others_known, values))
                values[limit.place] = np.array(to_reach)
                self._run(last_calls, values)
                values[limit.place] = NO_LIMIT
            log_estimate = self._sum_at(estimate, values)
            if log_estimate == math.inf:
                raise EstimatorError(
                    f"The log-estimate is +inf at {self.describe(values)}. An estimate must be a "
                    "finite number; look for a division by zero or an overflow in the estimator. "
                    + see("estimators")
                )
            n_cubic = sum([int(values[place]) for place in cubic]) if cubic else 0
            log_exact = self._sum_at(exact, values) if exact else 0.0
            return log_exact, log_estimate, n_cubic, tuple(values)

        return make_density(prior, others, plan.computes_estimate, plan.changes_theta)

    def _limit_of(self, plan: Plan) -> Limit | None:
        """Return the limit of the last estimate to compute, if that can stop.

        It is computed when all other terms are known. Of several that can stop the last one does.
        """
        computed = {place for number in plan.others for place in self.stages[number].outputs}
        found = [limit for limit in self.limits if limit.estimate in computed]
        return found[-1] if found else None

    def approximately_along(self, *names: str) -> LogDensity:
        """Return a density with all estimates replaced by their deterministic approximations.

        The evaluations that it hands on are whole: the estimates are part of them.
        """
        density = self.along(*names)

        def approximate(position: Any, evaluation: Evaluation) -> tuple[float, Evaluation]:
            # A height is for what this returns.
            _, new = density(position, evaluation._replace(log_height=-math.inf))
            return self.approximate_log_density(new), new

        return approximate

    def time_stages(self, evaluation: Evaluation, timed: Callable[..., float]) -> dict[str, float]:
        """Time each stage by itself; return the sums by what the stages depend on."""
        seconds: dict[str, float] = {}
        for placed, (function, take, _) in zip(self.stages, self._calls, strict=True):
            label = ", ".join(n.strip(":") for n in sorted(placed.stage.depends_on)) or "data"
            label = f"prior: {label}" if placed.stage.is_prior else label
            arguments = take(evaluation.values)
            spent = timed(lambda call=function, given=arguments: call(*given))
            seconds[label] = seconds.get(label, 0.0) + spent
        return seconds

    @property
    def ops_in_python(self) -> list[Op]:
        """The ops of the log density that call Python wherever they run."""
        found = [op for placed in self.stages for op in _ops_in_python(placed.stage)]
        return [op for op in found if not getattr(op, "is_compiled", False)]

    @property
    def has_compiled_ops(self) -> bool:
        """Whether an op of the log density is compiled code of its own, also when Python runs it.

        Such an op says so by the attribute ``is_compiled``.
        """
        nodes = (
            node
            for placed in self.stages
            for node in nodes_between(placed.stage.results, placed.stage.inputs)
        )
        return any(getattr(node.op, "is_compiled", False) for node in nodes)

    def value(self, evaluation: Evaluation, name: str) -> FloatVector:
        """Return the value of an input in an evaluation."""
        return evaluation.values[self.places[name]]

    def settle(self, evaluation: Evaluation, name: str, rng: np.random.Generator) -> Evaluation:
        """Keep of a stream just what its estimate used; nothing has to be computed for that."""
        values = list(evaluation.values)
        values[self.places[name]] = settled(rng, values[self._used_place[name]])
        return evaluation._replace(values=tuple(values))

    def refreshing(self, name: str) -> Callable[..., tuple[FloatVector | None, Cost]]:
        """Return how the estimator itself refreshes some randomness.

        Returns
        -------
        callable
            ``refresh(rng, evaluation) -> (new_value, cost)``; the value is None if it is to stay.
        """
        node, names = self.own_updates[name], list(self.inputs)
        op, cost = node.op, Cost(node.op.n_refresh_evals, 0, 0, 0)
        compiled: list[Callable[..., Sequence[Any]]] = []

        def refresh(
            rng: np.random.Generator, evaluation: Evaluation
        ) -> tuple[FloatVector | None, Cost]:
            if not compiled:
                with self.model:
                    inputs = [self.inputs[name] for name in names]
                    compiled.append(compile_function(inputs, node.inputs, **self._compile_kwargs))
            values = compiled[0](*[self.value(evaluation, name) for name in names])
            new = op.refresh(rng, *values)
            return (None if new is None else np.ascontiguousarray(new).reshape(-1)), cost

        return refresh

    def approximate_log_density(self, evaluation: Evaluation) -> float:
        """Return the log density with all estimates replaced by their approximations."""
        if not evaluation.log_prior > -math.inf:
            return -math.inf
        log_density = evaluation.log_prior + evaluation.log_exact
        log_density += self._sum_at(self._approximation_places, evaluation.values)
        return log_density if log_density < math.inf else -math.inf

    def sign(self, evaluation: Evaluation) -> float:
        """Return the product of the signs of all estimates."""
        signs = [evaluation.values[place] for place in self.sums["sign"]]
        return float(self.checked_signs(np.prod(np.concatenate(signs), keepdims=True))[0])

    def checked_signs(self, signs: FloatVector) -> FloatVector:
        """Check that the signs of estimates are signs."""
        wrong = signs[np.abs(signs) != 1.0]
        if wrong.size:
            raise EstimatorError(
                f"The sign of {', '.join(self.estimates)} must be 1 or -1 wherever the estimate is "
                f"not zero, but it is {wrong[0]:g}. {see('series')}"
            )
        return signs

    def numbers(self, evaluation: Evaluation, name: str) -> FloatVector:
        """Return the numbers of some randomness; of a stream, those that the estimate used."""
        return evaluation.values[self._used_place.get(name, self.places[name])]

    def n_random(self, evaluation: Evaluation) -> int:
        """Return how many random numbers an estimate uses; those of a seed are not counted."""
        n_random = self.n_fixed
        for place in self._used_place.values():
            n_random += evaluation.values[place].size
        return n_random

    def _run(self, calls: Iterable[Call], values: list[Any]) -> None:
        """Run some stages, and put what they compute into its places."""
        try:
            for function, take, outputs in calls:
                values[outputs] = (function.compiled or function.compile())(*take(values))
        except Exception as error:
            self._explain(error, values)
            raise

    def _sum_at(self, places: Iterable[int], values: Sequence[Any]) -> float:
        """Return the sum of the values at some places."""
        try:
            total = 0.0
            for place in places:
                value = values[place]
                total += summed(value) if place in self._vectors else float(value)
        except Exception as error:  # an op that does not keep to its type
            self._explain(error, values)
            raise
        return total

    def _explain(self, error: Exception, values: Sequence[Any]) -> None:
        add_context(error, f"The model was being evaluated at {self.describe(values)}.")

    def describe(self, values: Sequence[Any]) -> str:
        """Put the parameters into words, on the scale on which the user declared them."""
        given = {self.inputs[name]: values[self.places[name]] for name in (THETA, REST)}
        parameters = compile_function(list(given), self._parameters)(*given.values())
        return ", ".join(
            f"{name} = {describe_value(value)}"
            for name, value in zip(self._parameter_names, parameters, strict=True)
        )


def _taking(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that takes the values at some places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return operator.itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def _term_kinds(model: pm.Model, logps: Sequence[Variable]) -> list[TermKind]:
    """Sort the terms of a model, in the order in which ``Model.logp`` returns them.

    Whatever depends on declared randomness is (part of) the estimate. Of the rest, a potential
    counts as prior: that is how constraints on parameters are written.
    """
    kinds: list[TermKind] = ["prior"] * len(model.free_RVs)
    kinds += ["exact"] * len(model.observed_RVs)
    kinds += ["prior"] * len(model.potentials)
    return [
        "estimate" if randomness_in([logp]) else kind
        for kind, logp in zip(kinds, logps, strict=True)
    ]


def _cubic_operations(outputs: Iterable[Variable]) -> list[Variable]:
    """Return the counts of cubic operations of those ops in a graph that count theirs."""
    return [
        node.outputs[node.op.n_cubic_output]
        for node in nodes_between(outputs)
        if hasattr(node.op, "n_cubic_output")
    ]


def _approximations(model: pm.Model, kinds: Sequence[TermKind]) -> list[Variable]:
    """Return the approximations of all estimates; an empty list if one of them has none."""
    found = [*[None] * len(model.basic_RVs), *approximations_in(model)]
    wanted = [term for term, kind in zip(found, kinds, strict=True) if kind == "estimate"]
    if not all(term is not None for term in wanted):
        return []
    return model.replace_rvs_by_values(wanted)


def _dependencies(stage: Stage) -> list[Variable]:
    """Return variables that depend on randomness as the results of a stage do."""
    vectors = [term.dependence for term in stage.vectors]
    return [*stage.results[: len(stage.results) - len(vectors)], *vectors]


def _ops_in_python(stage: Stage) -> list[Op]:
    """Return the ops of a stage that are known to call Python."""
    nodes = nodes_between(stage.results, stage.inputs)
    return [node.op for node in nodes if getattr(node.op, "calls_python", False)]
