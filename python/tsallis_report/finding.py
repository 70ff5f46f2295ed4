"""By how much one method is ahead of another, and the sentence that a page begins with."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .data import Contrast, Row, Study
from .run_folder import deviation, mean

_FEW = 4  # methods that one sentence names


@dataclass(frozen=True)
class Found:
    """What a page says first, and the methods that it names."""

    sentence: str = ""  # empty: nothing can be said
    methods: tuple[str, ...] = ()


def two_sided_student(t: float, freedom: int) -> float:
    """P(abs(T) >= abs(t)) of Student's distribution (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2 == 1
    term, total = cosine if odd else 1.0, 0.0  # of the series, each from the one before
    for k in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1.0) / (k + 2.0)
    within = math.sin(angle) * total
    return 1.0 - ((angle + within) * 2.0 / math.pi if odd else within)


def contrast(row: Row, base: Row) -> Contrast:
    """How far a method is above the baseline at the same length.

    The standard error is sqrt(s1²/k1 + s2²/k2) for standard deviations s over k seeds. The paired
    t-test is that of the seeds that both have, which read the same samples; fewer than three seeds,
    or equal differences, have none.
    """
    error = p = None
    if row.seeds > 1 and base.seeds > 1:
        error = math.sqrt(row.std**2 / row.seeds + base.std**2 / base.seeds)
    differences = [
        value - base.by_seed[seed] for seed, value in row.by_seed.items() if seed in base.by_seed
    ]
    count = len(differences)
    if count >= 3 and (spread := deviation(differences)) > 0.0:
        p = two_sided_student(mean(differences) / (spread / math.sqrt(count)), count - 1)
    return Contrast(row.mean - base.mean, error, p)


def finding(study: Study, train_length: int, at: int = 0) -> Found:
    """The length at which a method differs most surely from the baseline, and the scores there.

    It names every method if there are few, else these two and, where they differ both in how they
    attend and in positions or training, those between them, which differ in one. A difference is as
    sure as its size minus two standard errors; if no method has several seeds, as its size. A
    method that is ahead is preferred to one that is behind. Where differences are tested, only
    those count that ``Study.sure`` has. It says so where nothing differs by ``metric.notable`` or
    more. ``train_length`` is the longest length of training, ``at`` the only length to speak of, if
    methods were measured there; 0: any.
    """
    metric = study.metric
    against = [(row, row.ahead) for row in study.rows if row.ahead is not None]
    tests, marked = study.tests, study.sure
    # Where some were repeated, one run of another proves nothing.
    errors = any(ahead.error is not None for _, ahead in against)
    finite = [(row, ahead) for row, ahead in against if math.isfinite(row.mean)]
    only = any(row.n == at for row, _ in finite)
    compared = [
        (row, ahead)
        for row, ahead in finite
        if (row.n == at or not only) and (ahead.error is not None or not errors)
    ]
    if not compared:
        return Found()
    best: dict[bool, tuple[float, Row]] = {}  # of those ahead and of those behind, how surely
    for row, ahead in compared:
        if tests and (row.method, row.n) not in marked:
            continue
        sure = abs(ahead.difference) - 2.0 * (ahead.error or 0.0)
        is_better = (ahead.difference > 0.0) == metric.higher_is_better
        if is_better not in best or sure > best[is_better][0]:
            best[is_better] = sure, row
    label = study.about[study.baseline].label
    notable = [
        best[side][1] for side in (True, False) if side in best and best[side][0] >= metric.notable
    ]
    if not notable:
        points = "point" if metric.notable == 1.0 and metric.unit == "%" else metric.points
        allowed = " once two standard errors are allowed for" if errors else ""
        nothing = f"No method is {metric.notable:g} {points} or more from {label}{allowed}"
        if tests:
            nothing = (
                f"No difference of {metric.notable:g} {points} or more from {label} stands once "
                "the number of tests is allowed for"
            )
        where = f"{'at' if only else 'up to'} n = {max(row.n for row, _ in compared)}"
        return Found(f"{nothing}, {where}.", (study.baseline,))
    place = notable[0]
    named = {place.method, study.baseline, *_between(study, place.method)}
    shown = [
        row
        for row in study.rows
        if row.n == place.n and (row.method in named or len(study.about) <= _FEW)
    ]
    shown.sort(key=lambda row: -row.mean if metric.higher_is_better else row.mean)
    times = place.n / train_length
    text = f"{times:.2g}" if times < 10.0 else f"{times:.0f}"
    far = f", {text} times the longest length of training" if place.n > train_length else ""
    unit = "right in %" if metric.unit == "%" else f"{metric.name} in {metric.unit}"
    seeds = " (± standard deviation over seeds)" if any(row.seeds > 1 for row in shown) else ""
    scores = "; ".join(
        f"{study.about[row.method].label} {metric.spread(row)}"
        + (f", where {row.split.held} of {row.split.runs} runs hold" if row.split else "")
        for row in shown
    )
    return Found(
        f"At n = {place.n}{far}, {unit}{seeds}: {scores}.", tuple(row.method for row in shown)
    )


def _between(study: Study, other: str) -> Iterator[str]:
    """Methods that attend as the baseline does and are trained as the other is, or the reverse.

    Of two methods that differ in both they tell which of the two makes the difference.
    """
    base, far = study.about[study.baseline], study.about[other]
    if base.like != far.like and base.variant != far.variant:
        mixed = {(base.like, far.variant), (far.like, base.variant)}
        yield from (one.name for one in study.about.values() if (one.like, one.variant) in mixed)


def flow_finding(study: Study) -> Found:
    """The method and layer whose gradient differs most from the baseline's, by its factor.

    After the first step, when all are equally wrong: models that have learned differently well have
    other gradients for that reason alone. It looks at methods of the baseline's variant, since
    other positions change gradients, too.
    """
    first = min((row.step for row in study.flows), default=0)
    rows = [row for row in study.flows if row.step == first]
    bases = {row.layer: row for row in rows if row.method == study.baseline}
    most, factor = None, 1.0  # 1 or more: of the larger of two gradients
    for row in rows:
        base = bases.get(row.layer)
        if row.method == study.baseline or base is None:
            continue
        if study.about[row.method].variant != study.about[study.baseline].variant:
            continue
        gradients = sorted((row.gradient, base.gradient))
        larger = gradients[1] / gradients[0] if gradients[0] > 0.0 else math.inf
        if math.isfinite(larger) and (most is None or larger > factor):
            most, factor = row, larger
    if most is None:
        return Found()
    base, name = bases[most.layer], study.about[study.baseline].label
    return Found(
        f"After {first} step{'' if first == 1 else 's'}, when every method is still equally wrong, "
        f"a token's gradient at layer {most.layer + 1} of "
        f"{1 + max(row.layer for row in study.flows)} is {most.gradient / base.gradient:.2g} times "
        f"as large with {study.about[most.method].label} as with {name}; a query gives weight to "
        f"{most.keys:.3g} keys there, with {name} to {base.keys:.3g}.",
        (study.baseline, most.method),
    )
