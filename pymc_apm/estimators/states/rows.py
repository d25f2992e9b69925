"""The observations of a state-space model: one row for each time, series after series.

Rows are in the order in which states follow each other. The first row of a series has no
transition into it; all others have one from the row before. Missing data are NaN.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_apm.errors import ModelError
from pymc_apm.validation import numbers

RESERVED = ("t", "dt", "time", "series", "y")
"""Names of arguments that have a meaning of their own."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """When and of which series the observations are.

    Attributes
    ----------
    order : ndarray of int
        The place of each row in what the user gave.
    series : ndarray of int
        The series of each row, counted from 0.
    labels : ndarray
        The label of each series.
    t : ndarray of int
        The number of each row in its series, counted from 0.
    time : ndarray
        When it is: ``t`` if the user gave no times.
    dt : ndarray
        The time since the row before; for the first row of a series, where there is none, 1.
    is_panel : bool
        Whether the user gave series.
    """

    order: NDArray[np.int64]
    series: NDArray[np.int64]
    labels: NDArray[Any]
    t: NDArray[np.int64]
    time: NDArray[np.float64]
    dt: NDArray[np.float64]
    is_panel: bool

    def __len__(self) -> int:
        return self.order.size

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether each row is the first of its series."""
        return self.t == 0

    @property
    def n_series(self) -> int:
        """The number of series."""
        return self.labels.size

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of rows of each series."""
        return np.bincount(self.series, minlength=self.n_series)


def make_rows(label: str, length: int, times: Any, series: Any) -> Rows:
    """Check times and series, and put the rows in order."""
    code, labels = np.zeros(length, dtype=np.int64), np.zeros(1, dtype=np.int64)
    if series is not None:
        given = np.asarray(series)
        if given.shape != (length,):
            raise ModelError(
                f"series of {label} must have a label for each of the {length} rows of the data, "
                f"got the shape {given.shape}."
            )
        labels, code = np.unique(given, return_inverse=True)
    order = np.argsort(code, kind="stable")
    code = code[order].astype(np.int64)
    first = np.flatnonzero(np.diff(code, prepend=-1))
    t = np.arange(length) - np.repeat(first, np.diff([*first, length]))
    if times is None:
        time = t.astype(np.float64)
    else:
        time = numbers(f"times of {label}", times)
        if time.shape != (length,):
            raise ModelError(
                f"times of {label} must have a number for each of the {length} rows of the data, "
                f"got the shape {time.shape}."
            )
        time = time[order]
    dt = np.where(t == 0, 1.0, np.diff(time, prepend=np.nan))
    if not (dt > 0.0).all():
        place = int(order[np.flatnonzero(~(dt > 0.0))[0]])
        raise ModelError(
            f"times of {label} must increase within a series, but row {place} is not later than "
            "the one before it. Sort the rows by time."
        )
    return Rows(order, code, labels, t, time, dt, series is not None)


class Data(NamedTuple):
    """One array of data, in the order of rows.

    Attributes
    ----------
    values : ndarray
        With the rows along the first axis; what is missing is filled in by what is not, so that
        every density is defined.
    is_observed : ndarray of bool
        Of the same shape.
    """

    values: NDArray[Any]
    is_observed: NDArray[np.bool_]


def make_data(label: str, values: Any) -> NDArray[np.float64]:
    """Check an array of data, with rows along the first axis and at most one more."""
    if isinstance(values, Variable):
        raise ModelError(
            f"The data of {label} must be an array of numbers, in which NaN is what is missing, "
            f"but it is {values}. Data that change (pm.Data) may be covariates."
        )
    try:
        array = np.ma.filled(np.ma.array(values, dtype=np.float64), np.nan)
    except (TypeError, ValueError) as error:
        raise ModelError(f"The data of {label} must be numbers: {error}.") from error
    if array.ndim not in (1, 2) or len(array) == 0:
        raise ModelError(
            f"The data of {label} must have a row for each time, each a number or a vector, got "
            f"the shape {array.shape}."
        )
    if np.isinf(array).any():
        raise ModelError(f"The data of {label} have infinite values.")
    return array


def filled(label: str, array: NDArray[np.float64], is_integer: bool) -> Data:
    """Fill in what is missing, and turn counts into integers."""
    is_observed = ~np.isnan(array)
    columns = array.reshape(len(array), -1).copy()
    for column in columns.T:
        seen = ~np.isnan(column)
        column[~seen] = column[seen][0] if seen.any() else 1.0
    values: NDArray[Any] = columns.reshape(array.shape)
    if is_integer:
        if (values != np.round(values)).any():
            raise ModelError(
                f"The observations of {label} are discrete, but some of its data are no integers."
            )
        values = values.astype(np.int64)
    return Data(values, is_observed)


def make_covariates(
    label: str, covariates: Mapping[str, Any] | None, rows: Rows, taken: tuple[str, ...]
) -> dict[str, TensorVariable]:
    """Check covariates, and put them in the order of rows; ``pm.Data`` may change."""
    made: dict[str, TensorVariable] = {}
    if covariates is not None and not isinstance(covariates, Mapping):
        raise ModelError(f"covariates of {label} must be a dict of arrays, got {covariates!r}.")
    for name, value in (covariates or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name in (*RESERVED, *taken):
            raise ModelError(
                f"A covariate of {label} is called {name!r}: that must be the name of an argument, "
                f"and none of {', '.join((*RESERVED, *taken))}."
            )
        if not isinstance(value, Variable):
            is_masked = np.ma.is_masked(value)
            value = np.asarray(value)
            if value.dtype.kind not in "iufb" or is_masked or not np.isfinite(value).all():
                raise ModelError(
                    f"The covariate {name} of {label} must be made of finite numbers; only data "
                    "may be missing."
                )
            if value.dtype.kind == "b":
                value = value.astype(np.int64)
        variable = pt.as_tensor_variable(value)
        is_fixed_length = variable.type.shape[:1] in ((len(rows),), (None,))
        if variable.type.ndim not in (1, 2) or not is_fixed_length:
            raise ModelError(
                f"The covariate {name} of {label} must have a number, or a vector, for each of the "
                f"{len(rows)} rows of the data, got the shape {variable.type.shape}."
            )
        if isinstance(variable, SharedVariable) and len(variable.get_value()) != len(rows):
            raise ModelError(
                f"The covariate {name} of {label} has {len(variable.get_value())} rows, and the "
                f"data have {len(rows)}."
            )
        is_sorted = (np.diff(rows.order) > 0).all()
        variable = variable if is_sorted else variable[rows.order]
        made[name] = pt.specify_shape(variable, (len(rows), *variable.type.shape[1:]))
    return made
