package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What moves into a file that is not in force is not unwanted.
func TestManifestDirKeepsWhatMayHaveMoved(t *testing.T) {
	web := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec: {selector: {}, template: {spec: {containers: [{name: c, image: i}]}}}\n"
	broken := "---\n{"
	for name, tc := range map[string]struct {
		text string // of the file that is not in force
		want []string
	}{
		"it names the pod":               {podNamed("a", disk) + broken, []string{"a", "b"}},
		"it names the workload":          {web + broken, []string{"b", "web-0"}},
		"it names a pod of the workload": {podNamed("web-0", disk) + broken, []string{"b", "web-0"}},
		"it names others":                {podNamed("aa", disk) + podNamed("web-front", disk) + podNamed("a.web", disk) + broken, []string{"b"}},
		"it is JSON":                     {`{"kind":"Pod","metadata":{"name":"a"}`, []string{"a", "b"}},
		"it is empty":                    {"", []string{"a", "b", "web-0"}},
		"it has escapes":                 {"{name: \"\\x61\"", []string{"a", "b", "web-0"}},
		"it is no UTF-8":                 {"\xff\xfea\x00", []string{"a", "b", "web-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			inDir(t, func(t *testing.T, path string, d *manifestDir) {
				from, to := filepath.Join(path, "from.yaml"), filepath.Join(path, "to.yaml")
				putFile(t, from, podNamed("a", disk)+"---\n"+web)
				putFile(t, to, podNamed("b", disk))
				d.scan()
				d.wanted()
				putFile(t, to, tc.text)
				if err := os.Remove(from); err != nil {
					t.Fatal(err)
				}
				d.scan() // from now on the other file is missing
				for range 3 {
					time.Sleep(afterGone)
					d.scan()
					if got := podNames(d); !slices.Equal(got, tc.want) {
						t.Errorf("pods %q are wanted, want %q", got, tc.want)
					}
				}
				held := d.wanted().held
				if len(held) != len(tc.want)-1 || len(held) > 0 && !strings.Contains(held[0], "to.yaml") {
					t.Errorf("it says that it keeps %q", held)
				}
				putFile(t, to, podNamed("b", disk))
				if d.scan(); !slices.Equal(podNames(d), []string{"b"}) || len(d.wanted().held) > 0 {
					t.Errorf("pods %q are wanted by the file that is put right", podNames(d))
				}
			})
		})
	}
}

// Nor is what moves into a file that is not written to its end yet.
func TestManifestDirKeepsWhatIsBeingWritten(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *manifestDir) {
		from, to := filepath.Join(path, "from.yaml"), filepath.Join(path, "to.yaml")
		putFile(t, from, podNamed("a", disk)+"---\n"+podNamed("b", disk))
		d.scan()
		d.wanted()
		f, err := os.Create(to)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		putFile(t, from, podNamed("a", disk))
		for range 3 {
			d.scan()
			time.Sleep(afterGone)
			if got := podNames(d); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("pods %q are wanted", got)
			}
		}
		if _, err := f.WriteString(podNamed("b", disk)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if d.scan(); !slices.Equal(podNames(d), []string{"a", "b"}) || len(d.wanted().held) > 0 {
			t.Errorf("pods %q are wanted, held %q", podNames(d), d.wanted().held)
		}
	})
}

// A pod that is renamed and keeps its UID is one pod.
func TestManifestDirHoldsNoPodTwice(t *testing.T) {
	inDir(t, func(t *testing.T, path string, d *manifestDir) {
		pod := strings.Replace(podNamed("a", disk), "{name: a,", "{name: a, uid: own,", 1)
		putFile(t, filepath.Join(path, "a.yaml"), pod)
		d.scan()
		d.wanted()
		putFile(t, filepath.Join(path, "a.yaml"), strings.Replace(pod, "name: a,", "name: renamed,", 1))
		putFile(t, filepath.Join(path, "b.yaml"), "")
		if d.scan(); !slices.Equal(podNames(d), []string{"renamed"}) {
			t.Errorf("pods %q are wanted", podNames(d))
		}
	})
}
