"""Text whose tokens are shaded by how much their loss increased, as HTML in which every text is escaped."""

import html

import pandas as pd

from gram_platform.analysis.shading import ShadedText, ShadedView, shades

NUM_LEGEND = 5  # steps of the legend's scale


def shaded_html(text: ShadedText) -> str:
    """The legend, then the text once for each view, shaded."""
    return _legend(text.scale) + "".join(_view(text, view) for view in text.views)


def increases_frame(text: ShadedText) -> pd.DataFrame:
    """The numbers behind the shading: a row a token, the baseline's loss, and a column for each view's increase."""
    columns = {"token": [repr(piece)[1:-1] for piece in text.pieces[1:]], "baseline loss": text.baseline.astype(float)}
    return pd.DataFrame(columns | {view.label: view.increases.astype(float) for view in text.views}).round(4)


def _legend(scale: float) -> str:
    if scale != scale:
        return "<p>Without an increase of the filtered model there is no scale: nothing is shaded.</p>"
    steps = [step / (NUM_LEGEND - 1) for step in range(NUM_LEGEND)]
    inner = " ".join(f'<span style="--t:{step:.2f}"> {step * scale:.2f} </span>' for step in steps)
    label = "Increase of the loss over the baseline's, in nats; hover over a token for its number"
    return f'<p class="tokens-label">{label}</p><div class="tokens">{inner} or more</div>'


def _view(text: ShadedText, view: ShadedView) -> str:
    spans = [f'<span class="unknown" title="nothing predicts the first token">{_visible(text.pieces[0])}</span>']
    levels = shades(view.increases, text.scale)
    for piece, level, increase, loss in zip(text.pieces[1:], levels, view.increases, text.baseline, strict=True):
        title = f"{increase:+.2f} nats, the baseline has {loss:.2f}"
        spans.append(f'<span style="--t:{level:.2f}" title="{title}">{_visible(piece)}</span>')
    label = html.escape(view.label)
    return f'<p class="tokens-label">{label}</p><div class="tokens" aria-label="{label}">{"".join(spans)}</div>'


def _visible(piece: str) -> str:
    """A token that adds no character (part of one) still has a place."""
    return html.escape(piece) or "\u00b7"
