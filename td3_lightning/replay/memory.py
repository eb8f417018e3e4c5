"""Memory for large arrays, which the operating system provides when it is first written."""

import contextlib
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError


def lazy_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros that use no memory before they are written, unlike np.zeros on reused malloc pages.

    Raises:
        UsageError: The memory cannot be reserved.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        pages = _pages(size)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"The rows of the replay buffer require {size / 1e9:.1f} GB, which cannot be reserved ({error}). "
            "Reduce data.capacity."
        ) from error
    return np.frombuffer(pages, dtype).reshape(shape)


def _pages(size: int) -> mmap.mmap:
    """Reserve memory; on Linux in pages of 2 MB, which make random reads of rows faster."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel has no huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
