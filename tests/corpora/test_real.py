"""Real papers, prose and code, where they lie beside the checkout."""

import shutil

from gram_platform.corpora import prepare, resolve


def test_real_corpus(shared_data, tmp_path):
    """The smaller files whole and a slice of core: every document arrives, and nothing is on both sides."""
    folder = tmp_path / "mini"
    folder.mkdir()
    for name in ("lisp", "nuclear"):
        shutil.copy(shared_data / "dualuse_mini" / f"{name}.jsonl", folder)
    with (shared_data / "dualuse_mini" / "core.jsonl").open("rb") as source:
        (folder / "core.jsonl").write_bytes(b"".join(line for line, _ in zip(source, range(2000), strict=False)))
    recipe = resolve(folder, seq_len=128, vocab_size=1024, sample_bytes=1_000_000)
    packed = prepare(recipe, tmp_path / "data")
    packed.verify()
    assert packed.domains == ("core", "lisp", "nuclear")
    counted = {d: sum(packed.num_documents(s, d) for s in ("train", "validation")) for d in packed.domains}
    assert counted == {"core": 2000, "lisp": 856, "nuclear": 2852}
    assert packed.manifest["duplicates_across_splits"] == 0
    assert all(packed.num_sequences("validation", d) >= recipe.validation_sequences for d in packed.domains)
    assert packed.train("core").max() < 1024
