package volumemanager

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	checked "github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// plantsInRoot are what another user may have put below a root directory, if he
// could ever write there.
func plantsInRoot() map[string]func(root, victim string) error {
	link := func(name string, toDir bool) func(root, victim string) error {
		return func(root, victim string) error {
			if toDir {
				victim = filepath.Dir(victim)
			}
			path := filepath.Join(root, name)
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(victim, path))
		}
	}
	inState := func(name string, plant func(path, victim string) error) func(root, victim string) error {
		return func(root, victim string) error {
			return errors.Join(os.MkdirAll(rootdir.StateDir(root), 0o700), plant(filepath.Join(rootdir.StateDir(root), name), victim))
		}
	}
	fifo := func(path, _ string) error { return unix.Mkfifo(path, 0o600) }
	hard := func(path, victim string) error { return os.Link(victim, path) }
	return map[string]func(root, victim string) error{
		"link podvol": link("podvol", true), "link lock": link("podvol/lock", false), "link records": link("podvol/records", false), "link claims": link("podvol/claims", true),
		"link token.key": link("podvol/token.key", false), "link volumes": link("podvol/volumes", true),
		"pipe lock": inState("lock", fifo), "pipe records": inState("records", fifo),
		"hard link lock": inState("lock", hard), "hard link records": inState("records", hard),
		"root for all": func(root, _ string) error { return os.Chmod(root, 0o777) },
		"pods for all": func(root, _ string) error {
			return errors.Join(os.Mkdir(rootdir.PodsDir(root), 0o700), os.Chmod(rootdir.PodsDir(root), 0o777))
		},
		"podvol for all": func(root, _ string) error {
			return errors.Join(os.Mkdir(rootdir.StateDir(root), 0o700), os.Chmod(rootdir.StateDir(root), 0o777))
		},
	}
}

func TestNothingPlantedBelowARootIsUsed(t *testing.T) {
	for name, plant := range plantsInRoot() {
		t.Run(name, func(t *testing.T) {
			root, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
			if err := errors.Join(os.Chmod(root, 0o755), os.WriteFile(victim, []byte("precious"), 0o644), os.Chmod(filepath.Dir(victim), 0o755), plant(root, victim)); err != nil {
				t.Fatal(err)
			}
			_, locked := rootdir.Lock(root)
			_, inspected := Inspect(root, table.Of(fakemount.New()))
			for what, err := range map[string]error{"lock": locked, "inspect": inspected, "check": rootdir.Check(root)} {
				_, ok := errors.AsType[*rootdir.Error](err)
				if _, why := errors.AsType[*checked.Error](err); !ok || !why {
					t.Errorf("%s: %v", what, err)
				}
			}
			data, err := os.ReadFile(victim)
			info, statErr := os.Stat(victim)
			around, dirErr := os.Stat(filepath.Dir(victim))
			if err := errors.Join(err, statErr, dirErr); err != nil {
				t.Fatal(err)
			}
			if string(data) != "precious" || info.Mode().Perm() != 0o644 || around.Mode().Perm() != 0o755 {
				t.Errorf("the victim is now %q, %v, in %v", data, info.Mode(), around.Mode())
			}
		})
	}
}

func TestCheckRootOfOneThatIsNotThere(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "not", "yet")
	if err := rootdir.Check(missing); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Dir(missing)); !os.IsNotExist(err) {
		t.Errorf("it was made: %v", err)
	}
}
