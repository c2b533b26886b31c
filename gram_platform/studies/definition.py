"""Defines studies, presets and variants, and applies changes from a file or `--set` to a preset."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from gram_platform.config import CORE
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import (
    invalid,
    local_path,
    mask_secrets,
    one_of,
    require_choice,
    require_int,
    require_real,
)
from gram_platform.config.ladder import Law, Size, apply_law
from gram_platform.config.plain import from_plain, overlaid
from gram_platform.config.written import Written, assignments, read_assignment, read_toml, together
from gram_platform.corpora import catalog_names
from gram_platform.corpora.stories import RESPONSE
from gram_platform.methods import METHODS, Profile, Setting
from gram_platform.methods.measurements import Description, Losses
from gram_platform.methods.nodes import method_nodes
from gram_platform.methods.setting import Setup
from gram_platform.planner.ranks import AUTO, Ranks

OURS, PAPER_FAMILY, AS_RUN_FAMILY = "ours", "paper", "as_run"
# How a report describes the origin of a preset's numbers.
FAMILIES = {
    OURS: "a set-up of this platform, not the paper's",
    PAPER_FAMILY: "as the paper's text prints it",
    AS_RUN_FAMILY: (
        "as the authors' published settings have it, where these differ from the paper's text"
    ),
}
# How a report describes the flags that set the sources of numbers.
SOURCES = {
    "law": "Learning rates and batches by the law {}.",
    "maxent": "MaxEnt's rate and weight of every profile from the search {}.",
    "texts": "Sentences and prompts from {}.",
    "start": "Training begins with the imported model {}.",
}
NOT_REPRODUCED = (
    "Not as the authors ran it: our block is StarCoder2's (LayerNorm, no biases of attention and"
    " unembedding, whole rotary embeddings), so that profiles export; optimizer states are float32,"
    " the initialisation is ours, and a micro-batch has one route on every rank."
)


@dataclass(frozen=True)
class Variant:
    """A condition that a study varies beyond method, size and profile, such as recall 0.5."""

    # The name in tables; "" in studies that vary nothing else.
    name: str = ""
    changed: Callable[[Setting], Setting] = lambda setting: setting
    # The methods of this variant besides the baseline. () means all of the study's.
    methods: tuple[str, ...] = ()
    # How many labels, in alphabetical order, are auxiliary domains. The rest are core. 0: all.
    num_auxiliary: int = 0

    def serves(self, method: str) -> bool:
        return method == "baseline" or not self.methods or method in self.methods


# What a study of label noise varies.
RECALL = "recall"


def mislabel(recall: float = 1.0, precision: float = 1.0) -> Variant:
    name = f"{recall:g}" + f", precision {precision:g}" * (precision < 1.0)
    return Variant(name, lambda s: s.with_options(recall=recall, precision=precision))


@dataclass(frozen=True)
class MaxEntRanges:
    """The log-scale ranges of a MaxEnt search, and its number of trials per profile."""

    peak_lr: tuple[float, float]
    retain_weight: tuple[float, float]
    num_trials: int
    # The search's name, which differs between presets on different data.
    search: str = "maxent_search"


@dataclass(frozen=True, kw_only=True)
class Preset(Setup):
    """A complete set of hyperparameters for a study, such as the demo's or the paper's."""

    sizes: dict[str, Size]
    num_seeds: int
    corpus: str
    # The ratio of auxiliary to core tokens. Auxiliary domains are equally large.
    aux_share: float
    # The domain of the compared profile. If the corpus lacks it: the first domain, or each.
    retain: str = ""
    # Compares core, and core with each domain.
    every_single: bool = False
    core_only: bool = False
    methods: tuple[str, ...] = ()
    # The accumulation of routed methods at sizes where it differs.
    accumulation_of_size: tuple[tuple[str, str], ...] = ()
    eval_sequences_of_size: tuple[tuple[str, int], ...] = ()
    # The machine that --dry-run plans for.
    machine: str = "cpu"
    # Bytes of text on which a tokenizer is trained.
    sample_bytes: int = 4_000_000
    # A tokenizer.json. "" means the corpus's own, or one trained on the corpus.
    tokenizer: str = ""
    # Attention does not cross documents.
    masks_documents: bool = False
    family: str = OURS
    seeds_of_size: tuple[tuple[str, int], ...] = ()
    # Results must not use the seeds on which the preset was chosen.
    first_seed: int = 0
    variants: tuple[Variant, ...] = (Variant(),)
    measurement: Losses = field(default_factory=Losses)
    # Takes compute ratios against the same seed's baseline, not the pooled baselines.
    own_baseline: bool = False
    # The search for MaxEnt's rate and weight. If None, `options` has both.
    maxent_search: MaxEntRanges | None = None

    def __post_init__(self) -> None:
        require_int("preset.num_seeds", self.num_seeds, 1)
        require_choice("preset.family", self.family, FAMILIES)
        require_int("preset.first_seed", self.first_seed, 0)
        require_real("preset.aux_share", self.aux_share, 0.0, 1.0, open_low=True)
        shapes = {(size.seq_len, size.vocab_size) for size in self.sizes.values()}
        if len(shapes) != 1:
            expected = "one sequence length and vocabulary for all"
            raise invalid("preset.sizes", sorted(shapes), expected)
        names = [variant.name for variant in self.variants]
        if not names or len(set(names)) < len(names):
            raise invalid("preset.variants", names, "at least one variant, each name once")

    def eval_sequences(self, size: str) -> int:
        return dict(self.eval_sequences_of_size).get(size, self.num_eval_sequences)

    @property
    def most_eval_sequences(self) -> int:
        return max(self.num_eval_sequences, *(n for _, n in self.eval_sequences_of_size), 0)

    def seeds(self, size: str, number: int = 0, first: int = -1) -> range:
        """Returns a size's seeds, which are `number` consecutive integers from `first` on.

        If `number` is 0 or `first` is -1, uses the preset's value.
        """
        begin = self.first_seed if first < 0 else first
        return range(begin, begin + (number or dict(self.seeds_of_size).get(size, self.num_seeds)))

    def select_domains(self, domains: tuple[str, ...]) -> tuple[str, ...]:
        """Returns `domains` without the domain that only finetuning uses, if the preset has one.

        Raises ValueError if the preset has this domain, but `domains` lacks it.
        """
        text = self.options.finetuning.text if self.options.finetuning else CORE
        require_choice("options.finetuning.text", text, domains)
        return tuple(domain for domain in domains if domain == CORE or domain != text)

    @property
    def seq_len(self) -> int:
        return next(iter(self.sizes.values())).seq_len

    @property
    def vocab_size(self) -> int:
        return next(iter(self.sizes.values())).vocab_size

    def by_law(self, law: Law) -> "Preset":
        pairs = self.sizes.items()
        sizes = {name: apply_law(size, law, total_parameters(size.dense())) for name, size in pairs}
        return replace(self, sizes=sizes)

    def require_ranks(self, sizes: tuple[str, ...], ranks: Ranks) -> None:
        """Raises ValueError for unknown sizes, and for ranks that do not divide a micro-batch."""
        for name, _ in ranks.of_size:
            require_choice("num_workers", name, self.sizes)
        for name in sizes:
            micro_batch, wanted = self.sizes[name].micro_batch, ranks.number_of(name)
            if wanted != AUTO and micro_batch % wanted:
                allowed = f"a divisor of the micro-batch of {name}, {micro_batch} sequences"
                raise invalid("num_workers", wanted, allowed)

    def with_size(self, name: str, size: Size, tokenizer: str) -> "Preset":
        """Replaces all sizes by `size`, which inherits the settings of the size `name`."""

        def rename(values: tuple[tuple[str, object], ...]) -> tuple:
            return tuple((size.name, value) for of_size, value in values if of_size == name)

        return replace(
            self,
            sizes={size.name: size},
            tokenizer=tokenizer,
            accumulation_of_size=rename(self.accumulation_of_size),
            seeds_of_size=rename(self.seeds_of_size),
            eval_sequences_of_size=rename(self.eval_sequences_of_size),
        )

    def setting(
        self,
        size: Size,
        seed: int,
        data_id: str,
        domains: tuple[str, ...],
        profiles: tuple[Profile, ...],
        document_end: int = -1,
    ) -> Setting:
        """Returns the setting for a size and a seed on a corpus with these domains.

        `document_end` is the end-of-document token, or -1 if attention may cross documents.
        """
        auxiliary = [d for d in domains if d != CORE]
        core_sequences = size.core_tokens // size.seq_len
        aux_sequences = max(1, round(core_sequences * self.aux_share / len(auxiliary)))
        accumulation = dict(self.accumulation_of_size).get(size.name, self.routing.accumulation)
        shared = {field.name: getattr(self, field.name) for field in fields(Setup)}
        shared |= {
            "routing": replace(self.routing, accumulation=accumulation),
            "num_eval_sequences": self.eval_sequences(size.name),
            "aux_factor_of": tuple(pair for pair in self.aux_factor_of if pair[0] in auxiliary),
            "conventions": replace(self.conventions, document_end=document_end),
        }
        return Setting(
            size=size,
            seed=seed,
            data_id=data_id,
            num_sequences={CORE: core_sequences, **dict.fromkeys(auxiliary, aux_sequences)},
            profiles=profiles,
            **shared,
        )


@dataclass(frozen=True)
class Study(Description):
    """A study as declared in its Python file, before flags change it."""

    presets: Mapping[str, Preset]
    default_preset: str = "demo"
    methods: tuple[str, ...] = ()
    # The profile that figures of variants show, such as "mean". "" is the compared profile.
    profile: str = ""
    # What each figure, table and appendix of the paper shows.
    paper: Mapping[str, str] = field(default_factory=dict)

    @property
    def about(self) -> str:
        presets = [f"{name} ({', '.join(preset.sizes)})" for name, preset in self.presets.items()]
        methods = f"Methods: {', '.join(METHODS)}. This study's: {', '.join(self.methods)}."
        parts = [
            self.title,
            self.question,
            f"Presets, with their sizes: {'; '.join(presets)}."
            f" Without --preset: {self.default_preset}.",
            *([methods] if self.methods else []),
            f"Corpora: {', '.join(catalog_names())}.",
        ]
        return "\n\n".join(parts)


SUFFIX, BASE, SIZES = ".toml", "base", "sizes"
AnyStudy = TypeVar("AnyStudy", bound=Study)


def with_preset(
    study: AnyStudy, named: str, changes: tuple[str, ...]
) -> tuple[AnyStudy, str, tuple[str, ...]]:
    """Returns (study with the changed preset, name of the preset, all changes as `--set` values).

    `named` is the value of --preset: a preset's name, or a file of changes whose `base` names the
    preset to change. `changes` override the file. A ValueError names the wrong field, and its line
    in the file.
    """
    presets = study.presets
    parts = list(map(read_assignment, changes))
    if named.endswith(SUFFIX):
        written = read_toml("preset", local_path("preset", named))
        plain = dict(written.plain)
        named = plain.pop(BASE, "")
        if named not in tuple(presets):
            allowed = f"the preset to change, {one_of(named, presets)}"
            raise written.error(invalid(BASE, named, allowed))
        parts = [replace(written, plain=plain), *parts]
        changes = (*assignments(plain), *changes)
    require_choice("preset", named, presets)
    changed = _apply_changes(presets[named], together(parts))
    return replace(study, presets={**presets, named: changed}), named, changes


def on_responses(study: Study, changes: tuple[str, ...]) -> tuple[str, ...]:
    """Adds a change that restricts the finetuning loss to responses.

    Raises ValueError if the study has no finetuning stage.
    """
    if not any(preset.options.finetuning for preset in study.presets.values()):
        allowed = "a study with a finetuning stage, such as finetuning"
        raise invalid("instructions", study.name, allowed)
    return tuple(dict.fromkeys((f'options.finetuning.responses_after="{RESPONSE}"', *changes)))


def mask_place(place: str) -> str:
    """Returns the last part of an absolute path, or a URL without secrets, for public pages."""
    return Path(place).name if place.startswith(os.sep) else mask_secrets(place)


def preset_params(preset: str, changes: tuple[str, ...]) -> dict[str, str]:
    return {"preset": preset, **({"changes": "; ".join(changes)} if changes else {})}


def _apply_changes(preset: Preset, written: Written) -> Preset:
    """Applies all changes at once. A changed preset is no longer labelled as the paper's."""
    with written.locate_errors():
        for name in ("variants", "measurement", "family"):
            if name in written.plain:
                allowed = "no value: a study's Python file declares it"
                raise invalid(name, written.plain[name], allowed)
        sizes = _sizes(preset, written.plain.get(SIZES, {}))
        changed = from_plain(Preset, {**overlaid(preset, written.plain), SIZES: sizes})
        if changed == preset:
            return preset
        _require_usable(changed)
    return replace(changed, family=OURS)


