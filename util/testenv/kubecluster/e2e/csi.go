package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/podvol/podvol/util/testenv/imagearchive"
)

// csiManifests are those by which tests deploy a driver, below Kubernetes' own module.
const csiManifests = "test/e2e/testing-manifests/storage-csi"

// csiImages makes the images of the drivers that tests deploy, with the names that Kubernetes'
// manifests have. The sidecars of controllers are the real ones; package util/testenv/csiparts
// stands for the others. Snapshots are not taken here: their sidecar only waits.
func csiImages(ctx context.Context, o options) ([]imagearchive.Image, error) {
	if !o.CSI {
		return nil, nil
	}
	module, err := output(ctx, "go", "list", "-C", filepath.Join(o.Module, "testdata/kubernetes"), "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	names, err := namesInManifests(os.DirFS(filepath.Join(module, csiManifests)))
	if err != nil {
		return nil, err
	}
	programs := filepath.Join(o.Dir, "programs")
	var images []imagearchive.Image
	for repository, source := range map[string]string{
		"csi-attacher": filepath.Join(o.CSIDir, "csi-attacher"), "csi-provisioner": filepath.Join(o.CSIDir, "csi-provisioner"), "csi-resizer": filepath.Join(o.CSIDir, "csi-resizer"),
		"hostpathplugin": filepath.Join(programs, "csiparts"), "csi-node-driver-registrar": filepath.Join(programs, "csiparts"), "livenessprobe": filepath.Join(programs, "csiparts"),
		"csi-snapshotter": filepath.Join(programs, "pause"),
	} {
		if len(names[repository]) == 0 {
			return nil, fmt.Errorf("no manifest names an image %s", repository)
		}
		images = append(images, imagearchive.Image{Names: names[repository], Entrypoint: []string{"/" + repository}, Env: environment(),
			Files: []imagearchive.File{program(repository, source)}})
	}
	return images, nil
}

// namesInManifests returns the names of images in the drivers' manifests, by repository.
func namesInManifests(manifests fs.FS) (map[string][]string, error) {
	names := make(map[string][]string)
	image := regexp.MustCompile(`image: (registry\.k8s\.io/sig-storage/([a-z-]+):\S+)`)
	for _, dir := range []string{"hostpath", "mock"} {
		err := fs.WalkDir(manifests, dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := fs.ReadFile(manifests, path)
			for _, found := range image.FindAllStringSubmatch(string(text), -1) {
				if !slices.Contains(names[found[2]], found[1]) {
					names[found[2]] = append(names[found[2]], found[1])
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}
