// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program

import (
	"fmt"
	"math"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// String lists a program that Validate accepts: the buffers that exist at the start and at the end, a line per step,
// and the kernels. Parameters are p0, p1, …, buffers b0, b1, …. A window is b3:f32[p0,4]{1,p0}+p2, with strides and
// offset only where they are not the default.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d parameters\ninputs %s\n%soutputs %s\n", p.Params, buffers(p.Inputs), p.StepsText(),
		buffers(p.Outputs))
	for i, k := range p.Kernels {
		fmt.Fprintf(&b, "\n%d: %s", i, k)
	}
	return b.String()
}

func buffers(list []uint32) string {
	s := make([]string, len(list))
	for i, b := range list {
		s[i] = fmt.Sprintf("b%d", b)
	}
	return strings.Join(s, ", ")
}

// StepsText has the lines of the steps, each with its number.
func (p *Program) StepsText() string {
	var b strings.Builder
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "%4d  %s\n", i, p.stepText(s))
	}
	return b.String()
}

func (p *Program) stepText(s Step) string {
	switch k := s.(type) {
	case *Call:
		var results, args []string
		for _, r := range k.Results {
			if r == 0 {
				results = append(results, "_")
			} else {
				results = append(results, p.window(r-1))
			}
		}
		for i := range k.Args {
			args = append(args, p.argText(&k.Args[i]))
		}
		line := k.Op + "(" + strings.Join(args, ", ") + ")"
		if len(results) > 0 {
			line = strings.Join(results, ", ") + " = " + line
		}
		if k.Flags&catalogue.RecordRNG != 0 {
			line += " !rng"
		}
		if k.Flags&catalogue.RecordEffect != 0 {
			line += " !effect"
		}
		if k.Flags&catalogue.RecordDynamic != 0 {
			line += " !dynamic"
		}
		return line
	case *Copy:
		return "copy " + p.window(k.Dst) + " = " + p.window(k.Src)
	case *Alloc:
		return fmt.Sprintf("alloc b%d, %s bytes", k.Buffer, k.Bytes)
	case *Clone:
		return fmt.Sprintf("clone b%d = b%d", k.To, k.From)
	case *Free:
		return fmt.Sprintf("free b%d", k.Buffer)
	case *Fused:
		return fmt.Sprintf("fused: the next %d steps, or the %d after them", k.Kernels, k.Plain)
	case *Kernel:
		var at []string
		for i := range k.Instances {
			at = append(at, p.instanceText(k.Kernel, &k.Instances[i]))
		}
		return fmt.Sprintf("kernel %d %s", k.Kernel, strings.Join(at, "; "))
	case *Resize:
		return fmt.Sprintf("resize b%d, %s bytes", k.Buffer, k.Bytes)
	}
	return "?"
}

// instanceText describes one instance of a kernel: its writes, its reads, its numbers and its index space.
func (p *Program) instanceText(number uint32, at *Instance) string {
	var writes, reads []string
	for i, u := range at.Uses {
		if p.Kernels[number].Operands[i].Access&kernel.Write != 0 {
			writes = append(writes, p.window(u.Tensor))
		} else {
			reads = append(reads, p.window(u.Tensor))
		}
	}
	for i := range at.Numbers {
		reads = append(reads, p.argText(&at.Numbers[i]))
	}
	return fmt.Sprintf("%s = (%s) over [%s]", strings.Join(writes, ", "), strings.Join(reads, ", "), dimsText(at.Sizes))
}

func dimsText(dims []Dim) string {
	s := make([]string, len(dims))
	for i, d := range dims {
		s[i] = d.String()
	}
	return strings.Join(s, ",")
}

func (p *Program) window(i uint32) string {
	t := &p.Tensors[i]
	s := fmt.Sprintf("b%d:%s[%s]", t.Buffer, dtypeName(t.DType), dimsText(t.Sizes))
	if t.Strides != nil {
		s += "{" + dimsText(t.Strides) + "}"
	}
	if t.Offset != 0 {
		s += "+" + t.Offset.String()
	}
	return s
}

func (p *Program) argText(a *Arg) string {
	switch a.Tag {
	case catalogue.TagNone:
		return "none"
	case catalogue.TagTensor:
		return p.window(uint32(a.Value))
	case catalogue.TagNumber:
		return fmt.Sprintf("number p%d", a.Value)
	case catalogue.TagScalar:
		return fmt.Sprintf("scalar %s p%d", dtypeName(a.Head), a.Value)
	case catalogue.TagSize:
		return fmt.Sprintf("p%d", a.Value)
	case catalogue.TagInt:
		return fmt.Sprint(int64(a.Value))
	case catalogue.TagFloat:
		return fmt.Sprintf("%g", math.Float64frombits(a.Value))
	case catalogue.TagBool:
		return fmt.Sprint(a.Value != 0)
	case catalogue.TagDType:
		return dtypeName(uint8(a.Value))
	case catalogue.TagLayout:
		return fmt.Sprintf("layout %d", a.Value)
	case catalogue.TagDevice:
		return "device"
	case catalogue.TagMemFmt:
		return fmt.Sprintf("format %d", a.Value)
	case catalogue.TagStr:
		return fmt.Sprintf("%q", a.Text)
	case catalogue.TagGen:
		return fmt.Sprintf("generator p%d", a.Value)
	case catalogue.TagList:
		s := make([]string, len(a.Items))
		for i := range a.Items {
			s[i] = p.argText(&a.Items[i])
		}
		return "[" + strings.Join(s, ", ") + "]"
	}
	return "?"
}

func dtypeName(d uint8) string { return catalogue.DTypeOf(uint64(d)).Name }
