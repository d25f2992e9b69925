"""What all steps share: PyMC's step protocol around a target and its randomness."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator
from pytensor.compile.sharedvalue import SharedVariable

from pymc_apm._compat import StartsChains, get_shared, set_shared
from pymc_apm.claims import unclaimed_in
from pymc_apm.errors import EstimatorError, ModelError, UnclaimedRandomnessError, see, unclaimed
from pymc_apm.kernels import LogDensity, State
from pymc_apm.kernels.state import FloatVector
from pymc_apm.options import one_of
from pymc_apm.steps.choose import choose_randomness
from pymc_apm.steps.progress import ShowsProgress
from pymc_apm.target import REST, THETA, Evaluation, Target

Point: TypeAlias = dict[str, NDArray[Any]]
UUpdate: TypeAlias = Literal["slice", "independence"]

START_ATTEMPTS = 100
"""How many draws of u are tried at the start of a chain while the estimate is zero."""


@dataclass_state
class APMState(StepMethodState):
    """The part of a step that belongs to a chain."""

    tune: bool
    u: dict[str, NDArray[np.float64]]
    is_started: bool


class _UBlock(NamedTuple):
    """A piece of randomness that a step updates, and how."""

    variable: SharedVariable
    density: LogDensity
    update: Callable[[np.random.Generator, State, LogDensity], tuple[State, Any]]


class APMStep(StartsChains, ShowsProgress, BlockedStep):
    """A step that moves parameters, randomness or both, with the estimate as state of the chain.

    Subclasses say what a transition is, in :meth:`transition`; this class does everything that
    PyMC wants of a step.
    """

    _state_class: type[APMState] = APMState
    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list[int]]]] = {
        "n_evals": (np.int64, []),
        "n_theta_evals": (np.int64, []),
        "n_nan": (np.int64, []),
        "n_random": (np.int64, []),
        "n_cubic": (np.int64, []),
        "log_estimate": (np.float64, []),
    }

    def __init__(
        self,
        variables: Sequence[Any],
        u: Any,
        u_update: UUpdate | None,
        *,
        kind: str | None = None,
        model: pm.Model | None,
        rng: Any,
        initial_point: Point | None,
        compile_kwargs: dict[str, Any] | None,
        blocked: bool,
    ) -> None:
        name = type(self).__name__
        if not blocked:
            raise ModelError(
                f"{name} updates its variables together with the randomness of the estimators, and "
                "cannot be split by variable: leave out blocked=False."
            )
        one_of(f"u_update of {name}", u_update, "slice", "independence", None)
        model = pm.modelcontext(model)
        self.vars = list(variables)
        self.rng = get_random_generator(rng)
        self.compile_kwargs = compile_kwargs
        self.target = Target(
            model,
            self.vars,
            model.initial_point() if initial_point is None else initial_point,
            compile_kwargs,
        )
        if not self.target.randomness:
            raise ModelError(
                f"The model has no estimator, so there is nothing for {name} to do: declare "
                "randomness with apm.StandardNormal, apm.StandardUniform, apm.Stream or apm.Seed "
                "and add the log-estimate with apm.Potential, or sample with the steps of PyMC. "
                + see("getting_started")
            )
        chosen = choose_randomness(self.target.randomness, u, kind, name) if u_update else []
        self._theta_density: LogDensity = self.target.along(THETA)
        self._u_blocks = [
            _UBlock(
                variable,
                self.target.along(variable.name),
                variable.tag.apm_randomness.slice_update
                if u_update == "slice"
                else variable.tag.apm_randomness.independence_update,
            )
            for variable in chosen
        ]
        self.u_update = u_update
        self._streams = [v.name for v in chosen if v.tag.apm_randomness.is_lazy]
        self._evaluation: Evaluation | None = None
        # The last u of the chain, as a vector and as the array that the shared variable holds.
        self._written_u: dict[str, FloatVector] = {}
        self._seen_u: dict[str, NDArray[np.float64]] = {}
        self.tune = True
        self.is_started = False

    # The chain's state

    @property
    def u(self) -> dict[str, NDArray[np.float64]]:
        """The current value of the randomness that this step updates."""
        return {
            block.variable.name: block.variable.get_value(borrow=True) for block in self._u_blocks
        }

    @u.setter
    def u(self, values: dict[str, NDArray[np.float64]]) -> None:
        for block in self._u_blocks:
            block.variable.set_value(values[block.variable.name], borrow=True)

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of the target at the last draw, if there is one."""
        return self._evaluation

    @property
    def log_density(self) -> float:
        """The log density at the last draw, as it was computed when the chain came there."""
        if self._evaluation is None:
            raise ValueError("The chain has no draw yet.")
        return self._evaluation.log_density

    @property
    def updated_randomness(self) -> list[SharedVariable]:
        """The randomness that this step updates."""
        return [block.variable for block in self._u_blocks]

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to this process and to the chain it runs."""
        return self.__dict__ | {
            "_evaluation": None,
            "_written_u": {},
            "_seen_u": {},
        }

    def __copy__(self) -> "APMStep":
        """Refuse to be copied, as population samplers do to run their chains in turns.

        All chains would share the one u that the model has.
        """
        raise ModelError(
            f"{type(self).__name__} cannot be combined with a step like pm.DEMetropolis that runs "
            "its chains in turns. Use pm.DEMetropolisZ, which needs one chain alone."
        )

    def start_chain(self) -> None:
        """Forget the last chain and draw u afresh from q(u)."""
        self._evaluation = None
        self.is_started = False
        self.tune = True
        self.reset_tuning()
        self._draw_u()

    def _draw_u(self) -> None:
        for variable, *_ in self._u_blocks:
            _set_value(variable, variable.tag.apm_randomness.draw(self.rng))

    def reset_tuning(self) -> None:
        """Forget what was learnt while tuning."""

    # One draw

    @abstractmethod
    def transition(self, evaluation: Evaluation) -> tuple[Evaluation, dict[str, Any]]:
        """Make one transition of the chain; return also the statistics of the subclass."""

    def step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        """Make one transition of the chain.

        Parameters
        ----------
        point : dict
            The values of all parameters.

        Returns
        -------
        point : dict
        stats : list of dict
        """
        target = self.target
        target.reset_counts()
        evaluation, stats = self.transition(self._evaluate(point))
        self._remember(evaluation)
        stats["n_evals"] = target.n_evals
        stats["n_theta_evals"] = target.n_theta_evals
        stats["n_nan"] = target.n_nan
        stats["n_random"] = target.n_random(evaluation)
        stats["n_cubic"] = target.n_cubic
        stats["log_estimate"] = evaluation.log_estimate
        point = point.copy()
        point.update(target.layout.unravel(target.value(evaluation, THETA)))
        return point, [stats]

    def update_u(self, evaluation: Evaluation) -> tuple[Evaluation, list[Any]]:
        """Update each piece of randomness in turn; return what the kernels say of it."""
        infos = []
        evaluation = self.settle(evaluation)
        for variable, density, update in self._u_blocks:
            u = self.target.value(evaluation, variable.name)
            state, info = update(self.rng, State(u, evaluation.log_density, evaluation), density)
            evaluation = state.memo
            infos.append(info)
        return evaluation, infos

    def settle(self, evaluation: Evaluation) -> Evaluation:
        """Keep of each stream just what the estimate used, before it moves."""
        for name in self._streams:
            evaluation = self.target.settle(evaluation, name, self.rng)
        return evaluation

    def theta_state(self, evaluation: Evaluation) -> State:
        """Return the parameters as a state for a kernel."""
        theta = self.target.value(evaluation, THETA)
        return State(theta, evaluation.log_density, evaluation)

    def _evaluate(self, point: Point) -> Evaluation:
        """Return the evaluation at a point and the current u: as a rule the last one.

        What has changed is found by value: with several cores the arrays of a point are views of
        memory that PyMC overwrites.
        """
        target = self.target
        theta = target.layout.ravel(point)
        rest = target.rest.ravel(point)
        evaluation = self._evaluation
        if evaluation is None:
            return self._start(theta, rest)
        changed: dict[str, FloatVector] = {}
        if theta.tobytes() != target.value(evaluation, THETA).tobytes():
            changed[THETA] = theta
        if rest.size and rest.tobytes() != target.value(evaluation, REST).tobytes():
            changed[REST] = rest
        for variable in target.randomness:
            value = get_shared(variable)
            if value is not self._seen_u.get(variable.name):
                u = value.reshape(-1)
                if not np.array_equal(u, target.value(evaluation, variable.name)):
                    changed[variable.name] = u
        if changed:
            position = tuple(changed.values())
            density = target.along(*changed)
            _, evaluation = density(position if len(changed) > 1 else position[0], evaluation)
            if not evaluation.log_density > -np.inf:
                raise EstimatorError(
                    "The estimate is zero at the point at which another step, or a callback, left "
                    f"the chain: {target.describe([theta, rest])}."
                )
        return evaluation

    def _remember(self, evaluation: Evaluation) -> None:
        """Keep the evaluation, and let everybody else see the new u."""
        self._evaluation = evaluation
        for variable, *_ in self._u_blocks:
            u = self.target.value(evaluation, variable.name)
            if u is not self._written_u.get(variable.name):
                self._seen_u[variable.name] = _set_value(variable, u)
                self._written_u[variable.name] = u

    # The start of a chain

    def _start(self, theta: FloatVector, rest: FloatVector) -> Evaluation:
        """Evaluate from scratch; where a chain starts, with checks."""
        target = self.target
        if not self.is_started:
            evaluation = self.check_start(theta, rest)
        else:
            evaluation = target.start(self.values_of_blocks(theta, rest))
        target.reset_counts()
        return evaluation

    def check_start(self, theta: FloatVector, rest: FloatVector) -> Evaluation:
        """Check all that can be checked where a chain starts; draw u again where that helps."""
        target = self.target
        self._check_claims()
        evaluation = self.evaluate(self.values_of_blocks(theta, rest))
        if not evaluation.values:
            raise EstimatorError(
                "The prior is zero at the starting point: "
                f"{target.describe([theta, rest])}. Give other initvals to pm.sample."
            )
        for _ in range(START_ATTEMPTS - 1):
            if evaluation.log_estimate > -np.inf:
                break
            self._draw_u()
            evaluation = self.evaluate(self.values_of_blocks(theta, rest))
        self._check_start(evaluation)
        self._check_clamped(evaluation, self.evaluate(self.values_of_blocks(theta, rest)))
        self.is_started = True
        return evaluation

    def evaluate(self, values: dict[str, FloatVector]) -> Evaluation:
        """Evaluate the target from scratch."""
        return self.target.start(values)

    def values_of_blocks(self, theta: FloatVector, rest: FloatVector) -> dict[str, FloatVector]:
        """Return the value of each block of the target, with u as it is now."""
        randomness = self.target.randomness
        return {
            THETA: theta,
            REST: rest,
            **{u.name: u.get_value(borrow=True).reshape(-1) for u in randomness},
        }

    def _check_claims(self) -> None:
        own = {variable.name for variable in self.updated_randomness}
        names = [name for name in unclaimed_in(self.target.model) if name not in own]
        if names:
            raise UnclaimedRandomnessError(unclaimed(names))

    def _check_start(self, evaluation: Evaluation) -> None:
        if evaluation.log_density > -np.inf:
            return
        where = self.target.describe(evaluation.values)
        if evaluation.log_estimate > -np.inf:
            raise EstimatorError(
                f"The likelihood of the observed variables is zero at the starting point: {where}. "
                "Give other initvals to pm.sample."
            )
        raise EstimatorError(
            f"The estimate of {', '.join(self.target.estimates)} is zero at the starting point for "
            f"each of {START_ATTEMPTS} draws of its randomness: {where}. Give other initvals to "
            "pm.sample, or improve the estimator, for example by more importance samples. "
            + see("estimators")
        )

    def _check_clamped(self, first: Evaluation, second: Evaluation) -> None:
        if not np.isclose(first.log_estimate, second.log_estimate, rtol=1e-8, atol=1e-10):
            raise EstimatorError(
                f"The estimate of {', '.join(self.target.estimates)} differs between two "
                "computations for the same parameters and the same randomness "
                f"({first.log_estimate} and {second.log_estimate}): {self._suspects()} draws "
                "random numbers of its own. Let it take all of them from its declared randomness: "
                "an apm.Stream or an apm.Seed arrives as a generator to draw from. "
                + see("estimators")
            )

    def _suspects(self) -> str:
        names = [str(node.op) for node in self.target.black_boxes]
        return " or ".join(names) if names else "the estimator"


def _set_value(variable: SharedVariable, u: FloatVector) -> NDArray[np.float64]:
    """Give a vector to the shared variable of a piece of randomness; return it as the array."""
    value: NDArray[np.float64] = variable.tag.apm_randomness.as_array(u)
    set_shared(variable, value)
    return value


def share_accepted(infos: Sequence[Any]) -> float:
    """Return the share of updates that moved what they update; none if there was none."""
    return sum(info.accepted for info in infos) / len(infos) if infos else 0.0
