"""An engine's command line as data: which flags a release takes, and which of them say what about a deployment.

Fields mirror the grammar files (``data/flags/*.toml``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from wmtp_sim.spec.base import Spec

#: What a flag's value is. ``switch`` takes none; ``size`` is a whole number that may end in k, K, m, M, g, G, t or T
#: (1K is 1024, 1k is 1000), ``si_size`` one that may end in k, M, G or T (1M is 1000000) or in Ki, Mi, Gi or Ti (1Mi
#: is 1048576); ``flag`` is true or false inside a JSON object.
Kind = Literal["switch", "text", "integer", "number", "size", "si_size", "json", "boolean"]


class Flag(Spec):
    """How one flag is written.

    Attributes:
        kind: what its value is.
        also: other names of it.
        off: names that switch it off.
        many: whether several words may follow.
        bare: whether it may stand without a value.
        choices: the words that it takes; empty where the parser takes any.
        since, until: the first and the last release that takes it so, as `Grammar.releases` names them.
    """

    kind: Kind
    also: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    many: bool = False
    bare: bool = False
    choices: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None


def _entries(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


#: A flag, or one entry for each of its grammars over the releases.
Entries = Annotated[tuple[Flag, ...], BeforeValidator(_entries)]


class Drafting(Spec):
    """What an engine makes of its speculation flags.

    Attributes:
        unset_depth: depth where speculation is on and none is stated; None where the engine refuses that.
        states_rows: whether a line states depth, topk and verified rows, all three; the depth is then a chain's alone.
        by_name: methods that the engine takes from the drafter's name where a method is not stated, or one of a chain
            without a head of its own: by what is in the name in lower case, the first that fits.
        window_backend: the draft attention backend that honours a window, to write beside one where none is stated;
            ``elsewhere`` is that for GPUs not NVIDIA's.
    """

    unset_depth: int | None = Field(default=None, ge=1, le=64)
    states_rows: bool = False
    by_name: dict[str, str] = Field(default_factory=dict)
    window_backend: str | None = None
    elsewhere: str | None = None

    def method_by_name(self, drafter: str) -> str | None:
        """The engine's word for what a drafter of this name is; None where its name says nothing."""
        found = (word for pattern, word in self.by_name.items() if re.search(pattern, drafter.lower()))
        return next(found, None)

    def window_backend_on(self, vendor: str) -> str | None:
        """The draft attention backend to write beside a window, on a GPU of a vendor, which may not be stated."""
        return self.window_backend if vendor in ("nvidia", "") or self.elsewhere is None else self.elsewhere


class ByBatch(Spec):
    """How an engine is told to change its depth with the running batch.

    Attributes:
        flag: what holds the depths: ``--flag.key`` for a key of a JSON object, else a flag that names a file.
        form: ``ranges``, lists of first batch, last batch and depth; ``slots``, an object of depths by first batch.
        switch: the flag that turns it on, where there is one.
        off_since: the first release that takes a depth of 0; None where all do.
        unless: flags with which the engine drops the depths with no more than a line in its log.
        replicas: whether it works with data-parallel replicas.
        several_heads: whether it works with a draft head for each position.
        note: what a person should know who starts it so; empty where there is nothing.
    """

    flag: str
    form: Literal["ranges", "slots"]
    switch: str | None = None
    off_since: str | None = None
    unless: tuple[str, ...] = ()
    replicas: bool = False
    several_heads: bool = True
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Flags that it names."""
        return (self.flag.partition(".")[0], *self.unless, *([self.switch] if self.switch else []))


class Parallel(Spec):
    """How an engine's flags count ranks.

    Attributes:
        counts_groups: whether ranks and running sequences are counted for all groups that share experts, together;
            else for one of them.
        shares_experts: whether data-parallel groups share experts unasked.
        whole_by_all_to_all: whether a way to send rows to their experts deals whole experts to all ranks by itself.
        pp, hosts: flags that state pipeline stages, and the hosts of all GPUs.
        local_groups: the flag that states how many of the groups stand in one host.
        unpriced: flags that change how GPUs share a model and that nothing here prices, each with the value that
            changes nothing; ``ranks`` is the number of ranks.
    """

    counts_groups: bool = False
    shares_experts: bool = False
    whole_by_all_to_all: bool = False
    pp: str | None = None
    hosts: str | None = None
    local_groups: str | None = None
    unpriced: dict[str, bool | int | Literal["ranks"]] = Field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Flags that it names."""
        return (*self.unpriced, *(name for name in (self.pp, self.hosts, self.local_groups) if name is not None))

    def otherwise(self, values: Mapping[str, Any], ranks: int) -> list[str]:
        """Flags that share a model among so many ranks in a way that is not priced."""
        plain = {flag: ranks if neutral == "ranks" else neutral for flag, neutral in self.unpriced.items()}
        return [flag for flag, neutral in plain.items() if values.get(flag, neutral) != neutral]


def stated(values: Mapping[str, Any], path: str) -> Any:
    """What flags say of ``--flag``, or of ``--flag.key.key`` in its JSON object; None where they say nothing of it."""
    flag, *keys = path.split(".")
    found = values.get(flag)
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


