package manifestdir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume"
)

// inDir scans a directory in virtual time.
func inDir(t *testing.T, f func(t *testing.T, path string, d *Directory)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f(t, path, manifestDirIn(path, filepath.Join(filepath.Dir(path), "known")))
	})
}

// manifestDirIn is a directory as a run begins with it.
func manifestDirIn(path, known string) *Directory {
	return New(Config{Dir: path, KnownFile: known, NodeName: "here", AcceptHint: "--accept-manifests"})
}

func podNames(d *Directory) (names []string) {
	for _, pod := range d.Wanted().Pods {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return names
}

const disk = "{name: disk, emptyDir: {}}"

// Of a directory that nobody has looked at, nothing is known.
func TestDirectoryIsNotCompleteUnread(t *testing.T) {
	inDir(t, func(t *testing.T, _ string, d *Directory) {
		if d.Complete() {
			t.Error("complete before the first scan")
		}
	})
}

// A pod that an earlier run has left, and that is in no good file, is not
// nobody's while its file may just be on its way from one name to another.
func TestDirectoryIsCompleteOnceNothingMoves(t *testing.T) {
	for name, gap := range map[string]func(t *testing.T, path string, d *Directory){
		"it was missing at the start": func(*testing.T, string, *Directory) {},
		"it was broken, and is put right": func(t *testing.T, path string, d *Directory) {
			file := filepath.Join(path, "a.yaml")
			putFile(t, file, "{")
			for range 3 {
				d.Scan()
				if d.Complete() {
					t.Fatal("complete with a broken file")
				}
				time.Sleep(afterGone)
			}
			renamed(t, file, file+"~")
		},
		"it was listed, and gone when it was read": func(_ *testing.T, _ string, d *Directory) {
			d.Scan()
			time.Sleep(afterGone)
			d.Scan()
			d.read("a.yaml")
		},
		"the directory was away": func(t *testing.T, path string, d *Directory) {
			renamed(t, path, path+"~")
			d.Scan()
			time.Sleep(afterGone)
			if d.Scan(); d.Complete() {
				t.Fatal("complete without a directory")
			}
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inDir(t, func(t *testing.T, path string, d *Directory) {
				gap(t, path, d)
				again := d.Scan()
				if d.Complete() || again <= 0 || again > afterGone {
					t.Fatalf("in the gap: complete %t, to be seen again in %v", d.Complete(), again)
				}
				time.Sleep(again - time.Millisecond)
				if d.Scan(); d.Complete() {
					t.Error("complete before the gap is over")
				}
				time.Sleep(time.Millisecond)
				if again := d.Scan(); !d.Complete() || again != 0 {
					t.Errorf("after the gap: complete %t, to be seen again in %v", d.Complete(), again)
				}
			})
		})
	}
}

// The event of a write's end may come while the file still counts as being
// written: no other one tells when it does not any more.
func TestDirectoryLooksAgainAtAFileThatIsBeingWritten(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *Directory) {
		name := filepath.Join(path, "a.yaml")
		putFile(t, name, podNamed("a", disk))
		time.Sleep(2 * afterGone)
		d.Scan()
		time.Sleep(2 * afterGone)
		if again := d.Scan(); again != 0 {
			t.Fatalf("with nothing to wait for, to be seen again in %v", again)
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(podNamed("b", disk)); err != nil {
			t.Fatal(err)
		}
		looks := 0
		for began := time.Now(); time.Since(began) < time.Minute; looks++ {
			again := d.Scan()
			if again <= 0 || looks == 0 && again > afterWrite {
				t.Fatalf("after %v of writing, to be seen again in %v", time.Since(began), again)
			}
			time.Sleep(again)
		}
		if looks > 15 {
			t.Errorf("looked %d times while the file was written", looks)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if again := d.Scan(); again != 0 || !slices.Equal(podNames(d), []string{"b"}) {
			t.Errorf("written: pods %q, to be seen again in %v", podNames(d), again)
		}
	})
}

// How long a file is missing is not known while its directory is.
func TestDirectoryForgetsNothingWithItsDirectory(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *Directory) {
		file := filepath.Join(path, "a.yaml")
		putFile(t, file, podNamed("a", disk))
		d.rest()
		err := os.Remove(file)
		d.Scan()
		err = errors.Join(err, os.Rename(path, path+"~"))
		d.Scan()
		time.Sleep(2 * afterGone)
		if err := errors.Join(err, os.Rename(path+"~", path)); err != nil {
			t.Fatal(err)
		}
		again := d.Scan()
		if got := podNames(d); !slices.Equal(got, []string{"a"}) {
			t.Errorf("pods %q are wanted as the directory comes back", got)
		}
		time.Sleep(again)
		if d.Scan(); len(podNames(d)) > 0 {
			t.Errorf("pods %q are wanted for ever", podNames(d))
		}
	})
}

// A copy of a manifest does not take its place with a restart, be its name the
// first; until it is known which one is meant, neither changes what there is.
func TestDirectoryGuessesNotWhichFileIsMeant(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *Directory) {
		file, backup := filepath.Join(path, "a.yaml"), filepath.Join(path, "a-copy.yaml")
		putFile(t, backup, podNamed("a", ""))
		putFile(t, file, podNamed("a", disk))
		for range 3 {
			d.Scan()
			if got := podNames(d); len(got) > 0 || d.Complete() || len(d.Refused()) != 2 {
				t.Errorf("pods %q are wanted, complete %t, %d faults", got, d.Complete(), len(d.Refused()))
			}
			time.Sleep(afterGone)
		}
		if err := os.Remove(backup); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			d.Scan()
			time.Sleep(afterGone)
		}
		if got := podNames(d); !slices.Equal(got, []string{"a"}) || !d.Complete() || len(d.Wanted().Pods[volume.NewObjectRef("Pod", "shop", "a")].Spec.Volumes) != 1 {
			t.Errorf("pods %q are wanted, complete %t", got, d.Complete())
		}
		putFile(t, backup, podNamed("a", "")) // of a file that is good, it is refused itself
		if d.Scan(); len(d.Refused()) != 1 || len(d.Wanted().Pods[volume.NewObjectRef("Pod", "shop", "a")].Spec.Volumes) != 1 {
			t.Errorf("%d faults", len(d.Refused()))
		}
	})
}
