"""A speculative system as data: who drafts, over which cache, in how many passes, and how the target verifies.

Eight closed specs, one for each thing in which systems differ; what a pass costs is the same for all. Files are
``data/systems/*.toml``; the formula of each field is in ``docs/systems.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from wmtp_sim.spec.base import Count, Size, Spec
from wmtp_sim.spec.drafter import Drafter, DrafterKind, Product

Array = float | NDArray[np.float64]
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Colour = Annotated[str, Field(pattern=r"^#[0-9a-f]{6}$")]
#: Tokens of a draft, or nodes of a level: more would be a typing mistake.
Drafted = Annotated[int, Field(ge=1, le=4096, strict=True)]
#: What answers call something else.
TAKEN = ("base", "off", "best")
#: A size of the drafter's own, or the target's.
Relative = Size | Literal["target"]


class Heads(Spec):
    """An attention geometry."""

    q_heads: Size
    kv_heads: Size
    head_dim: Size

    @model_validator(mode="after")
    def _heads_divide(self) -> Heads:
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads are not a multiple of {self.kv_heads} KV heads")
        return self


class Network(Spec):
    """Whose matrices a draft pass multiplies.

    Attributes:
        of: the deployment's ``drafter``, layers of its ``own``, the ``target``'s layers, or ``none`` (look-up).
        layers, mixers, attention, inner, hidden, window: own decoder layers; ``mixers`` repeat over the layers.
        fuses: target hidden states that one n*h -> h matrix joins per committed token.
        joins: what every row joins with its token's embedding: nothing, 2h -> h (MTP), or a q, k, v of 2h (EAGLE-3).
        vocab: rows of the vocabulary matrix that a pass multiplies.
        shares: which vocabulary matrices are the target's.
        heads: parallel heads, each h x h on the same state, instead of layers.
        micro: matrices that are multiplied once per drafted token after the pass, one token after the other.
        format: storage of its linear layers.
        kept: share of the target's layers that a pass of the ``target`` runs.
    """

    of: Literal["drafter", "own", "target", "none"] = "drafter"
    layers: Size = 1
    mixers: Annotated[tuple[Literal["attention", "mamba2"], ...], Field(min_length=1)] = ("attention",)
    attention: Heads | Literal["target"] = "target"
    inner: Relative = "target"
    hidden: Relative = "target"
    window: Size | None = None
    fuses: Count = 0
    joins: Literal["nothing", "embedding", "attention"] = "nothing"
    vocab: Relative = "target"
    shares: tuple[Literal["embedding", "lm_head"], ...] = ("embedding", "lm_head")
    heads: Count = 0
    micro: tuple[Product, ...] = ()
    format: str | None = None
    kept: Part = 1.0

    @model_validator(mode="after")
    def _sizes_are_its_own(self) -> Network:
        known = {"own": set(Network.model_fields), "target": {"of", "kept", "format"}}.get(self.of, {"of"})
        if unused := sorted(self.model_fields_set - known):
            raise ValueError(f'{unused[0]} says nothing of a network of {self.of!r}: of = "own", or drop it')
        return self


class Cache(Spec):
    """What draft passes read of the context, and what of it stays in memory.

    Attributes:
        of: a cache of its own, the ``target``'s read in place, or ``none``.
        tokens: attended whatever the context; ``window`` is the deployment's sink and window.
        share: of the older context, attended on top: 1 all of it, 1/r one slot for r tokens, 0 a window.
        held: what stays in memory: everything, what is attended and a step's rows, or nothing of its own.
        wide: what the pass over the rows just verified attends: everything, or as the others.
        element_bytes: bytes of a cached element, where it is not the deployment's.
        unpack_flops: FLOPs per cached element read, to rebuild it.
    """

    of: Literal["own", "target", "none"] = "own"
    tokens: Count | Literal["window"] = 0
    share: Share = 1.0
    held: Literal["all", "attended", "nothing"] = "all"
    wide: Literal["all", "attended"] = "attended"
    element_bytes: Annotated[float, Field(gt=0, le=8)] | None = None
    unpack_flops: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    @model_validator(mode="after")
    def _others_hold_nothing(self) -> Cache:
        if self.of != "own" and self.held != "nothing":
            raise ValueError(f'a cache of {self.of!r} holds nothing of its own: held = "nothing"')
        if self.of == "own" and self.held == "nothing":
            raise ValueError('a cache of its own that holds nothing: of = "target" or "none", or another held')
        if self.held == "attended" and self.wide == "all" and self.bounded:
            raise ValueError('the wide pass cannot read what is not held: held = "all"')
        return self

    def attended(self, context: Array, window: Array) -> Array:
        """Cached tokens that a pass attends: at most the context; ``window`` is the deployment's sink and window."""
        tokens = window if self.tokens == "window" else float(self.tokens)
        if self.of == "none":
            return 0.0 * np.asarray(context)
        return np.minimum(context, tokens + self.share * np.maximum(context - tokens, 0.0))

    def attended_wide(self, context: Array, window: Array) -> Array:
        """What the pass over the rows just verified attends."""
        return np.asarray(context, dtype=float) if self.wide == "all" else self.attended(context, window)

    @property
    def bounded(self) -> bool:
        """Whether some pass leaves a part of the context out."""
        return self.of != "none" and self.share < 1

    @property
    def bounded_everywhere(self) -> bool:
        """Whether the wide pass leaves it out, too."""
        return self.bounded and self.wide == "attended"


