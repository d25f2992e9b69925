"""Ways to run graphs in tests whose subject is not the compiler."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytensor


@contextmanager
def interpreted() -> Iterator[None]:
    """Run all graphs as Python: to compile a small model takes longer than to call it for long.

    Whole runs elsewhere, in ``tests/statistical`` and in the examples of docstrings and pages, run
    the same estimators compiled.
    """
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE", traceback__limit=0):
        yield
