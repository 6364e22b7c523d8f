package volumemanager_test

import (
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins"
)

// TestAllShareOneMountTable gives a manager a mounter without a table of its own:
// whatever its plugins and itself ask is answered from one.
func TestAllShareOneMountTable(t *testing.T) {
	w := newWorld(t)
	w.mounter = struct{ mount.Interface }{w.fake}
	asker := &asksTable{}
	w.plugins = func() []volume.VolumePlugin { return append(plugins.All(), asker) }
	w.start()
	first, err := mount.TableOf(asker.host.GetMounter())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := mount.TableOf(asker.host.GetMounter()); err != nil || again != first {
		t.Errorf("asked again, there is another table: %T, %T, %v", first, again, err)
	}
	if other, err := mount.TableOf(w.mounter); err != nil || other == first {
		t.Errorf("the mounter has that table by itself: %v", err)
	}
}

// asksTable is a plugin that remembers its host.
type asksTable struct {
	volume.VolumePlugin
	host volume.VolumeHost
}

func (a *asksTable) Init(host volume.VolumeHost) error { a.host = host; return nil }
func (*asksTable) GetPluginName() string               { return "example.com/asks" }
