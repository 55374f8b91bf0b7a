// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// findMapping finds the mapping of a file that has the memory from begin to end.
func findMapping(begin, end uintptr) (mapping, bool) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return mapping{}, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m, ok := parseMapping(lines.Text())
		if ok && m.begin <= begin && end <= m.end {
			return m, true
		}
	}
	return mapping{}, false
}

// parseMapping reads a line of /proc/self/maps: "begin-end flags offset device inode path".
func parseMapping(line string) (m mapping, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") {
		return m, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	begin, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	offset, err3 := strconv.ParseUint(fields[2], 16, 64)
	_, path, _ := strings.Cut(line, fields[4]+" ")
	return mapping{uintptr(begin), uintptr(end), offset, strings.TrimLeft(path, " ")},
		err1 == nil && err2 == nil && err3 == nil
}
