"""Functions of ``scipy.special``, which is imported when one of them is first called.

It takes longer to import than all of this package.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scipy import special

    function = globals()[name] = getattr(special, name)
    return function
