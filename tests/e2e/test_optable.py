# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Compares the committed op table with the dispatcher of the installed torch."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

DEVICE = Path(__file__).resolve().parents[2] / "csrc" / "device"
TABLE = DEVICE / "record" / "optable.inc"
ALLOWED = DEVICE.parent / "exec" / "program" / "Allowed.inc"

# Whole overloads without a rule and without a structured shape function. They go
# through the Meta key, which is slow. torch.nn and torch.optim do not call them.
META_KEY = set(
    """
    _conv_depthwise2d _philox_key_fold_in _philox_key_fold_in.Tensor _philox_key_split
    _scaled_grouped_mm _slow_conv2d_backward.output_mask _slow_conv2d_forward
    batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt
    batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats
    conv_depthwise3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d
    slow_conv_transpose3d
    """.split()
)
# Structured only in releases after 2.11.
META_KEY_OF_OLD = {"_scaled_grouped_mm_v2", "_scaled_mm_v2"}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        name, next(DEVICE.glob(f"*/{name}.py"))
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load("gen_optable")


@pytest.fixture(scope="module")
def committed() -> dict[str, tuple[str, str, str]]:
    """Overload -> (handling, functional or reason, classes)."""
    text = TABLE.read_text()
    rows = {}
    for name, functional, classes in re.findall(
        r'^MYC_WHOLE\("([^"]+)", "([^"]*)", "([^"]*)"\)$', text, re.MULTILINE
    ):
        rows[name] = ("whole", functional, classes)
    for name, functional, classes in re.findall(
        r'^MYC_DYNAMIC\("([^"]+)", "([^"]*)", "([^"]*)"\)$', text, re.MULTILINE
    ):
        rows[name] = ("dynamic", functional, classes)
    for name, reason in re.findall(
        r'^MYC_REFUSE\("([^"]+)", "([^"]+)"\)$', text, re.MULTILINE
    ):
        rows[name] = ("refuse", reason, "")
    for how, names in re.findall(r'^MYC_LEFT\("(\w+)",([^)]*)\)$', text, re.MULTILINE):
        for name in " ".join(re.findall(r'"([^"]*)"', names)).split():
            assert name not in rows, f"{name} is in the table twice"
            rows[name] = (how, "", "")
    return rows


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2])


def table_release() -> tuple[int, ...]:
    version = re.search(r"from torch ([\d.]+)\. DO NOT EDIT", TABLE.read_text())
    assert version is not None
    return release(version[1])


HERE = release(torch.__version__)


def test_committed_table_is_current(generator: ModuleType) -> None:
    if table_release() != HERE or torch.version.cuda is None:
        pytest.skip("the table was generated from another torch, or one with CUDA")
    table = generator.rows()
    for path, fresh in [
        (TABLE, generator.render(table)),
        (ALLOWED, generator.render_allowed(table)),
    ]:
        diff = difflib.unified_diff(
            path.read_text().splitlines(),
            fresh.splitlines(),
            "committed",
            "fresh",
            "",
            "",
            0,
        )
        assert not (lines := list(diff)), "\n".join(
            ["run scripts/gen.sh and review the changes:", *lines[:60]]
        )


def allowed() -> list[str]:
    """The operators that a worker runs, as committed."""
    return re.findall(r'^"([^"]+)",$', ALLOWED.read_text(), re.MULTILINE)


def test_workers_run_what_is_recorded(
    generator: ModuleType, committed: dict[str, tuple[str, str, str]]
) -> None:
    """Each recordable operator is allowed. The others are refused with a reason.

    What else is allowed is what the compiler emits.
    """
    names = allowed()
    assert names == sorted(set(names)), "the list must be in order, for a binary search"
    recorded = {n for n, row in committed.items() if row[0] in ("whole", "dynamic")}
    assert recorded <= set(names)
    emitted = set(generator.CATALOGUE["emitted"])
    assert set(names) == recorded | emitted
    for name, (how, reason, _) in committed.items():
        assert how != "refuse" or reason, f"{name} is refused without a reason"
        assert how != "refuse" or name not in names, f"{name} is refused and allowed"


def test_workers_run_no_operator_on_files_pointers_or_packed_objects() -> None:
    """No allowed operator takes or gives what is not a plain strided tensor."""
    forbidden = re.compile(
        r"from_file|data_ptr|record_stream|set_data|storage|^set_|pin_memory|_cuda_|"
        r"mkldnn|mkl_|xnnpack|quantized|fbgemm|sparse|nested|alias|view|as_strided|"
        r"resize|_use_|lstm|gru|rnn_|_sobol|nnpack|_remove_batch_dim|jit|print|item"
    )
    assert not (found := [n for n in allowed() if forbidden.search(n)]), found
    known = {}
    for schema in torch._C._jit_get_all_schemas():
        name = (schema.name + "." + schema.overload_name).rstrip(".")
        known[name.removeprefix("aten::")] = schema
    kinds = {
        re.sub(r"Optional\[(.*)\]", r"\1", str(a.type))
        for name in allowed()
        if name in known
        for a in known[name].arguments
    }
    plain = {"Tensor", "number", "int", "float", "bool", "str", "Device", "Generator"}
    lists = {f"List[{kind}]" for kind in (*plain, "Optional[Tensor]")}
    assert kinds <= plain | lists, kinds - plain - lists


