"""Programs on disk: whole or not there, told apart, and found by other processes."""

import json
import multiprocessing
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import numba
import numpy as np
import pytest

from pymc_apm.compiled import cache, program
from pymc_apm.compiled.program import Program
from tests.compiled.small import draws_of, small_model, small_step, smallest_step
from tests.marks import others_are_slow
from tests.steps.models import same_draws, sample


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def expected(model):
    """The draws of Python."""
    return draws_of(small_step(model, compile=False))


@pytest.fixture(scope="module")
def original(model):
    """The file of the program, which is compiled if need be, and left alone."""
    step = small_step(model, compile=True)
    return file_of(step)


def file_of(step):
    chain = step.chain
    made = chain.compiling._unready(chain)
    types = program.signature_of(
        chain.arguments(1, made.densities.example(), chain.learnt, chain.tune)
    )
    context = numba.core.registry.cpu_target.target_context
    return cache.ProgramCache(made.digest).file_for(types, context)


@pytest.fixture
def empty(monkeypatch, tmp_path, original):
    """An empty cache, and nothing in memory."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(cache, "folder", lambda: folder)
    monkeypatch.setattr(program, "COMPILED", {})
    return folder


@pytest.fixture
def copied(empty, original):
    """A cache with the program in it, and nothing in memory."""
    empty.mkdir()
    return Path(shutil.copy(original, empty))


@pytest.fixture
def never_compiles(monkeypatch):
    def fail(made):
        raise AssertionError("something was compiled")

    monkeypatch.setattr(Program, "_make", fail)


def assert_whole(folder):
    files = list(folder.iterdir())
    assert len([path for path in files if path.suffix == ".bin"]) == 1
    assert all(path.suffix in (".bin", ".lock") for path in files), files
    (path,) = folder.glob("*.bin")
    content = path.read_bytes()
    assert cache.hashlib.sha256(content[cache.CHECKSUM :]).digest() == content[: cache.CHECKSUM]


def assert_right(draws, expected):
    np.testing.assert_allclose(draws, expected, rtol=1e-9)


# Found again


def test_what_is_on_disk_is_used(copied, never_compiles, model, expected):
    step = small_step(model, compile=True)
    assert_right(draws_of(step), expected)
    assert step.is_compiled


def test_what_was_loaded_is_not_loaded_again(copied, never_compiles, model, expected):
    small_step(model, compile=True)
    copied.unlink()
    assert_right(draws_of(small_step(small_model(), compile=True)), expected)


def test_a_new_process_uses_it_without_compiling(original, expected):
    command = [sys.executable, "-m", "tests.compiled.small", str(original.parent), "0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    is_compiled, draws = json.loads(found.stdout.splitlines()[-1])
    assert is_compiled
    assert_right(draws, expected)


@pytest.mark.parametrize("mp_ctx", others_are_slow(["fork"], ["fork", "spawn"]))
def test_the_processes_of_pymc_do_not_compile_again(original, model, mp_ctx):
    step = small_step(model, compile=True)
    alone = sample(model, step)
    before = original.stat()
    assert same_draws(alone, sample(model, step, cores=2, mp_ctx=mp_ctx))
    after = original.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


# Damaged


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "empty":
        content.clear()
    elif how == "truncated":
        del content[len(content) // 2 :]
    elif how == "short":
        del content[10:]
    elif how == "longer":
        content += b"more"
    else:
        content[{"flipped": len(content) // 3, "checksum": 3, "end": -1}[how]] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["empty", "truncated", "short", "longer", "flipped", "checksum", "end"]
)
def test_a_damaged_file_is_not_used_but_removed(copied, model, monkeypatch, how):
    damage(copied, how)
    with pytest.raises(AssertionError, match="to be made again"):
        with pytest.MonkeyPatch.context() as patch:

            def make(made):
                raise AssertionError("to be made again")

            patch.setattr(Program, "_make", make)
            small_step(model, compile=True)
    assert not copied.exists()


def test_a_file_that_is_whole_but_holds_something_else_is_not_used(copied, model):
    content = cache.pickle.dumps(("of", "another", "numba"))
    cache.write_whole(copied, cache.hashlib.sha256(content).digest() + content)
    context = numba.core.registry.cpu_target.target_context
    step = small_step(model)
    digest = step.chain.compiling._unready(step.chain).digest
    loaded = cache.ProgramCache(digest)
    loaded.file_for = lambda *arguments: copied
    assert loaded.load_overload((), context) is None
    assert not copied.exists()


@pytest.mark.slow
def test_a_damaged_file_is_made_again(empty):
    model = small_model()
    step = smallest_step(model)
    first = draws_of(step)
    assert step.is_compiled
    (path,) = empty.glob("*.bin")
    damage(path, "flipped")
    program.COMPILED.clear()
    step = smallest_step(model)
    np.testing.assert_array_equal(draws_of(step), first)
    assert step.is_compiled
    assert_whole(empty)


# Of others


def test_files_of_other_versions_are_not_used(copied, model, monkeypatch):
    def at_hand():
        chain = small_step(model).chain
        made = chain.compiling._unready(chain)
        return made.is_at_hand(
            chain.arguments(1, made.densities.example(), chain.learnt, chain.tune)
        )

    assert at_hand()
    version = program.importlib.metadata.version
    for package in ("pymc_apm", "numba"):
        with monkeypatch.context() as patch:
            patch.setattr(
                program.importlib.metadata,
                "version",
                lambda name, other=package: "0.0" if name == other else version(name),
            )
            patch.setattr(program, "_sources", program._sources.__wrapped__)
            assert not at_hand()
    assert at_hand()


def test_files_for_another_processor_are_not_used(copied, model, monkeypatch):
    codegen = numba.core.registry.cpu_target.target_context.codegen()
    monkeypatch.setattr(type(codegen), "magic_tuple", lambda self: ("another", "cpu", ""))
    assert file_of(small_step(model)) != copied


# Where nothing can be written


def test_where_nothing_can_be_written_programs_are_compiled_all_the_same(empty, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    step = smallest_step(small_model())
    draws = draws_of(step)
    assert step.is_compiled
    with cache.the_only_one("digest") as is_mine:
        assert is_mine
    assert_right(draws, draws_of(python_twin()))


def python_twin():
    step = smallest_step(small_model())
    step.chain.compiling = type(step.chain.compiling)(False, "APMIndependenceU", None)
    return step


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        cache.write_whole(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


# At the same time


def compile_at_once(barrier, path):
    try:
        step = smallest_step(small_model())
        barrier.wait()
        draws = draws_of(step)
        assert step.is_compiled
        np.save(path, draws)
    except BaseException:
        Path(f"{path}.txt").write_text(traceback.format_exc())
        raise


@pytest.mark.slow
def test_processes_that_compile_the_same_program_at_once_all_get_it(empty, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    processes = [context.Process(target=compile_at_once, args=(barrier, path)) for path in paths]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    for path in tmp_path.glob("*.txt"):
        raise AssertionError(path.read_text())
    first = np.load(paths[0])
    for path in paths[1:]:
        np.testing.assert_array_equal(np.load(path), first)
    assert_whole(empty)
    assert_right(first, draws_of(python_twin()))


def test_of_several_processes_one_has_the_lock(empty):
    with cache.the_only_one("digest") as first:
        with cache.the_only_one("digest") as second, cache.the_only_one("other") as third:
            assert (first, second, third) == (True, False, True)
    with cache.the_only_one("digest") as again:
        assert again
