package criruntime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The last words are cut between two characters.
func TestLastWordsAreOfWholeCharacters(t *testing.T) {
	r := &Runtime{Config: Config{Dir: t.TempDir()}}
	c := &run{runtime: r, pod: "uid", spec: &v1.Container{Name: "main"}}
	if err := os.MkdirAll(filepath.Join(r.Dir, "uid", "main"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, rest := range []string{"é", "日", "😀"} {
		message := strings.Repeat("x", mostMessage-1)
		if err := os.WriteFile(r.messageFile("uid", "main", 0), []byte(message+rest), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.lastWords(t.Context(), nil); got != message {
			t.Errorf("of the file: %q", got[mostMessage-4:])
		}
		line := strings.Repeat("x", mostLog-1)
		if err := os.WriteFile(filepath.Join(r.LogFile("uid", "main", 0)), []byte("2026-01-01T00:00:00Z stdout P "+rest+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.lastLines(t.Context()); got != line {
			t.Errorf("of the log: %q", got[:4])
		}
	}
}

// The last words are the node's or a kubelet's file, and none that a volume has there, nor
// what a link or a FIFO in its place leads to.
func TestLastWordsOfForeignFiles(t *testing.T) {
	dir := t.TempDir()
	r := &Runtime{Config: Config{Dir: filepath.Join(dir, "node"), RootDir: filepath.Join(dir, "kubelet")}}
	c := &run{runtime: r, pod: "uid", spec: &v1.Container{Name: "main"}}
	kubelets, volume := filepath.Join(r.RootDir, "pods", "uid", "containers", "main"), filepath.Join(r.RootDir, "pods", "uid", "volumes")
	for _, dir := range []string{kubelets, volume} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("words"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		kubelets + "/file": "words", kubelets + "/link": "", kubelets + "/fifo": "", kubelets + "/../../volumes/../containers/main/file": "words",
		volume + "/file": "", volume + "/link": "", volume + "/fifo": "", kubelets + "/../../volumes/file": "",
	} {
		status := &cri.ContainerStatus{Mounts: []*cri.Mount{{ContainerPath: "/dev/termination-log", HostPath: path}}}
		if got := c.lastWords(t.Context(), status); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if err := r.prepareFiles("uid", "main", 0); err != nil {
		t.Fatal(err)
	}
	own := r.messageFile("uid", "main", 0)
	for what, replace := range map[string]func() error{
		"a link": func() error { return os.Symlink(filepath.Join(volume, "file"), own) },
		"a FIFO": func() error { return unix.Mkfifo(own, 0o600) },
	} {
		if err := os.Remove(own); err != nil {
			t.Fatal(err)
		}
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		if got := c.lastWords(t.Context(), nil); got != "" {
			t.Errorf("%s in the place of the file: %q", what, got)
		}
	}
}
