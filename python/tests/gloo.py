"""Several processes of a test, which speak to each other by gloo."""

import datetime
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

# What takes seconds to import is imported once, in the process that the others are forked from.
HEAVY = [
    "torch.distributed.tensor.experimental._context_parallel",
    "transformers.models.gpt_oss.modeling_gpt_oss",
    "transformers.models.llama.modeling_llama",
]


def _process(rank, body, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=120),
    )
    try:
        torch.save(body(rank, world), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def on_processes(body, world, folder):
    """What body(rank, world), a function of a module, returns on each of `world` processes."""
    multiprocessing.set_forkserver_preload(HEAVY)
    multiprocessing.start_processes(
        _process, (body, world, str(folder)), nprocs=world, start_method="forkserver"
    )
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


def share_of_loss(model, own, length):
    """The share that the tokens `own` have of a language model's mean loss on drawn sequences."""
    torch.manual_seed(5)
    tokens = torch.randint(40, (2, length + 1))
    logits = model(tokens[:, own], position_ids=own[None], use_cache=False).logits
    wanted = tokens[:, own + 1]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), reduction="sum"
    )
    return loss / (2 * length)
