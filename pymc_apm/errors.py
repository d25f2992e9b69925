"""The exceptions a user can meet.

Each takes a single string, so that it survives the way home from a child process.
"""

from collections.abc import Iterable
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
    "latent_gaussian": "Latent Gaussian models",
    "doubly_intractable": "Models with an unknown normaliser",
    "compiled": "Compiled chains",
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
    """A model was to be sampled although no step updates some of its randomness."""


def unclaimed(names: Iterable[str]) -> str:
    """Return the message of the error that some randomness is updated by nobody."""
    return (
        f"No step updates the randomness {', '.join(map(repr, names))}, so that the estimate would "
        "stay the same for the whole chain and the posterior would be wrong. Sample with "
        "apm.APMSlice(), or add one of apm.APMEllipticalU(), apm.APMReflectiveU(), "
        f"apm.APMIndependenceU() to the list of steps. {see('recipes')}"
    )


def add_context(error: Exception, context: str) -> None:
    """Say where an exception of the user's own code came from, without changing what it is.

    The text goes into the message where there is one, because PyMC reports just that when the
    exception comes from a child process.
    """
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{context}",)
    else:
        error.add_note(context)


def describe_value(value: Any) -> str:
    """Put a number or an array into words, a long one in short."""
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{array[()]:.6g}" if array.dtype.kind in "fiub" else str(array[()])
    return np.array2string(array, threshold=20, precision=6)
