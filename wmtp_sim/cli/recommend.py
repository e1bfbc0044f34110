"""`wmtp recommend`: which depth, draft KV policy, window and sink, or none, for a mix of contexts and batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wmtp_sim.cli.options import (
    ACCEPTANCE,
    AcceptLength,
    Deployment,
    GpuName,
    JsonFlag,
    OptionalModel,
    SourcedRates,
    WindowedAcceptLength,
    flag_of,
    grouped,
)
from wmtp_sim.cli.output import console, print_json

#: Options that a launch command states itself.
_OF_A_COMMAND = (
    *("tp", "dp", "draft_tp", "kv", "draft_kv", "dp_attention", "expert_parallel", "all_to_all"),
    "attention_backend",
)


@grouped
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
    accept_length: AcceptLength = None,
    windowed_accept_length: WindowedAcceptLength = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Where the accept length holds: depth=3.", metavar="depth=N", rich_help_panel=ACCEPTANCE),
    ] = None,
    *,
    rates: SourcedRates,
    deployment: Deployment,
    model: OptionalModel = None,
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
    from wmtp_sim.catalog.models import hub_name
    from wmtp_sim.cli.launching import (
        converted,
        depth_table,
        launch,
        launch_by_batch,
        of_command,
        of_options,
        with_formats,
    )
    from wmtp_sim.cli.ranges import counting, doubling, refuse_large, weighted
    from wmtp_sim.render.files import check_output, write_text

    source = rates.source
    release = deployment.release
    named = deployment.engine != "sglang" or deployment.engine_set  # else a command says which engine it starts
    options = {flag_of(name): getattr(deployment, name) for name in _OF_A_COMMAND}
    if from_command is None:
        started = of_options(model, release, options)
    else:
        started = of_command(from_command, release if named else None, {"MODEL": model, **options})
    formats = deployment.weights, deployment.head_weights, deployment.draft_weights
    started = with_formats(started, *formats, deployment.drafter)
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
    as_started = served.layout | {"engine": started.engine, "attention_backend": None}
    as_started |= {"weights": deployment.weights or converted(started), "kv": served.kv, "draft_kv": served.draft_kv}
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
        acceptance_source=source,
        **rates.keywords(),
        slo_itl_s=None if slo_itl_ms is None else slo_itl_ms / 1e3,
        slo_certain=slo_certain,
        need=need,
        what_if=what_if,
        **(deployment.keywords() | as_started),
    )
    if table is not None:
        depth_table(found, "--table")  # refuses before anything is printed
    started_with = launch(found, started)
    depths = None if by_batch is None else launch_by_batch(found, started, by_batch)
    if as_json:
        from wmtp_sim.render.recommend_document import recommend_document

        print_json(recommend_document(found, started_with, depths))
    else:
        from wmtp_sim.render.recommend import print_recommendation

        print_recommendation(found, console(), started_with, depths)
    if table is not None:
        from wmtp_sim.render.recommend_document import table_document

        write_text(table, json.dumps(table_document(found), allow_nan=False) + "\n")
    if by_batch is not None and depths is not None:
        write_text(by_batch, depths.content + "\n")


def _depth_of(at: list[str] | tuple[str, ...]) -> int | None:
    """The depth that ``--at depth=3`` names. Raises `InputError` for any other axis."""
    from wmtp_sim.cli.ranges import named_point
    from wmtp_sim.errors import InputError

    named = named_point(at, "--at")
    if others := sorted(set(named) - {"depth"}):
        raise InputError("--at", f"{others[0][:40]!r} is no depth", "the depth of the accept length: --at depth=3")
    return named.get("depth")
