"""u, then theta by slice sampling: APM SS+SS and MI+SS."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike, NDArray
from pymc.step_methods.compound import Competence
from pymc.vartypes import continuous_types
from pytensor.compile.sharedvalue import SharedVariable

from pymc_apm.adaptive.ellipse import update_by_ellipse
from pymc_apm.adaptive.slice import (
    DOF,
    NEARBY_DOF,
    SliceLearnt,
    SliceOptions,
    freeze_slice,
    learn_slice,
    start_slice,
    update_by_slice,
)
from pymc_apm.adaptive.transition import Transition, u_then_theta
from pymc_apm.density.target import THETA
from pymc_apm.deprecated import once_positional
from pymc_apm.errors import ModelError
from pymc_apm.kernels import UNLIMITED
from pymc_apm.kinds import AUTO
from pymc_apm.potential import feeds_potential
from pymc_apm.steps.base import APMStep, Densities
from pymc_apm.steps.choose import continuous_or_all
from pymc_apm.steps.compiling import Choice
from pymc_apm.steps.statistics import ACCEPTED, SCALE, U_ACCEPTED, Statistic
from pymc_apm.types import Point
from pymc_apm.validation import numbers, one_of, positive_integer

logger = logging.getLogger("pymc.apm")

DIRECTIONS = ("random", "coordinate", "adaptive", "ellipse")


class APMSlice(APMStep):
    """Update u, then the parameters by slice sampling with u clamped (APM SS+SS or MI+SS).

    The parameters always move where the estimate is continuous in them, however noisy the estimate
    is, and so does u under ``u_update="slice"``. There is nothing that has to be tuned by hand.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update; all continuous parameters of the model if not given.
    u_update : {"auto", "slice", "independence", None}
        How to update u: by slice sampling (elliptical for Gaussian u, reflective for uniform u), by
        Metropolis independence, or not at all, which leaves it to another step. ``"auto"`` is the
        update that an estimator brings along for its own u, if it does, as particle filters do,
        ``"independence"`` where it knows that its noise is low, as that of a pool of points is, and
        ``"slice"`` otherwise.
    width : float or array, optional
        Width of the initial bracket, for all or for each of the parameters, on the scale that PyMC
        samples on. ``None`` means that it is learnt while tuning and frozen after.
    step_out : bool or int
        Whether to expand the bracket while its ends are in the slice. An integer limits it to so
        many widths.
    directions : {"auto", "random", "coordinate", "adaptive", "ellipse"}
        The lines to move along in an update: one in a random direction; one along each parameter
        in turn; or one in a random direction drawn according to the covariance of the parameters,
        which is learnt while tuning and helps where they are strongly correlated. ``"ellipse"``
        learns their mean too and moves along an ellipse about it. Until there is something to
        learn from it moves along lines. ``"auto"`` is ``"ellipse"``, which is the best of them on
        nearly all models that were measured, unless ``width`` or ``step_out`` is given, which are
        about lines. Then it is ``"random"``. Ellipses stay closer to what was learnt if the
        estimate draws from a stream or a seed: far out a simulation may take very long.
    theta_updates : int or "auto"
        How many updates of the parameters to make for each update of u. ``"auto"`` makes several
        along ellipses if there are many parameters.
    factorwise : bool
        Whether to update the randomness of independent factors of the estimate separately, where
        the model proves that there are some. That is what makes mixing independent of the amount
        of data; ``False`` is for comparisons.
    u : variable, str or list of these, optional
        The randomness to update; all that the model has if not given.
    compile : {"auto", True, False}
        Whether to run in compiled code: when that pays, always (an error says what stands in the
        way), or never.
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
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "accepted": ACCEPTED,
        "u_accepted": U_ACCEPTED,
        "width": SCALE,
    }

    @once_positional("u_update", "width", "step_out", "directions", "theta_updates")
    def __init__(
        self,
        vars: Any = None,
        *,
        u_update: str | None = "auto",
        width: ArrayLike | None = None,
        step_out: bool | int = False,
        directions: Literal["auto", "random", "coordinate", "adaptive", "ellipse"] = "auto",
        theta_updates: int | Literal["auto"] = "auto",
        factorwise: bool = True,
        u: Any = None,
        compile: Choice = "auto",
        thin: int = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        one_of("directions of APMSlice", directions, "auto", *DIRECTIONS)
        super().__init__(
            continuous_or_all(vars, model, "APMSlice"),
            u=u,
            u_update=u_update,
            factorwise=factorwise,
            model=model,
            rng=rng,
            initial_point=initial_point,
            compile_kwargs=compile_kwargs,
            blocked=blocked,
        )
        is_chosen = directions == "auto"
        if directions == "auto":
            is_about_lines = width is not None or bool(step_out)
            directions = "random" if is_about_lines else "ellipse"
        if theta_updates == "auto":
            theta_updates = updates_for(directions, self.target.layout.size)
        kinds = [u.tag.apm_randomness.kind for u in self.target.randomness]
        is_simulator = any(kind.needs_black_box for kind in kinds)
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
            length=0.0 if self.width is None or directions != "adaptive" else float(self.width[0]),
            tunes_width=learns_width,
            learns_covariance=directions in ("adaptive", "ellipse")
            or (directions == "random" and learns_width),
            has_pilot=learns_width and directions != "coordinate",
            is_diagonal=directions == "random",
            dof=NEARBY_DOF if is_simulator else DOF,
        )
        self.make_chain(compile, thin)
        if is_chosen:
            logger.info(f"APMSlice: {self._choices()}.")

    def _choices(self) -> str:
        """Put into words what was chosen for this model."""
        lines = "ellipses" if self.directions == "ellipse" else "random lines"
        number = self.options.theta_updates
        often = f", {number} times for each update of u" if number > 1 else ""
        factors = [self._choice_for(u) for u in self.moved]
        return "; ".join([*factors, f"parameters along {lines}{often}"])

    def _choice_for(self, u: SharedVariable) -> str:
        """Put into words how one u is updated."""
        if self.brings_update(u):
            return f"{u.name} as its estimator does it"
        suits = self.u_update == AUTO and u.tag.apm_randomness.update == "independence"
        afresh = " drawn afresh" if suits else ""
        if self.factorwise and u.name in self.target.factors:
            return f"{u.name}{afresh} in {self.target.factors[u.name].n_factors} factors"
        return f"{u.name}{afresh} as one"

    def build(self, density: Densities) -> Transition:
        """Update u, then theta along lines or ellipses."""
        place = self.target.places[THETA]
        update_u = self.build_u(density)
        update_theta = update_by_ellipse if self.directions == "ellipse" else update_by_slice
        return u_then_theta(update_u, update_theta, learn_slice, density(THETA), place)

    def start(self) -> SliceLearnt:
        """Return the widths and the shape of directions to start with."""
        dim = self.target.layout.size
        shape, widths = np.eye(dim), np.ones(1)
        if self.directions == "coordinate":
            widths = np.ones(dim) if self.width is None else self.width
        elif self.directions == "random" and self.width is not None:
            shape = np.diag(self.width)
        return start_slice(shape, widths)

    def freeze(self, learnt: SliceLearnt) -> SliceLearnt:
        """Return the widths and the shape of directions to use after tuning."""
        return freeze_slice(self.options, learnt)

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Claim the continuous parameters of estimators."""
        if feeds_potential(var) and var.dtype in continuous_types:
            is_for_nuts = has_grad and getattr(var.tag, "apm_by_gradient", False)
            return Competence.COMPATIBLE if is_for_nuts else Competence.IDEAL
        return Competence.INCOMPATIBLE


def updates_for(directions: str, dim: int) -> int:
    """Return how many updates of so many parameters to make for each update of u.

    An ellipse takes all parameters along at once, and the more there are the less far. The rule is
    that of the table which ``examples/defaults.py`` makes.
    """
    if directions != "ellipse" or dim < 3:
        return 1
    return 2 if dim < 11 else -(-dim // 5)


def _checked_width(
    width: ArrayLike | None, dim: int, directions: str
) -> NDArray[np.float64] | None:
    if width is None:
        return None
    if directions == "ellipse":
        raise ModelError('width of APMSlice has no meaning with directions="ellipse".')
    widths = numbers("width of APMSlice", width)
    if not (widths > 0).all():
        raise ModelError(f"width of APMSlice must be positive, got {width!r}.")
    if widths.ndim > 0 and (widths.size != dim or directions == "adaptive"):
        raise ModelError(
            f"width of APMSlice must be one number or, unless directions is adaptive, one for each "
            f"of the {dim} parameters, got {widths.size}."
        )
    return np.broadcast_to(widths.ravel(), dim).copy()
