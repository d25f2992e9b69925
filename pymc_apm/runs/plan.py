"""What a run consists of: its steps, its chains and their seeds; and a description to compare."""

import hashlib
import inspect
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from pymc.backends.ndarray import NDArray
from pymc.sampling.mcmc import assign_step_methods, instantiate_steppers
from pymc.step_methods import NUTS, STEP_METHODS, CompoundStep
from pymc.step_methods.arraystep import PopulationArrayStepShared
from pymc.step_methods.compound import flatten_steps

from pymc_apm.claims import clamped, randomness_of_model
from pymc_apm.errors import ModelError, see
from pymc_apm.potential import tag_parameters
from pymc_apm.runs.layout import OF_DRAWS
from pymc_apm.runs.packing import encode, frozen_fields_of, pack
from pymc_apm.runs.seeds import SeedOfRun
from pymc_apm.signs import check_order
from pymc_apm.steps.by_gradient import steps_beside_nuts
from pymc_apm.steps.exchange import check_alone
from pymc_apm.types import Point

PACKAGES = ("numpy", "scipy", "numba", "pytensor", "pymc", "pymc_apm")
"""What may change the draws in another version."""


CHANGING = ("tune", "scaling", "step_scale", "compile")
"""Options of steps that may have other values later, or that do not change the draws."""


class Setup(NamedTuple):
    """What all chains of a run have in common; it travels to where they run.

    Attributes
    ----------
    model : Model
    step : BlockedStep or CompoundStep
        All steps of the run.
    trace : NDArray
        A trace that has what is to be recorded.
    initvals : dict or list of dict or None
        As ``pm.sample`` takes them.
    starts : list of dict or None
        The starting points of the chains where they depend on each other, as those of NUTS do.
    callback : callable or None
    """

    model: pm.Model
    step: Any
    trace: NDArray
    initvals: Any
    starts: list[Point] | None
    callback: Any


def make_setup(
    model: pm.Model,
    *,
    step: Any,
    chains: int,
    seed: SeedOfRun,
    var_names: Sequence[str] | None,
    initvals: Any,
    callback: Any,
    compile_kwargs: dict[str, Any] | None,
    nuts_options: Mapping[str, Any],
    step_options: dict[str, Any],
) -> Setup:
    """Put the steps of a run together as ``pm.sample`` does."""
    tag_parameters(model)
    step = steps_beside_nuts(model, {"step": step, **step_options}) or step
    provided, selected = assign_step_methods(model, step, methods=STEP_METHODS)
    starts = None
    if not provided and len(selected) == 1 and issubclass(next(iter(selected)), NUTS):
        # PyMC makes it from the starting points of all chains.
        seeds = [seed.generator(k).spawn(1)[0].integers(2**30) for k in range(chains)]
        options = {**step_options, **step_options.get("nuts", {})}
        options.pop("nuts", None)
        starts, whole = pm.init_nuts(
            chains=chains,
            model=model,
            random_seed=seeds,
            progressbar=False,
            initvals=initvals,
            compile_kwargs=compile_kwargs,
            **nuts_options,
            **options,
        )
    else:
        whole = instantiate_steppers(
            model,
            steps=provided,
            selected_steps=selected,
            step_kwargs=step_options,
            compile_kwargs=compile_kwargs,
        )
    whole = CompoundStep(whole) if isinstance(whole, list) else whole
    check_order(model, flatten_steps(whole))
    check_alone(model, flatten_steps(whole))
    for one in flatten_steps(whole):
        if isinstance(one, PopulationArrayStepShared):
            raise ModelError(
                f"{type(one).__name__} runs all its chains together, so that one cannot go on "
                f"without the others: it cannot be used with a store. Use pm.DEMetropolisZ. "
                f"{see('runs')}"
            )
        _check_state(one)
    recorded = None
    if var_names is not None:
        unknown = set(var_names) - {variable.name for variable in model.unobserved_RVs}
        if unknown:
            raise ModelError(f"var_names that are not in the model: {', '.join(sorted(unknown))}.")
        recorded = [v for v in model.unobserved_RVs if v.name in var_names]
        recorded = model.replace_rvs_by_values(recorded)
    with clamped(model):  # it computes them once
        trace = NDArray(model=model, vars=recorded)
    return Setup(model, whole, trace, initvals, starts, callback)


