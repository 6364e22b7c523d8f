//go:build linux

package containermounts_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/volume/containermounts"
)

var update = flag.Bool("update", false, "write the golden files")

const pods = "/var/lib/podvol/pods/uid/"

func mounts() []containermounts.Mount {
	return []containermounts.Mount{
		{Volume: "data", Source: pods + "volumes/kubernetes.io~nfs/nfs211", Destination: "/data", Propagation: mount.PropagationPrivate,
			Locked: []string{"nosuid", "nodev"}},
		{Volume: "config", Source: pods + "volume-subpaths/config/web/1", Destination: "/etc/web.conf", SubPath: "web.conf", File: true,
			ReadOnly: true, Propagation: mount.PropagationPrivate, SELinuxRelabel: true, Locked: []string{"ro", "noexec"}},
		{Volume: "host", Source: "/srv/a,b \"c\"", Destination: "/srv", ReadOnly: true, RecursiveReadOnly: true, Propagation: mount.PropagationPrivate},
		{Volume: "plugins", Source: "/var/lib/plugins", Destination: "/plugins", Propagation: mount.PropagationShared},
		{Volume: "media", Source: "/media", Destination: "/media", ReadOnly: true, Propagation: mount.PropagationSlave},
	}
}

func mapped() containermounts.Mount {
	return containermounts.Mount{Volume: "mapped", Source: "/mapped", Destination: "/mapped", Propagation: mount.PropagationPrivate,
		UIDMappings: []host.IDMapping{{ContainerID: 0, HostID: 65536, Size: 65536}},
		GIDMappings: []host.IDMapping{{ContainerID: 0, HostID: 131072, Size: 65536}}}
}

func hardened() containermounts.Mount {
	return containermounts.Mount{Volume: "hardened", Source: "/hardened", Destination: "/hardened", Propagation: mount.PropagationPrivate,
		Locked: []string{"nosuid"}, BindMountOptions: []string{"noexec", "nosuid"}}
}

func devices() []containermounts.Device {
	return []containermounts.Device{
		{Volume: "disk", Source: pods + "volumeDevices/kubernetes.io~local-volume/pv", Destination: "/dev/xvda", Permissions: "rwm"},
		{Volume: "backup", Source: pods + "volumeDevices/kubernetes.io~local-volume/backup", Destination: "/dev/xvdb", Permissions: "r"},
	}
}

func golden(t *testing.T, name string, got any) {
	t.Helper()
	text, err := json.MarshalIndent(got, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestGolden(t *testing.T) {
	all := append(mounts(), mapped(), hardened())
	golden(t, "oci_mounts.json", containermounts.OCIMounts(all))
	golden(t, "cri_mounts.json", containermounts.CRIMounts(all))
	golden(t, "cri_devices.json", containermounts.CRIDevices(devices()))
	args, err := containermounts.DockerMountArgs(mounts())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "docker_mount.json", args)
	if args, err = containermounts.DockerVolumeArgs(slices.Delete(mounts(), 2, 3)); err != nil {
		t.Fatal(err)
	}
	golden(t, "docker_volume.json", args)
	shown, err := containermounts.DockerInspectMounts(mounts())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "docker_inspect.json", shown)
	if args, err = containermounts.DockerDeviceArgs(devices()); err != nil {
		t.Fatal(err)
	}
	golden(t, "docker_device.json", args)
}

func TestNothingIsNoNull(t *testing.T) {
	for _, list := range []any{containermounts.OCIMounts(nil), containermounts.CRIMounts(nil), containermounts.CRIDevices(nil)} {
		if text, err := json.Marshal(list); err != nil || string(text) != "[]" {
			t.Errorf("%s, %v", text, err)
		}
	}
}

// Whatever is in a path, docker reads it as one field.
func TestDockerReadsEveryPath(t *testing.T) {
	for _, path := range []string{"/a,b", `/a"b`, "/ a ", "/a\nb", "/a,readonly", `/a\,b`, "/ä=b"} {
		args, err := containermounts.DockerMountArgs([]containermounts.Mount{{Source: path, Destination: path, Propagation: "rprivate"}})
		if err != nil || len(args) != 2 {
			t.Fatal(args, err)
		}
		fields, err := csv.NewReader(strings.NewReader(args[1])).Read()
		want := []string{"type=bind", "source=" + path, "target=" + path, "bind-propagation=rprivate"}
		if diff := cmp.Diff(want, fields); diff != "" || err != nil {
			t.Errorf("%q: %v, %s", path, err, diff)
		}
	}
}

