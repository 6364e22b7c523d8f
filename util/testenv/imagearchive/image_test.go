package imagearchive_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/podvol/podvol/util/testenv/imagearchive"
)

// entry is what a test reads of a tar.
type entry struct {
	tar.Header
	content []byte
}

func untar(t *testing.T, archive []byte) map[string]entry {
	t.Helper()
	entries := make(map[string]entry)
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		entries[header.Name] = entry{*header, content}
	}
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

func TestAnArchiveHasWhatARuntimeLooksFor(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(source, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := imagearchive.Image{
		Names: []string{"example.test/server:1", "example.test/server:2"}, Entrypoint: []string{"/server"}, Cmd: []string{"serve"}, Env: []string{"PATH=/bin"},
		Files: []imagearchive.File{
			{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			{Path: "server", Mode: 0o755, Source: source},
			{Path: "empty", Mode: 0o640, Content: []byte{}},
			{Path: "link", Link: "/server"},
			{Path: "again", Link: "server", Hard: true},
		},
	}
	other := imagearchive.Image{Names: []string{"example.test/other:1"}, Files: []imagearchive.File{{Path: "file", Mode: 0o644, Content: []byte("text")}}}
	var written bytes.Buffer
	if err := imagearchive.Write(&written, server, other); err != nil {
		t.Fatal(err)
	}

	archive := untar(t, written.Bytes())
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	decode(t, archive["manifest.json"].content, &manifest)
	if len(manifest) != 2 || !slices.Equal(manifest[0].RepoTags, server.Names) || len(manifest[0].Layers) != 1 {
		t.Fatalf("the manifest is %+v", manifest)
	}
	var config struct {
		OS, Architecture string
		Config           struct{ Entrypoint, Cmd, Env []string }
		RootFS           struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, archive[manifest[0].Config].content, &config)
	layer := archive[manifest[0].Layers[0]].content
	sum := sha256.Sum256(layer)
	if want := []string{"sha256:" + hex.EncodeToString(sum[:])}; !slices.Equal(config.RootFS.DiffIDs, want) {
		t.Errorf("the configuration names the layers %v, want %v", config.RootFS.DiffIDs, want)
	}
	if c := config.Config; config.OS != "linux" || config.Architecture == "" || !slices.Equal(c.Entrypoint, server.Entrypoint) || !slices.Equal(c.Cmd, server.Cmd) || !slices.Equal(c.Env, server.Env) {
		t.Errorf("the configuration is %+v", config)
	}
	checkFiles(t, untar(t, layer))
}

func checkFiles(t *testing.T, files map[string]entry) {
	t.Helper()
	want := map[string]tar.Header{
		"tmp/": {Typeflag: tar.TypeDir, Mode: 0o1777}, "server": {Typeflag: tar.TypeReg, Mode: 0o755, Size: 9}, "empty": {Typeflag: tar.TypeReg, Mode: 0o640},
		"link": {Typeflag: tar.TypeSymlink, Linkname: "/server"}, "again": {Typeflag: tar.TypeLink, Linkname: "server"},
	}
	if len(files) != len(want) {
		t.Errorf("the layer has %d files, want %d", len(files), len(want))
	}
	for name, h := range want {
		if got := files[name]; got.Typeflag != h.Typeflag || got.Mode != h.Mode || got.Size != h.Size || got.Linkname != h.Linkname {
			t.Errorf("%s is %+v, want %+v", name, got.Header, h)
		}
	}
	if got := string(files["server"].content); got != "a program" {
		t.Errorf("the program is %q", got)
	}
}

func TestAMissingSourceIsAnError(t *testing.T) {
	image := imagearchive.Image{Names: []string{"example.test/x:1"}, Files: []imagearchive.File{{Path: "x", Source: filepath.Join(t.TempDir(), "missing")}}}
	if err := imagearchive.Write(io.Discard, image); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}
