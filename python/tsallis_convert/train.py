"""Fine-tuning of a softmax model by one of the methods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from tsallis.bench import document
from tsallis.integrations import transformers as tsallis_transformers
from tsallis.integrations.transformers_queries import SCALES
from tsallis_report.files import replace_text

from . import ConvertError, start
from .methods import Method, method_of, rope, set_rope
from .tokens import Corpus

WARM_UP = 10  # steps
FALL = 0.4  # the share of steps over which the learning rate falls to 0
RISE = 0.5  # the share of steps over which alpha rises, where it does
ALPHA_RATE = 100.0  # the learning rate of alphas, in terms of that of weights
DECAY = 0.01  # of weights, by AdamW
CLIP = 1.0  # the largest norm of a gradient
SAVE_EVERY = 300.0  # seconds
CHUNK = {"cpu": 1024, "cuda": 8192}  # tokens whose logits are held at a time


class TrainError(ConvertError):
    """A run does not fit what was asked; the text goes to the user."""


@dataclass(frozen=True)
class Plan:
    """micro: sequences that are held at a time. extend: tokens that NTK and YaRN scale for. soften:
    what multiplies the queries of maps that begin with softer ones; None: `start.matched`."""

    method: str
    corpus: str
    tokens: int
    length: int = 1024
    batch: int = 1
    micro: int = 1
    extend: int = 0
    alpha: float = 1.5
    soften: float | None = None
    rate: float = 1e-4
    seed: int = 1
    device: str = "cpu"
    bfloat16: bool = False

    @property
    def kind(self) -> Method:
        return method_of(self.method)

    @property
    def steps(self) -> int:
        return max(1, self.tokens // (self.length * self.batch))

    @property
    def risen(self) -> int:
        """The first step with the whole of alpha."""
        return round(RISE * self.steps)

    def alpha_at(self, step: int) -> float:
        """Of steps from 0; an alpha that rises begins above 1, where entmax is a map of its own."""
        if self.kind.map.alpha != "rising":
            return self.alpha
        return 1.0 + (self.alpha - 1.0) * min(1.0, max(0.04, step / max(1, self.risen)))

    def rate_at(self, step: int) -> float:
        rise = min(1.0, (step + 1) / WARM_UP)
        fall = min(1.0, (self.steps - step) / max(1.0, FALL * self.steps))
        return self.rate * rise * fall


@cache
def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32, as `tsallis info` says."""
    command = [sys.executable, "-m", "tsallis", "info", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return bool(json.loads(done.stdout)["fast_bfloat16"])


def _plain_head(model: PreTrainedModel) -> bool:
    """Whether the model's logits are those of its last layer alone: no cap, no factor behind it."""
    device = next(model.parameters()).device
    tokens = torch.arange(8, device=device)[None]
    head: Any = model.get_output_embeddings()
    with torch.no_grad():
        whole: Any = model(input_ids=tokens, use_cache=False).logits
        body: Any = model.base_model(input_ids=tokens, use_cache=False)
        return torch.equal(head(body.last_hidden_state), whole)


def add_gradients(
    model: PreTrainedModel, tokens: Tensor, micro: int, chunk: int, bfloat16: bool
) -> float:
    """Adds the gradients of the mean loss of a batch [count, length], and returns the loss.

    micro: sequences whose activations are held at a time. chunk: tokens whose logits are, which
    would take more memory than the rest of the model; 0: the model makes all of them by itself.
    """
    device = tokens.device.type
    head: Any = model.get_output_embeddings()
    total = tokens.shape[0] * (tokens.shape[1] - 1)
    sum_ = torch.zeros((), device=tokens.device)
    for part in tokens.split(micro):
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            if not chunk:
                loss = model(input_ids=part, labels=part, use_cache=False).loss
                loss = loss * (part.shape[0] * (part.shape[1] - 1) / total)
                loss.backward()
                sum_ += loss.detach()
                continue
            body: Any = model.base_model(input_ids=part, use_cache=False)
            hidden = body.last_hidden_state[:, :-1].flatten(0, 1)
            held = hidden.detach().requires_grad_()
            wanted = part[:, 1:].flatten()
            for x, y in zip(held.split(chunk), wanted.split(chunk), strict=True):
                loss = cross_entropy(head(x).float(), y, reduction="sum") / total
                loss.backward()
                sum_ += loss.detach()
        hidden.backward(held.grad)
    return sum_.item()


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

    def pace(self, corpus: Corpus) -> float:
        """Seconds of a step, of three that are forgotten."""
        torch.set_num_threads(self._threads)
        model, optimizer, _ = self._load(corpus)
        times = []
        for step in range(3):
            begun = time.monotonic()
            self._gradients(model, optimizer, corpus, step)
            self._update(model, optimizer)
            times.append(time.monotonic() - begun)
        return min(times[1:])

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
                # Where a run goes on, another device, other arithmetic and parts may serve.
                if key not in ("bfloat16", "device", "micro") and there.get(key) != value:
                    raise TrainError(
                        f"{self.folder}: expected a run with {key} = {value}, got one with "
                        f"{there.get(key)}; another --out begins anew"
                    )
        else:
            replace_text(record, json.dumps(asked, indent=1) + "\n")

    def factors(self, corpus: Corpus) -> Tensor | float:
        """Factors of the queries of maps that begin with softer ones: [layers, heads], or one
        number for all."""
        plan = self.plan
        if plan.soften is not None:
            return plan.soften
        of = {
            "model": self._source.name,
            "corpus": plan.corpus,
            "length": plan.length,
            "alpha": plan.alpha,
            "seed": plan.seed,
        }
        tokens = corpus.batch(plan.length, start.SEQUENCES, plan.seed, start.STEP)
        record = self.folder.parent / "start.json"
        return start.factors_of(record, self._source, tokens.to(plan.device), of)

    def _load(self, corpus: Corpus) -> tuple[PreTrainedModel, Any, dict[str, Any]]:
        plan, method = self.plan, self.plan.kind
        tsallis_transformers.register()
        model: Any = AutoModelForCausalLM.from_pretrained(
            self._source, attn_implementation=method.map.attention, dtype=torch.float32
        )
        state_file = self.folder / "state.pt"
        state: dict[str, Any] = {"step": 0, "losses": [], "seconds": 0.0}
        if state_file.is_file():
            state = torch.load(state_file, weights_only=True, map_location=plan.device)
        if method.map.softened and "model" not in state:
            start.soften(model, self.factors(corpus))
        self._change(model)
        model.to(plan.device)
        groups: dict[float, list[Tensor]] = {}
        for name, parameter in model.named_parameters():
            groups.setdefault(self._rate_of(name), []).append(parameter)
        optimizer = torch.optim.AdamW(
            [
                {"params": own, "factor": factor, "weight_decay": DECAY if factor == 1.0 else 0.0}
                for factor, own in groups.items()
            ],
            plan.rate,
            fused=True,
        )
        if method.map.alpha:
            model.config.tsallis_alpha = plan.alpha
        self._chunk = CHUNK[torch.device(plan.device).type] if _plain_head(model) else 0
        model.train()
        if "model" in state:
            model.load_state_dict(state.pop("model"))
            optimizer.load_state_dict(state.pop("optimizer"))
        return model, optimizer, state

    def _change(self, model: PreTrainedModel) -> None:
        """Makes a softmax model that of the method, before its first step."""
        plan, method = self.plan, self.plan.kind
        if method.map.alpha == "learned":
            tsallis_transformers.learn_alpha(model, initial=plan.alpha, low=1.0, high=2.0)
        if method.scale:
            tsallis_transformers.scale_queries(model, method.scale.kind)
        if every := method.positions.unrotated:
            count = model.config.num_hidden_layers
            if count < every:
                raise TrainError(
                    f"--methods: expected a model of {every} layers or more for {plan.method}, got "
                    f"{count}"
                )
            layers = range(every - 1, count, every)
            tsallis_transformers.unrotate(model, list(layers))
        reach = max(plan.length, plan.extend)
        set_rope(model, rope(model.config, method.positions.kind, reach))
        if method.positions.kind in ("ntk", "yarn"):
            model.config.max_position_embeddings = max(reach, model.config.max_position_embeddings)

    def _rate_of(self, name: str) -> float:
        """The learning rate of a parameter, in terms of that of weights."""
        if ".tsallis_alpha." in name:
            return ALPHA_RATE
        scale = self.plan.kind.scale
        if scale is None or ".tsallis_query_scale." not in name:
            return 1.0
        return next((rate for end, rate in scale.rates.items() if name.endswith(end)), 1.0)

    def _gradients(self, model: Any, optimizer: Any, corpus: Corpus, step: int) -> float:
        """Of the mean loss of a step's batch, clipped; the loss."""
        plan = self.plan
        if plan.kind.map.alpha:
            model.config.tsallis_alpha = plan.alpha_at(step)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(step) * group["factor"]
        tokens = corpus.batch(plan.length, plan.batch, plan.seed, step).to(plan.device)
        loss = add_gradients(model, tokens, plan.micro, self._chunk, plan.bfloat16)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return loss

    @staticmethod
    def _update(model: Any, optimizer: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()
        for part in model.modules():
            if isinstance(part, SCALES):
                part.project()

    def train(self, corpus: Corpus, say: Any, behind: int = 0) -> None:
        """Goes on from where it was; Ctrl-C saves first.

        say(line) shows progress; behind: steps of other methods that come after this one.
        """
        plan, method = self.plan, self.plan.kind
        torch.set_num_threads(self._threads)
        model, optimizer, state = self._load(corpus)
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
                loss = self._gradients(model, optimizer, corpus, step)
                with _whole():
                    self._update(model, optimizer)
                    state["losses"].append(loss)
                    state["step"] = step + 1
                    now = time.monotonic()
                    state["seconds"] = before + now - begun
                a_step = (now - begun) / (step + 1 - first)
                recent = state["losses"][-20:]
                rising = method.map.alpha == "rising"
                alpha = f"  alpha {plan.alpha_at(step):.2f}" if rising else ""
                left = plan.steps - step - 1
                more = f", {a_step * (left + behind) / 60:.0f} with all methods" if behind else ""
                say(
                    f"{plan.method:8} {step + 1}/{plan.steps}  loss {sum(recent) / len(recent):.3f}"
                    f"{alpha}  {plan.length * plan.batch / a_step:.0f} tokens/s"
                    f"  {a_step * left / 60:.0f} min left{more}"
                )
                if now - saved > SAVE_EVERY:
                    save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            save()
            raise
        if method.map.alpha:
            model.config.tsallis_alpha = plan.alpha
        aside = self.folder / "model.new"
        tsallis_transformers.export(model, aside)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (self._source / name).is_file():
                (aside / name).write_bytes((self._source / name).read_bytes())
        log = document.build(
            [], threads=self._threads, losses=state["losses"], seconds=state["seconds"]
        )
        replace_text(self.folder / "log.json", json.dumps(log) + "\n")
        os.replace(aside, self.model)
        (self.folder / "state.pt").unlink(missing_ok=True)
