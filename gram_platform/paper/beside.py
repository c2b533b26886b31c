"""Our rows beside the published ones: the same analysis of the losses that the paper's authors published. Pure."""

from collections.abc import Collection, Mapping

import pandas as pd

from gram_platform.analysis.order import MEAN, ordered
from gram_platform.analysis.ratios import BASELINE, VARIANT
from gram_platform.analysis.tables import CLASSES, over_seeds
from gram_platform.analysis.text import interval_text
from gram_platform.paper.published import published_per_seed

OURS, PUBLISHED = "ours", "published"
# the published names of the dual-use domains, and those of our corpora
OUR_DOMAINS = {
    "papers-biology": "virology",
    "papers-nuclear": "nuclear",
    "papers-cyber": "cybersecurity",
    "code-lisp": "lisp",
}


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


def published_means(published: pd.DataFrame, size: str) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """{method: (value, half-width of its interval) of each class} of the published means at a size."""
    rows = published[(published["profile"] == MEAN) & (published["size"] == size)].to_dict("records")
    return {row["method"]: tuple((row[n], row[f"{n}_high"] - row[n]) for n in CLASSES) for row in rows}
