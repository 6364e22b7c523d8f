//go:build linux

package atomicdir

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume/fileset"
)

// kubeletWrite does what the kubelet's atomic writer does with a set that has no directories and
// no owners (Kubernetes v1.37, AtomicWriter.Write), in its order and with the os package as there.
func kubeletWrite(dir string, files map[string]fileset.File) error {
	data := filepath.Join(dir, dataName)
	old, err := os.Readlink(data)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if old == "" {
		return kubeletReplace(dir, "", files)
	}
	stale, err := kubeletStale(filepath.Join(dir, old), files)
	if err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(dir, old, name)
		if _, err := os.Lstat(path); err != nil {
			return kubeletReplace(dir, old, files, stale...)
		}
		there, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(there, f.Data) {
			return kubeletReplace(dir, old, files, stale...)
		}
	}
	if len(stale) > 0 {
		return kubeletReplace(dir, old, files, stale...)
	}
	return kubeletLinks(dir, files)
}

// kubeletStale finds the names that go.
func kubeletStale(old string, files map[string]fileset.File) (stale []string, err error) {
	err = filepath.Walk(old, func(path string, _ fs.FileInfo, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, old), "/")
		if _, stays := files[name]; name != "" && !stays {
			stale = append(stale, name)
		}
		return err
	})
	return stale, err
}

func kubeletReplace(dir, old string, files map[string]fileset.File, stale ...string) error {
	version, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	if err := os.Chmod(version, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(version, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Data, f.Mode); err != nil {
			return err
		}
		if err := os.Chmod(path, f.Mode); err != nil {
			return err
		}
	}
	newData := filepath.Join(dir, newDataName)
	if err := os.Symlink(filepath.Base(version), newData); err != nil {
		return err
	}
	if err := os.Rename(newData, filepath.Join(dir, dataName)); err != nil {
		return err
	}
	if err := kubeletLinks(dir, files); err != nil {
		return err
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(dir, old))
}

func kubeletLinks(dir string, files map[string]fileset.File) error {
	for name := range files {
		_, err := os.Readlink(filepath.Join(dir, name))
		if err == nil || !os.IsNotExist(err) {
			continue
		}
		if err := os.Symlink(filepath.Join(dataName, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// TestOneFileRatios compares the volume of most ConfigMaps, one file, with the kubelet's writer,
// in turn and in batches, so that the processors' time can be told:
//
//	go test ./volume/atomicdir -run OneFileRatios -v
func TestOneFileRatios(t *testing.T) { figures.EachFileSystem(t, measureOneFile) }

func measureOneFile(t *testing.T) {
	_, asserted := figures.Slack(t)
	rounds, batch := 3, 20
	if asserted || testing.Verbose() {
		rounds, batch = 15, 200
	}
	base := t.TempDir()
	version := func(n int) map[string]fileset.File {
		return map[string]fileset.File{"app.yaml": {Data: fmt.Appendf(nil, "version: %d", n), Mode: 0o644}}
	}
	p := Publisher{Sole: true}
	publish := func(dir string, files map[string]fileset.File) error {
		_, err := p.Publish(t.Context(), dir, files)
		return err
	}
	// ways has one round of a writer for each row, each on what the one before has left.
	ways := func(writer string, write func(string, map[string]fileset.File) error) []figures.Way {
		dirs := make([]string, batch)
		all := func(files map[string]fileset.File) func() {
			return func() {
				for _, dir := range dirs {
					if err := write(dir, files); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		fresh := func() {
			for i := range dirs {
				dirs[i] = freshDir(t, base)
			}
		}
		return []figures.Way{
			{Name: writer + " first", Prepare: fresh, Run: all(version(0))},
			{Name: writer + " again", Run: all(version(0))},
			{Name: writer + " changed", Run: all(version(1))},
		}
	}
	took := figures.InTurn(t, rounds, append(ways("kubelet", kubeletWrite), ways("podvol", publish)...)...)
	of := time.Duration(batch)
	for _, row := range []struct {
		name  string
		limit float64
	}{{"first", 0.9}, {"again", 0.7}, {"changed", 0.7}} {
		ours, theirs := took["podvol "+row.name], took["kubelet "+row.name]
		what := "a ConfigMap of one file, " + row.name
		cpu := figures.Times(what, figures.CPU, ours.Median.CPU/of, "kubelet's writer", theirs.Median.CPU/of, row.limit)
		wall := figures.Times(what, figures.Wall, ours.Median.Wall/of, "kubelet's writer", theirs.Median.Wall/of, row.limit)
		wall.Fastest = ours.Fastest.Wall.Seconds() / theirs.Fastest.Wall.Seconds()
		figures.Report(t, cpu, wall)
	}
}
