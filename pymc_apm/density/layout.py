"""Between the points of PyMC, dicts of arrays, and the flat vectors that kernels move."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    stop: int


class Layout:
    """Where each of some variables lies in one float64 vector.

    Parameters
    ----------
    variables : iterable of Variable
        Value variables of a model.
    point : dict
        A point of the model, for their shapes and dtypes.
    """

    def __init__(
        self, variables: Iterable[Variable], point: Mapping[str, NDArray[np.generic]]
    ) -> None:
        self.variables = list(variables)
        self.entries: list[_Entry] = []
        stop = 0
        for variable in self.variables:
            value = np.asarray(point[variable.name])
            start, stop = stop, stop + value.size
            self.entries.append(
                _Entry(variable.name, value.shape, np.dtype(variable.dtype), start, stop)
            )
        self.size = stop

    @property
    def discrete(self) -> NDArray[np.bool_]:
        """Which coordinates of the vector hold integers."""
        return np.concatenate(
            [np.full(e.stop - e.start, e.dtype.kind in "iub") for e in self.entries]
            or [np.zeros(0, dtype=bool)]
        )

    def ravel(self, point: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Copy the variables of a point into a vector."""
        if len(self.entries) == 1:  # as a rule; the general way takes longer
            return np.array(point[self.entries[0].name], dtype=np.float64).reshape(-1)
        vector = np.empty(self.size)
        for name, _, _, start, stop in self.entries:
            vector[start:stop] = np.ravel(point[name])
        return vector

    def unravel(self, vector: NDArray[np.float64]) -> dict[str, NDArray[np.generic]]:
        """Return the variables as arrays of their own shapes and dtypes."""
        return {
            name: np.array(vector[start:stop].reshape(shape), dtype=dtype)
            for name, shape, dtype, start, stop in self.entries
        }

    def split(self, vector: TensorVariable) -> dict[Variable, TensorVariable]:
        """Return the symbolic counterpart of :meth:`unravel`, by variable."""
        parts = {}
        for variable, (_, shape, dtype, start, stop) in zip(
            self.variables, self.entries, strict=True
        ):
            part = vector[start] if shape == () else vector[start:stop].reshape(shape)
            parts[variable] = pt.cast(part, str(dtype))
        return parts
