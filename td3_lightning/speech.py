"""Saying something to the person in front of a run."""

import os
import sys
from typing import Any


def say(*words: Any, **kwargs: Any) -> None:
    """Prints at once; where nobody listens any more, as behind `head`, nothing is said from then on."""
    try:
        print(*words, **kwargs, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
