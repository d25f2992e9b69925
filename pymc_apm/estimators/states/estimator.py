"""State-space models: the likelihood with all states integrated out."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError
from pymc_apm.estimators.states.specification import Specification, parse
from pymc_apm.potential import Potential
from pymc_apm.randomness import declare_array
from pymc_apm.validation import one_of, positive_integer, positive_number

__all__ = ["state_space"]

_log = logging.getLogger("pymc.apm")


def state_space(
    name: str,
    data: Any,
    *,
    initial: Any,
    transition: Callable[..., Any],
    observation: Callable[..., Any],
    states: str | Sequence[str] | None = None,
    times: Any = None,
    covariates: Mapping[str, Any] | None = None,
    series: Any = None,
    dims: str | None = None,
    method: Literal["auto", "pool", "particles"] = "auto",
    points: int | None = None,
    width: float | None = None,
    sort_by: Callable[..., Any] | None = None,
    proposal: Callable[..., Any] | None = None,
    lookahead: Callable[..., Any] | None = None,
    substeps: int = 1,
    accumulate: str | Sequence[str] | None = None,
    segments: int = 1,
    bound: Any = None,
    early_exit: bool | Literal["check"] = True,
    record_states: bool = False,
    reference: Mapping[str, Any] | None = None,
    random_seed: int | None = None,
    model: pm.Model | None = None,
) -> TensorVariable:
    """Add the likelihood of a state-space model, with all states integrated out.

    A state moves from row to row of the data by the transition, and each row is observed given its
    state. Functions say so, which return distributions as ``pm.X.dist(...)`` makes them, for one
    state at one time; they are given what their arguments name, and use variables of the model as
    they are. Declares the random numbers ``name + "_u"`` and adds the potential ``name``.

    Parameters
    ----------
    name : str
        The name of the potential, unique in the model.
    data : array or dict of arrays
        With a row for each time, a number or a vector. NaN, or what is masked, is missing; of a
        vector whose elements are independent, some may be. A dict has several arrays, by name, that
        are independent given the states.
    initial : distribution, numbers, function, or dict of these
        The states of the first row. A function may ask for covariates of that row.
    transition : callable
        From the states of the row before, by name, to a distribution of those of a row, or a dict
        of them; or to an expression with a draw inside, such as
        ``a + b * x + pm.Normal.dist(0, s)``, if PyMC can derive its density.
    observation : callable
        From the states of a row to a distribution of its data; a dict of them if the data are one.
        If it has the argument ``y``, the data of a row, it returns the log of their density
        instead, and nothing can be predicted.
    states : str or tuple of str, optional
        The names of the states, which are those of arguments. By default those of the dict
        ``initial``, or ``"x"``. Each is a number or a vector.
    times : array, optional
        The time of each row, if they are not 0, 1, 2, ...; within a series they increase.
    covariates : dict, optional
        Arrays, or ``pm.Data``, with a number or a vector for each row, by the name of the argument.
    series : array, optional
        For a panel: the label of the series that each row belongs to. Series are independent given
        the parameters, and may differ in length. The potential is then a vector with an entry for
        each, in the order of ``numpy.unique``.
    dims : str, optional
        The name of the dimension of the rows, for what is drawn after sampling.
    method : {"auto", "pool", "particles"}
        The estimator. That of a pool of points is for continuous states of up to six numbers whose
        transition has a density. A particle filter takes everything else, also discrete states and
        simulators: transitions that return any expression with draws inside. ``"auto"`` is the
        former where it can be made, unless options of the latter are given.
    points : int, optional
        How many points a pool has in each row. By default as many, of some powers of two, as make
        the standard deviation of the log-estimate at the reference less than 0.1. Or the number of
        particles, by default 100.
    width : float, optional
        How wide points are spread: the scale of a logistic distribution in units of the standard
        deviation of the state given all data. By default 2 for one number; less for more.
    sort_by : callable, optional
        For particles with states of several numbers: a number, computed from states, by which they
        are sorted before they are resampled, so that the estimate changes little with parameters
        and random numbers. What observations depend on most is best. By default they are sorted
        along a Hilbert curve.
    proposal : callable, optional
        For particles, a guided filter: as ``transition``, but the function may also ask for ``y``,
        the data of the row that particles are moved to (of a dict of data, for these by name).
        Particles are moved by what it returns, and weighted by the density of the transition
        divided by its own: it must be possible wherever the transition is. Rows of which data
        are missing are moved to by the transition.
    lookahead : callable, optional
        For particles, an auxiliary filter: from the states of a row, and from ``y`` and what else
        belongs to the *next* row, to the log of a number. Particles are resampled in proportion to
        their weights times this number, which is taken back afterwards: a guess of the density of
        the next data given the state. It is left out where data of the next row are missing.
    substeps : int
        For particles: how many transitions are made from row to row. Each is given a part of the
        time in between as ``dt``.
    accumulate : str or tuple of str, optional
        For particles: states that are set to zero after each row, so that they add up what happens
        between two rows.
    segments : int
        For particles: into how many pieces of time the random numbers are cut, each an array of its
        own that is updated by itself: the filter is then run from there on alone. For simulators
        with many rows, where all numbers at once could be moved but little.
    bound : number, array or callable, optional
        For particles: an upper bound of the log density of what is observed in a row, whatever the
        state is. An array has one for each row; a function asks for ``y`` and for what else belongs
        to a row, and may use variables of the model. By default what is known of a discrete
        distribution of PyMC; there is none for others, nor for a guided or an auxiliary filter.
    early_exit : bool or "check"
        For particles: whether slice updates leave an estimate that cannot reach the height of the
        slice where that is known from the bound. Draws are the same to the last bit. ``"check"`` is
        for tests of a bound: all rows are computed, and an error names one whose density is above.
    record_states : bool
        Whether steps of this package record with each draw, as the statistic ``name + "_states"``,
        a path of the states from the points or particles that the chain's own ``u`` makes: an exact
        draw of the states, which ``apm.sample_states`` then takes.
    reference : dict, optional
        Values of the parameters, by name, at which to find out where states are; by default the
        mode of an approximate posterior.
    random_seed : int, optional
        For finding that out. It is the same every time if not given.
    model : Model, optional
        The model to add it to; the one whose context is open if not given.

    Returns
    -------
    TensorVariable
        The log-estimate as it was added to the model.

    Raises
    ------
    ModelError
        If what was said makes no model, or one that has no density; it names the variable.

    Notes
    -----
    *Arguments.* A function may ask for states by name, ``t`` (the number of a row in its series,
    from 0), ``time``, ``dt`` (the time since the row before; 1 in the first row), ``series`` (its
    number, in the order of labels) and covariates. The transition into a row is given what belongs
    to that row.

    *The pool.* In each row there are N points, a lattice that is shifted by random numbers and put
    through the quantiles of a guide. The sum over all paths through them, by the forward recursion
    of hidden Markov models, is an unbiased estimate of the likelihood, whatever N is (Neal, Beal
    and Roweis, 2003), and nearly exact with few points. It takes N squared densities for each row.
    There is a gradient, so that ``pm.NUTS`` works, beside ``apm.APMIndependenceU()``.

    *Particles* are moved by quantiles of the very distributions that the functions return, sorted,
    weighted by the observation and resampled in every row. There is no gradient. Where each state
    is a draw whose distribution function is known, and there are neither substeps nor states that
    accumulate, steps update ``u`` by conditional SMC with backward sampling.

    *The guide* is found before sampling, at the reference, and never changes. Far from there
    estimates are noisier, never biased.

    References
    ----------
    Neal, R. M., Beal, M. J. and Roweis, S. T. (2003). Inferring state sequences for non-linear
    systems with embedded hidden Markov models. Advances in Neural Information Processing Systems.

    Examples
    --------
    Stochastic volatility:

    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> returns = np.random.default_rng(1).normal(size=30)
    >>> with pm.Model() as model:
    ...     mu, sigma = pm.Normal("mu", 0, 2), pm.HalfNormal("sigma", 1)
    ...     rho = pm.Uniform("rho", -1, 1)
    ...     log_lik = apm.estimators.state_space(
    ...         "returns",
    ...         returns,
    ...         initial=pm.Normal.dist(mu, sigma / pm.math.sqrt(1 - rho**2)),
    ...         transition=lambda x: pm.Normal.dist(mu + rho * (x - mu), sigma),
    ...         observation=lambda x: pm.Normal.dist(0, pm.math.exp(x / 2)),
    ...     )
    ...     idata = pm.sample(20, tune=20, chains=1, progressbar=False)
    ...     volatility = apm.sample_states(idata, "returns")
    ...     ahead = apm.forecast(idata, "returns", periods=5)
    >>> ahead["forecast_observed"].shape
    (1, 20, 5)
    """
    model = pm.modelcontext(model)
    label = f"state_space({name!r})"
    one_of(f"method of {label}", method, "auto", "pool", "particles")
    one_of(f"record_states of {label}", record_states, True, False)
    one_of(f"early_exit of {label}", early_exit, True, False, "check")
    specification = parse(
        name,
        data,
        initial=initial,
        transition=transition,
        observation=observation,
        states=states,
        times=times,
        covariates=covariates,
        series=series,
        model=model,
    )
    _check_dims(specification, dims)
    of_pool = {
        "width": width,
        "reference": reference,
        "random_seed": random_seed,
    }
    of_particles = {
        "sort_by": sort_by,
        "proposal": proposal,
        "lookahead": lookahead,
        "substeps": None if substeps == 1 else substeps,
        "accumulate": accumulate,
        "segments": None if segments == 1 else segments,
        "bound": bound,
        "early_exit": None if early_exit is True else early_exit,
    }
    if method == "auto":
        method = _choose(specification, of_particles)
    others = of_pool if method == "particles" else of_particles
    given = [option for option, value in others.items() if value is not None]
    if given:
        raise ModelError(
            f"{', '.join(given)} of {label} has no meaning for method={method!r}: leave it out."
        )
    if method == "pool":
        term = _pool(specification, points, width, reference, random_seed, dims)
    else:
        term = _particles(
            specification,
            dims,
            points=points,
            sort_by=sort_by,
            substeps=substeps,
            accumulate=accumulate,
            proposal=proposal,
            lookahead=lookahead,
            segments=segments,
            bound=bound,
            early_exit=early_exit,
        )
    if record_states:
        term.tag.apm_states = term.tag.apm_states._replace(records=True)
    return term


def _check_dims(specification: Specification, dims: str | None) -> None:
    """Check that the dimension of the rows has their length, if the model knows it."""
    length = None if dims is None else specification.model.dim_lengths.get(dims)
    if length is not None and int(length.eval()) != len(specification.rows):
        raise ModelError(
            f"dims of {specification.label}, {dims!r}, has the length {int(length.eval())} in the "
            f"model, but the data have {len(specification.rows)} rows."
        )


def _choose(
    specification: Specification, of_particles: Mapping[str, Any]
) -> Literal["pool", "particles"]:
    """Choose the pool estimator where it can be made, and say so where it cannot."""
    from pymc_apm.estimators.states.pool import check_suits

    if any(value is not None for value in of_particles.values()):
        return "particles"
    try:
        check_suits(specification)
    except ModelError as error:
        _log.info(f"{specification.label} is estimated by particles. {error}")
        return "particles"
    return "pool"


def _particles(specification: Specification, dims: str | None, **options: Any) -> TensorVariable:
    from pymc_apm.estimators.states.afterwards import States
    from pymc_apm.estimators.states.particles import particle_estimate

    log_estimate, source = particle_estimate(specification, **options)
    factors = 0 if specification.rows.is_panel else None
    term = Potential(specification.name, log_estimate, factors=factors, model=specification.model)
    term.tag.apm_states = States(specification, source, dims)
    return term


def _pool(
    specification: Specification,
    points: int | None,
    width: float | None,
    reference: Mapping[str, Any] | None,
    random_seed: int | None,
    dims: str | None,
) -> TensorVariable:
    # These import Numba, which takes long.
    from pymc_apm.estimators.states.afterwards import States
    from pymc_apm.estimators.states.pilot import LOW_NOISE, default_width, find_guide
    from pymc_apm.estimators.states.pool import check_suits, make_pool
    from pymc_apm.estimators.states.sources import PoolSource

    label, rows = specification.label, specification.rows
    if points is not None:
        points = positive_integer(f"points of {label}", points, 2)
    if width is None:
        width = default_width(specification.n_dims)
    width = positive_number(f"width of {label}", width)
    check_suits(specification)
    rng = np.random.default_rng(0 if random_seed is None else random_seed)
    pilot = find_guide(specification, width, points, reference, rng)
    name, model, n_dims = specification.name, specification.model, specification.n_dims
    shape: tuple[int, ...] = (len(rows), n_dims)
    if rows.is_panel:
        shape = (rows.n_series, int(rows.lengths.max()), n_dims)
    update = "independence" if pilot.noise < LOW_NOISE else "slice"
    u = declare_array("uniform", f"{name}_u", shape, None, model, update)
    of_rows = u[rows.series, rows.t] if rows.is_panel else u
    pool = make_pool(specification, pilot.guide, of_rows, pilot.n_points)
    estimate = pool.estimates if rows.is_panel else pool.estimates[0]
    term = Potential(name, estimate, factors=0 if rows.is_panel else None, model=model)
    source = PoolSource(specification, pilot.guide, pilot.n_points, pilot.noise, u)
    term.tag.apm_states = States(specification, source, dims)
    return term
