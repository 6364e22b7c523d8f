// The command page runs all tests of this module that measure, those with Figures or
// Ratios in their names, and writes the page on performance from what they report:
// .github/PERFORMANCE.md, and a plot of each curve beside it.
//
//	go run ./util/testenv/figures/page
//
// It is run in the module's directory, as root on Linux for a fresh ext4, and on a machine
// that does nothing else. With arguments, directories such as ./mount/host, it measures
// these packages only, and prints the page instead:
//
//	go run ./util/testenv/figures/page ./util/ownership ./util/diskusage
//
// It exits with 1 if a test failed for another reason than a limit. Rows beyond their
// limits are on the page.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/podvol/podvol/util/testenv/figures"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only []string) error {
	packages, err := discover(".")
	if err != nil {
		return err
	}
	if len(only) > 0 {
		packages = slices.DeleteFunc(packages, func(p measuring) bool {
			return !slices.ContainsFunc(only, func(dir string) bool { return filepath.Clean(dir) == p.dir })
		})
	}
	if len(packages) == 0 {
		return errors.New("no tests that measure are here: run this in the module's directory")
	}
	work, err := os.MkdirTemp("", "figures-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	began, machine := time.Now(), thisMachine()
	sections, failed := measure(ctx, packages, work)
	p := page{Date: began.UTC().Format("2 January 2006, 15:04 UTC"), Machine: machine, Took: time.Since(began).Round(time.Second), Sections: sections}
	if len(only) > 0 {
		fmt.Print(p.markdown())
		return failed
	}
	return errors.Join(p.write(".github"), failed)
}

// measuring is a package with tests that measure.
type measuring struct {
	dir   string // below the module's, with slashes
	tests []string
}

// measures matches the names of tests that measure.
var measures = regexp.MustCompile(`^Test\w*(Ratios|Figures)`)

// discover finds the packages with tests that measure, those of the examples too.
func discover(root string) ([]measuring, error) {
	found := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, declared := range file.Decls {
			if f, ok := declared.(*ast.FuncDecl); ok && f.Recv == nil && measures.MatchString(f.Name.Name) {
				found[dir] = append(found[dir], f.Name.Name)
			}
		}
		return err
	})
	var packages []measuring
	for dir, tests := range found {
		slices.Sort(tests)
		packages = append(packages, measuring{dir: filepath.ToSlash(dir), tests: tests})
	}
	slices.SortFunc(packages, func(a, b measuring) int { return strings.Compare(a.dir, b.dir) })
	return packages, err
}

// section is what the tests of a package reported.
type section struct {
	Package string
	Records []figures.Record
}

// measure builds all tests first, so that no compiler disturbs them, and runs one package
// after the other.
func measure(ctx context.Context, packages []measuring, work string) (sections []section, failed error) {
	for i, p := range packages {
		fmt.Fprintf(os.Stderr, "building the tests of %s\n", p.dir)
		out, err := exec.CommandContext(ctx, "go", "test", "-C", p.dir, "-c", "-vet=off", "-o", binary(work, i)).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", p.dir, err, out)
		}
	}
	for i, p := range packages {
		began := time.Now()
		records, err := runTests(ctx, p, binary(work, i), filepath.Join(work, fmt.Sprint(i, ".json")))
		failed = errors.Join(failed, err)
		sections = append(sections, section{Package: p.dir, Records: records})
		fmt.Fprintf(os.Stderr, "%s: %d figures in %v\n", p.dir, len(records), time.Since(began).Round(100*time.Millisecond))
	}
	return sections, failed
}

func binary(work string, i int) string { return filepath.Join(work, fmt.Sprint(i, ".test")) }

// runTests runs those of a package that measure: on tmpfs, but for what they do on an ext4 of
// their own, and as root alone where they would be run as an ordinary user too.
func runTests(ctx context.Context, p measuring, binary, into string) ([]figures.Record, error) {
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^("+strings.Join(p.tests, "|")+")$", "-test.v", "-test.timeout=10m")
	if os.Geteuid() == 0 {
		cmd.Args = append(cmd.Args, "-test.skip", "/^user$")
	}
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), figures.RecordVar+"="+into, "TMPDIR="+inMemory())
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, figures.AssertVar+"=") })
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("the tests of %s: %w\n%s", p.dir, err, out)
	}
	lines, readErr := os.ReadFile(into)
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
		return nil, errors.Join(err, readErr)
	}
	var records []figures.Record
	for scan := bufio.NewScanner(bytes.NewReader(lines)); scan.Scan(); {
		var r figures.Record
		if readErr := json.Unmarshal(scan.Bytes(), &r); readErr != nil {
			return records, errors.Join(err, readErr)
		}
		records = append(records, r)
	}
	return records, err
}

func inMemory() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}
