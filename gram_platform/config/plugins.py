"""Combines our methods, corpora and studies with those of installed packages."""

import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any


class Table(MutableMapping[str, Any]):
    """Maps names to objects of one kind, such as methods. Ours come before other packages'.

    A package declares an object as an entry point of `group`. Entry points, and our objects that
    are given as `module:name`, are imported on first use. Raises ValueError with the package's name
    if an entry point has a reserved or taken name, cannot be imported, or fails `is_usable`.
    """

    def __init__(
        self,
        group: str,
        ours: Mapping[str, Any],
        is_usable: Callable[[Any], bool] = callable,
        reserved: tuple[str, ...] = (),
    ) -> None:
        self.group, self.is_usable, self.reserved = group, is_usable, reserved
        self._known = dict(ours)

    @functools.cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        entries: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group):
            taken = f"{self._about(entry)}: the name is taken by"
            if entry.name in self._known or entry.name in self.reserved:
                raise ValueError(f"{taken} gram-platform: expected another name")
            if (other := entries.setdefault(entry.name, entry)) != entry:
                raise ValueError(f"{taken} the package {_package(other)}")
        return entries

    def _about(self, entry: EntryPoint) -> str:
        return f"{entry.name!r} in {self.group} of the package {_package(entry)}"

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            entry = self._entries[name]
            about = f"{self._about(entry)} ({entry.value})"
            try:
                value = entry.load()
            except Exception as error:
                # A package may raise anything while it is imported.
                problem = f"cannot be imported: {type(error).__name__}: {error}"
                raise ValueError(f"{about} {problem}") from error
            if not self.is_usable(value):
                raise ValueError(f"{about} is of another kind: {value!r}")
            self._known[name] = value
        if isinstance(value := self._known[name], str):
            self._known[name] = resolve_name(value)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._entries})

    def __len__(self) -> int:
        return len(self._known.keys() | self._entries.keys())

    def __setitem__(self, name: str, value: Any) -> None:
        self._known[name] = value

    def __delitem__(self, name: str) -> None:
        del self._known[name]


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "?"
