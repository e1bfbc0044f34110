"""What a page carries so that it needs no network: Plotly's script, compressed, and data that cannot end a script."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

#: Where a template takes a part.
_SLOT = re.compile(r"/\*([A-Z]+)\*/")
#: Written as escapes inside a script element: what could end it, or a line of it.
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@cache
def plotly() -> str:
    """Plotly's script, gzipped, in base64: 2 MB instead of 5. `unpack_script` has what runs it in the page."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode("ascii")


def packaged(package: str | None, name: str) -> str:
    """A template, style or script that lies beside a package's modules."""
    return files(package or "").joinpath(name).read_text(encoding="utf-8")


def page_parts(style: str, script: str, document: Mapping[str, Any]) -> dict[str, str]:
    """What every page carries: style, data, its script, Plotly and ``plotlyReady()``, a promise of it."""
    unpacking = packaged(__package__, "offline.js")
    return {"STYLE": style, "PLOTLY": plotly(), "DATA": embedded(document), "SCRIPT": unpacking + script}


def embedded(document: Mapping[str, Any]) -> str:
    """A document as JSON that is inert inside a script element, in ASCII."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def filled(template: str, parts: Mapping[str, str]) -> str:
    """A template with each ``/*NAME*/`` replaced. Slots are found in the template alone: parts are never searched."""
    pieces = _SLOT.split(template)
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))
