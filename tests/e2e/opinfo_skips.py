# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The cases that the op database suite skips or compares in part, with reasons."""

from __future__ import annotations

import re

OUT_OF_BOUNDS = (
    "CPU PyTorch 2.15 writes out of bounds if out= has four or more dims and is not "
    "contiguous (in tril and triu, which the others call)"
)

FLASH = "torch_ops_aten__scaled_dot_product_flash_attention_for_cpu"
UNCHECKED_STRIDES = (
    "CPU PyTorch 2.15 assumes without a check that the last dim is dense, and reads "
    "out of bounds"
)

ENDS = "CPU PyTorch 2.15 ends the process"
UNWRITTEN = "CPU PyTorch 2.15 returns uninitialized memory"
UNCHECKED_OFFSETS = (
    "CPU PyTorch 2.15 does not check offsets and lengths against the data, and reads "
    "out of bounds"
)
UNCHECKED_DIMS = (
    "CPU PyTorch 2.15 accepts an operand without dims, and fails with an internal error"
)
SHARED_STATISTICS = (
    "all elements of the running statistics share one address, so their values "
    "afterwards are not defined"
)
TIES = (
    "it is not defined which of several equal elements gets the index and the "
    "gradient, and the CPU's choice depends on the layout"
)
ILL_CONDITIONED = "the matrix is too ill-conditioned for the dtype"
DEGENERATE = "the result is not defined for a matrix of rank one"

# (op by OpInfo.formatted_name, category, form). An empty category or form means all.
SKIPPED: dict[tuple[str, str, str], str] = {
    (FLASH, "noncontiguous", "stepped"): UNCHECKED_STRIDES,
    (FLASH, "noncontiguous", "reversed"): UNCHECKED_STRIDES,
    (FLASH, "noncontiguous", "channels last"): UNCHECKED_STRIDES,
    ("lu", "out", "on the CPU"): (
        "torch.lu copies into out= in Python, so out= on the CPU works for CUDA too"
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
        "CUDA and this device trust an output_size that is not the sum of the "
        "repeats; the CPU ignores it"
    ),
    ("quantile", "shapes", "expanded"): TIES,
    ("nanquantile", "shapes", "expanded"): TIES,
    ("pca_lowrank", "shapes", "expanded"): DEGENERATE,
    ("svd_lowrank", "shapes", "expanded"): DEGENERATE,
    ("linalg_ldl_solve", "shapes", "expanded"): DEGENERATE,
    ("linalg_solve_triangular", "shapes", "expanded"): ILL_CONDITIONED,
    ("linalg_householder_product", "shapes", "expanded"): ILL_CONDITIONED,
    ("index_fill", "shapes", "one number"): (
        "the indices are out of bounds, which is found at the read, but the gradient "
        "raises another error before"
    ),
    ("median", "shapes", "expanded"): TIES,
    ("nanmedian", "shapes", "expanded"): TIES,
    ("masked_median", "shapes", "expanded"): TIES,
    ("_native_batch_norm_legit", "out", "strided"): (
        "if out= is not contiguous, the CPU's kernel for 16-bit floats rounds "
        "intermediate results and is less exact"
    ),
    ("nn_functional_linear_cross_entropy_chunked_none", "noncontiguous", "negative"): (
        "CPU PyTorch 2.15 gives float16 operands with the negative bit other gradients "
        "than the same operands without it"
    ),
    ("tril", "out", "strided"): OUT_OF_BOUNDS,
    ("triu", "out", "strided"): OUT_OF_BOUNDS,
    ("lu_unpack", "out", "strided"): OUT_OF_BOUNDS,
    ("linalg_lu", "out", "strided"): OUT_OF_BOUNDS,
}

GROWN = "the elements that resizing adds are uninitialized"

# (op, category) of uninitialized results that the database does not declare. Only
# their metadata is compared.
UNINITIALISED: dict[tuple[str, str], str] = {
    ("resize_", "shapes"): GROWN,
    ("resize_as_", "shapes"): GROWN,
}


def skip_reason(op: str, category: str, form: str = "") -> str | None:
    """Why a category of an op, or a form of it, is skipped; None if it is not."""
    for key in ((op, "", ""), (op, category, ""), (op, category, form)):
        if key in SKIPPED:
            return SKIPPED[key]
    return None


# Ops whose tensor operands, except the first, are always on the CPU.
ON_THE_CPU = {
    "tensor_split": "PyTorch raises on CUDA unless the indices are on the CPU"
}

CPU_ALONE = (
    "only the CPU has its own kernel; CUDA and this device run PyTorch's composite "
    "implementation"
)

LEFT_ALONE = (
    "for float16 the CPU does not change a statistic that it does not compute; for "
    "other dtypes, and on this device, that statistic has no elements"
)

# (op, category): (a pattern that matches the difference, why the device is right).
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
        "the CPU computes in the operands' dtype and then copies to out=; CUDA and "
        "this device do not, so the check of alpha sees the dtype of out=",
    ),
    ("narrow_copy", "errors"): (
        r"raised IndexError.*; expected RuntimeError: Expected dim",
        CPU_ALONE,
    ),
}


def is_known_difference(op: str, category: str, text: str) -> bool:
    """Whether a failure is a known difference, in which the device follows CUDA."""
    known = DIFFERENCES.get((op, category))
    return known is not None and re.match(known[0], text) is not None
