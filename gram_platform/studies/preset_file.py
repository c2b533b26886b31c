"""Changes a preset by a TOML file (`--preset my.toml`) and by single fields (`--set`), for the same study."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from gram_platform.config import CORE
from gram_platform.config.identity import invalid, local_path, require_choice, require_int, require_real
from gram_platform.config.ladder import Size
from gram_platform.config.written import Written, WrongField, assignments, read_assignment, read_toml, together
from gram_platform.methods.nodes import method_nodes
from gram_platform.studies.definition import OURS, Preset, Study

SUFFIX, BASE, SIZES = ".toml", "base", "sizes"
DECLARED = ("variants", "measurement", "family")  # by a study's file alone
TRIED = ("baseline", "gram")  # methods of every study
AnyStudy = TypeVar("AnyStudy", bound=Study)


def read_preset(presets: Mapping[str, Preset], named: str, changes: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Returns the preset that `--preset` names, or that the file it names has as `base`, and all changes to it.

    A change is a text as `--set` takes it; the file's come first. ValueError for a file or a change that cannot be
    used, with file, line and field.
    """
    parts = list(map(read_assignment, changes))
    if named.endswith(SUFFIX):
        written = read_toml("preset", local_path("preset", named))
        named, of_file = written.plain.get(BASE, ""), {k: one for k, one in written.plain.items() if k != BASE}
        if named not in presets:
            raise written.error(invalid(BASE, named, "the preset to change, one of " + ", ".join(presets)))
        parts, changes = [replace(written, plain=of_file), *parts], (*assignments(of_file), *changes)
    require_choice("preset", named, tuple(presets))
    _changed(presets[named], together(parts))
    return named, changes


def with_changes(study: AnyStudy, preset: str, changes: tuple[str, ...]) -> AnyStudy:
    """Returns the study with changes of one of its presets; ValueError as `read_preset`."""
    if not changes:
        return study
    changed = _changed(study.presets[preset], together(list(map(read_assignment, changes))))
    return replace(study, presets={**study.presets, preset: changed})


def preset_params(preset: str, changes: tuple[str, ...]) -> dict[str, str]:
    """Returns the preset and the changes to it, for records."""
    return {"preset": preset, **({"changes": "; ".join(changes)} if changes else {})}


def _changed(preset: Preset, written: Written) -> Preset:
    """Applies all changes at once, and plans a small study with every size of the outcome.

    A preset with other values than its own is a set-up of this platform, not the paper's.
    """
    plain = dict(written.plain)
    for name in DECLARED:
        if name in plain:
            raise written.error(invalid(name, plain[name], "no value: a study's Python file declares it"))
    sizes = _sizes(preset, written, plain.pop(SIZES, {}))
    changed = written.build(Preset, preset, plain)
    try:
        changed = replace(changed, sizes=sizes)
        if changed == preset:
            return preset
        _require_usable(changed)
    except ValueError as error:
        raise written.error(error) from error
    return replace(changed, family=OURS)


def _sizes(preset: Preset, written: Written, plain: Any) -> dict[str, Size]:
    """Returns the sizes of the preset with some changed, added (on top of their `base`) or, by false, left out."""
    if not isinstance(plain, Mapping):
        raise written.error(invalid(SIZES, plain, "a table of sizes"))
    sizes = dict(preset.sizes)
    for name, one in plain.items():
        if one is False and name in sizes:
            del sizes[name]
            continue
        fields = {"name": name, **one} if isinstance(one, Mapping) else one
        base = fields.pop(BASE, name) if isinstance(one, Mapping) else name
        if base != name and base not in preset.sizes:
            expected = "one of " + ", ".join(preset.sizes)
            raise written.error(WrongField((SIZES, name, BASE), str(invalid(f"{SIZES}.{name}.{BASE}", base, expected))))
        sizes[name] = written.build(Size, preset.sizes.get(base), fields, (SIZES, name))
    return sizes


def _require_usable(preset: Preset) -> None:
    """ValueError unless every size can be planned with two auxiliary domains: what configs refuse, they refuse here."""
    for size in preset.sizes.values():
        require_int("micro_batch", size.micro_batch, 1)
        require_int("batch_size", size.batch_size, size.micro_batch)
        require_int("core_tokens", size.core_tokens, size.seq_len)
        require_real("peak_lr", size.peak_lr, 0.0, open_low=True)
        setting = preset.setting(size, 0, "0" * 12, (CORE, "a", "b"), ((), ("a",)))
        for method in TRIED:
            method_nodes(method, setting)
