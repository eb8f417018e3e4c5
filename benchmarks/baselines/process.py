"""Process-wide settings that speed up any PyTorch training loop on a CPU."""

import ctypes
import platform

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
KEPT_BYTES = 256 * 2**20


def tune_process() -> None:
    """Flush denormals to zero, and keep freed memory in the process.

    Adam's running means of inactive units decay into denormal numbers, on which CPUs are slow. By default, glibc
    returns large temporaries to the kernel, and each update page-faults them in again.
    """
    torch.set_flush_denormal(True)
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(TRIM_THRESHOLD, KEPT_BYTES)
