"""Where the draws of a run and its checkpoints are, and how it is known that they are whole.

A store is a Zarr store, which ArviZ and xarray open as any result, and a folder ``.run`` in it::

    run.zarr/posterior/theta/c/3/0/0    a chunk: draws of chain 3, with a checksum
    run.zarr/.run/run.json              what the run is: chains, tuning, seed, steps, data
    run.zarr/.run/3/checkpoint          where chain 3 goes on; how many of its draws count
    run.zarr/.run/3/progress.json       how it is doing, to be looked at
    run.zarr/.run/3/writer              who writes it
    run.zarr/.run/stop                  is there if somebody wants the run to stop

A commit writes the chunks that have changed, then the checkpoint, each of them at once. If it ends
in between, a chunk has draws that do not count yet after those that do. They are made again, and
are the same.
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymc_apm.errors import ModelError, StoreError, see
from pymc_apm.runs.files import read, refuse_links, sweep, sync, write
from pymc_apm.runs.layout import Column, Layout, make_empty_store, resize
from pymc_apm.runs.packing import Packed, pack

FORMAT = 1

MAX_CHAINS = 10**6
MAX_DRAWS = 10**12
MAX_SIZE = 10**9
"""More than that is in no run, or in no coordinate of one, and is taken for damage."""

CODECS = {"bytes", "crc32c", "vlen-utf8", "zstd", "gzip", "blosc"}
"""Codecs of Zarr that only ever make numbers and text of bytes."""


class Run(NamedTuple):
    """What a run is, as ``run.json`` has it.

    Attributes
    ----------
    id : str
        Tells its files from those of others.
    chains, draws, tune : int
        As in ``pm.sample``.
    rows : int
        How many draws are in a chunk.
    seed : list
        The name of a generator and the state of a seed.
    is_seed_given : bool
        Whether the user chose it.
    description : dict
        Model, data and steps.
    columns : list of Column
    versions : dict
    files : dict
        The checksums of the files of data and labels, by their paths in the store.
    """

    id: str
    chains: int
    draws: int
    tune: int
    rows: int
    seed: list[Any]
    is_seed_given: bool
    description: dict[str, Any]
    columns: list[Column]
    versions: dict[str, str]
    files: dict[str, int]


class Section(NamedTuple):
    """The draws of tuning, or those after it.

    Attributes
    ----------
    columns : list of Column
        What is kept of each draw.
    start, stop : int
        The number of its first draw, and of the first one after it.
    """

    columns: list[Column]
    start: int
    stop: int

    def n_rows(self, n_done: int) -> int:
        """Return how many of its draws there are when so many have been made."""
        return max(min(n_done, self.stop) - self.start, 0)


def crc32c(data: bytes) -> int:
    """Return the checksum that Zarr has in its chunks."""
    import google_crc32c

    return int(google_crc32c.value(data))


def check_packages() -> None:
    """Say what to install, where what a store needs is not there."""
    try:
        import google_crc32c
        from zarr.codecs import Crc32cCodec  # not in Zarr 2
    except ImportError as error:
        raise ModelError(
            f"Stores need Zarr 3 and google-crc32c ({error}): pip install 'pymc_apm[runs]'. "
            + see("runs")
        ) from error
    assert google_crc32c and Crc32cCodec


class Store:
    """The folder of a run.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if "://" in str(path):
            raise StoreError(f"A store is a folder, and {str(path)!r} is none. {see('runs')}")
        self.path = path = Path(path).expanduser().absolute()
        self.folder = path / ".run"

    def __str__(self) -> str:
        return f"The store {str(self.path)!r}"

    # The run

    @property
    def exists(self) -> bool:
        """Whether there is a run; an error if something else is in its place."""
        if (self.folder / "run.json").exists():
            return True
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise StoreError(
                f"{self} is not that of a run: something else is there. Give another path, or "
                f"remove it. {see('runs')}"
            )
        return False

    def create(self, run: Run, layout: Layout) -> None:
        """Make the store, all of it at once."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:12]}")
        try:
            files = make_empty_store(fresh, layout, run._asdict())
            Store(fresh).write_run(run._replace(files=files))
            with contextlib.suppress(OSError):
                self.path.rmdir()  # an empty folder may be there
            fresh.rename(self.path)
            sync(self.path.parent)
        except OSError as error:
            raise StoreError(f"{self} cannot be made: {error}.") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def write_run(self, run: Run) -> None:
        """Say what the run is."""
        text = json.dumps(run._asdict() | {"columns": [list(column) for column in run.columns]})
        checksum = hashlib.sha256(text.encode()).hexdigest()
        content = {"format": FORMAT, "sha256": checksum, "run": text}
        write(self.folder / "run.json", json.dumps(content).encode())
        sync(self.folder)

    def read_run(self) -> Run:
        """Return what the run is."""
        try:
            content = json.loads(read(self.folder / "run.json"))
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r:.20}, not {FORMAT}")
            if hashlib.sha256(content["run"].encode()).hexdigest() != content["sha256"]:
                raise ValueError("its checksum does not agree")
            run = Run(**json.loads(content["run"]))
            columns = [Column(g, n, str(np.dtype(d).str), tuple(s)) for g, n, d, s in run.columns]
            run = run._replace(columns=columns)
            _check_run(run)
        except FileNotFoundError:
            raise StoreError(
                f"{self} does not exist, or is not that of a run. {see('runs')}"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreError(f"{self} is damaged: .run/run.json is not valid ({error}).") from error
        return run

    def resize(self, run: Run, layout: Layout) -> None:
        """Make room for another number of draws; at no moment is it too small."""
        before = self.read_run()
        # Other versions of packages may write the same data in other bytes.
        self.write_run(before._replace(draws=min(before.draws, run.draws), files={}))
        files = resize(self.path, layout, run._asdict())
        self.write_run(run._replace(files=files))

    # Chains

    def chain_folder(self, chain: int) -> Path:
        """Return the folder of what is known of a chain."""
        return self.folder / str(chain)

    def sections(self, run: Run) -> list[Section]:
        """Return what is kept while tuning, and after."""
        tuning = [column for column in run.columns if column.group.startswith("warmup_")]
        after = [column for column in run.columns if not column.group.startswith("warmup_")]
        total = run.tune + run.draws
        return [Section(tuning, 0, run.tune), Section(after, run.tune, total)]

    def checkpoint(self, run: Run, chain: int) -> "Checkpoint | None":
        """Return where a chain goes on; None if it has yet to start."""
        path = self.chain_folder(chain) / "checkpoint"
        try:
            packed = Packed(read(path), f"{self}: .run/{chain}/checkpoint")
        except FileNotFoundError:
            return None
        checkpoint = Checkpoint(packed)
        if (checkpoint.run, checkpoint.chain) != (run.id, chain):
            raise StoreError(f"{self}: the checkpoint of chain {chain} is that of another run.")
        if not 0 <= checkpoint.n_done <= run.tune + run.draws:
            raise StoreError(f"{self}: the checkpoint of chain {chain} is of no draw of the run.")
        return checkpoint

    def write_checkpoint(self, chain: int, values: dict[str, Any]) -> None:
        """Commit: from here on, the chain goes on from these values."""
        folder = self.chain_folder(chain)
        write(folder / "checkpoint", pack(values))
        sync(folder)

    def n_done(self, run: Run, chain: int) -> int:
        """Return how many draws of a chain count, with those of tuning."""
        checkpoint = self.checkpoint(run, chain)
        return 0 if checkpoint is None else checkpoint.n_done

    # Chunks

    def chunk(self, column: Column, chain: int, number: int) -> Path:
        """Return the file of some draws of a chain."""
        place = [str(chain), str(number), *("0" for _ in column.shape)]
        return self.path.joinpath(column.group, column.name, "c", *place)

    def write_chunk(
        self, column: Column, chain: int, number: int, values: np.ndarray, durable: bool
    ) -> Path:
        """Write a chunk, all rows of it; return its file."""
        data = values.tobytes()
        path = self.chunk(column, chain, number)
        write(path, data, crc32c(data).to_bytes(4, "little"), durable=durable)
        return path

    def find_chunk(self, column: Column, run: Run, chain: int, number: int) -> Path:
        """Return the file of a chunk, which is there and has the length that it should."""
        path = self.chunk(column, chain, number)
        try:
            if path.stat().st_size != run.rows * column.n_bytes + 4:
                raise StoreError(f"{self} is damaged: {path} has not the length that it should.")
        except FileNotFoundError:
            raise StoreError(f"{self} is damaged: {path} is not there.") from None
        return path

    def read_chunk(self, column: Column, run: Run, chain: int, number: int) -> np.ndarray:
        """Return a chunk, whose checksum is compared."""
        path = self.find_chunk(column, run, chain, number)
        data = read(path)
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise StoreError(f"{self} is damaged: the checksum of {path} does not agree.")
        return np.frombuffer(data[:-4], column.dtype).reshape(run.rows, *column.shape)

    # Is it whole?

    def check(self, run: Run, *, reads_draws: bool = True) -> None:
        """Compare all checksums, of the draws those that count, and what Zarr is told of them.

        Parameters
        ----------
        run : Run
        reads_draws : bool
            Whether to read the draws, and not just to see that they are there.
        """
        refuse_links(self.path)
        self._check_metadata(run)
        for name, expected in run.files.items():
            self._check_file(self.path / name, expected)
        for chain in range(run.chains):
            checkpoint = self.checkpoint(run, chain)
            if checkpoint is None:
                continue
            for section, checksums in zip(self.sections(run), checkpoint.checksums, strict=True):
                if section.columns:
                    n_rows = section.n_rows(checkpoint.n_done)
                    self._check_chunks(run, section, chain, n_rows, checksums, reads_draws)

    def _check_file(self, path: Path, expected: int) -> None:
        try:
            found = zlib.crc32(read(path))
        except FileNotFoundError:
            raise StoreError(f"{self} is damaged: {path} is not there.") from None
        if found != expected:
            raise StoreError(f"{self} is damaged: the checksum of {path} does not agree.")

    def _check_chunks(
        self,
        run: Run,
        section: Section,
        chain: int,
        n_rows: int,
        checksums: np.ndarray,
        reads_draws: bool,
    ) -> None:
        n_chunks = -(-n_rows // run.rows)
        if checksums.shape != (len(section.columns), n_chunks):
            raise StoreError(f"{self} is damaged: chain {chain} has not the chunks that it should.")
        for column, expected in zip(section.columns, checksums, strict=True):
            for number in range(n_chunks if column.n_bytes else 0):
                if not reads_draws:
                    self.find_chunk(column, run, chain, number)
                    continue
                values = self.read_chunk(column, run, chain, number)
                n_counting = min(n_rows - number * run.rows, run.rows)
                if crc32c(values[:n_counting].tobytes()) != expected[number]:
                    raise StoreError(
                        f"{self} is damaged: {self.chunk(column, chain, number)} is not what was "
                        "committed, or is of another run."
                    )

    def arrays(self) -> dict[str, Any]:
        """Return what Zarr is told of each array, by its name.

        All of it is in one file, so that it is consistent while a store gets longer.
        """
        try:
            found = json.loads(read(self.path / "zarr.json"))
            nodes = found["consolidated_metadata"]["metadata"]
            return {name: n for name, n in nodes.items() if n["node_type"] == "array"}
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{self} is damaged: zarr.json is not valid ({error}).") from error

    def length(self, run: Run) -> int:
        """Return for how many draws there is room."""
        column = run.columns[0]
        return int(self.arrays()[f"{column.group}/{column.name}"]["shape"][1])

    def _check_metadata(self, run: Run) -> None:
        """Check what Zarr is told: nothing but numbers and text, and arrays of the right size."""
        found = self.arrays()
        columns = {f"{column.group}/{column.name}": column for column in run.columns}
        try:
            if missing := set(columns) - set(found):
                raise ValueError(f"it has no {missing.pop()}")
            length = self.length(run)
            # If its process died while it got longer, there is room for more.
            if not run.draws <= length <= MAX_DRAWS:
                raise ValueError(f"it has room for {length} draws")
            for name, array in found.items():
                codecs = {codec["name"] for codec in array["codecs"]}
                if not codecs <= CODECS:
                    raise ValueError(f"{name} has codecs {codecs}")
                column = columns.get(name)
                if column is None and np.prod(array["shape"], dtype=float) > MAX_SIZE:
                    raise ValueError(f"{name} has shape {array['shape']}")
                if column is not None:
                    draws = run.tune if column.group.startswith("warmup_") else length
                    if array["shape"] != [run.chains, draws, *column.shape]:
                        raise ValueError(f"{name} has shape {array['shape']}")
                    if np.dtype(array["data_type"]) != np.dtype(column.dtype):
                        raise ValueError(f"{name} is of type {array['data_type']!r:.50}")
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise StoreError(f"{self} is damaged: zarr.json is not valid ({error}).") from error

    def sweep(self) -> None:
        """Delete what processes that died left unfinished."""
        sweep(self.path)
        for path in self.folder.glob("grown-*"):
            shutil.rmtree(path, ignore_errors=True)

    # Who writes, and for how long

    @property
    def stop_file(self) -> Path:
        """The file whose presence ends the chains."""
        return self.folder / "stop"

    def claim(self, chain: int, writer: str) -> None:
        """Become the writer of a chain; whoever was it before ends when it looks."""
        write(self.chain_folder(chain) / "writer", writer.encode(), durable=False)

    def writer(self, chain: int) -> str | None:
        """Return who is the writer of a chain, "" if nobody was; None if it cannot be read."""
        try:
            return read(self.chain_folder(chain) / "writer").decode(errors="replace")
        except FileNotFoundError:
            return ""
        except StoreError:  # as file systems of a network have it now and then
            return None

    def order_stop(self) -> None:
        """Tell all chains to commit and end."""
        write(self.stop_file, b"", durable=False)

    def write_progress(self, chain: int, progress: Mapping[str, Any]) -> None:
        """Say how a chain is doing."""
        path = self.chain_folder(chain) / "progress.json"
        write(path, json.dumps(progress).encode(), durable=False)

    def progress(self, chain: int) -> dict[str, Any]:
        """Return how a chain is doing; nothing if that is not known."""
        try:
            found = json.loads(read(self.chain_folder(chain) / "progress.json"))
            return found if isinstance(found, dict) else {}
        except (FileNotFoundError, ValueError, StoreError):
            return {}


class Checkpoint:
    """Where a chain goes on.

    Attributes
    ----------
    n_done : int
        How many draws were made, with those of tuning.
    seconds : float
        How long they took.
    checksums : list of array
        Of the draws that count, for the draws of tuning and those after it: a row for each column,
        and in it a number for each chunk.
    """

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.run: str = packed.get("run")
        self.chain: int = packed.get("chain")
        self.n_done: int = packed.get("n_done")
        self.seconds: float = packed.get("seconds")
        self.checksums: Sequence[np.ndarray] = packed.get("checksums")


def _check_run(run: Run) -> None:
    """Refuse numbers that no run has, and names that are no names of files."""
    for value, most in ((run.chains, MAX_CHAINS), (run.draws, MAX_DRAWS), (run.rows, MAX_DRAWS)):
        if not isinstance(value, int) or not 0 < value <= most:
            raise ValueError(f"{value!r:.50} chains, draws or rows")
    if not isinstance(run.tune, int) or not 0 <= run.tune <= MAX_DRAWS:
        raise ValueError(f"{run.tune!r:.50} draws of tuning")
    for name in run.files:
        if name.startswith("/") or "\\" in name or ".." in name.split("/") or "\0" in name:
            raise ValueError(f"a file {name!r:.50}")
    for group, name, dtype, shape in run.columns:
        for part in (group, name):
            if "/" in part or "\\" in part or part in ("", ".", "..") or "\0" in part:
                raise ValueError(f"a variable {part!r:.50}")
        if np.dtype(dtype).kind not in "biufc":
            raise ValueError(f"{name} is of type {dtype}")
        if any(not isinstance(n, int) or n < 0 for n in shape):
            raise ValueError(f"{name} has shape {shape!r:.50}")
