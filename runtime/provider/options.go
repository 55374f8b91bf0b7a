// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package provider

import (
	"strconv"
	"strings"
	"time"
)

// Request is what a client asks of a provider.
type Request struct {
	Spec
	Attach bool // use a worker that another process has started
	// Beside is 1 + the index of a device: Device is another one of the same worker. 0: the device has its own worker.
	Beside int32
}

// Options are a machine's options as text: the options that all providers know, whose names begin with a dot here, and
// those of one provider. mycelya_torch/_providers.py makes them.
//
//	.gpu A100   .gpus 2   .lease 3600   .idle 600   .packages numpy,pillow==11   .detached yes   .attach yes
//	.beside 3
func (r *Request) Options(options map[string]string) error {
	for name, value := range options {
		common, ok := strings.CutPrefix(name, ".")
		if !ok {
			if r.Spec.Options == nil {
				r.Spec.Options = map[string]string{}
			}
			r.Spec.Options[name] = value
			continue
		}
		var err error
		switch common {
		case "gpu":
			r.GPU = value
		case "gpus":
			r.GPUs, err = strconv.Atoi(value)
		case "lease":
			r.Lease, err = seconds(value)
		case "idle":
			r.Idle, err = seconds(value)
		case "packages":
			r.Packages = strings.Split(value, ",")
		case "detached":
			r.Detached = true
		case "attach":
			r.Attach = true
		case "beside":
			var index uint64
			index, err = strconv.ParseUint(value, 10, 15)
			r.Beside = int32(index) + 1
		default:
			return Errorf(ErrInvalidSpec, "BUG: no provider knows the option %q.", name)
		}
		if err != nil {
			return Errorf(ErrInvalidSpec, "BUG: the option %q cannot be %q.", name, value)
		}
	}
	return nil
}

// seconds reads a whole number of seconds, of which a Duration has room for 292 years.
func seconds(text string) (time.Duration, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(n) * time.Second, err
}