def test_table_fits_this_torch(
    generator: ModuleType, committed: dict[str, tuple[str, str, str]]
) -> None:
    """No row of the table is wrong for this torch, whatever its version.

    Rows for overloads that this torch lacks are valid, because they are not registered.
    """
    known = generator.facts()
    problems = []
    for name, (how, functional, classes) in committed.items():
        if how != "whole" or name not in known:
            continue
        f = known[name]
        if len(f.schema.arguments) != len(classes):
            problems.append(f"{name}: {len(classes)} classes for {f.schema}")
        if functional and functional not in known:
            problems.append(f"{name}: inferred as {functional}, which does not exist")
        if f.returns_view() or "inplace_view" in f.tags:
            problems.append(f"{name}: a view, which must not be recorded")
        if not f.returns_tensors():
            problems.append(f"{name}: returns more than tensors")
        if f.composite == "implicit" and not f.backend:
            problems.append(
                f"{name}: PyTorch decomposes it before dispatch to the device"
            )
    assert not problems, "\n".join(problems)


def test_no_overload_is_unknown(
    generator: ModuleType, committed: dict[str, tuple[str, str, str]]
) -> None:
    """The table has every overload of this torch that the device must handle."""
    if table_release() > HERE:
        pytest.skip("an older torch has overloads that were dropped since")
    missing = {
        name: how
        for name, f in generator.facts().items()
        if name not in committed
        and (how := generator.handling(f)[0]) in ("whole", "refuse", "hand")
    }
    assert not missing, f"not in optable.inc: {missing}"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("add.Tensor", ("whole", "add.Tensor", "--b")),
        ("add_.Tensor", ("whole", "add.Tensor", "--b")),
        ("add.out", ("whole", "add.Tensor", "--b-")),
        ("add.Scalar", ("decompose", "", "")),
        ("arange.start_out", ("whole", "arange.start_out", "sss-")),
        ("convolution", ("decompose", "", "")),
        (
            "convolution_overrideable",
            ("whole", "convolution_overrideable", "---lll-ll"),
        ),
        ("native_layer_norm", ("whole", "native_layer_norm", "-s--v")),
        ("native_dropout", ("whole", "native_dropout", "-b-")),
        ("_fused_adamw_", ("whole", "", "------vvvbv----")),
        (
            "_foreach_addcdiv_.ScalarList",
            ("whole", "_foreach_addcdiv.ScalarList", "---v"),
        ),
        ("normal_", ("whole", "normal_", "-vv-")),
        ("topk", ("whole", "topk", "-sl--")),
        ("tril", ("whole", "tril", "-v")),
        ("view", ("hand", "", "")),
        ("transpose.int", ("view", "", "")),
        ("transpose_", ("inplace_view", "", "")),
        ("_local_scalar_dense", ("hand", "", "")),
        ("zeros", ("decompose", "", "")),
        ("nonzero", ("dynamic", "nonzero", "-")),
    ],
)
def test_row(
    committed: dict[str, tuple[str, str, str]], name: str, row: tuple[str, str, str]
) -> None:
    assert committed[name] == row


def test_refusals_say_why(committed: dict[str, tuple[str, str, str]]) -> None:
    assert "sparse" in committed["_sparse_csr_sum.dim_dtype"][1]
    assert "quantized" in committed["quantize_per_tensor"][1]


def rule_names() -> set[str]:
    """Names in the rule tables of Rules*.cpp."""
    return {
        name
        for path in (DEVICE / "rules").glob("Rules*.cpp")
        for name in re.findall(r'^    \{"([\w.]+)", ', path.read_text(), re.MULTILINE)
    }


def test_shapes_are_known_without_the_meta_key(
    generator: ModuleType, committed: dict[str, tuple[str, str, str]]
) -> None:
    """Every whole overload that needs shapes has a rule or a structured function."""
    headers = load("gen_meta")
    functions = headers.meta_functions(headers.torch_include())
    structured = {f.name for f in functions}
    assert len(structured) > 250
    covered = structured | rule_names()
    known = generator.facts()
    left = {
        functional or name
        for name, (how, functional, _) in committed.items()
        if how == "whole" and name in known and (functional or name) not in covered
        if functional or any(r.alias_info is None for r in known[name].schema.returns)
    }
    allowed = META_KEY | (META_KEY_OF_OLD if table_release() > HERE else set())
    assert left <= allowed, f"these would use the Meta key: {sorted(left - allowed)}"


def test_rules_belong_to_the_table(
    generator: ModuleType, committed: dict[str, tuple[str, str, str]]
) -> None:
    """Every rule belongs to an overload whose shapes are inferred. Others never run."""
    recorded = {"whole", "dynamic"}
    used = {f or n for n, (how, f, _) in committed.items() if how in recorded}
    assert not (idle := rule_names() - used), f"unused rules: {sorted(idle)}"
