"""What is recorded of a run, laid out as ``pm.sample`` returns it, and the empty store for it."""

import math
import shutil
import uuid
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray

from pymc_apm._compat import groups_of
from pymc_apm.errors import ModelError
from pymc_apm.runs.files import sync, write

RENAMED = {
    "model_logp": "lp",
    "mean_tree_accept": "acceptance_rate",
    "depth": "tree_depth",
    "tree_size": "n_steps",
}
"""Statistics that have another name in a result."""

OF_DRAWS = ("posterior", "sample_stats")
"""The groups of a result that have something of every draw."""

CHUNK_BYTES = 2**20
"""How many bytes a chunk of one variable has at the most, unless a single draw has more."""

BUFFER_BYTES = 2**25
"""How many bytes the chunks of all variables have at the most, likewise."""

MIN_ROWS = 1000
"""A chunk of a short run has so many draws all the same: there may be more later."""

COORDINATE_ROWS = 2**16
"""How many numbers of draws are in a file."""


class Column(NamedTuple):
    """A variable or a statistic, of which every draw has a value.

    Attributes
    ----------
    group : str
        The group that it is in: ``"posterior"``, ``"sample_stats"``, or one of those for tuning.
    name : str
    dtype : str
    shape : tuple of int
        The shape of one value.
    """

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """How many bytes a draw takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def fill_value(self) -> Any:
        """What stands where no draw has been made."""
        dtype = np.dtype(self.dtype)
        return np.full((), np.nan if dtype.kind in "fc" else 0, dtype)[()]


class Layout(NamedTuple):
    """How the draws of a run are laid out.

    Attributes
    ----------
    columns : list of Column
    groups : dict of Dataset
        The groups of a result with one draw, of which all values are 0.
    """

    columns: list[Column]
    groups: dict[str, Any]


def recorded_by(statistics: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, str]]]:
    """Return which steps record the statistics of a result.

    Parameters
    ----------
    statistics : list of dict
        The types of the statistics of each step, by name.

    Returns
    -------
    dict
        For the name of each statistic in the result, numbers of steps and the name that it has
        there. What several steps record is put side by side. Objects are not stored.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for number, names in enumerate(statistics):
        for name, dtype in names.items():
            if name not in ("tune", "in_warmup") and np.dtype(dtype) != object:
                found.setdefault(RENAMED.get(name, name), []).append((number, name))
    return found


def layout_of(
    model: pm.Model,
    trace: NDArray,
    statistics: Sequence[Mapping[str, Any]],
    *,
    keeps_tuning: bool,
    options: Mapping[str, Any],
) -> Layout:
    """Find out how PyMC lays out the draws of a model, by a result with one draw of nothing.

    Parameters
    ----------
    model : Model
    trace : NDArray
        An empty trace that has what is to be recorded; it is used up.
    statistics : list of dict
        As in :func:`recorded_by`.
    keeps_tuning : bool
        Whether draws made while tuning are kept.
    options : dict
        Options for ``pm.to_inference_data``.
    """
    trace.setup(1, 0, statistics)
    for values in trace.samples.values():
        values[...] = 0
    trace.draw_idx = 1
    groups = groups_of(pm.to_inference_data(MultiTrace([trace]), model=model, **options))
    posterior = groups["posterior"]
    columns = [
        Column("posterior", name, _little(values.dtype), values.shape[2:])
        for name, values in posterior.data_vars.items()
    ]
    found = recorded_by(statistics)
    for name, places in found.items():
        dtypes = [np.dtype(statistics[number][old]) for number, old in places]
        dtype = np.result_type(*(dtype.base for dtype in dtypes))
        shape = (*dtypes[0].shape, *([len(places)] if len(places) > 1 else []))
        columns.append(Column("sample_stats", name, _little(dtype), shape))
    statistics_group = groups["sample_stats"]
    others = set(statistics_group.data_vars) - set(found)
    groups["sample_stats"] = statistics_group.drop_vars(others)
    for column in columns:
        if "/" in column.name or column.name in ("", ".", ".."):
            raise ModelError(f"{column.name!r} cannot be the name of a variable in a store.")
    if keeps_tuning:
        columns += [column._replace(group=f"warmup_{column.group}") for column in columns]
    return Layout(columns, groups)


