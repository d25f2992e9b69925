"""Looking at a run, and stopping it, from any process that sees its store."""

import os
from typing import Any

import numpy as np

from pymc_apm._compat import result_of
from pymc_apm.runs.store import Run, Store, check_packages


def open_run(path: str | os.PathLike[str], *, verify: bool = True) -> Any:
    """Open the store of a run, whether it has ended, goes on, or was killed.

    Nothing is loaded before it is used, so that a run may be larger than the memory. While chains
    are of different lengths, or have yet to start, those chains and draws are returned that are the
    most together; their numbers are in the coordinates ``chain`` and ``draw``. What was drawn since
    the last commit is not there yet (``every`` of :func:`sample`).

    Parameters
    ----------
    path : str
        The store.
    verify : bool
        Whether to compare the checksums of all draws, for which they are read once. That they are
        there is seen anyway, and the checksums of what you use are compared when it is loaded.

    Returns
    -------
    InferenceData or DataTree
        As :func:`pymc.sample` returns.

    Raises
    ------
    StoreError
        If the store is damaged, or is not that of a run.

    Examples
    --------
    >>> import pymc as pm, pymc_apm as apm, tempfile
    >>> with pm.Model():
    ...     theta = pm.Normal("theta")
    ...     apm.Potential("log_lik", theta * apm.StandardNormal("u", shape=()))
    ...     path = tempfile.mkdtemp()
    ...     _ = apm.sample(20, tune=10, chains=2, cores=1, store=path, quiet=True)
    log_lik
    >>> apm.open_run(path).posterior["theta"].shape
    (2, 20)
    """
    check_packages()
    store = Store(path)
    run = store.read_run()
    store.check(run, reads_draws=verify)
    return opened(store, run)


def stop_run(path: str | os.PathLike[str]) -> None:
    """Stop a run, from any machine that sees its store.

    All chains end after the draw that they are at, within a second or so if draws are quick, and
    commit what they have. :func:`sample` then raises :class:`~pymc_apm.errors.RunStopped`; the same
    call goes on.

    Parameters
    ----------
    path : str
        The store.

    Examples
    --------
    >>> import pymc as pm, pymc_apm as apm, tempfile
    >>> with pm.Model():
    ...     theta = pm.Normal("theta")
    ...     apm.Potential("log_lik", theta * apm.StandardNormal("u", shape=()))
    ...     path = tempfile.mkdtemp()
    ...     _ = apm.sample(20, tune=10, chains=2, cores=1, store=path, quiet=True)
    log_lik
    >>> apm.stop_run(path)  # it has ended before
    """
    store = Store(path)
    store.read_run()
    store.order_stop()


def opened(store: Store, run: Run, draws: int | None = None) -> Any:
    """Open a store as a result, with what all chains have; or with just so many draws."""
    import xarray

    checkpoints = [store.checkpoint(run, chain) for chain in range(run.chains)]
    n_done = np.array([0 if found is None else found.n_done for found in checkpoints])
    seconds = [0.0 if found is None else found.seconds for found in checkpoints]
    sections = {
        column.group: section for section in store.sections(run) for column in section.columns
    }
    chains, n_draws = rectangle(np.maximum(n_done - run.tune, 0), draws)
    tree = xarray.open_datatree(store.path, engine="zarr", consolidated=True, chunks=None)
    groups = {}
    for name in sorted(tree.children, key=_order):
        dataset = tree[name].to_dataset()
        if name in sections:
            is_tuning = name.startswith("warmup_")
            n_rows = int(min(n_done[chains], default=0)) if is_tuning else n_draws
            n_rows = min(n_rows, run.tune) if is_tuning else n_rows
            dataset = dataset.isel(chain=chains, draw=slice(n_rows))
            dataset.attrs["sampling_time"] = max(seconds)
        groups[name] = dataset
    return result_of(groups)


def _order(name: str) -> tuple[int, str]:
    """Return the place of a group, as PyMC has them."""
    known = ("posterior", "warmup_posterior", "sample_stats", "warmup_sample_stats")
    return (known.index(name) if name in known else len(known), name)


def rectangle(lengths: np.ndarray, most: int | None = None) -> tuple[list[int], int]:
    """Choose chains, and a number of draws that each of them has, so that draws are the most.

    >>> rectangle(np.array([5, 0, 4]))
    ([0, 2], 4)
    """
    candidates = [n for n in sorted(set(lengths.tolist())) if n > 0]
    if not candidates:
        return list(range(len(lengths))), 0
    best = max(candidates, key=lambda n: int(np.sum(lengths >= n)) * n)
    chains = np.flatnonzero(lengths >= best).tolist()
    return chains, best if most is None else min(best, most)
