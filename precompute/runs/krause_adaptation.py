"""A Krause branch beside the attention of SmolLM2: what the first token gets before and after."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.nn.functional as F

from data import paths
from data.records.krause_attention import ADAPTATION, TRAINING
from data.sources.texts import TEXTS
from models.attention.gated import GatedAttention, GateSpec, adapt
from precompute.runs import subjects
from precompute.runs.krause_data import drawn
from precompute.runs.krause_measuring import table, training_row
from precompute.studies.krause_attention import KrauseConfig
from precompute.study import Device, Recorder

_MODEL = "smollm2-135m-instruct"
_LENGTH, _BATCH, _TESTED = 256, 2, 8  # tokens of a chunk, chunks of an update, held-out chunks
_CHARACTERS = 600_000  # of the encyclopaedia passages; the last tenth is held out
_RATE = 1e-3
_TEST_EVERY = 8


def run_adaptation(config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    """Measure the model as it is, with an untrained branch, trained, and trained without one."""
    assert config.window is not None and config.steps is not None
    train, test = _chunks(recorder)
    test = test.to(device.name)
    # The pretrained temperature: q.k / sqrt(d) = q.k / sigma^2.
    spec = GateSpec(config.window, config.topk, sigma=math.sqrt(math.sqrt(64)))
    for stage, branch in (("trained", spec), ("control", None)):
        model = subjects.load(_MODEL, paths.cache_dir(), device.name, attention="sdpa").model
        torch.manual_seed(config.seed)
        modules = adapt(model, branch)
        if branch is not None:
            _watch("base", model, modules, test, recorder, standard_only=True)
            _watch("gated", model, modules, test, recorder)
        _train(model, config, train, test, recorder, device, control=branch is None)
        _watch(stage, model, modules, test, recorder)


def _chunks(recorder: Recorder) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and held-out chunks of token ids (n, 257)."""
    recorder.progress(0, 1, "reading the text")
    tokenizer = subjects.load(_MODEL, paths.cache_dir()).tokenizer
    ids = torch.tensor(tokenizer.encode(TEXTS["prose"].read(_CHARACTERS), special=False))
    rows = ids[: len(ids) // (_LENGTH + 1) * (_LENGTH + 1)].reshape(-1, _LENGTH + 1)
    split = int(len(rows) * 0.9)
    return rows[:split], rows[split:][:_TESTED]


@torch.no_grad()
def _nats(model: Any, test: torch.Tensor) -> float:
    logits = torch.cat([model(rows[:, :-1], use_cache=False).logits for rows in torch.split(test, _BATCH)])
    return float(F.cross_entropy(logits.flatten(0, 1).float(), test[:, 1:].flatten()))


def _train(
    model: Any,
    config: KrauseConfig,
    train: torch.Tensor,
    test: torch.Tensor,
    recorder: Recorder,
    device: Device,
    *,
    control: bool,
) -> None:
    assert config.steps is not None
    steps = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=_RATE, weight_decay=0.0)
    split, tested = "control" if control else "validation", test[:, 1:].numel()
    rows = [training_row(0, split, _nats(model, test), None, tested, 0.0)]
    nats, seconds = 0.0, 0.0
    for step in range(1, config.steps + 1):
        recorder.progress(step, config.steps, "training the control" if control else "training the branch")
        clock = time.perf_counter()
        chunk = train[drawn(config.seed, step, len(train), _BATCH)].to(device.name)
        for group in steps.param_groups:
            group["lr"] = _RATE * min(1.0, step / 10) * (1 - 0.9 * step / config.steps)
        logits = model(chunk[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), chunk[:, 1:].flatten())
        steps.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        nats, seconds = nats + float(loss.detach()), seconds + time.perf_counter() - clock
        if step % _TEST_EVERY == 0 or step == config.steps:
            done = (step - 1) % _TEST_EVERY + 1
            if not control:
                count = done * _BATCH * _LENGTH
                rows.append(training_row(step, "train", nats / done, None, count, seconds))
            rows.append(training_row(step, split, _nats(model, test), None, tested, seconds))
            nats = 0.0
    recorder.write(TRAINING.name, table(TRAINING, rows))


@torch.no_grad()
def _watch(
    stage: str,
    model: Any,
    modules: list[GatedAttention],
    test: torch.Tensor,
    recorder: Recorder,
    *,
    standard_only: bool = False,
) -> None:
    """First-token mass of every head under `stage`, over the held-out chunks.

    `standard_only` closes every gate, which is the pretrained model itself.
    """
    for module in modules:
        module.watch = True
        module.closed = standard_only
    sums: dict[int, list[torch.Tensor]] = {}
    for chunk in torch.split(test, _BATCH):
        model.model(chunk[:, :-1], use_cache=False)
        for layer, module in enumerate(modules):
            sums.setdefault(layer, []).append(_first(module))
            module.seen = None
    for module in modules:
        module.watch = module.closed = False
    rows: list[dict[str, Any]] = []
    for layer, parts in sums.items():
        mean = torch.stack(parts).mean(0)  # (4, heads): standard, krause, mixed, gate
        for head in range(mean.shape[1]):
            standard, krause, mixed, gate = (float(x) for x in mean[:, head])
            both = krause == krause  # NaN without a branch
            rows.append(
                {
                    "stage": stage,
                    "layer": layer,
                    "head": head,
                    "standard_first": standard,
                    "krause_first": krause if both else None,
                    "mixed_first": mixed,
                    "gate": gate if both else None,
                }
            )
    recorder.write(ADAPTATION.name, table(ADAPTATION, rows))


def _first(module: GatedAttention) -> torch.Tensor:
    """First-token mass of both branches and of their mixture, and the gate: (4, heads), means."""
    seen = module.seen
    assert seen is not None
    standard = seen.standard[:, :, 1:, 0]
    if seen.krause is None or seen.gate is None:
        mean = standard.mean((0, 2))
        none = torch.full_like(mean, float("nan"))
        return torch.stack([mean, none, mean, none])
    krause, gate = seen.krause[:, :, 1:, 0], seen.gate[:, None, 1:]
    mixed = (1 - gate) * standard + gate * krause
    return torch.stack([x.mean((0, 2)) for x in (standard, krause, mixed, gate.expand_as(standard))])
