"""Reads flags of a few values from a command line: the error for another value suggests the nearest."""

from collections.abc import Sequence
from typing import Literal, get_args

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from gram_platform.config.identity import one_of

# For `tyro.cli`, which by itself suggests flags but no values. The shell's completion is written without it: it needs
# the values that tyro itself would check.
CHOICES = ConstructorRegistry()


@CHOICES.primitive_rule
def _choice(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Constructs a Literal of texts; "" is a default that nobody types."""
    if info.type_origin is not Literal:
        return None
    values = get_args(info.type)
    named = tuple(filter(None, values))

    def read(texts: Sequence[str]) -> str:
        [text] = texts
        if text not in values:
            raise ValueError(f"{text!r}: expected {one_of(text, named)}")
        return text

    metavar = f"{{{','.join(named)}}}"
    return PrimitiveConstructorSpec(1, metavar, read, values.__contains__, lambda value: [value])
