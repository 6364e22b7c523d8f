package manifestdir

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// rest lets a directory be seen until nothing can be on its way any more.
func (d *Directory) rest() {
	for range 3 {
		d.Scan()
		d.Wanted()
		time.Sleep(afterGone)
	}
	d.Scan()
}

// knownPath is where the known manifests of a test's directory are kept.
func knownPath(path string) string { return filepath.Join(filepath.Dir(path), "known") }

// What is missing from a directory was removed only if it is the same one, and it
// was seen to go, or its brothers are there. Else somebody is asked, and until then
// nothing that a run has from it, or that an earlier one has mounted, goes.
func TestDirectoryAsksBeforeItObeysAnotherDirectory(t *testing.T) {
	const obeyed, asked = false, true
	broken := func(t *testing.T, path string) { putFile(t, filepath.Join(path, "b.yaml"), "{") }
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			for _, name := range names {
				if err := os.Remove(filepath.Join(path, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	replace := func(with ...string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			renamed(t, path, path+".old")
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, name := range with {
				putFile(t, filepath.Join(path, name+".yaml"), podNamed(name, disk))
			}
		}
	}
	// again removes the directory and makes another one, which may have its inode number.
	again := func(t *testing.T, path string) {
		was, err := os.Stat(path)
		must(t, err)
		for is := was; !is.ModTime().After(was.ModTime()); { // until the file system's clock has ticked
			must(t, errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)))
			is, err = os.Stat(path)
			must(t, err)
		}
		putFile(t, filepath.Join(path, "a.yaml"), podNamed("a", disk))
	}
	for name, tc := range map[string]struct {
		change         func(t *testing.T, path string)
		seen, restart  bool     // is it asked?
		pods, inNewRun []string // that are wanted then
		incomplete     bool     // though nobody is asked
	}{
		"nothing":                         {func(*testing.T, string) {}, obeyed, obeyed, []string{"a", "b"}, []string{"a", "b"}, false},
		"one file is removed":             {remove("b.yaml"), obeyed, obeyed, []string{"a"}, []string{"a"}, false},
		"all files are removed":           {remove("a.yaml", "b.yaml"), obeyed, asked, nil, nil, false},
		"its disk is not mounted":         {replace(), asked, asked, []string{"a", "b"}, nil, false},
		"another one lacks a file":        {replace("a"), asked, asked, []string{"a", "b"}, []string{"a"}, false},
		"it is made again, with less":     {again, asked, asked, []string{"a", "b"}, []string{"a"}, false},
		"another one has other files":     {replace("c", "d"), asked, asked, []string{"a", "b", "c", "d"}, []string{"c", "d"}, false},
		"another one has all":             {replace("a", "b"), obeyed, obeyed, []string{"a", "b"}, []string{"a", "b"}, false},
		"another one has all, and others": {replace("a", "b", "c"), obeyed, obeyed, []string{"a", "b", "c"}, []string{"a", "b", "c"}, false},
		"one is broken": {func(t *testing.T, path string) { broken(t, path); remove("a.yaml")(t, path) },
			obeyed, obeyed, []string{"a", "b"}, nil, true},
		"one is renamed": {func(t *testing.T, path string) {
			renamed(t, filepath.Join(path, "a.yaml"), filepath.Join(path, "z.yaml"))
		},
			obeyed, obeyed, []string{"a", "b"}, []string{"a", "b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inDir(t, func(t *testing.T, path string, first *Directory) {
				back := func() {
					if _, err := os.Stat(path + ".old"); err == nil {
						renamed(t, path, path+".new")
						renamed(t, path+".old", path)
					}
					_ = os.Remove(filepath.Join(path, "z.yaml"))
					putFile(t, filepath.Join(path, "a.yaml"), podNamed("a", disk))
					putFile(t, filepath.Join(path, "b.yaml"), podNamed("b", disk))
					if !tc.seen && slices.Contains(tc.pods, "c") { // which is the directory's by now
						putFile(t, filepath.Join(path, "c.yaml"), podNamed("c", disk))
					}
				}
				putFile(t, filepath.Join(path, "a.yaml"), podNamed("a", disk))
				putFile(t, filepath.Join(path, "b.yaml"), podNamed("b", disk))
				first.rest()
				known, err := os.ReadFile(knownPath(path))
				if err != nil {
					t.Fatal(err)
				}
				tc.change(t, path)
				for range 2 { // whoever only looks changes nothing
					looking := manifestDirIn(path, knownPath(path))
					if looking.rest(); (looking.question != "") != tc.restart {
						t.Errorf("another look: question %q", looking.question)
					}
				}
				putFile(t, knownPath(path), string(known))

				first.rest()
				if got := podNames(first); !slices.Equal(got, tc.pods) || (first.question != "") != tc.seen {
					t.Errorf("seen: pods %q, want %q; question %q", got, tc.pods, first.question)
				}
				putFile(t, knownPath(path), string(known)) // as a run has left it that did not see it
				second := manifestDirIn(path, knownPath(path))
				second.rest()
				if got := podNames(second); !slices.Equal(got, tc.inNewRun) || (second.question != "") != tc.restart {
					t.Errorf("after a restart: pods %q, want %q; question %q", got, tc.inNewRun, second.question)
				}
				if second.Complete() != (!tc.restart && !tc.incomplete) {
					t.Errorf("after a restart: complete %t", second.Complete())
				}
				if told := manifestDirIn(path, knownPath(path)); tc.restart {
					told.accept = true
					putFile(t, knownPath(path)+".told", string(known))
					told.known = openKnown(knownPath(path) + ".told")
					if told.rest(); !told.Complete() {
						t.Errorf("told to obey: question %q", told.question)
					}
					again := manifestDirIn(path, knownPath(path)+".told")
					if again.rest(); !again.Complete() {
						t.Errorf("after it was told: question %q", again.question)
					}
				}

				back()
				for _, d := range []*Directory{first, second} {
					if d.rest(); !slices.Contains(podNames(d), "a") || !slices.Contains(podNames(d), "b") || d.question != "" || !d.Complete() {
						t.Errorf("as it comes back: pods %q, question %q", podNames(d), d.question)
					}
				}
			})
		})
	}
}

