"""Opens gzip files, and zstd files with any window size."""

import gzip
import io
import tempfile
from pathlib import Path

# The window size of `zstd --long=31` in bytes. The library's default limit is 128 MB.
MAX_ZSTD_WINDOW = 1 << 31
BLOCK_BYTES = 1 << 20
# Compressed bytes of a .zst that are read at once. Four bytes can hold 128 KB of text.
PACKED_BYTES = 1 << 10


class _ZstdFile(io.RawIOBase):
    """Decompresses a .zst file. Raises EOFError for a truncated file, unlike zstandard's reader."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
        self._file = path.open("rb")
        self._frame, self._ready = None, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._ready:
            rest = self._frame.unused_data if self._frame and self._frame.eof else b""
            packed = rest or self._file.read(PACKED_BYTES)
            if not packed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends inside a frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def open_unpacked(path: Path) -> io.BufferedIOBase:
    """Opens a file for reading. Decompresses .gz and .zst files on the fly."""
    name = path.name.lower()
    if name.endswith(".gz"):
        return gzip.open(path, "rb")
    if name.endswith(".zst"):
        return io.BufferedReader(_ZstdFile(path), BLOCK_BYTES)
    return path.open("rb")


def seekable(path: Path, most: int) -> io.BufferedIOBase:
    """Opens a file for random access. Decompresses .gz and .zst files to a temporary file.

    Raises ValueError if the decompressed file exceeds the limit `most` or the free disk space.
    """
    if not path.name.lower().endswith((".gz", ".zst")):
        return path.open("rb")
    target = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        with open_unpacked(path) as packed:
            while block := packed.read(BLOCK_BYTES):
                if target.tell() + len(block) > most:
                    raise ValueError(
                        f"{path}: unpacks to more than {most:,} bytes: give the unpacked file"
                    )
                try:
                    target.write(block)
                except OSError as error:
                    raise ValueError(
                        f"{tempfile.gettempdir()}: no space for unpacked text ({error.strerror})"
                    ) from None
        target.seek(0)
    except BaseException:
        target.close()
        raise
    return target
