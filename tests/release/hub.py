"""A stand-in for the Hugging Face hub on this machine, which the hub's own client talks to over
HTTP.

It has models with files, large ones by their SHA-256, and one login. It refuses what the hub would:
a wrong login, a commit on another one's owner, one that is not on the newest commit, and files that
were never uploaded.
"""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants

TOKEN = "hf_" + "s" * 34
OWNER = "my-lab"
LARGE = ".safetensors"


@dataclass
class Model:
    """A model: its files, the commits' ids, and whether it is private."""

    is_private: bool
    files: dict[str, bytes] = field(
        default_factory=lambda: {".gitattributes": b"*.safetensors filter=lfs\n"}
    )
    commits: list[str] = field(default_factory=lambda: ["0" * 40])


@dataclass
class Hub:
    """What is on the hub, and the requests' lines."""

    url: str = ""
    models: dict[str, Model] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    has_room: bool = True  # for large files


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self) -> None:
        path, body = urlsplit(self.path).path, self._body()
        self.hub.requests.append(f"{self.command} {path}")
        if path.startswith("/blobs/"):  # as object stores have it: the address is the permission
            if not self.hub.has_room:
                return self._answer(403, {"error": "The storage is full."})
            self.hub.blobs[path.removeprefix("/blobs/")] = body
            return self._answer(200, {})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid username or password."})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if path.endswith(".git/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            found = [
                {**one, "actions": {"upload": {"href": f"{self.hub.url}/blobs/{one['oid']}"}}}
                for one in wanted
            ]
            return self._answer(200, {"transfer": "basic", "objects": found})
        name = "/".join(path.split("/")[3:5])
        if path.startswith("/api/models/") and name in self.hub.models:
            return self._model(name, path, body)
        return self._answer(404, {"error": "Repository not found"})

    do_GET = do_POST = do_PUT = _handle

    def _create(self, wanted: dict) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        created = {"url": f"{self.hub.url}/{name}", "name": name}
        if wanted["organization"] != OWNER:
            return self._answer(
                403, {"error": f"You don't have the rights to create a model under {name}"}
            )
        if name in self.hub.models:
            return self._answer(409, {"error": "You already created this model repo", **created})
        is_private = wanted.get("private") is True or wanted.get("visibility") == "private"
        self.hub.models[name] = Model(is_private)
        return self._answer(200, created)

    def _model(self, name: str, path: str, body: bytes) -> None:
        model, rest = self.hub.models[name], path.split("/")[5:]
        if rest == ["preupload", "main"]:
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "shouldIgnore": False, "uploadMode": self._mode(f["path"])}
                for f in files
            ]
            return self._answer(200, {"files": modes})
        if rest == ["commit", "main"]:
            return self._commit(name, model, [json.loads(line) for line in body.splitlines()])
        siblings = [
            {"rfilename": path, **self._large(path, data)} for path, data in model.files.items()
        ]
        found = {
            "id": name,
            "sha": model.commits[-1],
            "private": model.is_private,
            "siblings": siblings,
        }
        return self._answer(200, found)

    def _mode(self, path: str) -> str:
        return "lfs" if path.endswith(LARGE) else "regular"

    def _large(self, path: str, data: bytes) -> dict:
        if not path.endswith(LARGE):
            return {}
        sha256 = hashlib.sha256(data).hexdigest()
        return {"size": len(data), "lfs": {"size": len(data), "sha256": sha256, "pointerSize": 130}}

    def _commit(self, name: str, model: Model, lines: list[dict]) -> None:
        header, operations = lines[0]["value"], [(line["key"], line["value"]) for line in lines[1:]]
        if header["parentCommit"] != model.commits[-1]:
            return self._answer(412, {"error": "A commit has happened since."})
        for kind, value in operations:
            if kind == "file":
                model.files[value["path"]] = base64.b64decode(value["content"])
                continue
            data = self.hub.blobs.get(value["oid"])
            if (
                kind != "lfsFile"
                or data is None
                or hashlib.sha256(data).hexdigest() != value["oid"]
            ):
                return self._answer(400, {"error": f"{value['path']}: no such upload"})
            model.files[value["path"]] = data
        model.commits.append(hashlib.sha1(repr(operations).encode()).hexdigest())
        address = f"{self.hub.url}/{name}/commit/{model.commits[-1]}"
        return self._answer(
            200, {"success": True, "commitOid": model.commits[-1], "commitUrl": address}
        )


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub on a free port, in a thread."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def as_client(hub: Hub, token: str = TOKEN) -> Iterator[None]:
    """Lets this process's client talk to the hub, as `HF_ENDPOINT` does for a new process.

    Large files go by HTTP: the protocol Xet needs a storage server.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_TOKEN", token)
        yield