// Nobody knows which files there were, but that there are volumes.
func TestDirectoryAsksWhereNothingIsKnown(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *Directory) {
		d.mounted = func() []volumemanager.VolumeStatus { return make([]volumemanager.VolumeStatus, 1) }
		if d.rest(); d.Complete() || !strings.Contains(d.question, "--accept-manifests") {
			t.Errorf("empty, with volumes: complete %t, question %q", d.Complete(), d.question)
		}
		asked := d.Refused()
		if len(asked) != 1 || !asked[0].Question || asked[0].Path != path || asked[0].Reason != d.question || asked[0].Since.IsZero() {
			t.Errorf("refused: %+v", asked)
		}
		if d.rest(); !slices.Equal(d.Refused(), asked) {
			t.Errorf("refused: %+v, before %+v", d.Refused(), asked)
		}
		putFile(t, filepath.Join(path, "a.yaml"), podNamed("a", disk))
		if d.rest(); !d.Complete() || len(d.Refused()) > 0 {
			t.Errorf("with a manifest: question %q, refused %+v", d.question, d.Refused())
		}
		const old = `{"inode":7,"files":{"b.yaml":["Pod shop/b"]}}`
		sealed := []string{"", "{", `{"schemaVersion":2,"files":[]}`, `{"schemaVersion":2,"inode":7}`, `{"schemaVersion":2,"inode":7,"giles":{"b.yaml":["Pod shop/b"]}}`, old}
		for i, damaged := range append(sealed, "", old) {
			if i < len(sealed) {
				damaged = string(seal.Add([]byte(damaged + "\n")))
			}
			putFile(t, knownPath(path), damaged)
			for range 2 { // it is not forgotten by who finds it
				d = manifestDirIn(path, knownPath(path))
				if d.rest(); d.Complete() || !slices.Equal(podNames(d), []string{"a"}) || !strings.Contains(d.question, "cannot be read") {
					t.Errorf("%q: pods %q, complete %t, question %q", damaged, podNames(d), d.Complete(), d.question)
				}
			}
			d.accept = true
			d.rest()
			if d = manifestDirIn(path, knownPath(path)); d.known.damaged != nil {
				t.Errorf("%q: it was accepted, and is still damaged", damaged)
			}
		}
	})
}

