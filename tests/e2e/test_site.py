# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The documentation site builds, its programs run, and it names what exists."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
import torch
from helpers import ROOT, needs, on_cuda, run

import mycelya_torch
from mycelya_torch import _gpus, _providers
from mycelya_torch._provider_table import TABLE

PAGES = ROOT / "docs" / "pages"
NAMES = sorted(str(path.relative_to(PAGES)) for path in PAGES.rglob("*.md"))
FENCED = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+) -->\n+)?```(?P<language>\w+)\n(?P<text>.*?)```",
    re.S,
)


def page(name: str) -> str:
    return (PAGES / name).read_text()


def python(text: str, runs: bool = True) -> list[str]:
    """The Python blocks of a text that run here, or those that do not."""
    return [
        block["text"]
        for block in FENCED.finditer(text)
        if block["language"] == "python" and (block["why"] is None) == runs
    ]


def blocks(name: str, runs: bool) -> list[str]:
    return python(page(name), runs)


# ---- The site as a whole ----


class Links(HTMLParser):
    """The anchors and links of a page, and what a browser loads for it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        found = dict(attributes)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "link" and found.get("href"):
            self.loaded.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site. The proxies do not exist, so nothing comes from the network."""
    needs(module="mkdocs")
    folder = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        + ["-f", str(ROOT / "docs" / "mkdocs.yml"), "-d", str(folder)],
        cwd=ROOT,
        env={
            **{"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "ALL_PROXY": nowhere},
            **{"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"},
            "NO_MKDOCS_2_WARNING": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_each_link_of_the_site_exists(site):
    pages = {
        path.resolve(): Links(path.read_text())
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }
    assert len(pages) == len(NAMES)
    checked = 0
    for path, found in pages.items():
        for link in found.links + found.loaded:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            file, anchor = urldefrag(link)
            target = (path.parent / unquote(file)).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name} has the link {link}"
            if anchor and target in pages:
                anchors = pages[target].anchors
                assert unquote(anchor) in anchors, f"{path.name} has the link {link}"
            checked += 1
    assert checked > 300


def test_no_page_loads_anything_from_the_network(site):
    loads = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")
    for path in site.rglob("*.html"):
        found = Links(path.read_text())
        away = [x for x in found.loaded if urlsplit(x).netloc]
        assert not away, (path.name, away)
    for path in site.rglob("*.css"):
        assert not loads.search(path.read_text()), path.name


@pytest.mark.parametrize(
    ("module", "path"),
    [("mycelya_torch", "mycelya-torch"), ("mycelya_torch.device", "torch-mycelya")],
)
def test_the_reference_has_each_public_name(site, module, path):
    html = (site / "reference" / f"{path}.html").read_text()
    titles = set(re.findall(r'class="doc doc-object-name[^"]*">(\w+)<', html))
    owner = importlib.import_module(module)
    names = getattr(owner, "__all__", ["synchronize", "metrics", "Stream"])
    # Values without a docstring of their own.
    other = {"__version__", "OutOfMemoryError", "AcceleratorError", "has_half"}
    other |= {"default_generators", "has_magma"}
    missing = [
        name
        for name in names
        if name not in titles | other
        and not inspect.ismodule(getattr(owner, name))
        and getattr(owner, name).__doc__
    ]
    assert len(titles) > 10 and not missing


# ---- The programs ----


@pytest.mark.parametrize("name", [n for n in NAMES if blocks(n, runs=True)])
def test_the_python_blocks_of_a_page_run(name, tmp_path):
    code = "\n".join(
        [f"import os; os.chdir({str(tmp_path)!r})", *blocks(name, runs=True)]
    )
    # Machines that outlive their process leave files where this variable says.
    state = {"XDG_STATE_HOME": str(tmp_path / "state")} if "detached" in code else {}
    status, out, err = run(code, tmp_path, timeout=200, **state)
    assert status == 0, out + err


def test_the_python_blocks_of_the_readme_run(tmp_path):
    code = "\n".join(python((ROOT / "README.md").read_text()))
    status, out, err = run(code, tmp_path, timeout=200)
    assert status == 0, out + err
    assert re.search(r"^900 \d\.\d+$", out, re.M), out


def test_a_page_runs_something():
    assert sum(len(blocks(name, runs=True)) for name in NAMES) > 15


def calls_of_machines(code: str):
    """The calls of RemoteMachine in a program."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in ("RemoteMachine", "create_modal_machine"):
                yield name, node


def literal(node: ast.expr):
    """The value of a constant; None for other expressions."""
    return node.value if isinstance(node, ast.Constant) else None


def accept(provider_name: str, options: dict) -> None:
    """Raises as RemoteMachine does if the provider has no such option."""
    provider = _providers.find(provider_name)
    for name in ("name", "start", "detached"):
        options.pop(name, None)
    _providers.device_option(provider, options.pop("device", ""))
    request = _providers.Request(
        gpu=_gpus.find(options.pop("gpu_type", "")),
        gpus=options.pop("gpu_count", 1),
        lease=options.pop("timeout", None),
        idle=options.pop("idle_timeout", None),
        packages=options.pop("packages", ()),
    )
    request.options(provider, options)


@pytest.mark.parametrize("name", [n for n in NAMES if blocks(n, runs=False)])
def test_blocks_that_do_not_run_use_options_that_exist(name):
    for code in blocks(name, runs=False):
        for function, call in calls_of_machines(code):
            given = [literal(node) for node in call.args]
            if function == "create_modal_machine":
                given.insert(0, "modal")
            options = {k.arg: literal(k.value) for k in call.keywords if k.arg}
            options = {k: v for k, v in options.items() if v is not None}
            if len(given) > 1 and given[1] is not None:
                options["gpu_type"] = given[1]
            accept(given[0], options)


@pytest.mark.parametrize("row", TABLE)
def test_a_provider_has_a_page_with_its_options(row):
    text = page(f"providers/{row.value}.md")
    section = text.split("\n## Options\n")[1].split("\n## ")[0]
    own, _, common = section.partition("| common option |")
    known = {name for name, _, _ in TABLE[row].options}
    always = {"name", "detached", "timeout", "idle_timeout", "device"}
    assert known <= set(table_cells(own, 0)) <= known | always
    assert set(table_cells(common, 0)) <= always | {"gpu_type", "gpu_count", "packages"}


def test_the_page_about_writing_a_provider_names_what_exists():
    text = page("providers/writing.md")
    source = (ROOT / "runtime" / "provider" / "provider.go").read_text()
    interfaces = set(re.findall(r"^type (\w+) interface", source, re.M))
    cells = [cell for cell in table_cells(text, 0) if cell[0].isupper()]
    methods = {cell.split("(")[0] for cell in cells if "(" in cell}
    assert len(methods) >= 9
    for name in methods:
        assert re.search(rf"^\t{name}\(", source, re.M), name
    optional = {cell for cell in cells if "(" not in cell}
    assert optional == interfaces - {"Provider", "Instance"}


# ---- Pages that list things ----


def table_cells(text: str, column: int) -> list[str]:
    """The code in a column of the tables of a page."""
    rows = re.findall(r"^\|(.+)\|$", text, re.M)
    return [
        found
        for row in rows
        for found in re.findall(r"`([^`]+)`", re.split(r"(?<!\\)\|", row)[column])
    ]


def test_the_environment_page_lists_every_variable():
    source = (ROOT / "runtime" / "settings" / "settings.go").read_text()
    known = set(re.findall(r"^\t\{\"(MYCELYA_\w+)\",", source, re.M))
    assert len(known) >= 8
    text = page("environment.md")
    assert {c for c in table_cells(text, 0) if c.startswith("MYCELYA_")} == known
    words = (ROOT / "runtime" / "dump" / "spec.go").read_text()
    dumps = set(re.findall(r"^\t\{\"([a-z]+)(?:=\w+)?\", ", words, re.M))
    assert len(dumps) >= 11
    section = text.split("\n## MYCELYA_DUMP\n")[1].split("\n## ")[0]
    assert {cell.split("=")[0] for cell in table_cells(section, 0)} == dumps


def flags(text: str) -> set[str]:
    """The flags in the help of a program in Go."""
    return set(re.findall(r"^  -([\w-]+)", text, re.M))


def test_the_command_line_page_lists_every_flag():
    text = page("command-line.md")
    mycelya, worker = text.split("\n## mycelya-worker\n")
    worker, rest = worker.split("\n## mycopt\n")
    source = (ROOT / "mycelya_cli" / "_app.py").read_text()
    known = set(re.findall(r"^    \"(\w+)\": \"_\w+\",$", source, re.M))
    assert {f"mycelya {name}" for name in known} == {
        cell for cell in table_cells(mycelya, 0) if cell.startswith("mycelya ")
    }

    command = [ROOT / "mycelya_torch" / "bin" / "mycelya-worker", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    listed = {cell for cell in table_cells(worker, 0) if cell.startswith("--")}
    assert {f"--{name}" for name in flags(done.stderr)} == listed

    source = (ROOT / "passes" / "cmd" / "mycopt" / "main.go").read_text()
    known = set(re.findall(r"flags\.(?:String|Bool)\(\"([\w-]+)\"", source))
    listed = {cell for cell in table_cells(rest, 0) if cell.startswith("-")}
    assert {f"-{name}" for name in known} == listed

    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
    for cell in table_cells(rest, 0):
        if cell.startswith("make "):
            assert cell.removeprefix("make ") in targets


def exists(name: str) -> bool:
    """Whether a dotted name of the migration page exists."""
    first, _, rest = name.partition(".")
    owner = {"torch": torch, "Tensor": torch.Tensor}.get(first)
    if owner is None:
        if first == "errors":
            return hasattr(importlib.import_module("mycelya_torch.errors"), rest)
        if not hasattr(mycelya_torch, first):
            return False
        owner = getattr(mycelya_torch, first)
    for part in filter(None, rest.split(".")):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


def test_the_migration_page_names_what_exists():
    cells = table_cells(page("migration.md"), 2)
    names = [c for c in cells if re.fullmatch(r"[\w.]+", c)]
    assert len(names) > 30
    missing = [name for name in names if not exists(name)]
    assert not missing


# What the documents of the earlier systems name.
EARLIER = """
    torch_modal torch_remote create_modal_machine RemoteMachine BackendDevice
    BackendProvider GPUType DeviceRegistry get_device_registry
    device_id device_name modal_gpu_spec remote_index machine.device() str repr == hash
    register_device get_device_by_index get_device_index devices_compatible
    enable_remote_execution disable_remote_execution is_remote_execution_enabled
    is_available device_count current_device device(index) manual_seed manual_seed_all
    get_rng_state set_rng_state synchronize FloatTensor randn zeros ones empty tensor
    tensor.modal() tensor.to tensor.cpu() load_huggingface_state_dicts mock
    RemoteTensorError StaleReferenceError
"""


def test_the_migration_page_has_the_earlier_names():
    rows = " ".join(table_cells(page("migration.md"), 0))
    missing = [name for name in EARLIER.split() if name not in rows]
    assert not missing


def test_the_prices_of_modal_are_those_of_the_provider():
    source = (ROOT / "runtime/provider/modal/prices.go").read_text()
    found = re.findall(r'"([\w-]+)": +(0\.\d+) \* 3600', source)
    text = page("providers/modal.md")
    for name, per_second in found:
        names, prices = (
            re.search(rf"^\| {first}.*$", text, re.M)[0].split("|")
            for first in ("`T4`", "0\\.59")
        )
        price = float(prices[names.index(f" `{name}` ")])
        assert price == round(float(per_second) * 3600, 2)
    assert re.search('priced = "(.*)"', source)[1] in text and len(found) == 5


# ---- Error texts ----

TEXT = re.compile(r"<!-- text of (?P<path>\S+) -->\n\n(?P<text>(?:    .*\n)+)", re.M)


def plain(source: str) -> str:
    """A source with its string literals joined, and without escapes."""
    joined = re.sub(r"[\"']\s*(?:\+|,)?\s*\n\s*[fr]?[\"']", "", source)
    return joined.replace('\\"', '"').replace("\\'", "'").replace("\\n", " ")


def pieces(text: str) -> list[str]:
    """The parts of an error's text between what is inserted."""
    whole = " ".join(line.strip() for line in text.splitlines())
    return [part.strip() for part in whole.split("…") if len(part.strip()) > 1]


@pytest.mark.parametrize(
    "found", list(TEXT.finditer(page("troubleshooting.md"))), ids=lambda m: m["path"]
)
def test_an_error_text_stands_in_its_source(found):
    parts = pieces(found["text"])
    assert parts
    source = plain((ROOT / found["path"]).read_text())
    # All parts within one statement: the first one somewhere, the others near it.
    for start in re.finditer(re.escape(parts[0]), source):
        at = start.start()
        for part in parts:
            at = source.find(part, at)
            if at < 0 or at - start.start() > 1500:
                break
            at += len(part)
        else:
            return
    raise AssertionError(f"{found['path']} does not have {parts}")


def test_each_section_of_an_error_has_its_text():
    sections = page("troubleshooting.md").split("\n### ")[1:]
    without = [s.splitlines()[0] for s in sections if not TEXT.search(s)]
    # PyTorch's own texts.
    assert without == [
        "A machine where PyTorch wants a device",
        "OutOfMemoryError",
    ]


@pytest.mark.skipif(on_cuda(), reason="the text is that of the CPU; owner: docs")
def test_the_example_of_an_error_is_real(tmp_path):
    """The line of the page about operators and lines is what an error ends with."""
    code = """
        import torch, mycelya_torch
        x = torch.zeros(2, 3, device="mycelya")
        labels = torch.tensor([0, 9]).to("mycelya")
        try:
            torch.nn.functional.cross_entropy(x, labels).item()
        except (IndexError, RuntimeError) as error:
            print(str(error).splitlines()[-1].strip())
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    line = re.search(r"^    (in aten::\S.*)$", page("troubleshooting.md"), re.M)[1]
    shape = r"in aten::\w+\(.*\), recorded at \S+\.py:\d+"
    assert re.fullmatch(shape, line) and re.fullmatch(shape, out.strip()), out
