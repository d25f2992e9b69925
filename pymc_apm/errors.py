"""The exceptions a user can meet.

Each takes a single string, so that it survives the way home from a child process.
"""

from pymc.exceptions import SamplingError


class ModelError(ValueError):
    """A model, or a step made for it, cannot work as declared."""


class EstimatorError(SamplingError):
    """An estimator broke its contract while sampling."""


class UnclaimedRandomnessError(SamplingError):
    """The log density was evaluated although no step updates some of its randomness."""


def add_context(error: Exception, context: str) -> None:
    """Say where an exception of the user's own code came from, without changing what it is.

    The text goes into the message where there is one, because PyMC reports just that when the
    exception comes from a child process.
    """
    if len(error.args) == 1 and isinstance(error.args[0], str) and not isinstance(error, KeyError):
        error.args = (f"{error.args[0]}\n{context}",)
    else:
        error.add_note(context)