// Whatever becomes of the file, it is not believed to have fewer names.
func TestKnownManifestsAreWholeOrDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "known")
	now := known{dirIdentity: dirIdentity{Inode: 7}, Files: map[string][]string{"a.yaml": {"Pod shop/a"}}}
	must(t, openKnown(path).store(now))
	if again := openKnown(path); again.damaged != nil || again.stored.Version != knownVersion || again.stored.Inode != 7 || !maps.EqualFunc(again.stored.Files, now.Files, slices.Equal) {
		t.Errorf("stored: %+v", again)
	}
	sound, err := os.ReadFile(path)
	must(t, err)
	for i := range sound {
		putFile(t, path, string(sound[:i]))
		if openKnown(path).damaged == nil {
			t.Errorf("cut off after %d of %d bytes, and believed", i, len(sound))
		}
		for bit := range 8 {
			flipped := slices.Clone(sound)
			flipped[i] ^= 1 << bit
			putFile(t, path, string(flipped))
			if k := openKnown(path); k.damaged == nil || k.stored.Files != nil {
				t.Errorf("bit %d of byte %d is flipped: %+v", bit, i, k)
			}
		}
	}
}

// Where the file is lost, pods that are in no manifest are asked about; where it never
// was, as after podvol mount, they are not.
func TestDirectoryAsksWhereWhatWasKnownIsLost(t *testing.T) {
	for _, lost := range []bool{true, false} {
		inDir(t, func(t *testing.T, path string, d *Directory) {
			for _, name := range []string{"a", "b"} {
				putFile(t, filepath.Join(path, name+".yaml"), podNamed(name, disk))
			}
			d.rest()
			var rows []volumemanager.VolumeStatus
			for _, name := range []string{"a", "b"} {
				pod := d.Wanted().Pods[volume.NewObjectRef("Pod", "shop", name)]
				rows = append(rows, volumemanager.VolumeStatus{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, PodUID: pod.UID})
			}
			must(t, os.Remove(knownPath(path)))
			if !lost {
				must(t, os.Remove(knownPath(path)+".made"))
			}
			must(t, os.Remove(filepath.Join(path, "b.yaml")))
			for range 2 { // it is not forgotten by who finds it
				d = manifestDirIn(path, knownPath(path))
				d.mounted = func() []volumemanager.VolumeStatus { return rows }
				d.rest()
				if asked := strings.Contains(d.question, "in no manifest: shop/b."); asked != lost || d.Complete() == lost {
					t.Errorf("lost %t: complete %t, question %q", lost, d.Complete(), d.question)
				}
			}
			putFile(t, filepath.Join(path, "b.yaml"), podNamed("b", disk))
			if d.rest(); !d.Complete() || openKnown(knownPath(path)).absent {
				t.Errorf("lost %t: with all manifests: question %q", lost, d.question)
			}
		})
	}
}

// What is mounted is known before, be it in the first moment; a disk without room for
// that is told, and tried again.
func TestDirectoryIsKnownBeforeItIsApplied(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *Directory) {
		putFile(t, filepath.Join(path, "a.yaml"), podNamed("a", disk))
		d.Scan()
		if files := openKnown(knownPath(path)).stored.Files; !slices.Equal(files["a.yaml"], []string{"Pod shop/a"}) {
			t.Errorf("known after the first look: %v", files)
		}
		if info, err := os.Stat(knownPath(path)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		var said []string
		d = manifestDirIn(path, filepath.Join(path, "missing", "known"))
		d.say = func(text string) { said = append(said, text) }
		d.rest()
		if again := d.Scan(); len(said) != 1 || !strings.Contains(said[0], "for the next start") || again <= 0 || again > storeRetry {
			t.Errorf("it said %q, and looks again in %v", said, again)
		}
	})
}

