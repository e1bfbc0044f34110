"""The drafters that systems state by themselves: layers of their own beside any target, heads, or the target itself."""

from __future__ import annotations

from wmtp_sim.errors import InputError
from wmtp_sim.spec.drafter import Drafter, DrafterKind, Product
from wmtp_sim.spec.model import Attention, Block, Mamba2, Mixer, Mlp, Model, Projection
from wmtp_sim.spec.precision import GroupFormats, weight_format
from wmtp_sim.spec.system import Heads, Network, System


def own_drafter(system: System, target: Model, draft_weights: str | None = None) -> Drafter:
    """The drafter that a system describes, for a target; its note says what nobody published.

    Raises:
        InputError: where the target has no attention or MLP whose size it could copy.
    """
    try:
        found = network_drafter(system.network, system.drafters[0], f"{system.name} head", target, draft_weights)
    except InputError as error:
        if error.field != "--drafter":
            raise
        hint = "give --drafter head/config.json, or another system"
        raise InputError("--system", f"{system.name}: {error.problem}", hint) from None
    proposal = system.proposal
    rows = (proposal.depth or 0) + 1 if proposal.kind == "block" and found.kind != "heads" else 0
    return found.model_copy(update={"block": rows, "note": "; ".join(system.assumed)})


def self_drafter(network: Network, target: Model) -> Drafter:
    """The target as its own drafter; a copy in another format takes memory of its own."""
    formats = target.precision.target
    if network.format is not None:
        formats = formats.with_linear(weight_format(network.format, "network.format").name)
    return Drafter(
        kind="self",
        name=f"{target.name} itself",
        hidden=target.hidden,
        vocab=target.vocab,
        blocks=target.blocks,
        norms=target.final_norms,
        formats=formats,
        state_dtype_bytes=target.state_dtype_bytes,
        of_target=network.format is None,
        kept=network.kept,
    )


def network_drafter(
    network: Network, kind: DrafterKind, name: str, target: Model, draft_weights: str | None = None
) -> Drafter:
    """A drafter from a network's fields; sizes that follow the target are the target's."""
    hidden = target.hidden if network.hidden == "target" else network.hidden
    vocab = target.vocab if network.vocab == "target" else network.vocab
    stated = draft_weights or network.format
    formats = GroupFormats(lm_head=target.precision.target.lm_head)
    if stated is not None:
        name_of = weight_format(stated, "--draft-weights").name
        own = {"embedding", "lm_head"} - set(network.shares)
        formats = formats.with_linear(name_of).model_copy(update=dict.fromkeys(own, name_of))
    own_lm_head = "lm_head" not in network.shares
    together = network.heads and not own_lm_head
    blocks = () if network.heads else _blocks(network, target, hidden)
    return Drafter(
        kind=kind,
        name=name,
        hidden=hidden,
        vocab=vocab,
        blocks=blocks,
        projections=tuple(_projections(network, target, hidden, blocks)),
        norms=0 if network.heads else 1,
        formats=formats,
        own_lm_head=own_lm_head,
        embedding_rows=0 if "embedding" in network.shares else vocab,
        resident_copies=1 if together else max(network.heads, 1),
        micro=tuple(_sized(each, i, hidden, vocab) for i, each in enumerate(network.micro)),
    )


def _projections(network: Network, target: Model, hidden: int, blocks: tuple[Block, ...]) -> list[Projection]:
    found = []
    if network.fuses:
        found.append(Projection(name="fuse_proj", k=network.fuses * target.hidden, n=hidden, every_step=False))
    if network.joins == "embedding":
        found.append(Projection(name="join_proj", k=2 * hidden, n=hidden))
    if network.joins == "attention":
        wide = [m for block in blocks for m in block.mixers if isinstance(m, Attention)][:1]
        found += [Projection(name="qkv_embedding_half", k=hidden, n=_qkv(each)) for each in wide]
    if network.heads:
        side_by_side = network.heads if "lm_head" in network.shares else 1
        found.append(Projection(name="heads", k=hidden, n=side_by_side * hidden))
    return found


def _qkv(a: Attention) -> int:
    return a.q_heads * a.head_dim + a.kv_heads * (a.head_dim + a.v_head_dim)


def _sized(product: Product, place: int, hidden: int, vocab: int) -> Projection:
    named = {"hidden": hidden, "vocab": vocab}
    k, n = (named[size] if isinstance(size, str) else size for size in (product.k, product.n))
    return Projection(name=f"micro_{place}", k=k, n=n)


def _blocks(network: Network, target: Model, hidden: int) -> tuple[Block, ...]:
    """Decoder layers of Llama's shape; layers of one kind are one block."""
    inner = _inner(target) if network.inner == "target" else network.inner
    kinds = [network.mixers[i % len(network.mixers)] for i in range(network.layers)]
    found = []
    for kind in dict.fromkeys(kinds):
        mixer = _attention(network, target) if kind == "attention" else _mamba2(hidden)
        found.append(Block(count=kinds.count(kind), mixers=(mixer,), channels=(Mlp(inner=inner),), norms=2))
    return tuple(found)


def _attention(network: Network, target: Model) -> Mixer:
    if isinstance(network.attention, Heads):
        q, kv, dim = network.attention.q_heads, network.attention.kv_heads, network.attention.head_dim
        return Attention(q_heads=q, kv_heads=kv, head_dim=dim, v_head_dim=dim, window=network.window)
    return full_attention(target).model_copy(update={"window": network.window})


def full_attention(target: Model) -> Attention:
    """The target's own attention over the whole context, in the plain form that heads copy.

    Raises:
        InputError: where it has none.
    """
    full = [m for b in target.blocks for m in b.mixers if isinstance(m, Attention) and m.window is None]
    if not full:
        problem = f"{target.name} has no grouped-query attention whose geometry a head could copy"
        raise InputError("--drafter", problem, "give the head's own config.json")
    first = full[0]
    return Attention(
        q_heads=first.q_heads, kv_heads=first.kv_heads, head_dim=first.head_dim, v_head_dim=first.v_head_dim
    )


def _inner(target: Model) -> int:
    """The target's MLP width, or the usual 4 hidden widths where every layer routes."""
    return max((c.inner for b in target.blocks for c in b.channels if isinstance(c, Mlp)), default=4 * target.hidden)


def _mamba2(hidden: int) -> Mamba2:
    """Mamba-2 in its paper's proportions: twice as wide, heads of 64, states of 128, one group."""
    inner = 2 * hidden
    return Mamba2(heads=inner // 64, head_dim=64, groups=1, state_dim=128, conv_kernel=4)
