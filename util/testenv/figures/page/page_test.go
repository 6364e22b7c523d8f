package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/figures"
)

const top = "../../../.."

// The page's rows are those of tests that exist, and each of its plots is there.
func TestThePageAgreesWithTheTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, ".github", pageName))
	if err != nil {
		t.Fatal(err)
	}
	packages, err := discover(top)
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string][]string)
	for _, p := range packages {
		known[p.dir] = p.tests
	}
	rows, dir := 0, ""
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			dir = strings.TrimSpace(name)
			if known[dir] == nil && dir != "Behind" {
				t.Errorf("the package %s has no tests that measure: make the page anew", dir)
			}
		}
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.HasPrefix(name, "Test") && name != "Test" {
			if rows++; !slices.Contains(known[dir], name) {
				t.Errorf("%s is no test of %s: make the page anew", name, dir)
			}
		}
	}
	if rows == 0 {
		t.Error("the page has no rows")
	}
	there, err := filepath.Glob(filepath.Join(top, ".github", plotsDir, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, m := range regexp.MustCompile(`\]\(`+plotsDir+`/(.*?)\)`).FindAllStringSubmatch(string(text), -1) {
		shown = append(shown, filepath.Join(top, ".github", plotsDir, m[1]))
	}
	slices.Sort(shown)
	if !slices.Equal(shown, there) {
		t.Errorf("the page shows %v, there are %v", shown, there)
	}
}

func TestWhatIsBeyondItsLimitIsNamedFirst(t *testing.T) {
	slow := &figures.Row{What: "slow thing", Unit: figures.CPU, Ours: 3, Peer: "kubelet", Theirs: 2, Limit: 1}
	fine := &figures.Row{What: "fine thing", Unit: figures.CPU, Ours: 1, Peer: "kubelet", Theirs: 2, Limit: 1}
	steep := &figures.Curve{What: "steep thing", Of: "pods", Unit: figures.CPU, Points: []figures.Point{{X: 1, Y: 1}, {X: 10, Y: 2}}, Limit: 1.2}
	p := page{Sections: []section{{Package: "mount/host", Records: []figures.Record{
		{Test: "TestFigures/root", FileSystem: "tmpfs", Row: slow}, {Test: "TestFigures/root", FileSystem: "tmpfs", Row: fine},
		{Test: "TestCurveFigures", FileSystem: "ext4", Curve: steep}}}}}
	behind, rest, _ := strings.Cut(p.markdown(), "## mount/host")
	for what, want := range map[string]bool{"slow thing": true, "fine thing": false, "steep thing": true} {
		if strings.Contains(behind, what) != want {
			t.Errorf("%s is named first: %v", what, !want)
		}
		if !strings.Contains(rest, what) {
			t.Errorf("%s is not in its section", what)
		}
	}
	if !strings.Contains(rest, "| TestFigures | slow thing | tmpfs | 3 s CPU | kubelet 2 s CPU | 1.5 | 1 **behind** |") {
		t.Errorf("rows: %s", rest)
	}
	dir := t.TempDir()
	if err := p.write(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, plotsDir, "host-steep-thing-ext4.svg")); err != nil {
		t.Error(err)
	}
}

func TestAPlotIsWellFormedAndShowsEachPoint(t *testing.T) {
	for name, points := range map[string][]figures.Point{
		"none": nil, "one": {{X: 5, Y: 1}}, "many": {{X: 100, Y: 48e-6}, {X: 1000, Y: 50e-6}, {X: 20_000, Y: 51e-6}}, "nothing": {{X: 1, Y: 0}, {X: 2, Y: 0}},
	} {
		text := plot(figures.Curve{What: "a < b & c", Of: "pods", Unit: figures.CPU, Points: points})
		decode := xml.NewDecoder(strings.NewReader(text))
		circles := 0
		for {
			token, err := decode.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, text)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
				circles++
			}
		}
		if circles != len(points) || strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s: %d circles:\n%s", name, circles, text)
		}
		if !strings.Contains(text, "prefers-color-scheme:dark") {
			t.Error("it has no dark colours")
		}
	}
}
