"""Ready-made estimators, and models to use them with.

Those that are compiled by Numba are imported when they are first asked for, because Numba takes
longer to import than all of this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pymc_apm.estimators.importance_sampling import importance, log_mean_exp
from pymc_apm.estimators.intractable.estimator import doubly_intractable
from pymc_apm.estimators.intractable.family import Unnormalised
from pymc_apm.estimators.simulation import abc
from pymc_apm.estimators.states.estimator import state_space
from pymc_apm.estimators.truncation.series import series
from pymc_apm.estimators.truncation.uses import exp_of, power_of, reciprocal_of, telescoping

if TYPE_CHECKING:
    from pymc_apm.estimators.intractable.ising import Ising
    from pymc_apm.estimators.laplace.estimator import laplace_importance
    from pymc_apm.estimators.latent import sample_latent

__all__ = [
    "Ising",
    "Unnormalised",
    "abc",
    "doubly_intractable",
    "exp_of",
    "importance",
    "laplace_importance",
    "log_mean_exp",
    "power_of",
    "reciprocal_of",
    "sample_latent",
    "series",
    "state_space",
    "telescoping",
]

# No module or package here has the name of one of these, so that none can take its place.
_WHEN_ASKED_FOR = {
    "Ising": "intractable.ising",
    "laplace_importance": "laplace.estimator",
    "sample_latent": "latent",
}


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_WHEN_ASKED_FOR[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
