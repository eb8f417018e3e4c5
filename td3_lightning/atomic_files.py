"""Atomic and durable writes of files.

Every write for a checkpoint uses this module. It calls only `os`, so that a test can simulate a faulty disk.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO

from numpy.typing import NDArray

SUFFIX = ".unfinished"  # ends the name of a file that is still being written


def atomic_write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace a file so that its name refers to a complete file at every instant. Create missing folders.

    Raises:
        OSError: The file cannot be written. The previous content of `path` is unchanged.
    """
    make_folder(path.parent)
    temporary = temp_path(path)
    try:
        remove(temporary)  # a killed process may have left it
        with os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            remove(temporary)
        while isinstance(error, RuntimeError) and error.__context__ is not None:
            error = error.__context__  # torch.save raises a RuntimeError about the position instead of a disk's error
        raise error from None
    sync(path.parent)


def durable_append(path: Path, size: int, parts: Iterable[NDArray[Any]]) -> None:
    """Append arrays to a file of `size` bytes and sync it. Create the file if `size` is 0.

    After an `OSError` the length of the file is unknown, so it must not be appended to again.
    """
    flags = os.O_WRONLY | (os.O_APPEND if size else os.O_CREAT | os.O_EXCL)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        for part in parts:
            file.write(part.data)
        file.flush()
        os.fsync(file.fileno())


def link_or_copy(path: Path, target: Path) -> None:
    """Give a complete file a second name, replacing `target`. It is durable after `sync` of the folder."""
    temporary = temp_path(target)
    remove(temporary)
    try:
        os.link(path, temporary)
    except OSError:  # the file system may have no hard links
        with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
            atomic_write(target, lambda copy: copyfileobj(file, copy))
    else:
        move(temporary, target)
        remove(temporary)  # a rename does nothing if both names already refer to one file


def move(path: Path, target: Path) -> None:
    """Rename a complete file, replacing `target`. The rename is durable after `sync` of the folder."""
    os.replace(path, target)


def remove_temp_files(folder: Path) -> None:
    """Delete the temporary files of killed processes in a folder that no other process uses."""
    for name in names(folder):
        if name.startswith(".") and name.endswith(SUFFIX):
            remove(folder / name)


def remove(path: Path) -> None:
    """Delete a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def names(folder: Path) -> list[str]:
    """Return the names in a folder, or an empty list if it does not exist."""
    return os.listdir(folder) if os.path.isdir(folder) else []


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably; raise `OSError` if that fails, or if a file has the name."""
    if os.path.isdir(folder):
        return
    make_folder(folder.parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):  # otherwise another process created it
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
    sync(folder.parent)


def sync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to the disk. Neither includes the other."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temp_path(path: Path) -> Path:
    """Return the name of a file while it is being written."""
    return path.with_name(f".{path.name}{SUFFIX}")
