"""Does the chain stick, or creep? Runs of draws without a move, of theta and of u, and small moves.

A pseudo-marginal chain sticks where the estimate came out much too large: nothing that is proposed
compares with it, for hundreds or thousands of draws. The effective sample size (ESS) is estimated
from the same draws. If it hangs on one or two long runs, it says more about chance than about the
chain: the next run of the sampler may have a much longer one, or none ("ESS estimates are
misleading on poorly mixing chains", Murray and Graham 2016).
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_apm.diagnostics.creeping import Movement, creeping_in_words, movements
from pymc_apm.diagnostics.runs import moves_of_u, posterior_draws, sign_of, statistic
from pymc_apm.diagnostics.words import as_html, count, percent
from pymc_apm.errors import see

U = "u"
"""The name of the randomness in tables."""

SHORT = 20
"""A run of fewer draws than this is never called stuck."""

DOMINANT = 0.15
"""The share of the sum of squared run lengths above which one run is too much of it."""

DOMINANT_IF_UNEVEN = 0.05
"""The same where runs are more uneven than a constant chance to move would make them."""

UNEVEN = 2.0
"""How much larger than for a constant chance to move the mean square of the runs may be."""

LARGE_PART = 0.1
"""The share of a chain above which a run is stuck, whatever the other runs."""


class Runs(NamedTuple):
    """The runs of draws that hold one value, of one variable in one chain.

    Attributes
    ----------
    starts : ndarray of int
        The draw at which each begins. For u, -1 is a run that began before the first draw.
    lengths : ndarray of int
        How many draws each has, with the one that moved there.
    moved : float
        The share of draws that moved.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    moved: float

    @property
    def longest(self) -> int:
        """The largest number of draws in a row that repeat the one before."""
        return int(self.lengths.max()) - 1


class Sticking:
    """What :func:`sticking` found.

    Attributes
    ----------
    table : DataFrame
        A row for each variable and chain, and for u. ``moved`` is the share of draws that differ
        from the one before, ``longest_run`` the largest number of draws in a row that do not,
        ``starts_at`` the draw at which that run begins, and ``ess_limit`` the effective number of
        runs, (sum of lengths)^2 / (sum of squared lengths): no more effective draws than that can
        come of values that are held for so long, if those of different runs are no better than
        independent. ``stuck`` says whether ESS should not be believed because of the longest run.
    movement : DataFrame
        A row for each step that updates u, and chain. ``u_moved`` is how far u went in a draw, on
        average: 0 is not at all, 1 as far as a fresh draw would be, and an angle a on an ellipse is
        1 - cos(a). ``iat_log_estimate`` and ``iat_u`` are the integrated autocorrelation times of
        log f_hat and of a random projection of u, in draws. ``creeps`` says whether u moves by
        little (less than 0.05 where it moves) and has fewer than 25 effective draws for it.
    warnings : list of str
        What is wrong, in words; empty if nothing is.
    u_names : list of str
        Which names in the table stand for u: ``["u"]``, as a rule.
    """

    def __init__(self, table: Any, movement: Any, warnings: list[str], u_names: list[str]) -> None:
        self.table = table
        self.movement = movement
        self.warnings = warnings
        self.u_names = u_names

    def longest_run(self, variable: str) -> int:
        """Return the longest run of a variable in any chain."""
        return int(self.table.loc[variable, "longest_run"].max())

    def _formatted(self) -> Any:
        table = self.table.copy()
        table["moved"] = [percent(share) for share in table["moved"]]
        table["ess_limit"] = [f"{limit:.0f}" for limit in table["ess_limit"]]
        table["stuck"] = ["STUCK" if stuck else "" for stuck in table["stuck"]]
        return table

    def __repr__(self) -> str:
        lines = ["Runs without a move, by variable and chain", self._formatted().to_string()]
        if len(self.movement):
            lines += ["How far u moves, by step and chain", self._movement().to_string()]
        lines += [f"Warning: {text}" for text in self.warnings] or ["No chain sticks."]
        return "\n".join(lines)

    def _movement(self) -> Any:
        table = self.movement.copy()
        table["u_moved"] = [f"{value:.2g}" for value in table["u_moved"]]
        for name in ("iat_log_estimate", "iat_u"):
            table[name] = [f"{value:.{'0f' if value > 10 else '2g'}}" for value in table[name]]
        table["creeps"] = ["CREEPS" if creeps else "" for creeps in table["creeps"]]
        return table

    def _repr_html_(self) -> str:
        return as_html(
            "Runs without a move, by variable and chain",
            self._formatted().to_html()
            + (self._movement().to_html() if len(self.movement) else ""),
            self.warnings,
            ["No chain sticks."] if not self.warnings else [],
        )


