package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume/podrun/runroot"
)

// Somebody else may be first to make the base in a directory that others have, and
// put a link there to the files of whom he wants to lose them. (Where the tests
// do not run as root there is nobody else, and only the link is refused.)
func TestFsckIsLedNowhereByAnotherUser(t *testing.T) {
	for name, whose := range map[string]string{"base": "podvol", "link": "podvol/podvol", "runs": "podvol/podvol/runs"} {
		t.Run(name, func(t *testing.T) {
			r := asOrdinaryUser(t)
			victim, attacker := os.Geteuid(), os.Geteuid()
			if victim == 0 {
				victim, attacker = ordinaryUser, ordinaryUser-1
			}
			files := filepath.Join(r.home, "ml")
			link, target := filepath.Join(r.home, whose), files
			switch name {
			case "base":
				target = filepath.Join(r.home, "around") // has the files as podvol
				must(t, os.Mkdir(target, 0o700))
				must(t, os.Lchown(target, victim, victim))
				files = filepath.Join(target, "podvol")
			case "runs":
				target = filepath.Join(files, "runs")
			}
			must(t, os.MkdirAll(filepath.Dir(link), 0o755))
			must(t, os.Symlink(target, link))
			for path := link; path != r.home; path = filepath.Dir(path) {
				must(t, os.Lchown(path, attacker, attacker))
			}
			kept := []string{files, filepath.Join(files, "runs"), filepath.Join(files, "runs", "exp1"), filepath.Join(files, "runs", "exp.2"), filepath.Join(files, "runs", "exp1", "model")}
			for _, dir := range kept {
				must(t, os.Mkdir(dir, 0o700))
				must(t, os.Lchown(dir, victim, victim))
			}
			for _, args := range [][]string{{"fsck"}, {"fsck", "--repair"}, {"run", "-f", openFile(t, withoutIDs), "--", "true"}} {
				if attacker == victim && name == "base" {
					break // his own link may lead where he wants
				}
				want := exitUsage
				if args[0] == "run" {
					want = exitRunFailed
				}
				_, errOut := r.run(t, want, args...)
				if !strings.Contains(errOut, "--root-dir") && !strings.Contains(errOut, "choose another root directory") {
					t.Errorf("%v does not say what to do: %s", args, errOut)
				}
			}
			for _, dir := range kept {
				if _, err := os.Stat(dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Directories of the same names that podvol has not made are nobody's business.
func TestFsckLeavesForeignRunsAlone(t *testing.T) {
	for _, who := range []func(*testing.T) *runner{ownProcess, asOrdinaryUser} {
		r := who(t)
		owner := os.Geteuid()
		if r.home != "" && owner == 0 {
			owner = ordinaryUser
		}
		runs := runsOf(r.base()).Dir()
		foreign := []string{"exp1", "exp1/deep", "exp.2", "exp.2/deep", "empty", "link.3"}
		must(t, os.MkdirAll(runs, 0o700))
		for _, name := range foreign {
			if name == "link.3" {
				must(t, os.Symlink("exp1", filepath.Join(runs, name)))
				continue
			}
			must(t, os.Mkdir(filepath.Join(runs, name), 0o700))
		}
		// A marker makes nothing a run's that others can write to.
		must(t, os.WriteFile(filepath.Join(runs, "exp.2", runroot.Marker), nil, 0o600))
		must(t, os.Chmod(filepath.Join(runs, "exp.2"), 0o755))
		for dir := range strings.SplitSeq(strings.Join(append(tree(t, runs), r.base(), filepath.Dir(runs)), "\n"), "\n") {
			must(t, os.Lchown(dir, owner, owner))
		}
		before := tree(t, runs)
		for _, args := range [][]string{{"fsck"}, {"fsck", "--repair"}, {"run", "-f", openFile(t, withoutIDs), "--", "true"}, {"fsck", "--repair"}} {
			r.run(t, exitOK, args...)
		}
		if after := tree(t, runs); !slices.Equal(before, after) {
			t.Errorf("before: %v\nafter: %v", before, after)
		}
		// Killed between two steps, a run leaves an empty directory.
		must(t, os.Mkdir(filepath.Join(runs, "default_web.123"), 0o700))
		must(t, os.Lchown(filepath.Join(runs, "default_web.123"), owner, owner))
		r.run(t, exitOK, "fsck", "--repair")
		if after := tree(t, runs); !slices.Equal(before, after) {
			t.Errorf("before: %v\nafter: %v", before, after)
		}
	}
}

// A full disk may let a run make the place of runs, and nothing in it.
func TestRunWithoutARootDirectoryLeavesNothing(t *testing.T) {
	base := t.TempDir()
	if _, err := runsOf(base).New("no/name"); err == nil {
		t.Fatal("a name with a slash was taken")
	}
	if left := tree(t, base); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	must(t, os.MkdirAll(runsOf(base).Dir(), 0o700)) // by a run that could not remove it either
	mustPodvol(t, exitOK, "fsck", "--repair", "--root-dir", base)
	if _, err := os.Lstat(runsOf(base).Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("fsck --repair has left the place of runs: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
