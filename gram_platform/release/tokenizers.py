"""The tokenizer of an export: the corpus's own file, and what makes `AutoTokenizer` and `generate` use it."""

import json
import shutil
from pathlib import Path

from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer
from gram_platform.store import Store
from gram_platform.store.root import open_corpus

TOKENIZER = "tokenizer.json"


def write_tokenizer(store: Store, data_id: str | None, folder: Path, seq_len: int) -> int | None:
    """Writes the tokenizer's files; the id of its end of text, None (and no files) where the corpus is not there."""
    try:
        path = None if data_id is None else open_corpus(store, data_id).tokenizer_path
    except ValueError:
        path = None
    if path is None:
        return None
    tokenizer = load_tokenizer(path)
    end = end_of_text_id(tokenizer)
    shutil.copyfile(path, folder / TOKENIZER)
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), tokenizer.id_to_token(end))
    settings = {"clean_up_tokenization_spaces": False, "model_max_length": seq_len}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings, **special})
    _write(folder / "special_tokens_map.json", special)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    _write(folder / "generation_config.json", ids)
    return end


def _write(path: Path, fields: dict) -> None:
    path.write_text(json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
