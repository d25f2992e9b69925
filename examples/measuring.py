"""Effective draws per second and per estimate: what defaults.py and scaling.py measure, and how.

A run is one chain. Seconds are CPU time of one thread between the end of tuning and the last draw,
so that neither compilation nor tuning counts. An estimate is an evaluation of the log-estimate; a
step of NUTS, which takes a gradient too, counts as one. A run is as good as its slowest quantity.
"""

import argparse
import gc
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from common import Record, ess, read_saved, save
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pymc_apm.errors import ModelError

Floats = NDArray[np.float64]
Quantities = Callable[[Any], dict[str, Floats]]
"""From the posterior group of a chain to the draws of what it is judged by, by name."""

FEW = 20
"""A run with fewer effective draws has not converged: its numbers mean nothing."""

DISAGREEMENT = 1.1
"""So has a method whose runs from different seeds have a larger R-hat than this."""


CHOICE = re.compile(r">*(APM\w+|NUTS): ")
"""How a message begins that tells which step was chosen."""


class Length(NamedTuple):
    """How long a chain is.

    Attributes
    ----------
    draws, tune : int
    limit : float
        Seconds after tuning at which it is stopped.
    """

    draws: int
    tune: int
    limit: float


class Sampler(NamedTuple):
    """A model, and what makes a step for it; None leaves the choice to ``pm.sample``."""

    model: pm.Model
    make_step: Callable[[], Any]


QUICK = Length(20, 20, 1.0)
"""For a test of the scripts."""


class Clock:
    """A callback of ``pm.sample`` that times the draws after tuning, and stops them at a limit."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._first: float | None = None
        self._tuned: float | None = None
        self._last = 0.0

    def __call__(self, trace: Any, draw: Any) -> None:
        self._last = time.process_time()
        if self._first is None:
            self._first = self._last
        if draw.tuning or self._tuned is None:
            self._tuned = self._last
        if self.seconds > self._limit:
            raise KeyboardInterrupt

    @property
    def tune_seconds(self) -> float:
        """CPU time of tuning."""
        return (self._tuned or 0.0) - (self._first or 0.0)

    @property
    def seconds(self) -> float:
        """CPU time after tuning."""
        return self._last - (self._tuned or 0.0)


class Messages(logging.Handler):
    """What PyMC and this package log: which steps were chosen, and whether they were compiled."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.texts.append(record.getMessage())


