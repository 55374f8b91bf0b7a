// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/proto"
)

// Text lists a program: its parameters, the buffers it takes over, a line per step, and its outputs. Parameters are p0,
// p1, …, buffers b0, b1, …. A window is b3:f32[p0,4]{1,p0}+p2, with strides and offset only where they are not the
// default.
func (c *Compiled) Text() string {
	var b strings.Builder
	for i, s := range c.Slots {
		fmt.Fprintf(&b, "p%d = word %d\n", i, s)
	}
	for i, d := range c.Derived {
		fmt.Fprintf(&b, "p%d = %s\n", len(c.Slots)+i, d)
	}
	for i, s := range c.Inputs {
		fmt.Fprintf(&b, "b%d = storage %d\n", c.Program.Inputs[i], s)
	}
	for i, s := range c.Program.Steps {
		fmt.Fprintf(&b, "%4d  %s\n", i, c.StepText(s))
	}
	for i, s := range c.Outputs {
		fmt.Fprintf(&b, "storage %d = b%d\n", s, c.Program.Outputs[i])
	}
	return b.String()
}

// StepText returns the line of one step.
func (c *Compiled) StepText(s *proto.Step) string {
	switch k := s.Kind.(type) {
	case *proto.Step_Call:
		var results, args []string
		for _, r := range k.Call.Results {
			if r == 0 {
				results = append(results, "_")
			} else {
				results = append(results, c.window(r-1))
			}
		}
		for _, a := range k.Call.Args {
			args = append(args, c.argText(a))
		}
		line := k.Call.Op + "(" + strings.Join(args, ", ") + ")"
		if len(results) > 0 {
			line = strings.Join(results, ", ") + " = " + line
		}
		if k.Call.Flags&catalogue.RecordRNG != 0 {
			line += " !rng"
		}
		if k.Call.Flags&catalogue.RecordEffect != 0 {
			line += " !effect"
		}
		if k.Call.Flags&catalogue.RecordDynamic != 0 {
			line += " !dynamic"
		}
		return line
	case *proto.Step_Copy:
		return "copy " + c.window(k.Copy.Dst) + " = " + c.window(k.Copy.Src)
	case *proto.Step_Alloc:
		return fmt.Sprintf("alloc b%d, %s bytes", k.Alloc.Buffer, DimText(k.Alloc.Bytes))
	case *proto.Step_Clone:
		return fmt.Sprintf("clone b%d = b%d", k.Clone.To, k.Clone.From)
	case *proto.Step_Free:
		return fmt.Sprintf("free b%d", k.Free.Buffer)
	case *proto.Step_Fused:
		return fmt.Sprintf("fused: the next %d steps, or the %d after them", k.Fused.Kernels, k.Fused.Plain)
	case *proto.Step_Kernel:
		var at []string
		for _, one := range k.Kernel.Instances {
			at = append(at, c.instanceText(k.Kernel.Kernel, one))
		}
		return fmt.Sprintf("kernel %d %s", k.Kernel.Kernel, strings.Join(at, "; "))
	case *proto.Step_Resize:
		return fmt.Sprintf("resize b%d, %s bytes", k.Resize.Buffer, DimText(k.Resize.Bytes))
	}
	return "?"
}

// instanceText describes one instance of a kernel: its writes, its reads, its numbers and its index space.
func (c *Compiled) instanceText(number uint32, at *proto.KernelOp_Instance) string {
	var writes, reads []string
	for i, t := range at.Tensors {
		if c.Program.Kernels[number].Operands[i].Access&uint32(kernel.Write) != 0 {
			writes = append(writes, c.window(t/2))
		} else {
			reads = append(reads, c.window(t/2))
		}
	}
	for _, a := range at.Numbers {
		reads = append(reads, c.argText(a))
	}
	return fmt.Sprintf("%s = (%s) over [%s]", strings.Join(writes, ", "), strings.Join(reads, ", "), dimsText(at.Sizes))
}

// DimText returns a program's dim: a number, or a parameter as "p3".
func DimText(d *proto.Dim) string {
	if p, ok := d.GetKind().(*proto.Dim_Param); ok {
		return fmt.Sprintf("p%d", p.Param)
	}
	return fmt.Sprint(d.GetConst())
}

func dimsText(dims []*proto.Dim) string {
	s := make([]string, len(dims))
	for i, d := range dims {
		s[i] = DimText(d)
	}
	return strings.Join(s, ",")
}

func (c *Compiled) window(i uint32) string {
	t := c.Program.Tensors[i]
	s := fmt.Sprintf("b%d:%s[%s]", t.Buffer, ir.DType(t.Dtype), dimsText(t.Sizes))
	if !t.Contiguous {
		s += "{" + dimsText(t.Strides) + "}"
	}
	if t.Offset != nil {
		s += "+" + DimText(t.Offset)
	}
	return s
}

func (c *Compiled) argText(a *proto.Arg) string {
	switch k := a.Kind.(type) {
	case *proto.Arg_None:
		return "none"
	case *proto.Arg_Tensor:
		return c.window(k.Tensor)
	case *proto.Arg_Number_:
		return fmt.Sprintf("number p%d", k.Number.Param)
	case *proto.Arg_Scalar_:
		return fmt.Sprintf("scalar %s p%d", ir.DType(k.Scalar.Dtype), k.Scalar.Param)
	case *proto.Arg_Size:
		return fmt.Sprintf("p%d", k.Size)
	case *proto.Arg_Int:
		return fmt.Sprint(k.Int)
	case *proto.Arg_Float:
		return fmt.Sprintf("%g", k.Float)
	case *proto.Arg_Bool:
		return fmt.Sprint(k.Bool)
	case *proto.Arg_Dtype:
		return ir.DType(k.Dtype).String()
	case *proto.Arg_Layout:
		return fmt.Sprintf("layout %d", k.Layout)
	case *proto.Arg_Device:
		return "device"
	case *proto.Arg_MemoryFormat:
		return fmt.Sprintf("format %d", k.MemoryFormat)
	case *proto.Arg_Str:
		return fmt.Sprintf("%q", k.Str)
	case *proto.Arg_Generator:
		return fmt.Sprintf("generator p%d", k.Generator)
	case *proto.Arg_List_:
		s := make([]string, len(k.List.Items))
		for i, item := range k.List.Items {
			s[i] = c.argText(item)
		}
		return "[" + strings.Join(s, ", ") + "]"
	}
	return "?"
}
