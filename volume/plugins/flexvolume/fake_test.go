package flexvolume_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// install puts the tests' driver into a directory of drivers, by these names.
func install(t testing.TB, dir string, names ...string) {
	t.Helper()
	program, err := os.ReadFile("testdata/driver.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		installProgram(t, dir, name, string(program))
	}
}

// installProgram puts a driver's program in its place as a whole.
func installProgram(t testing.TB, dir, name, program string) {
	t.Helper()
	path := driver.Program(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	temp := filepath.Join(filepath.Dir(path), ".new")
	if err := os.WriteFile(temp, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, path); err != nil {
		t.Fatal(err)
	}
}

// hosted is the plugin whose drivers mount by its host's mounter, if that is a fake; on a kernel
// the drivers are run.
type hosted struct {
	*flexvolume.Plugin
	mounter mount.Interface
}

func newHosted(config flexvolume.Config) *hosted {
	h := &hosted{}
	h.Plugin = flexvolume.NewWith(config, h.run, nil)
	return h
}

func (h *hosted) Init(host volume.VolumeHost) error {
	h.mounter = host.GetMounter()
	return h.Plugin.Init(host)
}

func isFake(m mount.Interface) bool {
	for {
		if _, ok := m.(*fakemount.Mounter); ok {
			return true
		}
		wrapped, ok := m.(interface{ Unwrap() mount.Interface })
		if !ok {
			return false
		}
		m = wrapped.Unwrap()
	}
}

func (h *hosted) run(ctx context.Context, path string, args []string) (driver.Output, error) {
	if !isFake(h.mounter) {
		return driver.Run(ctx, path, args)
	}
	answer, err := h.answer(ctx, filepath.Base(path), args)
	b, _ := json.Marshal(answer)
	return driver.Output{Stdout: b}, err
}

// answer does what the tests' driver does.
func (h *hosted) answer(ctx context.Context, name string, args []string) (answer map[string]any, err error) {
	answer = map[string]any{"status": "Success"}
	switch name + "-" + args[0] {
	case "disk-init", "plain-init", "tmpfs-init":
		answer["capabilities"] = map[string]any{"attach": name == "disk", "supportsMetrics": true}
	case "disk-attach", "disk-waitforattach":
		answer["device"] = "/dev/flex/disk"
	case "disk-isattached":
		answer["attached"] = true
	case "disk-detach":
	case "disk-mountdevice":
		return answer, h.bind(ctx, args[1], optionsOf(args[3]))
	case "plain-mount":
		return answer, h.bind(ctx, args[1], optionsOf(args[2]))
	case "plain-unmount", "disk-unmountdevice":
		if _, mounted, err := table.Of(h.mounter).At(args[1]); err != nil || !mounted {
			return answer, err
		}
		_, err = mount.Unmount(ctx, h.mounter, args[1], mount.UnmountOptions{})
	default:
		answer["status"] = "Not supported"
	}
	return answer, err
}

func optionsOf(arg string) (options map[string]string) {
	_ = json.Unmarshal([]byte(arg), &options)
	return options
}

func (h *hosted) bind(ctx context.Context, dir string, options map[string]string) error {
	r := mount.Request{Source: options["dir"], Target: dir, Options: []string{"bind"}}
	if options["kubernetes.io/readwrite"] == "ro" {
		r.Options = append(r.Options, "ro")
	}
	return mount.Mount(ctx, h.mounter, r)
}
