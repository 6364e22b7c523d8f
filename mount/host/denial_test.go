package host_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestDenials(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		if inUserNamespace(t) {
			m := host.New(host.Config{Via: host.ViaSystemCalls})
			err := m.MountContext(t.Context(), mount.Request{Source: "/dev/null", Target: target, FSType: "ext4"})
			if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != mount.ErrNotPermitted || !errors.Is(err, mount.ErrUserNamespace) || e.Capability != "" {
				t.Errorf("a disk in a user namespace: %v", err)
			}
			err = mounttest.Unmount(t, "/proc")
			if !errors.Is(err, mount.ErrNotPermitted) || !errors.Is(err, mount.ErrLocked) {
				t.Errorf("what the namespace inherited: %v", err)
			}
			return
		}
		// A process without any capability.
		for _, dir := range []string{target, filepath.Dir(target)} {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), holderVar+"=mount "+target)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		output, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(output), "\n")
		if line != "not permitted, for lack of CAP_SYS_ADMIN" {
			t.Errorf("an ordinary process: %s", output)
		}
	})
}

// tryToMount mounts as the process that runs it may, and prints how it fails.
func tryToMount(target string) {
	err := host.New(host.Config{}).Mount("tmpfs", target, "tmpfs", nil)
	if e, ok := errors.AsType[*mount.Error](err); ok {
		fmt.Printf("%v, for lack of %s\n", e.Cause, e.Capability)
	}
	fmt.Println(err)
}

func TestAdviceNamesTheDistributionsPackage(t *testing.T) {
	const list = "nfs-common on Debian and Ubuntu"
	for name, tc := range map[string]struct{ release, install string }{
		"Debian":               {"PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n", "apt-get install nfs-common."},
		"Ubuntu":               {"ID=ubuntu\nID_LIKE=debian\n", "apt-get install nfs-common."},
		"a child of Debian":    {"ID=raspbian\nID_LIKE=debian\n", "apt-get install nfs-common."},
		"Rocky":                {"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install nfs-utils."},
		"openSUSE":             {"ID=\"opensuse-leap\"\nID_LIKE='suse opensuse'\n", "zypper install nfs-client."},
		"Alpine":               {"ID=alpine\n", "apk add nfs-utils."},
		"Arch":                 {"ID=arch\n", "pacman -S nfs-utils."},
		"one that has no name": {"NAME=mine\n", list},
		"an unknown one":       {"ID=nixos\n", list},
		"none":                 {"", list},
	} {
		t.Run(name, func(t *testing.T) {
			recordedPath, err := filepath.Abs(filepath.Join(recorded, "mount-nfs-no-helper.txt"))
			if err != nil {
				t.Fatal(err)
			}
			config := node(t, fakeCommand(t, "cat "+recordedPath+"; exit 32\n"), nil, []string{"nfs"})
			if tc.release != "" {
				if err := os.WriteFile(config.OSReleaseFile, []byte(tc.release), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err = host.New(config).MountContext(t.Context(), mount.Request{Source: "10.0.0.1:/e", Target: t.TempDir(), FSType: "nfs"})
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || !strings.Contains(e.Advice(), tc.install) {
				t.Fatalf("%q is missing in %v", tc.install, err)
			}
			if tc.install != list && strings.Contains(e.Advice(), list) {
				t.Errorf("it names other distributions: %s", e.Advice())
			}
		})
	}
}

func TestAdviceForTheKernelsModules(t *testing.T) {
	config := node(t, fakeCommand(t, "echo \"mount: unknown filesystem type 'nfs'\"; exit 32\n"), []string{"nfs"}, nil)
	if err := os.WriteFile(config.OSReleaseFile, []byte("ID=ubuntu\nID_LIKE=debian\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := host.New(config).MountContext(t.Context(), mount.Request{Source: "10.0.0.1:/e", Target: t.TempDir(), FSType: "nfs"})
	if !errors.Is(err, mount.ErrNoFilesystem) || !strings.Contains(err.Error(), "apt-get install linux-modules-extra-$(uname -r)") {
		t.Errorf("err = %v", err)
	}
}

func TestOptionNamedByAPlainMounter(t *testing.T) {
	said := errors.New("mount failed: exit status 32\nOutput: mount: /t: fsconfig() failed: ext4: Unknown parameter 'hunter2'.")
	request := mount.Request{Source: "/dev/sda", Target: "/t", FSType: "ext4", Options: []string{"hunter2"}}
	err := mount.Mount(t.Context(), host.Wrap(mounttest.Plain{Err: said}, nil), request)
	if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != mount.ErrBadOption || e.Option != "hunter2" {
		t.Errorf("err = %#v", err)
	}
	request.Options, request.Sensitive = nil, []string{"hunter2"}
	err = mount.Mount(t.Context(), host.Wrap(mounttest.Plain{Err: said}, nil), request)
	if e, ok := errors.AsType[*mount.Error](err); !ok || e.Option != "<masked>" {
		t.Errorf("err = %#v", err)
	}
}
