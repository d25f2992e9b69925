"""Old spellings that still work, with a warning."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def once_positional(*names: str) -> Callable[[Function], Function]:
    """Let a function take keyword-only arguments by position, in the order that they once had."""

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        n_positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            old = dict(zip(names, args[n_positional:], strict=False))
            if len(args) != n_positional + len(old) or not old:
                return function(*args, **kwargs)  # as it should be, or else an error of Python's
            name = function.__qualname__.removesuffix(".__init__")
            spelling = ", ".join(f"{keyword}=..." for keyword in old)
            warn_of_old_spelling(
                f"{name} takes {', '.join(old)} by keyword only ({spelling}). By position is "
                "deprecated."
            )
            return function(*args[:n_positional], **old, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def warn_of_old_spelling(message: str) -> None:
    """Warn the caller of the function that calls this."""
    warnings.warn(message, FutureWarning, stacklevel=3)
