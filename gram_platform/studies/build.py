"""Adds corpora, settings and nodes to a study's plan."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gram_platform.config import CORE, IMPORTED, Slice
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid, one_of
from gram_platform.config.ladder import match_import
from gram_platform.config.plain import from_plain
from gram_platform.config.terminal import say_bytes
from gram_platform.corpora import Packing, resolve
from gram_platform.corpora.recipe import CorpusRecipe, HubSource
from gram_platform.corpora.resolution import grows_with_size
from gram_platform.corpora.tokenizer import document_end
from gram_platform.methods import Profile, Setting
from gram_platform.methods.labels import restore_true_labels
from gram_platform.methods.nodes import require_closed
from gram_platform.methods.setting import Unlearning
from gram_platform.store import Store
from gram_platform.store.root import BEST
from gram_platform.studies.definition import RECALL, Preset, Variant, mislabel
from gram_platform.studies.plan import Choice, StudyPlan

# The share used of a recipe's estimated sequences.
SAFE_SHARE = 0.9
# The relative error of a hub label's estimated length [ours].
EPOCH_TOLERANCE = 0.05


def with_nodes(part: StudyPlan) -> StudyPlan:
    """Adds corpora, settings and nodes to a plan. Needs no packed corpus.

    Raises ValueError if the corpus has too few labels, or if a search does not fit the study.
    """
    preset, choice = part.preset, part.choice
    named = resolve_corpora(preset, choice)
    if search_id := part.sources.get("maxent"):
        best = load_best(Store(choice.storage), search_id, named[choice.sizes[0]].data_id)
        preset = preset.with_options(maxent_profiles=best)
    if part.study.varies == RECALL:
        preset = replace(preset, variants=_choose_variants(preset, named[choice.sizes[0]]))
    recipes = recipes_of(preset, choice, named)
    settings = tuple(_variant_settings(preset, choice, recipes))
    if search_id:
        _require_searched(search_id, settings[0])
    recipes_of_size = {
        size: tuple({r[size].data_id: r[size] for r in recipes.values()}.values()) for size in named
    }
    part = replace(part, preset=preset, recipes=recipes_of_size, settings=settings)
    nodes_of = preset.measurement.nodes
    entries = tuple(
        n for s in settings for method in part.methods_of(s) for n in nodes_of(method, s)
    )
    require_closed(entries)
    return replace(part, entries=entries)


def _choose_variants(preset: Preset, recipe: CorpusRecipe) -> tuple[Variant, ...]:
    """Returns a variant with true labels and a variant with wrong labels.

    Wrong labels come from the corpus, or from --recall and --precision. If neither gives any,
    returns the preset's variants.
    """
    true = Variant("1", restore_true_labels)
    if any(pool.seen_as != pool.domain for pool in recipe.domains_from):
        return (true, Variant("as labelled"))
    given = mislabel(preset.options.recall, preset.options.precision)
    return preset.variants if given.name == "1" else (true, given)


def from_import(preset: Preset, size: str, store: Store, import_id: str) -> Preset:
    """Returns the preset with a single size that has an imported model's shape.

    Raises ValueError if the storage lacks the model or its tokenizer.
    """
    if not import_id.startswith(IMPORTED):
        raise invalid("start", import_id, f"an id that `gram import` has printed: {IMPORTED}...")
    directory = store.import_dir(import_id)
    model, tokenizer = directory.model_config(), directory.tokenizer(store.data_root)
    if tokenizer is None:
        raise invalid(
            "start", import_id, "an import whose checkpoint had a tokenizer.json, to pack text with"
        )
    imported = match_import(preset.sizes[size], model, total_parameters(model), import_id)
    return preset.with_size(size, imported, str(tokenizer))


def recipes_of(
    preset: Preset, choice: Choice, named: dict[str, CorpusRecipe]
) -> dict[Variant, dict[str, CorpusRecipe]]:
    """Returns the corpus recipe of each variant and size.

    Omits variants for which the corpus has too few labels. `named` maps each size to its recipe
    with all auxiliary labels. Raises ValueError if no variant remains.
    """
    recipe = next(iter(named.values()))
    has_core, recipes = choice.core_label or CORE in recipe.domain_of, {}
    labels = sorted(label for label, d in recipe.domain_of.items() if d != CORE or not has_core)
    for variant in preset.variants:
        number = variant.num_auxiliary
        pooled = tuple(label for label in recipe.domain_of if label not in labels[:number])
        if not number or number == len(recipe.domains) - 1 == len(labels):
            recipes[variant] = named
        elif number <= len(labels) and pooled:
            recipes[variant] = resolve_corpora(preset, choice, pooled)
    if not recipes:
        fewest = min(variant.num_auxiliary for variant in preset.variants)
        allowed = f"a corpus with at least {fewest} auxiliary labels; it has {len(labels)}"
        raise invalid("corpus", choice.corpus, allowed)
    return recipes


def _variant_settings(
    preset: Preset, choice: Choice, recipes: Mapping[Variant, Mapping[str, CorpusRecipe]]
) -> Iterator[Setting]:
    for variant, of_size in recipes.items():
        for setting in settings_of(preset, choice, of_size):
            if variant.num_auxiliary:
                # A scarce domain is repeated.
                expected = _estimate_sequences(of_size[setting.size.name])
                safe = {domain: round(SAFE_SHARE * n) for domain, n in expected.items()}
                setting = replace(setting, available=safe)
            yield replace(variant.changed(setting), variant=variant.name)


def _estimate_sequences(recipe: CorpusRecipe) -> dict[str, int]:
    return {domain: recipe.estimate_sequences("train", domain) for domain in recipe.domains}


def _add_parts(setting: Setting, recipe: CorpusRecipe, adjacent: tuple[str, ...]) -> Setting:
    parts, near = [], []
    for pool in recipe.domains_from:
        if {pool.domain, pool.seen_as} <= setting.num_sequences.keys():
            near += [pool.name] * bool(set(adjacent) & set(pool.labels))
            share = pool.num_bytes / sum(part.num_bytes for part in recipe.pools_of(pool.domain))
            number = max(1, round(share * setting.num_sequences[pool.domain]))
            part = pool.domain, pool.seen_as, Slice(pool.name, 0, number)
            parts += [part] if pool.part_of else []
    setting = replace(setting, parts=tuple(parts), adjacent=tuple(near))
    return _with_repeats(setting, recipe)


def _with_repeats(setting: Setting, recipe: CorpusRecipe) -> Setting:
    """Lets a Hub domain's text repeat if a run needs 95% to 105% of the estimated text."""
    if not isinstance(recipe.source, HubSource):
        return setting
    low, high = 1 - EPOCH_TOLERANCE, 1 + EPOCH_TOLERANCE
    scarce = {
        domain: int(low * n)
        for domain, n in _estimate_sequences(recipe).items()
        if low * n < setting.num_sequences[domain] <= high * n
    }
    return replace(setting, available=scarce)


