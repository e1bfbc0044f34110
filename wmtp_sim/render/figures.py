"""What all figures share: one palette for light and dark ground, and names as a picture shows them.

The colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from wmtp_sim.render.offline import packaged

#: A colour by what it stands for: on light ground (and on paper), on dark ground.
PALETTE = {
    "ground": ("#ffffff", "#14171a"),
    "card": ("#ffffff", "#1b1f23"),
    "ink": ("#1b1f24", "#e6e9ec"),
    "soft": ("#59636e", "#a3adb8"),
    "line": ("#d5dae0", "#363d45"),
    "accent": ("#0072b2", "#56b4e9"),
    "mid": ("#f2f2f2", "#3a3f45"),
    "faint": ("#8a8a8a", "#7d858d"),
    "veil": ("rgba(255,255,255,0.85)", "rgba(20,23,26,0.85)"),
    "win": ("#0072b2", "#56b4e9"),
    "lose": ("#d55e00", "#f08a3c"),
    "vermilion": ("#d55e00", "#e8792b"),
    "blue": ("#0072b2", "#56b4e9"),
    "green": ("#009e73", "#2bc39a"),
    "draft": ("#e69f00", "#e69f00"),
    "verify": ("#56b4e9", "#56b4e9"),
    "extend": ("#cc79a7", "#cc79a7"),
    "sample": ("#f0e442", "#f0e442"),
    "host": ("#999999", "#8a8f95"),
}
#: The palette on paper.
LIGHT = {name: light for name, (light, _) in PALETTE.items()}
DARK = {name: dark for name, (_, dark) in PALETTE.items()}
FONT = "system-ui, Helvetica, Arial, sans-serif"


def style(own: Mapping[str, tuple[str, str]] | None = None) -> str:
    """CSS of every page: the palette as variables that follow the system's light or dark mode, and what pages share.

    ``own`` are colours of the page's alone, by name.
    """
    both = PALETTE | dict(own or {})
    light, dark = ("".join(f"--{name}: {each[place]}; " for name, each in both.items()) for place in (0, 1))
    by_mode = f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
    return f":root {{ {light}color-scheme: light dark; }}\n{by_mode}{packaged(__package__, 'pages.css')}"


def dress(figure: Any, what: tuple[str, str], subtitle: str, height: int, above: float, **layout: Any) -> None:
    """The frame of a plotly figure: on white, the model and the GPU (``what``) as its title, ``above`` pixels down."""
    named = f"<b>{' on '.join(escape(shown(name)) for name in what)}</b>"
    below = {"text": subtitle, "font": {"size": 12, "color": LIGHT["soft"]}}
    place = {"x": 0.0, "xref": "paper", "y": 1.0 - above / height, "yanchor": "top"}
    title = {"text": named, "subtitle": below, "font": {"size": 17, "color": LIGHT["ink"]}, **place}
    ground = dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), LIGHT["ground"])
    font = {"family": FONT, "size": 12, "color": LIGHT["ink"]}
    figure.update_layout(title=title, height=height, template="none", font=font, **ground, **layout)


def shown(name: str) -> str:
    """A name from a person's file as a picture shows it: one short line without control or direction characters."""
    return "".join(c if c.isprintable() else " " for c in name)[:60]
