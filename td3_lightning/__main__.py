"""python -m td3_lightning"""

import sys

from td3_lightning.cli import main

if __name__ == "__main__":
    sys.exit(main())
