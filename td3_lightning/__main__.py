"""python -m td3_lightning"""

import os
import sys

from td3_lightning.cli import main


def script() -> int:
    """The command `td3-lightning`, which finds modules in the working directory as `python -m` does."""
    sys.path.insert(0, os.getcwd())
    return main()


if __name__ == "__main__":
    sys.exit(main())
