"""A card for each study: its main figure, small and still, beside its verdicts, with a link to its page."""

import html
from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from gram_platform.pages.figures.thumbnail import thumbnail_svg
from gram_platform.pages.report.page import Section
from gram_platform.paper.verdicts import verdict_counts


class Card(NamedTuple):
    title: str
    address: str  # of the study's page
    verdicts: Sequence[str]  # of its claims
    picture: str = ""  # of `picture_of`


def picture_of(sections: Sequence[Section]) -> str:
    """The first figures of a page as a small SVG; "" for a page without any."""
    main = next((section.figures for section in sections if section.figures), ())
    return thumbnail_svg([figure for figure in main if isinstance(figure, go.Figure)])


def cards_html(cards: Sequence[Card]) -> str:
    """The cards as a list; a study without figure or claims says so."""
    return f'<ul class="cards">{"".join(map(_card, cards))}</ul>' if cards else ""


def _card(card: Card) -> str:
    says = verdict_counts(card.verdicts) if card.verdicts else "no claims judged"
    link = f'<a href="{html.escape(card.address)}">{html.escape(card.title)}</a>'
    picture = card.picture or '<p class="soft">no figure</p>'
    return f'<li><div class="picture">{picture}</div> <div>{link}<p>{html.escape(says)}</p></div></li>'
