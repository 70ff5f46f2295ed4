"""The page of ``tsallis look`` in a browser: clicks, keys, a narrow screen."""

import re

import browser
import numpy as np
import pytest
import torch
from test_look import read

from tsallis_look.calls import Call
from tsallis_look.gather import Gathered
from tsallis_look.page import Subject, page

PROGRAM = browser.program()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no browser on this machine: `make test-pages` installs one"
)
PIECES = ["The", "quick", "fox", "\n", "", " ", "<b>", "\t"] * 5
N = len(PIECES)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Two layers, of two heads and of three."""
    torch.manual_seed(0)
    found = Gathered(N)
    for heads in (2, 3):
        settings = {"causal": True, "alpha": 1.5}
        found.add(Call(*(3 * torch.randn(2, 1, heads, N, 8)), settings), lambda _: None)
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(found, Subject("model", "text.txt", PIECES, ""), 10**6)[0])
    return path


@pytest.fixture(scope="module")
def weights(file):
    return read(file)[1]


@pytest.fixture(scope="module")
def chromium():
    running = browser.Browser(PROGRAM)
    yield running
    running.close()


@pytest.fixture
def opened(chromium, file):
    chromium.events.clear()
    chromium.open(file, 1200, 800)
    yield chromium
    for event in chromium.events:
        assert event["method"] != "Runtime.exceptionThrown", event
        if event["method"] == "Network.requestWillBeSent":
            assert event["params"]["request"]["url"].startswith("file://")


LIST = """[...document.querySelectorAll("#keys button")].map((button) =>
    [button.querySelector("small").textContent, button.querySelector("b").textContent])"""
SHADED = """[...document.querySelectorAll("#text > span")].flatMap((span, i) =>
    span.style.backgroundColor ? [i] : [])"""


def shows(chromium, expected: np.ndarray) -> None:
    """The list and the shading are those of these weights [tokens]."""
    listed = chromium.value(LIST)
    order = np.argsort(-expected, kind="stable")
    order = order[expected[order] > 0]
    assert sorted(int(place) - 1 for place, _ in listed) == sorted(order.tolist())
    for place, share in listed:
        assert float(share.split()[0]) / 100 == pytest.approx(
            expected[int(place) - 1], rel=0.06, abs=1e-5
        )
    strong = np.flatnonzero(np.sqrt(expected / max(expected.max(), 1e-9)) > 0.041)
    assert set(strong.tolist()) <= set(chromium.value(SHADED)) <= set(order.tolist())


def heading(chromium) -> str:
    return chromium.value('document.querySelector("#token").textContent')


def test_a_click_shows_the_keys_of_all_heads(opened, weights):
    opened.click("#t17")
    assert heading(opened).startswith("“quick”, token 18, reads")
    shows(opened, weights[:, 17].mean(0))
    assert opened.value(
        'document.querySelector("#text").getAttribute("aria-activedescendant")'
    ) == ("t17")


def test_the_map_picks_a_head_and_a_layer(opened, weights):
    opened.click("#t20")
    opened.click('#map button[title^="layer 2, head 3"]')
    shows(opened, weights[4, 20])
    assert opened.value('document.querySelector("#head").value') == "2"
    assert "Layer 2, head 3, keeps" in opened.value(
        'document.querySelector("#numbers").textContent'
    )
    opened.click('#map button[title="all heads of layer 1"]')
    shows(opened, weights[:2, 20].mean(0))
    opened.click('#map button[title="all heads"]')
    shows(opened, weights[:, 20].mean(0))


def test_the_map_shows_every_number(opened, file):
    about = read(file)[0]
    names = opened.value('[...document.querySelector("#number").options].map((o) => o.value)')
    assert names == ["keys", "entropy", "first", "distance"]
    cell = "document.querySelector(\"#map button[title^='layer 1, head 2']\")"
    seen = set()
    for name in names:
        opened.value(
            f"""(() => {{ const s = document.querySelector("#number"); s.value = "{name}";
            s.dispatchEvent(new Event("change")); }})()"""
        )
        value = float(re.sub(r"[^\d.]", "", opened.value(f"{cell}.title").split(":")[1]))
        true = about["layers"][0][1][name] * (100 if name == "first" else 1)
        assert value == pytest.approx(true, rel=0.06)
        seen.add(opened.value(f"{cell}.style.backgroundColor"))
    assert len(seen) > 1


def test_the_other_direction_shows_who_reads_a_token(opened, weights):
    opened.click("#t0")
    opened.click('#direction input[value="readers"]')
    assert "is read by" in heading(opened)
    listed = {int(place) - 1 for place, _ in opened.value(LIST)}
    assert listed == set(np.flatnonzero(weights[:, :, 0].mean(0)).tolist())
    opened.click("#t9")
    shows(opened, weights[:, :, 9].mean(0))
    opened.click("#keys button")
    assert int(re.search(r"token (\d+)", heading(opened)).group(1)) - 1 in np.flatnonzero(
        weights[:, :, 9].mean(0)
    )


def test_keys_move_through_the_text_and_the_map(opened, weights):
    opened.click("#t17")
    for key, token in (("ArrowRight", 18), ("ArrowRight", 19), ("ArrowLeft", 18), ("Home", 0)):
        opened.press(key)
        assert f"token {token + 1}," in heading(opened)
    opened.press("End")
    assert f"token {N}," in heading(opened)
    opened.press("ArrowUp")
    above = int(re.search(r"token (\d+)", heading(opened)).group(1))
    assert above < N - 1
    opened.press("ArrowDown")
    assert int(re.search(r"token (\d+)", heading(opened)).group(1)) > above
    opened.press("r")
    assert "is read by" in heading(opened)
    opened.press("r")
    opened.press("Home")
    for _ in range(20):
        opened.press("ArrowRight")
    opened.click('#map button[title="all heads of layer 1"]')
    opened.press("ArrowDown")
    opened.press("ArrowRight")
    shows(opened, weights[2, 20])
    assert opened.value("document.activeElement.title").startswith("layer 2, head 1")
    opened.press("Escape")
    shows(opened, weights[:, 20].mean(0))


def test_an_address_names_what_is_shown(chromium, file, weights):
    chromium.open(file, 1200, 800, "#token=31&layer=2&head=1&direction=readers")
    assert "token 31, is read by" in heading(chromium)
    shows(chromium, weights[2, :, 30])
    chromium.press("Escape")
    assert chromium.value("location.hash") == "#token=31&direction=readers"


def test_a_narrow_screen_has_text_and_keys_at_once(chromium, file, weights):
    chromium.open(file, 390, 800)
    assert chromium.value("document.documentElement.scrollWidth") <= 390
    assert not chromium.value('document.querySelector("#heads").open')
    chromium.click("#t17")
    shows(chromium, weights[:, 17].mean(0))
    boxes = chromium.value(
        """["#t17", "#found"].map((name) => {
        const box = document.querySelector(name).getBoundingClientRect();
        return [box.top, box.bottom]; })"""
    )
    for top, bottom in boxes:
        assert 0 <= top < bottom <= 801
    assert boxes[0][1] <= boxes[1][0]  # the keys do not lie on the token
    chromium.click("#heads summary")
    chromium.click('#map button[title^="layer 2, head 3"]')
    shows(chromium, weights[4, 17])


def test_the_text_stands_as_it_was(opened):
    text = opened.value('document.querySelector("#text").textContent')
    assert text.replace("↵", "").replace("·", "") == "".join(PIECES)
    assert opened.value('document.querySelectorAll("#text b").length') == 0
    assert len(opened.picture()) > 10_000