def _require_searched(search_id: str, setting: Setting) -> None:
    trials = dict(setting.options.maxent_profiles)
    for profile in setting.profiles:
        if profile not in trials and set(profile) != set(setting.auxiliary):
            name = setting.profile_name(profile)
            expected = f"a search that covers every profile of the study; it lacks {name}"
            raise invalid("maxent", search_id, expected)


def resolve_corpora(
    preset: Preset, choice: Choice, core_labels: tuple[str, ...] = ()
) -> dict[str, CorpusRecipe]:
    """Returns the corpus recipe of each size.

    The recipe is the same for all sizes, unless the corpus grows with the size. `core_labels`
    overrides `--core-label`. Raises ValueError if the corpus has no auxiliary domain.
    """
    if grows_with_size(choice.corpus):
        return {name: _resolve(preset, choice, core_labels, name) for name in choice.sizes}
    return dict.fromkeys(choice.sizes, _resolve(preset, choice, core_labels))


def _resolve(
    preset: Preset, choice: Choice, core_labels: tuple[str, ...], size: str = ""
) -> CorpusRecipe:
    packing = Packing(
        core_label=core_labels or choice.core_label or None,
        seq_len=preset.seq_len,
        vocab_size=preset.vocab_size,
        validation_sequences=preset.eval_sequences(size) if size else preset.most_eval_sequences,
        core_tokens=preset.sizes[size].core_tokens if size else 0,
        aux_share=preset.aux_share if size else 0.0,
        tokenizer=preset.tokenizer,
        sample_bytes=preset.sample_bytes,
        core_tokenizer=choice.core_tokenizer,
        adjacent=choice.adjacent,
        instructions=choice.instructions,
    )
    recipe = resolve(choice.corpus, packing, Store(choice.storage).data_root, say_bytes())
    if set(recipe.domains) <= {CORE}:
        expected = "labels that leave at least one auxiliary domain in the corpus"
        raise invalid("core_label", choice.core_label, expected)
    return recipe


