package image_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/image"
)

// large writes a layout with an image of 1 GiB in 20 layers, of files of 1 MiB of which half
// can be compressed. PODVOL_LARGE_IMAGE names a directory that keeps it from run to run, as
// another program needs that is to be compared.
func large(b *testing.B) string {
	b.Helper()
	dir := os.Getenv("PODVOL_LARGE_IMAGE")
	if dir == "" {
		dir = b.TempDir()
	}
	if _, err := os.Stat(filepath.Join(dir, "index.json")); err == nil {
		return dir
	}
	random := rand.NewChaCha8([32]byte{})
	layers := make([]ociimage.Layer, 20)
	for i := range layers {
		for j := range 1024/len(layers) + 1 {
			data := make([]byte, 1<<20)
			_, _ = random.Read(data[:len(data)/2])
			layers[i].Entries = append(layers[i].Entries, ociimage.Entry{Name: fmt.Sprintf("d%d/f%d", i, j), Content: string(data)})
		}
	}
	var images ociimage.Registry
	images.Add("large:1", layers...)
	images.WriteLayout(b, dir, "r.test")
	return dir
}

func benchmarked(b *testing.B, config image.Config) *node {
	b.Helper()
	config.ReservePercent = -1
	n := &node{Host: fakehost.New(b), config: config, plugin: image.New(config)}
	if err := n.plugin.Init(n.Host); err != nil {
		b.Fatal(err)
	}
	return n
}

// A pod whose image is not on the node, and the next one.
func BenchmarkLargeImage(b *testing.B) {
	layout := large(b)
	n := benchmarked(b, image.Config{Layouts: []string{layout}, UnusedBytes: -1, UnusedFor: -1})
	up := func(b *testing.B, name string) func() {
		pod := fakehost.Pod(name)
		if _, err := n.setUp(b.Context(), pod, "v", "r.test/large:1", v1.PullNever); err != nil {
			b.Fatal(err)
		}
		return func() {
			u, err := n.plugin.NewUnmounter("v", pod.UID)
			if err == nil {
				err = u.TearDown(b.Context())
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("cold", func(b *testing.B) {
		b.SetBytes(1 << 30)
		for b.Loop() {
			down := up(b, "first")
			b.StopTimer()
			down()
			b.StartTimer()
		}
	})
	b.Run("shared", func(b *testing.B) {
		defer up(b, "first")()
		for b.Loop() {
			up(b, "next")()
		}
	})
}
