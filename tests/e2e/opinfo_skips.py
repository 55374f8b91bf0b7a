# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What the op database suite leaves out or compares less of, each with its reason."""

from __future__ import annotations

import re

OUT_OF_BOUNDS = (
    "CPU PyTorch 2.15 itself writes outside of an out= of four or more dimensions "
    "that is not contiguous (tril and triu, which the others call)"
)

FLASH = "torch_ops_aten__scaled_dot_product_flash_attention_for_cpu"
UNCHECKED_STRIDES = (
    "CPU PyTorch 2.15 itself takes the last dimension for dense, without a check, and "
    "reads outside of the operands"
)

ENDS = "CPU PyTorch 2.15 itself ends the process"
UNWRITTEN = "CPU PyTorch 2.15 itself gives memory as it was found"
UNCHECKED_OFFSETS = (
    "CPU PyTorch 2.15 itself does not check offsets and lengths against the data, and "
    "reads outside of it"
)
UNCHECKED_DIMS = (
    "CPU PyTorch 2.15 itself takes an operand without dimensions, and ends with an "
    "error of its own insides"
)
SHARED_STATISTICS = (
    "what running statistics of which all elements share one place hold afterwards is "
    "not defined"
)
TIES = (
    "which of equal elements counts for the index and the gradient is not defined, and "
    "the CPU takes another where the operand lies otherwise in memory"
)
ILL_CONDITIONED = "the condition of such a matrix is beyond the dtype"
DEGENERATE = "of a matrix of rank one the result is not defined"

# (op by OpInfo.formatted_name, category, form). An empty category or form means all.
SKIPPED: dict[tuple[str, str, str], str] = {
    (FLASH, "noncontiguous", "stepped"): UNCHECKED_STRIDES,
    (FLASH, "noncontiguous", "reversed"): UNCHECKED_STRIDES,
    (FLASH, "noncontiguous", "channels last"): UNCHECKED_STRIDES,
    ("lu", "out", "on the CPU"): (
        "torch.lu copies into out= in Python, and from CUDA it copies to the CPU too"
    ),
    ("nn_functional_pdist", "shapes", "no rows"): ENDS,
    ("native_batch_norm", "shapes", "no rows"): ENDS,
    ("native_batch_norm", "shapes", "no columns"): ENDS,
    ("_native_batch_norm_legit", "shapes", "no rows"): ENDS,
    ("_native_batch_norm_legit", "shapes", "no columns"): ENDS,
    ("nn_functional_multi_margin_loss", "shapes", "no rows"): UNWRITTEN,
    ("nn_functional_multilabel_margin_loss", "shapes", "no rows"): UNWRITTEN,
    ("_segment_reduce_offsets", "shapes", "no rows"): UNCHECKED_OFFSETS,
    ("_segment_reduce_offsets", "shapes", "one row"): UNCHECKED_OFFSETS,
    ("_segment_reduce_lengths", "shapes", "one row"): UNCHECKED_OFFSETS,
    ("native_batch_norm", "shapes", "expanded"): SHARED_STATISTICS,
    ("_native_batch_norm_legit", "shapes", "expanded"): SHARED_STATISTICS,
    ("native_batch_norm", "shapes", "one number"): UNCHECKED_DIMS,
    ("_native_batch_norm_legit", "shapes", "one number"): UNCHECKED_DIMS,
    ("repeat_interleave", "shapes", "no rows"): (
        "an output_size that is not the sum of the repeats is believed on CUDA and on "
        "this device, and not looked at on the CPU"
    ),
    ("quantile", "shapes", "expanded"): TIES,
    ("nanquantile", "shapes", "expanded"): TIES,
    ("pca_lowrank", "shapes", "expanded"): DEGENERATE,
    ("svd_lowrank", "shapes", "expanded"): DEGENERATE,
    ("linalg_ldl_solve", "shapes", "expanded"): DEGENERATE,
    ("linalg_solve_triangular", "shapes", "expanded"): ILL_CONDITIONED,
    ("linalg_householder_product", "shapes", "expanded"): ILL_CONDITIONED,
    ("index_fill", "shapes", "one number"): (
        "its indices are out of bounds, which is found at the read, and the gradient "
        "of so many of one number is refused before"
    ),
    ("median", "shapes", "expanded"): TIES,
    ("nanmedian", "shapes", "expanded"): TIES,
    ("masked_median", "shapes", "expanded"): TIES,
    ("_native_batch_norm_legit", "out", "strided"): (
        "where out= is not contiguous the CPU's kernel for short floats rounds in "
        "between and is less exact"
    ),
    ("nn_functional_linear_cross_entropy_chunked_none", "noncontiguous", "negative"): (
        "CPU PyTorch 2.15's own gradients of float16 operands with the negative bit "
        "are not those of the same operands without it"
    ),
    ("tril", "out", "strided"): OUT_OF_BOUNDS,
    ("triu", "out", "strided"): OUT_OF_BOUNDS,
    ("lu_unpack", "out", "strided"): OUT_OF_BOUNDS,
    ("linalg_lu", "out", "strided"): OUT_OF_BOUNDS,
}