func TestInexpressible(t *testing.T) {
	colon := containermounts.Mount{Volume: "colon", Source: "/a:b", Destination: "/c"}
	for name, convert := range map[string]func() ([]string, error){
		"mapped, --mount": func() ([]string, error) {
			return containermounts.DockerMountArgs([]containermounts.Mount{mapped()})
		},
		"mapped, -v": func() ([]string, error) {
			return containermounts.DockerVolumeArgs([]containermounts.Mount{mapped()})
		},
		"hardened, --mount": func() ([]string, error) {
			return containermounts.DockerMountArgs([]containermounts.Mount{hardened()})
		},
		"hardened, -v": func() ([]string, error) {
			return containermounts.DockerVolumeArgs([]containermounts.Mount{hardened()})
		},
		"recursive, -v": func() ([]string, error) { return containermounts.DockerVolumeArgs(mounts()[2:3]) },
		"colon, -v": func() ([]string, error) {
			return containermounts.DockerVolumeArgs([]containermounts.Mount{colon})
		},
		"colon, --device": func() ([]string, error) {
			return containermounts.DockerDeviceArgs([]containermounts.Device{{Source: "/a", Destination: "/b:c"}})
		},
	} {
		args, err := convert()
		e, ok := errors.AsType[*containermounts.InexpressibleError](err)
		if !ok || e.Reason == "" || e.Form == "" || args != nil {
			t.Errorf("%s: %v, %v", name, args, err)
		}
	}
}

func TestOCIDevices(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	made, rules, err := containermounts.OCIDevices([]containermounts.Device{{Volume: "v", Source: link, Destination: "/dev/x", Permissions: "r"}})
	if err != nil {
		t.Fatal(err)
	}
	want := containermounts.OCIDevice{Path: "/dev/x", Type: "c", Major: 1, Minor: 3, FileMode: 0o666, UID: made[0].UID, GID: made[0].GID}
	rule := containermounts.OCIDeviceRule{Allow: true, Type: "c", Major: 1, Minor: 3, Access: "r"}
	if len(made) != 1 || made[0] != want || len(rules) != 1 || rules[0] != rule {
		t.Errorf("%+v, %+v", made, rules)
	}
	for source, want := range map[string]error{t.TempDir(): unix.ENODEV, link + "-missing": unix.ENOENT} {
		if _, _, err := containermounts.OCIDevices([]containermounts.Device{{Volume: "v", Source: source}}); !errors.Is(err, want) {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// What docker cannot do is not shown as if it did.
func TestDockerInspectRefuses(t *testing.T) {
	for _, m := range []containermounts.Mount{mapped(), hardened()} {
		shown, err := containermounts.DockerInspectMounts([]containermounts.Mount{m})
		if refused, ok := errors.AsType[*containermounts.InexpressibleError](err); !ok || refused.Volume != m.Volume || shown != nil {
			t.Errorf("%s: %v, %v", m.Volume, shown, err)
		}
	}
}

// A label of the container's own is given only where files may be relabelled at all.
func TestPrivateLabel(t *testing.T) {
	for _, test := range []struct {
		relabel, private bool
		want             string
	}{{false, false, "rprivate"}, {false, true, "rprivate"}, {true, false, "rprivate,z"}, {true, true, "rprivate,Z"}} {
		m := containermounts.Mount{Source: "/a", Destination: "/b", Propagation: mount.PropagationPrivate, SELinuxRelabel: test.relabel, SELinuxPrivate: test.private}
		args, err := containermounts.DockerVolumeArgs([]containermounts.Mount{m})
		if want := []string{"-v", "/a:/b:" + test.want}; err != nil || !slices.Equal(args, want) {
			t.Errorf("%q, %v, want %q", args, err, want)
		}
		shown, err := containermounts.DockerInspectMounts([]containermounts.Mount{m})
		if err != nil || shown[0].Mode != test.want {
			t.Errorf("docker inspect: %+v, %v, want mode %s", shown, err, test.want)
		}
	}
}
