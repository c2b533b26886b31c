"""A package outside gram-platform that adds a method, a corpus, a measurement, two studies and a
tracker."""

from dataclasses import dataclass, replace
from typing import ClassVar

from gram_platform.config import CORE, TokenLosses, View
from gram_platform.corpora.catalog import StoriesCorpus
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.measurements import TokenIncreases, instead_of_losses
from gram_platform.methods.nodes import method_nodes
from gram_platform.methods.setting import MethodRuns, Setting
from gram_platform.studies import Study
from gram_platform.studies.library.scaling import SMOKE

STORIES = StoriesCorpus(
    core_documents=1_500, aux_documents=150, num_facts=96, shared_fact_share=0.3
)


def core_only(setting: Setting) -> MethodRuns:
    """Trains a dense model on core alone."""
    run = dense_run(setting, (CORE,), 0, setting.routing.accumulation)
    return MethodRuns({"core": run}, {(): View.of(run.run_id)})


@dataclass(frozen=True)
class CoreTokens(TokenIncreases):
    """The losses of every token of core's validation sequences."""

    name: ClassVar[str] = "core_tokens"

    def nodes(self, method: str, setting: Setting):
        def token_losses(node):
            where = (node.view, setting.data_id, (CORE,))
            return TokenLosses(*where, setting.num_eval_sequences, setting.size.precision)

        return instead_of_losses(method_nodes(method, setting), self.name, token_losses)


PRESET = replace(
    SMOKE,
    num_seeds=1,
    sizes={"tiny": SMOKE.sizes["tiny"]},
    corpus="example-stories",
    core_only=True,
)
METHODS = ("baseline", "gram", "core_only")
STUDY = Study(
    "example", "Core alone", "Is a module better than no text?", {"smoke": PRESET}, "smoke", METHODS
)
TOKENS = replace(
    STUDY,
    name="core_tokens_of_example",
    presets={"smoke": replace(PRESET, measurement=CoreTokens())},
)


def text_lines(place, entry, points) -> None:
    """Writes a line for each point of a node."""
    lines = [f"{entry.kind} {point.step} {point.key} {point.value}" for point in points]
    (place / "points.txt").write_text("\n".join(lines))
