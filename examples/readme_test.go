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

func TestReadmeShowsTheCompiledExample(t *testing.T) {
	source := read(t, "../volume/volumemanager/example_test.go")
	_, rest, found := strings.Cut(source, "// README: begin\n")
	example, _, ended := strings.Cut(rest, "\t// README: end")
	if !found || !ended {
		t.Fatal("example_test.go has lost its README marks")
	}
	var want strings.Builder
	for line := range strings.Lines(example) {
		want.WriteString(strings.TrimPrefix(line, "\t"))
	}
	text := strings.ReplaceAll(want.String(), "../../testdata", "testdata")
	got := blocks(read(t, "../README.md"), "go")
	if len(got) != 1 || got[0] != text {
		t.Errorf("the README's Go block is not the compiled example; it should be:\n%s\nit is:\n%s", text, strings.Join(got, "\n---\n"))
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
