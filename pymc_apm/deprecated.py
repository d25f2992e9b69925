"""Old spellings that still work, with a warning."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def once_positional(*names: str) -> Callable[[Function], Function]:
    """Let a function take keyword-only arguments by position, in the order that they once had.

    >>> @once_positional("scale")
    ... def double(x, *, scale=1.0):
    ...     return 2.0 * scale * x
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     double(1.0, 3.0)
    6.0
    >>> print(caught[0].message)
    double takes scale by keyword only: write scale=... By position is deprecated.
    """

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        n_positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            old = dict(zip(names, args[n_positional:], strict=False))
            if len(args) != n_positional + len(old) or not old:
                return function(*args, **kwargs)  # as it should be, or else an error of Python's
            warn_of_old_spelling(
                f"{function.__qualname__.removesuffix('.__init__')} takes {', '.join(old)} by "
                f"keyword only: write {', '.join(f'{name}=...' for name in old)} By position is "
                "deprecated."
            )
            return function(*args[:n_positional], **old, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def warn_of_old_spelling(message: str) -> None:
    """Warn the caller of the function that calls this."""
    warnings.warn(message, FutureWarning, stacklevel=3)
