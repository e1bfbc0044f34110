"""Depths by batch in the engines' own syntax, for releases that look up the running batch and change depth with it.

Both look up the batch alone. vLLM takes ranges inside ``--speculative-config``; SGLang reads a file of slots, each of
which begins at its batch and moves with the acceptance among several depths: with one depth in each it stays there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from wmtp_sim.catalog.flags import Vocabulary, vocabulary
from wmtp_sim.errors import InputError
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.flags import ByBatch

FLAG = "--by-batch"


@dataclass(frozen=True)
class DepthsByBatch:
    """What depth to draft at by running batch.

    Attributes:
        ranges: first batch, last batch, depth; from 1 without gaps. Engines take the last depth beyond.
        path: the file that an engine reads them from, where it reads one.
    """

    ranges: tuple[tuple[int, int, int], ...]
    path: str

    def of_a_group(self, groups: int) -> DepthsByBatch:
        """By the batch of one of several replicas, which is what each looks up: all sequences are spread evenly.

        A replica's batch stands for as many of all as it is full with; a range that is never full is passed over.
        """
        batches = range(1, -(-self.ranges[-1][1] // groups) + 1)
        depths = [next((d for _, last, d in self.ranges if b * groups <= last), self.ranges[-1][2]) for b in batches]
        found: list[tuple[int, int, int]] = []
        for batch, depth in zip(batches, depths, strict=True):
            if found and found[-1][2] == depth:
                found[-1] = (found[-1][0], batch, depth)
            else:
                found.append((batch, batch, depth))
        return DepthsByBatch(tuple(found), self.path)

    @property
    def deepest(self) -> int:
        return max(depth for _, _, depth in self.ranges)


def syntax(known: Vocabulary) -> ByBatch:
    """How a release takes depths by batch. Raises `InputError` where it does not."""
    found = known.grammar.by_batch
    if found is None or not known.flag_takes(found.flag):
        raise InputError(FLAG, f"{known.name} keeps one depth", "drop it, or --table for a router of your own")
    return found


def written(known: Vocabulary, depths: DepthsByBatch) -> Any:
    """The ranges as the release's parser takes them. Raises `InputError` for a depth that it refuses."""
    form = syntax(known)
    off = [(first, last) for first, last, depth in depths.ranges if depth == 0]
    if off and form.off_since is not None and not known.grammar.reaches(known.release, form.off_since):
        problem = f"{known.name} takes no depth 0 by batch, which is best at {off[0][0]} to {off[0][1]}"
        raise InputError(FLAG, problem, "a newer release, or --table for a router of your own")
    if form.form == "ranges":
        return [list(each) for each in depths.ranges]
    return {str(first): {"candidate_steps": [depth]} for first, _, depth in depths.ranges}


def in_a_file(engine: Engine, depths: DepthsByBatch, words: tuple[str, ...]) -> str:
    """The depths as a JSON document of the engine's own: the object of a line's flag, or the file that it names."""
    known = vocabulary(engine)
    base, dot, _ = syntax(known).flag.partition(".")
    return words[words.index(base) + 1] if dot else json.dumps(written(known, depths))


def note(engine: Engine) -> str:
    """What a person should know who starts depths by batch; empty where there is nothing."""
    return syntax(vocabulary(engine)).note
