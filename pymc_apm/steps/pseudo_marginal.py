"""Parameters and u proposed together: pseudo-marginal Metropolis-Hastings, plain and correlated."""

from typing import Any, Literal

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_apm.adaptation import Scale
from pymc_apm.errors import ModelError, see
from pymc_apm.kernels.state import FloatVector, State
from pymc_apm.steps.base import APMStep, Point
from pymc_apm.steps.choose import all_variables
from pymc_apm.steps.metropolis import RandomWalk
from pymc_apm.target import THETA, ApproximateDensity, Evaluation
from pymc_apm.updates.random_walk import learn_by_random_walk, n_proposals, propose_jointly
from pymc_apm.updates.report import Report
from pymc_apm.validation import number, one_of


class PseudoMarginalMH(RandomWalk):
    r"""Propose parameters and fresh u together (PM MH), or correlated u (correlated PM).

    The classic pseudo-marginal method: one estimate per draw, and a chain that sticks where an
    estimate came out much too large. It is at its best with estimators of low noise (a standard
    deviation of the log-estimate of about 1.2 to 1.8), and the baseline to compare with otherwise.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update, continuous or discrete; all of the model's if not given. The steps
        of discrete ones are rounded to integers.
    correlation : float
        0 proposes fresh u. With a value below 1, ``rho * u + sqrt(1 - rho**2) * noise`` is
        proposed for Gaussian u, and the same on the normal scale for uniform u, which makes the
        noise of the two estimates cancel in part.
    scaling : float, optional
        A fixed scale of the proposal, on the scale that PyMC samples on (it multiplies the standard
        deviations of ``covariance``). ``None`` means that it is chosen as said below.
    covariance : array, optional
        A fixed covariance of the proposal, or a vector of variances. By default it is learnt while
        tuning if ``scaling`` is, and the identity otherwise.
    target_accept : float or (float, float)
        The acceptance rate, or its bounds, for the clamped updates while tuning (see below).
    directions : {"all", "coordinate"}
        Whether to propose all parameters together, or one after the other, each with a new u.
    tune_on : {"estimate", "approximation"}
        What the updates while tuning are updates of: the estimate with clamped u, or the
        deterministic approximations that estimators such as
        :func:`~pymc_apm.estimators.laplace_importance` come with, as in the paper.
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

    Notes
    -----
    *How the scale is chosen.* The acceptance rate of this method says little about its step size:
    it is bounded by the noise of the estimate, however small the step (Figure 2a of the paper). So
    nothing is tuned to it. While tuning, the step makes clamped updates instead (APM MI+MH: fresh u
    proposed at fixed parameters, then a random walk with u fixed, or at first slice sampling of
    each parameter), which do not stick in the parameters, and learns the covariance of the draws
    from these. After tuning it proposes with that covariance times :math:`2.56^2/d`, the value that
    Sherlock et al. (2015) find optimal for pseudo-marginal random walks in high dimensions, or
    :math:`2.38^2/d`, that for an exact likelihood, if ``correlation`` is not 0. If tuning is too
    short to learn a covariance, the scale of the clamped updates is kept. With ``scaling`` given,
    there is no tuning at all.

    References
    ----------
    Andrieu, C. and Roberts, G. O. (2009). The pseudo-marginal approach for efficient Monte Carlo
    computations. doi:10.1214/07-AOS574.

    Sherlock, C., Thiery, A. H., Roberts, G. O. and Rosenthal, J. S. (2015). On the efficiency of
    pseudo-marginal random walk Metropolis algorithms. doi:10.1214/14-AOS1278.

    Deligiannidis, G., Doucet, A. and Pitt, M. K. (2018). The correlated pseudo-marginal method.
    doi:10.1111/rssb.12280.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     step = apm.PseudoMarginalMH(correlation=0.9)
    """

    name = "pseudo_marginal_mh"
    stats_dtypes_shapes = APMStep.stats_dtypes_shapes | {
        "accepted": (np.float64, []),
        "u_accepted": (np.float64, []),
        "accept_rate": (np.float64, []),
        "scaling": (np.float64, []),
    }

    def __init__(
        self,
        vars: Any = None,
        correlation: float = 0.0,
        scaling: float | None = None,
        covariance: ArrayLike | None = None,
        target_accept: float | tuple[float, float] = 0.234,
        directions: Literal["all", "coordinate"] = "all",
        tune_on: Literal["estimate", "approximation"] = "estimate",
        *,
        compile: Literal["auto"] | bool = "auto",
        thin: int = 1,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        correlation = number("correlation of PseudoMarginalMH", correlation)
        if not 0.0 <= correlation < 1.0:
            raise ModelError(
                "correlation of PseudoMarginalMH must be at least 0 and less than 1 (at 1 u would "
                f"never change), got {correlation!r}."
            )
        one_of("tune_on of PseudoMarginalMH", tune_on, "estimate", "approximation")
        super().__init__(
            all_variables(vars, model),
            None,
            "independence",
            model=model,
            rng=rng,
            initial_point=initial_point,
            compile_kwargs=compile_kwargs,
            blocked=blocked,
        )
        if correlation:
            for variable, *_ in self._u_blocks:
                if variable.tag.apm_randomness.kind == "seed":
                    raise ModelError(
                        f"PseudoMarginalMH cannot propose a correlated {variable.name}, which is a "
                        "seed: use correlation=0, or an apm.Stream instead of the seed. "
                        + see("choosing")
                    )
        self._tunes_on_approximation = tune_on == "approximation"
        if self._tunes_on_approximation:
            if not self.target.has_approximation:
                raise ModelError(
                    "PseudoMarginalMH cannot tune on an approximation, because not every estimate "
                    f"of the model ({', '.join(self.target.estimates)}) comes with one: use "
                    "tune_on='estimate', or give one with apm.Potential(..., approximation=...)."
                )
            self._theta_density = ApproximateDensity(self.target, self.target.along(THETA))
        self.correlation = correlation
        self.optimal_scaling = 2.38 if correlation else 2.56
        self._joint_names = [THETA, *(block.variable.name for block in self._u_blocks)]
        self._joint_density = self.target.along(*self._joint_names)
        self.configure(self.target.layout, scaling, covariance, target_accept, directions)
        self.prepare(compile, thin)

    def proposes_jointly(self, tune: bool) -> bool:
        """Say whether theta and u are proposed together: always but while learning."""
        return not (tune and self.options.tunes_scale)

    def obstacle_to_compilation(self, is_optional: bool) -> str | None:
        """Say what is in the way of compiled code."""
        if self._tunes_on_approximation:
            return "It tunes on approximations, which is done in Python."
        return super().obstacle_to_compilation(is_optional)

    def stop_tuning(self) -> None:
        """Freeze the covariance, and choose the scale of the joint proposals."""
        super().stop_tuning()
        if self.options.tunes_scale and self.learnt_covariance.n_windows > 0:
            self.learnt_scale = Scale(self.options.default_scaling)

    def update(self, evaluation: Evaluation) -> tuple[Evaluation, Report, list[Any]]:
        """Propose theta and u together; while learning, one after the other."""
        if not self.proposes_jointly(self.tune):
            if self._tunes_on_approximation:
                return self._learn_on_approximation(evaluation)
            return super().update(evaluation)
        infos = []
        for i in range(n_proposals(self.options, self.layout.size)):
            evaluation = self.settle(evaluation)
            position = tuple(self.target.value(evaluation, name) for name in self._joint_names)
            state, info = propose_jointly(
                self.rng,
                State(position, evaluation.log_density, evaluation),
                self._joint_density,
                self.options,
                *self.frozen,
                self._propose_u,
                i,
            )
            evaluation = state.memo
            infos.append(info)
        n_moved = sum(info.accepted for info in infos)
        accept_rate = sum(info.accept_rate for info in infos)
        report = Report(len(infos), n_moved, accept_rate, self.learnt_scale.scaling)
        return evaluation, report, infos

    def _propose_u(
        self, rng: np.random.Generator, values: tuple[FloatVector, ...]
    ) -> tuple[FloatVector, ...]:
        kinds = [block.variable.tag.apm_randomness for block in self._u_blocks]
        if self.correlation:
            return tuple(
                kind.correlated(rng, u, self.correlation)
                for kind, u in zip(kinds, values, strict=True)
            )
        return tuple(kind.draw(rng) for kind in kinds)

    def _learn_on_approximation(
        self, evaluation: Evaluation
    ) -> tuple[Evaluation, Report, list[Any]]:
        log_density = self.target.approximate_log_density(evaluation)
        state = self.theta_state(evaluation)._replace(log_density=log_density)
        state, self.learnt, report = learn_by_random_walk(
            self.rng, state, self._theta_density, self.options, self.learnt
        )
        return state.memo, report, []
