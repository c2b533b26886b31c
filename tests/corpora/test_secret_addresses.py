"""Text at addresses with keys: they fetch it, and nothing that is kept or shown has them."""

import http.server
import json
import threading
from pathlib import Path

import pytest

from gram_platform.config.identity import mask_secrets
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.corpora.recipe_file import recipe_text

RECIPE = """
core_labels = ["general"]
{}
"""
ROW = """
[[rows]]
dataset = "json"
label = "{label}"
share = 0.5
files = ["http://127.0.0.1:{port}/{label}.jsonl?X-Amz-Signature=S3CR3T&access_token={token}"]
"""


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        label = self.path[1:].partition(".")[0]
        lines = [f"{label} {i} " + "a word and another one " * 40 for i in range(60)]
        body = "\n".join(json.dumps({"text": line}) for line in lines).encode()
        is_known = "Signature=S3CR3T" in self.path and "access_token=T0K3N" in self.path
        self.send_response(200 if is_known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def port():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def recipe(folder: Path, port: int, token: str) -> Path:
    rows = (ROW.format(label=label, port=port, token=token) for label in ("general", "lisp"))
    path = folder / f"{token}.toml"
    path.write_text(RECIPE.format("".join(rows)))
    return path


def test_a_manifest_and_a_record_have_no_secret_of_an_address(port, tmp_path, monkeypatch):
    path, root = recipe(tmp_path, port, "T0K3N"), tmp_path / "data"
    shape = {"seq_len": 32, "vocab_size": 300, "core_tokens": 3000}
    found = resolve(path, Packing(**shape), cache_dir=root)
    packed = prepare(found, root)
    assert packed.num_sequences("train", "core") > 0
    assert packed.manifest["data_id"] == found.data_id
    for secret in ("S3CR3T", "T0K3N"):
        assert secret not in recipe_text(str(path))
        assert not [
            file
            for file in root.rglob("*")
            if file.is_file() and secret.encode() in file.read_bytes()
        ]
    # Another key is another address, which may have other text.
    other = resolve(recipe(tmp_path, port, "OTHER"), Packing(**shape), cache_dir=root)
    assert other.data_id != found.data_id
    with pytest.raises(ValueError, match="403") as refused:
        prepare(other, root)
    assert "S3CR3T" not in mask_secrets(str(refused.value))


@pytest.mark.parametrize(
    "files",
    [
        "https://me:word@host/f.jsonl",
        "https://host/f.jsonl?token=word",
        "https%3A%2F%2Fme%3Aword%40host%2Ff.jsonl",
        "https%3A%2F%2Fhost%2Ff.jsonl%3Fa%3D1%26token%3Dword",
    ],
)
def test_an_address_within_an_address_has_none(files):
    assert "word" not in mask_secrets(f"hf://json?label=topic&files={files}&core=core")