def settings_of(
    preset: Preset, choice: Choice, recipes: Mapping[str, CorpusRecipe]
) -> tuple[Setting, ...]:
    """Returns a setting for each size and seed, in the order of `choice.sizes`.

    Raises ValueError if `choice.retain` has an unknown domain.
    """
    recipe = next(iter(recipes.values()))
    domains = preset.select_domains(recipe.domains)
    profiles = _profiles(choice.retain, preset, tuple(d for d in domains if d != CORE))
    end = document_end(recipe.tokenizer, recipe.tokenizer_path) if preset.masks_documents else -1
    sizes = [preset.sizes[name] for name in choice.sizes]
    return tuple(
        _add_parts(
            preset.setting(size, seed, recipes[size.name].data_id, domains, profiles, end),
            recipes[size.name],
            choice.adjacent,
        )
        for size in sizes
        for seed in preset.seeds(size.name, choice.seeds, choice.first_seed)
    )


def _profiles(
    retain: tuple[str, ...], preset: Preset, auxiliary: tuple[str, ...]
) -> tuple[Profile, ...]:
    """Returns the profiles to compare. `retain` overrides the domains that the preset retains.

    If there is only one auxiliary domain, returns only the core profile, because a profile that
    retains this domain would forget nothing.
    """
    for domain in retain:
        if domain not in auxiliary:
            raise invalid("retain", domain, one_of(domain, auxiliary, "the auxiliary domains: "))
    if retain and len(auxiliary) == 1:
        expected = "no domain: with a single auxiliary domain only core is compared"
        raise invalid("retain", retain[0], expected)
    if preset.core_only or len(auxiliary) == 1:
        return ((),)
    named = retain or ((preset.retain,) if preset.retain in auxiliary else ())
    chosen = named or (auxiliary if preset.every_single else auxiliary[:1])
    return (*[()] * preset.every_single, *((domain,) for domain in sorted(set(chosen))))


def load_best(store: Store, search_id: str, data_id: str) -> tuple[tuple[Profile, Unlearning], ...]:
    """Returns the parameters of each profile's best trial in a stored search.

    Raises ValueError if the search is unknown, used data other than `data_id`, or lacks a complete
    trial for a profile.
    """
    plain = {}
    if search_id in store.list_searches():
        plain = store.search_dir(search_id).read_or_set_aside(BEST, dict)
    if not plain:
        expected = f"the id of a MaxEnt search with complete trials in {store.root}"
    elif plain["data_id"] != data_id:
        expected = f"a search on this study's data, {data_id}; it is on {plain['data_id']}"
    elif plain["missing"]:
        lacking = ", ".join(plain["missing"])
        expected = f"a search with a complete trial of every profile; it has none of {lacking}"
    else:
        return tuple(
            (tuple(trial["retained"]), from_plain(Unlearning, trial["maxent"]))
            for trial in plain["profiles"]
        )
    raise invalid("maxent", search_id, expected)
