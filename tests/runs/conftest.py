"""What tests of runs share: a way to sample that is short, and stores of runs."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pymc_apm as apm
from tests.runs.models import KINDS

pytest.importorskip("zarr")

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


class Case:
    """A model of some kind with its steps, sampled with the same options again and again."""

    def __init__(self, name: str) -> None:
        self.model = KINDS[name].model()
        with self.model:
            self.step = KINDS[name].step(self.model)

    def sample(self, draws: int = 20, **options: Any) -> Any:
        """Sample into a store, or as ``pm.sample`` does if there is none."""
        options = {"tune": 30, "chains": 2, "cores": 1, "random_seed": 5} | options
        options = {name: value for name, value in options.items() if value is not None}
        with self.model:
            return apm.sample(draws, step=options.pop("step", self.step), quiet=True, **options)

    def cut(self, n_done: int, store: Any, draws: int = 20, **options: Any) -> None:
        """Sample into a store until a chain has made some draws, of which none is lost."""

        def interrupt(trace: Any, draw: Any) -> None:
            if draw.draw_idx + 1 == n_done:
                raise KeyboardInterrupt

        options |= {"callback": interrupt, "every": 0.0, "store": store}
        with pytest.raises(apm.errors.RunStopped):
            self.sample(draws, **options)


@pytest.fixture(autouse=True)
def quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for disks: who is killed in a test leaves the machine alive."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def case() -> Case:
    """The model that most tests are content with."""
    return Case("slice")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store can be made."""
    return tmp_path / "run.zarr"


@pytest.fixture(scope="module")
def finished(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run that has ended, to be copied."""
    path = tmp_path_factory.mktemp("finished") / "run.zarr"
    case.sample(store=path)
    return path


@pytest.fixture
def copied(finished: Path, store: Path, copy: Callable[..., Path]) -> Path:
    """A copy of the store of a run that has ended."""
    return copy(finished, store)


@pytest.fixture(scope="session")
def copy() -> Callable[..., Path]:
    """Copy a store."""
    import shutil

    return lambda one, other: Path(shutil.copytree(one, other))
