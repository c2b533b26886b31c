"""The packed corpora of a storage, on every machine that reads them.

A local storage has them in `<storage>/data`, which every machine must mount. An object store has them too, uploaded
once by a driver, and every machine keeps a copy in `Store.data_root`:

    data/<data_id>/manifest.json     written last: a corpus with a manifest is whole
    data/<data_id>/<SHA-256>         its files, by their content; the manifest says which is which

One process of a machine fetches while the others wait for it, and continues what a dead one has left; a copy is
compared with its hashes before it is there.
"""

import errno
import json
import shutil
import socket
from pathlib import Path

from gram_platform.config.identity import invalid
from gram_platform.corpora.packed import CorruptCorpus, PackedCorpus
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.corpora.sources import Progress
from gram_platform.corpora.staging import complete, publish
from gram_platform.store.local import LocalFolder
from gram_platform.store.remote import RemoteFolder
from gram_platform.store.root import Store

MANIFEST = "manifest.json"


def provide_corpus(recipe: CorpusRecipe, store: Store, progress: Progress | None = None) -> PackedCorpus:
    """The recipe's corpus, where every machine can open it: found in the storage, else packed here and uploaded.

    `store` is open for writing. Raises what `prepare` and `open_corpus` do.
    """
    from gram_platform.corpora.pack import prepare  # here, because a machine that only trains needs no tokenizers

    if store.is_local:
        return prepare(recipe, store.data_root, progress)
    stored = store.data_dir(recipe.data_id)
    if stored.exists(MANIFEST):
        return open_corpus(store, recipe.data_id)
    corpus = prepare(recipe, store.data_root, progress)
    _upload(corpus, stored, progress or (lambda what, done, total: None))
    return open_corpus(store, recipe.data_id)  # of two drivers at once, all read what the last one left


def open_corpus(store: Store, data_id: str) -> PackedCorpus:
    """The packed corpus on this machine, fetched from an object store if this machine lacks it.

    ValueError when the storage does not have it, when what it has is corrupted, or when this machine's disk is full.
    """
    target = store.data_root / data_id
    if store.is_local:
        if not target.exists():
            raise _absent(store, data_id, f"a file system that every machine mounts ({socket.gethostname()} sees no")
        return PackedCorpus.open(target)
    stored = store.data_dir(data_id)
    try:
        text = stored.read(MANIFEST)
    except FileNotFoundError:
        raise _absent(store, data_id, "a storage with the data of its runs (it has no") from None
    manifest = json.loads(text)
    found = _copy_of(manifest, target)
    if found is not None:
        return found
    with LocalFolder(str(store.data_root), writable=True).lock(f"fetch-{data_id}"):
        return _copy_of(manifest, target) or _fetch(stored, text, target)


def _absent(store: Store, data_id: str, allowed: str) -> ValueError:
    return invalid("storage", store.root, f"{allowed} data/{data_id}); submitting the study again makes it")


def _copy_of(manifest: dict, target: Path) -> PackedCorpus | None:
    """This machine's copy, if it is whole and the very data of the manifest."""
    corpus = complete(target)
    return corpus if corpus is not None and corpus.fingerprint == manifest["fingerprint"] else None


def _upload(corpus: PackedCorpus, stored: RemoteFolder, progress: Progress) -> None:
    files = corpus.manifest["files"]
    sizes = {relative: (corpus.path / relative).stat().st_size for relative in files}
    done, present = 0, set(stored.list())
    for relative, digest in files.items():
        if digest not in present or stored.size(digest) != sizes[relative]:
            stored.upload(digest, str(corpus.path / relative))
        done += sizes[relative]
        progress("uploading", done, sum(sizes.values()))
    stored.write(MANIFEST, (corpus.path / MANIFEST).read_bytes())


def _fetch(stored: RemoteFolder, manifest: bytes, target: Path) -> PackedCorpus:
    """Downloads beside the target, continuing what a process that died has left; verifies; renames into place."""
    partial = target.with_name(f".fetch-{target.name}")
    try:
        for relative, digest in json.loads(manifest)["files"].items():
            (partial / relative).parent.mkdir(parents=True, exist_ok=True)
            stored.download(digest, str(partial / relative))
        (partial / MANIFEST).write_bytes(manifest)
        PackedCorpus.open(partial).verify()
    except (CorruptCorpus, FileNotFoundError) as error:
        shutil.rmtree(partial)  # the next one begins again
        raise invalid("storage", stored.path, f"a storage whose data is intact ({error})") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.rmtree(partial)
        allowed = f"a folder ($GRAM_CACHE) with room for the data ({error.strerror})"
        raise invalid("storage", str(target.parent), allowed) from error
    if complete(target) is not None:  # other data, of a storage that lay under the same URL
        shutil.rmtree(target)
    publish(partial, target)
    return PackedCorpus.open(target)