def _sizes(preset: Preset, plain: Any) -> dict[str, Any]:
    """Changes a preset's sizes. A new size copies the size `base`. False removes a size."""
    if not isinstance(plain, Mapping):
        raise invalid(SIZES, plain, "a table of sizes")
    sizes: dict[str, Any] = dict(preset.sizes)
    for name, size in plain.items():
        if size is False and name in sizes:
            del sizes[name]
            continue
        base = name
        if isinstance(size, Mapping):
            size = {"name": name, **size}
            base = size.pop(BASE, name)
        if base != name:
            require_choice(f"{SIZES}.{name}.{BASE}", base, preset.sizes)
        sizes[name] = overlaid(preset.sizes.get(base), size)
    return sizes


def _require_usable(preset: Preset) -> None:
    for size in preset.sizes.values():
        require_int("micro_batch", size.micro_batch, 1)
        require_int("batch_size", size.batch_size, size.micro_batch)
        require_int("core_tokens", size.core_tokens, size.seq_len)
        require_real("peak_lr", size.peak_lr, 0.0, open_low=True)
        setting = preset.setting(size, 0, "0" * 12, (CORE, "a", "b"), ((), ("a",)))
        for method in ("baseline", "gram"):
            method_nodes(method, setting)


def seeds_text(of_size: Mapping[str, int]) -> str:
    """Formats numbers of seeds. `3 (2B 1, 5B 1)` means 3 for each size except 2B and 5B."""
    counts = list(of_size.values())
    common = max(counts, key=counts.count)
    others = ", ".join(f"{size} {number}" for size, number in of_size.items() if number != common)
    return f"{common} ({others})" if others else str(common)
