"""All that importing this package does to PyMC.

PyMC has no hooks for what a plug-in has to know of a run, so some of its functions are wrapped. For
a model without randomness declared by this package, each of the wrapped functions does just what it
did before.

===========================  =====================================================================
what                         why
===========================  =====================================================================
``STEP_METHODS``             ``apm.APMSlice`` and ``apm.APMMetropolis`` are added in front, so that
                             ``pm.sample()`` gives them the parameters of estimators.
``pm.sample``                If no step is given and there are many parameters, these are left to
                             NUTS, and a step for u is put beside it. At its start it
                             takes stock of which randomness the steps update, and
                             refuses a run that leaves some out, or would record it wrongly.
                             While it runs, the estimates of
                             the model may be computed (see :mod:`pymc_apm.claims`), and BLAS in
                             chains that run in parallel has the threads that PyMC means to give
                             it. At its end it warns of what went wrong in the estimators, where
                             PyMC warns of divergences.
``Model.point_logps``,       They are for looking at a model, and do so with its randomness clamped,
``Model.debug``, graphs of   where they would be refused otherwise. ``debug`` of PyMC fails for any
models                       model with a potential; here it looks at potentials too.
``find_constants``           Randomness is data to PyMC, so that copies of a model are complete; it
                             is left out of the constant data of a result.
``freeze_dims_and_data``     Randomness is not frozen with the data.
===========================  =====================================================================

With the environment variable ``PYMC_APM_HOOKS=0`` nothing of this happens. Then pass the steps to
``pm.sample`` by hand, and call it within :func:`pymc_apm.clamped` if steps of PyMC are among them;
that they update all randomness is then up to you.

A function of PyMC that was imported by name before this package, as by ``from pymc import sample``,
is the unwrapped one. With it, one step of this package that updates all randomness works; other
combinations are refused where a chain starts.
"""

import contextlib
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pymc.backends.arviz
import pymc.model.transform.optimization
import pymc.model_graph
import pymc.sampling.mcmc
import pymc.sampling.parallel
import pymc.step_methods
from pymc.backends.base import MultiTrace
from pymc.stats.convergence import SamplerWarning, WarningType, log_warnings
from pytensor.compile.ops import view_op
from pytensor.gradient import grad
from threadpoolctl import threadpool_limits

from pymc_apm._compat import announcing, compile_function
from pymc_apm.claims import clamped, flags_in, held, randomness_of_model, take_stock, terms_of
from pymc_apm.diagnostics.problems import problems
from pymc_apm.errors import ModelError, UnclaimedRandomnessError, see
from pymc_apm.potential import feeds_potential, tag_parameters
from pymc_apm.randomness import randomness_in, randomness_of
from pymc_apm.signs import check_order
from pymc_apm.steps import APMMetropolis, APMSlice
from pymc_apm.steps.by_gradient import steps_beside_nuts
from pymc_apm.steps.exchange import check_alone
from pymc_apm.steps.recording import check_order_of_paths

SWITCH = "PYMC_APM_HOOKS"
"""The environment variable that leaves PyMC alone if it is 0."""

REGISTERED = (APMSlice, APMMetropolis)
"""The steps that ``pm.sample()`` may choose; each updates all randomness if not told otherwise."""

_log = logging.getLogger(__name__)


def install() -> None:
    """Do to PyMC what this module lists, once, unless the switch is off."""
    if os.environ.get(SWITCH) == "0":
        return
    register_step_methods()
    _wrap_function(pymc.sampling.mcmc, "sample", _sample)
    _wrap_function(pymc.backends.arviz, "find_constants", _find_constants)
    _wrap_attribute(pymc.model.transform.optimization, "fgraph_from_model", _fgraph_from_model)
    _wrap_attribute(_where_defined(pm.Model, "point_logps"), "point_logps", _point_logps)
    _wrap_attribute(_where_defined(pm.Model, "debug"), "debug", _debug)
    _wrap_attribute(pymc.model_graph.ModelGraph, "get_plates", _get_plates)


# How to wrap


