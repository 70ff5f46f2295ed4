"""The estimator of all benchmarks."""

import time

import pytest

from tsallis.bench.timing import Sample, Timing, clocked, compared, in_turns


def test_medians_and_quartiles():
    timing = Timing([Sample(wall, 2 * wall) for wall in (5.0, 1.0, 4.0, 2.0, 3.0)])
    assert timing.fields("ours") == {
        "ours_s": 3.0,
        "ours_s_quartiles": [2.0, 4.0],
        "ours_process_s": 6.0,
        "ours_process_s_quartiles": [4.0, 8.0],
        "ours_calls": 5,
    }
    assert Timing([Sample(2.0, 1.0)]).fields("x")["x_s_quartiles"] == [2.0, 2.0]
    row = compared(timing, "them", Timing([Sample(6.0, 3.0)]))
    assert (row["peer"], row["speedup"], row["process_speedup"]) == ("them", 2.0, 0.5)


def test_the_clocks_are_the_walls_and_the_processors():
    slept = clocked(lambda: time.sleep(0.05))
    assert slept.wall_s >= 0.05
    assert slept.process_s < 0.04

    def busy():
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass

    worked = clocked(busy)
    assert worked.process_s == pytest.approx(0.05, rel=0.5)
    assert worked.wall_s >= 0.045


def test_contenders_take_turns_and_the_first_turn_warms_up():
    order = []

    def turn(name, seconds):
        def run():
            order.append(name)
            return [Sample(seconds, seconds)]

        return run

    found = in_turns({"a": turn("a", 1.0), "b": turn("b", 1.0)}, most=3)
    assert "".join(order) == "abababab"
    assert {name: len(timing.samples) for name, timing in found.items()} == {"a": 3, "b": 3}

    # Half of the budget each: b has used up its own after its second turn.
    order.clear()
    found = in_turns({"a": turn("a", 1.0), "b": turn("b", 6.0)}, most=4, budget_s=20.0)
    assert "".join(order) == "ab" + "ab" + "a" * 3
    assert len(found["b"].samples) == 1

    # One whose warm-up takes all of its share is not asked again.
    order.clear()
    found = in_turns({"a": turn("a", 1.0), "b": turn("b", 60.0)}, most=2, budget_s=20.0)
    assert "".join(order) == "ab" + "aa"
    assert found["b"].wall_s == 60.0
