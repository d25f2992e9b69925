"""``apm.sample``: ``pm.sample`` whose draws are in a store, and whose chains may be elsewhere."""

import concurrent.futures
import json
import logging
import os
import uuid
from typing import Any

import pymc as pm
from pymc.stats.convergence import (
    SamplerWarning,
    WarningType,
    log_warnings,
    run_convergence_checks,
)

from pymc_apm._compat import default_tune
from pymc_apm.diagnostics.problems import problems
from pymc_apm.errors import ModelError, StoreError, see
from pymc_apm.runs.chain import Job, check_model
from pymc_apm.runs.files import locked
from pymc_apm.runs.layout import Layout, layout_of, rows_per_chunk
from pymc_apm.runs.plan import Setup, accepted_by_pymc, describe, like, make_setup, versions
from pymc_apm.runs.progress import shown
from pymc_apm.runs.reading import opened
from pymc_apm.runs.seeds import SeedOfRun, seed_of
from pymc_apm.runs.store import Run, Store, check_packages
from pymc_apm.runs.tasks import Elsewhere, LocalProcesses, run_elsewhere, run_here
from pymc_apm.validation import positive_integer

PATIENCE = 5.0
"""Seconds to wait for another process that writes the store: the end of one that was killed."""

_log = logging.getLogger("pymc.apm")

REFUSED: dict[str, tuple[Any, ...]] = {
    "trace": (None,),
    "return_inferencedata": (True,),
    "keep_warning_stat": (False,),
    "nuts_sampler": (None, "pymc"),
    "nuts_sampler_kwargs": (None,),
    "backend": (None,),
}
"""Options of ``pm.sample`` that a store has no use for, and the values that they may have."""


def sample(
    draws: int = 1000,
    *,
    tune: int | None = None,
    chains: int | None = None,
    store: str | os.PathLike[str] | None = None,
    executor: concurrent.futures.Executor | None = None,
    every: float = 60.0,
    cores: int | None = None,
    random_seed: Any = None,
    step: Any = None,
    model: pm.Model | None = None,
    progressbar: Any = True,
    quiet: bool = False,
    **kwargs: Any,
) -> Any:
    """Sample as :func:`pymc.sample` does, into a store, so that the run survives.

    The draws are those of ``pm.sample`` with the same seed. The same call again goes on where the
    store ends, with the same draws as if nothing had happened; with a larger number of ``draws`` it
    adds draws; of a run that has ended it returns the result. A call with another model, other data
    or steps, or another number of chains is refused.

    Parameters
    ----------
    draws, tune, chains, cores, random_seed, step, model, progressbar, quiet
        As in :func:`pymc.sample`. Where a store is there already, ``tune``, ``chains`` and
        ``random_seed`` may be left out.
    store : str, optional
        The path of a folder for the draws and all that it takes to go on: a Zarr store, which ArviZ
        and xarray can open. Without it, this is ``pm.sample``.
    executor : concurrent.futures.Executor, optional
        Runs the chains. ``client.get_executor()`` of Dask runs them on a cluster, where all workers
        must see the store under the same path. By default, processes of this machine run them, as
        many as ``cores``.
    every : float
        Seconds from one commit of a chain to the next: what is lost at the most when it is killed.
    **kwargs
        All other options of ``pm.sample``, but for ``trace``, ``backend``, those for other samplers
        and the log-likelihood of ``idata_kwargs``. A ``callback`` is called where the chain runs.

    Returns
    -------
    InferenceData or DataTree
        As ``pm.sample`` returns it, opened from the store and not loaded.

    Raises
    ------
    StoreError
        If the store is damaged, in use, or of another run, or a chain cannot be run.
    RunStopped
        If the run was stopped, by :func:`stop_run` or by Ctrl-C.

    See Also
    --------
    open_run : Look at a run while it goes on.
    stop_run : Stop it.

    Examples
    --------
    >>> import pymc as pm, pymc_apm as apm, tempfile
    >>> with pm.Model():
    ...     theta = pm.Normal("theta")
    ...     apm.Potential("log_lik", theta * apm.StandardNormal("u", shape=()))
    ...     store = tempfile.mkdtemp()
    ...     options = {"chains": 2, "cores": 1, "store": store, "quiet": True}
    ...     idata = apm.sample(20, tune=10, random_seed=1, **options)
    ...     longer = apm.sample(30, **options)
    log_lik
    >>> longer.posterior["theta"].shape
    (2, 30)
    """
    common = {
        **{"tune": tune, "chains": chains, "cores": cores, "random_seed": random_seed},
        **{"step": step, "model": model},
    }
    if store is None:
        if executor is not None:
            raise ModelError(
                "Chains that run elsewhere hand over their draws by a store: give store=, a path "
                f"that all workers see. {see('runs')}"
            )
        given = {name: value for name, value in common.items() if value is not None}
        return pm.sample(draws, progressbar=progressbar, quiet=quiet, **given, **kwargs)
    for name, allowed in REFUSED.items():
        if name in kwargs and kwargs.pop(name) not in allowed:
            raise ModelError(f"apm.sample with a store takes no {name}. {see('runs')}")
    draws = positive_integer("draws of apm.sample", draws)
    if not every >= 0:
        raise ModelError(f"every must be a number of seconds, not {every!r}.")
    check_packages()
    where = Store(store)
    options = {name: kwargs.pop(name) for name in list(kwargs) if name in accepted_by_pymc()}
    is_shown = bool(progressbar) and not quiet
    checks = options.pop("compute_convergence_checks", True)
    mp_ctx = options.pop("mp_ctx", None)
    setup, layout = _prepare(where, draws, options, kwargs, **common)
    busy = f"{where} is in use: another process samples into it."
    with locked(where.folder / "lock", seconds=PATIENCE, otherwise=busy):
        run = _resized(where, draws, layout, setup)
        where.stop_file.unlink(missing_ok=True)
        jobs = [
            Job(str(where.path), chain, every)
            for chain in range(run.chains)
            if where.n_done(run, chain) < run.tune + run.draws
        ]
        _run(setup, where, run, jobs, executor, cores, mp_ctx, is_shown)
        _check_end(where, run)
    result = opened(where, run, draws)
    _warn(result, setup.model, checks=checks, quiet=quiet)
    return result


