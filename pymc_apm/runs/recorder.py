"""The trace of a chain, which writes draws and commits as they come."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pymc.backends.ndarray import NDArray
from pymc.step_methods.compound import flatten_steps

from pymc_apm.runs.files import sync
from pymc_apm.runs.layout import RENAMED, Column, recorded_by
from pymc_apm.runs.store import Checkpoint, Run, Store, crc32c
from pymc_apm.types import Point

LOOK = 0.5
"""Seconds from one look at whether to stop to the next."""

RECENT = 100
"""The number of draws that progress is told of."""

HIDDEN = ("divergences",)
"""Counts that steps of PyMC record and do not have in their state."""

interrupted = threading.Event()
"""Set by Ctrl-C where a chain runs in the process of the user."""


class Ended(BaseException):
    """Ends a call of ``pm.sample`` from within: the chain is at its end, or is to stop."""


class Recorder(NDArray):
    """A trace that keeps the draws of one chunk, and has them written to a store.

    PyMC makes a copy of it for its chain. All that changes is in ``writer``, which the copy shares.
    """

    writer: "Writer"

    def setup(self, draws: int, chain: int, sampler_vars: Any = None) -> None:
        """Take the arrays of the writer to record draws in."""
        super(NDArray, self).setup(draws, chain, sampler_vars)
        self.chain, self.draws = chain, draws
        self.samples, self._stats = self.writer.arrays(self, sampler_vars)

    def record(self, point: Point, sampler_stats: Any = None, *, in_warmup: bool) -> None:
        """Record a draw."""
        writer = self.writer
        self.draw_idx = writer.row
        super().record(point, sampler_stats, in_warmup=in_warmup)
        writer.row += 1
        if writer.row >= writer.end or time.monotonic() >= writer.next_look:
            writer.look(point)

    def close(self) -> None:
        """Do not let PyMC take Ctrl-C for the end of the chain."""
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            if self.writer.status == "running":
                self.writer.status = "stopped"
            raise Ended from None


class Writer:
    """Writes the draws of a chain and its checkpoints.

    Parameters
    ----------
    store : Store
    run : Run
    chain : int
    step : BlockedStep or CompoundStep
        All steps of the run, whose state is committed.
    checkpoint : Checkpoint or None
        Where the chain goes on.
    name : str
        Who writes.
    every : float
        Seconds from one commit to the next.
    check : callable
        ``check(point)`` returns a number by which another model can be told.
    parent : int or None
        The process without which the chain is not to go on.

    Attributes
    ----------
    row, end : int
        Where in the buffers the next draw is recorded, and where this ends.
    next_look : float
        When to look at what is to be done.
    status : str
    ends_late : bool
        Whether the end is left to somebody who is called after the draw was recorded.
    """

    row: int
    end: int
    ends_late = False
    status: Literal["running", "done", "stopped", "replaced"] = "running"

    def __init__(
        self,
        store: Store,
        run: Run,
        chain: int,
        step: Any,
        checkpoint: Checkpoint | None,
        *,
        name: str,
        every: float,
        check: Callable[[Point], float | None],
        parent: int | None,
    ) -> None:
        self.store, self.run, self.chain, self.step = store, run, chain, step
        self._name, self._every, self._check, self._parent = name, every, check, parent
        self._sections = store.sections(run)
        self._buffers = {
            (column.group, column.name): np.empty((run.rows, *column.shape), column.dtype)
            for column in self._sections[1].columns
        }
        self._checksums: list[list[list[int]]] = [[[] for _ in s.columns] for s in self._sections]
        self._seconds = 0.0 if checkpoint is None else checkpoint.seconds
        self.n_before = 0 if checkpoint is None else checkpoint.n_done
        self._n_committed = self.n_before
        self._unsynced: set[Path] = set()
        self._begin(self.n_before)
        if checkpoint is not None:
            self._fill(checkpoint)
        self._began = self._last_commit = self.next_look = time.monotonic()
        # A thousand chains look a hundred times a second, all together.
        self._interval = min(every, max(LOOK, run.chains / 100))

    def _buffer(self, column: Column) -> np.ndarray:
        return self._buffers[column.group.removeprefix("warmup_"), column.name]

    def _begin(self, n_done: int) -> None:
        """Go on after some draws: in a chunk, which ends where its file does or its section."""
        self._number = int(n_done >= self.run.tune)
        section = self._sections[self._number]
        self._chunk, self.row = divmod(n_done - section.start, self.run.rows)
        self._n_before_chunk = n_done - self.row
        self.end = min(self.run.rows, section.stop - self._n_before_chunk)
        for column in self._sections[1].columns:
            self._buffer(column)[self.row :] = column.fill_value

    def _fill(self, checkpoint: Checkpoint) -> None:
        """Read the draws of the chunk that the chain goes on in."""
        self._checksums = [[list(map(int, row)) for row in rows] for rows in checkpoint.checksums]
        for column in self._sections[self._number].columns if self.row else ():
            if column.n_bytes:
                values = self.store.read_chunk(column, self.run, self.chain, self._chunk)
                self._buffer(column)[: self.row] = values[: self.row]

    def arrays(self, trace: Any, sampler_vars: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return where PyMC is to record: in our buffers, or in scratch what is not kept."""
        rows = self.run.rows
        samples = {
            name: self._buffers["posterior", name]
            if ("posterior", name) in self._buffers
            else np.empty((rows, *shape), trace.var_dtypes[name])
            for name, shape in trace.var_shapes.items()
        }
        recorded = recorded_by(sampler_vars)
        statistics: list[dict[str, Any]] = []
        for number, names in enumerate(sampler_vars):
            statistics.append({name: np.zeros(rows, dtype) for name, dtype in names.items()})
            for old in names:
                name = RENAMED.get(old, old)
                places = recorded.get(name, [])
                if (number, old) in places:
                    buffer = self._buffers["sample_stats", name]
                    is_alone = len(places) == 1
                    part = buffer if is_alone else buffer[:, places.index((number, old))]
                    statistics[-1][old] = part
        return samples, statistics

    # Looking

    def look(self, point: Point) -> None:
        """See what is to be done after a draw: write a chunk, commit, end."""
        n_done = self._n_before_chunk + self.row
        is_full, is_end = self.row >= self.end, n_done == self.run.tune + self.run.draws
        now = time.monotonic()
        is_due = is_end or now >= self._last_commit + self._every
        looks = is_due or now >= self.next_look
        if looks:
            self.next_look = now + self._interval
            self._see_orders()
            is_due = is_due or self.status == "stopped"
        if (is_full or is_due) and self.status != "replaced":
            self._write_rows()
            if is_due:
                self._commit(n_done, point)
        if is_end and self.status == "running":
            self.status = "done"  # with its commit, before which Ctrl-C may come
        if looks and self.status != "replaced":
            self._tell(n_done, now)
        if is_full and not is_end:
            self._begin(n_done)
        if self.status != "running" and not self.ends_late:
            raise Ended

    def _see_orders(self) -> None:
        if self.store.writer(self.chain) not in (self._name, None):
            self.status = "replaced"
        elif (
            interrupted.is_set()
            or self.store.stop_file.exists()
            or (self._parent is not None and os.getppid() != self._parent)
        ):
            self.status = "stopped"

    def _write_rows(self) -> None:
        """Write the chunk that draws are recorded in.

        It is made sure of at the next commit; but at once if it replaces one with draws that count.
        """
        durable = self._n_before_chunk < self._n_committed
        columns = self._sections[self._number].columns
        for column, checksums in zip(columns, self._checksums[self._number], strict=True):
            values = self._buffer(column)
            if column.n_bytes:
                path = self.store.write_chunk(column, self.chain, self._chunk, values, durable)
                self._unsynced.add(path)
            checksums[self._chunk :] = [crc32c(values[: self.row].tobytes())]

    def _commit(self, n_done: int, point: Point) -> None:
        """Say where the chain goes on, when all draws before it are on disk."""
        for path in sorted(self._unsynced):
            sync(path)
        for folder in sorted({path.parent for path in self._unsynced}):
            sync(folder)
        self._unsynced.clear()
        steps = flatten_steps(self.step)
        self.store.write_checkpoint(
            self.chain,
            {
                "run": self.run.id,
                "chain": self.chain,
                "n_done": n_done,
                "seconds": self._seconds + time.monotonic() - self._began,
                "checksums": [np.array(rows, np.uint32) for rows in self._checksums],
                "point": {name: np.asarray(value) for name, value in point.items()},
                "state": self.step.sampling_state,
                "hidden": [{n: getattr(s, n) for n in HIDDEN if hasattr(s, n)} for s in steps],
                "check": self._check(point),
            },
        )
        self._last_commit, self._n_committed = time.monotonic(), n_done

    def _tell(self, n_done: int, now: float) -> None:
        """Say how the chain is doing."""
        recent = slice(max(self.row - RECENT, 0), self.row)
        means = {}
        for name in ("n_evals", "accepted", "u_accepted"):
            buffer = self._buffers.get(("sample_stats", name))
            if buffer is not None and self.row:
                rows = buffer[recent].astype(float).reshape(recent.stop - recent.start, -1)
                means[name] = float(rows.sum(axis=1).mean() if name == "n_evals" else rows.mean())
        seconds = max(now - self._began, 1e-9)
        self.store.write_progress(
            self.chain,
            {
                "n_done": n_done,
                "draws_per_second": (n_done - self.n_before) / seconds,
                "seconds": self._seconds + seconds,
                "status": self.status,
                **means,
            },
        )
