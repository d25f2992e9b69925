"""Files that are there whole or not at all, and who may write them."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import filelock

from pymc_apm.errors import StoreError, see

TEMPORARY = f".{uuid.uuid4().hex[:12]}.tmp"
"""How the files end that this process writes and has not finished."""


def write(path: Path, *parts: bytes | memoryview, durable: bool = True) -> None:
    """Write a file so that death at any moment leaves the old one or the new one.

    Parameters
    ----------
    path : Path
    *parts : bytes
        What is in the file, one after the other.
    durable : bool
        Whether it is to survive a power cut too, once its folder has been given to :func:`sync`.
    """
    temporary = f"{path}{TEMPORARY}"
    try:
        try:
            file = os.open(temporary, _WRITE, 0o666)
        except FileNotFoundError:
            os.makedirs(path.parent, exist_ok=True)
            file = os.open(temporary, _WRITE, 0o666)
        try:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(file, rest) :]
            if durable:
                os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        reason = "there is no space left" if error.errno in _FULL else str(error)
        raise StoreError(
            f"{path} cannot be written: {reason}. What was stored before is still there; the same "
            f"call goes on from it. {see('runs')}"
        ) from error


_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def sync(path: Path) -> None:
    """Make sure that a file, or the names of the files in a folder, survive a power cut."""
    if os.name == "nt":  # where that needs a file that is open to be written
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> bytes:
    """Return the content of a file, which must be a file of its folder and not a link."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with open(handle, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error


def sweep(folder: Path) -> None:
    """Delete what processes that died left unfinished in a folder."""
    for path in folder.rglob("*.tmp"):
        if not path.name.endswith(TEMPORARY):
            with contextlib.suppress(OSError):
                path.unlink()


def refuse_links(folder: Path) -> None:
    """Refuse a folder with links in it: who follows one may write elsewhere."""
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(where, name)):
                raise StoreError(
                    f"{folder} has a link in it, {os.path.join(where, name)}, and is not used: a "
                    "store is files and folders alone."
                )


@contextlib.contextmanager
def locked(path: Path, *, seconds: float, otherwise: str) -> Iterator[None]:
    """Hold a lock, which its holder's death releases.

    Parameters
    ----------
    path : Path
        The file that stands for the lock.
    seconds : float
        How long to wait for it.
    otherwise : str
        What to say if another process holds it for longer.
    """
    lock = filelock.FileLock(path, timeout=seconds)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StoreError(otherwise) from None
    except NotImplementedError:  # a file system without locks, as some of clusters are
        yield
        return
    try:
        yield
    finally:
        lock.release()
