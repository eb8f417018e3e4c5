"""Test the entry point of the command."""

import subprocess
import sys

IMPORT = """
import gc
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
from td3_lightning.__main__ import import_main
collections.clear()
main = import_main()
print(len(collections), gc.isenabled(), gc.get_freeze_count() > 100_000, main.__module__)
"""


def test_imports_run_without_garbage_collection() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "True", "td3_lightning.cli.app"]
