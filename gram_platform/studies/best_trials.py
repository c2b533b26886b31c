"""The best trials of a MaxEnt search as a file: written by the search, read by the studies that take its parameters.

`<storage>/searches/<search id>/best.json`: the search, its data, size and seeds, how many trials each profile has had
(`num_trials`), and for each profile the trial, its run ids, the objective and MaxEnt's parameters; under `missing` the
profiles of which no trial is complete yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from gram_platform.config.identity import invalid
from gram_platform.methods import Profile
from gram_platform.methods.setting import MaxEnt
from gram_platform.store import Store

BEST = "best.json"
DEFAULT = MaxEnt()


@dataclass(frozen=True)
class BestTrial:
    """The trial of the lowest objective of one profile."""

    profile: str  # its name: core, core+virology
    retained: Profile
    trial: int
    runs: tuple[str, ...]  # its run ids, one a seed
    objective: float
    maxent: MaxEnt
    num_complete: int  # trials that it is the best of


def best_json(search_id: str, facts: Mapping[str, object], best: Sequence[BestTrial], missing: Sequence[str]) -> dict:
    """The content of best.json; `facts` says what was searched: data_id, size, seeds, num_trials."""
    return {"search_id": search_id, **facts, "profiles": [asdict(trial) for trial in best], "missing": list(missing)}


def is_complete(store: Store, search_id: str, num_trials: int) -> bool:
    """Whether a MaxEnt search in the storage has so many trials of every profile, and a best one of each."""
    plain = store.search_dir(search_id).read_json(BEST) if search_id in store.list_searches() else None
    counts = (plain or {}).get("num_trials", {}).values()  # absent in files of earlier versions
    return bool(counts) and not plain["missing"] and min(counts) >= num_trials


def load_best(
    store: Store, search_id: str, data_id: str = "", maxent: MaxEnt = DEFAULT
) -> tuple[tuple[Profile, MaxEnt], ...]:
    """MaxEnt's parameters of each profile from a search in the storage, as `Options.maxent_profiles` takes them.

    They are those of the trial, so that its runs are the study's; what its file does not have is as in `maxent`.
    ValueError naming `maxent`: no such search, one of other data than `data_id` (if that is given), or one that lacks
    a profile.
    """
    plain = store.search_dir(search_id).read_json(BEST) if search_id in store.list_searches() else None
    if plain is None:
        raise invalid("maxent", search_id, f"the id of a MaxEnt search with complete trials in {store.root}")
    if data_id and plain["data_id"] != data_id:
        raise invalid("maxent", search_id, f"a search on this study's data, {data_id}; it is on {plain['data_id']}")
    if plain["missing"]:
        lacking = ", ".join(plain["missing"])
        raise invalid("maxent", search_id, f"a search with a complete trial of every profile; it has none of {lacking}")
    return tuple((tuple(own["retained"]), replace(maxent, **own["maxent"])) for own in plain["profiles"])
