"""Measures the loss of every token of the auxiliary domains' validation sequences."""

from dataclasses import dataclass
from typing import ClassVar

from gram_platform.config import TOKENS, TokenLosses
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.report import localization
from gram_platform.studies.measurements.losses import Losses, instead_of_losses


@dataclass(frozen=True)
class TokenIncreases(Losses):
    """The increase of every token's loss over the baseline's."""

    name: ClassVar[str] = TOKENS

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        def token_losses(node: Node) -> TokenLosses:
            num_sequences, precision = setting.num_eval_sequences, setting.size.precision
            return TokenLosses(node.config.view, setting.data_id, setting.auxiliary, num_sequences, precision)

        return instead_of_losses(method_nodes(method, setting), self.name, token_losses)

    read = staticmethod(localization.read_tokens)
    text = staticmethod(localization.tokens_text)
    write = staticmethod(localization.write_tokens)
    sections = staticmethod(localization.tokens_sections)

    @staticmethod
    def footer(results):
        return localization.FOOTER
