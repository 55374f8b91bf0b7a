// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package graphs

// Twice computes one value twice.
const Twice = `graph f.py:1 read {
  %0: f32[2]             = input 0
  %1: f32[2]             = relu %0
  %2: f32[2]             = relu %0
  %3: f32[2]             = add %1 %2
  output %3 -> s1
}
`

// Once is the result of cse and dce on Twice.
const Once = `graph f.py:1 read {
  %0: f32[2]             = input 0
  %1: f32[2]             = relu %0
  %2: f32[2]             = add %1 %1
  output %2 -> s1
}
`
