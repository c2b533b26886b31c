"""Reads the authors' numbers by seed, computed by this package from their published losses; puts them beside ours.

`published.csv` holds the `per_seed` frames of `tables.analyse` of three studies: Simple Stories, scaling from 50M to
5B, and dual use, whose baseline is scaling's at 800M. For 2B and 5B no baseline curves are available: the authors'
ratios of each domain are averaged by the same rule, and the baseline has no row. A test computes the file again from
the losses. Domains have the authors' names; DEMix's views have one expert for every domain.
"""

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pandas as pd

from gram_platform.analysis.ratios import BASELINE, MEAN, VARIANT, ordered
from gram_platform.analysis.tables import CLASSES, NUM_DOMAINS, ROW, interval_cell, interval_text, over_seeds
from gram_platform.paper.claims import paper_claims

SOURCE = (
    "Per-seed compute ratios computed from the losses in the public results of agencyenterprise/modular-pretraining"
)
SOURCE += ", read through the public fork JR-Vickers/modular-pretraining, commit b55fb36"
SOURCE += "; 2B and 5B: averaged from the ratios published there, for want of baseline curves"
PUBLISHED_FILE = Path(__file__).with_name("published.csv")
VERDICT_COLUMNS = ["claim", "size", VARIANT, "verdict", "difference", "low", "high"]
COLUMNS = ("study", VARIANT, *ROW, "seed", *CLASSES, "retained", *NUM_DOMAINS.values())
OURS, PUBLISHED = "ours", "published"
OUR_DOMAINS = {  # the published names of the dual-use domains: the names in our corpora
    "papers-biology": "virology",
    "papers-nuclear": "nuclear",
    "papers-cyber": "cybersecurity",
    "code-lisp": "lisp",
}


def published_per_seed(study: str) -> pd.DataFrame:
    """Returns a study's `per_seed` frame (see `tables.per_seed_frame`) with `variant`; no rows if none is published."""
    rows = _published()
    return rows[rows["study"] == study].drop(columns="study").reset_index(drop=True)


@cache
def _published() -> pd.DataFrame:
    texts = dict.fromkeys(("study", VARIANT, *ROW, "seed", "retained"), str)
    return pd.read_csv(PUBLISHED_FILE, comment="#", dtype=texts).fillna(dict.fromkeys(texts, ""))


def published_table(study: str, domains: Collection[str] = ()) -> pd.DataFrame | None:
    """Returns a study's published table in the columns of table.csv; None if nothing is published.

    Profiles have the published names of domains, or ours if `domains` contains only ours.
    """
    per_seed = published_per_seed(study).drop(columns=VARIANT)
    if per_seed.empty:
        return None
    names = {theirs: ours for theirs, ours in OUR_DOMAINS.items() if ours in domains and theirs not in domains}
    table = ordered(over_seeds(per_seed), ())
    profiles = ["+".join(names.get(name, name) for name in profile.split("+")) for profile in table["profile"]]
    return table.assign(profile=profiles)


def published_means(published: pd.DataFrame, size: str) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Returns {method: (value, half-width of the interval) of each class} of the published means at a size."""
    rows = published[(published["profile"] == MEAN) & (published["size"] == size)].to_dict("records")
    return {row["method"]: tuple((row[n], row[f"{n}_high"] - row[n]) for n in CLASSES) for row in rows}


def beside_published(table: pd.DataFrame, published: pd.DataFrame, profile: str = MEAN) -> pd.DataFrame:
    """Returns our rows of a profile and of `mean`, each followed by the published row of the same name.

    Columns: `method, size, profile, from` ("ours" or "published"), the four classes as `mean [low, high]`, `num_seeds`.
    Published rows of our methods at other sizes are sorted in. No rows if no method is in both.
    """
    methods = (set(table["method"]) & set(published["method"])) - {BASELINE}
    both = [frame.assign(**{"from": name}) for frame, name in ((table, OURS), (published, PUBLISHED))]
    rows = pd.concat(both, ignore_index=True)
    rows = ordered(rows[rows["method"].isin(methods) & rows["profile"].isin([profile, MEAN])], ())
    texts = {c: [interval_cell(row, c) for row in rows.to_dict("records")] for c in CLASSES}
    rows = rows.assign(**{name: pd.Series(values, rows.index, "str") for name, values in texts.items()})
    return rows[[*ROW, "from", *CLASSES, "num_seeds"]]


# ---------------------------------------------------------------------------------------------------------- verdicts


def published_verdicts(study: str, per_seed: pd.DataFrame | None = None) -> pd.DataFrame:
    """Judges a study's claims on published numbers, as on ours: VERDICT_COLUMNS, a row per claim, size and variant.

    `per_seed`: the published rows, in the format of `analyse` (default: those that ship with the package). Empty if the
    study has none.
    """
    return _shipped_verdicts(study) if per_seed is None else paper_claims(per_seed, study)[VERDICT_COLUMNS]


@cache
def _shipped_verdicts(study: str) -> pd.DataFrame:
    return paper_claims(published_per_seed(study), study)[VERDICT_COLUMNS]


def with_published(claims: pd.DataFrame, study: str, per_seed: pd.DataFrame | None = None) -> pd.DataFrame:
    """Adds a column `published` to our claims: verdict and difference on the published numbers, in words.

    Uses our size if it is published, else every published size. The published difference replaces `paper`, that of
    printed means, which becomes NaN. Empty if nothing is published. Arguments: `published_verdicts`.
    """
    theirs = published_verdicts(study, per_seed)
    words = [
        _published_words(theirs, *key) for key in zip(claims["claim"], claims["size"], claims[VARIANT], strict=True)
    ]
    paper = claims["paper"].astype(float).where([not text for text in words])
    return claims.assign(paper=paper, published=pd.Series(words, claims.index, dtype=object))


def _published_words(theirs: pd.DataFrame, claim: str, size: str, variant: str) -> str:
    """Returns `agree, 0.100 [0.050, 0.150]`; for several sizes `agree at 2B; cannot tell at 50M; -0.020 to 0.040`."""
    of_claim = theirs[(theirs["claim"] == claim) & (theirs[VARIANT] == variant)]
    here = of_claim[of_claim["size"] == size]
    found = here if len(here) else of_claim
    if len(found) > 1:
        sizes = found.groupby("verdict", sort=False)["size"].agg(", ".join)
        judged = "; ".join(f"{verdict} at {names}" for verdict, names in sizes.items())
        return f"{judged}; {found['difference'].min():.3f} to {found['difference'].max():.3f}"
    of_one = zip(found["verdict"], found["difference"], found["low"], found["high"], strict=True)
    return "".join(f"{verdict}, {interval_text(*numbers)}" for verdict, *numbers in of_one)
