"""Which traps a deployment walks into, seen from its config, its flags and its GPU before anything is started.

Each check (`decide.checks`) has the id of a rule in ``data/preflight/rules.toml``: its severity, reason and fix.
What an estimate warns of is not checked again: the file's second table says which of its warnings concern a deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import isgeneratorfunction
from typing import Any

from wmtp_sim.catalog.systems import windows_drafts
from wmtp_sim.decide import checks
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.memory import Memory
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.flags import Grammar
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Model, has_sinks
from wmtp_sim.spec.rules import Limits, RuleBook, Severity

#: The check of each rule, by its id.
CHECKS: dict[str, Callable[[Case], Iterator[checks.Words]]] = {
    name.replace("_", "-"): check for name, check in vars(checks).items() if isgeneratorfunction(check)
}
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Trap:
    """``id`` is stable for programs; the rest is for people."""

    id: str
    severity: Severity
    reason: str
    fix: str


@dataclass(frozen=True)
class Case:
    """All that the checks look at.

    Attributes:
        deployment, model, gpu, engine, grammar: what is to run where, and the engine's command line.
        estimate: its cost and memory at the context asked about; without a drafter where none can be priced.
        limits: the file's numbers.
        flags: every flag of the command as read, by its own name; empty where options were given instead.
        said: what rules look for and the flags say, by the rule's id, in the command's words.
        aside: words around the command, environment variables among them.
        unknown: words that no flag explains, each with a hint.
        refused: what the engine refuses, in words.
        unpriced: fields of the deployment that hold a word of the engine which is not priced here, and that word.
        checkpoint: tensors in the checkpoint's index, and how many of them are a draft head's; None where not known.
        unpriced_drafter: why the drafter is not priced; empty where it is.
        unpriced_backends: stated attention backends that the engine's definition does not know.
        kv_pool_tokens: what the engine logged as its KV pool.
        random_data: whether the acceptance was measured on random tokens.
    """

    deployment: ServerDeployment
    model: Model
    gpu: Gpu
    engine: Engine
    grammar: Grammar
    estimate: Estimate
    limits: Limits
    flags: dict[str, Any] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()
    unpriced: dict[str, str] = field(default_factory=dict)
    checkpoint: tuple[int, int] | None = None
    unpriced_drafter: str = ""
    unpriced_backends: tuple[str, ...] = ()
    kv_pool_tokens: int | None = None
    random_data: bool = False

    @property
    def release(self) -> str:
        return f"{self.engine.name} {self.engine.version}"

    @property
    def context(self) -> int:
        return int(self.estimate.work.context)

    @property
    def long(self) -> bool:
        return self.context >= self.limits.long_context

    @property
    def drafting(self) -> bool:
        """Whether a chain is drafted, of which alone depth and draft passes can be spoken."""
        return self.deployment.depth > 0 and self.deployment.chain

    @property
    def speculating(self) -> bool:
        """Whether anything is drafted, in whichever way."""
        return self.deployment.depth > 0 or not self.deployment.chain

    @property
    def windowed(self) -> bool:
        """Whether a window is stated for drafts that this release can window."""
        stated = self.drafting and self.deployment.window is not None
        return stated and windows_drafts(self.engine)

    @property
    def default_backend(self) -> str:
        """The attention backend that the release picks: for trees, NVIDIA's GPUs have no kernel of their own."""
        tree = self.deployment.topk > 1 and self.gpu.vendor == "nvidia"
        architecture = "" if tree else self.gpu.architecture
        return self.engine.attention_on(architecture, self.estimate.work.kv_bytes, has_sinks(self.model.blocks)).base

    @property
    def draft_backend(self) -> str:
        return self.deployment.draft_backend or self.default_backend

    @property
    def verify_backend(self) -> str:
        return self.deployment.verify_backend or self.default_backend

    @property
    def memory(self) -> Memory:
        """With the drafter's full KV where something is drafted."""
        systems = self.estimate.systems
        return self.estimate.memory[systems[0].name if systems else "base"]

    def flag(self, field_name: str) -> str:
        """The flag that states a field."""
        return self.grammar.fields[field_name][0]


def traps(case: Case, book: RuleBook) -> list[Trap]:
    """All traps: errors first, then in the rules' order."""
    found = [trap for name in CHECKS for trap in _told(case, book, name)]
    found += _estimated(case, book, {trap.id for trap in found})
    order = [*book.rules, *book.estimate]
    return sorted(found, key=lambda trap: (_ORDER.index(trap.severity), order.index(trap.id)))


def _told(case: Case, book: RuleBook, name: str) -> Iterator[Trap]:
    rule = book.rules[name]
    if rule.engines and case.engine.name not in rule.engines:
        return
    for words in CHECKS[name](case):
        yield Trap(name, rule.severity, rule.reason.format(**words), rule.fix.format(**words))


def _estimated(case: Case, book: RuleBook, said: set[str]) -> Iterator[Trap]:
    """What the estimate warns of and concerns the deployment."""
    holding = warnings(case.estimate)
    said = said | {warning.id for warning in holding}
    systems = case.estimate.systems
    drafter = {f"does-not-fit-{systems[0].name}": "does-not-fit-drafter"} if systems else {}
    for warning in holding:
        name = drafter.get(warning.id, warning.id)
        rule = book.estimate.get(name)
        if rule is None or said & set(rule.unless) or (rule.window and not case.windowed):
            continue
        yield Trap(name, rule.severity, warning.text, rule.fix)
