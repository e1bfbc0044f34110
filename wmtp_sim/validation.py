"""Predictions beside measurements: a file of measured steps, and the public measurements that ship."""

from __future__ import annotations

from pathlib import Path

from wmtp_sim.api import PAPER_SINK, PAPER_WINDOW, estimate
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.field import read_field
from wmtp_sim.catalog.field_mapping import Deployment, read_mapping
from wmtp_sim.catalog.gpus import named_by_driver
from wmtp_sim.catalog.models import load_model
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.field import FieldComparison, compare_field
from wmtp_sim.decide.validation import MeasuredStep, Validation, compare, measured_overlap, read_steps
from wmtp_sim.errors import InputError
from wmtp_sim.machine.profile import Profile
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.precision import Precision


def validate(steps: str | Path, *, profile: str | Profile | None = None, gpu: str | Gpu | None = None) -> Validation:
    """Predicted steps beside measured ones (``wmtp-steps/1``).

    The bench measures random bf16 weights and caches and float32 states, whatever the checkpoint holds: so it is
    predicted. How many experts the verified rows touched was counted, and is an input like an acceptance.

    Args:
        steps: a file of measured steps.
        profile: as `estimate` takes it.
        gpu: where the steps were measured, if the catalogue does not know its driver's name.

    Raises:
        InputError: naming the file's field, or the flag.
    """
    measured = read_steps(Path(steps))
    device = gpu if gpu is not None else named_by_driver(measured.gpu)
    if device is None:
        raise InputError(
            "--gpu", f"the catalogue has no {measured.gpu[:60]!r}", "describe it in a TOML file: --gpu FILE"
        )
    target = load_model(measured.model, f"{str(steps)[-80:]}: model")
    target = target.model_copy(update={"precision": Precision(), "state_dtype_bytes": 4})
    drafter = "mtp" if target.mtp is not None else "eagle"  # verify and sample do not depend on it

    def estimate_of(point: MeasuredStep) -> Estimate:
        sizes = {name: getattr(point, name) for name in ("context", "depth", "window", "sink", "batch")}
        overlap = measured_overlap(target, point)
        return estimate(
            target, device, **sizes, engine="bench", drafter=drafter, kv="bf16", overlap=overlap, profile=profile
        )

    return compare(measured, estimate_of)


def validate_field() -> FieldComparison:
    """Predictions beside the shipped public measurements, at three levels: nothing fitted, base step given, engine
    terms of the same source's other rows (see `wmtp_sim.decide.field`)."""

    def estimate_of(stated: Deployment) -> Estimate:
        engine = load_engine(stated.engine)
        return estimate(
            stated.model,
            stated.gpu,
            context=stated.context,
            depth=stated.depth or 0,
            batch=stated.batch,
            engine=engine,
            attention_backend=stated.attention,
            drafter=stated.drafter or "none",
            weights=stated.weights,
            head_weights=stated.head_weights,
            draft_weights=stated.draft_weights,
            kv=stated.kv,
            tp=stated.tp,
            expert_parallel=stated.expert_groups if stated.expert_groups > 1 else False,
            window=PAPER_WINDOW if stated.window is None else stated.window,
            sink=PAPER_SINK if stated.sink is None else stated.sink,
        )

    return compare_field(read_field(), read_mapping(), estimate_of)
