"""The reciprocal of a normaliser from estimates of it: no exact sampler, but signs.

    1 / Z(theta) = 1 / c * sum over k of E[prod_{i <= k} (1 - X_i / c)]

for independent unbiased estimates X_i of Z(theta) and a guess c of it, truncated at random (Lyne et
al., 2015). The X_i come from annealed importance sampling that starts from parameters at which it
is easy to sample exactly: it is unbiased for any number of transitions.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_apm.estimators.intractable.guess import Guess
from pymc_apm.estimators.truncation.lengths import Length
from pymc_apm.estimators.truncation.series import log_and_sign
from pymc_apm.estimators.truncation.symmetric import inverse_survival, mean_products

if TYPE_CHECKING:
    from pymc_apm.estimators.intractable.estimator import DoublyIntractable

MARGIN = math.log(1.2)
"""A guess that is too large takes more terms; one that is too small makes the series diverge."""


class TruncatedNormaliser:
    """The likelihood with a series in place of its normaliser: a log and a sign.

    Parameters
    ----------
    annealing : DoublyIntractable
        Whose reference is where the annealing starts.
    guess : Guess
    length : Length
    """

    def __init__(self, annealing: "DoublyIntractable", guess: Guess, length: Length) -> None:
        self.annealing = annealing
        self.guess = guess
        self.length = length
        self.__name__ = annealing.__name__
        self.__signature__ = annealing.__signature__

    def __call__(self, *arguments: Any) -> tuple[float, float]:
        """Return the log of the absolute value of the estimate, and its sign.

        The guess is no less than one more estimate, on which the others do not depend: that costs
        little, and where the pilot was far off it makes the series one that converges.
        """
        *parameters, rng = arguments
        n_estimates = self.length.at_least + self.length.draw(rng.random())
        reference = self.annealing.reference
        log_guess, *log_estimates = (
            self.annealing.log_ratio(reference, parameters, rng) for _ in range(n_estimates + 1)
        )
        log_guess = max(log_guess, self.guess(parameters) + MARGIN)
        with np.errstate(over="ignore", invalid="ignore"):
            means = mean_products(1.0 - np.exp(np.array(log_estimates) - log_guess))
            total = float(inverse_survival(self.length, n_estimates) @ means)
        log_abs, sign = log_and_sign(total if math.isfinite(total) else math.nan)
        log_g = self.annealing.family.log_g(self.annealing.observed, *parameters)
        return log_g - log_guess + log_abs, sign
