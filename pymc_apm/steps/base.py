"""What all steps share: PyMC's step protocol around one chain."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.state import WithSamplingState, dataclass_state
from pymc.util import get_random_generator
from pytensor.compile.sharedvalue import SharedVariable

from pymc_apm._compat import StartsChains, uses_numba
from pymc_apm.adaptive.factors import updating_factors
from pymc_apm.adaptive.transition import (
    Settle,
    Transition,
    UpdateU,
    one_after_the_other,
    refreshing_u,
    settling,
    updating_u,
)
from pymc_apm.claims import unclaimed_in
from pymc_apm.density.target import Target
from pymc_apm.errors import ModelError, UnclaimedRandomnessError, see, unclaimed
from pymc_apm.kinds import AUTO, U_UPDATES
from pymc_apm.steps.chain import Chain, Evaluated, Recipe
from pymc_apm.steps.choose import choose_randomness
from pymc_apm.steps.compiling import Choice, Compiling
from pymc_apm.steps.progress import ShowsProgress
from pymc_apm.steps.recording import recorders_of
from pymc_apm.steps.statistics import COSTS, Statistic, dtypes_and_shapes
from pymc_apm.types import Evaluation, Point
from pymc_apm.validation import one_of, positive_integer

Densities: TypeAlias = Callable[..., Any]
"""``density(*names)`` is the log density of a target along some of its inputs."""


@dataclass_state
class APMState(StepMethodState):
    """The part of a step that belongs to a chain."""

    tune: bool
    u: dict[str, NDArray[np.float64]]
    is_started: bool
    learnt: Any
    evaluated: Evaluated | None


class APMStep(StartsChains, ShowsProgress, BlockedStep):
    """A step that moves parameters, randomness or both, with the estimate as state of the chain.

    A subclass is its options and a transition: it says in :meth:`build` how a transition is made
    from log densities, in :meth:`start` and :meth:`freeze` what is known before and after tuning,
    and in ``statistics`` what to record.
    """

    _state_class: type[APMState] = APMState
    statistics: ClassVar[Mapping[str, Statistic]]
    stats_dtypes_shapes: dict[str, tuple[type, list[int]]]
    options: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "statistics" in cls.__dict__:
            cls.statistics = COSTS | dict(cls.statistics)
            cls.stats_dtypes_shapes = dtypes_and_shapes(cls.statistics)

    def __init__(
        self,
        variables: Sequence[Any],
        *,
        u: Any,
        u_update: str | None,
        kind: str | None = None,
        factorwise: bool = True,
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
        one_of(f"u_update of {name}", u_update, AUTO, *U_UPDATES, None)
        model = pm.modelcontext(model)
        self.vars = list(variables)
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
        if self.vars and not self.target.layout.size:
            raise ModelError(
                f"The parameters that {name} is to update have no elements: "
                f"{', '.join(v.name for v in self.vars)}. Use apm.APMEllipticalU() or its kin to "
                "update the randomness alone."
            )
        if self.target.has_signs:
            self.stats_dtypes_shapes = dtypes_and_shapes(self.statistics, has_signs=True)
            self.stats_dtypes = [{n: kind for n, (kind, _) in self.stats_dtypes_shapes.items()}]
        self.u_update = u_update
        one_of(f"factorwise of {name}", factorwise, True, False)
        self.factorwise = factorwise
        self.moved: list[SharedVariable] = (
            choose_randomness(self.target.randomness, u, kind, u_update, name) if u_update else []
        )
        self.recorders = recorders_of(model, self.moved)
        if self.recorders:
            paths = {recorder.name: recorder for recorder in self.recorders}
            shapes = {name: (np.float64, list(path.shape)) for name, path in paths.items()}
            self.stats_dtypes_shapes = self.stats_dtypes_shapes | shapes
            dtypes: dict[str, Any] = {name: path.dtype for name, path in paths.items()}
            self.stats_dtypes = [{**self.stats_dtypes[0], **dtypes}]
        self._rng = get_random_generator(rng)

    def make_chain(self, compile: Choice = False, thin: int = 1) -> None:
        """Make the chain, when all options are known; compile it if the user says so."""
        name = type(self).__name__
        one_of(f"compile of {name}", compile, "auto", True, False)
        self.thin = positive_integer(f"thin of {name}", thin)
        recipe = Recipe(
            self.build, self.options, self.start, self.freeze, self.statistics, self.thin
        )
        obstacle = self.obstacle_to_compilation(compile == "auto")
        compiling = Compiling(compile, name, obstacle, self.target.has_compiled_ops)
        self.chain = Chain(self.target, self.moved, recipe, compiling)
        self.chain.rng = self._rng
        if compiling.is_wanted:
            compiling.compiled(self.chain)
        elif compile is False:
            self.target.compile()

    # What a subclass says

    @abstractmethod
    def build(self, density: Densities) -> Transition:
        """Make a transition; ``density(*names)`` is the log density along some inputs."""

    def start(self) -> Any:
        """Return what is known before anything was learnt."""
        return None

    def freeze(self, learnt: Any) -> Any:
        """Return what to use after tuning."""
        return learnt

    def build_u(self, density: Densities) -> UpdateU:
        """Make the update of all randomness that this step moves, one u after the other."""
        updates = []
        for variable in self.moved:
            randomness, along_u = variable.tag.apm_randomness, density(variable.name)
            kind = randomness.kind
            place = self.target.places[variable.name]
            factors = self.target.factors.get(variable.name)
            u_update = randomness.update if self.u_update == AUTO else self.u_update
            if self.brings_update(variable):
                update = refreshing_u(self.target.refreshing(variable.name), along_u, place)
            elif self.factorwise and factors and u_update in kind.updates_of_factors:
                kernel = kind.updates_of_factors[u_update]
                estimates = self.target.sums["estimate"]
                update = updating_factors(kernel, along_u, place, factors, estimates)
            else:
                update = updating_u(kind.updates[u_update], along_u, place)
            if kind.is_lazy:
                update = settling(self.settle(variable.name), update)
            updates.append(update)
        return one_after_the_other(updates)

    def brings_update(self, variable: SharedVariable) -> bool:
        """Say whether randomness is refreshed by its estimator, which is best where it can."""
        return self.u_update == AUTO and variable.name in self.target.own_updates

    def settle(self, *names: str) -> Settle:
        """Return a function that keeps of some streams just what the estimate used."""

        def settle(rng: np.random.Generator, evaluation: Evaluation) -> Evaluation:
            for name in names:
                evaluation = self.target.settle(evaluation, name, rng)
            return evaluation

        return settle

    def obstacle_to_compilation(self, is_optional: bool) -> str | None:
        """Say what is in the way of compiled code, as far as that can be seen from here."""
        if any(u.tag.apm_randomness.kind.needs_black_box for u in self.target.randomness):
            return "Streams and seeds are for black boxes, which are Python."
        in_python = self.target.ops_in_python
        if in_python:
            return f"Part of the model is Python: {', '.join(map(str, in_python))}."
        brought = [u.name for u in self.moved if self.brings_update(u)]
        if brought:
            return f"The estimator itself updates {', '.join(brought)}, in Python."
        if not uses_numba(self.compile_kwargs):
            return "compile_kwargs asks for another mode than that of Numba."
        if is_optional and self.u_update is None:
            return "Another step moves u between any two draws."
        return None

    # The chain's state, as PyMC wants to have it

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the chain."""
        return self.chain.rng if hasattr(self, "chain") else self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        if hasattr(self, "chain"):
            self.chain.rng = rng
        self._rng = rng

    @property
    def tune(self) -> bool:
        """Whether the chain is tuning."""
        return self.chain.tune

    @tune.setter
    def tune(self, tune: bool) -> None:
        self.chain.tune = tune

    @property
    def is_started(self) -> bool:
        """Whether the chain has a valid starting point."""
        return self.chain.is_started

    @is_started.setter
    def is_started(self, is_started: bool) -> None:
        self.chain.is_started = is_started

    @property
    def learnt(self) -> Any:
        """What was learnt while tuning."""
        return self.chain.learnt

    @learnt.setter
    def learnt(self, learnt: Any) -> None:
        self.chain.learnt = learnt

    @property
    def u(self) -> dict[str, NDArray[np.float64]]:
        """The current value of the randomness that this step updates."""
        return {variable.name: variable.get_value(borrow=True) for variable in self.moved}

    @u.setter
    def u(self, values: dict[str, NDArray[np.float64]]) -> None:
        for variable in self.moved:
            variable.set_value(values[variable.name])

    @property
    def updated_randomness(self) -> list[SharedVariable]:
        """The randomness that this step updates."""
        return self.moved

    @property
    def evaluated(self) -> Evaluated | None:
        """Where the target was evaluated last, and what was computed there."""
        return self.chain.evaluated

    @evaluated.setter
    def evaluated(self, evaluated: Evaluated | None) -> None:
        self.chain.expect(evaluated)

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of the target at the last draw, if there is one."""
        return self.chain.evaluation

    @property
    def log_density(self) -> float:
        """The log density at the last draw, as it was computed when the chain came there."""
        if self.chain.evaluation is None:
            raise ValueError("The chain has no draw yet.")
        return self.chain.evaluation.log_density

    @property
    def is_compiled(self) -> bool:
        """Whether draws are made by compiled code."""
        return self.chain.is_compiled

    @property
    def sampling_state(self) -> Any:
        """The state of the chain after the last draw."""
        self.chain.go_back()
        return super().sampling_state

    @sampling_state.setter
    def sampling_state(self, state: Any) -> None:
        self.chain.forget()
        WithSamplingState.sampling_state.fset(self, state)

    def __copy__(self) -> "APMStep":
        """Refuse to be copied, as population samplers do to run their chains in turns.

        All chains would share the one u that the model has.
        """
        raise ModelError(
            f"{type(self).__name__} cannot be combined with a step like pm.DEMetropolis that runs "
            "its chains in turns. Use pm.DEMetropolisZ, which needs one chain alone."
        )

    # What PyMC calls

    def start_chain(self) -> None:
        """Forget the last chain and draw u afresh from q(u)."""
        self.chain.restart()
        self.chain.n_tune, self.chain.n_draws = self.n_tune, self.n_draws
        self.chain.draw_u(self.moved)

    def reset_tuning(self) -> None:
        """Forget what was learnt while tuning."""
        self.learnt = self.start()

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        self.chain.stop_tuning()

    def step(self, point: Point) -> tuple[Point, list[dict[str, Any]]]:
        """Make one draw.

        Parameters
        ----------
        point : dict
            The values of all parameters.

        Returns
        -------
        point : dict
        stats : list of dict
        """
        if not self.chain.is_started:
            self._check_claims()
        point, stats = self.chain.advance(point)
        for recorder in self.recorders:
            path = recorder.nothing if self.tune else recorder(point)
            stats = {**stats, recorder.name: path}
        return point, [stats]

    def _check_claims(self) -> None:
        own = {variable.name for variable in self.moved}
        names = [name for name in unclaimed_in(self.target.model) if name not in own]
        if names:
            raise UnclaimedRandomnessError(unclaimed(names))
