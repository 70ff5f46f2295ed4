"""Fine-tuning of a softmax model to entmax, or of the same model as it is."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tsallis.integrations import transformers as tsallis_transformers
from tsallis_report.files import replace_text

from . import ConvertError
from .tokens import Corpus

WARM_UP = 10  # steps
FALL = 0.4  # the share of steps over which the learning rate falls to 0
RISE = 0.5  # the share of steps over which alpha rises, where it does
ALPHA_RATE = 100.0  # the learning rate of alphas, in terms of that of weights
CLIP = 1.0  # the largest norm of a gradient
SAVE_EVERY = 300.0  # seconds


class TrainError(ConvertError):
    """A run does not fit what was asked; the text goes to the user."""


@dataclass(frozen=True)
class Plan:
    method: str
    corpus: str
    tokens: int
    length: int = 1024
    batch: int = 1
    alpha: float = 1.5
    rate: float = 1e-4
    seed: int = 1
    bfloat16: bool = False

    @property
    def steps(self) -> int:
        return max(1, self.tokens // (self.length * self.batch))

    @property
    def risen(self) -> int:
        """The first step with the whole of alpha."""
        return round(RISE * self.steps)

    def alpha_at(self, step: int) -> float:
        """Of steps from 0; an alpha that rises begins above 1, where entmax is a map of its own."""
        if self.method != "annealed":
            return self.alpha
        return 1.0 + (self.alpha - 1.0) * min(1.0, max(0.04, step / max(1, self.risen)))

    def rate_at(self, step: int) -> float:
        rise = min(1.0, (step + 1) / WARM_UP)
        fall = min(1.0, (self.steps - step) / max(1.0, FALL * self.steps))
        return self.rate * rise * fall


def softening(alpha: float) -> float:
    """What multiplies the scores of a softmax model that is read with entmax.

    A weight p follows its score s as d(ln p) = p^(1 - alpha) ds in entmax with many keys, and as
    d(ln p) = ds in softmax. The two agree at p = 1/4 where scores are multiplied by
    (1/4)^(alpha - 1): 1/2 for alpha = 1.5.
    """
    return float(0.25 ** (alpha - 1.0))


def soften(model: torch.nn.Module, factor: float) -> None:
    """Multiplies the queries of every attention module by ``factor``, in its weights.

    Raises:
        TrainError: a module has no query projection of its own.
    """
    found = False
    for name, module in model.named_modules():
        if not hasattr(module, "is_causal"):
            continue
        part = getattr(module, "q_norm", None) or getattr(module, "q_proj", None)
        if part is None:
            raise TrainError(
                f"MODEL: expected q_proj in every attention module, got none in {name}"
            )
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.mul_(factor)
        found = True
    if not found:
        raise TrainError("MODEL: expected attention modules, got none")


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32."""
    cpu: Any = torch.cpu
    return bool(cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())


@contextmanager
def _whole() -> Iterator[None]:
    """Ctrl-C waits for the end of the block: what is saved is of before a step or of after it."""
    caught: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if caught:
        raise KeyboardInterrupt