def _little(dtype: Any) -> str:
    """Return the name of a type of numbers as they are stored, the last byte first."""
    return str(np.dtype(dtype).newbyteorder("<").str)


def rows_per_chunk(columns: Iterable[Column], draws: int) -> int:
    """Return how many draws are in a chunk."""
    sizes = [column.n_bytes for column in columns if not column.group.startswith("warmup_")]
    bound = min(CHUNK_BYTES // max(*sizes, 1), BUFFER_BYTES // max(sum(sizes), 1))
    return max(min(bound, max(draws, MIN_ROWS)), 1)


# The empty store


def make_empty_store(path: Path, layout: Layout, plan: Mapping[str, Any]) -> dict[str, int]:
    """Make a Zarr store for the draws of a run, all of which are yet to be made.

    Parameters
    ----------
    path : Path
        A folder that does not exist.
    layout : Layout
    plan : dict
        The numbers of ``chains``, ``draws`` and draws for tuning, ``tune``, and the draws in a
        chunk, ``rows``.

    Returns
    -------
    dict
        The checksums of the files of data and labels, which stay as they are.
    """
    import zarr

    with warnings.catch_warnings():
        # That metadata in one place, and strings, are not in the specification of Zarr 3 yet.
        warnings.simplefilter("ignore")
        root = zarr.open_group(path, mode="w-", zarr_format=3)
        for name, group in layout.groups.items():
            if name not in OF_DRAWS:
                group.to_zarr(path, group=name, zarr_format=3, consolidated=False)
        for name in dict.fromkeys(column.group for column in layout.columns):
            draws = plan["tune"] if name.startswith("warmup_") else plan["draws"]
            template = layout.groups[name.removeprefix("warmup_")]
            columns = [column for column in layout.columns if column.group == name]
            _make_group(path, name, template, columns, plan, draws)
        for name in root.group_keys():
            root[name].attrs.update({"tuning_steps": plan["tune"]} if "post" in name else {})
        zarr.consolidate_metadata(path)
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "zarr.json"]
    return {file.relative_to(path).as_posix(): zlib.crc32(file.read_bytes()) for file in files}


def _make_group(
    path: Path,
    name: str,
    template: Any,
    columns: Sequence[Column],
    plan: Mapping[str, Any],
    draws: int,
) -> None:
    """Make a group of variables of which there is one value for each draw."""
    import zarr
    from zarr.codecs import BytesCodec, Crc32cCodec

    coordinates = template.drop_vars([*template.data_vars, "draw", "chain"])
    coordinates.to_zarr(path, group=name, zarr_format=3, consolidated=False)
    group = zarr.open_group(path, path=name, mode="r+")
    for dim, size in (("chain", plan["chains"]), ("draw", draws)):
        # Numbers of draws go on to the end of their file, so that more draws change none of them.
        n_files = max(-(-size // COORDINATE_ROWS), 1)
        coordinate = group.create_array(
            dim,
            shape=(n_files * COORDINATE_ROWS,),
            chunks=(COORDINATE_ROWS,),
            dtype="int64",
            dimension_names=(dim,),
            compressors=None,
        )
        coordinate[:] = np.arange(n_files * COORDINATE_ROWS)
        coordinate.resize((size,))
    for column in columns:
        group.create_array(
            column.name,
            shape=(plan["chains"], draws, *column.shape),
            chunks=(1, plan["rows"], *(max(n, 1) for n in column.shape)),
            dtype=np.dtype(column.dtype),
            fill_value=column.fill_value,
            dimension_names=template[column.name].dims,
            serializer=BytesCodec(endian="little"),
            compressors=[Crc32cCodec()],
        )


def resize(path: Path, layout: Layout, plan: Mapping[str, Any]) -> dict[str, int]:
    """Make room for another number of draws in a store; return what it is made of.

    The description of all arrays that is in the root is the one that is read. It is written last.
    """
    fresh = path / ".run" / f"grown-{uuid.uuid4().hex}"
    try:
        checksums = make_empty_store(fresh, layout, plan)
        files = [file for file in fresh.rglob("*") if file.is_file()]
        order = sorted(files, key=lambda file: (file.name == "zarr.json", -len(file.parts)))
        for file in order:
            place = path / file.relative_to(fresh)
            content = file.read_bytes()
            if not place.exists() or place.read_bytes() != content:
                write(place, content)
        sync(path)
        return checksums
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
