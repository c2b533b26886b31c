"""`gram export` and `gram import`: views leave as Hugging Face checkpoints, and checkpoints come in as starts."""

from pathlib import Path
from typing import Literal

from gram_platform.cli.flags import Positional, Storage, report_progress, storage_place, stored
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid, local_path, require_real
from gram_platform.release.card import card_text, describe
from gram_platform.release.export import CARD, Export, Exported, export_view
from gram_platform.release.files import MAX_FILE_BYTES
from gram_platform.release.importing import import_checkpoint, read_config
from gram_platform.release.numbers import numbers_of
from gram_platform.release.selection import find_run, parse_modules, parse_sources, selectable
from gram_platform.store import Store


def export_command(
    run_id: Positional[str],
    out: str = "",
    modules: str | None = None,
    all_modules: bool = False,
    sources: str = "",
    storage: Storage = "",
    dtype: Literal["float32", "bfloat16"] = "float32",
    max_file_gb: float = MAX_FILE_BYTES / 1e9,
    check: Literal["own", "transformers"] = "own",
) -> None:
    """Write a view as a stock StarCoder2 checkpoint, with what the view does not have physically absent.

    Args:
        run_id: a complete run or imported model, by its id or the beginning of it
        out: a new or empty folder
        modules: what is switched on beside core, such as virology,lisp=0.5; "" is core alone
        all_modules: switch on every module
        sources: virology=RUN_ID of modules that several branches have trained (FT-LoRA, FT-MLP)
        storage: folder or URL of the storage
        dtype: of the checkpoint
        max_file_gb: a larger checkpoint is written in several files
        check: own reads the files back layer by layer; transformers also loads the whole model with that library
    """
    if not out:
        raise invalid("out", out, "a folder for the checkpoint")
    place = local_path("out", out)
    require_real("max_file_gb", max_file_gb, 0.0, open_low=True)
    store = stored(storage)
    found = selectable(store, find_run(store, run_id))
    if modules is None and not all_modules and found.modules:
        raise invalid("modules", modules, f'names of {", ".join(found.modules)}, "" for core alone, or --all-modules')
    if modules is not None and all_modules:
        raise invalid("modules", modules, "no value beside --all-modules")
    wanted = dict.fromkeys(found.modules, 1.0) if all_modules else parse_modules(modules or "")
    origins = {domain: find_run(store, beginning) for domain, beginning in parse_sources(sources).items()}
    export = Export(found.view(wanted, origins), dtype, round(max_file_gb * 1e9), check)
    about = describe(store, export.view, dtype, numbers_of(store, export.view))

    def write_card(folder: Path, part: str, agreements: tuple) -> None:
        (folder / CARD).write_text(card_text(about, part, agreements), encoding="utf-8")

    print_export(export_view(store, export, place, write_card, report_progress))


def print_export(exported: Exported) -> None:
    for name, agreements in exported.agreements.items():
        for agreement in agreements:
            print(f"{name + ': ' if name else ''}{agreement}")
    state = f"{exported.num_bytes / 1e6:,.1f} MB of tensors" if exported.is_new else "was there; its card is new"
    print(f"{exported.folder}: {state}")


def import_command(checkpoint: Positional[str], storage: Storage = "", seq_len: int | None = None) -> None:
    """Take a StarCoder2 checkpoint into the storage, so that runs can start from it and add modules.

    Args:
        checkpoint: a folder with config.json and safetensors files
        storage: folder or URL of the storage; a new one is made
        seq_len: of the sequences that runs shall have; default: all the model's positions
    """
    folder = local_path("checkpoint", checkpoint)
    read_config(folder)
    store = Store(storage_place(storage)).open_for_writing()
    imported = import_checkpoint(folder, store, seq_len, report_progress)
    model = imported.model
    for note in imported.notes:
        print(f"note: {note}")
    shape = f"{model.num_layers} layers, width {model.d_model}, MLP {model.d_mlp}, {model.num_heads} heads"
    shape += f" ({model.num_kv_heads} key-value), vocabulary {model.vocab_size:,}, sequences of {model.seq_len}"
    print(f"{total_parameters(model):,} parameters: {shape}")
    state = "imported" if imported.is_new else "was there"
    print(f"{imported.import_id}: {state}; studies begin with it: --start {imported.import_id}")