class Inner(Spec):
    """A second drafter that drafts for the drafter: its passes become verifications of ``depth`` + 1 rows."""

    network: Network
    cache: Cache = Cache()
    depth: Drafted
    accept_length: Annotated[float, Field(ge=1)]

    @model_validator(mode="after")
    def _can_be(self) -> Inner:
        if self.accept_length > self.depth + 1:
            raise ValueError(f"{self.depth} drafted tokens commit at most {self.depth + 1}")
        if self.network.of != "own":
            raise ValueError('an inner drafter has a network of its own: network.of = "own"')
        return self


class Proposal(Spec):
    """How many passes propose how many tokens.

    Attributes:
        kind: one token a pass, a whole ``block`` in one pass, or a ``tree`` of one level a pass.
        depth: drafted tokens; the deployment's depth where none is stated.
        widths: nodes of each level of a tree.
        nodes: drafted tokens that are verified, where a tree is pruned: all of them otherwise.
        first: whether the pass over the rows just verified (``wide``) proposes the first token, or a pass of its own.
        inner: who drafts for the drafter.
    """

    kind: Literal["chain", "block", "tree"] = "chain"
    depth: Drafted | None = None
    widths: Annotated[tuple[Drafted, ...], Field(max_length=256)] = ()
    nodes: Drafted | None = None
    first: Literal["wide", "own"] = "wide"
    inner: Inner | None = None

    @model_validator(mode="after")
    def _trees_have_widths(self) -> Proposal:
        if (self.kind == "tree") != bool(self.widths):
            raise ValueError("a tree, and nothing else, states widths")
        if self.inner is not None and (self.kind, self.first) != ("chain", "own"):
            raise ValueError("an inner drafter drafts for a chain whose first token is its own")
        if self.widths and self.depth is not None:
            raise ValueError("a tree's widths say how deep it is: drop depth")
        if self.nodes is not None and not (self.depth or len(self.widths) or 1) <= self.nodes <= self._drafted:
            raise ValueError(f"{self.nodes} verified nodes of {self._drafted:.0f} drafted ones")
        return self

    @property
    def _drafted(self) -> float:
        return float(sum(self.widths)) if self.widths else float("inf")


class Tier(Spec):
    """One verifier: the share of the target's layers that it runs, and of the rounds in which it does."""

    kept: Part = 1.0
    of_rounds: Part = 1.0


class Verification(Spec):
    """What the target runs over the drafted tokens.

    Attributes:
        rows: mean rows, where not every drafted token is verified.
        tiers: verifiers; all layers in every round otherwise.
        rule: how tokens are judged; only ``exact`` leaves the target's distribution as it is. With ``none`` nothing is
            judged, and the accept length is ``rows``.
        shift: what a relaxed rule adds to conditional rates.
        kv_share: bytes of the target's cache that a verify reads, as a share (a quantised half).
    """

    rows: Annotated[float, Field(ge=1)] | None = None
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1)] = (Tier(),)
    rule: Literal["exact", "relaxed", "tiered", "none"] = "exact"
    shift: Share = 0.0
    kv_share: Part = 1.0

    @model_validator(mode="after")
    def _tiers_are_a_rule(self) -> Verification:
        whole = self.tiers == (Tier(),)
        if (self.rule == "tiered") == whole:
            raise ValueError('several tiers, and nothing else, make the rule "tiered"')
        if not any(tier.kept == 1 for tier in self.tiers):
            raise ValueError("no tier runs the whole target: one needs kept = 1")
        if self.rule == "none" and self.rows is None:
            raise ValueError("what is not verified states its mean rows")
        if self.shift and self.rule == "exact":
            raise ValueError("an exact rule shifts no rates")
        return self


