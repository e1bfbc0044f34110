"""What systems read, computed a second time: bytes of weights and of KV of every term, by hand from configs and files.

Nothing of the product's arithmetic is used: a model is its config.json, a system is its TOML file as it lies there, and
what both say is multiplied out as docs/systems.md states it. The product is asked for its answer
only. Everything is in bf16, on the engine `ideal`, which pads nothing and reads every byte once.

Conventions, as the base step of a dense model has them: a matrix is read once per pass, whatever the rows; embedding
rows and norms count as activations. An attention over S cached tokens and r rows reads S + r positions, so the rows'
own keys and values are among them; where the cache is the pass's own, each row is also written once. What a window, a
budget or slots leave is of the context; what earlier passes of the round drafted comes on top: a pass attends
attended(S) + drafted + r. All nodes of earlier levels of a tree are among the drafted.

Two conventions are the product's own: a tree's wide pass runs over its longest path and
the root, since only one path is committed, and P-EAGLE's one pass stands in the term `draft`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import wmtp_sim
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.step.compose import Step

DATA = Path(wmtp_sim.__file__).parent / "data"
BF16 = 2
#: AWQ's int4: a scale of 16 bits and a zero point of 4 bits for every 128 weights.
BYTES = {"bf16": 2.0, "fp32": 4.0, "int4": (4 + 16 / 128 + 4 / 128) / 8}
#: Sink + window of the deployment.
WINDOW = 64 + 4032
#: Contexts and batches of every comparison.
POINTS = tuple((context, batch) for context in (4096, 131_072) for batch in (1, 4))


# --- sizes -------------------------------------------------------------------------------------------------------


class Net(NamedTuple):
    """A network by its sizes: q and kv are heads times their width, the rest as its file names it."""

    hidden: int
    layers: int
    q: int
    kv: int
    inner: int
    vocab: int
    experts: int = 0
    chosen: int = 0
    joins: str = "nothing"
    fuses: int = 0
    heads: int = 0
    shares: tuple[str, ...] = ()
    tied: bool = False
    element: float = BF16
    vocab_element: float = BF16
    kept: float = 1.0
    micro: float = 0.0
    mixers: tuple[str, ...] = ("attention",)

    @property
    def attending(self) -> int:
        """Layers that attend."""
        return sum(self.mixers[i % len(self.mixers)] == "attention" for i in range(self.layers))


class Bytes(NamedTuple):
    """What one term reads and writes."""

    weights: float
    kv: float


@cache
def of_config(name: str) -> Net:
    """A model's sizes, from its config."""
    config = json.loads((DATA / "models" / f"{name}.json").read_text())
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    width = config.get("head_dim", hidden // heads)
    return Net(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        q=heads * width,
        kv=config["num_key_value_heads"] * width,
        inner=config.get("moe_intermediate_size", config["intermediate_size"]),
        vocab=config["vocab_size"],
        experts=config.get("num_experts", 0),
        chosen=config.get("num_experts_per_tok", 0),
        tied=config["tie_word_embeddings"],
    )


@cache
def of_system(name: str) -> dict[str, Any]:
    """A system as its file states it."""
    return tomllib.loads((DATA / "systems" / f"{name}.toml").read_text())


def eagle(target: Net) -> Net:
    """An EAGLE-3 head: one layer whose q, k and v take 2h, three fused states, an lm_head of 32,000 rows."""
    inner = 4 * target.hidden if target.experts else target.inner
    small = {"layers": 1, "experts": 0, "inner": inner, "vocab": 32_000}
    return target._replace(joins="attention", fuses=3, shares=("embedding",), **small)


def drafting(stated: dict[str, Any], target: Net, drafter: str | None) -> Net:
    """Who drafts, where a file's network table is `stated`."""
    if stated.get("of", "drafter") == "drafter":
        assert drafter is not None
        return eagle(target) if drafter == "eagle" else of_config(drafter)
    element = BYTES[stated.get("format", "bf16")]
    if stated["of"] == "target":
        return target._replace(element=element, kept=stated.get("kept", 1.0))
    hidden, vocab = stated.get("hidden", target.hidden), stated.get("vocab", target.vocab)
    heads = stated.get("attention", {"q_heads": target.q, "kv_heads": target.kv, "head_dim": 1})
    shares = tuple(stated.get("shares", ("embedding", "lm_head")))
    sizes = {"hidden": hidden, "vocab": vocab}
    return Net(
        hidden=hidden,
        layers=0 if stated.get("heads") else stated.get("layers", 1),
        q=heads["q_heads"] * heads["head_dim"],
        kv=heads["kv_heads"] * heads["head_dim"],
        inner=stated.get("inner", 4 * target.hidden if target.experts else target.inner),
        vocab=vocab,
        joins=stated.get("joins", "nothing"),
        fuses=stated.get("fuses", 0),
        heads=stated.get("heads", 0),
        shares=shares,
        element=element,
        vocab_element=BF16 if "lm_head" in shares else element,
        micro=sum(product(each, sizes) for each in stated.get("micro", ())),
        mixers=tuple(stated.get("mixers", ("attention",))),
    )


def product(stated: dict[str, Any], sizes: dict[str, int]) -> float:
    """Bytes of a matrix k x n whose sides are numbers or names of sizes."""
    return BF16 * sizes.get(stated["k"], stated["k"]) * sizes.get(stated["n"], stated["n"])


# --- weights -------------------------------------------------------------------------------------------------------


def union(net: Net, rows: float, batch: int, overlap: float = 0.0) -> float:
    """Experts that `rows` of each of `batch` sequences touch in a layer."""
    if not net.experts:
        return 0.0
    alone = net.experts * (1 - (1 - net.chosen / net.experts) ** rows)
    one = net.chosen + (1 - overlap) * (alone - net.chosen)
    return net.experts * (1 - (1 - one / net.experts) ** batch)


def attention_weights(net: Net) -> float:
    """q, k, v and o of all layers; in an EAGLE-3 head the first layer's q, k and v read the embedding, too."""
    wider = net.hidden if net.joins == "attention" else 0
    each = net.hidden * (net.q + 2 * net.kv) + net.q * net.hidden
    return net.element * (net.attending * each + wider * (net.q + 2 * net.kv))


def layer_weights(net: Net, touched: float = 0.0) -> float:
    """All layers that a pass runs; `touched` experts of each where they route."""
    mlp = 3 * net.hidden * net.inner * (touched if net.experts else 1)
    router = net.hidden * net.experts
    return net.kept * (attention_weights(net) + net.element * net.layers * (mlp + router))


def head_weights(net: Net) -> float:
    """The vocabulary matrix: a drafter's own is stored as its layers are, the target's is not."""
    return net.vocab_element * net.vocab * net.hidden


def side_by_side(net: Net) -> float:
    """Heads on one state: a square matrix each, and a vocabulary matrix each where they do not share the target's."""
    own = net.heads if "lm_head" not in net.shares else 1
    return net.heads * BF16 * net.hidden**2 + own * head_weights(net)


def resident(net: Net) -> float:
    """A drafter's matrices that are its own; an lm_head that is tied to its embedding lies in memory with that."""
    lm_heads = 0 if "lm_head" in net.shares or net.tied else max(net.heads, 1)
    embeddings = 0 if "embedding" in net.shares else 1
    squares = net.heads * BF16 * net.hidden**2
    vocabulary = (lm_heads + embeddings) * head_weights(net)
    return layer_weights(net) + fuse_weights(net) + net.micro + squares + vocabulary


def fuse_weights(net: Net) -> float:
    """One matrix that joins the target's states."""
    return BF16 * net.fuses * net.hidden**2


# --- caches --------------------------------------------------------------------------------------------------------


class Policy(NamedTuple):
    """What the passes of a drafter read of its cache, and keep."""

    own: bool = True
    tokens: int = 0
    share: float = 1.0
    held: str = "all"
    wide: str = "attended"
    element: float = BF16

    @classmethod
    def of(cls, stated: dict[str, Any]) -> Policy:
        tokens = stated.get("tokens", 0)
        return cls(
            own=stated.get("of", "own") == "own",
            tokens=WINDOW if tokens == "window" else tokens,
            share=stated.get("share", 1.0),
            held=stated.get("held", "all"),
            wide=stated.get("wide", "attended"),
            element=stated.get("element_bytes", BF16),
        )

    def attended(self, cached: float) -> float:
        return min(cached, self.tokens + self.share * max(cached - self.tokens, 0))

    def widely(self, cached: float) -> float:
        return cached if self.wide == "all" else self.attended(cached)

    def holds(self, cached: float, rows: float) -> float:
        """Tokens that stay in memory."""
        bounded = min(cached, self.attended(cached) + rows)
        return {"all": cached, "attended": bounded, "nothing": 0.0}[self.held]


def kappa(net: Net, element: float = BF16) -> float:
    """Bytes per cached token: keys and values of all layers that attend."""
    return net.kept * net.attending * 2 * net.kv * element


# --- a round -------------------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """One step of a system at a point: everything that its passes depend on."""

    system: dict[str, Any]
    target: Net
    net: Net
    context: int
    batch: int
    depth: int

    @property
    def policy(self) -> Policy:
        return Policy.of(self.system.get("cache", {}))

    @property
    def proposal(self) -> dict[str, Any]:
        return self.system.get("proposal", {})

    @property
    def verify_rows(self) -> float:
        widths = self.proposal.get("widths", ())
        nodes = self.proposal.get("nodes", sum(widths) or self.depth)
        return self.system.get("verify", {}).get("rows", nodes + 1)

    @property
    def wide_first(self) -> bool:
        """Whether the pass over verified rows proposes the first token."""
        return self.proposal.get("first", "wide") == "wide"

    def narrow(self, rows: float, drafted: float = 0.0) -> Bytes:
        """A pass of the drafter that proposes, behind what the round has drafted."""
        return self.drafter_pass(self.policy.attended(self.context) + drafted, rows)

    def drafter_pass(self, before: float, rows: float, *, logits: bool = True, wide: bool = False) -> Bytes:
        """One pass of the drafter; a wide one joins the target's states first."""
        weights = layer_weights(self.net) + head_weights(self.net) * logits + fuse_weights(self.net) * wide
        positions = before + rows + rows * self.policy.own
        return Bytes(weights, self.batch * kappa(self.net, self.policy.element) * positions)


def scaled(each: Bytes, times: float) -> Bytes:
    return Bytes(each.weights * times, each.kv * times)


def two_levels(at: Round) -> Iterator[Bytes]:
    """An inner drafter's passes of one row, then the drafter's over what they drafted, until enough is committed."""
    inner = at.proposal["inner"]
    small = inner_round(at)
    for done in range(0, at.depth, inner["accept_length"]):
        yield from (small.narrow(1, done + i) for i in range(inner["depth"]))
        yield at.narrow(inner["depth"] + 1, done)


def inner_round(at: Round) -> Round:
    """The drafter's drafter in its place."""
    inner = at.proposal["inner"]
    alone = at.system | {"cache": inner["cache"], "proposal": {}}
    return at._replace(net=drafting(inner["network"], at.target, None), system=alone, depth=inner["depth"])


def levels(at: Round) -> list[Round]:
    """The drafter, and the drafter's drafter where there is one."""
    return [at, *([inner_round(at)] if "inner" in at.proposal else [])]


def draft(at: Round) -> Iterator[Bytes]:
    """Passes that propose, behind the wide one where that proposes the first token of a chain or tree."""
    kind = at.proposal.get("kind", "chain")
    if "inner" in at.proposal:
        yield from two_levels(at)
    elif kind == "chain":
        yield from (at.narrow(1, i) for i in range(at.depth - at.wide_first))
    elif kind == "tree":
        widths = at.proposal["widths"]
        yield from (at.narrow(rows, sum(widths[:i])) for i, rows in enumerate(widths[:-1]))
    elif at.net.heads:
        yield Bytes(side_by_side(at.net), 0.0)
    elif at.wide_first:  # verified rows, the last of which proposes a token, and masks behind them
        yield at.drafter_pass(at.policy.widely(at.context), at.verify_rows + at.depth - 1, wide=True)
    else:
        yield at.narrow(at.depth + 1)
        yield Bytes(at.depth * at.net.micro, 0.0)


def extend(at: Round) -> Iterator[Bytes]:
    """The pass over verified rows, or what fills a block drafter's cache; and what a system does beside its passes."""
    yield from upkeep(at)
    if at.proposal.get("kind", "chain") != "block":
        if at.wide_first:
            yield at.drafter_pass(at.policy.widely(at.context), at.depth + 1, wide=True)
    elif not at.wide_first and not at.net.heads and at.policy.own:
        rows = min(at.verify_rows, at.depth + 1)
        if at.system["drafters"][0] == "block":
            keys_and_values = at.net.element * at.net.layers * 2 * at.net.hidden * at.net.kv
            yield Bytes(fuse_weights(at.net) + keys_and_values, at.batch * kappa(at.net) * rows)
        else:  # a model knows no states of the target: it runs over the tokens
            yield at.drafter_pass(at.policy.attended(at.context), rows, logits=False)


def upkeep(at: Round) -> Iterator[Bytes]:
    """Matrices beside the passes, and passes for the cache alone; all drafted tokens count as committed."""
    for each in at.system.get("upkeep", ()):
        times = (at.depth + 1 if each.get("per") == "token" else 1) / each.get("every", 1)
        sizes = {"hidden": at.target.hidden}
        yield Bytes(times * sum(product(matrix, sizes) for matrix in each.get("products", ())), 0.0)
        if each.get("rows"):
            building = at.drafter_pass(at.policy.attended(at.context), each["rows"], logits=False)
            yield scaled(building, times)


def target_pass(at: Round, rows: float, kept: float, share: float, touched: float) -> Bytes:
    """A share of the target's layers and of their cache, lm_head whole."""
    part = at.target._replace(kept=kept)
    kv = share * at.batch * kappa(part) * (at.context + 2 * rows)
    return Bytes(layer_weights(part, touched) + head_weights(part), kv)


def verify(at: Round) -> Iterator[Bytes]:
    """The target over all verified rows, by tiers."""
    stated, experts = at.system.get("verify", {}), at.system.get("experts", {})
    touched = union(at.target, at.verify_rows, at.batch, experts.get("verify_overlap", 0.0))
    touched = min(touched, experts.get("budget", touched))
    share = stated.get("kv_share", 1.0) * at.system.get("generation", {}).get("kv_share", 1.0)
    for tier in stated.get("tiers", [{}]):
        passed = target_pass(at, at.verify_rows, tier.get("kept", 1.0), share, touched)
        yield scaled(passed, tier.get("of_rounds", 1.0))


def base(at: Round) -> Iterator[Bytes]:
    """A token of the target without speculation: nothing of `verify` or `experts` holds for it."""
    stated = at.system.get("generation", {})
    rows = stated.get("rows", 1)
    passed = target_pass(at, rows, 1.0, stated.get("kv_share", 1.0), union(at.target, rows, at.batch))
    yield scaled(passed, stated.get("passes", 1) / stated.get("tokens", 1))


def total(passes: Iterator[Bytes]) -> Bytes:
    each = list(passes)
    return Bytes(sum(one.weights for one in each), sum(one.kv for one in each))


def beside_the_target(at: Round) -> float:
    """Matrices in memory that are not the target's: a drafter's own, or a copy of its layers in another format."""
    drafter, *inner = levels(at)
    network = at.system.get("network", {})
    of_target = network.get("of") == "target"
    own = layer_weights(drafter.net) * ("format" in network) if of_target else resident(drafter.net)
    return own + sum(resident(each.net) for each in inner)


# --- the product ---------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A system, and whom it is asked of."""

    system: str
    model: str = "qwen3-8b"
    drafter: str | None = None
    depth: int | None = None


@cache
def answer(case: Case, context: int, batch: int) -> Estimate:
    stated: dict[str, Any] = {"engine": "ideal", "context": context, "batch": batch, "system": case.system}
    return wmtp_sim.estimate(case.model, "h200", drafter=case.drafter, depth=case.depth, **stated)


def asked(case: Case, context: int, batch: int) -> Round:
    """The same of this file."""
    system, target = of_system(case.system), of_config(case.model)
    proposal = system.get("proposal", {})
    deep = len(proposal.get("widths", ())) or case.depth or proposal["depth"]
    return Round(system, target, drafting(system.get("network", {}), target, case.drafter), context, batch, deep)


def moved(step: Step, term: str, only: str = "") -> Bytes:
    """Bytes of one term of a step of the product; of operations whose name starts with `only`."""
    entries = [e.operation for e in step.entries if e.term == term and e.operation.name.startswith(only)]
    weights, kv = (sum(float(getattr(o, kind) * o.repeats) for o in entries) for kind in ("weights", "kv"))
    return Bytes(weights, kv)


LLAMA = {"model": "llama-3.1-8b", "drafter": "llama-3.2-1b"}
CHAINS = ("native", "flag", "ring", "eagle-3.1", "relaxed-sd", "via-sd", "depthweave-kv")
BLOCKS = ("dflash", "dflash-window", "dspark", "dels-spec", "adaflash", "p-eagle", "medusa", "clp")
CASES = (
    *(Case(name, drafter="eagle", depth=5) for name in CHAINS),
    *(Case(name) for name in BLOCKS),
    *(Case(name) for name in ("kvshot", "longspec", "budgetdraft", "triforce", "magicdec", "quantspec", "swift")),
    Case("ecospec", drafter="eagle"),
    *(Case(name, depth=5, **LLAMA) for name in ("native", "flag", "ring", "memory-slots")),
    *(Case(name, **LLAMA) for name in ("sequoia", "specexec", "simsd")),
    *(Case(name, "qwen3-30b-a3b", "eagle", 5) for name in ("native", "moe-spec")),
    Case("ecospec", "qwen3-30b-a3b", "eagle"),
)


def named(case: Case) -> str:
    return f"{case.system}:{case.model}"


def cases(*kinds: tuple[str, str]) -> list[Any]:
    """Each case with each term and kind of bytes."""
    each = ((case, term, kind) for case in CASES for term, kind in kinds)
    return [pytest.param(*one, id=f"{named(one[0])}-{one[1]}-{one[2]}") for one in each]


# --- the comparisons -----------------------------------------------------------------------------------------------


ROUND = {"draft": draft, "verify": verify, "extend": extend}


@pytest.mark.parametrize(
    ("case", "term", "kind"), cases(*((term, kind) for term in ROUND for kind in ("weights", "kv")))
)
def test_a_round_moves_what_its_passes_multiply_and_attend(case: Case, term: str, kind: str) -> None:
    """Bytes of weights, and of keys and values read and written, of each term of a speculative step."""
    for point in POINTS:
        ours = getattr(total(ROUND[term](asked(case, *point))), kind)
        assert getattr(moved(answer(case, *point).steps[case.system], term), kind) == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_base_step_moves_what_the_target_alone_needs(case: Case) -> None:
    """Bytes of a token without speculation: no budget of experts, no tier and no half of a cache holds for it."""
    for point in POINTS:
        ours = total(base(asked(case, *point)))
        assert moved(answer(case, *point).base_step, "verify") == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_drafters_matrices_lie_in_memory_once(case: Case) -> None:
    """Weights in memory beside the target's: the drafter's own, and norms, at most 3 a layer and one behind them."""
    at, memory = asked(case, *POINTS[0]), answer(case, *POINTS[0]).memory
    more = float(memory[case.system].weights_bytes - memory["base"].weights_bytes)
    norms = sum(BF16 * each.net.hidden * (3 * each.net.layers + 1) for each in levels(at))
    sizes = {"hidden": at.target.hidden}
    beside = sum(product(m, sizes) for each in at.system.get("upkeep", ()) for m in each.get("products", ()))
    assert 0 <= more - beside_the_target(at) - beside <= norms


@pytest.mark.parametrize(("case", "_where", "_kind"), cases(("memory", "kv")))
def test_a_drafters_cache_holds_what_its_file_says(case: Case, _where: str, _kind: str) -> None:
    """Draft KV in memory: all of the context, or what is attended and the verified rows, or nothing."""
    for context, batch in POINTS:
        at = asked(case, context, batch)
        held = [kappa(e.net, e.policy.element) * e.policy.holds(context, at.verify_rows) for e in levels(at)]
        theirs = answer(case, context, batch).memory[case.system].draft_kv_bytes
        assert float(theirs) == pytest.approx(batch * sum(held), rel=1e-9)


def test_the_attention_layers_of_a_hybrid_block_read_the_target_in_place() -> None:
    """H-Spec: two of five layers attend. They read S + 16 positions of two layers' cache and write and hold nothing.

    Beside them, one square matrix a round starts the states of the Mamba layers, whose own matrices are not compared.
    """
    case = Case("h-spec")
    for context, batch in POINTS:
        net = asked(case, context, batch).net
        step, memory = answer(case, context, batch).steps["h-spec"], answer(case, context, batch).memory["h-spec"]
        assert net.attending == 2
        assert moved(step, "draft").kv == pytest.approx(batch * 2 * 4096 * (context + 16), rel=1e-9)
        assert moved(step, "draft", "attention").weights == pytest.approx(attention_weights(net), rel=1e-9)
        assert moved(step, "extend") == pytest.approx((2 * 4096**2, 0.0), rel=1e-9)
        assert memory.draft_kv_bytes == 0


def test_sizes_are_what_configs_say_by_hand() -> None:
    """Qwen3-8B: 36 layers, 32 and 8 heads of 128, MLPs of 12,288, 151,936 tokens; 147,456 B of KV a token.

    One layer is 4,096 x (4,096 + 2 x 1,024) + 4,096 x 4,096 + 3 x 4,096 x 12,288 = 192,937,984 weights. DFlash caches
    20,480 B a token, an EAGLE head 4,096 B, Llama-3.1-8B 131,072 B and Llama-3.2-1B 32,768 B.
    """
    qwen = of_config("qwen3-8b")
    assert (layer_weights(qwen), kappa(qwen)) == (36 * 192_937_984 * 2, 147_456)
    assert kappa(asked(Case("dflash"), 4096, 1).net) == 20_480
    assert kappa(eagle(qwen)) == 4096
    assert [kappa(of_config(name)) for name in ("llama-3.1-8b", "llama-3.2-1b")] == [131_072, 32_768]
    assert layer_weights(eagle(qwen)) == 2 * (192_937_984 + 4096 * (4096 + 2 * 1024))
