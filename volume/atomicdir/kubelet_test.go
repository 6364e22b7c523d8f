//go:build linux

package atomicdir

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// measure is what one way took for some directories: the clock's time, and the processors' time.
type measure struct{ wall, cpu time.Duration }

func spent(tb testing.TB) measure {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return measure{time.Duration(time.Now().UnixNano()), time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

// TestOneFileRatios compares the volume of most ConfigMaps, one file, with the kubelet's writer,
// in turn and in batches, so that the processors' time can be told:
//
//	go test ./volume/atomicdir -run OneFileRatios -v
//
// The limits are for the medians of the batches' processor time, and for their fastest times.
func TestOneFileRatios(t *testing.T) {
	slack, asserted := figures.Slack(t)
	rounds, batch := 3, 20
	if asserted || testing.Verbose() {
		rounds, batch = 15, 200
	}
	places := map[string]string{"disk": spreadDir(t)}
	figures.InMemory(t)
	places["memory"] = t.TempDir()
	versions := make([]map[string]fileset.File, 3)
	for i := range versions {
		versions[i] = map[string]fileset.File{"app.yaml": {Data: []byte(fmt.Sprint("version: ", i)), Mode: 0o644}}
	}
	steps := []struct {
		name  string
		files map[string]fileset.File
		limit float64
	}{{"first", versions[0], 0.9}, {"again", versions[0], 0.9}, {"changed", versions[1], 0.9}}
	for _, place := range slices.Sorted(maps.Keys(places)) {
		taken := make(map[string][]measure)
		for range rounds {
			p := Publisher{Sole: true}
			ways := map[string]func(dir string, files map[string]fileset.File) error{
				"kubelet": kubeletWrite,
				"podvol": func(dir string, files map[string]fileset.File) error {
					_, err := p.Publish(t.Context(), dir, files)
					return err
				},
			}
			for _, way := range slices.Sorted(maps.Keys(ways)) {
				dirs := make([]string, batch)
				for i := range dirs {
					dirs[i] = freshDir(t, places[place])
				}
				for _, step := range steps {
					before := spent(t)
					for _, dir := range dirs {
						if err := ways[way](dir, step.files); err != nil {
							t.Fatal(err)
						}
					}
					after := spent(t)
					taken[step.name+way] = append(taken[step.name+way], measure{after.wall - before.wall, after.cpu - before.cpu})
				}
			}
		}
		for _, step := range steps {
			cpu := medianOf(taken[step.name+"podvol"], measure.processors) / medianOf(taken[step.name+"kubelet"], measure.processors)
			wall := leastOf(taken[step.name+"podvol"]) / leastOf(taken[step.name+"kubelet"])
			t.Logf("%-6s %-7s %.1f µs of processors, %.2f of the kubelet's median; %.2f of its fastest time (limit %v)", place, step.name,
				medianOf(taken[step.name+"podvol"], measure.processors)/float64(batch)/1e3, cpu, wall, step.limit)
			if asserted && max(cpu, wall) > step.limit*slack {
				t.Errorf("%s, %s: %.2f of the kubelet's processor time and %.2f of its time, more than %v times %v", place, step.name, cpu, wall, slack, step.limit)
			}
		}
	}
}

func (m measure) processors() float64 { return float64(m.cpu) }

func medianOf(all []measure, by func(measure) float64) float64 {
	values := make([]float64, 0, len(all))
	for _, m := range all {
		values = append(values, by(m))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func leastOf(all []measure) float64 {
	least := all[0].wall
	for _, m := range all {
		least = min(least, m.wall)
	}
	return float64(least)
}