GROWN = "what resizing adds is memory as it was found"

# (op, category): results that are memory as it was found, beside those of which the
# database says so. Metadata is compared, values are not.
UNINITIALISED: dict[tuple[str, str], str] = {
    ("resize_", "shapes"): GROWN,
    ("resize_as_", "shapes"): GROWN,
}


def skip_reason(op: str, category: str, form: str = "") -> str | None:
    """Why a category of an op, or a form of it, is left out; None if it isn't."""
    for key in ((op, "", ""), (op, category, ""), (op, category, form)):
        if key in SKIPPED:
            return SKIPPED[key]
    return None


# Ops whose tensors but the first are on the CPU, whatever the device.
ON_THE_CPU = {
    "tensor_split": "PyTorch raises on CUDA unless the indices are on the CPU"
}

CPU_ALONE = (
    "the CPU alone has a kernel of its own; CUDA and this device run PyTorch's "
    "composite one"
)

LEFT_ALONE = (
    "of float16 the CPU leaves a statistic that it does not compute as it was given; "
    "of other dtypes, and here, it has no elements"
)

# (op, category): (what the difference begins with, why the device is right).
DIFFERENCES: dict[tuple[str, str], tuple[str, str]] = {
    ("nn_functional_pixel_shuffle", "noncontiguous"): (
        r"result( 0)?: strides",
        CPU_ALONE,
    ),
    ("nn_functional_pixel_unshuffle", "noncontiguous"): (
        r"result( 0)?: strides",
        CPU_ALONE,
    ),
    ("nn_functional_pixel_shuffle", "shapes"): (
        r"raised nothing; expected RuntimeError: Function PixelShuffleBackward0",
        CPU_ALONE,
    ),
    ("nn_functional_pixel_unshuffle", "shapes"): (
        r"raised nothing; expected RuntimeError: pixel_shuffle expects"
        r"|result( 0)?: shape",
        CPU_ALONE,
    ),
    ("nn_functional_channel_shuffle", "shapes"): (
        r"result( 0)? shares memory with nothing before it; on the CPU it shares",
        CPU_ALONE,
    ),
    ("native_batch_norm", "out"): (
        r"result [12]: shape \(0,\) instead of",
        LEFT_ALONE,
    ),
    ("_native_batch_norm_legit", "out"): (
        r"result [12]: shape \(0,\) instead of",
        LEFT_ALONE,
    ),
    ("add", "out"): (
        r"raised RuntimeError: Boolean alpha only supported for Boolean results",
        "the CPU computes aside, in the dtype of the operands, what out= gets; CUDA "
        "and this device do not, and the check of alpha sees the dtype of out=",
    ),
    ("narrow_copy", "errors"): (
        r"raised IndexError.*; expected RuntimeError: Expected dim",
        CPU_ALONE,
    ),
}


def is_known_difference(op: str, category: str, text: str) -> bool:
    """Whether a failure is one of those in which the device follows CUDA."""
    known = DIFFERENCES.get((op, category))
    return known is not None and re.match(known[0], text) is not None
