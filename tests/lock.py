"""Turns a report of `pip install --dry-run --report` into requirements with hashes: `make lock`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path


def locked(report: Mapping) -> str:
    """A line for each package but this one; ValueError for one without a hash, which pip would
    refuse later."""
    lines = []
    for item in report["install"]:
        name, found = item["metadata"]["name"], item["download_info"]
        if "dir_info" in found:
            continue
        sha256 = found.get("archive_info", {}).get("hashes", {}).get("sha256")
        if sha256 is None:
            raise ValueError(f"{name}: expected a file with a SHA-256, found {found['url']}")
        lines.append(f"{name}=={item['metadata']['version']} --hash=sha256:{sha256}\n")
    return "".join(sorted(lines, key=str.lower))


if __name__ == "__main__":
    sys.stdout.write(locked(json.loads(Path(sys.argv[1]).read_text())))
