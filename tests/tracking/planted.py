"""The run and the evaluation of most tests of this folder."""

from gram_platform.config import Evaluation, View
from gram_platform.store import Store
from tests.store.training import run_config

RUN = run_config(8)
EVALUATION = Evaluation(View.of(RUN.run_id, {"virology": 1.0}), "d" * 12, ("core", "virology"), 4)
TAGS = {"method": "gram", "size": "tiny", "seed": "0", "profile": "all", "retained": "virology"}


def evaluate(store: Store) -> None:
    place = store.evaluation(EVALUATION.eval_id)
    place.ensure_config(EVALUATION)
    place.add_tags(TAGS)
    place.complete({"losses": {"core": 2.5, "virology": 3.25}}, {"elapsed_s": 0.5})