def sticking(
    idata: Any, var_names: str | Sequence[str] | None = None, coords: Any = None
) -> Sticking:
    """Find how long each chain held on to one value of theta, or of u, and how far u moved.

    The moves of theta are found in the draws; a variable that is an array has moved if any element
    has. Those of u, which is not recorded, are known from the statistic ``u_accepted``. Where one
    step updates several pieces of randomness, they count as one; where several steps do, as u[0],
    u[1] and so on.

    Parameters
    ----------
    idata : InferenceData or DataTree
        What ``pm.sample`` returned.
    var_names : str or list of str, optional
        The parameters to look at; all if not given.
    coords : dict, optional
        Labels to select along dimensions of the parameters.

    Returns
    -------
    Sticking
        A table and warnings. A :class:`UserWarning` is issued too where a chain sticks.

    Notes
    -----
    A run is called stuck if it has at least 20 draws without a move and

    - makes up more than 15% of the sum of the squared lengths of all runs of that variable, which
      is what limits the ESS: one run alone then decides on it; or
    - more than 5% of that sum, if the sum is also more than twice of what a constant chance to move
      would make it; or
    - is longer than a tenth of the chain.

    A value that occurs in other runs as well, as those of discrete parameters and of indicators do,
    is not stuck.

    Where u moves, but by so little that it hardly changes over a whole chain, it *creeps*. How far
    it moves is in the statistic ``u_moved``.

    Examples
    --------
    >>> import arviz as az
    >>> import pymc as pm
    >>> import pymc_apm as apm
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", shape=2)
    ...     u = apm.StandardNormal("u", shape=2)
    ...     log_lik = apm.Potential("log_lik", -(theta**2).sum() - (u * theta).sum())
    ...     idata = pm.sample(draws=100, tune=50, chains=2, cores=1, random_seed=1, quiet=True)
    >>> found = apm.sticking(idata)
    >>> found.longest_run("theta"), found.warnings
    (0, [])
    """
    found = find_sticking(idata, var_names, coords)
    for text in found.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    return found


def find_sticking(
    idata: Any, var_names: str | Sequence[str] | None = None, coords: Any = None
) -> Sticking:
    """Do the work of :func:`sticking`, silently."""
    import pandas

    rows: list[dict[str, Any]] = []
    warnings = []
    names = []
    for draws in posterior_draws(idata, var_names, coords):
        runs = runs_of_draws(draws.values)
        is_stuck = [
            stuck and not _is_ordinary(draws.values, chain, runs[chain], idata)
            for chain, stuck in enumerate(stuck_chains(runs))
        ]
        names.append(draws.name)
        rows += _rows(draws.name, runs, is_stuck)
        warnings += _warnings(draws.name, runs, is_stuck)
    label = U if U not in names else f"{U} (randomness)"
    runs_by_step = runs_of_u(idata)
    u_names = [
        label if len(runs_by_step) == 1 else f"{label}[{i}]" for i in range(len(runs_by_step))
    ]
    for name, runs in zip(u_names, runs_by_step, strict=True):
        is_stuck = stuck_chains(runs)
        rows += _rows(name, runs, is_stuck)
        warnings += _warnings(name, runs, is_stuck)
    table = pandas.DataFrame(rows).set_index(["variable", "chain"])
    moved, steps = movements(idata), []
    for number, chains in enumerate(moved):
        name = label if len(moved) == 1 else f"{label}[{number}]"
        steps += [{"variable": name, "chain": c, **m._asdict()} for c, m in enumerate(chains)]
        warnings += creeping_in_words(name, chains)
    columns = ["variable", "chain", *Movement._fields]
    movement = pandas.DataFrame(steps, columns=columns).set_index(columns[:2])
    signs = sign_of(idata)
    if signs is not None and (signs < 0).any():
        warnings.append(
            f"{percent((signs < 0).mean())} of the draws have a negative sign: the moves in the "
            "table are those of the chain, but how many draws of the posterior they are worth is "
            f"for apm.signed(idata) to say. {see('series')}"
        )
    return Sticking(table, movement, warnings, u_names)


