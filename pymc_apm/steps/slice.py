"""u, then theta by slice sampling: APM SS+SS and MI+SS."""

import math
from typing import Any, Literal

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import dataclass_state
from pymc.vartypes import continuous_types

from pymc_apm.adaptation import (
    TUNED_WIDTH,
    Covariance,
    Pilot,
    Width,
    freeze_width,
    learn_covariance,
    start_covariance,
    start_pilot,
    tune_widths,
)
from pymc_apm.errors import ModelError
from pymc_apm.kernels import (
    UNLIMITED,
    SliceInfo,
    State,
    coordinate_slice,
    linear_slice,
    random_direction,
)
from pymc_apm.options import numbers, one_of, positive_integer
from pymc_apm.potential import feeds_potential
from pymc_apm.steps.base import APMState, APMStep, Point, UUpdate, share_accepted
from pymc_apm.steps.choose import continuous_or_all
from pymc_apm.steps.pilot import HasPilot
from pymc_apm.target import THETA, Evaluation


@dataclass_state
class APMSliceState(APMState):
    """The part of the step that belongs to a chain."""

    pilot: Pilot
    covariance: Covariance
    widths: list[Width]


class APMSlice(HasPilot, APMStep):
    """Update u, then the parameters by slice sampling with u clamped (APM SS+SS or MI+SS).

    The parameters always move where the estimate is continuous in them, however noisy the estimate
    is, and so does u under ``u_update="slice"``. There is nothing that has to be tuned by hand.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update; all continuous parameters of the model if not given.
    u_update : {"slice", "independence", None}
        How to update u: by slice sampling (elliptical for Gaussian u, reflective for uniform u), by
        Metropolis independence, or not at all, which leaves it to another step.
    width : float or array, optional
        Width of the initial bracket, for all or for each of the parameters, on the scale that PyMC
        samples on. ``None`` means that it is learnt while tuning and frozen after.
    step_out : bool or int
        Whether to expand the bracket while its ends are in the slice. An integer limits it to so
        many widths.
    directions : {"random", "coordinate", "adaptive"}
        The lines to move along in an update: one in a random direction; one along each parameter
        in turn; or one in a random direction drawn according to the covariance of the parameters,
        which is learnt while tuning and helps where they are strongly correlated.
    theta_updates : int
        How many updates of the parameters to make for each update of u.
    u : variable, str or list of these, optional
        The randomness to update; all that the model has if not given.
    model : Model, optional
        The model; the one whose context is open if not given.
    rng : Generator or seed, optional
    initial_point : dict, optional
    compile_kwargs : dict, optional
        What to pass on to the compiler of the log density, for example ``{"mode": "NUMBA"}``.
    blocked : bool
        For PyMC; must be true.

    References
    ----------
    Murray, I. and Graham, M. M. (2016). Pseudo-marginal slice sampling. AISTATS.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     idata = pm.sample(50, tune=50, chains=1, step=apm.APMSlice(), progressbar=False)
    >>> list(idata.posterior.data_vars)
    ['theta']
    """

    name = "apm_slice"
    stats_dtypes_shapes = APMStep.stats_dtypes_shapes | {
        "accepted": (np.float64, []),
        "u_accepted": (np.float64, []),
        "width": (np.float64, []),
    }
    _state_class = APMSliceState

    def __init__(
        self,
        vars: Any = None,
        u_update: UUpdate | None = "slice",
        width: ArrayLike | None = None,
        step_out: bool | int = False,
        directions: Literal["random", "coordinate", "adaptive"] = "random",
        theta_updates: int = 1,
        *,
        u: Any = None,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        one_of("directions of APMSlice", directions, "random", "coordinate", "adaptive")
        super().__init__(
            continuous_or_all(vars, model, "APMSlice"),
            u,
            u_update,
            model=model,
            rng=rng,
            initial_point=initial_point,
            compile_kwargs=compile_kwargs,
            blocked=blocked,
        )
        self.directions = directions
        self.theta_updates = positive_integer("theta_updates of APMSlice", theta_updates)
        self.max_step_out = (
            UNLIMITED
            if step_out is True
            else positive_integer("step_out of APMSlice", step_out, minimum=0)
        )
        self.width = _checked_width(width, self.target.layout.size, directions)
        self.reset_tuning()

    def reset_tuning(self) -> None:
        """Forget what was learnt while tuning."""
        dim = self.target.layout.size
        shape = np.eye(dim)
        if self.width is not None and self.directions == "random":
            shape = np.diag(self.width)
        self.pilot = start_pilot(dim)
        self.covariance = start_covariance(shape)
        if self.directions == "coordinate":
            self.widths = [Width(w) for w in (np.ones(dim) if self.width is None else self.width)]
        else:
            self.widths = [Width(1.0)]

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        if self.tune and self.width is None:
            self.widths = [freeze_width(width) for width in self.widths]
        super().stop_tuning()

    @property
    def _learns_covariance(self) -> bool:
        return self.directions == "adaptive" or (self.directions == "random" and self.width is None)

    @property
    def _is_in_pilot(self) -> bool:
        learns_scales = self.width is None and self.directions != "coordinate"
        return self.tune and learns_scales and not self.pilot.is_over

    def transition(self, evaluation: Evaluation) -> tuple[Evaluation, dict[str, Any]]:
        """Update u, then theta."""
        evaluation, u_infos = self.update_u(evaluation)
        state = self.theta_state(evaluation)
        state, infos, total_width = self._update_theta(state)
        for _ in range(self.theta_updates - 1):
            state, new_infos, width = self._update_theta(state)
            infos += new_infos
            total_width += width
        if self.tune and self._learns_covariance and not self._is_in_pilot:
            self._learn(self.target.value(state.memo, THETA))
        return state.memo, {
            "accepted": share_accepted(infos),
            "u_accepted": share_accepted(u_infos),
            "width": total_width / self.theta_updates,
        }

    def _update_theta(self, state: State) -> tuple[State, list[SliceInfo], float]:
        """Update theta once; return also the length of the bracket."""
        if self._is_in_pilot:
            width = sum(learnt.width for learnt in self.pilot.widths) / len(self.pilot.widths)
            state, infos = self.update_pilot(state)
            if self.pilot.is_over:
                self._use(start_covariance(self.pilot.cholesky))
            return state, infos, width
        if self.directions == "coordinate":
            widths = [learnt.width for learnt in self.widths]
            width = sum(widths) / len(widths)
            state, infos = coordinate_slice(
                self.rng, state, self._theta_density, widths, self.max_step_out
            )
        else:
            direction = random_direction(self.rng, self.covariance.cholesky)
            length = math.sqrt(np.dot(direction, direction))
            if self.directions == "adaptive" and self.width is not None:
                direction *= self.width[0] / length
                length = self.width[0]
            width = self.widths[0].width * length
            state, info = linear_slice(
                self.rng,
                state,
                self._theta_density,
                direction,
                self.widths[0].width,
                self.max_step_out,
            )
            infos = [info]
        if self.tune and self.width is None:
            self.widths = tune_widths(self.widths, infos, steps_out=self.max_step_out > 0)
        return state, infos, width

    def _learn(self, theta: NDArray[np.float64]) -> None:
        learnt, changed = learn_covariance(
            self.covariance, theta, diagonal=self.directions == "random"
        )
        if changed:
            self._use(learnt)
        else:
            self.covariance = learnt

    def _use(self, covariance: Covariance) -> None:
        self.covariance = covariance
        if self.width is None:
            self.widths = [Width(TUNED_WIDTH)]

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Claim the continuous parameters of estimators."""
        if feeds_potential(var) and var.dtype in continuous_types:
            return Competence.IDEAL
        return Competence.INCOMPATIBLE


def _checked_width(
    width: ArrayLike | None, dim: int, directions: str
) -> NDArray[np.float64] | None:
    if width is None:
        return None
    widths = numbers("width of APMSlice", width)
    if not (widths > 0).all():
        raise ModelError(f"width of APMSlice must be positive, got {width!r}.")
    if widths.ndim > 0 and (widths.size != dim or directions == "adaptive"):
        raise ModelError(
            f"width of APMSlice must be one number or, unless directions is adaptive, one for each "
            f"of the {dim} parameters, got {widths.size}."
        )
    return np.broadcast_to(widths.ravel(), dim).copy()
