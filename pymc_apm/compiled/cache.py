"""Compiled programs on disk.

A file is named after the digest of its program and holds a checksum of its content. It is written
under another name and moved into place, so that a process never finds part of it. A damaged file
is deleted and made again. If the folder cannot be written to, programs are not kept.
"""

import contextlib
import hashlib
import logging
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytensor
from filelock import FileLock, Timeout
from numba.core import caching, compiler, serialize

logger = logging.getLogger("pymc.apm")

CHECKSUM = hashlib.sha256().digest_size


def folder() -> Path:
    """Return where programs are kept: beside what PyTensor compiles."""
    return Path(pytensor.config.base_compiledir) / "pymc_apm"


class ProgramCache(caching._Cache):
    """The cache of one function of Numba: its program has a digest, its arguments have types.

    Parameters
    ----------
    digest : str
        What tells the program from all others.
    """

    def __init__(self, digest: str) -> None:
        self._digest = digest

    @property
    def cache_path(self) -> str:
        """The folder that it is in."""
        return str(folder())

    def file_for(self, signature: Any, target_context: Any) -> Path:
        """Return the file for arguments of some types, on this processor."""
        kinds = repr((signature, target_context.codegen().magic_tuple()))
        return folder() / f"{self._digest}-{hashlib.sha256(kinds.encode()).hexdigest()[:16]}.bin"

    def has(self, signature: Any, target_context: Any) -> bool:
        """Say whether there is a file; it may be damaged."""
        return self.file_for(signature, target_context).is_file()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for arguments of some types; None if it is not on disk."""
        target_context.refresh()
        path = self.file_for(sig, target_context)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        try:
            if hashlib.sha256(content[CHECKSUM:]).digest() != content[:CHECKSUM]:
                raise ValueError("its checksum is wrong")
            payload = pickle.loads(content[CHECKSUM:])
            return compiler.CompileResult._rebuild(target_context, *payload)
        except Exception as error:
            logger.info(f"A compiled program on disk is damaged, and is made again: {error!r}.")
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for arguments of some types, if that is possible."""
        if data.library.has_dynamic_globals:
            logger.info("A compiled program refers to memory of this process, and is not kept.")
            return
        content = serialize.dumps(data._reduce())
        try:
            write_whole(
                self.file_for(sig, data.target_context), hashlib.sha256(content).digest() + content
            )
        except OSError as error:
            logger.info(f"A compiled program cannot be kept on disk: {error!r}.")

    def enable(self) -> None:
        """Do nothing: it is always enabled."""

    def disable(self) -> None:
        """Do nothing: it is always enabled."""

    def flush(self) -> None:
        """Do nothing: files are never changed."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there with all of its content, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def the_only_one(digest: str) -> Iterator[bool]:
    """Say whether no other process compiles the same program now, and keep others from it."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder() / f"{digest}.lock")
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    except OSError:  # nothing can be written, so that no other process would profit
        yield True
        return
    try:
        yield True
    finally:
        lock.release()
