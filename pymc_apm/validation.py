"""Checks of the options that a user gives, each with an error that names the option."""

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_apm.errors import ModelError


def positive_integer(option: str, value: Any, minimum: int = 1) -> int:
    """Check an option that is a count."""
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise ModelError(f"{option} must be an integer of at least {minimum}, got {value!r}.")
    return number


def numbers(option: str, value: Any) -> NDArray[np.float64]:
    """Check an option that is a number or an array of finite numbers."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if isinstance(value, str) or np.ma.is_masked(value) or not np.isfinite(array).all():
        raise ModelError(f"{option} must be made of finite numbers, got {value!r}.")
    return array


def number(option: str, value: Any) -> float:
    """Check an option that is one finite number."""
    array = numbers(option, value)
    if array.ndim > 0:
        raise ModelError(f"{option} must be one number, got {value!r}.")
    return float(array)


def positive_number(option: str, value: Any) -> float:
    """Check an option that is one positive number."""
    checked = number(option, value)
    if checked <= 0.0:
        raise ModelError(f"{option} must be positive, got {value!r}.")
    return checked


def one_of(option: str, value: Any, *choices: Any) -> None:
    """Check an option that is a choice."""
    if not any(value is choice or value == choice for choice in choices):
        wanted = ", ".join(repr(choice) for choice in choices[:-1])
        raise ModelError(f"{option} must be {wanted} or {choices[-1]!r}, got {value!r}.")


def acceptance(option: str, value: Any) -> tuple[float, float]:
    """Check an option that is an acceptance rate, or bounds for one; return bounds."""
    bounds = np.atleast_1d(numbers(option, value))
    is_valid = bounds.ndim == 1 and bounds.size in (1, 2)
    if not (is_valid and (bounds > 0).all() and (bounds < 1).all() and (np.diff(bounds) > 0).all()):
        raise ModelError(
            f"{option} must be an acceptance rate between 0 and 1, or a lower and an upper bound "
            f"for one, got {value!r}."
        )
    return float(bounds[0]), float(bounds[-1])


def cholesky_factor(option: str, value: Any, dim: int) -> NDArray[np.float64]:
    """Check an option that is a covariance matrix, or a vector of variances, and factorise it."""
    matrix = numbers(option, value)
    matrix = np.diag(matrix) if matrix.ndim == 1 else matrix
    if matrix.shape != (dim, dim):
        raise ModelError(
            f"{option} must have one row and column for each of the {dim} parameters, got shape "
            f"{np.shape(value)}."
        )
    if not np.allclose(matrix, matrix.T, rtol=1e-6):
        raise ModelError(f"{option} is not symmetric.")
    try:
        return np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
    except np.linalg.LinAlgError as error:
        raise ModelError(f"{option} is not positive definite.") from error
