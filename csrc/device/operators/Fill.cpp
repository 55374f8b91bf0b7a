// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include <ATen/core/Tensor.h>

#include "device/record/Special.h"

namespace mycelya {

bool FillWithTensor(Arguments args) {
  if (!args[1].toTensor().is_cpu()) return false;
  args[0].toTensor().fill_(args[1].toTensor().item());
  return true;
}

void CheckFill(Arguments args) {
  if (!args.back().isScalar()) return;
  const c10::Scalar value = args.back().toScalar();
  switch (args[0].toTensor().scalar_type()) {
#define MYC_FITS(type, name) \
  case at::ScalarType::name: \
    value.to<type>();        \
    break;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_EXCEPT_COMPLEX_HALF_F8NZ(MYC_FITS)
#undef MYC_FITS
    default:
      break;
  }
}

}  // namespace mycelya
