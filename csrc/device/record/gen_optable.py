# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Writes optable.inc: what the device does with each aten overload.

The table is the answer to one question per overload, "who runs it?":

  whole         we record it as it is (one boxed kernel, registered by name)
  dynamic       whole, but data decides the shapes of its results: we ask the worker
  hand          a kernel of its own is registered elsewhere in csrc/device
  view          PyTorch's kernel, which ends in our as_strided, view, ...
  inplace_view  PyTorch's kernel, which changes only the tensor's own metadata
  decompose     PyTorch's composite kernel, which calls other overloads
  refuse        an error that says why

It is derived from the dispatcher's registrations (which overload has a kernel for
CPU, CUDA or one of the Composite aliases) and from the lists below, which say what
registrations can't. Run it with the newest torch supported, built with CUDA:

  python csrc/device/record/gen_optable.py > csrc/device/record/optable.inc
"""

from __future__ import annotations

import fnmatch
import functools
import sys
from dataclasses import dataclass

import torch

_C = torch._C

# Kernels registered by hand in csrc/device.
HAND = """
empty.memory_format empty_strided as_strided view _reshape_alias unfold
view_as_real view_as_complex _copy_from _copy_from_and_resize _local_scalar_dense
set_.source_Storage set_.source_Storage_storage_offset set_.source_Tensor set_
resize_ _has_compatible_shallow_copy_type equal is_set_to record_stream
_fused_sdp_choice _nested_tensor_from_mask_left_aligned _thnn_fused_lstm_cell
_scaled_dot_product_fused_attention_overrideable
_scaled_dot_product_fused_attention_overrideable_backward
_efficientzerotensor _foreach_addcdiv.Tensor _foreach_addcdiv_.Tensor
_foreach_addcmul.Tensor _foreach_addcmul_.Tensor addbmm_
_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
_to_sparse _to_sparse.sparse_dim _to_sparse_csr _to_sparse_csc _to_sparse_bsr
_to_sparse_bsc _validate_compressed_sparse_indices _embedding_bag_backward
""".split()

# Refused, by the first pattern that fits the overload's name. The reason completes
# the sentence "aten::<name> is not available on this device: …".
_SPARSE = "sparse tensors are not supported"
_QUANTIZED = "quantized tensors are not supported"
_NESTED = "nested tensors are not supported"
_BACKEND = "it belongs to the backend of another device"
_ATTENTION = (
    "it is the attention kernel of one backend; call"
    " torch.nn.functional.scaled_dot_product_attention"
)
_PACKED = "the layout of its packed weights depends on the worker's device"
_INTERNAL = "it is internal to PyTorch's tests"
REFUSE: list[tuple[str, str]] = [
    (pattern, reason)
    for reason, patterns in [
        (
            _SPARSE,
            """*_sparse* sparse_[!d]* _coalesce* _indices _values _nnz _dimI _dimV
            hspmm* sspaddmm* _spdiags _spsolve _cslt_* _to_dense native_norm
            native_norm.Scalar* resize_as_sparse_ copy_sparse_to_sparse_ _coalesced_""",
        ),
        (
            _QUANTIZED,
            """quantize_per_* dequantize* q_scale q_zero_point q_per_channel_* qscheme
            int_repr _empty_affine_quantized _empty_per_channel_affine_quantized
            _make_per_*_quantized_tensor quantized_* empty_quantized
            _flash_attention_forward.quantized
            _scaled_dot_product_flash_attention.quantized""",
        ),
        (
            _NESTED,
            "*nested* to_padded_tensor matmul_backward",
        ),
        (
            _BACKEND,
            """*cudnn* *miopen* *mkldnn* *mps* _use_cudnn_ctc_loss*
            _nnpack_spatial_convolution max_pool2d_backward linear_backward
            _fused_dropout _masked_scale _fused_rms_norm_backward _triton_*""",
        ),
        (
            _ATTENTION,
            """_flash_attention_* _efficient_attention*
            _scaled_dot_product_efficient_attention*
            _scaled_dot_product_flash_attention_*quantized
            _fill_mem_eff_dropout_mask_ _scaled_dot_product_attention_math_for_mps
            _scaled_dot_product_flash_attention
            _scaled_dot_product_flash_attention_backward""",
        ),
        (
            _PACKED,
            """_dyn_quant_* _weight_int4pack_mm* _convert_weight_to_int4pack*
            _weight_int8pack_mm _mixed_dtypes_linear""",
        ),
        (_INTERNAL, "_foobar _test_* _make_dep_token _functional_assert_async.msg"),
        ("it reads a file of the worker", "from_file"),
        ("copy-on-write storages are not supported", "_lazy_clone"),
        ("only meta tensors use it", "_resize_output_"),
        (
            "only its functional form is supported",
            """rrelu_with_noise.out
            _slow_conv2d_backward.grad_input""",
        ),
    ]
    for pattern in patterns.split()
]

# Factories of sparse compressed tensors: PyTorch's composite kernel makes them of
# ours, whatever the patterns above say.
FACTORIES = """
_sparse_compressed_tensor_with_dims sparse_compressed_tensor.comp_plain_value_size
sparse_compressed_tensor.comp_plain_value
""".split()

# Data, or what the worker computes with, decides the shapes of their results.
DYNAMIC = """
nonzero nonzero.out masked_select masked_select.out _unique _unique2 unique_*
bincount linalg_lstsq linalg_lstsq.out _ctc_loss.Tensor repeat_interleave.Tensor
_batch_norm_with_update _batch_norm_with_update.out _native_batch_norm_legit.out
_padded_dense_to_jagged_forward
""".split()

# Composite kernels that would come in several records, or through an empty result
# that is resized later, are recorded whole instead.
WHOLE_COMPOSITE = """
abs addr addr.out addr_ affine_grid_generator all.dims_out any.dims_out arange
arange.start arange.start_step clone complex _conj_physical conj_physical.out
conj_physical_ convolution_backward_overrideable convolution_overrideable count_nonzero
cummax cummin embedding eye eye.m frexp.Tensor huber_loss_backward index_fill.int_Scalar
index_fill.int_Tensor index_put index_put_ kthvalue linalg__powsum linspace logical_and
logical_and_ logical_not logical_not_ logical_or logical_or_ logical_xor logical_xor_
logspace logsumexp masked_fill.Scalar masked_fill.Tensor masked_scatter
masked_scatter_backward mean median.dim mish_backward mode.values mv nan_to_num
nan_to_num_ nanmedian.dim native_group_norm native_layer_norm polar put randperm
randperm.generator range range.step repeat smooth_l1_loss_backward soft_margin_loss
soft_margin_loss_backward sort stack sum
""".split()

# Structured overloads whose composite kernel is a view and a copy.
DECOMPOSE = "narrow_copy pixel_shuffle pixel_unshuffle".split()

# Classes of arguments: 'l' literal (part of the skeleton), 's' size-like and 'v'
# value (both parameters), 'b' literal if it is 0 or 1, else value. By (op, argument),
# '*' for any op; the base name of an op stands for its overloads and in-place form.
CLASS: dict[tuple[str, str], str] = {
    (op, argument): letter
    for letter, entries in [
        (
            "l",
            """*.padding *.dilation *.output_padding *.kernel_size *.groups *.dim
            *.stride *.padding_idx *.ignore_index *.shifts *.repeats
            *.ord *.p *.norm_type pow.exponent _foreach_pow.exponent
            renorm.p norm.p embedding_renorm.norm_type repeat_interleave.repeats""",
        ),
        (
            "s",
            """*.normalized_shape arange.start arange.end arange.step
            range.start range.end range.step
            linspace.steps logspace.steps histc.bins histogram.bins
            _histogramdd_bin_edges.bins _histogramdd_from_bin_cts.bins
            adaptive_max_pool2d.output_size adaptive_max_pool3d.output_size
            fractional_max_pool2d.output_size fractional_max_pool3d.output_size
            fractional_max_pool2d_backward.output_size
            fractional_max_pool3d_backward.output_size tril_indices.row
            tril_indices.col triu_indices.row triu_indices.col
            _ctc_loss.input_lengths _ctc_loss.target_lengths
            _ctc_loss_backward.input_lengths _ctc_loss_backward.target_lengths""",
        ),
        (
            "v",
            """tril.diagonal triu.diagonal tril_indices.offset triu_indices.offset
            kthvalue.k random.from random.to _philox_randint.low _philox_randint.high
            nonzero_static.fill_value histc.min histc.max""",
        ),
        (
            "b",
            """*.alpha *.beta *.value *.threshold *.correction native_dropout.p
            bernoulli.p *.weight_decay *.momentum *.dampening""",
        ),
    ]
    for entry in entries.split()
    for op, _, argument in [entry.rpartition(".")]
}

# In-place and out= overloads whose inference is not that of a functional overload:
# the rule is found under their own name and sees all their arguments.
OWN_RULE = """
arange.start_out eye.out eye.m_out linspace.out logspace.out range.out
randperm.generator_out tril_indices.out triu_indices.out
normal_ uniform_ exponential_ geometric_ cauchy_ log_normal_ random_ random_.to
random_.from bernoulli_.float bernoulli_.Tensor
""".split()

# The functional overload whose inference applies where names and arguments don't
# tell it.
FUNCTIONAL = {
    "fill_.Scalar": "fill.Scalar",
    "fill_.Tensor": "fill.Tensor",
    "index_fill_.int_Scalar": "index_fill.int_Scalar",
    "index_fill_.int_Tensor": "index_fill.int_Tensor",
    "__ilshift__.Scalar": "__lshift__.Scalar",
    "__ilshift__.Tensor": "__lshift__.Tensor",
    "__irshift__.Scalar": "__rshift__.Scalar",
    "__irshift__.Tensor": "__rshift__.Tensor",
    "_native_batch_norm_legit.out": "_native_batch_norm_legit",
    "_batch_norm_with_update.out": "_batch_norm_with_update",
    "adaptive_avg_pool3d_backward.grad_input": "_adaptive_avg_pool3d_backward",
}


@dataclass(frozen=True)
class Row:
    """One overload: its handling and, for `whole`, how to record and infer it."""

    name: str
    handling: str
    third: str = ""  # whole, dynamic: the functional overload; refuse: the reason
    classes: str = ""


@dataclass(frozen=True)
class Facts:
    """What the dispatcher knows of one overload."""

    name: str
    schema: torch._C.FunctionSchema
    backend: bool  # a kernel for CPU or CUDA
    other_backend: bool  # only a kernel for a layout or device we never have
    composite: str  # "implicit", "explicit", "nonfunctional" or ""
    tags: frozenset[str]

    @property
    def base(self) -> str:
        return self.name.partition(".")[0]

    def returns_view(self) -> bool:
        return any(
            r.alias_info is not None and not r.alias_info.is_write
            for r in self.schema.returns
        )

    def returns_tensors(self) -> bool:
        return all("Tensor" in str(r.type) for r in self.schema.returns)


def facts() -> dict[str, Facts]:
    """All aten overloads of the installed torch, by name without "aten::"."""
    has = _C._dispatch_has_kernel_for_dispatch_key
    found = {}
    registered = set(_C._dispatch_get_all_op_names())
    for schema in _C._jit_get_all_schemas():
        full = schema.name + ("." + schema.overload_name).rstrip(".")
        if not full.startswith("aten::") or full not in registered:
            continue
        name = full.removeprefix("aten::")
        overload = getattr(
            getattr(torch.ops.aten, schema.name[6:]), schema.overload_name or "default"
        )
        composite = ""
        for alias, key in [
            ("implicit", "CompositeImplicitAutograd"),
            ("explicit", "CompositeExplicitAutograd"),
            ("nonfunctional", "CompositeExplicitAutogradNonFunctional"),
        ]:
            if has(full, key):
                composite = alias
        found[name] = Facts(
            name=name,
            schema=schema,
            backend=has(full, "CPU") or has(full, "CUDA"),
            other_backend=not any(has(full, k) for k in ("CPU", "CUDA", "Meta")),
            composite=composite,
            tags=frozenset(str(t).rpartition(".")[2] for t in overload.tags),
        )
    return found


def refusal(name: str) -> str | None:
    for pattern, reason in REFUSE:
        if fnmatch.fnmatchcase(name, pattern):
            return reason
    return None


def handling(f: Facts) -> tuple[str, str]:
    """The handling of an overload and, for `refuse`, the reason."""
    if f.name in HAND:
        return "hand", ""
    if any(fnmatch.fnmatchcase(f.name, p) for p in DYNAMIC) and (
        "generated" not in f.tags
    ):
        return "dynamic", ""
    if f.name in FACTORIES:
        return "decompose", ""
    if "inplace_view" in f.tags:
        return "inplace_view", ""
    if f.composite == "implicit" and f.name not in WHOLE_COMPOSITE:
        # Their kernels call other overloads, whose refusal is the better message.
        return ("view" if f.returns_view() else "decompose"), ""
    reason = refusal(f.name)
    if reason is not None and not (f.composite and "generated" in f.tags):
        return "refuse", reason
    if f.returns_view():
        return "view", ""
    if f.name in WHOLE_COMPOSITE:
        return "whole", ""
    if f.base.startswith(("_foreach_", "_fused_")) and "generated" not in f.tags:
        return "whole", ""
    if "view_copy" in f.tags or f.name in DECOMPOSE:
        return "decompose", ""
    if f.composite == "explicit":
        return "decompose", ""
    if not f.backend:
        if f.composite:
            return "decompose", ""
        return "refuse", "PyTorch has no kernel for it that a worker could run"
    if not f.returns_tensors():
        return "refuse", "it returns a value that only the worker knows"
    return "whole", ""


def argument_class(op: str, argument: torch._C.Argument) -> str:
    """One letter for one argument; '-' where there is nothing to choose."""
    kind = str(argument.real_type.str()).rstrip("[]?")  # type: ignore[attr-defined]
    default = {"SymInt": "s", "int": "l", "float": "v", "Scalar": "v"}.get(kind)
    if default is None:
        return "-"
    base = op.partition(".")[0].rstrip("_")
    letter = CLASS.get((base, argument.name)) or CLASS.get(("*", argument.name))
    return letter or default


def signature(schema: torch._C.FunctionSchema) -> tuple[tuple[str, str], ...]:
    """Names and types of the arguments that are not out= arguments."""
    return tuple(
        (a.name, str(a.type))
        for a in schema.arguments
        if not (a.is_out or (a.alias_info and a.alias_info.is_write and a.kwarg_only))
    )


def functional_of(f: Facts, known: dict[str, Facts]) -> str:
    """The functional overload that has the inference of this one, or ""."""
    if f.name in OWN_RULE:
        return f.name
    if f.name in FUNCTIONAL:
        return FUNCTIONAL[f.name]
    writes = any(a.alias_info and a.alias_info.is_write for a in f.schema.arguments)
    if not writes:
        return f.name
    if any(r.alias_info is None for r in f.schema.returns):
        return ""
    base = f.base[:-1] if f.base.endswith("_") and f.base[:2] != "__" else f.base
    wanted = signature(f.schema)
    for other in by_base(frozenset(known)).get(base, ()):
        g = known[other]
        marked = any(a.alias_info is not None for a in g.schema.arguments)
        generated = "generated" in g.tags  # a clone and the in-place overload
        if not marked and not generated and signature(g.schema) == wanted:
            return other
    return ""


@functools.lru_cache(maxsize=1)
def by_base(names: frozenset[str]) -> dict[str, list[str]]:
    bases: dict[str, list[str]] = {}
    for name in sorted(names):
        bases.setdefault(name.partition(".")[0], []).append(name)
    return bases


def rows() -> list[Row]:
    """The whole table for the installed torch, sorted by name."""
    known = facts()
    table = []
    for name in sorted(known):
        f = known[name]
        how, reason = handling(f)
        if how in ("whole", "dynamic"):
            classes = "".join(argument_class(name, a) for a in f.schema.arguments)
            table.append(Row(name, how, functional_of(f, known), classes))
        else:
            table.append(Row(name, how, reason))
    return table


HEAD = """\
// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Code generated by gen_optable.py from torch {version}. DO NOT EDIT.
// One row is one overload.
//   MYC_WHOLE(name, functional, classes)
//       Recorded as it is. functional: the overload under whose name its results are
//       inferred ("": nothing to infer, or a rule of its own for its fresh results). If
//       it is the overload itself, the rule sees all arguments, out= ones too.
//       classes: a letter per argument, l literal, s size, v value, b literal when 0 or
//       1, else value; - for what has no choice (tensors, booleans, dtypes, strings).
//   MYC_DYNAMIC(name, functional, classes)
//       The same, but only the worker knows the shapes of its results.
//   MYC_REFUSE(name, reason)
//       An error.
//   MYC_LEFT(handling, names)
//       This table registers nothing for them.
"""

LEFT = ("hand", "decompose", "inplace_view", "view")


def render(table: list[Row]) -> str:
    lines = [HEAD.format(version=torch.__version__.partition("+")[0])]
    for row in table:
        if row.handling in ("whole", "dynamic"):
            macro = f"MYC_{row.handling.upper()}"
            lines.append(f'{macro}("{row.name}", "{row.third}", "{row.classes}")\n')
        elif row.handling == "refuse":
            lines.append(f'MYC_REFUSE("{row.name}", "{row.third}")\n')
    lines.append("#ifdef MYC_LEFT\n")
    for how in LEFT:
        lines.append(f'MYC_LEFT("{how}",\n')
        line = "        "
        for name in (row.name for row in table if row.handling == how):
            if len(line) + len(name) + 3 > 116:
                lines.append(f'{line[:8]}"{line[8:]}"\n')
                line = "        "
            line += name + " "
        lines.append(f'{line[:8]}"{line[8:].rstrip()}")\n')
    lines.append("#endif  // MYC_LEFT\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(render(rows()))