@contextmanager
def overheard() -> Iterator[Messages]:
    """Collect the messages of PyMC and of this package, instead of printing them."""
    loggers = [logging.getLogger(name) for name in ("pymc", "pymc.apm")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    messages = Messages()
    for logger in loggers:
        logger.handlers, logger.propagate = [messages], False
        logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def centred_squares(quantities: dict[str, Floats]) -> dict[str, Floats]:
    """Return the squares of quantities about their means: how well a chain knows its deviations."""
    return {f"{name}²": (draws - draws.mean()) ** 2 for name, draws in quantities.items()}


def components(posterior: Any, names: Iterable[str]) -> dict[str, Floats]:
    """Return the draws of each component of some variables of a chain."""
    found = {}
    for name in names:
        draws = np.asarray(posterior[name])[0]
        flat = draws.reshape(len(draws), -1).T
        labels = [name] if draws.ndim == 1 else [f"{name}[{i}]" for i in range(len(flat))]
        found |= dict(zip(labels, flat, strict=True))
    return found


def parameters_and_squares(model: pm.Model) -> Quantities:
    """Return what judges a run by all parameters of the model and their centred squares."""
    names = [variable.name for variable in model.free_RVs]

    def quantities(posterior: Any) -> dict[str, Floats]:
        found = components(posterior, names)
        return found | centred_squares(found)

    return quantities


def measure(
    labels: Record,
    samplers: Mapping[str, Sampler],
    quantities: Quantities,
    length: Length,
    options: argparse.Namespace,
    more: Callable[[Any], Record] = lambda idata: {},
) -> list[Record]:
    """Run methods seed by seed, so that a busy machine is unfair to none of them.

    Before the first run of a method there is a very short one, to compile what has to be.

    Parameters
    ----------
    labels : dict
        What all records begin with: which model it is.
    samplers : mapping
        By the name of the method.
    quantities : callable
    length : Length
        Of a chain, if the options do not say otherwise.
    options : Namespace
    more : callable, optional
        What to add to the record of a run, from its result.
    """
    if options.quick:
        length = QUICK
    given = {key: getattr(options, key) for key in ("draws", "tune", "limit")}
    length = length._replace(**{key: value for key, value in given.items() if value is not None})
    model_in_words = " ".join(map(str, labels.values()))
    steps: dict[str, Any] = {}
    records = []
    for seed in options.seeds:
        for method, (model, make_step) in samplers.items():
            if method not in steps:
                try:
                    with model:
                        steps[method] = make_step()
                except ModelError as error:
                    print(f"{model_in_words}, {method} does not apply: {error}", flush=True)
                    steps[method] = error
                else:
                    run(model, steps[method], Length(10, 10, 1.0), seed, quantities)
                    gc.collect()
                    gc.freeze()  # what compilers leave behind is not to be looked through again
            if isinstance(steps[method], ModelError):
                continue
            record, idata = run(model, steps[method], length, seed, quantities)
            record = {**labels, "method": method, **record, **more(idata)}
            save(options, [record], add=True)
            records.append(record)
            print(
                f"{model_in_words}, {method}, seed {seed}: {record['draws']} draws in "
                f"{record['seconds']:.2f} s, ESS {record['ess']:.0f} ({record['slowest']})",
                flush=True,
            )
    return records


def run(
    model: pm.Model, step: Any, length: Length, seed: int, quantities: Quantities
) -> tuple[Record, Any]:
    """Run a chain and measure it; ``step=None`` leaves the choice to ``pm.sample``.

    Returns
    -------
    record : dict
    idata : InferenceData or DataTree
    """
    clock = Clock(length.limit)
    with model, overheard() as messages, threadpool_limits(1):
        idata = pm.sample(
            length.draws,
            tune=length.tune,
            step=step,
            chains=1,
            cores=1,
            random_seed=seed,
            callback=clock,
            progressbar=False,
            compute_convergence_checks=False,
        )
    found = quantities(idata["posterior"])
    effective = {name: effective_draws(draws) for name, draws in found.items()}
    slowest = min(effective, key=lambda name: effective[name])
    stats = idata["sample_stats"]
    counted = [np.asarray(stats[name]).sum() for name in ("n_evals", "n_steps") if name in stats]
    record: Record = {
        "seed": seed,
        "pymc": pm.__version__,
        "how": how_it_ran(step, messages.texts),
        "chosen": [text for text in messages.texts if CHOICE.match(text)] if step is None else [],
        "tune": length.tune,
        "draws": len(next(iter(found.values()))),
        "tune_seconds": clock.tune_seconds,
        "seconds": clock.seconds,
        "evals": int(sum(counted)),
        "ess": effective[slowest],
        "slowest": slowest,
        "means": {name: float(draws.mean()) for name, draws in found.items()},
        "variances": {name: float(draws.var()) for name, draws in found.items()},
    }
    return record, idata


def effective_draws(draws: Floats) -> float:
    """Return the effective number of draws of a chain; 0 if it never moved."""
    if len(draws) < 8 or np.ptp(draws) == 0.0:
        return 0.0
    return float(np.nan_to_num(ess(draws[None, :, None])[0]))


def how_it_ran(step: Any, messages: Sequence[str]) -> str:
    """Say whether steps of this package ran in compiled code."""
    steps = step if isinstance(step, list) else [step]
    is_compiled = any(getattr(part, "is_compiled", False) for part in steps) or any(
        " is compiled, in " in text for text in messages
    )
    return "compiled" if is_compiled else "Python"


# Records of many runs


def read(path: Path) -> list[Record]:
    """Read the records of runs of a file; none if there is no such file."""
    return [record for record in read_saved(path)["records"] if "seed" in record]


def grouped(records: Iterable[Record], key: str) -> dict[Any, list[Record]]:
    """Return records by the value that they have for a key, in the order of their first ones."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    return groups


def summary(records: Sequence[Record]) -> Record:
    """Sum up the runs of one method on one model: rates over all seeds, and their ranges."""
    total = {key: sum(record[key] for record in records) for key in ("draws", "evals", "ess")}
    seconds = sum(record["seconds"] for record in records)
    per_second = [record["ess"] / record["seconds"] for record in records]
    per_eval = [1000 * record["ess"] / record["evals"] for record in records]
    has_converged = min(r["ess"] for r in records) >= FEW and disagreement(records) < DISAGREEMENT
    return {
        "how": records[0]["how"],
        "chosen": records[0]["chosen"],
        "seeds": len(records),
        "draws": total["draws"],
        "evals_per_draw": total["evals"] / total["draws"],
        "us_per_draw": 1e6 * seconds / total["draws"],
        "tune_seconds": sum(record["tune_seconds"] for record in records) / len(records),
        "ess": total["ess"],
        "per_second": total["ess"] / seconds,
        "per_second_range": f"{min(per_second):.3g}..{max(per_second):.3g}",
        "per_1000_evals": 1000 * total["ess"] / total["evals"],
        "per_1000_evals_range": f"{min(per_eval):.3g}..{max(per_eval):.3g}",
        "per_1000_draws": 1000 * total["ess"] / total["draws"],
        "slowest": ", ".join(sorted({record["slowest"] for record in records})),
        "has_converged": has_converged,
        "note": "" if has_converged else "does not converge",
    }


def disagreement(records: Sequence[Record]) -> float:
    """Return the largest R-hat of runs from different seeds, over all quantities."""
    if len(records) < 2:
        return 1.0
    ratios = []
    for name in records[0]["means"]:
        means = np.array([record["means"][name] for record in records])
        within = np.mean([record["variances"][name] for record in records])
        ratios.append(means.var(ddof=1) / within if within > 0.0 else np.inf)
    return float(np.sqrt(1.0 + max(ratios)))


def seed_list(text: str) -> list[int]:
    """Read comma-separated seeds."""
    return [int(seed) for seed in text.split(",")]


def parser(description: str, models: str) -> argparse.ArgumentParser:
    """Return the options that both scripts take."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("--only", help=f"comma-separated {models}; all if not given")
    options.add_argument("--methods", help="comma-separated names of methods; all if not given")
    options.add_argument("--draws", type=int, help="draws of a chain, if not as many as planned")
    options.add_argument("--tune", type=int, help="tuning draws, if not as many as planned")
    options.add_argument("--limit", type=float, help="seconds of a chain after tuning")
    options.add_argument(
        "--seeds", type=seed_list, default="1,2,3", help="comma-separated; a chain for each"
    )
    options.add_argument("--quick", action="store_true", help="run very short chains")
    options.add_argument("--save", type=Path, help="add what is measured to this file of JSON")
    options.add_argument("--table", type=Path, help="measure nothing; print what is in this file")
    return options


def parse(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line.

    What can be compiled is compiled when its step is made, as a long run would do sooner or later.
    """
    arguments = options.parse_args()
    os.environ.setdefault("PYMC_APM_COMPILE", "0" if arguments.quick else "1")
    return arguments
