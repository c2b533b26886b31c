"""`gram replicate`: tables, claims and pages of losses that were measured elsewhere."""

import time
from pathlib import Path

from gram_platform.cli.flags import Positional
from gram_platform.config.identity import invalid, local_path
from gram_platform.pages.results.external import read_external
from gram_platform.pages.results.replication import Replicated, prepare, published_studies, replicate
from gram_platform.pages.results.results import frame_text, summary_text
from gram_platform.pages.site.replication import write_replication
from gram_platform.paper import published
from gram_platform.paper.published import SOURCE


def replicate_command(folder: Positional[str] = "", out: str = "replication", beside_published: bool = True) -> None:
    """Tables, claims, figures and pages of losses that were measured elsewhere; nothing is trained.

    Args:
        folder: with losses.csv and curves.jsonl (docs/replicate.md has the format); default: the per-seed compute
            ratios that the paper's authors published, which ship with this package
        out: folder of the pages and tables
        beside_published: set the published points beside the folder's where study and method are the same
    """
    started = time.monotonic()
    place = local_path("out", out)
    if place.exists() and not place.is_dir():
        raise invalid("out", str(place), "a folder, or a new name")
    studies = list(_studies(folder, beside_published))
    facts = f"From {local_path('folder', folder).resolve()}." if folder else f"{SOURCE}."
    paths = write_replication(studies, str(place), facts)
    for study in studies:
        print(f"\n{study.record.title}\n{' '.join(study.record.facts)}\n\n{_text(study)}")
    print("\n" + "\n".join(f"{name:16} {path}" for name, path in paths.items()))
    print(f"{len(studies)} studies in {time.monotonic() - started:.1f} s")


def _studies(folder: str, is_beside: bool):
    """Everything is read and checked before the first fit."""
    if not folder:
        yield from published_studies()
        return
    external = read_external(Path(folder))
    print(
        f"{external.folder}: {len(external.losses):,} losses, {external.curves['row'].nunique():,} curves", flush=True
    )
    for prepared in prepare(external):
        study = replicate(prepared, is_beside)
        print(f"{study.record.name}: {len(study.results.analysis.table)} rows", flush=True)
        yield study


def _text(study: Replicated) -> str:
    """The table with the published rows, the claims, and what is missing."""
    parts = [summary_text(study.record, study.results)]
    if study.published is not None:
        rows = published.beside_published(study.results.analysis.table, study.published, study.report.shown_profile)
        parts.append(f"beside the published\n\n{frame_text(rows)}")
    missing = study.results.analysis.missing
    return "\n\n".join([*parts, *([f"missing\n\n{frame_text(missing)}"] if len(missing) else [])])
