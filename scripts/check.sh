#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Static checks of the sources. Every check runs; the exit status is 1 if one failed.
set -u
cd "$(dirname "$0")/.."
py=.venv/bin/python
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
failed=
check() { # check "name" command...
  name=$1
  shift
  if ! "$@"; then
    echo "check: FAILED: $name"
    failed=1
  fi
}
empty() { # fails if the command prints anything, and prints it
  out=$("$@") || return 1
  [ -z "$out" ] || { echo "$out"; return 1; }
}
# Generated files keep the format of their generator. The files in "unformatted" are not formatted yet; the list only
# shrinks.
unformatted=''
formatted() {
  for file in $(git ls-files -co --exclude-standard '*.c' '*.cpp' '*.cu' '*.h' '*.inc'); do
    [ -e "$file" ] || continue
    head -10 "$file" | grep -q 'Code generated .* DO NOT EDIT\.' && continue
    case " $unformatted " in *" $file "*) ;; *) echo "$file" ;; esac
  done
}
headers() { # files without copyright and licence, which are two lines in code and one or two comments in Markdown
  git ls-files -co --exclude-standard '*.go' '*.py' '*.pyi' '*.c' '*.cpp' '*.cu' '*.h' '*.inc' '*.proto' '*.sh' '*.html' \
    '*.css' '*.js' '*.md' Makefile |
    grep -v '\.pb\.go$' | while read -r file; do
    [ -e "$file" ] || continue
    head -5 "$file" | grep -q 'Copyright (C) 2026 The Mycelya Authors' &&
      head -6 "$file" | grep -q 'SPDX-License-Identifier: AGPL-3.0-or-later' ||
      echo "$file: no licence header"
  done
}
fresh_optable() {
  $py csrc/device/record/gen_optable.py | cmp - csrc/device/record/optable.inc &&
    $py csrc/device/record/gen_optable.py --schemas | cmp - catalogue/schemas.txt
}
fresh_proto() {
  if ! command -v protoc >/dev/null || ! command -v protoc-gen-go >/dev/null; then
    echo "check: no protoc or protoc-gen-go here; proto/mycelya.pb.go is not compared"
    return 0
  fi
  out=$(mktemp -d)
  protoc --go_out="$out" --go_opt=paths=source_relative proto/mycelya.proto &&
    # The first lines name the versions of the compilers, which may differ.
    sed '/^\/\/ *\(- \)\?protoc/d' proto/mycelya.pb.go >"$out/committed" &&
    sed '/^\/\/ *\(- \)\?protoc/d' "$out/proto/mycelya.pb.go" | cmp - "$out/committed"
  status=$?
  rm -rf "$out"
  return $status
}
# No machine of the project runs these; they compile. The first run takes a minute or two, for Go's own packages.
arm64() {
  CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -o /dev/null ./worker/cmd/mycelya-worker ./client/cmd/mycelya-machines
}
macos() { # the client without its C code
  CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go vet ./capture/... ./passes/... ./codegen/... ./proto/... ./runtime/... \
    ./client/cmd/...
}

check "licence headers" empty headers
check gofmt empty gofmt -l $(find . -name '*.go' -not -path './.*' -not -path './build/*')
check "go vet" go vet ./...
check "programs for Linux on arm64" arm64
check "go vet for macOS" macos
if command -v staticcheck >/dev/null; then
  check staticcheck staticcheck ./...
else
  check staticcheck go run $staticcheck ./...
fi
check "imports, lengths, columns, header guards" go test ./tests/
check "ruff check" $py -m ruff check .
check "ruff format" $py -m ruff format --check .
check mypy $py -m mypy
check clang-format clang-format --dry-run --Werror $(formatted)
check "files generated from the catalogue" go run ./catalogue/gen -check
check "generated op table" fresh_optable
check "generated protobuf code" fresh_proto
[ -z "$failed" ] && echo "check: all passed"
[ -z "$failed" ]
