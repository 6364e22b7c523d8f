package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

func TestNewPodVolume(t *testing.T) {
	host := &volume.Host{RootDir: "/r"}
	pod := &v1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ops", "web", "u1"
	v, err := volume.NewPodVolume(host, "kubernetes.io/nfs", volume.NewSpecFromPersistentVolume(nfsPV(), false), pod)
	if err != nil {
		t.Fatal(err)
	}
	want := volume.PodVolume{Host: host, Plugin: "kubernetes.io/nfs", Name: "nfs211", PodUID: "u1",
		Pod: types.NamespacedName{Namespace: "ops", Name: "web"}}
	if v != want {
		t.Errorf("got %+v, want %+v", v, want)
	}
	if got := v.GetPath(); got != "/r/pods/u1/volumes/kubernetes.io~nfs/nfs211" {
		t.Errorf("GetPath = %s", got)
	}

	unmounted, err := volume.NewUnmountedPodVolume(host, "kubernetes.io/nfs", "nfs211", "u1")
	if err != nil {
		t.Fatal(err)
	}
	if unmounted.GetPath() != v.GetPath() {
		t.Errorf("set up at %s, torn down at %s", v.GetPath(), unmounted.GetPath())
	}
}

func TestPodVolumeError(t *testing.T) {
	v := volume.PodVolume{Plugin: "kubernetes.io/nfs", Name: "data", PodUID: "u1", Pod: types.NamespacedName{Namespace: "ops", Name: "web"}}
	if err := v.Error("SetUp", nil); err != nil {
		t.Errorf("Error(nil) = %v", err)
	}
	cause := volume.NothingDone(errors.New("no route"))
	err := v.Error("SetUp", cause)
	told, ok := errors.AsType[*volume.Error](err)
	if !ok || !errors.Is(err, cause) || volume.IsUncertain(err) {
		t.Fatalf("err = %v", err)
	}
	if want := (volume.Error{Op: "SetUp", Plugin: v.Plugin, Volume: v.Name, Pod: v.Pod, PodUID: v.PodUID, Err: cause}); *told != want {
		t.Errorf("got %+v, want %+v", *told, want)
	}
}

func badSegments() map[string]string {
	return map[string]string{
		"empty":           "",
		"dot":             ".",
		"parent":          "..",
		"a slash":         "a/b",
		"leads out":       "../../etc",
		"absolute":        "/etc",
		"a NUL":           "a\x00b",
		"a newline":       "a\nb",
		"an escape":       "a\x1b[2J",
		"a C1 control":    "a\u009bb",
		"delete":          "a\x7f",
		"no UTF-8":        "a\xff",
		"256 bytes":       strings.Repeat("a", 256),
		"256 in two-byte": strings.Repeat("é", 128),
	}
}

func TestCheckPathSegment(t *testing.T) {
	for _, s := range []string{"a", "...", "..data", "a..b", "-rf", "a b", "~", `a\b`, "é", "0a1b-2c", strings.Repeat("a", 255)} {
		if err := volume.CheckPathSegment("volume name", s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for name, s := range badSegments() {
		t.Run(name, func(t *testing.T) {
			err := volume.CheckPathSegment("volume name", s)
			if e, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || e.Field != "volume name" || volume.IsUncertain(err) {
				t.Fatalf("err = %v", err)
			}
			if strings.ContainsAny(err.Error(), "\x00\x1b\n\x7f\u009b") {
				t.Errorf("the error carries a control character: %q", err)
			}
		})
	}
}

func TestPodVolumeOfBadNames(t *testing.T) {
	host := &volume.Host{RootDir: "/r"}
	refused := func(what string, v volume.PodVolume, err error) {
		t.Helper()
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || v != (volume.PodVolume{}) || volume.IsUncertain(err) {
			t.Errorf("%s: got %+v, %v", what, v, err)
		}
		if told, ok := errors.AsType[*volume.Error](err); !ok || told.Plugin != "x/y" || told.Op == "" || strings.ContainsAny(err.Error(), "\x00\x1b\n") {
			t.Errorf("%s: %v does not say what failed for whom", what, err)
		}
	}
	pod := func(uid string) *v1.Pod {
		p := &v1.Pod{}
		p.Namespace, p.Name, p.UID = "ops", "web", types.UID(uid)
		return p
	}
	for name, s := range badSegments() {
		v, err := volume.NewPodVolume(host, "x/y", volume.NewSpecFromVolume(&v1.Volume{Name: s}), pod("u1"))
		refused("volume name: "+name, v, err)
		v, err = volume.NewPodVolume(host, "x/y", nfsSpec(), pod(s))
		refused("pod UID: "+name, v, err)
		v, err = volume.NewUnmountedPodVolume(host, "x/y", s, "u1")
		refused("unmounter's volume name: "+name, v, err)
		v, err = volume.NewUnmountedPodVolume(host, "x/y", "data", types.UID(s))
		refused("unmounter's pod UID: "+name, v, err)
	}
	v, err := volume.NewPodVolume(host, "x/y", nfsSpec(), nil)
	refused("no pod", v, err)
	v, err = volume.NewPodVolume(host, "x/y", nil, pod("u1"))
	refused("no spec", v, err)
}

// What is accepted and joined to a directory is an entry of just that
// directory, for the path functions and for the kernel.
func FuzzCheckPathSegment(f *testing.F) {
	for _, s := range badSegments() {
		f.Add(s)
	}
	f.Add("kubernetes.io~nfs")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, s string) {
		if volume.CheckPathSegment("name", s) != nil {
			return
		}
		path := filepath.Join(dir, s)
		if filepath.Dir(path) != dir || filepath.Base(path) != s {
			t.Fatalf("%q leads to %q", s, path)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Rmdir(path) }()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 || entries[0].Name() != s {
			t.Fatalf("%q made the entries %v, %v", s, entries, err)
		}
	})
}