def _check_state(step: Any) -> None:
    """Refuse a step whose state is not known, or is not made of numbers: it could not go on."""
    state = step.sampling_state
    try:
        is_known = hasattr(state, "rng")
        pack({"state": state})
        reason = "its sampling_state has no generator"
    except TypeError as error:
        is_known, reason = False, str(error)
    if not is_known:
        raise ModelError(
            f"{type(step).__name__} cannot be used with a store, because the chain could not go on "
            f"as it was: {reason}. {see('runs')}"
        )


def like(trace: NDArray, kind: Any = NDArray) -> Any:
    """Return an empty trace of some kind for the same variables, with nothing compiled again."""
    return kind(
        model=trace.model,
        vars=trace.vars,
        fn=trace.fn,
        var_shapes=trace.var_shapes,
        var_dtypes=trace.var_dtypes,
    )


# Descriptions


def describe(setup: Setup, groups: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a model, its data, labels and steps, so that another one can be told from it.

    That the densities are the same is not seen here. They are computed again at the last draw of a
    chain, and compared.

    Parameters
    ----------
    setup : Setup
    groups : dict of Dataset
        Those of a result: draws, of which there are labels alone, and data.
    """
    model = setup.model
    digests = {name: _digest(dataset) for name, dataset in sorted(groups.items())}
    point = model.initial_point()
    description = {
        "parameters": {name: [v.dtype.str, list(v.shape)] for name, v in sorted(point.items())},
        "randomness": {
            u.name: [u.tag.apm_randomness.kind_name, list(u.tag.apm_randomness.shape)]
            for u in sorted(randomness_of_model(model), key=lambda u: u.name)
        },
        "data": {name: digest for name, digest in digests.items() if name not in OF_DRAWS},
        "labels": {name: digest for name, digest in digests.items() if name in OF_DRAWS},
        "steps": [_describe_step(step) for step in flatten_steps(setup.step)],
    }
    return json.loads(json.dumps(description))


def _digest(dataset: Any) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(dataset.variables.items()):
        array = np.asarray(values.values)
        content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        digest.update(f"{name} {array.dtype} {values.dims} {array.shape} ".encode() + content)
    return digest.hexdigest()


def _describe_step(step: Any) -> dict[str, Any]:
    state = step.sampling_state
    options = {name: getattr(state, name) for name in frozen_fields_of(state)}
    for kind in type(step).__mro__:
        for name in inspect.signature(vars(kind).get("__init__", _nothing)).parameters:
            value = getattr(step, name, None)
            if name not in CHANGING and isinstance(value, bool | int | float | str):
                options[name] = value
    options["options"] = getattr(step, "options", None)
    options["u"] = [u.name for u in getattr(step, "updated_randomness", ())]
    if hasattr(step, "learnt"):
        options["start"] = _digest_of_start(step.start())
    return {
        "name": type(step).__name__,
        "variables": [variable.name for variable in step.vars],
        "options": {name: _plain(value) for name, value in options.items()},
    }


def _digest_of_start(learnt: Any) -> str:
    """Return a digest of scales and covariances, but for digits that differ between machines."""
    arrays: list[np.ndarray] = []
    tree = encode(learnt, arrays)
    numbers = [array.astype(np.float32).tobytes() for array in arrays]
    return hashlib.sha256(b"".join([json.dumps(tree).encode(), *numbers])).hexdigest()


def _nothing() -> None:
    """Stand in for the constructor of a class that has none."""


def _plain(value: Any) -> Any:
    """Return an option as JSON has it; None if it is no number, text or array of them."""
    arrays: list[np.ndarray] = []
    try:
        return [encode(value, arrays), [array.tolist() for array in arrays]]
    except TypeError:
        return None


def versions() -> dict[str, str]:
    """Return the versions of what may change the draws."""
    found = {name: version(name) for name in PACKAGES}
    return found | {"python": ".".join(platform.python_version_tuple()[:2])}


def accepted_by_pymc() -> set[str]:
    """Return the names of the options of ``pm.sample``."""
    return set(inspect.signature(pm.sample).parameters) - {"kwargs"}
