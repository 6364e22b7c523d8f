package oci_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

func TestParse(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for name, want := range map[string]string{
		"busybox":                       "docker.io/library/busybox:latest",
		"org/app:1.2":                   "docker.io/org/app:1.2",
		"index.docker.io/busybox":       "docker.io/library/busybox:latest",
		"localhost/app":                 "localhost/app:latest",
		"registry:5000/a/b__c.d-e:T_1":  "registry:5000/a/b__c.d-e:T_1",
		"[::1]:5000/app":                "[::1]:5000/app:latest",
		"quay.io/app@" + digest:         "quay.io/app@" + digest,
		"quay.io/app:1@" + digest:       "quay.io/app:1@" + digest,
		"localhost:5000/app:1":          "localhost:5000/app:1",
		"registry.k8s.io/e2e/agnhost:2": "registry.k8s.io/e2e/agnhost:2",
		"":                              "", "UPPER": "", "a/../b": "", "a//b": "", "a:b:c": "", "a@sha256:12": "", "a@md5:" + strings.Repeat("a", 64): "", "quay.io/-a": "",
		"http://quay.io/a": "", "quay.io/a b": "", "a:-": "", "quay.io:port/a": "", strings.Repeat("a", 300): "", "a\n": "", "-host.io/a": "",
	} {
		got, err := oci.Parse(name)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("Parse(%q) = %v, %v, want %s", name, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("registry:5000/a/b:1@sha256:" + strings.Repeat("a", 64))
	f.Fuzz(func(t *testing.T, name string) {
		ref, err := oci.Parse(name)
		if err != nil {
			return
		}
		if again, err := oci.Parse(ref.String()); err != nil || again != ref {
			t.Errorf("Parse(%q) = %v, which is parsed as %v, %v", name, ref, again, err)
		}
	})
}

// layout returns a layout with images, and a name of one of them.
func layout(t *testing.T, add func(*ociimage.Registry)) func(name string, on oci.Platform) (oci.Image, error) {
	var r ociimage.Registry
	add(&r)
	dir := t.TempDir()
	r.WriteLayout(t, dir, "r.test")
	return func(name string, on oci.Platform) (oci.Image, error) {
		ref, err := oci.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		return oci.Resolve(t.Context(), oci.Layout{Dir: dir}, ref, on)
	}
}

func TestPlatforms(t *testing.T) {
	digests := make(map[string]string)
	resolve := layout(t, func(r *ociimage.Registry) {
		for _, p := range []string{"linux/amd64", "linux/arm64", "windows/amd64"} {
			digests[p] = r.Add("of/"+p+":1", ociimage.Layer{Entries: []ociimage.Entry{{Name: p}}})
		}
		digests["index"] = r.AddIndex("all:1", digests)
		r.AddIndex("twice:1", map[string]string{"linux/amd64": digests["index"]})
	})
	for _, processor := range []string{"amd64", "arm64"} {
		of, err := resolve("r.test/of/linux/"+processor+":1", oci.Platform{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := resolve("r.test/all:1", oci.Platform{OS: "linux", Architecture: processor})
		if err != nil || got.Digest != digests["index"] || got.Layers[0].Digest != of.Layers[0].Digest {
			t.Errorf("%s: %+v, %v", processor, got, err)
		}
	}
	_, err := resolve("r.test/all:1", oci.Platform{OS: "linux", Architecture: "riscv64"})
	if !errors.Is(err, oci.ErrNoPlatform) || !strings.Contains(err.Error(), "linux/riscv64") || !strings.Contains(err.Error(), "linux/arm64") {
		t.Errorf("for another processor: %v", err)
	}
	if _, err := resolve("r.test/twice:1", oci.Platform{OS: "linux", Architecture: "amd64"}); !errors.Is(err, oci.ErrMalformed) {
		t.Errorf("an index of indexes: %v", err)
	}
}

func TestMalformed(t *testing.T) {
	digest := ociimage.Digest(nil)
	part := func(size int, digest string) string { return fmt.Sprintf(`{"digest":%q,"size":%d}`, digest, size) }
	config := `"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d}`
	manifests := map[string]string{
		"text":     `no JSON`,
		"schema1":  `{"schemaVersion":1}`,
		"path":     `{"layers":[` + part(1, "sha256:../../../../etc/passwd") + `]}`,
		"negative": `{"layers":[` + part(-1, digest) + `]}`,
		"config":   `{"layers":[],` + fmt.Sprintf(config, "x", 1) + `}`,
		"large":    `{"layers":[],` + fmt.Sprintf(config, digest, 1<<30) + `}`,
		"title":    `{"layers":[{"digest":"` + digest + `","annotations":{"org.opencontainers.image.title":"../x"}}]}`,
		"deep":     `{"layers":[{"digest":"` + digest + `","annotations":{"org.opencontainers.image.title":"` + strings.Repeat("d/", 255) + `f"}}]}`,
		"long":     `{"layers":[{"digest":"` + digest + `","annotations":{"org.opencontainers.image.title":"` + strings.Repeat("f", 4096) + `"}}]}`,
		"absolute": `{"layers":[{"digest":"` + digest + `","annotations":{"org.opencontainers.image.title":"/x"}}]}`,
	}
	resolve := layout(t, func(r *ociimage.Registry) {
		for name, text := range manifests {
			r.AddManifest(name+":1", text)
		}
		r.Add("ids:1", ociimage.Layer{DiffID: "x"})
	})
	manifests["ids"] = ""
	for name := range manifests {
		if _, err := resolve("r.test/"+name+":1", oci.Platform{}); !errors.Is(err, oci.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := resolve("r.test/none:1", oci.Platform{}); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
}

// A link in a layout leads to no other file of the machine, and a changed blob is found.
func TestLayoutsAreChecked(t *testing.T) {
	var r ociimage.Registry
	digest := r.Add("a:1")
	dir := t.TempDir()
	r.WriteLayout(t, dir, "r.test")
	ref, err := oci.Parse("r.test/a@" + digest)
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs/sha256", oci.Hex(digest))
	if err := os.WriteFile(blob, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := oci.Resolve(t.Context(), oci.Layout{Dir: dir}, ref, oci.Platform{}); !errors.Is(err, oci.ErrDigestMismatch) {
		t.Errorf("changed: %v", err)
	}
	if err := errors.Join(os.Remove(blob), os.Symlink("/etc/passwd", blob)); err != nil {
		t.Fatal(err)
	}
	if _, err := oci.Resolve(t.Context(), oci.Layout{Dir: dir}, ref, oci.Platform{}); err == nil || errors.Is(err, oci.ErrDigestMismatch) {
		t.Errorf("a link out of the layout: %v", err)
	}
}
