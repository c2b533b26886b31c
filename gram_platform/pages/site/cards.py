"""Renders a card for each study: a link to its page, its main figure as a still picture, and its verdicts."""

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go
from markupsafe import Markup

from gram_platform.pages.figures.thumbnail import thumbnail_svg
from gram_platform.pages.report.page import Section, render
from gram_platform.paper.verdicts import verdict_counts


class Card(NamedTuple):
    title: str
    address: str  # of the study's page
    verdicts: Sequence[str]  # of the study's claims
    picture: str = ""  # of `picture_of`

    @property
    def verdict_counts(self) -> str:
        return verdict_counts(self.verdicts) if self.verdicts else "no claims judged"


def picture_of(sections: Sequence[Section]) -> str:
    """Draws the first figures of a page as a small SVG; "" for a page without any."""
    main = next((section.figures for section in sections if section.figures), ())
    return thumbnail_svg([figure for figure in main if isinstance(figure, go.Figure)])


def cards_html(cards: Sequence[Card]) -> Markup:
    return render("cards.html", cards=cards)
