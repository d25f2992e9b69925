"""The exceptions a user can meet.

Each takes a single string, so that it survives the way home from a child process.
"""

import multiprocessing
import re
import traceback
from collections.abc import Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from pymc.exceptions import SamplingError

DOCUMENTATION = "docs/{page}.md"
"""Where a page of the documentation is, in the sources of the package."""

PAGES = {
    "getting_started": "Getting started",
    "estimators": "Writing an estimator",
    "choosing": "Choosing a method",
    "diagnosing": "Whether to trust a run",
    "recipes": "Recipes",
    "marginalize": "Integrating latent variables out of a model",
    "latent_gaussian": "Latent Gaussian models",
    "state_space": "State-space models",
    "particles": "Particle filters",
    "doubly_intractable": "Models with an unknown normaliser",
    "compiled": "Compiled chains",
    "runs": "Runs that survive",
    "series": "Random series and signs",
}
"""The pages that messages send a user to, and their titles."""


def see(page: str) -> str:
    """Return the sentence that sends a user to a page of the documentation.

    >>> see("estimators")
    'See "Writing an estimator" in the documentation (docs/estimators.md).'
    """
    return f'See "{PAGES[page]}" in the documentation ({DOCUMENTATION.format(page=page)}).'


class ModelError(ValueError):
    """A model, or a step made for it, cannot work as declared."""


class CompileError(ModelError):
    """A step cannot be compiled for a model."""


class EstimatorError(SamplingError):
    """An estimator broke its contract while sampling."""


class CoalescenceError(EstimatorError):
    """An exact sampler gave up: where it was to sample, it would take too long."""


class UnclaimedRandomnessError(SamplingError):
    """A model was to be sampled, or its density computed, although no step updates its randomness.

    To compute the density with the randomness clamped, use :func:`pymc_apm.clamped`.
    """


class StoreError(SamplingError):
    """A store cannot be used: it is damaged, of another run, or in use."""


class RunStopped(SamplingError):
    """A run was stopped before its end. What was sampled is in its store.

    The same call goes on. To look at what is there, use :func:`pymc_apm.open_run`.
    """


def unclaimed(names: Iterable[str]) -> str:
    """Return the message of the error that some randomness is updated by nobody."""
    return (
        f"No step updates the randomness {', '.join(map(repr, names))}, so that the estimate would "
        "stay the same for the whole chain and the posterior would be wrong. Sample with "
        "apm.APMSlice(), or add one of apm.APMEllipticalU(), apm.APMReflectiveU(), "
        "apm.APMIndependenceU() to the list of steps. (To look at the density of one estimate, do "
        "so within `with apm.clamped(model):`. If there is such a step, then pm.sample has been "
        f"imported by name before pymc_apm, which does not know of the run.) {see('recipes')}"
    )


def add_context(error: Exception, context: str) -> None:
    """Say where an exception of the user's own code came from, without changing what it is.

    The text goes into the message where there is one, because PyMC reports just that when the
    exception comes from a child process. An exception that would be lost on the way home from a
    child process is replaced there by an :class:`EstimatorError` that tells all about it.
    """
    caught = error
    error = _original(caught)
    text = _message(error)
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{context}",)
    if context not in _message(error):
        error.add_note(context)
    if multiprocessing.parent_process() is not None and not _survives_pickling(error):
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        lines = "".join(traceback.format_tb(error.__traceback__))
        stand_in = EstimatorError(
            f"{kind}: {text}\n{context}\nThe exception itself cannot be sent between processes: "
            f"an EstimatorError stands in for it. It was raised here:\n{lines}"
        )
        try:
            raise stand_in
        finally:  # what Dask does to pickles would take the original along
            stand_in.__context__ = None
    if error is not caught:
        raise error from None


def _original(error: Exception) -> Exception:
    """Return the exception that the user's code raised, where PyTensor made a poorer one of it.

    PyTensor adds what it knows of the graph to the message of an exception, and for that makes a
    new one of the same class: an error number, attributes and notes are lost.
    """
    context = error.__context__
    was_copied = type(context) is type(error) and hasattr(context, "__op_instance__")
    original = context if was_copied and isinstance(context, Exception) else error
    for name in ("__thunk_trace__", "__op_instance__", "__applynode_index__"):
        vars(original).pop(name, None)  # parts of the graph, which need not be picklable
    message = _message(original)
    is_plain = original.args == (message,) and not vars(original)
    return error if is_plain and _message(error).startswith(message) else original


def _survives_pickling(error: Exception) -> bool:
    """Say whether an exception arrives as it was sent from one process to another."""
    try:
        arrived = ForkingPickler.loads(ForkingPickler.dumps(error))
        return type(arrived) is type(error) and _appearance(arrived) == _appearance(error)
    except Exception:  # whatever the code of a user's class raises
        return False


def _appearance(error: Exception) -> str:
    """Return what an exception looks like, without the addresses of objects."""
    return re.sub(r"0x[0-9a-fA-F]+", "", f"{error!r} {error}")


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # as above
        return f"<str() of {type(error).__name__} failed>"


def describe_value(value: Any) -> str:
    """Put a number or an array into words, a long one in short."""
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{array[()]:.6g}" if array.dtype.kind in "fiub" else str(array[()])
    return np.array2string(array, threshold=20, precision=6)
