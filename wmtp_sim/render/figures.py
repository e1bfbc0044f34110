"""What all figures share: one palette for light and dark ground, and names as a picture shows them.

The colours are Okabe and Ito's, which colour-blind readers tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

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
    palette = (
        f":root {{ {light}color-scheme: light dark; }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
    )
    return palette + files(__package__).joinpath("pages.css").read_text(encoding="utf-8")


def shown(name: str) -> str:
    """A name from a person's file as a picture shows it: one short line without control or direction characters."""
    return "".join(c if c.isprintable() else " " for c in name)[:60]
