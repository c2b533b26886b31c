"""Reads the claims of all studies and searches, and makes the page of claims."""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from gram_platform.analysis.ratios import VARIANT
from gram_platform.config.identity import has_shape
from gram_platform.pages.report.claims import JUDGED, MARGINS_TEXT, claims_matrix, readable_claims
from gram_platform.pages.report.page import Page, Section, render
from gram_platform.paper.verdicts import CANNOT_TELL, EXPLANATION, PROFILE, UNIT_ERROR, VERDICTS

CLAIM_TEXTS = ("claim", "verdict", PROFILE, "size", VARIANT, "published", "source", EXPLANATION, "judged_at")
CLAIM_NUMBERS = ("difference", "low", "high", UNIT_ERROR, "detectable", "paper")
CLAIMS_RULE = f"""{JUDGED} {MARGINS_TEXT}

Where the detectable difference is larger than the paper's, expect "{CANNOT_TELL}". Published: the verdict and the
difference on the authors' published per-seed numbers, at their size or sizes. Paper: where these are not public, the
difference in the paper's table, at the paper's scale. Source: the label of the place in the paper. A verdict at a
demo's scale says nothing about the paper's scale."""


def claim_rows(claims: pd.DataFrame, scale: str, varies: str = "") -> list[dict]:
    """Turns claims, in the columns of `claims.csv`, into JSON values, with `judged_at`, the scale.

    `varies` is the column of the variant.
    """
    rows = []
    for record in claims.rename(columns={varies: VARIANT}).to_dict("records"):
        numbers = {name: _number(record[name]) for name in CLAIM_NUMBERS if name in record}
        seeds = {"num_seeds": int(record["num_seeds"])} if "num_seeds" in record else {}
        texts = {name: str(record.get(name) or "") for name in CLAIM_TEXTS[:-1]}
        rows.append({**texts, **numbers, **seeds, "judged_at": scale})
    return rows


def csv_claim_rows(data: bytes, scale: str, varies: str) -> list[dict]:
    """Reads the same rows from the claims.csv of a study or a search; ValueError for a file of another form."""
    try:
        frame = pd.DataFrame(list(csv.DictReader(io.StringIO(data.decode()))))
        for name in (*CLAIM_NUMBERS, "num_seeds"):
            if name in frame:
                frame[name] = pd.to_numeric(frame[name])
        rows = claim_rows(frame, scale, varies)
    except (csv.Error, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if not are_claim_rows(rows):
        raise ValueError("a column is missing or has another type than expected")
    return rows


def are_claim_rows(value: object) -> bool:
    """Tells whether a JSON value has the shape of `claim_rows`."""
    return has_shape(value, [lambda row: has_shape(row, dict.fromkeys(CLAIM_TEXTS, str)) and _has_numbers(row)])


def _has_numbers(row: Mapping) -> bool:
    numbers = [row[name] for name in CLAIM_NUMBERS if row.get(name) is not None]
    is_whole = "difference" not in row or ("low" in row and "high" in row)
    return is_whole and has_shape([*numbers, row.get("num_seeds", 0)], [float])


def claims_page(rows: Mapping[str, Sequence[Mapping]], titles: Mapping[str, tuple[str, str]]) -> Page:
    """Makes a summary and a section for each study with claims; `titles` is {study: (title, its report's address)}."""
    judged = {name: found for name, found in rows.items() if found}
    if not judged:
        empty = Section("All claims", "No study has what a claim needs yet: two sides on the same seed.")
        return Page("Claims", "", [empty])
    counts = {name: Counter(row["verdict"] for row in found) for name, found in judged.items()}
    summary = [
        {"study": titles[name][0], "study_url": titles[name][1], **{v: counts[name][v] for v in VERDICTS}}
        for name in judged
    ]
    total = {"study": "all", "study_url": "", **{v: sum(count[v] for count in counts.values()) for v in VERDICTS}}
    rule, table = render("rule.html", rule=CLAIMS_RULE), pd.DataFrame([*summary, total])
    sections = [Section("All claims", table=table, table_is_open=True, markup=rule)]
    for name, found in judged.items():
        frame = pd.DataFrame(found)
        numbers = [column for column in CLAIM_NUMBERS if column in frame]
        frame = frame.astype(dict.fromkeys(numbers, float))  # None, of JSON, is NaN here
        title, _ = titles[name]
        text = f"Judged at {', '.join(dict.fromkeys(frame['judged_at']))}."
        matrix = Section(title, text, table=claims_matrix(frame), table_is_open=True)
        sections += [matrix, Section(f"{title}: differences", table=readable_claims(frame))]
    return Page("Claims", "", sections)


def _number(value: object) -> float | None:
    number = float(value) if value is not None else math.nan
    return None if math.isnan(number) else number
