"""u, then theta by slice sampling: APM SS+SS and MI+SS."""

from typing import Any, Literal

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import dataclass_state
from pymc.vartypes import continuous_types

from pymc_apm.adaptation import (
    Covariance,
    Pilot,
    Widths,
    freeze_widths,
    start_covariance,
    start_pilot,
    start_widths,
)
from pymc_apm.errors import ModelError
from pymc_apm.kernels import UNLIMITED
from pymc_apm.kernels.state import FloatVector
from pymc_apm.potential import feeds_potential
from pymc_apm.steps.base import APMState, APMStep, Point, UUpdate
from pymc_apm.steps.choose import continuous_or_all
from pymc_apm.steps.compilable import CompilableStep
from pymc_apm.updates.slice import SliceLearnt, SliceOptions, learn_by_slice, update_by_slice
from pymc_apm.validation import numbers, one_of, positive_integer


@dataclass_state
class APMSliceState(APMState):
    """The part of the step that belongs to a chain."""

    pilot: Pilot
    covariance: Covariance
    widths: Widths


class APMSlice(CompilableStep):
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
    compile : {"auto", True, False}
        Whether to run in compiled code: where that is possible, always (an error says what stands
        in the way), or never.
    thin : int
        How many transitions to make for each draw.
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
    learn_theta = staticmethod(learn_by_slice)
    update_theta = staticmethod(update_by_slice)
    scale_name = "width"

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
        compile: Literal["auto"] | bool = "auto",
        thin: int = 1,
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
        self.width = _checked_width(width, self.target.layout.size, directions)
        learns_width = self.width is None
        self.options = SliceOptions(
            is_coordinate=directions == "coordinate",
            theta_updates=positive_integer("theta_updates of APMSlice", theta_updates),
            max_step_out=(
                UNLIMITED
                if step_out is True
                else positive_integer("step_out of APMSlice", step_out, minimum=0)
            ),
            length=0.0 if self.width is None or directions != "adaptive" else self.width[0],
            tunes_width=learns_width,
            learns_covariance=directions == "adaptive" or (directions == "random" and learns_width),
            has_pilot=learns_width and directions != "coordinate",
            is_diagonal=directions == "random",
        )
        self.reset_tuning()
        self.prepare(compile, thin)

    @property
    def learnt(self) -> SliceLearnt:
        """What was learnt while tuning."""
        return SliceLearnt(self.pilot, self.covariance, self.widths)

    @learnt.setter
    def learnt(self, learnt: SliceLearnt) -> None:
        self.pilot, self.covariance, self.widths = learnt

    @property
    def frozen(self) -> tuple[FloatVector, FloatVector]:
        """The part of it that is used after tuning."""
        return self.covariance.cholesky, self.widths.width

    def reset_tuning(self) -> None:
        """Forget what was learnt while tuning."""
        dim = self.target.layout.size
        shape = np.eye(dim)
        if self.width is not None and self.directions == "random":
            shape = np.diag(self.width)
        self.pilot = start_pilot(dim)
        self.covariance = start_covariance(shape)
        if self.directions == "coordinate":
            self.widths = start_widths(np.ones(dim) if self.width is None else self.width)
        else:
            self.widths = start_widths(np.ones(1))

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        self.go_back_to_last_draw()
        if self.tune and self.width is None:
            self.widths = freeze_widths(self.widths)
        super().stop_tuning()

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
