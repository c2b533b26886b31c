"""The authors' published numbers, by seed, as this package computes them from their published losses.

`published.csv` is the `per_seed` frame of `tables.analyse` of three studies: compute ratios by method, size, seed,
profile and class, of Simple Stories, of scaling from 50M to 5B and of dual use, whose baseline is scaling's at 800M.
No baseline curves of 2B and 5B are at hand: there the authors' own ratios of each domain are averaged by the same
rule, and the baseline has no row. A test computes the file again from the losses and compares. Domains have the
authors' names; DEMix's views have one expert on for every domain.
"""

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pandas as pd

from gram_platform.analysis.ratios import BASELINE, MEAN, VARIANT, ordered
from gram_platform.analysis.tables import CLASSES, NUM_DOMAINS, ROW, interval_text, over_seeds
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
# the published names of the dual-use domains, and those of our corpora
OUR_DOMAINS = {
    "papers-biology": "virology",
    "papers-nuclear": "nuclear",
    "papers-cyber": "cybersecurity",
    "code-lisp": "lisp",
}


def published_per_seed(study: str) -> pd.DataFrame:
    """The `per_seed` frame of a study (see `tables.per_seed_frame`) with `variant`; no rows where none is published."""
    rows = _published()
    return rows[rows["study"] == study].drop(columns="study").reset_index(drop=True)


@cache
def _published() -> pd.DataFrame:
    texts = dict.fromkeys(("study", VARIANT, *ROW, "seed", "retained"), str)
    return pd.read_csv(PUBLISHED_FILE, comment="#", dtype=texts).fillna(dict.fromkeys(texts, ""))


def published_table(study: str, domains: Collection[str] = ()) -> pd.DataFrame | None:
    """The published table of a study in the columns of table.csv; None where nothing is published.

    Profiles have the published names of domains, or ours where `domains` has these instead.
    """
    per_seed = published_per_seed(study).drop(columns=VARIANT)
    if per_seed.empty:
        return None
    names = {theirs: own for theirs, own in OUR_DOMAINS.items() if own in domains and theirs not in domains}
    table = ordered(over_seeds(per_seed), ())
    profiles = ["+".join(names.get(name, name) for name in profile.split("+")) for profile in table["profile"]]
    return table.assign(profile=profiles)


def published_means(published: pd.DataFrame, size: str) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """{method: (value, half-width of its interval) of each class} of the published means at a size."""
    rows = published[(published["profile"] == MEAN) & (published["size"] == size)].to_dict("records")
    return {row["method"]: tuple((row[n], row[f"{n}_high"] - row[n]) for n in CLASSES) for row in rows}


def beside_published(table: pd.DataFrame, published: pd.DataFrame, profile: str = MEAN) -> pd.DataFrame:
    """Our rows of a profile and of the mean over profiles, each followed by the published row of the same name.

    Columns `method, size, profile, from` ("ours" or "published"), the four classes as `mean [low, high]`, `num_seeds`.
    Published rows of our methods at other sizes stand in their place. No rows where no method is in both.
    """
    names = ["method", "size", "profile"]
    methods = (set(table["method"]) & set(published["method"])) - {BASELINE}
    both = [frame.assign(**{"from": name}) for frame, name in ((table, OURS), (published, PUBLISHED))]
    rows = pd.concat(both, ignore_index=True)
    rows = ordered(rows[rows["method"].isin(methods) & rows["profile"].isin([profile, MEAN])], ())
    for name in CLASSES:
        ends = (rows[name], rows[f"{name}_low"], rows[f"{name}_high"])
        rows[name] = pd.Series([interval_text(*triple) for triple in zip(*ends, strict=True)], rows.index, "str")
    return rows[[*names, "from", *CLASSES, "num_seeds"]]


# ---------------------------------------------------------------------------------------------------------- verdicts


def published_verdicts(study: str, per_seed: pd.DataFrame | None = None) -> pd.DataFrame:
    """Every claim of a study judged on published numbers as ours are: VERDICT_COLUMNS, a row a claim, size and variant.

    `per_seed`: the published rows, in the format of `analyse`; by default those that ship with the package. Empty where
    the study has none.
    """
    return _shipped_verdicts(study) if per_seed is None else paper_claims(per_seed, study)[VERDICT_COLUMNS]


@cache
def _shipped_verdicts(study: str) -> pd.DataFrame:
    return paper_claims(published_per_seed(study), study)[VERDICT_COLUMNS]


def with_published(claims: pd.DataFrame, study: str, per_seed: pd.DataFrame | None = None) -> pd.DataFrame:
    """Our claims with a column `published`: the verdict and difference on the published numbers, in words.

    At our size where it is a published one, else at every published size. There `paper`, the difference of printed
    means, is NaN: the published one replaces it. Empty where nothing is published. Arguments: `published_verdicts`.
    """
    theirs = published_verdicts(study, per_seed)
    words = [
        _published_words(theirs, *key) for key in zip(claims["claim"], claims["size"], claims[VARIANT], strict=True)
    ]
    paper = claims["paper"].astype(float).where([not text for text in words])
    return claims.assign(paper=paper, published=pd.Series(words, claims.index, dtype=object))


def _published_words(theirs: pd.DataFrame, claim: str, size: str, variant: str) -> str:
    """`agree, 0.100 [0.050, 0.150]`; of several sizes `agree at 100M, 200M; cannot tell at 50M; -0.020 to 0.040`."""
    of_claim = theirs[(theirs["claim"] == claim) & (theirs[VARIANT] == variant)]
    here = of_claim[of_claim["size"] == size]
    found = here if len(here) else of_claim
    if len(found) > 1:
        sizes = found.groupby("verdict", sort=False)["size"].agg(", ".join)
        judged = "; ".join(f"{verdict} at {own}" for verdict, own in sizes.items())
        return f"{judged}; {found['difference'].min():.3f} to {found['difference'].max():.3f}"
    of_one = zip(found["verdict"], found["difference"], found["low"], found["high"], strict=True)
    return "".join(f"{verdict}, {interval_text(*numbers)}" for verdict, *numbers in of_one)
