"""The exchange algorithm, for models with an unknown normaliser."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pymc_apm._compat import StartsChains, compile_function
from pymc_apm.adaptive.random_walk import WalkLearnt, learn_walk, n_proposals, propose
from pymc_apm.adaptive.tuning import tune_scale
from pymc_apm.black_box import black_boxes_in
from pymc_apm.density.layout import Layout
from pymc_apm.deprecated import once_positional
from pymc_apm.errors import EstimatorError, ModelError, add_context, describe_value, see
from pymc_apm.estimators.intractable.estimator import DoublyIntractable
from pymc_apm.kernels import State, exchange
from pymc_apm.potential import feeds_potential
from pymc_apm.randomness import randomness_in
from pymc_apm.steps.choose import all_variables
from pymc_apm.steps.progress import ShowsProgress
from pymc_apm.steps.random_walk import WalksRandomly
from pymc_apm.types import FloatVector, Point


@dataclass_state
class ExchangeState(StepMethodState):
    """The part of the step that belongs to a chain."""

    tune: bool
    learnt: WalkLearnt


def check_alone(model: pm.Model, steps: Sequence[Any]) -> None:
    """Check that no other step uses the estimates of a model that is sampled by exchange.

    With u a chain has another distribution than without: to move some parameters by the estimate
    and others as if there were no u leaves neither of them invariant.

    Parameters
    ----------
    model : Model
    steps : list
        The steps of a run; PyMC will add some for parameters that have none.
    """
    ours = [step for step in steps if isinstance(step, ExchangeMH)]
    taken = {value for step in ours for value in step.vars}
    taken -= {v for step in steps if step not in ours for v in getattr(step, "vars", ())}
    parameters = [rv for rv in model.free_RVs if feeds_potential(rv)]
    others = [rv.name for rv in parameters if model.rvs_to_values[rv] not in taken]
    if ours and others:
        raise ModelError(
            f"Another step than ExchangeMH would update {', '.join(others)} by the estimate, whose "
            "randomness ExchangeMH knows nothing of, and the posterior would be wrong. Leave all "
            "parameters of the likelihood to apm.ExchangeMH(), or all of them to another step. "
            + see("doubly_intractable")
        )


class _Place(NamedTuple):
    """A point, and the parameters of each likelihood there."""

    point: Point
    parameters: list[list[Any]]


class ExchangeMH(StartsChains, ShowsProgress, WalksRandomly, BlockedStep):
    """Propose parameters, and with them a data set to exchange for the observed one.

    The exchange algorithm of Murray, Ghahramani and MacKay (2006) for likelihoods made by
    :func:`~pymc_apm.estimators.doubly_intractable`: an exact sample x at the proposed parameters
    theta' makes the unknown normalisers cancel, and the proposal is accepted with probability

        min(1, [p(theta') g(y; theta') g(x; theta)] / [p(theta) g(y; theta) g(x; theta')]).

    There is no reference parameter and no randomness that is kept, so it cannot stick as
    pseudo-marginal methods do; but its acceptance is lower than that of a random walk with the
    exact likelihood, for each sample x is used once. It is what people use today, and a baseline to
    compare with.

    Parameters
    ----------
    vars : list of variables, optional
        The parameters to update, continuous or discrete; all of the model's if not given. Those of
        the likelihoods must all be updated by steps of this class.
    scaling : float, optional
        A fixed scale of the proposal, on the scale that PyMC samples on (it multiplies the standard
        deviations of ``covariance``). ``None`` means that it is learnt while tuning.
    covariance : array, optional
        A fixed covariance of the proposal, or a vector of variances. By default it is learnt while
        tuning if ``scaling`` is, and the identity otherwise.
    target_accept : float or (float, float)
        The acceptance rate that the scale is tuned to, or lower and upper bounds for it.
    directions : {"all", "coordinate"}
        Whether to propose all parameters together, or one after the other, each with a sample of
        its own.
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
    The likelihood's ``anneal`` has no effect here: the bridging of that paper's section 5 asks for
    reversible transitions, which the estimator does without. ``n_evals`` in ``sample_stats`` counts
    exact samples.

    References
    ----------
    Murray, I., Ghahramani, Z. and MacKay, D. J. C. (2006). MCMC for doubly-intractable
    distributions. UAI. arXiv:1206.6848.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> ising = apm.estimators.Ising.torus(5, 5)
    >>> y = ising.sample(0.2, 0.0, np.random.default_rng(1))
    >>> with pm.Model():
    ...     coupling = pm.Uniform("coupling", 0, 0.4)
    ...     log_lik = apm.estimators.doubly_intractable("y", ising, [coupling, 0.0], y)
    ...     step = apm.ExchangeMH()
    ...     idata = pm.sample(20, tune=20, chains=1, step=step, progressbar=False)
    """

    name = "exchange_mh"
    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list[int]]]] = {
        "n_evals": (np.int64, []),
        "n_theta_evals": (np.int64, []),
        "accepted": (np.float64, []),
        "accept_rate": (np.float64, []),
        "scaling": (np.float64, []),
    }
    _state_class = ExchangeState
    first_scaling = 0.1  # from where the chain starts, not into regions that cannot be sampled

    @once_positional("scaling", "covariance", "target_accept", "directions")
    def __init__(
        self,
        vars: Any = None,
        *,
        scaling: float | None = None,
        covariance: ArrayLike | None = None,
        target_accept: float | tuple[float, float] = 0.234,
        directions: Literal["all", "coordinate"] = "all",
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Point | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        if not blocked:
            raise ModelError(
                "ExchangeMH draws a data set for all of its variables together, and cannot be "
                "split by variable: leave out blocked=False."
            )
        model = pm.modelcontext(model)
        self.vars = all_variables(vars, model)
        self.rng = get_random_generator(rng)
        self.tune = True
        self._randomness = randomness_in(model.potentials)
        nodes = black_boxes_in(model.potentials)
        self._estimators: list[DoublyIntractable] = [node.op.fn for node in nodes]
        self._check_estimators()
        exact = [
            term
            for term in [*model.free_RVs, *model.observed_RVs, *model.potentials]
            if not randomness_in([term])
        ]
        parameters = [variable for node in nodes for variable in node.inputs[:-1]]
        outputs: list[Variable] = [
            model.logp(vars=exact),
            *model.replace_rvs_by_values(parameters),
        ]
        self._value_names = [value.name for value in model.value_vars]
        with model:  # the compiler heeds its check_bounds
            self._function = compile_function(model.value_vars, outputs, **compile_kwargs or {})
        point = model.initial_point() if initial_point is None else initial_point
        layout = Layout(self.vars, point)
        self.configure(layout, scaling, covariance, target_accept, directions, has_pilot=False)
        self.learnt = self.start()

    def _check_estimators(self) -> None:
        is_fit = all(isinstance(fn, DoublyIntractable) for fn in self._estimators)
        if not (is_fit and 0 < len(self._estimators) == len(self._randomness)):
            raise ModelError(
                "ExchangeMH samples models whose likelihood was made by "
                "apm.estimators.doubly_intractable, and has nothing to do for other estimators. "
                "Use apm.APMSlice() for those. " + see("doubly_intractable")
            )

    @property
    def updated_randomness(self) -> list[SharedVariable]:
        """The randomness of the estimators: it is not needed, and need not be updated."""
        return self._randomness

    def start_chain(self) -> None:
        """Forget the last chain."""
        self.tune = True
        self.reset_tuning()

    def reset_tuning(self) -> None:
        """Forget what was learnt while tuning."""
        self.learnt = self.start()

    def stop_tuning(self) -> None:
        """Freeze what was learnt."""
        self.learnt = self.freeze(self.learnt)
        super().stop_tuning()

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
        log_exact, here = self._log_exact(point)
        if not log_exact > -math.inf:
            raise EstimatorError(
                "The prior, or the likelihood of the observed variables, is zero at the starting "
                f"point: {self._describe(here)}. Give other initvals to pm.sample."
            )
        state = State(self.layout.ravel(point), log_exact, here)
        observed = [estimator.observed for estimator in self._estimators]
        infos = []
        for number in range(n_proposals(self.options, self.layout.size)):
            theta = propose(self.rng, state.position, self.options, self.learnt, number)
            state, info = exchange(
                self.rng, state, self._log_density, self._log_g, self._sample, observed, theta
            )
            infos.append(info)
        n_samples = sum(info.n_samples for info in infos)
        stats = {
            "n_evals": n_samples,
            "n_theta_evals": n_samples,
            "accepted": sum(info.accepted for info in infos) / len(infos),
            "accept_rate": sum(info.accept_rate for info in infos) / len(infos),
            "scaling": self.learnt.scale.scaling,
        }
        if self.tune:
            self._learn(stats["accept_rate"], state.position)
        return state.memo.point.copy(), [stats]

    def log_unnormalised(self, point: Point) -> float:
        """Return the sum of the log densities of the data that lack their normalisers."""
        _, place = self._log_exact(point)
        observed = [estimator.observed for estimator in self._estimators]
        return float(np.sum(self._log_g(observed, place)))

    def _learn(self, accept_rate: float, theta: FloatVector) -> None:
        if self.options.tunes_scale:
            scale = tune_scale(self.learnt.scale, accept_rate, self.options.target_accept)
            self.learnt = self.learnt._replace(scale=scale)
        self.learnt = learn_walk(self.options, self.learnt, theta)

    def _log_exact(self, point: Point) -> tuple[float, _Place]:
        """Return the log density of all but the likelihoods with an unknown normaliser."""
        log_exact, *values = self._function(*(point[name] for name in self._value_names))
        parameters = []
        for estimator in self._estimators:
            n_parameters = len(estimator.names)
            parameters.append([np.asarray(value)[()] for value in values[:n_parameters]])
            values = values[n_parameters:]
        return float(log_exact), _Place(point, parameters)

    def _log_density(self, theta: FloatVector, here: _Place) -> tuple[float, _Place]:
        return self._log_exact(here.point | self.layout.unravel(theta))

    def _log_g(self, data: list[Any], place: _Place) -> FloatVector:
        """Return the log of the unnormalised density of the data set of each likelihood."""
        triples = zip(self._estimators, data, place.parameters, strict=True)
        with self._naming(place):
            return np.array([estimator.family.log_g(x, *p) for estimator, x, p in triples])

    def _sample(self, place: _Place, rng: np.random.Generator) -> list[Any]:
        """Draw a data set for each likelihood."""
        pairs = zip(self._estimators, place.parameters, strict=True)
        with self._naming(place):
            return [estimator.family.sample(*parameters, rng) for estimator, parameters in pairs]

    @contextlib.contextmanager
    def _naming(self, place: _Place) -> Iterator[None]:
        """Add the parameters to the message of an exception of the user's code."""
        try:
            yield
        except Exception as error:
            add_context(error, f"The parameters were {self._describe(place)}.")
            raise

    def _describe(self, place: _Place) -> str:
        return ", ".join(
            f"{name} = {describe_value(value)}"
            for estimator, values in zip(self._estimators, place.parameters, strict=True)
            for name, value in zip(estimator.names, values, strict=True)
        )
