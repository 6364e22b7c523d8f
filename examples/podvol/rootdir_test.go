package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/volumemanager"
)

// No command is led by what another user has planted on the way to its root
// directory, or in it: it is refused, and says what is wrong.
func TestNoCommandIsLedByAnotherUser(t *testing.T) {
	for name, plant := range map[string]func(t *testing.T, root, victim string){
		"parent of another user": func(t *testing.T, root, victim string) {
			must(t, os.Symlink(filepath.Dir(victim), root))
			giveAway(t, root, filepath.Dir(root))
		},
		"link of another user in a directory for all": func(t *testing.T, root, victim string) {
			must(t, os.Symlink(filepath.Dir(victim), root))
			giveAway(t, root)
			must(t, os.Chmod(filepath.Dir(root), 0o777|fs.ModeSticky))
		},
		"root of another user": func(t *testing.T, root, victim string) {
			must(t, os.Mkdir(root, 0o755))
			must(t, os.Symlink(filepath.Dir(victim), volumemanager.StateDir(root)))
			giveAway(t, root)
		},
		"pods of another user": func(t *testing.T, root, victim string) {
			must(t, os.Mkdir(root, 0o755))
			must(t, os.Symlink(filepath.Dir(victim), filepath.Join(root, "pods")))
			giveAway(t, filepath.Join(root, "pods"))
		},
		"root for all": func(t *testing.T, root, victim string) {
			must(t, os.Mkdir(root, 0o755))
			must(t, os.Chmod(root, 0o777))
			must(t, os.Symlink(filepath.Dir(victim), volumemanager.StateDir(root)))
		},
		"link for podvol's own": inStateDir("", func(at, victim string) error { return os.Symlink(filepath.Dir(victim), at) }),
		"link for the lock":     inStateDir("lock", func(at, victim string) error { return os.Symlink(victim, at) }),
		"hard link for it":      inStateDir("lock", func(at, victim string) error { return os.Link(victim, at) }),
		"pipe for it":           inStateDir("lock", func(at, _ string) error { return unix.Mkfifo(at, 0o600) }),
		"link for the records":  inStateDir("records", func(at, victim string) error { return os.Symlink(victim, at) }),
		"link for the claims":   inStateDir("claims", func(at, victim string) error { return os.Symlink(filepath.Dir(victim), at) }),
		"link for the volumes":  inStateDir("volumes", func(at, victim string) error { return os.Symlink(filepath.Dir(victim), at) }),
		"link for the runs":     inStateDir("runs", func(at, victim string) error { return os.Symlink(filepath.Dir(victim), at) }),
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			root, victim := filepath.Join(base, "theirs", "root"), filepath.Join(base, "victims", "victim")
			for _, dir := range []string{filepath.Dir(root), filepath.Dir(victim)} {
				must(t, os.Mkdir(dir, 0o755))
			}
			must(t, os.WriteFile(victim, []byte("precious"), 0o644))
			plant(t, root, victim)
			for _, args := range [][]string{
				{"mount", "-f", web}, {"unmount", "--all"}, {"status"}, {"fsck"}, {"fsck", "--repair"},
				{"pvc"}, {"pv"}, {"pvc", "delete", "a"}, {"pv", "delete", "a"},
				{"run", "-f", web, "--", "true"}, {"run-node", "-f", t.TempDir()},
			} {
				code, _, errOut := podvol(t, "", slices.Insert(args, 1, "--root-dir="+root)...)
				if code == exitOK || !strings.Contains(errOut, "cannot be relied on") || !strings.Contains(errOut, "choose another root directory") {
					t.Errorf("%v: exit code %d, %s", args, code, errOut)
				}
			}
			data, err := os.ReadFile(victim)
			if err != nil || string(data) != "precious" {
				t.Errorf("the victim is %q, %v", data, err)
			}
			for path, mode := range map[string]fs.FileMode{victim: 0o644, filepath.Dir(victim): 0o755} {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
					t.Errorf("%s: %v, %v", path, info.Mode(), err)
				}
			}
			if left := tree(t, filepath.Dir(victim)); len(left) != 2 {
				t.Errorf("beside the victim: %v", left)
			}
		})
	}
}

func inStateDir(name string, plant func(at, victim string) error) func(t *testing.T, root, victim string) {
	return func(t *testing.T, root, victim string) {
		at := filepath.Join(volumemanager.StateDir(root), name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must(t, plant(at, victim))
	}
}

// giveAway makes files another user's, which only root can.
func giveAway(t *testing.T, paths ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	for _, path := range paths {
		err := os.Lchown(path, ordinaryUser, ordinaryUser)
		if errors.Is(err, unix.EINVAL) {
			t.Skip("this user namespace has no other user")
		}
		must(t, err)
	}
}

func TestStatusOfARootThatIsNotThere(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "not", "yet")
	if _, errOut := mustPodvol(t, exitOK, "status", "--root-dir", missing); !strings.Contains(errOut, "No volumes: "+missing+" does not exist.") {
		t.Errorf("it says: %s", errOut)
	}
}
