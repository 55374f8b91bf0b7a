# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The pages of a dump in a browser: highlights, keys, colours, size, no requests."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import run

browser_module = pytest.importorskip("browser", reason="make venv installs it")

pytestmark = pytest.mark.skipif(
    browser_module.CHROMIUM is None, reason=browser_module.MISSING
)

# cse merges both exp. The rule NegOfNeg bypasses two nodes, and dce removes them.
PROGRAM = """
    import torch, mycelya_torch

    x = torch.ones(2, 3, device="mycelya")
    for _ in range(3):
        a = x.exp()
        b = x.exp()
        y = -(-(a * b))
        print(y.sum().item())
        del a, b, y
"""


def large() -> str:
    """2,100 ops that do not repeat: the rounds of a loop would be separate traces."""
    draw = random.Random(0)
    lines = ["import torch, mycelya_torch", "x = torch.ones(4, device='mycelya')"]
    for _ in range(350):
        first, then = draw.choices(["exp", "tanh", "sin", "cos", "sigmoid", "abs"], k=2)
        lines += [f"a, b = x.{first}(), x.{first}()", f"x = -(-(a * b).{then}())"]
    return "\n".join([*lines, "print(x.sum().item())"])


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[browser_module.Browser]:
    with browser_module.Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def dumped(code: str, folder: Path) -> Path:
    """The dump of a script with every stage up to dce."""
    to = folder / "dump"
    env = {"MYCELYA_PASSES": "until=dce,-fold", "MYCELYA_CHECK": "0"}
    status, _, err = run(code, folder, MYCELYA_DUMP=f"{to},all", **env)
    assert status == 0, err
    return to


@pytest.fixture(scope="module")
def dump(tmp_path_factory) -> Path:
    return dumped(PROGRAM, tmp_path_factory.mktemp("small"))


def graph_of(dump: Path, number: int) -> Path:
    (folder,) = dump.glob(f"{number:03d}-*")
    return folder / "graph.html"


@pytest.fixture
def page(chromium, dump) -> Iterator[browser_module.Page]:
    page = chromium.open(graph_of(dump, 2))
    yield page
    assert page.complaints() == []
    assert page.requests() == []


LIT = (
    "[...document.querySelectorAll('.column')].map(c =>"
    " [...c.querySelectorAll('.line .lit')].map(e => e.textContent))"
)


def line(column: int, text: str) -> str:
    """The expression for the first line of a column that has a text."""
    return (
        f"[...document.querySelectorAll('.column')[{column}]"
        f".querySelectorAll('.line')].find(l => l.textContent.includes('{text}'))"
    )


def test_a_column_for_each_stage(page, dump):
    heads = page.eval(
        "[...document.querySelectorAll('.column')].map(c =>"
        " c.querySelector('h2').textContent + ': ' + c.querySelector('p').textContent)"
    )
    files = sorted(graph_of(dump, 2).parent.glob("*-*.ir"))
    stages = [f.stem.replace("-", " ", 1) for f in files]
    assert [head.split(": ")[0] for head in heads] == [*stages, "plan"]
    assert (
        heads[3].endswith("nodes, 1 rule applied") and heads[0] == "00 capture: 7 nodes"
    )
    for i, file in enumerate(files):
        lines = f"document.querySelectorAll('.column')[{i}].querySelectorAll('.line')"
        text = page.eval(f"[...{lines}].map(l => l.textContent).join('\\n')")
        assert text + "\n" == file.read_text()


def test_a_click_highlights_a_value_in_every_column(page):
    page.click(line(0, "= sum") + ".querySelector('b')")
    lit = page.eval(LIT)
    assert [len(column) for column in lit[:-1]] == [2] * 5  # defined, and an output
    assert lit[0][0].startswith("%6: f32[]") and lit[4][0].startswith("%3: f32[]")
    assert "in 5 of 6 columns" in page.eval("document.all.status.textContent")
    # cse replaces the second exp by the first one, so the first is highlighted too.
    page.click(line(0, "mul") + ".querySelectorAll('a')[1]")
    lit = page.eval(LIT)
    assert lit[0] == ["%1: f32[a,b]", "%2: f32[a,b]", "%1", "%2", "%1", "%2"]
    assert lit[4] == ["%1: f32[a,b]", "%1", "%1", "%1", "%1"]
    # A click on a line highlights the value that it defines.
    page.click(line(0, "= sum"), at=0)
    assert page.eval(LIT)[4][0].startswith("%3: f32[]")


