"""Make the paths of a command absolute before an environment can change the working directory."""

import os
from pathlib import Path

from jsonargparse import Namespace

from td3_lightning.errors import UsageError, refuse

# Settings that contain the path of a file or a folder.
SETTINGS = ("trainer.default_root_dir", "checkpoint.dirpath", "ckpt_path", "folder", "files", "output")


def expand(name: str, path: str | Path) -> str:
    """Replace a leading "~" of a path with the home directory. `name` is that of the setting in errors.

    Raises:
        UsageError: The path is empty, a URL, or no path.
    """
    if "://" in str(path) or not str(path) or "\0" in str(path):
        raise refuse(name, "a local path", str(path), "Use a folder or a file on this machine.")
    return os.path.expanduser(path)


def absolute(name: str, path: str | Path) -> Path:
    """Expand a path and join it to the working directory. The errors are those of `expand`.

    Symbolic links are kept, because the folder of a checkpoint identifies its run.
    """
    return Path(expand(name, path)).absolute()


def is_below(path: str) -> bool:
    """Return whether a path stays below the folder to which it is relative."""
    return not Path(path).is_absolute() and ".." not in Path(path).parts and "\0" not in path


def make_absolute(config: Namespace) -> None:
    """Make every path of a command's configuration absolute, in place. The errors are those of `expand`.

    The default of `trainer.default_root_dir` becomes the working directory, because Lightning reads the working
    directory after the environment has been created.
    """
    config["trainer.default_root_dir"] = config.trainer.default_root_dir or "."
    for name in SETTINGS:
        if config.get(name) is not None:
            config[name] = str(absolute(name, config[name]))


def shown(path: str | Path, start: Path) -> str:
    """Format a path for a message: relative to the working directory of the command if it lies below it."""
    relative = os.path.relpath(path, start)
    return str(path) if relative.startswith("..") else relative


def check_links(folder: Path) -> None:
    """Refuse a run's folder in which `check_link` refuses a file: a resume would write outside the folder."""
    for path in folder.iterdir() if folder.is_dir() else ():
        check_link(path)


def check_link(path: Path) -> None:
    """Raise `UsageError` if a file is a symlink to a place outside its folder, or no regular file."""
    if path.is_symlink() and not path.is_dir() and not path.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(
            f"{path} must be a file of the run, got a symlink to {os.readlink(path)}. Replace the link with a copy of "
            "the file."
        )
    if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe may never end
        raise UsageError(f"{path} must be a file of the run, got a pipe, a socket or a device. Remove it.")
