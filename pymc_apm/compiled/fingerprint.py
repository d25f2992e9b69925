"""Telling programs apart by what they are made of.

A program is a closure: a function with the functions and values that it refers to, and these in
turn with theirs. :func:`walk` visits all of them. The digest is made from everything that it
meets; an object of which it does not know what makes it what it is means that there is none, so
that nothing can be left out.
"""

import dataclasses
import hashlib
import sys
import types
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

KNOWN_MODULES = ("math", "cmath", "operator", "numpy", "numba", "pymc_apm")
"""Modules whose versions are part of every key."""


@runtime_checkable
class Digestible(Protocol):
    """An object that knows what makes it what it is."""

    def digest(self) -> str | None:
        """Return what tells it from others; None if that cannot be said."""


@dataclasses.dataclass
class Walk:
    """What was met on the way through a closure.

    Attributes
    ----------
    functions : list of function
        All functions, those that others call first.
    parts : list of str
        What tells it from other closures.
    references : Counter
        How often each function is referred to.
    strangers : list
        Objects of which it cannot be said what tells them from others.
    """

    functions: list[types.FunctionType] = dataclasses.field(default_factory=list)
    parts: list[str] = dataclasses.field(default_factory=list)
    strangers: list[Any] = dataclasses.field(default_factory=list)
    seen: dict[int, tuple[int, Any]] = dataclasses.field(default_factory=dict)
    references: Counter[types.FunctionType] = dataclasses.field(default_factory=Counter)

    @property
    def digest(self) -> str | None:
        """A digest of all parts; None if there is a stranger among them."""
        if self.strangers:
            return None
        return hashlib.sha256("\n".join(self.parts).encode()).hexdigest()

    def visit(self, item: Any) -> None:
        """Visit an object, and all that it refers to."""
        if isinstance(item, types.FunctionType):
            self._visit_function(item)
        elif isinstance(item, Digestible) and not isinstance(item, type):
            digest = item.digest()
            self.parts.append(f"{_name(type(item))} {digest}")
            if digest is None:
                self.strangers.append(item)
        elif hasattr(item, "py_func"):  # a function of Numba, which need not be registered with it
            self.parts.append(f"numba {sorted(item.targetoptions.items())!r}")
            known = len(self.functions)
            self._visit_function(item.py_func)
            del self.functions[known:]
        elif isinstance(item, types.CodeType):
            self._visit_code(item)
        elif item is None or isinstance(item, bool | int | float | complex | str | bytes):
            self.parts.append(f"{type(item).__name__} {item!r}")
        elif isinstance(item, np.ndarray | np.generic):
            array = np.asarray(item)
            content = hashlib.sha256(array.tobytes()).hexdigest()
            self.parts.append(f"array {array.dtype.str} {array.shape} {content}")
            if array.dtype.hasobject:
                self.strangers.append(item)
        elif isinstance(item, tuple | list):
            self.parts.append(f"{_name(type(item))} of {len(item)} {_fields(type(item))}")
            for element in item:
                self.visit(element)
        elif isinstance(item, Mapping):
            self.parts.append(f"{_name(type(item))} of {len(item)}")
            for key in sorted(item, key=repr):
                self.visit(key)
                self.visit(item[key])
        elif isinstance(item, types.ModuleType):
            self.parts.append(f"module {item.__name__}")
            if item.__name__.partition(".")[0] not in KNOWN_MODULES:
                self.strangers.append(item)  # what is used of it cannot be seen
        elif isinstance(item, np.dtype):
            self.parts.append(f"dtype {item.descr!r}")
        elif _is_known(item):  # a class, or a function in C
            self.parts.append(f"{type(item).__name__} {_name(item)}")
        elif _fields(item) is not None:  # a named tuple, as numba knows it
            self.parts.append(f"class {_name(item)} {_fields(item)}")
            self.visit(item._field_defaults)
        else:
            self.strangers.append(item)

    def _visit_function(self, function: types.FunctionType) -> None:
        # The function is kept with its number: an id may be given again to another object.
        self.references[function] += 1
        if id(function) in self.seen:
            self.parts.append(f"function {self.seen[id(function)][0]}")
            return
        self.seen[id(function)] = len(self.seen), function
        self.parts.append(f"function {function.__module__}.{function.__qualname__}")
        self._visit_code(function.__code__)
        self.visit(function.__defaults__)
        self.visit(function.__kwdefaults__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.parts.append(f"refers to {name}")
            self.visit(cell.cell_contents)
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                self.parts.append(f"refers to {name}")
                self.visit(function.__globals__[name])
        self.functions.append(function)

    def _visit_code(self, code: types.CodeType) -> None:
        signature = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        table = code.co_exceptiontable.hex()
        self.parts.append(f"code {code.co_code.hex()} {table} {signature} {names}")
        self.visit(code.co_consts)


def walk(item: Any) -> Walk:
    """Visit an object and all that it refers to."""
    walked = Walk()
    walked.visit(item)
    return walked


def _global_names(code: types.CodeType) -> list[str]:
    """Return the names that a function may look up in its module, in a fixed order."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return list(dict.fromkeys(names))


def _is_known(item: Any) -> bool:
    """Say whether an object is what a known module has under its name."""
    if isinstance(item, np.ufunc):
        return getattr(np, item.__name__, None) is item
    module = getattr(item, "__module__", None)
    if not isinstance(module, str) or module.partition(".")[0] not in (*KNOWN_MODULES, "builtins"):
        return False
    found = sys.modules.get(module)
    for name in getattr(item, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is item


def _fields(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a named tuple; None for other classes."""
    is_tuple = isinstance(kind, type) and issubclass(kind, tuple)
    return getattr(kind, "_fields", None) if is_tuple else None


def _name(item: Any) -> str:
    module = getattr(item, "__module__", None)
    name = getattr(item, "__qualname__", None) or getattr(item, "__name__", None) or str(item)
    return f"{module}.{name}"