def test_a_click_on_an_origin_highlights_its_lines(page):
    page.click(line(0, "= sum") + ".querySelector('i')")
    lines = page.eval(
        "[...document.querySelectorAll('.lit-origin')].map(l => l.textContent)"
    )
    assert len(lines) == 5 and all("prog.py:9" in text for text in lines)
    page.press("Escape")
    assert page.eval("document.querySelectorAll('.lit, .lit-origin').length") == 0


FOCUSED = "document.activeElement.textContent"


def test_a_page_can_be_used_with_keys_only(page):
    for _ in range(30):  # skips the link, the search, the list of keys, a heading
        page.press("Tab")
        if page.eval("document.activeElement.matches('.line')"):
            break
    assert page.eval(FOCUSED).startswith("graph prog.py:9 read")
    outline = page.eval("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # the focus can be seen
    page.press("j", "ArrowDown", "j")
    assert "= exp" in page.eval(FOCUSED)
    assert page.eval(LIT)[1][0].startswith("%1: f32[a,b]")
    page.press("k")
    assert "= input" in page.eval(FOCUSED)
    page.press("j", "Tab", "Tab", "Enter")  # its first value, then its operand
    assert page.eval(FOCUSED) == "%0"
    assert page.eval(LIT)[4] == ["%0: f32[a,b]", "%0"]
    page.press("ArrowRight")
    assert "= input" in page.eval(FOCUSED)
    column = "[...document.querySelectorAll('.column')].indexOf("
    column += "document.activeElement.closest('.column'))"
    assert page.eval(column) == 1
    page.press("h")
    assert page.eval(column) == 0
    page.press("o")
    assert page.eval("document.querySelectorAll('.lit-origin').length") >= 5
    page.press("f")
    folded = "document.querySelector('.column').classList.contains('folded')"
    assert page.eval(folded) is True
    assert page.eval("document.activeElement.ariaExpanded") == "false"
    page.press("Enter")  # the heading has the focus now
    assert page.eval(folded) is False


def test_search(page):
    page.press("/", "N", "E", "G")
    status = "document.all.status.textContent"
    found = page.eval("document.querySelectorAll('.hit').length")
    assert found >= 6 and page.eval(status) == f"{found} lines with NEG"
    page.press("Enter")
    assert "= neg" in page.eval(FOCUSED) and page.eval(status).startswith("1 of ")
    page.press("n")
    assert page.eval(status).startswith("2 of ")
    page.press("N", "N")
    assert page.eval(status).startswith(f"{found} of ")
    page.press("Escape")
    assert page.eval("document.querySelectorAll('.hit, .lit').length") == 0
    assert page.eval("document.all.search.value") == ""


def test_a_column_folds(page):
    page.click("document.querySelectorAll('h2 > button')[1]")
    column = "document.querySelectorAll('.column')[1]"
    assert page.eval(f"{column}.offsetWidth") < 60
    page.click(line(0, "= sum"), at=0)
    page.press("l")  # skips the folded column
    assert page.eval(f"{column}.nextElementSibling.contains(document.activeElement)")


def test_dark(page):
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.body).color"
    page.dark(False)
    light = page.eval(f"[{paper}, {ink}]")
    page.dark(True)
    dark = page.eval(f"[{paper}, {ink}]")
    page.click(line(0, "= sum"), at=0)
    lit = page.eval("getComputedStyle(document.querySelector('.lit')).backgroundColor")

    def brightness(colour: str) -> float:
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(", ")))

    assert brightness(light[0]) > 600 > brightness(light[1])
    assert brightness(dark[0]) < 150 and brightness(dark[1]) > 600
    assert brightness(lit) < 400  # its text is light


def test_the_index(chromium, dump):
    page = chromium.open(dump / "index.html")
    rows = page.eval(
        "['programs', 'cuts', 'passes'].map(id =>"
        " [...document.querySelectorAll(`#${id} tbody tr`)].map(r =>"
        " [...r.cells].map(c => c.textContent)))"
    )
    programs, cuts, passes = rows
    assert [row[:4] for row in programs] == [
        ["#1", "prog.py:9", "read", "8"],
        ["#2", "prog.py:9", "read", "6"],
    ]
    assert [row[7] for row in programs] == ["1", "2"]  # calls
    assert programs[0][-1] == "It is the first one."
    assert "is the first that differs from #1" in programs[1][-1]
    assert cuts == [["read", "prog.py:9", "3", "20", "#1 #2"]]
    assert [row[0] for row in passes] == ["views", "cse", "simplify", "dce"]
    page.click("document.querySelector('#programs a')")
    while len(page.happened("Page.loadEventFired")) < 2:
        chromium.receive()
    assert page.eval("document.title") == "#1 prog.py:9"
    assert page.complaints() == []


