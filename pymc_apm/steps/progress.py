"""What the progress bar of ``pm.sample`` shows of a step."""

from collections.abc import Callable
from typing import Any

from rich.progress import TextColumn
from rich.table import Column


class ShowsProgress:
    """Shows evaluations per draw, and how often theta and u move."""

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[Any]]]:
        columns = [
            TextColumn("{task.fields[evals_per_draw]}", table_column=Column("Evals", ratio=1)),
            TextColumn("{task.fields[theta_moves]}", table_column=Column("θ moves", ratio=1)),
            TextColumn("{task.fields[u_moves]}", table_column=Column("u moves", ratio=1)),
        ]
        keys = ("evals_per_draw", "theta_moves", "u_moves")
        return columns, {key: ["-"] * n_chains for key in keys}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Callable[..., dict[str, Any]]]:
        evals = _RecentMean()
        theta_moves = _RecentMean()
        u_moves = _RecentMean()

        def update_stats(stats: dict[str, Any]) -> dict[str, Any]:
            shown = {"evals_per_draw": f"{evals.of(stats['n_evals']):.1f}"}
            if "accepted" in stats:
                shown["theta_moves"] = f"{theta_moves.of(stats['accepted']):.0%}"
            if "u_accepted" in stats:
                shown["u_moves"] = f"{u_moves.of(stats['u_accepted']):.0%}"
            return shown

        return (update_stats,)


class _RecentMean:
    """The mean of a statistic over roughly the last hundred draws, for display."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._sum = 0.0

    def of(self, value: float) -> float:
        self._weight = 0.99 * self._weight + 1.0
        self._sum = 0.99 * self._sum + value
        return self._sum / self._weight