def _wrap_function(module: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Wrap a function of PyMC, in all modules of PyMC that have imported it by name."""
    original = getattr(module, name)
    wrapped = _wrapped(original, replacement)
    for key, other in list(sys.modules.items()):
        if key.partition(".")[0] == "pymc" and vars(other).get(name) is original:
            setattr(other, name, wrapped)


def _wrap_attribute(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Wrap a method of a class, or a function as one module alone knows it."""
    setattr(owner, name, _wrapped(getattr(owner, name), replacement))


def _wrapped(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls its replacement with the original as first argument.

    A function that has been wrapped before, when this package was first imported, is wrapped again.
    """
    original = getattr(original, "apm_original", original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    wrapper.apm_original = original  # type: ignore[attr-defined]
    return wrapper


def _where_defined(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in vars(base))


# pm.sample


def register_step_methods() -> None:
    """Let ``pm.sample`` choose among our steps too, where none is given.

    The list is edited in place and at its front. In place, because PyMC 5 finds it as
    ``pm.STEP_METHODS`` and PyMC 6 imports it by name; at the front, because the first of equally
    competent steps is taken.
    """
    registered = pymc.step_methods.STEP_METHODS
    for step in reversed(REGISTERED):
        if step not in registered:
            registered.insert(0, step)


def _sample(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Sample, with the randomness of the model claimed by the steps of the run."""
    try:
        model = pm.modelcontext(kwargs.get("model"))
    except TypeError:  # there is none, as PyMC will say
        return original(*args, **kwargs)
    tag_parameters(model)
    flags = flags_in(terms_of(model))
    if not flags and not randomness_of_model(model):
        return original(*args, **kwargs)
    _check_sampler(kwargs.get("nuts_sampler"))
    kwargs["step"] = steps_beside_nuts(model, kwargs) or kwargs.get("step")
    steps = list(_flat(kwargs.get("step")))
    take_stock(model, steps, _assigned_randomness(model, steps, kwargs))
    _check_order(model, steps)
    check_alone(model, steps)
    _check_recorded(model, kwargs)
    given = inspect.signature(original).bind(*args, **kwargs)
    given.apply_defaults()
    length = announcing(given.arguments["tune"], given.arguments["draws"])
    with held(flags), length, _limited_blas(**kwargs):
        result = original(*args, **kwargs)
        _warn(result, model, quiet=kwargs.get("quiet", False))
    return result


def _flat(step: Any) -> Iterator[Any]:
    """Go through the steps in what was given to ``pm.sample`` as one."""
    parts = step if isinstance(step, list | tuple) else getattr(step, "methods", None)
    if parts is None:
        yield step
    else:
        for part in parts:
            yield from _flat(part)


def _assigned_randomness(
    model: pm.Model, steps: Iterable[Any], options: Mapping[str, Any]
) -> set[str]:
    """Return the names of the randomness that is updated by the steps that PyMC will choose.

    A parameter of an estimator that has no step gets one of ours, as a rule, and that updates all
    randomness there is, unless the options for it in the call of ``pm.sample`` say otherwise.
    """
    taken = {variable for step in steps for variable in getattr(step, "vars", ())}
    names: set[str] = set()
    for rv in model.free_RVs:
        if model.rvs_to_values[rv] in taken or not feeds_potential(rv):
            continue
        chosen = {_choice(rv, has_gradient) for has_gradient in (True, False)}
        if len(chosen) > 1 or not chosen <= set(REGISTERED):
            continue
        given = options.get(chosen.pop().name, {})
        if given.get("u_update", "slice") is None:
            continue
        names |= {u.name for u in _chosen_randomness(model, given.get("u"))}
    return names


def _check_order(model: pm.Model, steps: list[Any]) -> None:
    """Check that signs will be recorded after all that they depend on was moved."""
    taken = {variable for step in steps for variable in getattr(step, "vars", ())}
    left = [rv for rv in model.free_RVs if model.rvs_to_values[rv] not in taken]
    ours = [rv for rv in left if {_choice(rv, has) for has in (True, False)} <= set(REGISTERED)]
    # Steps that PyMC adds come after those that it was given.
    for check in (check_order, check_order_of_paths):
        check(model, [] if ours else steps, [rv for rv in left if rv not in ours])


def _choice(rv: Any, has_gradient: bool) -> Any:
    """Return the step that PyMC chooses for a random variable."""
    methods = pymc.step_methods.STEP_METHODS
    return max(methods, key=lambda method: method._competence(rv, has_gradient))


def _chosen_randomness(model: pm.Model, u: Any) -> list[Any]:
    randomness = randomness_of_model(model)
    if u is None:
        return randomness
    names = {getattr(item, "name", item) for item in (u if isinstance(u, list | tuple) else [u])}
    return [variable for variable in randomness if variable.name in names]


def _check_sampler(nuts_sampler: str | None) -> None:
    if nuts_sampler not in (None, "pymc"):
        raise UnclaimedRandomnessError(
            f"nuts_sampler={nuts_sampler!r} cannot sample a model with an estimator: it does not "
            "update the estimator's randomness, and the posterior would be that of one arbitrary "
            "estimate. Leave it out, or combine the NUTS of PyMC with a step for the randomness: "
            f"step=[apm.APMEllipticalU(), pm.NUTS()]. {see('recipes')}"
        )


def _check_recorded(model: pm.Model, options: Mapping[str, Any]) -> None:
    """Refuse to record what depends on u where PyMC computes it in a process that has another u."""
    if _numbers_of(**options)[1] < 2:
        return
    wanted = options.get("var_names")
    names = [
        variable.name
        for variable in model.deterministics
        if (wanted is None or variable.name in wanted) and randomness_in([variable])
    ]
    if names:
        raise ModelError(
            f"{', '.join(names)} cannot be recorded where chains run in parallel: PyMC computes "
            "the deterministics of a draw where it collects the draws, and the randomness on which "
            "this depends stays where the chain is. Give cores=1 to pm.sample, sample by "
            f"apm.sample with a store, or leave it out with var_names. {see('recipes')}"
        )


def _numbers_of(
    *, cores: int | None = None, chains: int | None = None, **others: Any
) -> tuple[int, int]:
    """Return how many processors a run uses, and how many chains run at a time."""
    cores = cores or min(4, pymc.sampling.parallel._cpu_count())
    return cores, min(cores, chains or max(2, cores))


@contextlib.contextmanager
def _limited_blas(*, blas_cores: int | str | None = "auto", **options: Any) -> Iterator[None]:
    """Let chains that run in parallel have the BLAS threads that PyMC means to give them.

    Where processes are forked, PyMC leaves them as many threads as there are processors, because
    to change that within a child may crash it (pymc-devs/pymc#7354), and the chains get in each
    other's way. Children inherit the limit of the parent, so it is set there.
    """
    cores, n_jobs = _numbers_of(**options)
    blas_cores = cores if blas_cores == "auto" else blas_cores
    if n_jobs > 1 and isinstance(blas_cores, int):
        with threadpool_limits(max(1, blas_cores // n_jobs), user_api="blas"):
            yield
    else:
        yield


def _warn(result: Any, model: pm.Model, *, quiet: bool) -> None:
    """Warn of what went wrong in the estimators of a run, where PyMC warns of divergences."""
    try:
        idata = result
        if isinstance(result, MultiTrace):
            idata = pm.to_inference_data(result, model=model, log_likelihood=False)
        found = [SamplerWarning(WarningType.BAD_PARAMS, text, "warn") for text in problems(idata)]
    except Exception:  # a run is not lost because it could not be looked at
        _log.warning("The run could not be checked for problems of its estimators.", exc_info=True)
        return
    if isinstance(result, MultiTrace):
        result.report._add_warnings(found)
    if not quiet:
        log_warnings(found)


# Looking at a model


def _point_logps(original: Callable[..., Any], model: pm.Model, *args: Any, **kwargs: Any) -> Any:
    with clamped(model):
        return original(model, *args, **kwargs)


def _get_plates(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Find out the shapes of the variables, for which potentials are computed."""
    with clamped(graph.model):
        return original(graph, *args, **kwargs)


def _debug(
    original: Callable[..., None],
    model: pm.Model,
    point: dict[str, Any] | None = None,
    fn: str = "logp",
    verbose: bool = False,
) -> None:
    """Let PyMC look at the random variables, and look at the potentials."""
    if not flags_in(model.potentials):
        original(model, point=point, fn=fn, verbose=verbose)
        return
    potentials = model.potentials
    try:
        model.potentials = type(potentials)()
        original(model, point=point, fn=fn, verbose=verbose)
    finally:
        model.potentials = potentials
    if fn == "random":
        return
    point = model.initial_point() if point is None else point
    with clamped(model):
        for potential in potentials:
            _debug_potential(model, potential, point, fn)


def _debug_potential(model: pm.Model, potential: Any, point: dict[str, Any], fn: str) -> None:
    try:
        outputs = model.logp(potential, sum=False)
        if fn == "dlogp":
            outputs = grad(outputs[0].sum(), model.value_vars, disconnected_inputs="ignore")
        function = compile_function(model.value_vars, outputs)
        values = function(*(np.asarray(point[v.name], v.dtype) for v in model.value_vars))
    except Exception as error:
        print(f"The {fn} of the potential {potential} raised the following exception: {error}")
        return
    if not all(np.isfinite(value).all() for value in values):
        print(f"The {fn} of the potential {potential} is not finite: {values}")


# Copies and results


def _find_constants(original: Callable[..., Any], model: pm.Model) -> dict[str, Any]:
    names = {variable.name for variable in model.data_vars if randomness_of(variable)}
    return {name: value for name, value in original(model).items() if name not in names}


def _fgraph_from_model(original: Callable[..., Any], model: pm.Model, *args: Any) -> Any:
    """Return a model as a graph; where it is asked for randomness, to freeze it, mislead it.

    This is what ``freeze_dims_and_data`` alone calls.
    """
    fgraph, memo = original(model, *args)
    for variable in model.data_vars:
        if randomness_of(variable):
            memo[variable] = view_op(variable.type())
    return fgraph, memo
