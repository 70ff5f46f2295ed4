"""How a study was done, in words."""

from .run_folder import Json, Run, read_json


def protocol(described: Json, runs: list[Run], seeds: str) -> str:
    """Model, training, seeds and evaluation, parted by ``"; "``."""
    train, model, task = described["train"], described["model"], described["task"]
    first, last = described["train_length"]
    trained = f"{described['steps']} training steps of {train['batch']}"
    weights = _weights(train, described["steps"], last)
    others = _own_trainings(described, runs, weights)
    if model is None:
        counts = next(iter(runs[0].samples.values()))
        return (
            f"{trained} sets, {_updates(train, _rate(described))}, {seeds}{others}; {weights} are "
            f"evaluated, on {counts[-1]} to {counts[0]} sets a length"
        )
    settings = [read_json(run.folder / "config.json") for run in runs]
    updates = _updates(train, _rate(described))
    precisions = " and ".join(sorted({one["model"].get("compute", "") for one in settings}))
    encoder = f"{model['layers']} + " if model["name"] == "encoder-decoder" else ""
    return (
        f"{encoder}{model['layers']} layers of width {model['width']}, {model['heads']} heads, "
        f"products in {precisions}; {trained} samples of length {first} to {last}, "
        f"{updates}, {train['warmup']} steps of warm-up, {seeds}{others}; "
        f"{weights} are evaluated, on {_asked(described['scoring'], task, last)}"
    )


def _rate(described: Json) -> str:
    """The learning rate, or how each method's was chosen."""
    train, grid = described["train"], described["grid"]
    rates = train["lr_grid"]
    if len(rates) < 2:
        return f"learning rate {(rates or [train['lr']])[0]:g}"
    by = ""
    if grid["spare"] or (grid["steps"], grid["seeds"]) != (described["steps"], described["seeds"]):
        plural = "" if grid["seeds"] == 1 else "s"
        spare = " that the mean does not count" if grid["spare"] else ""
        by = f" by runs of {grid['steps']} steps, {grid['seeds']} seed{plural}{spare}"
    if grid["widen"] > 0:
        by += f", up to {grid['widen']} more beyond an end that wins"
    chosen = ", ".join(f"{method} {rate:g}" for method, rate in described["chosen"].items())
    return (
        f"learning rate of {{{', '.join(f'{rate:g}' for rate in rates)}}} chosen on "
        f"{train['validate_samples']} validation samples of length {train['best_length']} for each "
        f"method{by} ({chosen})"
    )


def _updates(train: Json, rate: str) -> str:
    """How the weights change: ``adamw, learning rate 0.001, down to 0 along a cosine, ...``."""
    if train["schedule"] == "cosine":
        rate += ", down to 0 along a cosine"
    if train["schedule"] == "linear":
        last = 100.0 * train["cooldown"]
        rate += f", down to 0 along a line in the last {last:g} % of the steps"
    decay = "no weight decay"
    if train["optimizer"] == "adam":
        decay = f"L2 {train['l2']:g}"
    elif train["weight_decay"] > 0.0:
        decay = f"weight decay {train['weight_decay']:g}"
    return f"{train['optimizer']}, {rate}, {decay}"


def _weights(train: Json, steps: int, train_length: int) -> str:
    """Which weights of a run are evaluated."""
    if train["validate_every"] == 0 or train["validate_every"] >= steps:
        return "the last weights"
    floor = train["best_floor"]
    least = f" with {floor:g} % or more at {train_length}" if floor > 0.0 else ""
    return (
        f"of weights read every {train['validate_every']} steps{least} the best at length "
        f"{train['best_length']}, on {train['validate_samples']} validation samples,"
    )


def _own_trainings(described: Json, runs: list[Run], usual: str) -> str:
    """The methods of the runs that are trained in their own way."""
    text = ""
    for name in dict.fromkeys(run.method for run in runs):
        method = next(one for one in described["methods"] if one["name"] == name)
        own = method["train"]
        if own is None:
            continue
        steps = next(run.steps for run in runs if run.method == name)
        text += f"; {method['label']}: "
        if steps != described["steps"]:
            text += f"{steps} steps, "
        text += _updates(own, f"learning rate {own['lr']:g}")
        if own["warmup"] != described["train"]["warmup"]:
            text += f", {own['warmup']} steps of warm-up"
        weights = _weights(own, steps, described["train_length"][1])
        if weights != usual:
            text += f", {weights} are evaluated"
    return text


def _asked(scoring: str, task: Json, train_length: int) -> str:
    """How sequence models are tested, and where they are asked less."""
    samples = task["samples"]
    if scoring == "loss":
        tokens = samples * train_length
        return f"some {tokens} test tokens at every length, the same where lengths divide"
    if scoring == "written":
        return (
            f"the first {samples} test pairs of up to n source tokens, written by {task['beams']} "
            "beams, scored by sacrebleu"
        )
    right = "right if every token is" if scoring == "exact" else "token by token"
    fewer = f", at most {task['tokens']} tokens" if task["tokens"] is not None else ""
    if task["lost"] is not None:
        fewer += f", at most {task['lost']} samples behind two lengths with nothing right"
    return f"{samples} test samples a length ({right}){fewer}"
