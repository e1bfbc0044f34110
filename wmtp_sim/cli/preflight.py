"""`wmtp preflight`: the traps of a deployment, before it is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wmtp_sim.cli.options import (
    ACCEPTANCE,
    DEPLOYMENT,
    DraftKv,
    EngineSet,
    GpuName,
    JsonFlag,
    Kv,
    OptionalModel,
    ProfileName,
    Rates,
    SystemNames,
    Weights,
    flag_of,
    grouped,
)
from wmtp_sim.cli.output import show
from wmtp_sim.errors import InputError

if TYPE_CHECKING:
    from wmtp_sim.spec.deployment import ServerDeployment

#: What of `Server` is a whole number, and what is a word or a share.
_COUNTS = ("depth", "window", "sink", "tp", "ep", "dp", "max_running")
_WORDS = ("attention_backend", "draft_attention_backend", "kv", "draft_kv", "memory_fraction")


@dataclass(frozen=True)
class Server:
    """What is served, as options state it."""

    depth: Annotated[str | None, typer.Option(help="Tokens drafted per step; 0 is no speculation. Otherwise 3.")] = None
    window: Annotated[str | None, typer.Option(help="Recent tokens that drafts attend; all otherwise.")] = None
    sink: Annotated[str | None, typer.Option(help="First tokens that a windowed draft attends.")] = None
    tp: Annotated[str | None, typer.Option(help="Tensor-parallel GPUs.", rich_help_panel=DEPLOYMENT)] = None
    ep: Annotated[str | None, typer.Option(help="GPUs that hold whole experts.", rich_help_panel=DEPLOYMENT)] = None
    dp: Annotated[str | None, typer.Option(help="Data-parallel replicas.", rich_help_panel=DEPLOYMENT)] = None
    attention_backend: Annotated[
        str | None, typer.Option(help="The engine's word; its default otherwise.", rich_help_panel=DEPLOYMENT)
    ] = None
    draft_attention_backend: Annotated[
        str | None,
        typer.Option(help="For drafts; one that windows where a window is stated.", rich_help_panel=DEPLOYMENT),
    ] = None
    weights: Weights = None
    kv: Kv = None
    draft_kv: DraftKv = None
    memory_fraction: Annotated[
        float | None, typer.Option(help="Share of GPU memory that may be filled.", rich_help_panel=DEPLOYMENT)
    ] = None
    max_running: Annotated[
        str | None, typer.Option(help="Sequences that the server runs together.", rich_help_panel=DEPLOYMENT)
    ] = None

    def stated(self) -> dict[str, Any]:
        """The fields of a deployment that are stated. Raises `InputError` for what is no whole number."""
        counts = {name: _whole(getattr(self, name), flag_of(name)) for name in _COUNTS}
        words = {name: getattr(self, name) for name in _WORDS}
        return {name: value for name, value in (counts | words).items() if value is not None}


@grouped
def preflight(
    gpu: GpuName,
    model: OptionalModel = None,
    from_command: Annotated[
        str | None,
        typer.Option(help="A launch command of SGLang or vLLM, a .sh script, or a .yaml or .json file of arguments."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="sglang, sglang@26.06, vllm, vllm@0.26; a command says which by itself.")
    ] = None,
    engine_set: EngineSet = None,
    system: SystemNames = None,
    context: Annotated[str | None, typer.Option(help="Tokens asked about; the longest served otherwise.")] = None,
    batch: Annotated[str, typer.Option(help="Sequences that all GPUs decode together.")] = "1",
    *,
    server: Server,
    accept_length: Annotated[
        float | None, typer.Option(help="Mean tokens per step, bonus included.", rich_help_panel=ACCEPTANCE)
    ] = None,
    rates: Rates,
    random_data: Annotated[
        bool, typer.Option("--random-data", help="It was measured on random tokens.", rich_help_panel=ACCEPTANCE)
    ] = False,
    kv_pool_tokens: Annotated[
        str | None, typer.Option(help="KV pool that the engine logged (max_total_num_tokens).")
    ] = None,
    profile: ProfileName = None,
    as_json: JsonFlag = False,
) -> None:
    """Traps of a deployment that config, flags and GPU show before it starts. Exit code 1 when there are errors."""
    from wmtp_sim.catalog.commands import read_command
    from wmtp_sim.catalog.engines import load_engine
    from wmtp_sim.catalog.flags import load_grammar
    from wmtp_sim.catalog.systems import load_system
    from wmtp_sim.preflight import preflight as look
    from wmtp_sim.render.preflight import preflight_document, print_preflight

    stated = server.stated()
    asked = _whole(context, "--context")
    chosen = load_engine(engine, engine_set or ()) if engine is not None else None
    if from_command is not None:
        if stated:
            raise InputError(
                flag_of(next(iter(stated))), "is given beside a command, which states it", "change the command"
            )
        subject: Any = read_command(from_command, chosen)
    else:
        if model is None:
            raise InputError("MODEL", "is missing", "name a model, or give --from-command")
        chosen = chosen or load_engine("sglang", engine_set or ())
        loading = {ours: word for word, ours in load_grammar(chosen.name).words["quantization"].items()}
        if server.weights in loading:
            stated["quantization"] = loading[server.weights]
        usual = {"depth": (load_system(system[0]).proposal.depth if system else None) or 3}
        subject = _deployment(model, chosen.name, asked, usual | stated)
    found = look(
        subject,
        gpu,
        model=model,
        context=asked,
        batch=_whole(batch, "--batch") or 0,
        weights=server.weights,
        kv_pool_tokens=_whole(kv_pool_tokens, "--kv-pool-tokens"),
        random_data=random_data,
        system=system or (),
        engine=chosen,
        profile=profile,
        accept_length=accept_length,
        **rates.keywords(),
    )
    show(as_json, preflight_document, print_preflight, found)
    if not found.passed:
        raise typer.Exit(1)


def _whole(text: str | None, flag: str) -> int | None:
    from wmtp_sim.cli.ranges import whole

    return None if text is None else whole(text, flag)


def _deployment(model: str, engine: str, context: int | None, stated: dict[str, Any]) -> ServerDeployment:
    """The deployment that options state. Raises `InputError` naming the option at fault."""
    from wmtp_sim.cli.launching import stated_deployment

    fields = stated | {"model": model, "engine": engine, "context": context}
    if "window" in stated:
        fields.setdefault("sink", 64)
    return stated_deployment(fields, "preflight")
