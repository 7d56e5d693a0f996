"""One look for all pictures, and figures as SVG text or PNG bytes.

Pictures in a page take the page's colour of ink, so that they suit light and dark; files of their own are drawn
dark on white.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastbus.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#101a2b"  # replaced by the page's own colour where a picture stands in one
MAIN, SECOND, THIRD, QUIET = "#3b82c4", "#d9822b", "#2f9e76", "#8a94a6"
SERIES = (MAIN, SECOND, THIRD, "#b65fcf", "#c94f5d", "#7a8f2a", "#4fa3b8", "#a5713f", "#6f6fd8", QUIET)
WIDTH = 4.7  # inches: two pictures stand side by side on a desk, and one fills a telephone

SETTINGS: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called $x$
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": QUIET,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
}


@contextmanager
def plotting() -> Iterator[Any]:
    """matplotlib's Figure class under the house style; no window, no global state is left changed."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "pictures without matplotlib; expected it to be installed. Run: pip install 'fastbus[report]'."
        ) from None
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        # a page shows text in the reader's fonts, whatever DejaVu lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield Figure


def svg_text(figure: Figure, name: str, background: str = "none") -> str:
    """A figure as one <svg> element; `name` keeps its references apart from those of other pictures."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(
            buffer, format="svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.04, dpi=144,
            facecolor=background,
        )  # fmt: skip
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text))
    kept = {name for pair in used for name in pair if name}
    return re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in kept else "", text)


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """A figure for a page: the page's ink, no namespaces, a text for those who do not see it."""
    from html import escape

    text = svg_text(figure, name).replace(INK, "currentColor")
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    head = f'<svg role="img" aria-label="{escape(label, quote=True)}"'
    return re.sub(r"\n\s*", "\n", text.replace("<svg", head, 1))


def png_bytes(figure: Figure, dpi: int = 144) -> bytes:
    """A figure as a PNG on white."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", bbox_inches="tight", pad_inches=0.1)
    return buffer.getvalue()
