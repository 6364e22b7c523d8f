package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest"
)

// TestConformance is all that a plugin's author has to write: a volume that
// must work, and those that must be refused.
func TestConformance(t *testing.T) {
	volumetest.Run(t, newArchive, volumetest.Suite{
		Working: []volumetest.Case{{
			Name: "archive", Spec: inDir("site.tar"), Prepare: site(t, file("index.html", "hello"), file("img/logo.svg", "<svg/>")),
			Want: volumetest.Want{ReadOnly: true, Mount: &volumetest.Mount{FSType: "tmpfs", Options: []string{"ro"}},
				Files: map[string]volumetest.File{"index.html": {Content: "hello", Mode: 0o644}, "img/logo.svg": {Content: "<svg/>"}}},
		}},
		Refused: []volumetest.RefusedCase{
			{Name: "no archive", Spec: inDir("site.tar"), Because: "site.tar"},
			{Name: "a directory", Spec: inDir("."), Because: "no regular file"},
			{Name: "a relative path", Spec: at("site.tar"), Because: "options.path"},
			{Name: "dots", Spec: at("/srv/../etc/site.tar"), Because: "options.path"},
			{Name: "no tar", Spec: inDir("site.tar"), Because: "no tar file",
				Prepare: func(n *volumetest.Node) { n.Write(map[string]string{"site.tar": strings.Repeat("text", 1000)}) }},
			hostile(t, "climbing", "leads out", file("../outside", "x")),
			hostile(t, "absolute", "leads out", file("/etc/cron.d/x", "x")),
			hostile(t, "hidden climbing", "leads out", file("a/../../outside", "x")),
			hostile(t, "symbolic link", "neither a file nor", entry{Header: tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc"}}),
			hostile(t, "hard link", "neither a file nor", file("a", "x"), entry{Header: tar.Header{Name: "link", Typeflag: tar.TypeLink, Linkname: "a"}}),
			hostile(t, "device", "neither a file nor", entry{Header: tar.Header{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}}),
			hostile(t, "good, then bad", "neither a file nor", file("good", "x"), entry{Header: tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}}),
			hostile(t, "large", "larger than", entry{Header: tar.Header{Name: "huge", Typeflag: tar.TypeReg, Size: maxBytes + 1}}),
		},
	})
}

// inDir is the volume of an archive that is prepared in the node's Dir.
func inDir(name string) func(*volumetest.Node) *volume.Spec {
	return func(n *volumetest.Node) *volume.Spec { return at(filepath.Join(n.Dir, name))(n) }
}

func at(path string) func(*volumetest.Node) *volume.Spec {
	return volumetest.Inline(v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: archiveName, Options: map[string]string{"path": path}}})
}

func site(t *testing.T, entries ...entry) func(*volumetest.Node) {
	content := string(tarball(t, entries...))
	return func(n *volumetest.Node) { n.Write(map[string]string{"site.tar": content}) }
}

func hostile(t *testing.T, name, because string, entries ...entry) volumetest.RefusedCase {
	return volumetest.RefusedCase{Name: name, Because: because, Spec: inDir("site.tar"), Prepare: site(t, entries...)}
}

type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, content}
}

// tarball may be cut short: a hostile header need not be followed by content.
func tarball(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Flush()
	b.Write(make([]byte, 1024))
	return b.Bytes()
}

func TestProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "site.tar")
	if err := os.WriteFile(path, tarball(t, file("index.html", "hello")), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	if err := run(t.Context(), &out, path, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"site is mounted: " + path, "example.com~archive/site\n", "  index.html\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &out)
		}
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	err := run(t.Context(), &out, path+".missing", true)
	if err == nil || !strings.Contains(err.Error(), "site.tar.missing") {
		t.Errorf("with a missing archive: %v", err)
	}
}
