"""What the example scripts share: options, one record per method, a table."""

import argparse
import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
from numpy.typing import NDArray

import pymc_apm as apm
from pymc_apm.diagnostics.sticking import runs_of_draws

Record = dict[str, Any]


class Run(NamedTuple):
    """One method's run: what it returned and what it cost."""

    method: str
    idata: Any
    seconds: float


def parser(description: str, *, draws: int, tune: int, chains: int) -> argparse.ArgumentParser:
    """Return the options that every example script takes."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("--methods", help="comma-separated names of methods; all if not given")
    options.add_argument("--draws", type=int, default=draws, help="draws per chain")
    options.add_argument("--tune", type=int, default=tune, help="tuning draws per chain")
    options.add_argument("--chains", type=int, default=chains)
    options.add_argument("--seed", type=int, default=20160509)
    options.add_argument("--full", action="store_true", help="run at the paper's full length")
    options.add_argument(
        "--save", type=Path, help="write one record per method, and what made them, to this file"
    )
    return options


def choose(methods: Iterable[str], wanted: str | None) -> list[str]:
    """Return the methods that the user asked for, in words if there is no such method."""
    methods = list(methods)
    if wanted is None:
        return methods
    chosen = [name.strip() for name in wanted.split(",")]
    unknown = [name for name in chosen if name not in methods]
    if unknown:
        raise SystemExit(f"unknown method: {', '.join(unknown)}; there is {', '.join(methods)}")
    return chosen


def sample(
    method: str,
    model: pm.Model,
    make_step: Callable[[], Any],
    *,
    store: Path | None = None,
    **sample_kwargs: Any,
) -> Run:
    """Run one method in one process, so that times are comparable; in a store if one is given.

    The time is that of this call: of a run that goes on in its store, only what was left to do.
    """
    logging.getLogger("pymc").setLevel(logging.ERROR)
    print(f"{method}: sampling", flush=True)
    if store is not None:
        sample_kwargs["store"] = store / f"{method.replace(' ', '_')}.zarr"
    with model:
        step = make_step()
        start = time.process_time()
        idata = apm.sample(step=step, cores=1, compute_convergence_checks=False, **sample_kwargs)
    return Run(method, idata, time.process_time() - start)


def draws_of(run: Run, name: str) -> NDArray[np.float64]:
    """Return the draws of a variable with shape (chain, draw, component)."""
    values = np.asarray(run.idata["posterior"][name])
    return values.reshape(*values.shape[:2], -1)


def statistic(run: Run, name: str) -> NDArray[np.float64] | None:
    """Return a statistic with shape (chain, draw), or nothing if the method has none."""
    stats = run.idata["sample_stats"]
    return np.asarray(stats[name], dtype=float) if name in stats else None


def mean_statistic(run: Run, *names: str) -> float | None:
    """Return the mean of the first of some statistics that the method records."""
    for name in names:
        values = statistic(run, name)
        if values is not None:
            return float(values.mean())
    return None


def ess(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bulk effective sample size of each component, over all chains."""
    return np.array([float(az.ess(component)) for component in np.moveaxis(draws, -1, 0)])


def longest_stuck_run(draws: NDArray[np.float64]) -> int:
    """Return the largest number of draws in a row, of any chain, that repeat the one before."""
    return max(runs.longest for runs in runs_of_draws(draws))


def print_table(records: Sequence[Record], columns: Sequence[tuple[str, str, str]]) -> None:
    """Print records as a table; a column is a key, a heading and a format."""
    rows = [[heading for _, heading, _ in columns]]
    for record in records:
        values = [(record.get(key), form) for key, _, form in columns]
        rows.append(["-" if value is None else format(value, form) for value, form in values])
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    print()
    for number, row in enumerate(rows):
        first, *others = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join([first, *others]))
        if number == 0:
            print("-" * (sum(widths) + 2 * (len(widths) - 1)))
    print()


def save(
    arguments: argparse.Namespace,
    records: Sequence[Record],
    *,
    add: bool = False,
    instead_of: Callable[[Record], bool] | None = None,
) -> None:
    """Write records to the file that was asked for, with all that it takes to make them again.

    Pages of the documentation take the numbers of their tables from such files, in docs/results.

    Parameters
    ----------
    arguments : Namespace
        With the path as ``save``; None writes nothing.
    records : sequence of dict
    add : bool, optional
        Add to what is in the file.
    instead_of : callable, optional
        Says which records of the file these replace.
    """
    path: Path | None = arguments.save
    if path is None:
        return
    script = Path(sys.argv[0]).name
    made_by = {
        "command": shlex.join(["python", f"examples/{script}", *sys.argv[1:]]),
        "settings": {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(arguments).items()
        },
        "versions": {name: version(name) for name in ("pymc", "pytensor", "arviz", "numpy")},
    }
    content = read_saved(path) if add else {"made_by": [], "records": []}
    if made_by not in content["made_by"]:
        content["made_by"].append(made_by)
    if instead_of is not None:
        content["records"] = [r for r in content["records"] if not instead_of(r)]
    content["records"] += records
    path.write_text(json.dumps(content, indent=1) + "\n")
    if not add:
        print(f"wrote {path}")


def read_saved(path: Path) -> dict[str, Any]:
    """Return what ``save`` wrote to a file; nothing if there is no such file."""
    if not path.exists():
        return {"made_by": [], "records": []}
    return dict(json.loads(path.read_text()))
