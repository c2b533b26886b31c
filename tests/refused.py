"""Expects that bad input is refused by the name of its field, whatever the sentence says."""

import contextlib
from collections.abc import Iterator
from unittest.mock import ANY

import pytest

from gram_platform.config.identity import InvalidField


@contextlib.contextmanager
def refused(field: str, value: object = ANY) -> Iterator[None]:
    """Passes if the block raises InvalidField for the field, with this value if one is given."""
    with pytest.raises(InvalidField) as caught:
        yield
    assert (caught.value.field, caught.value.value) == (field, value)
