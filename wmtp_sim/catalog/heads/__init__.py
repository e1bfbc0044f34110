"""One file per family of draft heads: a head's ``config.json`` and its target become a `Drafter`."""

from __future__ import annotations

from collections.abc import Callable

from wmtp_sim.catalog.drafter_kinds import Reading
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.heads.dflash import dflash, domino, dspark
from wmtp_sim.catalog.heads.eagle import eagle1, eagle3, eagle_moe
from wmtp_sim.catalog.heads.medusa import medusa
from wmtp_sim.catalog.heads.mtp import mtp
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Model

#: How a kind's config is read; the kinds that are missing here are models.
HEADS: dict[Reading, Callable[[Fields, Model], Drafter]] = {
    "dflash": dflash,
    "domino": domino,
    "dspark": dspark,
    "eagle-moe": eagle_moe,
    "eagle1": eagle1,
    "eagle3": eagle3,
    "medusa": medusa,
    "mtp": mtp,
}
