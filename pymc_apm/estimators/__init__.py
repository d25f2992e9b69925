"""Ready-made estimators, and models to use them with.

Those that are compiled by numba are imported when they are first asked for, because numba takes
longer to import than all of this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pymc_apm.estimators.importance import importance, log_mean_exp
from pymc_apm.estimators.unnormalised import Unnormalised, doubly_intractable

if TYPE_CHECKING:
    from pymc_apm.estimators.ising import Ising
    from pymc_apm.estimators.laplace import laplace_importance
    from pymc_apm.estimators.latent import sample_latent

__all__ = [
    "Ising",
    "Unnormalised",
    "doubly_intractable",
    "importance",
    "laplace_importance",
    "log_mean_exp",
    "sample_latent",
]

_WHEN_ASKED_FOR = {"Ising": "ising", "laplace_importance": "laplace", "sample_latent": "latent"}


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_WHEN_ASKED_FOR[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
