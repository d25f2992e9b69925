"""Death at any moment of a commit, full disks, and processes that are killed."""

import contextlib
import errno
import os
import pathlib
import shutil
import time

import pytest

import pymc_apm as apm
from pymc_apm.errors import RunStopped, StoreError
from tests.marks import others_are_slow
from tests.runs import kills
from tests.runs.models import KINDS, differences

CALLS = ("open", "write", "fsync", "close", "replace", "makedirs")
"""What a commit asks of the system."""

DIED = 9


@pytest.fixture
def quick_disks():
    """Let the system be called as it is."""


class Dies:
    """Ends the process after so many calls of the system; counts them if it is not to."""

    def __init__(self, after=None):
        self.after, self.n_calls = after, 0

    def wrap(self, function):
        def wrapped(*args, **kwargs):
            result = function(*args, **kwargs)
            self.n_calls += 1
            if self.n_calls == self.after:
                os._exit(DIED)
            return result

        return wrapped

    def install(self, monkeypatch):
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))


@pytest.fixture(scope="module")
def cut(case, tmp_path_factory):
    """A store that ends in the middle of a chunk, the number of its draws, and what is to come."""
    path = tmp_path_factory.mktemp("cut") / "run.zarr"
    case.cut(40, path, chains=1)
    return path, case.sample(chains=1)


def calls_of_a_run(case, path):
    """Count the calls of the system, in a child."""
    reading, writing = os.pipe()

    def call():
        with pytest.MonkeyPatch.context() as monkeypatch:
            dies = Dies()
            dies.install(monkeypatch)
            case.sample(chains=1, store=path)
        os.write(writing, str(dies.n_calls).encode())

    assert os.waitpid(kills.fork(call), 0)[1] == 0
    return int(os.read(reading, 20))


def after_death(case, path, number, draws=20):
    """Go on with a run in a child that dies after a call of the system."""

    def call():
        with pytest.MonkeyPatch.context() as monkeypatch:
            Dies(number).install(monkeypatch)
            case.sample(draws, chains=1, store=path)

    return os.waitstatus_to_exitcode(os.waitpid(kills.fork(call), 0)[1])


@pytest.mark.parametrize("stride", others_are_slow([61], [61, 1]))
def test_death_after_any_call_of_the_system(case, cut, tmp_path, stride):
    path, expected = cut
    n_calls = calls_of_a_run(case, shutil.copytree(path, tmp_path / "counted"))
    assert n_calls > 50
    for number in range(1, n_calls + 1, stride):
        copy = shutil.copytree(path, tmp_path / str(number))
        assert after_death(case, copy, number) == DIED
        n_draws = apm.open_run(copy).posterior.sizes["draw"]
        assert n_draws in (10, 20)  # the old one or the new one
        assert not differences(expected, case.sample(chains=1, store=copy))
        shutil.rmtree(copy)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [7])
def test_death_while_a_store_is_made(case, tmp_path, stride):
    expected = case.sample(chains=1)
    n_calls = calls_of_a_run(case, tmp_path / "counted")
    for number in range(1, n_calls + 1, stride):
        path = tmp_path / str(number)
        assert after_death(case, path, number) == DIED
        assert not differences(expected, case.sample(chains=1, store=path))


@pytest.mark.slow
@pytest.mark.parametrize("stride", [15])
def test_death_while_a_store_gets_longer(case, cut, tmp_path, stride):
    """It can be opened all the time, and goes on."""
    path, _ = cut
    expected = case.sample(25, chains=1)
    number, status = 1, DIED
    while status == DIED:
        copy = shutil.copytree(path, tmp_path / str(number))
        status = after_death(case, copy, number, draws=25)
        assert apm.open_run(copy).posterior.sizes["draw"] in (10, 25)
        assert not differences(expected, case.sample(25, chains=1, store=copy))
        shutil.rmtree(copy)
        number += stride
    assert status == 0


def test_a_commit_without_its_order_is_found_out(case, cut, tmp_path, monkeypatch):
    """A checkpoint before its chunks: the test above can fail."""
    path, _ = cut
    copy = shutil.copytree(path, tmp_path / "copy")

    def commit_alone(self, *args):
        checksums = self._checksums[self._number]
        for row in checksums:
            row[self._chunk :] = [0]

    monkeypatch.setattr("pymc_apm.runs.recorder.Writer._write_rows", commit_alone)
    with pytest.raises(StoreError, match="damaged"):
        case.sample(chains=1, store=copy)
        apm.open_run(copy)


def test_ctrl_c_before_the_last_commit_is_no_end(case, store, monkeypatch):
    def interrupt(self, *args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pymc_apm.runs.recorder.Writer._commit", interrupt)
        with pytest.raises(RunStopped):
            case.sample(chains=1, store=store)
    assert not differences(case.sample(chains=1), case.sample(chains=1, store=store))


@pytest.mark.parametrize("n_writes", [0, 1, 5, 13])
def test_a_full_disk_is_told_and_nothing_is_lost(case, cut, tmp_path, monkeypatch, n_writes):
    path, expected = cut
    copy = shutil.copytree(path, tmp_path / "copy")
    before = apm.open_run(copy).load()
    write, left = os.write, [n_writes]

    def full(file, data):
        left[0] -= 1
        if left[0] < 0:
            write(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match=r"cannot be written: there is no space left.*goes on"):
            case.sample(chains=1, store=copy)
    assert not differences(before, apm.open_run(copy))
    assert not list(copy.rglob("*.tmp"))
    assert not differences(expected, case.sample(chains=1, store=copy))


def test_a_full_disk_leaves_no_half_of_a_store(case, store, monkeypatch):
    def full(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match="no space left"):
            case.sample(store=store)
    assert list(store.parent.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.compiler
def test_a_run_that_is_killed_again_and_again(name):
    is_quick = name in ("slice", "PM MH stream")
    assert "same draws and statistics" in kills.check(name, n_kills=4 if is_quick else 8)


@pytest.mark.slow
def test_a_run_in_two_processes_that_is_killed():
    """Its workers notice that their parent is gone, and end too."""
    before = processes()
    assert "same draws" in kills.check("slice", n_kills=4, draws=4000, cores=2)
    end = time.monotonic() + 10.0
    while processes() - before and time.monotonic() < end:
        time.sleep(0.1)
    assert not processes() - before


def processes():
    """Return the processes that were forked from this one, or from those."""
    own = pathlib.Path("/proc/self/cmdline").read_bytes()
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found |= {path.parent.name} if path.read_bytes() == own else set()
    return found


def test_unfinished_files_are_swept(case, copied):
    litter = copied / "posterior" / "mu" / "c" / "0" / "0.0123456789ab.tmp"
    litter.write_bytes(b"half")
    case.sample(store=copied)
    assert not litter.exists()
    assert isinstance(copied, pathlib.Path)
