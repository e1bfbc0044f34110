"""What ranks send one another. ``activations`` of a collective are the bytes that one rank sends over its link.

A variant names what is sent; profiles hold a fit for each that was measured. All-reduces have none: they are the class.
"""

from __future__ import annotations

from wmtp_sim.work.operation import Array, Operation

#: DeepEP's fp8 messages: channels that share a scale, bytes of a scale, and of the header that says whose token it is.
SCALED_CHANNELS, SCALE_BYTES, HEADER_BYTES = 128, 4, 16


def all_reduce(payload: Array, ranks: int) -> Operation:
    """A ring all-reduce of ``payload`` bytes: each rank sends 2(n-1)/n of them."""
    return _collective("all_reduce", "", 2.0 * (ranks - 1) / ranks * payload, ranks)


def all_gather(payload: Array, ranks: int) -> Operation:
    """Ranks' parts put together to a whole of ``payload`` bytes: each receives the others' (n-1)/n of it."""
    return _collective("all_gather", "all_gather", (ranks - 1) / ranks * payload, ranks)


def reduce_scatter(payload: Array, ranks: int) -> Operation:
    """``payload`` bytes of every rank added up, each rank left with its part: half of an all-reduce."""
    return _collective("reduce_scatter", "reduce_scatter", (ranks - 1) / ranks * payload, ranks)


def all_to_all(payload: Array, ranks: int) -> Operation:
    """Each rank sends its ``payload`` bytes, in equal parts, to all, itself included."""
    return _collective("all_to_all", "all_to_all", (ranks - 1) / ranks * payload, ranks)


def dispatch(tokens: Array, top_k: float, hidden: int, ranks: int) -> Operation:
    """DeepEP's low-latency dispatch: each of a rank's ``tokens`` goes to all of its experts, once for each, in fp8.

    A copy is ``hidden`` bytes, their scales and a header. Experts are spread evenly: 1/n of the copies stays at home.
    """
    copy = hidden + SCALE_BYTES * hidden / SCALED_CHANNELS + HEADER_BYTES
    return _deepep("dispatch", copy * top_k * tokens, ranks)


def combine(tokens: Array, top_k: float, hidden: int, ranks: int) -> Operation:
    """DeepEP's low-latency combine: what experts made of the copies comes back in bf16, and is added up at home."""
    return _deepep("combine", 2.0 * hidden * top_k * tokens, ranks)


def _deepep(name: str, payload: Array, ranks: int) -> Operation:
    return _collective(name, "deepep", (ranks - 1) / ranks * payload, ranks)


def _collective(name: str, variant: str, sent: Array, ranks: int) -> Operation:
    geometry = (float(ranks),)
    return Operation(f"collective.{name}", "collective", variant=variant, activations=sent, geometry=geometry)