class Trained(Spec):
    """A drafter beyond its trained length: accepted tokens fall by 1 / (1 + (context / half) ** power)."""

    half: Size
    power: Annotated[float, Field(gt=0, le=10)] = 3.0


class AcceptanceRule(Spec):
    """What a system does to acceptance.

    Attributes:
        rank: P(the r-th best token is right), for trees; it gives the accept length where none is stated.
        trained: how acceptance falls beyond a trained length.
        limit: context beyond which no draft is accepted.
    """

    rank: tuple[Share, ...] = ()
    trained: Trained | None = None
    limit: Size | None = None

    @model_validator(mode="after")
    def _ranks_are_probabilities(self) -> AcceptanceRule:
        if sum(self.rank) > 1 + 1e-9 or list(self.rank) != sorted(self.rank, reverse=True):
            raise ValueError("rank holds probabilities of one token after the other: descending, 1 in all at most")
        return self

    def lasting(self, context: Array) -> Array:
        """Share of the accepted tokens that remains at a context: 1 where nothing is stated."""
        kept = np.ones_like(np.asarray(context, dtype=float))
        if self.trained is not None:
            kept = kept / (1.0 + (np.asarray(context) / self.trained.half) ** self.trained.power)
        return kept if self.limit is None else np.where(np.asarray(context) > self.limit, 0.0, kept)


class Experts(Spec):
    """Experts of a routed target.

    Attributes:
        budget: experts that a layer may touch at most in a pass (not lossless).
        draft_overlap, verify_overlap: as ``--overlap``, for draft passes and where drafts are chosen by experts.
        accept_cost: share of the accepted tokens that such a choice costs.
    """

    budget: Size | None = None
    draft_overlap: Annotated[float, Field(ge=0, lt=1)] | None = None
    verify_overlap: Annotated[float, Field(ge=0, lt=1)] | None = None
    accept_cost: Share = 0.0


class Upkeep(Spec):
    """Work beside the passes, every so many rounds or committed tokens (as many as a round can commit are counted).

    Attributes:
        per: what ``every`` counts.
        rows: of a pass of the drafter over so many rows of a sequence.
        products: matrices that one row of a sequence is multiplied with.
        bytes, context_bytes: moved per sequence, and per token of its context.
        launches: kernels started.
    """

    name: str
    per: Literal["round", "token"] = "round"
    every: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    rows: Count = 0
    products: tuple[Product, ...] = ()
    bytes: Annotated[float, Field(ge=0, le=1e15)] = 0.0
    context_bytes: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    launches: Annotated[float, Field(ge=0, le=1e4)] = 0.0


class Offload(Spec):
    """Shares of the target's weights and cache that lie outside the GPU and cross a link in every pass."""

    link_bytes_per_s: Annotated[float, Field(gt=0, le=1e15)]
    weights: Share = 0.0
    kv: Share = 0.0


class Generation(Spec):
    """How the target generates by itself: so many passes of so many rows for so many tokens, 1 of each as a rule.

    ``kv_share`` and ``unpack_flops``: bytes of its cache as a share, and FLOPs per cached element to rebuild it.
    """

    rows: Size = 1
    passes: Size = 1
    tokens: Size = 1
    kv_share: Part = 1.0
    unpack_flops: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    offload: Offload | None = None


class Look(Spec):
    """How people see a system: its phrase in a sentence, its colour on light and on dark ground."""

    phrase: str
    colours: tuple[Colour, Colour]


