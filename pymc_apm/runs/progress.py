"""What a person sees of a run: all chains, wherever they are."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pymc_apm.runs.store import Run, Store

INTERVAL = 0.5
"""Seconds from one look at the chains to the next."""

MANY = 16
"""Of more chains, all of them together are shown."""


@contextlib.contextmanager
def shown(store: Store, run: Run, is_wanted: bool) -> Iterator[None]:
    """Show how the chains of a run are doing, as they say themselves in its store."""
    if not is_wanted:
        yield
        return
    ended = threading.Event()
    with _bars() as bars:
        thread = threading.Thread(target=_watch, args=(store, run, bars, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
    )


def _watch(store: Store, run: Run, bars: Progress, ended: threading.Event) -> None:
    total = run.tune + run.draws
    is_each = run.chains <= MANY
    groups = [[k] for k in range(run.chains)] if is_each else [list(range(run.chains))]
    names = [f"Chain {k}" for k in range(run.chains)] if is_each else [f"{run.chains} chains"]
    tasks = [
        bars.add_task(name, total=total * len(group), told="")
        for name, group in zip(names, groups, strict=True)
    ]
    is_last = False
    while not is_last:
        is_last = ended.wait(INTERVAL)
        for task, group in zip(tasks, groups, strict=True):
            found = [store.progress(chain) for chain in group]
            n_done = sum(progress.get("n_done", 0) for progress in found)
            bars.update(task, completed=n_done, told=told(found))


def told(found: list[dict[str, Any]]) -> str:
    """Put the progress of some chains into words.

    >>> told([{"draws_per_second": 12.3, "n_evals": 6.2, "accepted": 1.0, "u_accepted": 0.5}])
    '12.3 draws/s, 6.2 evals, θ moves 100%, u moves 50%'
    """
    parts = []
    speeds = [p["draws_per_second"] for p in found if "draws_per_second" in p]
    if speeds:
        parts.append(f"{sum(speeds):.3g} draws/s")
    for name, text in (("n_evals", "{:.1f} evals"), ("accepted", "θ moves {:.0%}")):
        parts += _mean(found, name, text)
    parts += _mean(found, "u_accepted", "u moves {:.0%}")
    stuck = sum(p.get("accepted") == 0.0 for p in found)
    if stuck:
        parts.append(f"{stuck} do not move" if len(found) > 1 else "does not move")
    return ", ".join(parts)


def _mean(found: list[dict[str, Any]], name: str, text: str) -> list[str]:
    values = [progress[name] for progress in found if name in progress]
    return [text.format(sum(values) / len(values))] if values else []
