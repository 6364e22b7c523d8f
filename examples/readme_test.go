// Package examples_test checks that what the README shows is code that
// compiles and commands that exist.
package examples_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the README's fenced code blocks of one language.
func blocks(readme, language string) []string {
	var found []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(readme, -1) {
		found = append(found, m[1])
	}
	return found
}

func TestReadmeShowsCompiledCode(t *testing.T) {
	var want []string
	for _, path := range []string{"../volume/volumemanager/example_test.go", "virtualkubelet/volumes.go"} {
		_, rest, found := strings.Cut(read(t, path), "// README: begin\n")
		indent, code, ended := "", "", false
		if found {
			code, _, ended = strings.Cut(rest, "// README: end")
		}
		if !ended {
			t.Fatalf("%s has lost its README marks", path)
		}
		// What is shown is indented as deeply as its end mark.
		if stripped := strings.TrimRight(code, "\t"); stripped != code {
			indent, code = code[len(stripped):], stripped
		}
		var text strings.Builder
		for line := range strings.Lines(strings.Trim(code, "\n") + "\n") {
			text.WriteString(strings.TrimPrefix(line, indent))
		}
		want = append(want, strings.ReplaceAll(text.String(), "../../testdata", "testdata"))
	}
	got := blocks(read(t, "../README.md"), "go")
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(want):
			t.Errorf("this Go block of the README is no compiled code:\n%s", got[i])
		case i >= len(got) || got[i] != want[i]:
			t.Errorf("Go block %d of the README is not the compiled code; it should be:\n%s", i+1, want[i])
		}
	}
}

func TestReadmeNamesWhatExists(t *testing.T) {
	readme := read(t, "../README.md")
	for _, path := range regexp.MustCompile("`((?:volume|mount|util|examples|testdata)(?:/[a-z0-9_./-]+)?)`").FindAllStringSubmatch(readme, -1) {
		if _, err := os.Stat("../" + path[1]); err != nil {
			t.Errorf("the README names %s: %v", path[1], err)
		}
	}
	for _, command := range []string{"go run ./examples/podvol mount --fake -f testdata/web.yaml", "go test ./..."} {
		if !strings.Contains(strings.Join(blocks(readme, "console"), "\n"), command) {
			t.Errorf("the README no longer shows %q", command)
		}
	}
}
