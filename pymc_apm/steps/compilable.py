"""Steps whose whole transition can be compiled: u, then theta, or both together."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from pymc.step_methods.state import WithSamplingState

from pymc_apm._compat import uses_numba
from pymc_apm.kernels.state import FloatVector
from pymc_apm.steps.base import APMStep, Point
from pymc_apm.steps.blocks import Blocks, make_blocks
from pymc_apm.target import Evaluation
from pymc_apm.updates.report import Report
from pymc_apm.validation import one_of, positive_integer


class CompilableStep(APMStep):
    """A step with one transition in Python, and the same transition compiled.

    Subclasses name the functions of :mod:`pymc_apm.updates` that update theta, while tuning and
    after, the options that these take, and what they have learnt.
    """

    learn_theta: ClassVar[Callable[..., Any]]
    update_theta: ClassVar[Callable[..., Any]]
    scale_name: ClassVar[str]
    has_accept_rate: ClassVar[bool] = False
    options: Any
    correlation = 0.0
    thin = 1
    _blocks: Blocks | None = None

    @property
    @abstractmethod
    def learnt(self) -> Any:
        """What was learnt while tuning, as :attr:`learn_theta` takes and returns it."""

    @learnt.setter
    @abstractmethod
    def learnt(self, learnt: Any) -> None: ...

    @property
    @abstractmethod
    def frozen(self) -> tuple[Any, Any]:
        """The part of it that is used after tuning: a factor of a covariance, and scales."""

    def proposes_jointly(self, tune: bool) -> bool:
        """Say whether theta and u are proposed together, while tuning or after."""
        return False

    def prepare(self, compile: Any, thin: Any) -> None:
        """Take the options that all such steps have, and compile what there is to compile."""
        name = type(self).__name__
        one_of(f"compile of {name}", compile, "auto", True, False)
        self.thin = positive_integer(f"thin of {name}", thin)
        self._blocks = make_blocks(self, compile)
        if self._blocks is None:
            self.target.compile()

    # In Python

    def transition(self, evaluation: Evaluation) -> tuple[Evaluation, dict[str, Any]]:
        """Make as many transitions as the chain is thinned by."""
        evaluation, report, u_infos = self.update(evaluation)
        for _ in range(self.thin - 1):
            evaluation, new, infos = self.update(evaluation)
            report = Report(
                report.n_updates + new.n_updates,
                report.n_moved + new.n_moved,
                report.accept_rate + new.accept_rate,
                report.scale + new.scale,
            )
            u_infos += infos
        n_u_moved = sum(info.accepted for info in u_infos)
        return evaluation, self.make_stats(*report, len(u_infos), n_u_moved)

    def update(self, evaluation: Evaluation) -> tuple[Evaluation, Report, list[Any]]:
        """Make one transition: update u, then theta."""
        evaluation, u_infos = self.update_u(evaluation)
        state = self.theta_state(evaluation)
        if self.tune:
            state, self.learnt, report = type(self).learn_theta(
                self.rng, state, self._theta_density, self.options, self.learnt
            )
        else:
            state, report = type(self).update_theta(
                self.rng, state, self._theta_density, self.options, *self.frozen
            )
        return state.memo, report, u_infos

    def make_stats(
        self,
        n_updates: Any,
        n_moved: Any,
        accept_rate: Any,
        scale: Any,
        n_u_updates: int,
        n_u_moved: Any,
    ) -> dict[str, Any]:
        """Make the statistics of a draw, or arrays of many, from sums over its transitions."""
        stats = {
            "accepted": n_moved / n_updates,
            "u_accepted": n_u_moved / n_u_updates if n_u_updates else 0.0 * n_u_moved,
            self.scale_name: scale / self.thin,
        }
        if self.has_accept_rate:
            stats["accept_rate"] = accept_rate / n_updates
        return stats

    # Compiled

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
        blocks = self._blocks
        if blocks is None:
            return super().step(point)
        drawn = blocks.next_draw(self, point)
        if drawn is not None:
            return drawn
        blocks.n_suspended -= 1
        drawn = super().step(point)
        if not blocks.n_suspended:
            self._evaluation = None
        return drawn

    def evaluate(self, values: dict[str, FloatVector]) -> Evaluation:
        """Evaluate the target from scratch."""
        if self._blocks is None:
            return super().evaluate(values)
        return self._blocks.evaluate(self, values)

    def obstacle_to_compilation(self, is_optional: bool) -> str | None:
        """Say what is in the way of compiled code, as far as that can be seen from here."""
        if any(u.tag.apm_randomness.needs_black_box for u in self.target.randomness):
            return "Streams and seeds are for black boxes, which are Python."
        in_python = self.target.ops_in_python
        if in_python:
            return f"Part of the model is Python: {', '.join(map(str, in_python))}."
        if not type(self).__module__.startswith("pymc_apm."):
            return f"{type(self).__name__} may differ from the step that it is derived from."
        if not uses_numba(self.compile_kwargs):
            return "compile_kwargs asks for another mode than that of Numba."
        if is_optional and self.u_update is None:
            return "Another step moves u between any two draws."
        return None

    @property
    def is_compiled(self) -> bool:
        """Whether transitions run in compiled code."""
        return self._blocks is not None

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of the target at the last draw, if there is one."""
        if self._blocks is None or self._evaluation is not None:
            return self._evaluation
        return self._blocks.evaluation()

    @property
    def log_density(self) -> float:
        """The log density at the last draw, as it was computed when the chain came there."""
        if self._blocks is None or self._evaluation is not None:
            return super().log_density
        return self._blocks.log_density()

    def start_chain(self) -> None:
        """Forget the last chain and draw u afresh from q(u)."""
        if self._blocks is not None:
            self._blocks.forget()
        super().start_chain()

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        self.go_back_to_last_draw()
        super().stop_tuning()

    def go_back_to_last_draw(self) -> None:
        """Take back all that was computed ahead of the last draw that was handed out."""
        if self._blocks is not None:
            self._blocks.go_back_to_last_draw(self)

    @property
    def sampling_state(self) -> Any:
        """The state of the chain after the last draw."""
        self.go_back_to_last_draw()
        return super().sampling_state

    @sampling_state.setter
    def sampling_state(self, state: Any) -> None:
        if self._blocks is not None:
            self._blocks.forget()
        WithSamplingState.sampling_state.fset(self, state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what belongs to this process and to the chain it runs."""
        self.go_back_to_last_draw()
        return super().__getstate__()
