"""Options that several commands take, declared once: they describe the same deployment and acceptance."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from wmtp_sim.errors import InputError
from wmtp_sim.spec.acceptance import Source

ACCEPTANCE, DEPLOYMENT = "Acceptance", "Deployment"

ModelName = Annotated[str, typer.Argument(help="Catalogue name (wmtp models), config.json, or its folder.")]
GpuName = Annotated[str, typer.Option(help="GPU name (wmtp gpus), or a GPU's TOML or JSON file.")]
Window = Annotated[str, typer.Option(help="Recent tokens that a windowed draft attends.")]
Sink = Annotated[str, typer.Option(help="First tokens that a windowed draft attends.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document, complete and schema-versioned.")]

WindowedAcceptLength = Annotated[
    float | None, typer.Option(help="The same for windowed drafts, where it differs.", rich_help_panel=ACCEPTANCE)
]
Alpha = Annotated[
    float | None,
    typer.Option(help="One conditional acceptance rate for every position.", rich_help_panel=ACCEPTANCE),
]
Survival = Annotated[
    str | None,
    typer.Option(
        help="P(first j tokens accepted), per position: vLLM's per-position rate.", rich_help_panel=ACCEPTANCE
    ),
]
Conditional = Annotated[
    str | None,
    typer.Option(help="P(token j accepted, given those before), per position.", rich_help_panel=ACCEPTANCE),
]
AcceptanceSource = Annotated[
    str, typer.Option(help="given, measured, published or assumed.", rich_help_panel=ACCEPTANCE)
]

EngineName = Annotated[str, typer.Option(help="sglang, vllm@0.26 (wmtp engines), or an engine's TOML file.")]
EngineSet = Annotated[
    list[str] | None,
    typer.Option(help="Change a value of the engine: host.step_s=0.001; several times.", metavar="PATH=VALUE"),
]
AttentionBackend = Annotated[
    str | None,
    typer.Option(
        help="The engine's word, or by pass: base=fa3,verify=triton,draft=flashinfer.",
        rich_help_panel=DEPLOYMENT,
        show_default=False,
    ),
]
DrafterName = Annotated[
    str | None,
    typer.Option(
        help="mtp, eagle, a draft model, or a head's config; a system's own, else mtp.",
        rich_help_panel=DEPLOYMENT,
        show_default=False,
    ),
]
SystemNames = Annotated[
    list[str] | None,
    typer.Option("--system", help="How to speculate (wmtp systems), or a TOML file; several times.", metavar="NAME"),
]
Weights = Annotated[str | None, typer.Option(help="Format of the target's linear layers.", rich_help_panel=DEPLOYMENT)]
HeadWeights = Annotated[str | None, typer.Option(help="Format of lm_head.", rich_help_panel=DEPLOYMENT)]
DraftWeights = Annotated[
    str | None, typer.Option(help="Format of the draft head's linear layers.", rich_help_panel=DEPLOYMENT)
]
Kv = Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8 (fp8_e4m3, fp8_e5m2).", rich_help_panel=DEPLOYMENT)]
DraftKv = Annotated[str | None, typer.Option(help="Draft KV cache.", rich_help_panel=DEPLOYMENT)]
Overlap = Annotated[float, typer.Option(help="Experts shared by consecutive rows, 0 to 1.", rich_help_panel=DEPLOYMENT)]
RoutingSkew = Annotated[
    float, typer.Option(help="Exponent of experts' popularity: 0 uniform, 1 Zipf.", rich_help_panel=DEPLOYMENT)
]
Tp = Annotated[str, typer.Option(help="GPUs that share a sequence's attention.", rich_help_panel=DEPLOYMENT)]
Dp = Annotated[
    str, typer.Option(help="Groups of --tp GPUs, each with its part of the batch.", rich_help_panel=DEPLOYMENT)
]
DpAttention = Annotated[
    bool, typer.Option("--dp-attention", help="The groups share experts; else replicas.", rich_help_panel=DEPLOYMENT)
]
AllToAll = Annotated[
    bool, typer.Option("--all-to-all", help="Rows travel to their experts (DeepEP).", rich_help_panel=DEPLOYMENT)
]
DraftTp = Annotated[
    str | None, typer.Option(help="GPUs that share the drafter, if fewer than --tp.", rich_help_panel=DEPLOYMENT)
]
ExpertParallel = Annotated[
    bool, typer.Option("--expert-parallel", help="GPUs hold whole experts.", rich_help_panel=DEPLOYMENT)
]
ProfileName = Annotated[
    str | None, typer.Option(help="Machine profile (wmtp profiles), or its JSON file.", rich_help_panel=DEPLOYMENT)
]


def checked_source(text: str) -> Source:
    """The value of ``--acceptance-source``. Raises `InputError` naming it."""
    if text not in get_args(Source):
        raise InputError("--acceptance-source", f"{text[:40]!r}", "given, measured, published or assumed")
    return cast(Source, text)
