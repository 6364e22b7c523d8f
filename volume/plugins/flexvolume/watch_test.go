package flexvolume_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// woken is where Run tells of drivers.
type woken chan string

// await waits until the volumes of a driver are woken. Others may be before, and it may be more
// often than once.
func (w woken) await(t *testing.T, want string) {
	t.Helper()
	for got := range w {
		if got == want {
			return
		}
	}
}

// The volumes of a driver are woken when it is installed, replaced, or gets its permissions,
// whichever directory was missing before.
func TestDriversAreFoundAsTheyCome(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	plugin := flexvolume.New(flexvolume.Config{Dir: dir}).(*flexvolume.Plugin)
	if err := plugin.Init(fakehost.New(t)); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, ended := make(woken, 1000), make(chan error)
	plugin.DescribeSource(volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/first"}}}))
	go func() { ended <- plugin.Run(ctx, func(source string) { w <- source }) }()

	install(t, dir, "example.com/first")
	w.await(t, "example.com/first")
	install(t, dir, "example.com/second", "third")
	w.await(t, "example.com/second")
	w.await(t, "third")
	w.settle(t, dir)
	install(t, dir, "example.com/first") // anew
	w.await(t, "example.com/first")
	w.settle(t, dir)
	must(os.Chmod(driver.Program(dir, "third"), 0o700))
	w.await(t, "third")

	must(os.Rename(dir, dir+"-old"))
	install(t, dir, "example.com/fourth")
	w.await(t, "example.com/fourth")
	must(os.RemoveAll(filepath.Dir(dir)))
	install(t, dir, "example.com/fifth")
	w.await(t, "example.com/fifth")
	cancel()
	must(<-ended)
}

// settle waits until all events are told that have happened so far: a driver that comes now is
// told of after them.
func (w woken) settle(t *testing.T, dir string) {
	t.Helper()
	install(t, dir, "settled")
	w.await(t, "settled")
	for len(w) > 0 {
		<-w
	}
	if err := os.RemoveAll(filepath.Dir(driver.Program(dir, "settled"))); err != nil {
		t.Fatal(err)
	}
}
