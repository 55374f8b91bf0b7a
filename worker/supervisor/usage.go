// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"strconv"
	"time"

	"github.com/mycelya/mycelya/worker/crash"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs"
)

// GPU is what the driver tells about a GPU. A number that it does not tell is -1.
type GPU struct {
	Device string // "cuda:0"
	// Percent of the time of the driver's last period in which a kernel ran, and in which memory was read or written.
	Utilization, MemoryUtilization float64
	Temperature                    float64            // of the die, in degrees Celsius
	Power                          float64            // in milliwatts
	Clock                          float64            // of the multiprocessors, in megahertz
	Memory                         map[uint32]float64 // bytes that processes use, by process number
}

// usageCollector collects what each process with a client has used, and what the driver tells about GPUs.
type usageCollector struct {
	s                        *Supervisor
	uptime, threads          *prometheus.Desc
	cpu, memory              *prometheus.Desc // by process
	utilization, memoryUse   *prometheus.Desc // by device, as the next ones
	temperature, power, rate *prometheus.Desc
	processMemory            *prometheus.Desc // by device and process
}

func newUsageCollector(s *Supervisor) *usageCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("mycelya_"+name, help, labels, nil)
	}
	return &usageCollector{s: s,
		uptime:        desc("uptime_seconds", "Time since the worker's start."),
		threads:       desc("threads", "Threads of one operator on the CPU, or the cores if that is not set."),
		cpu:           desc("process_cpu_seconds", "Processor time of a process with a client.", "pid"),
		memory:        desc("process_memory_bytes", "Memory of a process with a client.", "pid"),
		utilization:   desc("gpu_utilization_percent", "Percent of the time in which a kernel ran.", "device"),
		memoryUse:     desc("gpu_memory_utilization_percent", "Percent of the time in which memory was used.", "device"),
		temperature:   desc("gpu_temperature_celsius", "Temperature of the die.", "device"),
		power:         desc("gpu_power_milliwatts", "Power draw.", "device"),
		rate:          desc("gpu_clock_megahertz", "Clock of the multiprocessors.", "device"),
		processMemory: desc("gpu_process_memory_bytes", "Memory that a process uses.", "device", "pid"),
	}
}

// Describe implements prometheus.Collector.
func (c *usageCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.uptime, c.threads, c.cpu, c.memory, c.utilization, c.memoryUse, c.temperature,
		c.power, c.rate, c.processMemory} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *usageCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		if value >= 0 {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
		}
	}
	gauge(c.threads, float64(c.s.Threads))
	for _, p := range c.s.given() {
		pid := strconv.Itoa(p.cmd.Process.Pid)
		if stat, err := statOf(p); err == nil {
			gauge(c.memory, float64(stat.ResidentMemory()), pid)
			gauge(c.cpu, stat.CPUTime(), pid)
		}
	}
	gauge(c.uptime, time.Since(c.s.startedAt()).Seconds()) // near the time at which the processes were asked
	if c.s.GPUs == nil {
		return
	}
	for _, g := range c.s.GPUs() {
		gauge(c.utilization, g.Utilization, g.Device)
		gauge(c.memoryUse, g.MemoryUtilization, g.Device)
		gauge(c.temperature, g.Temperature, g.Device)
		gauge(c.power, g.Power, g.Device)
		gauge(c.rate, g.Clock, g.Device)
		for pid, bytes := range g.Memory {
			gauge(c.processMemory, bytes, g.Device, strconv.FormatUint(uint64(pid), 10))
		}
	}
}

// given returns the processes with a client.
func (s *Supervisor) given() (out []*process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.live {
		if p.given {
			out = append(out, p)
		}
	}
	return out
}

// startedAt is when the supervisor has begun.
func (s *Supervisor) startedAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// statOf asks the system about a process; an error if it has ended, or the system has no /proc.
func statOf(p *process) (procfs.ProcStat, error) {
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return proc.Stat()
}

// usage is what the processes with a client have used.
type usage struct {
	memory, cpu float64 // bytes, seconds
	calls       uint64
	last        time.Time // when the last call began; zero: there was none
}

func (s *Supervisor) usage() (out usage) {
	for _, of := range s.given() {
		calls, last := crash.CalledIn(of.memory)
		if out.calls += calls; last.After(out.last) {
			out.last = last
		}
		if stat, err := statOf(of); err == nil {
			out.memory += float64(stat.ResidentMemory())
			out.cpu += stat.CPUTime()
		}
	}
	return out
}
