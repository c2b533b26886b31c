"""Measures how views continue documents of the domains that they keep and of those that they have removed."""

from dataclasses import dataclass
from typing import ClassVar

from gram_platform.analysis.ratios import ALL, BASELINE
from gram_platform.config import CORE, SAMPLES, Continuations
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.report import samples
from gram_platform.studies.measurements.losses import Losses, instead_of_losses


@dataclass(frozen=True)
class Samples(Losses):
    """Continuations of documents of each auxiliary domain, by the views that keep it alone and by those without it.

    With `compared_only`: of core and of the compared profiles' domains, by the same views.
    """

    num_prompt_tokens: int
    num_tokens: int
    documents: tuple[int, ...] = (0, 1)
    temperature: float = 1.0
    seed: int = 0
    compared_only: bool = False

    name: ClassVar[str] = SAMPLES

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        chosen = sorted({domain for profile in setting.profiles for domain in profile})
        domains = (CORE, *chosen) if self.compared_only else setting.auxiliary

        def continuations(node: Node) -> Continuations:
            return Continuations(
                node.config.view,
                setting.data_id,
                continued_domains(node.names, domains),
                self.documents,
                self.num_prompt_tokens,
                self.num_tokens,
                self.temperature,
                self.seed,
                setting.size.precision,
            )

        nodes = method_nodes(method, setting)
        nodes = [node for node in nodes if node.is_run or continued_domains(node.names, domains)]
        return instead_of_losses(nodes, self.name, continuations)

    read = staticmethod(samples.read_samples)
    text = staticmethod(samples.samples_text)
    write = staticmethod(samples.write_samples)
    sections = staticmethod(samples.samples_sections)

    @staticmethod
    def footer(results):
        return samples.FOOTER


def continued_domains(names: dict[str, str], domains: tuple[str, ...]) -> tuple[str, ...]:
    """Returns which of the domains a view continues: all for the baseline and core alone, the kept one for core with
    one domain, none for other views. `names` are the tags of the view.
    """
    if names["profile"] == CORE or (names["method"], names["profile"]) == (BASELINE, ALL):
        return domains
    kept = names["retained"] if names["profile"].count("+") == 1 else ""
    return tuple(d for d in domains if d in (CORE, kept)) if kept in domains else ()