// While one file is not in force, be it broken, a copy, empty or being written, all
// that came from the directory stays: it may have moved into that file.
func TestDirectoryKeepsAllWhileOneFileIsNotInForce(t *testing.T) {
	web := "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web, namespace: shop}\nspec: {selector: {}, template: {spec: {containers: [{name: c, image: i}]}}}\n"
	for name, spoil := range map[string]func(path string) error{
		"syntax":    func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"empty":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"no UTF-8":  func(path string) error { return os.WriteFile(path, []byte("\xff\xfea\x00"), 0o600) },
		"a copy":    func(path string) error { return os.WriteFile(path, []byte(podNamed("c", disk)), 0o600) },
		"dead link": func(path string) error { return errors.Join(os.Remove(path), os.Symlink("nowhere", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			inDir(t, func(t *testing.T, path string, d *Directory) {
				from, to := filepath.Join(path, "from.yaml"), filepath.Join(path, "to.yaml")
				putFile(t, filepath.Join(path, "c.yaml"), podNamed("c", disk))
				putFile(t, from, podNamed("a", disk)+configMap+web)
				putFile(t, to, podNamed("b", disk))
				d.rest()
				if err := errors.Join(spoil(to), os.Remove(from)); err != nil {
					t.Fatal(err)
				}
				d.rest()
				want := d.Wanted()
				if got := podNames(d); !slices.Equal(got, []string{"a", "b", "c", "web-0"}) || len(want.Objects) != 1 || len(want.StatefulSets) != 1 || len(d.Taken()) > 0 {
					t.Errorf("pods %q are wanted, %d objects and %d sets, taken %v", got, len(want.Objects), len(want.StatefulSets), d.Taken())
				}
				if !strings.Contains(want.Held, "while to.yaml is not") || !strings.Contains(want.Held, "Pod shop/a") {
					t.Errorf("it says %q", want.Held)
				}
				if err := os.Remove(to); err != nil {
					t.Fatal(err)
				}
				putFile(t, to, podNamed("b", disk))
				d.rest()
				if got := podNames(d); !slices.Equal(got, []string{"b", "c"}) || d.Wanted().Held != "" {
					t.Errorf("pods %q are wanted by the file that is put right, held %q", got, d.Wanted().Held)
				}
			})
		})
	}
}

func TestDirectoryKeepsWhatIsBeingWritten(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *Directory) {
		from, to := filepath.Join(path, "from.yaml"), filepath.Join(path, "to.yaml")
		putFile(t, from, podNamed("a", disk)+"---\n"+podNamed("b", disk))
		d.rest()
		f, err := os.Create(to)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		putFile(t, from, podNamed("a", disk))
		if d.rest(); !slices.Equal(podNames(d), []string{"a", "b"}) {
			t.Errorf("pods %q are wanted", podNames(d))
		}
		if _, err := f.WriteString(podNamed("b", disk)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if d.rest(); !slices.Equal(podNames(d), []string{"a", "b"}) || d.Wanted().Held != "" {
			t.Errorf("pods %q are wanted, held %q", podNames(d), d.Wanted().Held)
		}
	})
}

// A pod that is renamed and keeps its UID is one pod.
func TestDirectoryHoldsNoPodTwice(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *Directory) {
		pod := strings.Replace(podNamed("a", disk), "{name: a,", "{name: a, uid: own,", 1)
		putFile(t, filepath.Join(path, "a.yaml"), pod)
		d.rest()
		putFile(t, filepath.Join(path, "a.yaml"), strings.Replace(pod, "name: a,", "name: renamed,", 1))
		putFile(t, filepath.Join(path, "b.yaml"), "")
		if d.rest(); !slices.Equal(podNames(d), []string{"renamed"}) {
			t.Errorf("pods %q are wanted", podNames(d))
		}
	})
}
