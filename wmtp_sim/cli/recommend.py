"""`wmtp recommend`: which depth, draft KV policy, window and sink, or none, for a mix of contexts and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wmtp_sim.cli.options import (
    ACCEPTANCE,
    AcceptanceSource,
    AllToAll,
    Alpha,
    AttentionBackend,
    Conditional,
    Dp,
    DpAttention,
    DrafterName,
    DraftKv,
    DraftTp,
    DraftWeights,
    EngineName,
    EngineSet,
    ExpertParallel,
    GpuName,
    HeadWeights,
    JsonFlag,
    Kv,
    Overlap,
    ProfileName,
    RoutingSkew,
    Survival,
    SystemNames,
    Tp,
    Weights,
    WindowedAcceptLength,
    checked_source,
)


def recommend(
    gpu: GpuName,
    context: Annotated[
        str, typer.Option(help="Committed tokens: the median, or with shares of tokens: 8K:0.5,64K:0.3,256K:0.2.")
    ],
    batch: Annotated[
        str,
        typer.Option(help="Sequences that all GPUs decode together: 8, 1:64 or with shares: 1:0.7,8:0.3."),
    ] = "1",
    depth: Annotated[
        str | None, typer.Option(help="Depths to choose from: 1:8, or as deep as the rates go.", show_default=False)
    ] = None,
    window: Annotated[str, typer.Option(help="Windows to choose from: a list, or 1K:16K (doubling).")] = "4032",
    sink: Annotated[str, typer.Option(help="Sinks to choose from.")] = "64",
    slo_itl_ms: Annotated[
        float | None,
        typer.Option(help="Longest mean time between two tokens of a request, in ms, anywhere in the mix."),
    ] = None,
    slo_certain: Annotated[
        bool, typer.Option("--slo-certain", help="Meet it at the slow end of each step's range, too.")
    ] = False,
    need: Annotated[float, typer.Option(help="Show the accept length needed for this speedup.")] = 1.0,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Choose among policies that the engine release lacks, too.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="Write depths by batch and context, as JSON.", metavar="FILE.json")
    ] = None,
    by_batch: Annotated[
        Path | None,
        typer.Option(help="Write depths by batch alone in the engine's own syntax, for its line.", metavar="FILE.json"),
    ] = None,
    accept_length: Annotated[
        float | None,
        typer.Option(help="Mean tokens per step, bonus included, at the depth of --at.", rich_help_panel=ACCEPTANCE),
    ] = None,
    windowed_accept_length: WindowedAcceptLength = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Where the accept length holds: depth=3.", metavar="depth=N", rich_help_panel=ACCEPTANCE),
    ] = None,
    alpha: Alpha = None,
    survival: Survival = None,
    conditional: Conditional = None,
    acceptance_source: AcceptanceSource = "given",
    engine: EngineName = "sglang",
    engine_set: EngineSet = None,
    attention_backend: AttentionBackend = None,
    drafter: DrafterName = None,
    system: SystemNames = None,
    weights: Weights = None,
    head_weights: HeadWeights = None,
    draft_weights: DraftWeights = None,
    kv: Kv = None,
    draft_kv: DraftKv = None,
    overlap: Overlap = 0.0,
    routing_skew: RoutingSkew = 0.0,
    tp: Tp = "1",
    dp: Dp = "1",
    dp_attention: DpAttention = False,
    draft_tp: DraftTp = None,
    expert_parallel: ExpertParallel = False,
    all_to_all: AllToAll = False,
    profile: ProfileName = None,
    model: Annotated[
        str | None, typer.Argument(help="Catalogue name (wmtp models), config.json, or its folder.", show_default=False)
    ] = None,
    from_command: Annotated[
        str | None,
        typer.Option(
            help="Instead of MODEL, --engine, ranks and caches: a launch command, a script, or a file of arguments."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """The best depth, draft KV policy, window and sink for a deployment, or none; and what would change that."""
    from wmtp_sim.api import recommend as recommend_deployment
    from wmtp_sim.catalog.engines import load_engine
    from wmtp_sim.catalog.models import hub_name
    from wmtp_sim.cli.launching import (
        converted,
        launch,
        launch_by_batch,
        of_command,
        of_options,
        refuse_no_table,
        with_formats,
    )
    from wmtp_sim.cli.ranges import counting, doubling, rates, refuse_large, weighted
    from wmtp_sim.render.files import check_output

    source = checked_source(acceptance_source)
    release = load_engine(engine, engine_set or ())
    named = engine != "sglang" or bool(engine_set)  # else a command says by itself which engine it starts
    options: dict[str, Any] = {"--tp": tp, "--dp": dp, "--draft-tp": draft_tp, "--kv": kv, "--draft-kv": draft_kv}
    options |= {"--dp-attention": dp_attention, "--expert-parallel": expert_parallel, "--all-to-all": all_to_all}
    options["--attention-backend"] = attention_backend
    if from_command is None:
        started = of_options(model, release, options)
    else:
        started = of_command(from_command, release if named else None, {"MODEL": model, **options})
    started = with_formats(started, weights, head_weights, draft_weights, drafter)
    served = started.deployment
    for flag, path in (("--table", table), ("--by-batch", by_batch)):
        if path is not None:
            check_output(path, (".json",), flag)
    contexts, context_shares = weighted(context, "--context")
    batches, batch_shares = weighted(batch, "--batch")
    drafted = None if depth is None else counting(depth, "--depth")
    windows, sinks = doubling(window, "--window"), doubling(sink, "--sink")
    axes = {"--context": contexts, "--batch": batches, "--depth": drafted or [], "--window": windows, "--sink": sinks}
    refuse_large({flag: values for flag, values in axes.items() if values})
    found = recommend_deployment(
        hub_name(served.model),
        gpu,
        context=contexts,
        context_shares=context_shares,
        batch=batches,
        batch_shares=batch_shares,
        depth=drafted,
        window=windows,
        sink=sinks,
        accept_length=accept_length,
        windowed_accept_length=windowed_accept_length,
        at_depth=_depth_of(at or ()),
        conditional=rates(conditional, "--conditional"),
        survival=rates(survival, "--survival"),
        alpha=alpha,
        acceptance_source=source,
        slo_itl_s=None if slo_itl_ms is None else slo_itl_ms / 1e3,
        slo_certain=slo_certain,
        need=need,
        what_if=what_if,
        engine=started.engine,
        drafter=drafter,
        system=system or (),
        weights=weights or converted(started),
        head_weights=head_weights,
        draft_weights=draft_weights,
        kv=served.kv,
        draft_kv=served.draft_kv,
        overlap=overlap,
        routing_skew=routing_skew,
        **served.layout,
        profile=profile,
    )
    if table is not None:
        refuse_no_table(found, "--table")
    started_with = launch(found, started)
    depths = None if by_batch is None else launch_by_batch(found, started, by_batch)
    if as_json:
        import json

        from wmtp_sim.render.recommend_document import recommend_document

        typer.echo(json.dumps(recommend_document(found, started_with, depths), allow_nan=False))
    else:
        from wmtp_sim.render.console import stdout_console
        from wmtp_sim.render.recommend import print_recommendation

        print_recommendation(found, stdout_console(), started_with, depths)
    if table is not None:
        import json

        from wmtp_sim.render.files import write_text
        from wmtp_sim.render.recommend_document import table_document

        write_text(table, json.dumps(table_document(found), allow_nan=False) + "\n")
    if by_batch is not None and depths is not None:
        from wmtp_sim.render.files import write_text

        write_text(by_batch, depths.content + "\n")


def _depth_of(at: list[str] | tuple[str, ...]) -> int | None:
    """The depth that ``--at depth=3`` names. Raises `InputError` for any other axis."""
    from wmtp_sim.cli.ranges import named_point
    from wmtp_sim.errors import InputError

    named = named_point(at, "--at")
    if others := sorted(set(named) - {"depth"}):
        raise InputError("--at", f"{others[0][:40]!r} is no depth", "the depth of the accept length: --at depth=3")
    return named.get("depth")