def table(page, name: str) -> list[list[str]]:
    return page.eval(
        f"[...document.querySelectorAll('#{name} tbody tr')].map("
        "r => [...r.cells].map(c => c.textContent))"
    )


def test_times_on_the_worker(chromium, dump, tmp_path):
    page = chromium.open(dump / "index.html")
    assert page.eval("document.getElementById('times').hidden")
    to = tmp_path / "dump"
    status, _, err = run(PROGRAM, tmp_path, MYCELYA_DUMP=f"{to},times")
    assert status == 0, err
    page = chromium.open(to / "index.html")
    assert not page.eval("document.getElementById('times').hidden")
    busy, ops = table(page, "busy"), table(page, "ops")
    assert sorted(row[:3] for row in busy) == [
        ["#1", "prog.py:9", "1"],
        ["#2", "prog.py:9", "2"],
    ]
    shares = [float(row[-1].removesuffix(" %")) for row in busy]
    assert shares == sorted(shares, reverse=True) and abs(sum(shares) - 100) < 0.2
    assert any("exp" in row[0] and "sum" in row[0] for row in ops)
    assert all(":" in row[1] and float(row[3].removesuffix(" ms")) >= 0 for row in ops)
    lines = {row[0].split("/")[-1]: row[1:] for row in table(page, "lines")}
    assert all(float(row[1].removesuffix(" %")) <= 100 for row in lines.values())
    trips, waits, waited, callers = lines["prog.py:9"][2:]  # it reads in each round
    assert trips == "3" and 0 <= int(waits) <= 3
    assert waited.endswith(" ms") and callers == ""
    assert any(float(row[0].removesuffix(" ms")) > 0 for row in lines.values())
    blocks = "document.querySelectorAll('#timeline rect')"
    assert page.eval(f"{blocks}.length") == 3
    page.eval(f"{blocks}[1].dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    assert page.eval("document.getElementById('call').textContent").startswith(
        "A call of #2 at prog.py:9, "
    )
    assert page.eval("document.querySelectorAll('#call rect').length") >= 1
    width = (
        "document.querySelector('#timeline svg[viewBox]').getBoundingClientRect().width"
    )
    before = page.eval(width)
    page.eval(
        "(() => { const zoom = document.getElementById('zoom'); zoom.value = 3;"
        " zoom.dispatchEvent(new Event('input')) })()"
    )
    assert page.eval(width) == pytest.approx(8 * before, rel=0.05)
    assert page.complaints() == [] and page.requests() == []


def test_two_thousand_ops_open_in_two_seconds(chromium, tmp_path):
    path = graph_of(dumped(large(), tmp_path), 1)
    capture = next(path.parent.glob("00-*")).read_text()
    assert capture.count(" = ") > 2100
    took = []
    for _ in range(3):
        page = chromium.open(path)
        # The time until the first paint, not only until the load event.
        seconds = (
            "Math.max(performance.getEntriesByType('navigation')[0].loadEventEnd,"
            " ...performance.getEntriesByType('paint').map(p => p.startTime)) / 1e3"
        )
        while len(page.eval("performance.getEntriesByType('paint')")) == 0:
            pass
        took.append(page.eval(seconds))
        assert page.eval("document.querySelectorAll('.line').length") > 8000
        assert page.complaints() == [] and page.requests() == []
    assert statistics.median(took) < 2, took
    # A click is fast, and scrolls another column to a value far down.
    start = page.eval("performance.now()")
    page.click(line(0, "= sum"), at=0)
    assert page.eval("performance.now()") - start < 1000
    assert page.eval(LIT)[4][0].endswith("f32[]")
    shown = page.eval(
        "(() => { const c = document.querySelectorAll('.column')[4];"
        " const box = c.querySelector('.lines').getBoundingClientRect();"
        " const { top } = c.querySelector('.lit').getBoundingClientRect();"
        " return box.top <= top && top <= box.bottom })()"
    )
    assert shown
