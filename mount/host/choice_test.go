package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// mounted is a table with one mount at every path.
type mounted struct {
	mounttable.Uncached
	fstype string
}

func (m mounted) At(string) (mount.Entry, bool, error) {
	return mount.Entry{FSType: m.fstype}, true, nil
}

func TestChoice(t *testing.T) {
	helpers := t.TempDir()
	for _, name := range []string{"mount.ntfs-3g", "mount.tmpfs"} {
		if err := os.WriteFile(filepath.Join(helpers, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		fstype, source string
		options        []string
		// why is a word of the reason for mount(8); empty: system calls do.
		why string
	}{
		{fstype: "tmpfs", options: []string{"size=1m"}},
		{fstype: "tmpfs", options: []string{"remount", "ro"}},
		{fstype: "hugetlbfs", options: []string{"pagesize=2M"}},
		{fstype: "proc"},
		{fstype: "overlay", options: []string{"lowerdir=/a:/b"}},
		{fstype: "ext4", source: "/dev/sda1", options: []string{"noatime", "_netdev", "x-systemd.after=y"}},
		{fstype: "xfs", source: "/dev/sda1"},
		{fstype: "btrfs", source: "/dev/sda1"},
		{fstype: "", source: "/a", options: []string{"bind", "ro"}},
		{fstype: "none", source: "/a", options: []string{"rbind"}},
		{fstype: "fuse.sshfs", source: "/a", options: []string{"bind"}}, // the type of a bind mount means nothing
		{fstype: "", options: []string{"rshared"}},
		{fstype: "", options: []string{"remount", "bind", "ro"}},
		{fstype: "", options: []string{"remount", "ro"}}, // of a tmpfs, as the table says
		{fstype: "nfs", source: "10.0.0.1:/e"},
		{fstype: "nfs4", source: "10.0.0.1:/e", options: []string{"ro"}},
		{fstype: "nfs", source: "srv:/e", options: []string{"sec=krb5"}, why: "Kerberos"},
		{fstype: "fuse.sshfs", source: "x", why: "helper"},
		{fstype: "fuse", source: "sshfs#x", why: "helper"},
		{fstype: "cifs", source: "//srv/share", why: "helper"},
		{fstype: "ceph", source: "mon:/", why: "helper"},
		{fstype: "ceph", source: "mon:/", options: []string{"secret=QUJD"}, why: "addresses"},
		{fstype: "ceph", source: "10.0.0.1:6789,mon:6789:/", options: []string{"secret=QUJD"}, why: "addresses"},
		{fstype: "ceph", source: "admin@fsid.fs=/", options: []string{"mon_addr=10.0.0.1:6789", "secret=QUJD"}, why: "addresses"},
		{fstype: "ceph", source: "10.0.0.1:6789:/", options: []string{"name=admin", "secretfile=/key"}, why: "key"},
		{fstype: "ceph", source: "10.0.0.1:/a:/b", options: []string{"name=admin", "secret=QUJD"}},
		{fstype: "ceph", source: "10.0.0.1:6789,[2001:db8::1]:6789:/", options: []string{"name=admin", "key=name"}},
		{fstype: "glusterfs", source: "srv:/v", why: "helper"},
		{fstype: "ntfs-3g", source: "/dev/sda1", why: "helper"},
		{fstype: "", source: "/dev/sda1", why: "type"},
		{fstype: "auto", source: "/dev/sda1", why: "type"},
		{fstype: "ext4,xfs", source: "/dev/sda1", why: "type"},
		{fstype: "ext4", source: "UUID=1234", why: "UUID=1234"},
		{fstype: "ext4", source: "/image", options: []string{"loop"}, why: "loop"},
		{fstype: "tmpfs", options: []string{"X-mount.mkdir=0700"}, why: "X-mount.mkdir"},
		{fstype: "tmpfs", options: []string{"user=bob"}, why: "user"},
		{fstype: "ext4", source: "/dev/sda1", options: []string{"helper=x"}, why: "helper"},
		{fstype: "", source: "/a", options: []string{"move"}, why: "move"},
		{fstype: "", options: []string{"rshared", "ro"}, why: "type"},
	} {
		r := mount.Request{Source: tc.source, Target: "/t", FSType: tc.fstype, Options: tc.options}
		for _, via := range []Via{ViaBest, ViaSystemCalls, ViaCommand} {
			m := New(Config{Via: via, HelperDirs: []string{helpers}})
			m.table = mounted{fstype: "tmpfs"}
			native, err := m.choose(t.Context(), r, mountopt.Parse(r.Options...), nil)
			if via == ViaSystemCalls && tc.why != "" {
				if !errors.Is(mount.CauseOf(err), mount.ErrNeedsCommand) || !strings.Contains(err.Error(), tc.why) {
					t.Errorf("%s %q: refused with %v, want %s", r.FSType, r.Options, err, tc.why)
				}
				continue
			}
			if err != nil || native != (tc.why == "" && via != ViaCommand) {
				t.Errorf("%s %q, via %v: native is %v, %v", r.FSType, r.Options, via, native, err)
			}
		}
	}
}

// The remount of what a helper mounted is the helper's.
func TestRemountOfUnknownTypeAsksTheTable(t *testing.T) {
	for fstype, want := range map[string]bool{"fuse.sshfs": false, "ext4": true, "cifs": false} {
		m := New(Config{HelperDirs: []string{}})
		m.table = mounted{fstype: fstype}
		r := mount.Request{Target: "/t", Options: []string{"remount", "ro"}}
		native, err := m.choose(t.Context(), r, mountopt.Parse(r.Options...), nil)
		if err != nil || native != want {
			t.Errorf("%s: native is %v, %v", fstype, native, err)
		}
	}
}

// What may use no process is refused before anything is touched.
func TestRefusedWithoutATouch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := New(Config{Via: ViaSystemCalls, MountCommand: "/no/such/command"})
		m.api = hooked{before: func(call string) error { t.Errorf("%s was called", call); return nil }}
		err := m.MountContext(t.Context(), mount.Request{Source: "sshfs#x:/", Target: t.TempDir(), FSType: "fuse", Sensitive: []string{"password=hunter2"}})
		e, ok := errors.AsType[*mount.Error](err)
		if !ok || e.Uncertain || !errors.Is(err, mount.ErrNeedsCommand) || e.Command != "" || e.Advice() == "" || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("err = %v", err)
		}
		if err := m.MountSensitiveWithoutSystemdWithMountFlags("x", t.TempDir(), "tmpfs", nil, nil, []string{"--flag"}); !errors.Is(err, mount.ErrNeedsCommand) {
			t.Errorf("flags of mount(8): %v", err)
		}
	})
}

// A context's messages come one by one, each with its level, and are gone then.
func TestFsContextLog(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var k mountapi.Kernel
		context, err := k.Fsopen("tmpfs")
		if err != nil {
			t.Fatal(err)
		}
		defer os.NewFile(uintptr(context), "tmpfs").Close()
		if err := k.SetString(context, "colour", "blue"); err == nil {
			t.Error("tmpfs knows a colour")
		}
		if err := k.SetString(context, "size", "big"); err == nil {
			t.Error("tmpfs takes a word for a size")
		}
		log := k.Log(context)
		if len(log) != 2 || !strings.HasPrefix(log[0], "e ") || !strings.Contains(log[0], "colour") || !strings.Contains(log[1], "size") {
			t.Errorf("log %q", log)
		}
		if again := k.Log(context); len(again) != 0 {
			t.Errorf("once more: %q", again)
		}
	})
}
