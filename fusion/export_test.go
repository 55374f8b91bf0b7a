// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

// Unguarded is Find with a reason against merging that does not count.
var Unguarded = find