def runs_of_draws(values: NDArray[Any]) -> list[Runs]:
    """Find the runs in each chain of draws with the shape (chain, draw, element)."""
    moved = np.ones(values.shape[:2], dtype=bool)
    moved[:, 1:] = (values[:, 1:] != values[:, :-1]).any(axis=-1)
    return [_runs(chain, float(chain[1:].mean()) if chain.size > 1 else 1.0) for chain in moved]


def runs_of_u(idata: Any) -> list[list[Runs]]:
    """Find the runs of u, for each step that updates some, in each chain."""
    moves = moves_of_u(idata)
    if moves is None:
        return []
    return [[_runs_of_u(chain > 0) for chain in moves[..., i]] for i in range(moves.shape[-1])]


def _runs_of_u(moved: NDArray[np.bool_]) -> Runs:
    share = float(moved.mean())
    if moved[0]:
        return _runs(moved, share)
    runs = _runs(np.concatenate(([True], moved)), share)
    return runs._replace(starts=runs.starts - 1)


def _runs(moved: NDArray[np.bool_], share: float) -> Runs:
    starts = np.flatnonzero(moved)
    return Runs(starts, np.diff(starts, append=len(moved)), share)


def stuck_chains(runs: Sequence[Runs]) -> list[bool]:
    """Say for which chains ESS should not be believed because of their longest run."""
    lengths = np.concatenate([chain.lengths for chain in runs]).astype(np.float64)
    n_draws = lengths.sum()
    squares = np.square(lengths).sum()
    # A constant chance to move makes geometric runs, whose mean square follows from their mean.
    if_constant = n_draws * (2.0 * n_draws / lengths.size - 1.0)
    dominant = DOMINANT_IF_UNEVEN if squares > UNEVEN * if_constant else DOMINANT
    return [
        chain.longest >= SHORT
        and bool(
            chain.longest**2 > dominant * squares
            or chain.longest > LARGE_PART * chain.lengths.sum()
        )
        for chain in runs
    ]


def _is_ordinary(values: NDArray[Any], chain: int, runs: Runs, idata: Any) -> bool:
    """Say whether the value of the longest run is one that the variable takes again and again."""
    if (values == values[0, 0]).all():
        # A constant of the model, unless nothing moved at all.
        accepted = statistic(idata, "accepted")
        return accepted is None or bool(accepted.any())
    run = int(np.argmax(runs.lengths))
    held = values[chain, runs.starts[run]]
    return int((values == held).all(axis=-1).sum()) > int(runs.lengths[run])


def _rows(name: str, runs: Sequence[Runs], is_stuck: Sequence[bool]) -> list[dict[str, Any]]:
    rows = []
    for chain, (starts, lengths, moved) in enumerate(runs):
        longest = int(np.argmax(lengths))
        n_draws, squares = float(lengths.sum()), float(np.square(lengths, dtype=float).sum())
        rows.append(
            {
                "variable": name,
                "chain": chain,
                "moved": moved,
                "longest_run": int(lengths[longest]) - 1,
                "starts_at": int(max(starts[longest], 0)),
                "ess_limit": n_draws**2 / squares,
                "stuck": bool(is_stuck[chain]),
            }
        )
    return rows


def _warnings(name: str, runs: Sequence[Runs], is_stuck: Sequence[bool]) -> list[str]:
    if not any(is_stuck):
        return []
    stuck = [chain for chain, flag in enumerate(is_stuck) if flag]
    worst = max(stuck, key=lambda chain: runs[chain].longest)
    longest = runs[worst].longest
    share = longest / max(int(runs[worst].lengths.sum()) - 1, 1)
    others = f", and too long in {count(len(stuck) - 1, 'other chain')}" if len(stuck) > 1 else ""
    return [
        f"{name} did not move for {count(longest, 'draw')} in a row in chain {worst}, "
        f"{percent(share)} of the chain{others}. Do not believe the ESS of this run: it rests on "
        "few long runs."
    ]
