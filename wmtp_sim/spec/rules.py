"""What preflight says of a deployment, as data: rules with their severity, reason and fix, and the limits they test.

Fields mirror ``data/preflight/rules.toml``. The check of a rule is the function of its id in `decide.checks`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wmtp_sim.spec.base import Spec

Severity = Literal["error", "warning", "note"]


class Rule(Spec):
    """One trap. ``reason`` and ``fix`` hold ``{words}`` that the check fills in; no ``engines`` is every engine."""

    severity: Severity
    reason: str
    fix: str
    source: str
    engines: tuple[str, ...] = ()


class EstimateRule(Spec):
    """What a warning of an estimate means for a deployment.

    Attributes:
        severity, fix: as a `Rule`'s; the reason is the warning itself.
        window: whether it matters only where the deployment states a window.
        unless: traps that say it already.
    """

    severity: Severity
    fix: str
    window: bool = False
    unless: tuple[str, ...] = ()


class Limits(Spec):
    """Numbers that rules test; the file says what each is."""

    long_context: int = Field(ge=1)
    few_splits: int = Field(ge=1)
    pool_tolerance: float = Field(gt=0, lt=1)
    perfect: float = Field(gt=0, le=1)
    running_requests: int = Field(ge=1)
    default_splits: int = Field(ge=1)
    head_tensors: tuple[str, ...]


class RuleBook(Spec):
    """All rules by id, in the order in which they are told within a severity."""

    limits: Limits
    rules: dict[str, Rule]
    estimate: dict[str, EstimateRule]