def _prepare(
    store: Store,
    draws: int,
    options: dict[str, Any],
    step_options: dict[str, Any],
    *,
    tune: int | None,
    chains: int | None,
    cores: int | None,
    random_seed: Any,
    step: Any,
    model: pm.Model | None,
) -> tuple[Setup, Layout]:
    """Make the store of a run, or compare the run with the one that is there."""
    from pymc.sampling.parallel import _cpu_count

    model = pm.modelcontext(model)
    old = store.read_run() if store.exists else None
    if chains is None:
        chains = max(2, cores or min(4, _cpu_count())) if old is None else old.chains
    chains = positive_integer("chains of apm.sample", chains)
    is_stored = old is not None and random_seed is None
    seed = SeedOfRun(*old.seed) if old is not None and is_stored else seed_of(random_seed)
    if "target_accept" in step_options:
        accept = {"target_accept": step_options.pop("target_accept")}
        step_options["nuts"] = step_options.get("nuts", {}) | accept
    discards = options.pop("discard_tuned_samples", True)
    idata_options = dict(options.pop("idata_kwargs", None) or {})
    for name in ("log_likelihood", "log_prior"):
        if idata_options.pop(name, False):
            raise ModelError(
                f"apm.sample with a store does not compute the {name}: leave it out of "
                f"idata_kwargs, and call pm.compute_{name} with the result. {see('runs')}"
            )
    names = ["init", "n_init", "jitter_max_retries"]
    nuts_options = {name: options[name] for name in names if name in options}
    setup = make_setup(
        model,
        step=step,
        chains=chains,
        seed=seed,
        var_names=options.get("var_names"),
        initvals=options.get("initvals"),
        callback=options.get("callback"),
        compile_kwargs=options.get("compile_kwargs"),
        nuts_options=nuts_options,
        step_options=step_options,
    )
    if tune is None:
        tune = default_tune(setup.step) if old is None else old.tune
    tune = positive_integer("tune of apm.sample", tune, minimum=0)
    layout = layout_of(
        model,
        like(setup.trace),
        setup.step.stats_dtypes,
        keeps_tuning=not discards and tune > 0,
        options=idata_options,
    )
    run = Run(
        id=uuid.uuid4().hex,
        chains=chains,
        draws=draws,
        tune=tune,
        rows=rows_per_chunk(layout.columns, draws),
        seed=list(seed),
        is_seed_given=random_seed is not None,
        description=describe(setup, layout.groups),
        columns=layout.columns,
        versions=versions(),
        files={},
    )
    if old is None:
        store.create(run, layout)
    else:
        _compare(store, old, run)
    return setup, layout


