"""The sentences of a verdict, with slots for what is computed, which terminal and page fill alike."""

from __future__ import annotations

#: Each sentence, and each piece that fills a slot of one.
SENTENCES = {
    "too_large": "Does not fit: {short}.",
    "short": "{needed} needed per GPU, {usable} usable, largest context {longest}",
    "draft_too_large": "The target fits, with its drafter it does not; {others}: {short}.",
    "others_fit": "{systems} would",
    "others_too_large": "no other system would",
    "nothing_fits": "No system of this engine fits.",
    "nothing_offered": "{engine} runs none of these systems.",
    "nothing_drafted": "Base step alone: nothing is drafted{at}.",
    "at_depth_0": " at depth 0",
    "gain": "{times} ({range})",
    "range": "{low} to {high}",
    "even": "Speculation breaks even at depth {depth}: {gain} with {policy}.",
    "wins": "Speculation {word} at depth {depth}: {gain} with {policy}{beside}.",
    "beside_plainest": ", {plainest} {times}",
    "loses": "Speculation {word} at depth {depth}: {gain} at best ({policy}); {floor}.",
    "unwinnable": "at the expected cost no acceptance can pay",
    "winnable": "a higher accept length would",
    "not_sure": "Not sure: nobody measured {what}.",
    "what_if": "Not in {engine} for this drafter: {parts}.",
    "would_give": "{policy} would give {times}",
    "no_room": "no room",
    "no_room_here": "no room: needs {needed} of {usable}",
    "not_here": "not in this release",
}


def said(name: str, **slots: object) -> str:
    """A sentence with its slots filled."""
    return SENTENCES[name].format(**slots)
