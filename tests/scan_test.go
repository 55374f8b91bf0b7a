// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package tests

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cFunction is the definition of a C or C++ function, with the lines from its head to its closing brace.
type cFunction struct {
	name        string
	first, last int
}

// scanC lists the functions of a C or C++ file. It parses braces, parentheses, comments, literals and directives, but
// no types. In a namespace or class, a brace opens a function if its head has a parameter list and no "=". Lambdas and
// local classes count as part of the enclosing function.
func scanC(text string) ([]cFunction, error) {
	s := cScanner{text: blankC(text), line: 1}
	if err := s.declarations(0); err != nil {
		return nil, err
	}
	return s.functions, nil
}

type cScanner struct {
	text      string
	at        int
	line      int
	functions []cFunction
}

var (
	cContainer = regexp.MustCompile(`^(template\s*<[^{]*>\s*)?(inline\s+)?(namespace|class|struct|union|enum)\b|` +
		`^extern\s+" +"$`)
	cName = regexp.MustCompile(`(~?[A-Za-z_][A-Za-z0-9_:]*|operator\S*)\s*\($`)
	cInit = regexp.MustCompile(`\)[^:]*[^:]:[^:](.|\n)*[A-Za-z0-9_>]\s*$`)
)

// declarations reads the members of a namespace or class up to its closing brace, or the whole file at depth 0.
func (s *cScanner) declarations(depth int) error {
	start, first, parens, assigns := s.at, 0, 0, false
	reset := func() { start, first, parens, assigns = s.at, 0, 0, false }
	for s.at < len(s.text) {
		c := s.text[s.at]
		s.at++
		switch {
		case c == '\n':
			s.line++
			continue
		case c == ' ' || c == '\t':
			continue
		case c == '(':
			parens++
		case c == ')':
			parens--
		case c == '=' && parens == 0:
			assigns = true
		case c == ';' && parens == 0:
			reset()
			continue
		case c == '}':
			if depth == 0 {
				return fmt.Errorf("line %d: a closing brace has no opening brace", s.line)
			}
			return nil
		case c == '{':
			head := strings.TrimSpace(s.text[start : s.at-1])
			line := first
			if line == 0 {
				line = s.line
			}
			function := parens == 0 && strings.Contains(head, "(") && !cInit.MatchString(head) &&
				(!assigns || strings.Contains(head, "operator"))
			switch {
			case cContainer.MatchString(head) && !assigns && !strings.HasSuffix(head, ")"):
				if err := s.declarations(depth + 1); err != nil {
					return err
				}
				reset()
				continue
			case !function: // an initializer
				if err := s.block(); err != nil {
					return err
				}
			default:
				if err := s.block(); err != nil {
					return err
				}
				s.functions = append(s.functions, cFunction{cFunctionName(head), line, s.line})
				reset()
				continue
			}
		}
		if first == 0 {
			first = s.line
		}
	}
	if depth > 0 {
		return fmt.Errorf("line %d: a brace is not closed", s.line)
	}
	return nil
}

// block reads up to the closing brace.
func (s *cScanner) block() error {
	for depth := 1; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '\n':
			s.line++
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				s.at++
				return nil
			}
		}
	}
	return fmt.Errorf("line %d: a brace is not closed", s.line)
}

func cFunctionName(head string) string {
	if i := strings.IndexByte(head, '('); i >= 0 {
		if m := cName.FindStringSubmatch(head[:i+1]); m != nil {
			return m[1]
		}
	}
	return "?"
}

// blankC replaces comments, literals and directives with blanks, and keeps the lines. Of an #if with an #else, only the
// first branch stays.
func blankC(text string) string {
	out := []byte(text)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if out[i] != '\n' {
				out[i] = ' '
			}
		}
	}
	for i := 0; i < len(text); {
		from := i
		switch rest := text[i:]; {
		case strings.HasPrefix(rest, "//"):
			i = end(text, i, "\n")
			blank(from, i)
		case strings.HasPrefix(rest, "/*"):
			i = end(text, i+2, "*/")
			blank(from, i)
		case strings.HasPrefix(rest, `R"`) && (i == 0 || !isWord(text[i-1])):
			open := strings.IndexByte(rest, '(')
			i = end(text, i, ")"+rest[2:open]+`"`)
			blank(from, i)
		case rest[0] == '"' || rest[0] == '\'' && (i == 0 || !isWord(text[i-1])):
			for i++; i < len(text) && text[i] != rest[0]; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			i++
			blank(from+1, i-1)
		default:
			i++
		}
	}
	return blankDirectives(string(out))
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

func end(text string, from int, mark string) int {
	if n := strings.Index(text[from:], mark); n >= 0 {
		return from + n + len(mark)
	}
	return len(text)
}

func blankDirectives(text string) string {
	lines := strings.Split(text, "\n")
	var other []bool // by open #if: the scanner is in its second branch
	for i := 0; i < len(lines); i++ {
		word, directive := strings.CutPrefix(strings.TrimSpace(lines[i]), "#")
		if !directive {
			if len(other) > 0 && other[len(other)-1] {
				lines[i] = ""
			}
			continue
		}
		switch word = strings.TrimSpace(word); {
		case strings.HasPrefix(word, "if"):
			other = append(other, len(other) > 0 && other[len(other)-1])
		case strings.HasPrefix(word, "el") && len(other) > 0:
			other[len(other)-1] = true
		case strings.HasPrefix(word, "endif") && len(other) > 0:
			other = other[:len(other)-1]
		}
		for strings.HasSuffix(lines[i], `\`) && i+1 < len(lines) {
			lines[i] = ""
			i++
		}
		lines[i] = ""
	}
	return strings.Join(lines, "\n")
}

func TestScanC(t *testing.T) {
	functions, err := scanC(`#include "a.h"
#define BODY(x) { \
  x
namespace a::b {
namespace {
constexpr int kTable[] = {1, 2, f(3)};
const auto& names = *new std::map<int, std::function<void()>>{{1, [](int i) { return; }}};
enum class Kind : uint8_t { kA, kB };
struct Point {
  int x = 0, y{1};
  Point(int x, int y) : x{x}, y(y) {
    char c = '{';  // "}"
  }
  bool operator==(const Point& p) const { return x == p.x; }
  template <class T> T Get() const noexcept(true) {
    return {};
  }
};
}  // namespace
#ifdef A
int F(std::vector<int> v = {1, 2}) {
#else
int F() {
#endif
  auto text = R"(}}}{)";
  return 1'000;
}
extern "C" {
MYCELYA_EXPORT void G(
    int a) {
  for (;;) {
  }
}
}
TEST(Suite, Name) {
}
}  // namespace a::b
`)
	require.NoError(t, err)
	assert.Equal(t, []cFunction{{"Point", 11, 13}, {"operator==", 14, 14}, {"Get", 15, 17}, {"F", 21, 27},
		{"G", 29, 33}, {"TEST", 35, 36}}, functions)
	_, err = scanC("void F() {")
	require.Error(t, err)
	_, err = scanC("}")
	require.Error(t, err)
}