def _compare(store: Store, old: Run, new: Run) -> None:
    """Refuse to go on with a run that is another one."""
    differences = [
        f"it has {before} {name}, not {now}"
        for name, before, now in (
            ("chains", old.chains, new.chains),
            ("draws of tuning", old.tune, new.tune),
        )
        if before != now
    ]
    if json.loads(json.dumps(new.seed)) != old.seed:
        differences.append("its random_seed is another one (leave it out to go on)")
    for key, now in new.description.items():
        before = old.description.get(key)
        if before != now:
            differences.append(f"its {key} differ: {_difference(before, now)}")
    if old.columns != new.columns:
        names = {c.group + "/" + c.name for c in {*old.columns} ^ {*new.columns}}
        differences.append(f"other variables were recorded: {', '.join(sorted(names))}")
    if differences:
        raise StoreError(
            f"{store} is that of another run: {'; '.join(differences)}. Give another path for a "
            f"new run. {see('runs')}"
        )
    changed = [name for name in new.versions if old.versions.get(name) != new.versions[name]]
    if changed:
        told = ", ".join(f"{n} {old.versions.get(n)} (now {new.versions[n]})" for n in changed)
        _log.warning(
            f"{store} was made with {told}. The chains go on, and are as valid, but may not be the "
            "same to the last digit as if they had not been interrupted."
        )


def _difference(before: Any, now: Any) -> str:
    """Say where two descriptions differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return ", ".join(f"{key}: {_difference(before.get(key), now.get(key))}" for key in keys)
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        return ", ".join(_difference(first, second) for first, second in pairs if first != second)
    return f"{before!r:.80} was there, {now!r:.80} is given"


def _resized(store: Store, draws: int, layout: Layout, setup: Setup) -> Run:
    """Check the store, and make it as long as is wanted now; it never gets shorter than a chain."""
    run = store.read_run()
    store.sweep()
    store.check(run)
    check_model(setup, store, run)
    longest = max(store.n_done(run, chain) for chain in range(run.chains)) - run.tune
    wanted = max(draws, longest)
    if wanted != run.draws or wanted != store.length(run):
        run = run._replace(draws=wanted)
        store.resize(run, layout)
    return run


def _run(
    setup: Setup,
    store: Store,
    run: Run,
    jobs: list[Job],
    executor: concurrent.futures.Executor | None,
    cores: int | None,
    mp_ctx: Any,
    is_shown: bool,
) -> None:
    """Run the chains that have not ended."""
    from pymc.sampling.parallel import _cpu_count

    n_processes = min(cores or min(4, _cpu_count()), len(jobs))
    if not jobs:
        return
    if executor is None and n_processes == 1:
        with shown(store, run, is_shown):
            run_here(setup, jobs)
        return
    workers = (
        LocalProcesses(setup, n_processes, mp_ctx)
        if executor is None
        else Elsewhere(setup, executor)
    )
    try:
        with shown(store, run, is_shown):
            run_elsewhere(workers, store, run, jobs)
    finally:
        workers.close()


def _check_end(store: Store, run: Run) -> None:
    """Check that all draws are here: workers may have written them somewhere else."""
    total = run.tune + run.draws
    short = [chain for chain in range(run.chains) if store.n_done(run, chain) < total]
    if short:
        raise StoreError(
            f"{store} lacks draws of chains that ended: {', '.join(map(str, short))}. All workers "
            f"must see the same folder under this path. The same call goes on. {see('runs')}"
        )


def _warn(result: Any, model: pm.Model, *, checks: bool, quiet: bool) -> None:
    """Warn of what PyMC warns of at the end of a run, and of what went wrong in estimators."""
    if quiet:
        return
    found = run_convergence_checks(result, model) if checks else []
    found += [SamplerWarning(WarningType.BAD_PARAMS, text, "warn") for text in problems(result)]
    log_warnings(found)
