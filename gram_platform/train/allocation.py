"""Where a process's freed memory goes.

A training step frees what it has allocated, and the next one allocates the same again. By default glibc gives blocks at
the end of its heap back to the kernel, which clears every page anew when it is asked for again (FINDINGS.md has what
that costs).
"""

import contextlib
import ctypes
from collections.abc import Iterator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
LARGEST_THRESHOLD = 32 * 2**20  # of blocks that are mapped one by one: as large as glibc ever makes it by itself
KEPT_BYTES = 2**31 - 1


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, this process keeps what it frees at the end of its heap; nothing changes with another C library.

    Blocks of 32 MiB and more still go back at once, so what is kept is at most what a step needs together.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    try:
        yield
    finally:
        libc.malloc_trim(0)
