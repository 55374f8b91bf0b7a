// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package local

import "strings"

// passed lists the variables that a worker inherits: paths, the language of messages, and the settings of numeric
// libraries. The worker gets no other variable, so no tokens. A name that ends in "*" is a prefix.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*", "XDG_CACHE_HOME",
	"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH",
	"OMP_*", "GOMP_*", "KMP_*", "MKL_*", "DNNL_*", "ONEDNN_*", "OPENBLAS_*", "VECLIB_*", "MALLOC_*",
	"TORCH_*", "PYTORCH_*", "ATEN_*",
	"CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*",
	"GOMAXPROCS", "GOMEMLIMIT", "GODEBUG", "GOTRACEBACK",
}

func environment(all []string) []string {
	var out []string
	for _, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		for _, p := range passed {
			prefix, many := strings.CutSuffix(p, "*")
			if name == p || many && strings.HasPrefix(name, prefix) {
				out = append(out, kv)
				break
			}
		}
	}
	return out
}
