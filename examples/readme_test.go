// Package examples_test checks that the README and the pages beside it show code
// that compiles, and name files, sections and commands that exist.
package examples_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const top = ".."

// pages returns all pages for people, by their paths from the top of the repository. The
// changelog names what is gone.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, dir := range []string{"README.md", ".github", "examples", "mount", "volume", "util"} {
		err := filepath.WalkDir(filepath.Join(top, dir), func(path string, _ os.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".md" && filepath.Base(path) != "CHANGELOG.md" {
				found[strings.TrimPrefix(path, top+"/")] = read(t, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 2 {
		t.Fatalf("no pages beside %v", slices.Collect(maps.Keys(found)))
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the fenced code blocks of one language in a page.
func blocks(page, language string) []string {
	var found []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(page, -1) {
		found = append(found, m[1])
	}
	return found
}

// marked returns what stands between marks in a file of Go, as pages show it.
func marked(t *testing.T, path string) []string {
	t.Helper()
	var found []string
	for _, rest := range strings.Split(read(t, filepath.Join(top, path)), "// README: begin\n")[1:] {
		code, _, ended := strings.Cut(rest, "// README: end")
		if !ended {
			t.Fatalf("%s has lost a README mark", path)
		}
		// What is shown is indented as deeply as its end mark.
		indent := ""
		if stripped := strings.TrimRight(code, "\t"); stripped != code {
			indent, code = code[len(stripped):], stripped
		}
		var text strings.Builder
		for line := range strings.Lines(strings.Trim(code, "\n") + "\n") {
			text.WriteString(strings.TrimPrefix(line, indent))
		}
		found = append(found, strings.ReplaceAll(text.String(), "../../testdata", "testdata"))
	}
	if len(found) == 0 {
		t.Fatalf("%s has lost its README marks", path)
	}
	return found
}

func TestReadmeShowsCompiledCode(t *testing.T) {
	sources := map[string][]string{
		"README.md":                         {"volume/volumemanager/example_test.go"},
		"examples/virtualkubelet/README.md": {"examples/virtualkubelet/volumes.go"},
		"mount/README.md":                   {"mount/example_test.go"},
		"volume/README.md":                  {"examples/ownplugin/main.go", "volume/intree/port_gitrepo_test.go"},
		"volume/intree/README.md":           {"volume/intree/port_nfs_test.go"},
		"volume/podfiles/README.md":         {"examples/renderpod/main.go"},
	}
	all := pages(t)
	for page := range sources {
		if all[page] == "" {
			t.Errorf("there is no page %s", page)
		}
	}
	for page, text := range all {
		var want []string
		for _, path := range sources[page] {
			want = append(want, marked(t, path)...)
		}
		got := blocks(text, "go")
		for i := range max(len(want), len(got)) {
			switch {
			case i >= len(want):
				t.Errorf("this Go block of %s is no compiled code:\n%s", page, got[i])
			case i >= len(got) || got[i] != want[i]:
				t.Errorf("Go block %d of %s is not the compiled code; it should be:\n%s", i+1, page, want[i])
			}
		}
	}
}

func TestReadmeNamesWhatExists(t *testing.T) {
	for page, text := range pages(t) {
		for _, path := range regexp.MustCompile("`((?:volume|mount|util|examples|testdata)(?:/[a-z0-9_./-]+)?)`").FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(top, path[1])); err != nil {
				t.Errorf("%s names %s: %v", page, path[1], err)
			}
		}
	}
}

// The page of packages has each package that a program may import: all but internal ones, those
// of util, which make no promise, and the single plugins, which volume/plugins stands for.
func TestEveryPackageIsOnThePage(t *testing.T) {
	page, found := read(t, filepath.Join(top, ".github/PACKAGES.md")), 0
	for _, room := range []string{"mount", "volume"} {
		err := filepath.WalkDir(filepath.Join(top, room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if d.Name() == "internal" || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			sources, err := filepath.Glob(filepath.Join(path, "*.go"))
			if err != nil {
				return err
			}
			name, err := filepath.Rel(top, path)
			switch {
			case err != nil:
				return err
			case !slices.ContainsFunc(sources, func(s string) bool { return !strings.HasSuffix(s, "_test.go") }):
			case strings.HasPrefix(name, "volume/plugins/"):
			default:
				found++
				if !strings.Contains(page, "`"+name+"`") {
					t.Errorf("%s is not on the page of packages", name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 40 {
		t.Fatalf("only %d packages are found; the test sees the wrong tree", found)
	}
}

func TestReadmeLinksLeadSomewhere(t *testing.T) {
	heading, code := regexp.MustCompile(`(?m)^#+ (.*)$`), regexp.MustCompile("`[^`\n]*`")
	for page, text := range pages(t) {
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			path, section, _ := strings.Cut(link[1], "#")
			to := filepath.Join(top, page)
			if path != "" {
				to = filepath.Join(top, filepath.Dir(page), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s leads nowhere with %s: %v", page, link[1], err)
				continue
			}
			if section == "" {
				continue
			}
			if !slices.ContainsFunc(heading.FindAllStringSubmatch(read(t, to), -1), func(m []string) bool {
				return strings.ReplaceAll(strings.ToLower(m[1]), " ", "-") == section
			}) {
				t.Errorf("%s leads to no section with %s", page, link[1])
			}
		}
	}
}

// The gate runs the console blocks of the README and of the command's page as a new user, in
// their order.
func TestReadmeShowsCommandsThatTheGateRuns(t *testing.T) {
	all := pages(t)
	shown := strings.Join(blocks(all["README.md"], "console"), "")
	for _, command := range []string{"go run -C examples ./podvol mount --fake -f ../testdata/web.yaml", "go test ./... && go test -C examples ./..."} {
		if !strings.Contains(shown, command) {
			t.Errorf("the README no longer shows %q", command)
		}
	}
	if first := "$ go run -C examples ./podvol run -f ../testdata/tour.yaml\n"; !strings.HasPrefix(shown, first) {
		t.Errorf("the README's first command is not %q", first)
	}
	for page, text := range all {
		if page != "README.md" && page != "examples/podvol/README.md" && len(blocks(text, "console")) > 0 {
			t.Errorf("%s has a console block, whose commands nothing runs: write sh", page)
		}
	}
}
