"""A server as a person would start it: model, engine, ranks, speculation, caches. What a launch line says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from wmtp_sim.spec.base import Count, Size, Spec

Ranks = Annotated[int, Field(ge=1, le=1024)]
#: A name or a word of an engine: no control characters, which a terminal or a shell would act on.
Word = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]
Cache = Literal["bf16", "fp8"]
#: Who drafts one token after the other: the target's own head, an EAGLE-3 head, a draft model. These are priced.
CHAINS = ("mtp", "eagle", "model")


class ServerDeployment(Spec):
    """What is served and how, in the words of this project; None is "the engine's default".

    Attributes:
        model: path or name, as the engine is given it.
        engine: ``sglang``, ``vllm@0.26``: whose flags a line is written in.
        tp, dp: ranks that share a sequence's attention, and groups of them, each with sequences of its own.
        dp_attention: whether the groups share experts; else they are replicas.
        ep: ranks that whole experts are dealt to; 1 is a part of every expert on every rank.
        all_to_all: who sends rows to their experts and back; None is nobody, all rows are everywhere.
        draft_tp: ranks that share the drafter, where the engine is told another number than ``tp``.
        pp, hosts: pipeline stages, and hosts that all GPUs stand in. Neither is priced nor written into a line: each
            host is started by a command of its own.
        context: the longest sequence that is served, in tokens.
        depth: tokens drafted per step; 0 is no speculation. SGLang's num_steps, vLLM's num_speculative_tokens.
        topk: branches per drafted token; 1 is a chain, which alone is priced.
        verify_rows: rows that a target pass verifies; depth + 1 for a chain where it is not stated.
        method: who drafts: one of `CHAINS`, else the engine's own word for a way to draft that is not priced here; the
            depth is 0 then where the engine counts otherwise.
        draft_model: path or name of a drafter that is not the target's own head.
        window, sink: tokens that a draft attends: the most recent ones and the first ones. No window is all.
        attention_backend: of all passes; ``prefill_backend`` and ``decode_backend`` come before it where they are
            stated, and ``attention_mode`` says which of the two verifies.
        kv, draft_kv: cache formats.
        quantization, draft_quantization: the engine's word for a format that weights are stored in or converted to.
        memory_fraction: share of the GPU's memory for weights and caches.
        max_running: sequences that all GPUs decode together, at most.
        kv_splits: SGLang's cap on the thread blocks along the context of its Triton decode kernel.
        config_overrides: what is put over the checkpoint's config.json, as JSON text.
        draft_context: longest sequence that the drafter serves, where it has a limit of its own.
    """

    model: Word
    engine: Word = "sglang"
    tp: Ranks = 1
    dp: Ranks = 1
    dp_attention: bool = False
    ep: Ranks = 1
    all_to_all: Literal["deepep"] | None = None
    draft_tp: Ranks | None = None
    pp: Ranks = 1
    hosts: Ranks = 1
    context: Size | None = None
    depth: Annotated[int, Field(ge=0, le=64)] = 0
    topk: Annotated[int, Field(ge=1, le=1024)] = 1
    verify_rows: Annotated[int, Field(ge=1, le=4096)] | None = None
    method: Word = "mtp"
    draft_model: Word | None = None
    window: Size | None = None
    sink: Count | None = None
    attention_backend: Word | None = None
    prefill_backend: Word | None = None
    decode_backend: Word | None = None
    attention_mode: Word | None = None
    draft_attention_backend: Word | None = None
    kv: Cache | None = None
    draft_kv: Cache | None = None
    quantization: Word | None = None
    draft_quantization: Word | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    max_running: Size | None = None
    kv_splits: Size | None = None
    draft_context: Size | None = None
    config_overrides: Annotated[str, Field(max_length=65_536)] | None = None

    @property
    def chain(self) -> bool:
        """Whether drafts are a chain, or there are none; else they are made in a way that is not priced."""
        return self.method in CHAINS

    @property
    def ranks(self) -> int:
        """Ranks that work on one step together."""
        return self.tp * self.dp if self.dp_attention else self.tp

    @property
    def layout(self) -> dict[str, Any]:
        """How GPUs share the model, as `wmtp_sim.estimate` is asked for it."""
        whole = min(self.ep, self.ranks)
        return {
            "tp": self.tp,
            "dp": self.dp,
            "dp_attention": self.dp_attention,
            "expert_parallel": whole if whole > 1 else False,
            "all_to_all": self.all_to_all is not None,
            "draft_tp": self.draft_tp,
            "pp": self.pp,
            "hosts": self.hosts,
        }

    @property
    def rows(self) -> int:
        """Rows that a target pass verifies: depth + 1 for a chain."""
        return self.verify_rows if self.verify_rows is not None else self.depth + 1

    @property
    def verify_backend(self) -> str | None:
        """The stated attention backend that serves verify passes."""
        split = self.decode_backend if self.attention_mode == "decode" else self.prefill_backend
        return split or self.attention_backend

    @property
    def backends(self) -> dict[str, str]:
        """The stated attention backends, in the engine's words, by the passes that an estimate is told them for."""
        found = {
            "base": self.decode_backend or self.attention_backend,
            "verify": self.verify_backend,
            "draft": self.draft_backend,
        }
        return {name: word for name, word in found.items() if word is not None}

    @property
    def draft_backend(self) -> str | None:
        """The stated attention backend that serves narrow draft passes; it follows the target's where none is."""
        return self.draft_attention_backend or self.decode_backend or self.attention_backend
