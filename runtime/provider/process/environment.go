// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package process

import "strings"

// Passed lists the variables that a worker inherits: paths, the language of messages, the settings of numeric
// libraries, and how servers are reached. The worker gets no other variable, so no tokens. A name that ends in "*" is a
// prefix.
func Passed() []string {
	return []string{
		"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*", "XDG_CACHE_HOME",
		"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH",
		"OMP_*", "GOMP_*", "KMP_*", "MKL_*", "DNNL_*", "ONEDNN_*", "OPENBLAS_*", "VECLIB_*", "MALLOC_*",
		"TORCH_*", "PYTORCH_*", "ATEN_*",
		"CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*",
		"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
		"GOMAXPROCS", "GOMEMLIMIT", "GODEBUG", "GOTRACEBACK", "MYCELYA_LIBRARIES", "MYCELYA_PEERS",
	}
}

// Environment returns those of the variables that a worker inherits.
func Environment(all []string) []string {
	passed := Passed()
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
