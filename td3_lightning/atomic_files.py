"""Files that no crash leaves half written. All that is written for a checkpoint goes through here, by `os` alone, so
that a test can put a disk of its own in its place.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO

from numpy.typing import NDArray

UNFINISHED = ".unfinished"  # ends the name of a file that is still being written


def atomic_write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Makes or replaces a file so that at every instant its name stands for a whole one.

    Args:
        path: The file; its folder is made if need be.
        write: Writes the content into the file it is given.

    Raises:
        OSError: The disk is full or does not take the file; what `path` held before is untouched.
    """
    make_folder(path.parent)
    remove(temp_path(path))  # a killed process could not clear up
    _write(path, write)


def remove_temp_files(folder: Path) -> None:
    """Deletes what killed processes left unfinished in a folder that no other process writes in."""
    for name in names(folder):
        if name.startswith(".") and name.endswith(UNFINISHED):
            os.unlink(folder / name)


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    unfinished = temp_path(path)
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        remove(unfinished)
        raise _reason(error) from None
    sync(path.parent)


def durable_append(path: Path, size: int, parts: Iterable[NDArray[Any]]) -> None:
    """Appends arrays to a file of `size` bytes, or begins one if that is 0, and waits for the disk.

    After an error the end of the file is not known: it is not to be appended to again.

    Raises:
        OSError: The disk is full or does not take them, or the file is not of that size.
    """
    flags = os.O_WRONLY | (os.O_APPEND if size else os.O_CREAT | os.O_EXCL)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        if os.fstat(file.fileno()).st_size != size:
            raise OSError(f"{path} was changed by someone else")
        for part in parts:
            file.write(part.data)
        file.flush()
        os.fsync(file.fileno())


def move(path: Path, target: Path) -> None:
    """Renames a whole file, in place of what `target` was; durable after `sync` of the folder."""
    os.replace(path, target)


def link_or_copy(path: Path, target: Path) -> None:
    """Gives a whole file a second name, in place of what that stood for; durable after `sync` of the folder."""
    unfinished = temp_path(target)
    remove(unfinished)
    try:
        os.link(path, unfinished)
    except OSError:  # not every file system has links
        with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
            _write(target, lambda copy: copyfileobj(file, copy))
    else:
        os.replace(unfinished, target)
        remove(unfinished)  # where both names stand for one file already, a rename leaves both


def remove(path: Path) -> None:
    """Deletes a file, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def exists(path: Path) -> bool:
    """Whether there is a file of that name."""
    return os.path.exists(path)


def names(folder: Path) -> list[str]:
    """The names of the files in a folder, if there is one."""
    return os.listdir(folder) if os.path.isdir(folder) else []


def make_folder(folder: Path) -> None:
    """Makes a folder that lasts, and those above it, where there are none."""
    if os.path.isdir(folder):
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    try:
        os.mkdir(folder)
    except FileExistsError:  # another process was faster
        return
    sync(folder.parent)


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk; the one does not do the other."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temp_path(path: Path) -> Path:
    """What a file is called while it is being written."""
    return path.with_name(f".{path.name}{UNFINISHED}")


def _reason(error: BaseException) -> BaseException:
    """What stopped `torch.save`, which it hides behind a complaint about the file's position."""
    while isinstance(error, RuntimeError) and error.__context__ is not None:
        error = error.__context__
    return error
