"""Options that several commands take, declared once: they describe the same deployment and acceptance."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from wmtp_sim.errors import InputError
from wmtp_sim.spec.acceptance import Source

if TYPE_CHECKING:
    from wmtp_sim.spec.engine import Engine

ACCEPTANCE, DEPLOYMENT = "Acceptance", "Deployment"

ModelName = Annotated[str, typer.Argument(help="Catalogue name (wmtp models), config.json, or its folder.")]
#: The same where a command may state the model.
OptionalModel = Annotated[
    str | None, typer.Argument(help="Catalogue name (wmtp models), config.json, or its folder.", show_default=False)
]
GpuName = Annotated[str, typer.Option(help="GPU name (wmtp gpus), or a GPU's TOML or JSON file.")]
Window = Annotated[str, typer.Option(help="Recent tokens that a windowed draft attends.")]
Sink = Annotated[str, typer.Option(help="First tokens that a windowed draft attends.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document, complete and schema-versioned.")]

AcceptLength = Annotated[
    float | None,
    typer.Option(help="Mean tokens per step, bonus included, at the depth of --at.", rich_help_panel=ACCEPTANCE),
]
WindowedAcceptLength = Annotated[
    float | None, typer.Option(help="The same for windowed drafts, where it differs.", rich_help_panel=ACCEPTANCE)
]
EngineSet = Annotated[
    list[str] | None,
    typer.Option(help="Change a value of the engine: host.step_s=0.001; several times.", metavar="PATH=VALUE"),
]
SystemNames = Annotated[
    list[str] | None,
    typer.Option("--system", help="How to speculate (wmtp systems), or a TOML file; several times.", metavar="NAME"),
]
Weights = Annotated[str | None, typer.Option(help="Format of the target's linear layers.", rich_help_panel=DEPLOYMENT)]
Kv = Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8 (fp8_e4m3, fp8_e5m2).", rich_help_panel=DEPLOYMENT)]
DraftKv = Annotated[str | None, typer.Option(help="Draft KV cache.", rich_help_panel=DEPLOYMENT)]
ProfileName = Annotated[
    str | None, typer.Option(help="Machine profile (wmtp profiles), or its JSON file.", rich_help_panel=DEPLOYMENT)
]


@dataclass(frozen=True)
class Rates:
    """Acceptance stated as rates."""

    alpha: Annotated[
        float | None,
        typer.Option(help="One conditional acceptance rate for every position.", rich_help_panel=ACCEPTANCE),
    ] = None
    survival: Annotated[
        str | None,
        typer.Option(
            help="P(first j tokens accepted), per position: vLLM's per-position rate.", rich_help_panel=ACCEPTANCE
        ),
    ] = None
    conditional: Annotated[
        str | None,
        typer.Option(help="P(token j accepted, given those before), per position.", rich_help_panel=ACCEPTANCE),
    ] = None

    def keywords(self) -> dict[str, Any]:
        """As `wmtp_sim.estimate` takes them. Raises `InputError` for what is no list of rates."""
        from wmtp_sim.cli.ranges import rates

        return {
            "alpha": self.alpha,
            "conditional": rates(self.conditional, "--conditional"),
            "survival": rates(self.survival, "--survival"),
        }


@dataclass(frozen=True)
class SourcedRates(Rates):
    """Rates, and where the acceptance is from."""

    acceptance_source: Annotated[
        str, typer.Option(help="given, measured, published or assumed.", rich_help_panel=ACCEPTANCE)
    ] = "given"

    @property
    def source(self) -> Source:
        """The value of ``--acceptance-source``. Raises `InputError` naming it."""
        text = self.acceptance_source
        if text not in get_args(Source):
            raise InputError("--acceptance-source", f"{text[:40]!r}", "given, measured, published or assumed")
        return cast(Source, text)


@dataclass(frozen=True)
class Deployment:
    """What serves the model: the engine, who drafts, the formats, and how GPUs share the work."""

    engine: Annotated[str, typer.Option(help="sglang, vllm@0.26 (wmtp engines), or an engine's TOML file.")] = "sglang"
    engine_set: EngineSet = None
    attention_backend: Annotated[
        str | None,
        typer.Option(
            help="The engine's word, or by pass: base=fa3,verify=triton,draft=flashinfer.",
            rich_help_panel=DEPLOYMENT,
            show_default=False,
        ),
    ] = None
    drafter: Annotated[
        str | None,
        typer.Option(
            help="mtp, eagle, a draft model, or a head's config; a system's own, else mtp.",
            rich_help_panel=DEPLOYMENT,
            show_default=False,
        ),
    ] = None
    system: SystemNames = None
    weights: Weights = None
    head_weights: Annotated[str | None, typer.Option(help="Format of lm_head.", rich_help_panel=DEPLOYMENT)] = None
    draft_weights: Annotated[
        str | None, typer.Option(help="Format of the draft head's linear layers.", rich_help_panel=DEPLOYMENT)
    ] = None
    kv: Kv = None
    draft_kv: DraftKv = None
    overlap: Annotated[
        float, typer.Option(help="Experts shared by consecutive rows, 0 to 1.", rich_help_panel=DEPLOYMENT)
    ] = 0.0
    routing_skew: Annotated[
        float, typer.Option(help="Exponent of experts' popularity: 0 uniform, 1 Zipf.", rich_help_panel=DEPLOYMENT)
    ] = 0.0
    tp: Annotated[str, typer.Option(help="GPUs that share a sequence's attention.", rich_help_panel=DEPLOYMENT)] = "1"
    dp: Annotated[
        str, typer.Option(help="Groups of --tp GPUs, each with its part of the batch.", rich_help_panel=DEPLOYMENT)
    ] = "1"
    dp_attention: Annotated[
        bool,
        typer.Option("--dp-attention", help="The groups share experts; else replicas.", rich_help_panel=DEPLOYMENT),
    ] = False
    draft_tp: Annotated[
        str | None, typer.Option(help="GPUs that share the drafter, if fewer than --tp.", rich_help_panel=DEPLOYMENT)
    ] = None
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="GPUs hold whole experts.", rich_help_panel=DEPLOYMENT)
    ] = False
    all_to_all: Annotated[
        bool, typer.Option("--all-to-all", help="Rows travel to their experts (DeepEP).", rich_help_panel=DEPLOYMENT)
    ] = False
    profile: ProfileName = None

    @cached_property
    def release(self) -> Engine:
        """The engine, with the changes that are stated. Raises `InputError` where there is no such."""
        from wmtp_sim.catalog.engines import load_engine

        return load_engine(self.engine, self.engine_set or ())

    def keywords(self) -> dict[str, Any]:
        """As `wmtp_sim.estimate` takes them. Raises `InputError` for an unknown engine, and what is no number."""
        from wmtp_sim.cli.ranges import whole

        stated = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "engine_set"}
        return stated | {
            "engine": self.release,
            "system": self.system or (),
            "tp": whole(self.tp, "--tp"),
            "dp": whole(self.dp, "--dp"),
            "draft_tp": None if self.draft_tp is None else whole(self.draft_tp, "--draft-tp"),
        }


def flag_of(name: str) -> str:
    """The flag of an option: ``draft_kv`` is stated by ``--draft-kv``."""
    return f"--{name.replace('_', '-')}"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer reads it: a parameter that is one of the groups above stands for every option of the group."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            parameters += inspect.signature(group, eval_str=True).parameters.values()
        else:
            parameters.append(parameter)

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})
        command(**values)

    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in named}
    return run
