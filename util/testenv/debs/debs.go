// Package debs gives tests the programs of Debian packages that are not installed. They are
// unpacked below the user's cache directory, with every library below them, and run from
// there.
//
// Like every package below util, it carries no promise of compatibility.
package debs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/vmtest"
)

// Tree is a directory in which packages were unpacked.
type Tree struct{ Dir string }

// Unpack returns the packages, fetched with apt-get and unpacked in the directory name of
// podvol's cache at the first use; root is not needed. It is called before [vmtest.Run], since
// the machine has no network, and does nothing where no machine will run.
func Unpack(t testing.TB, name string, packages ...string) Tree {
	t.Helper()
	if os.Getenv("PODVOL_VMTEST") == "" && !vmtest.Inside() {
		return Tree{}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	p := Tree{filepath.Join(cache, "podvol", name)}
	if _, err := os.Stat(p.Dir); err == nil {
		return p
	}
	if err := p.fetch(t.Context(), packages); err != nil {
		t.Fatalf("unpack %v: %v", packages, err)
	}
	return p
}

func (p Tree) fetch(ctx context.Context, packages []string) error {
	if err := os.MkdirAll(filepath.Dir(p.Dir), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(p.Dir), "unpacking-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	wanted, err := withLibraries(ctx, packages)
	if err != nil {
		return err
	}
	if _, err := output(ctx, work, "apt-get", append([]string{"download", "-q"}, wanted...)...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("nothing was fetched: %w", err)
	}
	tree := filepath.Join(work, "tree")
	for _, file := range files {
		if _, err := output(ctx, work, "dpkg", "-x", file, tree); err != nil {
			return err
		}
	}
	if err := os.Rename(tree, p.Dir); err != nil && !errors.Is(err, fs.ErrExist) { // another test was faster
		return err
	}
	return nil
}

// withLibraries adds the libraries that packages depend on.
func withLibraries(ctx context.Context, packages []string) ([]string, error) {
	args := []string{"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", "--no-pre-depends"}
	list, err := output(ctx, ".", "apt-cache", append(args, packages...)...)
	if err != nil {
		return nil, err
	}
	all := packages
	for line := range strings.Lines(list) {
		name := strings.TrimSpace(line)
		if strings.HasPrefix(line, "lib") && !strings.Contains(name, ":") && !strings.Contains(name, "perl") {
			all = append(all, name)
		}
	}
	return all, nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s %s: %w (apt-get update fetches the lists)\n%s", name, strings.Join(args, " "), err, failed.Stderr)
	}
	return string(out), err
}

// find is where a program was unpacked.
func (p Tree) find(program string) (string, error) {
	for _, dir := range []string{"sbin", "usr/sbin", "usr/bin"} {
		path := filepath.Join(p.Dir, dir, program)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no package has %s", program)
}

// line is the command that runs a program with the libraries it came with.
func (p Tree) line(program string) ([]string, error) {
	path, err := p.find(program)
	if err != nil {
		return nil, err
	}
	var libraries []string
	for _, dir := range []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/ganesha", "usr/lib/x86_64-linux-gnu/ceph"} {
		libraries = append(libraries, filepath.Join(p.Dir, dir))
	}
	return []string{filepath.Join(p.Dir, "lib64/ld-linux-x86-64.so.2"), "--library-path", strings.Join(libraries, ":"), path}, nil
}

// Command runs a program in the root directory.
func (p Tree) Command(ctx context.Context, program string, args ...string) (*exec.Cmd, error) {
	line, err := p.line(program)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, line[0], append(line[1:], args...)...)
	cmd.Dir = "/"
	return cmd, nil
}

// Wrap writes a script that runs a program of the packages under its own name.
func (p Tree) Wrap(program, file string) error {
	line, err := p.line(program)
	if err != nil {
		return err
	}
	return os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", strings.Join(line, " ")), 0o755)
}
