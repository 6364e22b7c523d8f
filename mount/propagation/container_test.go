package propagation_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/propagation"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/containertest"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// askVar makes the test binary a program in a container: it checks a directory.
const askVar = "PODVOL_PROPAGATION_ASK"

func TestMain(m *testing.M) {
	sandbox.Main()
	if dir := os.Getenv(askVar); dir != "" {
		w, err := propagation.Of(host.New(host.Config{}), dir)
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		_ = json.NewEncoder(os.Stdout).Encode(w)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// ask runs the check in a container whose root is not the host's.
func ask(t *testing.T, config sandbox.Config, dir string) *propagation.Warning {
	t.Helper()
	config.Env = []string{askVar + "=" + dir}
	code, out, errOut := containertest.Run(t, config)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	var w *propagation.Warning
	testtool.Must(t, json.Unmarshal([]byte(out), &w))
	return w
}

func TestInContainers(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) {
		disk := testtool.MkdirAll(t, t.TempDir(), "disk")
		mounttest.Mount(t, mounttest.Tmpfs(disk))
		mounttest.Mount(t, mount.Request{Target: disk, Options: []string{"rshared"}})
		root := testtool.MkdirAll(t, disk, "kubelet")
		if w, err := propagation.Of(host.New(host.Config{}), root); w != nil || err != nil {
			t.Errorf("on the host: %v, %v", w, err)
		}
		for name, tc := range map[string]struct {
			mode mount.Propagation
			want propagation.Place
		}{
			"None":            {mount.PropagationPrivate, propagation.Container},
			"HostToContainer": {mount.PropagationSlave, propagation.Container},
			"Bidirectional":   {mount.PropagationShared, ""},
		} {
			for _, own := range []bool{false, true} {
				config := containertest.Config(t, sandbox.Mount{Source: root, Destination: root, Propagation: tc.mode})
				config.PIDNamespace = own
				w := ask(t, config, root)
				switch {
				case tc.want == "" && w != nil:
					t.Errorf("%s, own processes %v: %s", name, own, w)
				case tc.want != "" && (w == nil || w.Place != tc.want || w.Mount.Target != root):
					t.Errorf("%s, own processes %v: %+v", name, own, w)
				}
			}
		}
		// A directory that does not exist yet, on the container's own disk.
		if w := ask(t, containertest.Config(t), "/var/lib/kubelet"); w == nil || w.Place != propagation.Container || w.Dir != "/var/lib/kubelet" {
			t.Errorf("without a volume: %+v", w)
		}
	})
}
