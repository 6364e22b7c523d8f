package volumemanager_test

import (
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
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
	first := table.Of(asker.host.GetMounter())
	if again := table.Of(asker.host.GetMounter()); again != first {
		t.Errorf("asked again, there is another table: %T, %T", first, again)
	}
	if table.Of(w.mounter) == first {
		t.Error("the mounter has that table by itself")
	}
}

// asksTable is a plugin that remembers its host.
type asksTable struct {
	volume.VolumePlugin
	host volume.VolumeHost
}

func (a *asksTable) Init(host volume.VolumeHost) error { a.host = host; return nil }
func (*asksTable) GetPluginName() string               { return "example.com/asks" }
