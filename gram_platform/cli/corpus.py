"""Implements `gram prepare`."""

from typing import Annotated

import tyro

from gram_platform.cli.flags import Positional, make_folder, report_progress
from gram_platform.config.endings import explain_error
from gram_platform.config.identity import InvalidField, invalid, local_path
from gram_platform.config.terminal import say
from gram_platform.studies.flags import Amount, Number, Place, Switch, Text, show_as


def prepare_command(
    corpus: Positional[show_as(str, "CORPUS")],
    out: Place = "",
    core_label: Text = "",
    seq_len: int = 1024,
    vocab_size: int = 50_304,
    tokenizer: Text = "",
    core_tokens: Number = 0,
    aux_share: Amount = 0.0,
    core_tokenizer: Switch = False,
    check_only: Annotated[Switch, tyro.conf.arg(name="check")] = False,
) -> None:
    """Pack a corpus into sequences of tokens.

    Args:
        corpus: a catalog name, folder, file, .json of globs, .toml recipe or hf:// URL
        out: folder for packed corpora; each gets a subfolder named after its data_id
        core_label: labels whose text forms core, separated by commas; default: the label `core`,
            or the labels that the catalog names
        seq_len: tokens per sequence
        vocab_size: size of the tokenizer to train, or the maximum size of a given tokenizer
        tokenizer: a tokenizer.json or a name on the hub; default: train one on the corpus
        core_tokens: number of core tokens to download from the hub; default: the catalog's number
        aux_share: auxiliary tokens to download from the hub, as a fraction of the core tokens;
            default: the catalog's fraction
        core_tokenizer: train the tokenizer only on the text of core
        check_only: open one record of every source, validate its fields and count the labels, but
            pack nothing
    """
    from gram_platform.corpora import Packing, check, resolve
    from gram_platform.corpora.checking import require_readable
    from gram_platform.corpora.pack import prepare
    from gram_platform.store import Store
    from gram_platform.store.root import storage_place
    from gram_platform.studies.packing import ray_workers, text_lines

    packing = Packing(
        core_label=core_label or None,
        seq_len=seq_len,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        core_tokens=core_tokens,
        aux_share=aux_share,
        core_tokenizer=core_tokenizer,
    )
    if check_only:
        if out:
            raise invalid("out", out, "no value with --check, which packs nothing")
        results = check(corpus)
        for result in results:
            state = "ok" if result.ok else "FAILED"
            marked = f" ({result.mark})" if result.mark else ""
            say(f"{state:6}  {result.source}  [{result.label}]{marked}  {result.found}")
        if not all(result.ok for result in results):
            raise SystemExit(1)
        root = Store(storage_place("")).data_root
        try:
            say("\n".join(text_lines(resolve(corpus, packing, root, report_progress))))
        except InvalidField as error:
            # The records are valid, but a flag such as --core-label is missing.
            say(explain_error(error))
        return
    if not out:
        require_readable(corpus)
        raise invalid("out", out, "a folder for the packed corpus")
    root = local_path("out", out)
    make_folder(str(root))
    recipe = resolve(corpus, packing, root, report_progress)
    packed = prepare(recipe, root, report_progress, ray_workers())
    say(f"{root / recipe.data_id}  fingerprint {packed.fingerprint}")
    for domain in packed.domains:
        counts = [
            f"{packed.num_sequences(split, domain):,} {split}" for split in ("train", "validation")
        ]
        say(f"  {domain:20} {' and '.join(counts)} sequences of {packed.seq_len} tokens")
    for line in packed.warnings:
        say(f"  {line}")
