package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// askVar has this test, in a process of its own, ask for mounts as a plugin does.
const askVar = "PODVOL_TEST_ASK"

const questions = 200

// TestPluginsShareOneMountTable gives a cluster a mounter without a table of its
// own: what its plugins ask is answered from one, which is not read for each question.
func TestPluginsShareOneMountTable(t *testing.T) {
	if root := os.Getenv(askVar); root != "" {
		askForMounts(t, root)
		return
	}
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	reads := 0
	status, _, err := calltrace.Process{
		Args: []string{"-test.run=^TestPluginsShareOneMountTable$"}, Env: []string{askVar + "=" + t.TempDir()},
		Limit: 5 * time.Minute, Stdout: output, Stderr: output,
		At: func(c calltrace.Call) calltrace.Action {
			if c.Name == "openat" && strings.HasSuffix(c.Path, "/mountinfo") {
				reads++
			}
			return calltrace.Action{}
		},
	}.Run()
	if err != nil {
		t.Fatal(err)
	}
	if said, _ := os.ReadFile(output.Name()); status.ExitStatus() != 0 {
		t.Fatalf("exit code %d: %s", status.ExitStatus(), said)
	}
	t.Logf("mountinfo was opened %d times for %d questions", reads, questions)
	if reads > questions/2 { // not one, since others may mount meanwhile
		t.Errorf("mountinfo was opened %d times for %d questions", reads, questions)
	}
}

func askForMounts(t *testing.T, root string) {
	fake := fakemount.New()
	defer fake.Close()
	asker := &asksTable{}
	cluster, err := embedded.Open(t.Context(), embedded.Config{
		Dir: filepath.Join(root, "claims"), NodeName: "node1", Plugins: []volume.VolumePlugin{asker},
		Host: volume.Host{RootDir: root, Mounter: struct{ mount.Interface }{fake}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	for range questions {
		mounts := table.Of(asker.host.GetMounter())
		if _, _, err := mounts.At(root); err != nil {
			t.Fatal(err)
		}
	}
}

// asksTable is a plugin that remembers its host.
type asksTable struct {
	volume.VolumePlugin
	host volume.VolumeHost
}

func (a *asksTable) Init(host volume.VolumeHost) error { a.host = host; return nil }
func (*asksTable) GetPluginName() string               { return "example.com/asks" }
