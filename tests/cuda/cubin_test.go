// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// resources are what an entry of a cubin needs: registers and bytes of stack per thread, with spilled registers on the
// stack, and bytes of static shared memory per block.
type resources struct{ registers, stack, shared int }

// Attributes of .nv.info sections, as cuobjdump names them, and the forms of their values.
const (
	regCount     = 0x2f
	frameSize    = 0x11
	minStackSize = 0x12
	noValue      = 1 // two bytes without a meaning follow
	byteValue    = 2 // the two bytes are the value
	halfValue    = 3
	sizedValue   = 4 // the two bytes are the size of the value, which follows
)

// readCubin returns the resources of the entries of a cubin.
func readCubin(cubin []byte) (map[string]resources, error) {
	f, err := elf.NewFile(bytes.NewReader(cubin))
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	out := map[string]resources{}
	for _, s := range f.Sections {
		if name, ok := strings.CutPrefix(s.Name, ".text."); ok {
			out[name] = resources{}
		}
	}
	found := map[string]bool{}
	for _, s := range f.Sections {
		if name, ok := strings.CutPrefix(s.Name, ".nv.shared."); ok {
			r, entry := out[name]
			if !entry {
				continue
			}
			r.shared = int(s.Size)
			out[name] = r
		}
		if s.Name != ".nv.info" {
			continue
		}
		data, err := s.Data()
		if err != nil {
			return nil, err
		}
		for len(data) >= 4 {
			form, attribute, size := data[0], data[1], int(binary.LittleEndian.Uint16(data[2:]))
			data = data[4:]
			switch form {
			case noValue, byteValue, halfValue:
				continue
			case sizedValue:
			default:
				return nil, fmt.Errorf("an attribute of form %d", form)
			}
			if size > len(data) {
				return nil, fmt.Errorf("attribute %#x is cut off", attribute)
			}
			value := data[:size]
			data = data[size:]
			if attribute != regCount && attribute != frameSize && attribute != minStackSize {
				continue
			}
			index, n := binary.LittleEndian.Uint32(value), int(binary.LittleEndian.Uint32(value[4:]))
			if index == 0 || int(index) > len(symbols) {
				return nil, fmt.Errorf("attribute %#x is of symbol %d of %d", attribute, index, len(symbols))
			}
			name := symbols[index-1].Name // package elf leaves out symbol 0
			r, entry := out[name]
			if !entry {
				continue
			}
			if attribute == regCount {
				r.registers = n
				found[name] = true
			} else {
				r.stack = max(r.stack, n)
			}
			out[name] = r
		}
	}
	for name := range out {
		if !found[name] {
			return nil, fmt.Errorf("no attribute has the number of registers of %s", name)
		}
	}
	return out, nil
}
