package plugins_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/plugins"
)

// cells are the tables of README.md: by the title of the section, the cells of each row.
func cells(t *testing.T) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := make(map[string][][]string)
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if title, is := strings.CutPrefix(line, "## "); is {
			section = title
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| source ") {
			continue
		}
		row := strings.Split(strings.Trim(line, "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		tables[section] = append(tables[section], row)
	}
	return tables
}

// sourcesOf are the fields of the API's types, as manifests spell them.
func sourcesOf(types ...reflect.Type) (names []string) {
	for _, of := range types {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Each source that the API knows has one row, and no other has.
func TestEverySourceHasARow(t *testing.T) {
	tables := cells(t)
	for section, want := range map[string][]string{
		"Volumes":                       sourcesOf(reflect.TypeFor[v1.VolumeSource](), reflect.TypeFor[v1.PersistentVolumeSource]()),
		"Sources of a projected volume": sourcesOf(reflect.TypeFor[v1.VolumeProjection]()),
	} {
		var got []string
		for _, row := range tables[section] {
			got = append(got, row[0])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the rows are\n%q, the API's sources\n%q", section, got, want)
		}
	}
}

// A row names a plugin that there is, and each plugin has a row with its conformance. Where
// there is none, the source is refused.
func TestRowsNameThePlugins(t *testing.T) {
	named := make(map[string]bool)
	for _, row := range cells(t)["Volumes"] {
		if len(row) != 5 {
			t.Errorf("%s: %d cells", row[0], len(row))
			continue
		}
		name, _, _ := strings.Cut(row[1], ",")
		name, _, _ = strings.Cut(name, ";")
		refused := strings.HasPrefix(row[4], "refused")
		switch {
		case name == "none" && (!refused || row[3] != ""):
			t.Errorf("%s: no plugin, and it is not refused", row[0])
		case name == "none" || strings.HasPrefix(name, "that of"):
		case refused || !strings.Contains(row[3], "`volume/plugins/"+name+".TestConformance`"):
			t.Errorf("%s: plugin %s, conformance %s", row[0], name, row[3])
		default:
			named[name] = true
		}
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !named[e.Name()] {
			t.Errorf("plugin %s has no row", e.Name())
		}
	}
	if all := len(plugins.All()) + len([]string{"csi", "image"}); len(named) != all {
		t.Errorf("%d plugins in the table, %d in all", len(named), all)
	}
}

var namesTest = regexp.MustCompile("`([a-z/]+)\\.(Test\\w*)`")

// The tests that the tables name exist.
func TestNamedTestsExist(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), ".Test"); n != len(namesTest.FindAllString(string(text), -1)) {
		t.Errorf("%d tests are named, and not all in this form", n)
	}
	for _, found := range namesTest.FindAllStringSubmatch(string(text), -1) {
		files, err := filepath.Glob(filepath.Join("../..", found[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			source, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(source), "\nfunc "+found[2]+"(t *testing.T)")
		}) {
			t.Errorf("%s has no test %s", found[1], found[2])
		}
	}
}
