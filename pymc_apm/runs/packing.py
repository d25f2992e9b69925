"""States of steps as JSON and numbers, read without ever making an object that the file names.

What is read is put into the shape of a state of a live step: classes are those of the live state,
or tuples with names of this package. A file has leaves alone.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pymc_apm.adaptive.correlation import Correlation
from pymc_apm.adaptive.covariance import Covariance
from pymc_apm.adaptive.pilot import Pilot
from pymc_apm.adaptive.random_walk import WalkLearnt
from pymc_apm.adaptive.slice import SliceLearnt
from pymc_apm.adaptive.tuning import Scale, Width, Widths
from pymc_apm.errors import StoreError
from pymc_apm.steps.chain import Evaluated

MAGIC = b"apm-run-1\n"
"""How a file of this module begins; a checksum and the length of the JSON text follow."""

OURS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Correlation, Covariance, Evaluated, Pilot, Scale, SliceLearnt, WalkLearnt, Width),
        Widths,
    )
}
"""Tuples with names that a state may have where the live one has None."""

KINDS_OF_NUMBERS = "biufcSU"
"""The kinds of numpy arrays that are stored: no objects."""


def pack(values: dict[str, Any]) -> bytes:
    """Put values into one string of bytes, with a checksum."""
    arrays: list[np.ndarray] = []
    tree = encode(values, arrays)
    declared = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = json.dumps({"tree": tree, "arrays": declared}).encode()
    body = b"".join([len(text).to_bytes(8, "little"), text, *(a.tobytes() for a in arrays)])
    return MAGIC + hashlib.sha256(body).digest() + body


class Packed:
    """What was packed, with its checksum compared, to be put into the shape of live values.

    Parameters
    ----------
    data : bytes
    name : str
        Where it comes from, for messages.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        start = len(MAGIC)
        checksum, body = data[start : start + 32], data[start + 32 :]
        if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != checksum:
            raise StoreError(f"{name} is damaged: its checksum does not agree.")
        try:
            length = int.from_bytes(body[:8], "little")
            header = json.loads(body[8 : 8 + length])
            self._tree = header["tree"]["dict"]
            self._arrays = _arrays(header["arrays"], body[8 + length :])
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise StoreError(f"{name} is not a checkpoint: {error}.") from error

    def get(self, key: str, like: Any = None) -> Any:
        """Return one of the values, in the shape of a live one."""
        try:
            return decode(dict(self._tree)[key], self._arrays, like)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise StoreError(
                f"{self.name} does not fit this model and its steps: {key} of it is of another "
                f"kind ({error})."
            ) from error


def _arrays(declared: Sequence[Any], data: bytes) -> list[np.ndarray]:
    """Cut numbers into arrays, which together have just the bytes that there are."""
    arrays, start = [], 0
    for name, shape in declared:
        dtype = np.dtype(name)
        if dtype.kind not in KINDS_OF_NUMBERS or any(n < 0 for n in shape):
            raise ValueError(f"an array of type {name} and shape {shape}")
        stop = start + math.prod(shape) * dtype.itemsize
        if stop > len(data):
            raise ValueError(f"an array of shape {shape} has more bytes than the file")
        arrays.append(np.frombuffer(data[start:stop], dtype).reshape(shape).copy())
        start = stop
    if start != len(data):
        raise ValueError("there are bytes that belong to no array")
    return arrays


def encode(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as JSON has it; its arrays are appended to a list."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in KINDS_OF_NUMBERS:
            raise TypeError(f"an array of type {array.dtype} cannot be stored")
        arrays.append(array)
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    fields = fields_of(value)
    if fields is not None:
        encoded = {name: encode(getattr(value, name), arrays) for name in fields}
        return {"record": type(value).__name__, "fields": encoded}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, arrays), encode(v, arrays)] for k, v in value.items()]}
    raise TypeError(f"{type(value).__name__} cannot be stored: {value!r:.100}")


def decode(tree: Any, arrays: Sequence[np.ndarray], like: Any = None) -> Any:
    """Return what was encoded, with the classes of a live value."""
    if not isinstance(tree, dict):
        return tree
    (kind, content), *others = tree.items()
    if kind == "record":
        return _record(content, dict(others)["fields"], arrays, like)
    if kind in ("array", "scalar"):
        return arrays[content] if kind == "array" else arrays[content][()]
    if kind in ("list", "tuple"):
        likes = like if isinstance(like, list | tuple) and len(like) == len(content) else None
        items = [decode(t, arrays, likes[i] if likes else None) for i, t in enumerate(content)]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        named = like if isinstance(like, dict) else {}
        pairs = [(decode(key, arrays), item) for key, item in content]
        return {key: decode(item, arrays, named.get(key)) for key, item in pairs}
    raise ValueError(f"unknown kind {kind!r}")


def _record(name: str, fields: dict[str, Any], arrays: Sequence[np.ndarray], like: Any) -> Any:
    names = fields_of(like)
    if names is not None and type(like).__name__ == name:
        make: Callable[..., Any] = type(like)
    elif name in OURS:
        make, names, like = OURS[name], list(OURS[name]._fields), None
    else:
        raise ValueError(f"{name} where this run has {type(like).__name__}")
    if list(fields) != names:
        raise ValueError(f"{name} with {list(fields)}, not {names}")
    values = {key: decode(fields[key], arrays, getattr(like, key, None)) for key in names}
    values |= {key: getattr(like, key) for key in frozen_fields_of(like)}
    generator = values.get("bit_generator_state")
    if generator and generator["bit_generator"] != like.bit_generator_state["bit_generator"]:
        raise ValueError(f"a generator {generator['bit_generator']!r:.100}")
    return make(**values)


def fields_of(value: Any) -> list[str] | None:
    """Return the names of what is stored of a record; None if a value is not a record.

    What PyMC calls frozen cannot change and is a matter of the live step, or may be an object.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value._fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [name for name in names if name not in frozen_fields_of(value)]
    return None


def frozen_fields_of(value: Any) -> list[str]:
    """Return the names of the fields of a state that are options of the step."""
    if not dataclasses.is_dataclass(value):
        return []
    fields = dataclasses.fields(value)
    return [field.name for field in fields if field.metadata.get("frozen", False)]
