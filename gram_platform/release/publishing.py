"""Publishes an export on the Hugging Face Hub."""

import importlib.util
from pathlib import Path

from gram_platform.config.identity import hash_file, invalid, printable
from gram_platform.config.written import read_json
from gram_platform.release.export import RECORD, ExportRecord


def require_hub(name: str) -> None:
    """Raises ValueError if `huggingface_hub` or a login is missing, or `name` is invalid."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise invalid(
            "push", name, "huggingface_hub to be installed: pip install 'gram-platform[hub]'"
        )
    from huggingface_hub import get_token
    from huggingface_hub.utils import validate_repo_id

    if name.count("/") != 1:
        raise invalid("push", name, "ORG/NAME, an owner and a model of the hub")
    try:
        validate_repo_id(name)
    except ValueError as error:
        raise invalid("push", name, f"ORG/NAME as the hub allows it ({error})") from None
    if get_token() is None:
        raise invalid("push", name, "a login that may write: run `hf auth login`, or set HF_TOKEN")


def push_export(folder: Path, name: str) -> tuple[str, str]:
    """Uploads an export's folder in one commit. Returns (model URL, commit id).

    Creates a private model if the hub has none with this name. Raises ValueError if the hub rejects
    the upload, or if the model already has a large file (LFS) that is not in this export.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    api, files = HfApi(), read_json(folder / RECORD, ExportRecord)["files"]
    try:
        api.create_repo(name, private=True, exist_ok=True)
        model = api.model_info(name, files_metadata=True)
        stored = {file.rfilename: file.lfs.sha256 for file in model.siblings or () if file.lfs}
        # Other large files may contain modules that this export must not reveal.
        if others := sorted(path for path, sha256 in stored.items() if files.get(path) != sha256):
            allowed = "a new model, or one that has this export: its history would keep the others"
            raise invalid("push", name, f"{allowed}, {', '.join(others[:4])}")
        message = f"Export {hash_file(folder / RECORD)[:12]}"
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, commit_message=message, parent_commit=model.sha
        )
    except (OSError, HTTPError, RuntimeError) as error:
        # A failed file upload raises RuntimeError.
        cause = printable(str(error.__cause__ or error))
        raise invalid(
            "push", name, f"a model of the hub that this login may write ({cause})"
        ) from None
    return f"{api.endpoint}/{name}", commit.oid
