"""The benchmark of training sequences: goals, operators, figure."""

import pytest

import step_operators
import training_figure
import training_sequences

TRAINING_ROWS = [
    {"case": case, "peer": peer, "ours_process_s": seconds, "process_speedup": times}
    for case, peer, seconds, times in [
        ("T6 softmax float32", "torch", 1.0, 1.2),
        ("T6 asentmax float32", "torch + entmax15", 1.1, 4.0),
        ("T6 asentmax float32", "torch + entmax_bisect", 1.1, 12),
    ]
]


def test_training_is_held_against_its_goals():
    found = training_sequences.goals(TRAINING_ROWS)
    assert [(goal["case"].split()[1], goal["value"], goal["reached"]) for goal in found] == [
        ("softmax", 1.2, False),
        ("asentmax", 4.0, False),
        ("asentmax", pytest.approx(1.1), True),  # of softmax's time, once
        ("asentmax", 12, True),
    ]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("[unknown] ([JIT] tid 25536)", "matrix products"),
        (
            "tsallis::N_AVX3::TransposeImpl (build/bin/decoder_steps)",
            "transposing gradients",
        ),
        ("tsallis::TileProducts (build/bin/decoder_steps)", "attention"),
        ("tsallis::lab::N_AVX3::AdamStepImpl (build/bin/decoder_steps)", "Adam"),
        ("clear_page_erms ([kernel.kallsyms])", "memory, from the system"),
        ("main (build/bin/decoder_steps)", step_operators.REST),
    ],
)
def test_samples_have_operators(place, name):
    assert step_operators.operator(place) == name


def test_training_figure(tmp_path):
    rows = [{**row, "tokens_per_s": 1000.0} for row in TRAINING_ROWS]
    shares = [{"case": "T6 softmax float32", "operator": "attention", "percent": 40.0}]
    for figure, operators in (("with", shares), ("without", [])):
        training_figure.draw(rows, operators, tmp_path / figure)
        assert (tmp_path / f"{figure}.svg").stat().st_size > 5000
        assert (tmp_path / f"{figure}.png").stat().st_size > 5000
