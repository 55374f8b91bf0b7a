// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"strconv"
	"strings"
)

// visible is a GPU that CUDA shows to this process: its number for the driver, or its UUID, or the UUID's beginning.
type visible struct {
	number int
	uuid   string // "": the number counts
}

// visibleGPUs reads CUDA_VISIBLE_DEVICES as PyTorch does: a GPU's place in the list is its number for CUDA. The numbers
// are those of the driver, as with CUDA_DEVICE_ORDER=PCI_BUS_ID. count is how many GPUs the driver has. What follows an
// entry that is not valid does not count, and parts of a GPU (MIG) are left out, because the driver tells little about
// them.
func visibleGPUs(set bool, value string, count int) (out []visible) {
	if !set {
		for i := range count {
			out = append(out, visible{number: i})
		}
		return out
	}
	for entry := range strings.SplitSeq(value, ",") {
		entry = strings.TrimSpace(entry)
		if strings.HasPrefix(entry, "GPU-") {
			out = append(out, visible{uuid: entry})
			continue
		}
		number, err := strconv.Atoi(entry)
		if err != nil || number < 0 || number >= count {
			break
		}
		out = append(out, visible{number: number})
	}
	return out
}
