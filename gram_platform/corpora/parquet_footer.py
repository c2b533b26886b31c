"""Reads the sizes of a parquet file's columns from its footer, which is in Thrift's compact protocol.

`pyarrow` has these numbers too, but a wrong footer ends the process there.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import IO

TRUE, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = 1, 3, (4, 5, 6), 7, 8, (9, 10), 12  # types of the protocol
ROW_GROUPS, COLUMNS, META = 4, 1, 3  # fields of the footer, of a row group and of a column
PATH, UNPACKED_BYTES, DATA_PAGE, DICTIONARY_PAGE = 3, 6, 9, 11  # fields of a column's metadata
KIND_OF_PAGE, PAGE_BYTES, IS_DICTIONARY = 1, 2, 2  # fields of a page's head, and the kind of a dictionary
MOST_BYTES = 1 << 26  # of a footer


def column_sizes(file: IO[bytes], names: Sequence[str]) -> list[tuple[int, int]]:
    """Returns (unpacked bytes, bytes of the dictionary) of the larger of these columns, for each row group.

    OSError for a footer that cannot be read.
    """
    try:
        file.seek(-8, 2)
        num_bytes = int.from_bytes(file.read(4), "little")
        if num_bytes > MOST_BYTES:
            raise OSError(f"its footer has more than {MOST_BYTES:,} bytes")
        file.seek(-8 - num_bytes, 2)
        footer = dict(_fields(iter(file.read(num_bytes))))
        found = []
        for group in footer.get(ROW_GROUPS, ()):
            columns = [column[META] for column in group[COLUMNS]]
            columns = [column for column in columns if column[PATH] in [[name.encode()] for name in names]]
            sizes = [(column[UNPACKED_BYTES], _dictionary_bytes(file, column)) for column in columns]
            found.append((max(size for size, _ in sizes), max(size for _, size in sizes)))
        return found
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise OSError(f"its footer cannot be read: {error!r}") from None


def _dictionary_bytes(file: IO[bytes], column: dict) -> int:
    """Returns the unpacked bytes of the dictionary that begins a column; 0 if there is none."""
    file.seek(min(column[DATA_PAGE], column.get(DICTIONARY_PAGE) or column[DATA_PAGE]))
    head = dict(itertools.islice(_fields(iter(file.read(32))), 2))
    return head[PAGE_BYTES] if head[KIND_OF_PAGE] == IS_DICTIONARY else 0


def _fields(raw: Iterator[int]) -> Iterator[tuple[int, object]]:
    """Yields the numbers and values of a struct's fields."""
    number = 0
    while byte := _byte(raw):
        step, kind = byte >> 4, byte & 15
        number = number + step if step else _integer(raw)
        yield number, kind == TRUE if kind <= 2 else _value(raw, kind)


def _value(raw: Iterator[int], kind: int) -> object:
    if kind <= BYTE:
        return _byte(raw)
    if kind in INTEGERS:
        return _integer(raw)
    if kind == DOUBLE:
        return struct.unpack("<d", bytes(_byte(raw) for _ in range(8)))[0]
    if kind == BINARY:
        return bytes(itertools.islice(raw, _natural(raw)))
    if kind in LISTS:
        byte = _byte(raw)
        size = _natural(raw) if byte >> 4 == 15 else byte >> 4
        return [_value(raw, byte & 15) for _ in range(size)]
    if kind == STRUCT:
        return dict(_fields(raw))
    raise TypeError(f"type {kind}")


def _byte(raw: Iterator[int]) -> int:
    if (byte := next(raw, None)) is None:
        raise TypeError("it ends too early")
    return byte


def _natural(raw: Iterator[int]) -> int:
    number = 0
    for shift in range(0, 64, 7):
        byte = _byte(raw)
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise TypeError("a number is too long")


def _integer(raw: Iterator[int]) -> int:
    number = _natural(raw)
    return (number >> 1) ^ -(number & 1)
