"""Implements `gram eval`."""

import os
from pathlib import Path
from typing import Literal

from gram_platform.analysis.tables import frame_text, table_csv
from gram_platform.cli.flags import Positional, Storage, stored
from gram_platform.config.identity import invalid, local_path, require_int
from gram_platform.release.selection import available_modules
from gram_platform.release.task_scores import Benchmark, parse_profile, score_profiles


def eval_command(
    run_id: Positional[str],
    tasks: tuple[str, ...],
    profiles: tuple[str, ...] = ("core", "all"),
    include_path: str = "",
    limit: int = 0,
    num_fewshot: int = -1,
    storage: Storage = "",
    device: Literal["cpu", "cuda"] = "cpu",
    precision: Literal["float32", "bfloat16"] = "float32",
    out: str = "",
) -> None:
    """Score profiles of a run on tasks of the LM Evaluation Harness (needs the extra `eval`).

    Scores are kept in the storage and not made twice. Where a small model's accuracy is that of a guess, compare the
    bits a byte of the right answers.

    Args:
        run_id: a complete run, by its id or the beginning of it
        tasks: names of tasks, such as wmdp_bio mmlu hellaswag
        profiles: profiles to compare: core, core+virology, all
        include_path: folder with task files (.yaml) of your own
        limit: first documents of each task; 0: all
        num_fewshot: examples before each question; -1: as the task says
        storage: folder or URL of the storage
        device: cpu or cuda
        precision: float32 or bfloat16
        out: a .csv file for the table
    """
    require_int("limit", limit, 0)
    require_int("num_fewshot", num_fewshot, -1)
    if not tasks or not profiles:
        raise invalid("profiles" if tasks else "tasks", (), "one or more names")
    place = _output(out) if out else None
    store = stored(storage)
    found = available_modules(store, store.find_run(run_id))
    if store.run(found.run_id).result() is None:
        raise invalid("run_id", found.run_id, "a complete run")
    views = {name: parse_profile(found, name) for name in dict.fromkeys(profiles)}
    benchmark = Benchmark(tuple(dict.fromkeys(tasks)), include_path, num_fewshot, limit).checked()
    table = score_profiles(store.open_for_writing(), views, benchmark, device, precision, print)
    if place is not None:
        place.write_text(table_csv(table), encoding="utf-8")
    print(f"\n{frame_text(table, missing='nan')}")


def _output(out: str) -> Path:
    """Returns the path of a file to write; ValueError unless it can be one."""
    place = local_path("out", out)
    if place.is_dir() or not place.parent.is_dir() or not os.access(place if place.exists() else place.parent, os.W_OK):
        raise invalid("out", str(place), "a file that can be written, in a folder that exists")
    return place
