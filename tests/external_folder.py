"""Folders of losses and curves with a planted law, so that every compute ratio that comes out is
known."""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

COLUMNS = ("study", "variant", "method", "size", "seed", "retained", "domain", "elicited", "loss")
DOMAINS = ("core", "lisp", "virology")
SEEDS = ("1", "2", "3")
STEPS = np.linspace(40.0, 4000.0, 25)


def loss_at(domain: str, step, scale: float = 6.0):
    """A (s + s0)^-alpha, another one for each domain."""
    place = sum(map(ord, domain)) % 7
    return (scale + 0.1 * place) * (np.asarray(step, float) + 20.0 + place) ** -(
        0.12 + 0.01 * place
    )


def jitter(seed: str) -> float:
    """Of the final step equivalents; its mean over SEEDS is 0."""
    return 0.02 * (int(seed) - 2)


def view_rows(
    method: str,
    retained: str,
    ratios: Mapping[str, float],
    study: str = "scaling",
    variant: str = "",
    size: str = "50M",
    seeds: Iterable[str] = SEEDS,
    elicited: int = 0,
    scale: float = 6.0,
) -> list[dict]:
    """One row a seed and domain: the loss at which the compute ratio is `ratios[domain]` + the
    seed's jitter."""
    key = {"study": study, "variant": variant, "method": method, "size": size, "retained": retained}
    return [
        {
            **key,
            "seed": seed,
            "domain": domain,
            "elicited": elicited,
            "loss": float(loss_at(domain, STEPS[-1] * (ratio + jitter(seed)), scale)),
        }
        for seed in seeds
        for domain, ratio in ratios.items()
    ]


def baseline_rows(domains: Iterable[str] = DOMAINS, **where) -> list[dict]:
    return view_rows("base", "+".join(domains), dict.fromkeys(domains, 1.0), **where)


def curve_lines(
    domains: Iterable[str] = DOMAINS,
    study: str = "scaling",
    variant: str | None = None,
    size: str = "50M",
    seeds: Iterable[str] = SEEDS,
    scale: float = 6.0,
) -> list[dict]:
    key = {"study": study, "size": size} | ({} if variant is None else {"variant": variant})
    return [
        {
            **key,
            "seed": s,
            "domain": d,
            "steps": STEPS.tolist(),
            "losses": loss_at(d, STEPS, scale).tolist(),
        }
        for s in seeds
        for d in domains
    ]


def write_folder(
    folder: Path, rows: list[dict], curves: list[dict], studies: dict | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "losses.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (folder / "curves.jsonl").write_text("".join(json.dumps(curve) + "\n" for curve in curves))
    if studies is not None:
        (folder / "studies.json").write_text(json.dumps(studies))
    return folder


def scaling_rows() -> list[dict]:
    """Baselines, and GRAM on two profiles with attacks: core .9, retain .95, forget .6
    (core+virology) or .7, .8."""
    return [
        *baseline_rows(),
        *view_rows("grmoe", "core+virology", {"core": 0.9, "virology": 0.95, "lisp": 0.6}),
        *view_rows("grmoe", "core+virology", {"lisp": 0.8}, elicited=1),
        *view_rows("grmoe", "core", {"core": 0.9, "virology": 0.7, "lisp": 0.7}),
    ]
