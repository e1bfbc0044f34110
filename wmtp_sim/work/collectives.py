"""What ranks send one another. ``activations`` of a collective are the bytes that one rank sends over its link.

A variant names what is sent; profiles hold a fit for each that was measured. All-reduces have none: they are the class.
"""

from __future__ import annotations

from wmtp_sim.work.operation import Array, Operation


def all_reduce(payload: Array, ranks: int) -> Operation:
    """A ring all-reduce of ``payload`` bytes: each rank sends 2(n-1)/n of them."""
    return _collective("all_reduce", "", 2.0 * (ranks - 1) / ranks * payload, ranks)


def all_gather(payload: Array, ranks: int) -> Operation:
    """Ranks' parts put together to a whole of ``payload`` bytes: each receives the others' (n-1)/n of it."""
    return _collective("all_gather", "all_gather", (ranks - 1) / ranks * payload, ranks)


def reduce_scatter(payload: Array, ranks: int) -> Operation:
    """``payload`` bytes of every rank added up, each rank left with its part: half of an all-reduce."""
    return _collective("reduce_scatter", "reduce_scatter", (ranks - 1) / ranks * payload, ranks)


def all_to_all(payload: Array, ranks: int, name: str = "all_to_all") -> Operation:
    """Each of ``ranks`` sends its ``payload`` bytes, in equal parts, to all, itself included."""
    return _collective(name, "all_to_all", (ranks - 1) / ranks * payload, ranks)


def _collective(name: str, variant: str, sent: Array, ranks: int) -> Operation:
    geometry = (float(ranks),)
    return Operation(f"collective.{name}", "collective", variant=variant, activations=sent, geometry=geometry)
