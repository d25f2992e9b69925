"""The staged, memoised log density of (theta, u), compiled from a model.

The joint target of the paper is ``p(theta) * exp(log_estimate(theta, u)) * q(u)``. Here is its log
density with respect to q(u), in stages (see :mod:`pymc_apm.staging`). An :class:`Evaluation` is an
immutable value that holds the inputs, what each stage made of them, and the log density. A new
evaluation is made from an old one by changing some of the blocks, and only the stages that depend
on these run: an update of u never repeats work that depends on theta alone, a rejected proposal
costs nothing afterwards, and an accepted one brings its stages along.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace

from pymc_apm._compat import compile_function
from pymc_apm.black_box import black_boxes_in, nodes_between, used_numbers
from pymc_apm.claims import flags_in
from pymc_apm.errors import EstimatorError, add_context, describe_value, see
from pymc_apm.kernels.state import FloatVector
from pymc_apm.kernels.stream import settled
from pymc_apm.layout import Layout
from pymc_apm.plan import Call, PlacedStage, Plan, StageFunction, ops_in_python, run_calls, sum_at
from pymc_apm.potential import approximations_in
from pymc_apm.randomness import randomness_in
from pymc_apm.staging import Stage, Term, TermKind, cut

THETA = ":theta"
"""The block of the parameters that a step updates."""

REST = ":rest"
"""The block of all other parameters of the model."""


class Evaluation(NamedTuple):
    """The log density at a point, with all that was computed on the way.

    Attributes
    ----------
    values : tuple
        The value of each block, then what the stages computed.
    log_density : float
        The log density with respect to q(u); ``-inf`` where the prior or the estimate is zero.
    log_estimate : float
        The sum of the log-estimates alone.
    log_prior, log_exact : float
        The other parts of it: the prior, and the likelihood of observed variables.
    """

    values: tuple[Any, ...]
    log_density: float
    log_estimate: float
    log_prior: float
    log_exact: float


IMPOSSIBLE = Evaluation((), -np.inf, -np.inf, -np.inf, 0.0)
"""The evaluation where the prior is zero: nothing else was computed."""

NOTHING = Evaluation((), 0.0, 0.0, 0.0, 0.0)
"""What to start from: no term has been computed yet."""


class Density:
    """The log density as a function of some blocks, the others clamped.

    Called as ``density(position, evaluation) -> (log_density, new_evaluation)``: the form in which
    kernels take a log density, with evaluations as memos. The position is the value of the block,
    or a tuple of values if there are several.
    """

    __slots__ = ("_places", "_plan", "_target")

    def __init__(self, target: "Target", plan: Plan, places: tuple[int, ...]) -> None:
        self._target = target
        self._plan = plan
        self._places = places

    def __call__(self, position: Any, evaluation: Evaluation) -> tuple[float, Evaluation]:
        """Evaluate at new values of the blocks, given an evaluation at the old ones."""
        values = list(evaluation.values)
        if len(self._places) == 1:
            values[self._places[0]] = position
        else:
            for place, value in zip(self._places, position, strict=True):
                values[place] = value
        new = self._target._run(values, self._plan, evaluation)
        return new.log_density, new


class ApproximateDensity:
    """A density with all estimates replaced by their deterministic approximations.

    The evaluations that it hands on are whole: the estimates are part of them.
    """

    __slots__ = ("_density", "_target")

    def __init__(self, target: "Target", density: Density) -> None:
        self._target = target
        self._density = density

    def __call__(self, position: Any, evaluation: Evaluation) -> tuple[float, Evaluation]:
        """Evaluate at new values of the blocks, given an evaluation at the old ones."""
        _, new = self._density(position, evaluation)
        return self._target.approximate_log_density(new), new


class Target:
    """The log density of a model as a function of blocks of its inputs.

    The blocks are :data:`THETA`, :data:`REST` and the names of all randomness in the model; the
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
        The randomness of the model; the name of each is that of its block.
    black_boxes : list of Apply
        The black boxes in the graph of the log density.
    estimates : list of str
        The names of the terms that depend on randomness.
    layout, rest : Layout
        How parameters lie in the blocks :data:`THETA` and :data:`REST`.
    stages : list of PlacedStage
        The stages of the log density, in an order in which they can run.
    places : dict
        Where the value of each block is among those of an evaluation.
    sums : dict
        Where the sums of the terms of each kind are among them.
    n_fixed : int
        How many random numbers there are in arrays of fixed shape.
    has_approximation : bool
        Whether every estimate comes with a deterministic approximation.
    n_evals, n_theta_evals, n_nan, n_cubic : int
        Counts, since they were last set to zero: estimates computed, values of the parameters for
        which they were, estimates that were not a number, and the cubic operations of ops that
        count theirs.
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
        self.n_evals = 0
        self.n_theta_evals = 0
        self.n_nan = 0
        self.n_cubic = 0

        logps = model.logp(sum=False)
        self.randomness: list[SharedVariable] = randomness_in(logps)
        sizes: dict[str, int | None] = {THETA: self.layout.size, REST: self.rest.size}
        sizes |= {u.name: u.tag.apm_randomness.size for u in self.randomness}
        self.n_fixed = sum(
            u.tag.apm_randomness.size
            for u in self.randomness
            if not u.tag.apm_randomness.needs_black_box
        )
        self._blocks = {
            name: pt.vector(name, shape=(size,), dtype="float64") for name, size in sizes.items()
        }
        self.places = {name: place for place, name in enumerate(self._blocks)}

        self._parameters = self._as_functions_of_blocks(model.replace_rvs_by_values(model.free_RVs))
        self._parameter_names = [rv.name for rv in model.free_RVs]
        kinds = _term_kinds(model, logps)
        terms = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        self.estimates = [
            term.name for term, kind in zip(terms, kinds, strict=True) if kind == "estimate"
        ]
        self.black_boxes = black_boxes_in(logps)
        used = used_numbers(self.black_boxes)
        costs = _cubic_operations(logps)
        approximations = _approximations(model, kinds)
        self.has_approximation = bool(approximations)
        values = self._as_functions_of_blocks(
            [*(logp.sum() for logp in logps), *used.values(), *costs, *approximations]
        )
        stages, reports = cut(
            [Term(*term) for term in zip(kinds, values, strict=False)],
            self._blocks,
            values[len(logps) :],
        )
        place_of = self._give_places(stages)
        self._calls = [
            Call(StageFunction(placed.stage, model, compile_kwargs or {}), *placed[1:])
            for placed in self.stages
        ]
        places = [place_of[report] for report in reports]
        self._used_place = dict(zip(used, places, strict=False))
        self._cubic_places = frozenset(places[len(used) : len(used) + len(costs)])
        self._approximation_places = places[len(used) + len(costs) :]

    def _as_functions_of_blocks(self, variables: Sequence[Variable]) -> list[Variable]:
        replacements: dict[Variable, Variable] = {
            **self.layout.split(self._blocks[THETA]),
            **self.rest.split(self._blocks[REST]),
        }
        for u in self.randomness:
            replacements[u] = self._blocks[u.name]
            if u.tag.apm_randomness.size is not None:
                replacements[u] = self._blocks[u.name].reshape(u.type.shape)
        # Only steps evaluate the target, and they see to it that all randomness is claimed.
        replacements |= {flag: pt.constant(np.array(1)) for flag in flags_in(variables)}
        return clone_replace(list(variables), replace=replacements, rebuild_strict=False)

    def _give_places(self, stages: Sequence[Stage]) -> dict[Variable, int]:
        """Give all that the stages compute a place among an evaluation's values."""
        place_of = {block: self.places[name] for name, block in self._blocks.items()}
        n_values = len(place_of)
        self.sums: dict[TermKind, list[int]] = {"prior": [], "exact": [], "estimate": []}
        self.stages: list[PlacedStage] = []
        for stage in stages:
            outputs = range(n_values, n_values + len(stage.exports) + len(stage.sums))
            n_values = outputs.stop
            place_of.update(zip(stage.exports, outputs, strict=False))
            for kind, place in zip(stage.sums, outputs[len(stage.exports) :], strict=True):
                self.sums[kind].append(place)
            inputs = tuple(place_of[variable] for variable in stage.inputs)
            self.stages.append(PlacedStage(stage, inputs, tuple(outputs)))
        self._n_values = n_values
        return place_of

    def compile(self) -> None:
        """Compile all stages now, not when they are first called."""
        for call in self._calls:
            call.function.compile()

    def start(self, values: Mapping[str, FloatVector]) -> Evaluation:
        """Evaluate from scratch, given the value of every block."""
        places: list[Any] = [None] * self._n_values
        for name, place in self.places.items():
            places[place] = values[name]
        return self._run(places, self.plan(*self._blocks), NOTHING)

    def along(self, *names: str) -> "Density":
        """Return the log density as a function of some blocks, in the form that kernels take."""
        return Density(self, self.plan(*names), tuple(self.places[name] for name in names))

    def plan(self, *names: str) -> Plan:
        """Return what to run after a change of some blocks; a stage without blocks always runs."""
        everything = set(names) == set(self._blocks)
        stages = [
            (placed.stage, call)
            for placed, call in zip(self.stages, self._calls, strict=True)
            if everything or placed.stage.depends_on & set(names)
        ]
        return Plan(
            tuple(call for stage, call in stages if stage.is_prior),
            tuple(call for stage, call in stages if not stage.is_prior),
            any("exact" in stage.sums for stage, _ in stages),
            any("estimate" in stage.sums for stage, _ in stages),
            not {THETA, REST}.isdisjoint(names),
            tuple(
                place for _, call in stages for place in call.outputs if place in self._cubic_places
            ),
        )

    @property
    def ops_in_python(self) -> list[Op]:
        """The ops of the log density that are known to call Python."""
        return [op for placed in self.stages for op in ops_in_python(placed.stage)]

    def value(self, evaluation: Evaluation, name: str) -> FloatVector:
        """Return the value of a block in an evaluation."""
        return evaluation.values[self.places[name]]

    def settle(self, evaluation: Evaluation, name: str, rng: np.random.Generator) -> Evaluation:
        """Keep of a stream just what its estimate used; nothing has to be computed for that."""
        values = list(evaluation.values)
        values[self.places[name]] = settled(rng, values[self._used_place[name]])
        return evaluation._replace(values=tuple(values))

    def approximate_log_density(self, evaluation: Evaluation) -> float:
        """Return the log density with all estimates replaced by their approximations."""
        if not evaluation.values:  # the prior is zero
            return -math.inf
        log_density = evaluation.log_prior + evaluation.log_exact
        log_density += sum_at(self._approximation_places, evaluation.values)
        return log_density if log_density < math.inf else -math.inf

    def n_random(self, evaluation: Evaluation) -> int:
        """Return how many random numbers an estimate uses; those of a seed are not counted."""
        n_random = self.n_fixed
        for place in self._used_place.values():
            n_random += evaluation.values[place].size
        return n_random

    def reset_counts(self) -> None:
        """Set all counts to zero."""
        self.n_evals = self.n_theta_evals = self.n_nan = self.n_cubic = 0

    def _run(self, values: list[Any], plan: Plan, base: Evaluation) -> Evaluation:
        """Run the stages of a plan; ``values`` is changed and becomes part of the evaluation.

        What the plan does not compute is taken from an evaluation at the old values.
        """
        prior, others, computes_exact, computes_estimate, changes_theta, cubic = plan
        _, _, _, log_prior, log_exact = base
        try:
            if prior:
                run_calls(prior, values)
                log_prior = sum_at(self.sums["prior"], values)
            if not log_prior > -math.inf:
                return IMPOSSIBLE
            self.n_evals += computes_estimate
            self.n_theta_evals += changes_theta
            run_calls(others, values)
            for place in cubic:
                self.n_cubic += int(values[place])
            if computes_exact:
                log_exact = sum_at(self.sums["exact"], values)
            log_estimate = sum_at(self.sums["estimate"], values)
        except Exception as error:
            add_context(error, f"The model was being evaluated at {self.describe(values)}.")
            raise
        log_density = log_prior + log_exact + log_estimate
        if not log_density < math.inf:
            if log_estimate == math.inf:
                raise EstimatorError(
                    f"The log-estimate is +inf at {self.describe(values)}. An estimate must be a "
                    "finite number; look for a division by zero or an overflow in the estimator. "
                    + see("estimators")
                )
            if math.isnan(log_estimate):
                self.n_nan += computes_estimate
                log_estimate = -math.inf
            log_density = -math.inf
        return Evaluation(tuple(values), log_density, log_estimate, log_prior, log_exact)

    def describe(self, values: Sequence[Any]) -> str:
        """Put the parameters into words, on the scale on which the user declared them."""
        given = {self._blocks[name]: values[self.places[name]] for name in (THETA, REST)}
        parameters = compile_function(list(given), self._parameters)(*given.values())
        return ", ".join(
            f"{name} = {describe_value(value)}"
            for name, value in zip(self._parameter_names, parameters, strict=True)
        )


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
    """Return the approximations of all estimates, or nothing if one of them has none."""
    found = [*[None] * len(model.basic_RVs), *approximations_in(model)]
    wanted = [term for term, kind in zip(found, kinds, strict=True) if kind == "estimate"]
    if not all(term is not None for term in wanted):
        return []
    return model.replace_rvs_by_values(wanted)