class Saying(Spec):
    """One way in which a command line says what a rule of preflight looks for. A flag is ``--flag`` or ``--flag.key``.

    Attributes:
        flags: what is stated, and the words by which it says so, in letters of any case.
        above: flags whose number must exceed another.
        unless: flags that overrule it where they are stated.
        since, until: the first and the last release in which it holds.
    """

    flags: dict[str, tuple[bool | int | str, ...]] = Field(default_factory=dict)
    above: dict[str, int] = Field(default_factory=dict)
    unless: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Flags that it names."""
        return tuple(name.partition(".")[0] for name in (*self.flags, *self.above, *self.unless))

    def words(self, values: Mapping[str, Any]) -> str | None:
        """How flags say it: the first flag with its value. None where they do not."""
        holds = all(_is_one_of(stated(values, name), words) for name, words in self.flags.items())
        holds &= all((stated(values, name) or 0) > number for name, number in self.above.items())
        if not holds or any(stated(values, name) is not None for name in self.unless):
            return None
        name = next(iter(self.flags | self.above))
        value = stated(values, name)
        return name if value is True else f"{name} {value}"

    @model_validator(mode="after")
    def _looks_at_a_flag(self) -> Saying:
        if not self.flags and not self.above:
            raise ValueError("a way of saying names no flag")
        return self


def _is_one_of(value: Any, words: tuple[bool | int | str, ...]) -> bool:
    return value is not None and str(value).casefold() in (str(word).casefold() for word in words)


class Grammar(Spec):
    """The command line of one engine, all releases together.

    Attributes:
        releases: oldest first.
        command: the words before a written line's flags.
        launchers: words by which a command is known to start this engine.
        model_after: last words of the launchers after which the model may be the first word.
        underscores: whether underscores in a flag are read as dashes.
        dotted: whether ``--flag.key value`` sets a key of the flag's JSON object.
        fields: the flags of each field of `ServerDeployment`; the first is written, all are read. ``--flag.key`` is a
            key of a JSON object.
        words: the engine's words for a field and ours (``kv``, ``method``, ``quantization``).
        by_batch: how depths by batch are said; None where one depth is kept.
        says: how a command line says what rules of preflight look for, by the rule's id.
        keys: what the JSON objects of some flags hold.
    """

    engine: str
    releases: tuple[str, ...]
    command: tuple[str, ...]
    launchers: tuple[tuple[str, ...], ...]
    model_after: tuple[str, ...] = ()
    underscores: bool = False
    dotted: bool = False
    sources: dict[str, str]
    fields: dict[str, tuple[str, ...]]
    words: dict[str, dict[str, str]]
    drafting: Drafting = Drafting()
    parallel: Parallel = Parallel()
    by_batch: ByBatch | None = None
    says: dict[str, tuple[Saying, ...]] = Field(default_factory=dict)
    keys: dict[str, dict[str, Entries]] = Field(default_factory=dict)
    flags: dict[str, Entries]

    @model_validator(mode="after")
    def _releases_are_known(self) -> Grammar:
        tables: tuple[Mapping[str, tuple[Flag | Saying, ...]], ...] = (self.flags, *self.keys.values(), self.says)
        dated = {name: entries for table in tables for name, entries in table.items()}
        for name, entries in dated.items():
            for release in (r for entry in entries for r in (entry.since, entry.until) if r is not None):
                if release not in self.releases:
                    raise ValueError(f"{name} names release {release!r}, not one of {', '.join(self.releases)}")
        return self

    @model_validator(mode="after")
    def _fields_have_flags(self) -> Grammar:
        for field, flags in self.fields.items():
            for flag in flags:
                base, dot, key = flag.partition(".")
                if base not in self.flags or (dot and base in self.keys and key not in self.keys[base]):
                    raise ValueError(f"fields.{field} names {flag!r}, which flags or keys lack")
        for name in self.by_batch.names if self.by_batch else ():
            if name not in self.flags:
                raise ValueError(f"by_batch names {name!r}, which flags lack")
        for name in self.parallel.names:
            if name not in self.flags:
                raise ValueError(f"parallel names {name!r}, which flags lack")
        for rule, ways in self.says.items():
            for name in (name for way in ways for name in way.names):
                if name not in self.flags:
                    raise ValueError(f"says.{rule} names {name!r}, which flags lack")
        return self

    def reaches(self, release: str, since: str) -> bool:
        """Whether a release is another one, or newer."""
        return self.releases.index(release) >= self.releases.index(since)

    def taken(self, table: dict[str, tuple[Flag, ...]], release: str) -> dict[str, Flag]:
        """The entries of ``flags`` or of one of ``keys`` that a release takes."""
        found = ((name, self._at(entries, release)) for name, entries in table.items())
        return {name: flag for name, flag in found if flag is not None}

    def said(self, values: Mapping[str, Any], release: str) -> dict[str, str]:
        """Which rules find what they look for in a release's flags, and the words that say it."""
        found = {
            rule: next((words for way in ways if self._holds(way, release) and (words := way.words(values))), None)
            for rule, ways in self.says.items()
        }
        return {rule: words for rule, words in found.items() if words is not None}

    def _at(self, entries: tuple[Flag, ...], release: str) -> Flag | None:
        return next((flag for flag in entries if self._holds(flag, release)), None)

    def _holds(self, dated: Flag | Saying, release: str) -> bool:
        """Whether what is dated holds in a release."""
        now = self.releases.index(release)
        first = self.releases.index(dated.since) if dated.since else 0
        last = self.releases.index(dated.until) if dated.until else now
        return first <= now <= last
