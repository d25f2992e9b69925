"""Labels of rows that go on: numbers, and dates by the year, the month, the working day."""

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNITS = ("Y", "M")

SHIFTS = np.timedelta64(0, "D"), np.timedelta64(1, "D")
"""To the first day of a month from the last of the one before."""


def go_on(labels: NDArray[Any], n: int) -> NDArray[Any] | None:
    """Return n labels after those of rows, or None if it is not plain how they go on.

    Numbers and dates go on by their step if it is the same all the time. Dates go on by years or
    months if they are that far apart, however long these are, also from one last day of a month to
    the next; by working days if they are mostly on consecutive ones; and by their usual step if
    they are irregular.

    Examples
    --------
    >>> months = np.array(["2024-01-15", "2024-02-15", "2024-03-15"], dtype="datetime64[D]")
    >>> go_on(months, 2).tolist()
    [datetime.date(2024, 4, 15), datetime.date(2024, 5, 15)]
    """
    if labels.ndim != 1 or len(labels) < 2 or labels.dtype.kind not in "iufM":
        return None
    ahead: NDArray[Any] = np.arange(1, n + 1)
    steps = np.diff(labels)
    if labels.dtype.kind == "f" and np.allclose(steps, steps.mean(), rtol=1e-6, atol=0.0):
        return labels[-1] + steps.mean() * ahead
    if (steps == steps[0]).all():
        return labels[-1] + steps[0] * ahead
    if labels.dtype.kind != "M" or np.isnat(labels).any() or not (labels[1:] > labels[:-1]).all():
        return None
    for unit, shift in product(UNITS, SHIFTS):
        whole = (labels + shift).astype(f"datetime64[{unit}]")
        numbers, rests = np.diff(whole.astype(np.int64)), labels - whole
        if numbers[0] and (numbers == numbers[0]).all() and (rests == rests[0]).all():
            return (whole[-1] + numbers[0] * ahead).astype(labels.dtype) + rests[0]
    days = labels.astype("datetime64[D]")
    rests = labels - days
    if np.is_busday(days).all() and (rests == rests[0]).all():
        if np.median(np.busday_count(days[:-1], days[1:])) == 1:
            return np.busday_offset(days[-1], ahead).astype(labels.dtype) + rests[0]
    return labels[-1] + np.median(steps.astype(np.int64)).astype(steps.dtype) * ahead