class System(Spec):
    """One way to speculate.

    Attributes:
        name: its label too.
        order: its place beside others, the plainest first.
        standard: whether it is answered for where no system is named.
        drafters: kinds of drafters that can draft so.
        assumed: what of this file nobody published; it is said where the answer stands.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")]
    title: str
    source: str = ""
    order: int = 1000
    standard: bool = False
    drafters: Annotated[tuple[DrafterKind, ...], Field(min_length=1)] = ("mtp", "eagle", "model")
    look: Look
    network: Network = Network()
    cache: Cache = Cache()
    proposal: Proposal = Proposal()
    verify: Verification = Verification()
    acceptance: AcceptanceRule = AcceptanceRule()
    experts: Experts = Experts()
    upkeep: tuple[Upkeep, ...] = ()
    generation: Generation = Generation()
    assumed: tuple[str, ...] = ()
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _name_is_free(self) -> System:
        if self.name in TAKEN:
            raise ValueError(f"{self.name!r} is what answers call something else: another name")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> System:
        if self.network.of == "target" and self.proposal.first != "own":
            raise ValueError('a target that drafts for itself has no wide pass: proposal.first = "own"')
        if self.network.heads and (self.proposal.kind, self.cache.of) != ("block", "none"):
            raise ValueError('heads propose a block and keep no cache: proposal.kind = "block", cache.of = "none"')
        return self

    @property
    def lossless(self) -> bool:
        """Whether the output is the target's own."""
        return self.verify.rule == "exact" and self.experts.budget is None

    @property
    def changes_acceptance(self) -> bool:
        """Whether a stated accept length is not what the system has at every context."""
        rule = self.acceptance
        return rule.trained is not None or rule.limit is not None or self.experts.accept_cost > 0

    @property
    def plain_chain(self) -> bool:
        """Whether the deployment's own drafter drafts a chain that the whole target verifies."""
        whole = self.verify == Verification() and not self.upkeep and self.cache.of == "own"
        return self.network.of == "drafter" and self.proposal == Proposal() and whole

    @property
    def window_matters(self) -> bool:
        """Whether the deployment's window and sink change anything."""
        return self.cache.tokens == "window"


@dataclass(frozen=True)
class Speculation:
    """A system with who drafts in it.

    Attributes:
        drafter: whose passes draft; None where nobody's matrices do.
        depth: drafted tokens where the deployment states none and the system or its drafter does.
        inner: who drafts for the drafter.
    """

    system: System
    drafter: Drafter | None = None
    depth: int | None = None
    inner: Drafter | None = None

    @property
    def name(self) -> str:
        return self.system.name

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """Everyone who drafts."""
        return tuple(each for each in (self.drafter, self.inner) if each is not None)

    @property
    def held(self) -> object:
        """What memory depends on: equal for systems that hold the same."""
        system, cache = self.system, self.system.cache
        bounds = (cache.tokens, cache.share) if cache.held == "attended" else ()
        sizes = (self.depth, system.proposal.model_dump_json(), system.verify.rows, system.verify.kv_share)
        return (*map(id, self.drafters), cache.held, cache.element_bytes, *bounds, *sizes)

    @property
    def windowed(self) -> bool:
        """Whether drafts attend less than their whole context, as far as the drafter does by itself."""
        return self.system.cache.bounded

    @property
    def fixed(self) -> bool:
        """Whether the file says how deep it is, whatever a deployment states."""
        return bool(self.system.proposal.widths)

    def most(self, depth: Array) -> Array:
        """Tokens that a round commits at most: the drafted ones and one more, or the mean rows that are verified."""
        rows = self.system.verify.rows
        most = self.levels(depth) + 1.0
        return most if rows is None else np.minimum(most, np.where(np.asarray(depth) > 0, rows, 1.0))

    def levels(self, depth: Array) -> Array:
        """Most drafted tokens that can be accepted, where the deployment's depth is ``depth``; 0 where that is 0."""
        fixed = len(self.system.proposal.widths) or self.depth
        return depth if fixed is None else np.where(np.asarray(depth) > 0, float(fixed), 0.0)

    def nodes(self, depth: Array) -> Array:
        """Drafted tokens that are verified."""
        proposal = self.system.proposal
        fixed = proposal.nodes or sum(proposal.widths)
        return np.where(np.asarray(depth) > 0, float(fixed), 0.0) if fixed else self.levels(depth)

    def verify_rows(self, depth: Array) -> Array:
        """Rows of a verify, the last committed token's among them."""
        rows = self.system.verify.rows
        return self.nodes(depth) + 1.0 if rows is None else np.where(np.asarray(depth) > 0, rows, 1.0)