class Run:
    """One method's fine-tuning in a folder: plan.json, state.pt while it runs, then model/."""

    def __init__(self, folder: Path, model: Path, plan: Plan, threads: int) -> None:
        self.folder, self.plan = folder, plan
        self._source = model
        self._threads = threads

    @property
    def finished(self) -> bool:
        return (self.model / "config.json").is_file()

    @property
    def model(self) -> Path:
        """What it makes, as `tsallis_transformers.export` writes it."""
        return self.folder / "model"

    def begin(self) -> None:
        """Raises TrainError if the folder holds a run of another plan."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = self.folder / "plan.json"
        asked = {"model": self._source.name, **asdict(self.plan)}
        if record.is_file():
            there = json.loads(record.read_text())
            for key, value in asked.items():
                # Where a run goes on, other arithmetic may serve.
                if key != "bfloat16" and there.get(key) != value:
                    raise TrainError(
                        f"{self.folder}: expected a run with {key} = {value}, got one with "
                        f"{there.get(key)}; another --out begins anew"
                    )
        else:
            replace_text(record, json.dumps(asked, indent=1) + "\n")

    def _load(self) -> tuple[PreTrainedModel, Any, dict[str, Any]]:
        plan = self.plan
        tsallis_transformers.register()
        name = "tsallis_softmax" if plan.method == "softmax" else "tsallis_entmax"
        model = AutoModelForCausalLM.from_pretrained(
            self._source, attn_implementation=name, dtype=torch.float32
        )
        state_file = self.folder / "state.pt"
        state: dict[str, Any] = {"step": 0, "losses": [], "seconds": 0.0}
        if state_file.is_file():
            state = torch.load(state_file, weights_only=True)
        optimizer = torch.optim.AdamW(model.parameters(), plan.rate, fused=True)
        if plan.method == "learned":
            self._learn(model, optimizer)
        if plan.method in ("entmax", "learned") and "model" not in state:
            soften(model, softening(plan.alpha))
        if "model" in state:
            model.load_state_dict(state.pop("model"))
            optimizer.load_state_dict(state.pop("optimizer"))
        return model, optimizer, state

    def _learn(self, model: PreTrainedModel, optimizer: Any) -> None:
        tsallis_transformers.learn_alpha(model, initial=self.plan.alpha, low=1.0, high=2.0)
        raw = [p for name, p in model.named_parameters() if "tsallis_alpha" in name]
        optimizer.add_param_group({"params": raw, "factor": ALPHA_RATE, "weight_decay": 0.0})

    def train(self, corpus: Corpus, say: Any) -> None:
        """Goes on from where it was; Ctrl-C saves first. ``say(line)`` shows progress."""
        plan = self.plan
        torch.set_num_threads(self._threads)
        model, optimizer, state = self._load()
        model.train()
        begun, saved = time.monotonic(), time.monotonic()
        before = state["seconds"]
        first = state["step"]

        def save() -> None:
            content = {
                **state,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            aside = self.folder / "state.new"
            torch.save(content, aside)
            os.replace(aside, self.folder / "state.pt")

        try:
            for step in range(first, plan.steps):
                if plan.method != "softmax":
                    model.config.tsallis_alpha = plan.alpha_at(step)
                for group in optimizer.param_groups:
                    group["lr"] = plan.rate_at(step) * group.get("factor", 1.0)
                tokens = corpus.batch(plan.length, plan.batch, plan.seed, step)
                with torch.autocast("cpu", torch.bfloat16, enabled=plan.bfloat16):
                    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                with _whole():
                    optimizer.step()
                    optimizer.zero_grad()
                    state["losses"].append(loss.item())
                    state["step"] = step + 1
                    now = time.monotonic()
                    state["seconds"] = before + now - begun
                a_step = (now - begun) / (step + 1 - first)
                recent = state["losses"][-20:]
                alpha = f"  alpha {plan.alpha_at(step):.2f}" if plan.method == "annealed" else ""
                say(
                    f"{plan.method:8} {step + 1}/{plan.steps}  loss {sum(recent) / len(recent):.3f}"
                    f"{alpha}  {plan.length * plan.batch / a_step:.0f} tokens/s"
                    f"  {a_step * (plan.steps - step - 1) / 60:.0f} min left"
                )
                if now - saved > SAVE_EVERY:
                    save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            save()
            raise
        if plan.method != "softmax":
            model.config.tsallis_alpha = plan.alpha
        aside = self.folder / "model.new"
        tsallis_transformers.export(model, aside)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (self._source / name).is_file():
                (aside / name).write_bytes((self._source / name).read_bytes())
        log = {"losses": state["losses"], "seconds": state["seconds"], "threads": self._threads}
        replace_text(self.folder / "log.json", json.dumps(log) + "\n")
        os.replace(aside, self.model)
        (self.folder / "state.pt").unlink(missing_ok=True)
