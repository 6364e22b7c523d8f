package nfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// What a node says that has mount(8) mount NFS and lacks its helper, and what
// the user gets to read.
func TestNodeWithoutNFSHelper(t *testing.T) {
	dir := t.TempDir()
	command := filepath.Join(dir, "mount")
	script := `#!/bin/sh
echo "mount: wrong fs type, bad option, bad superblock on $3, missing codepage or helper program, or other error" >&2
echo "(for several filesystems you might need a /sbin/mount.<type> helper program)" >&2
exit 32
`
	filesystems := filepath.Join(dir, "filesystems")
	for path, content := range map[string]string{command: script, filesystems: "nodev\tnfs\n"} {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := nfs.New(nfs.Config{})
	host := &volume.Host{RootDir: filepath.Join(dir, "root"), Mounter: host.New(host.Config{
		Via:          host.ViaCommand,
		MountCommand: command, HelperDirs: []string{dir}, FilesystemsFile: filesystems, OSReleaseFile: filepath.Join(dir, "os-release"),
	})}
	if err := p.Init(host); err != nil {
		t.Fatal(err)
	}
	m := mounter(t, p, persistent("10.20.172.211", "/nfs"), "u1")
	err := m.SetUp(t.Context(), volume.MounterArgs{})
	if !errors.Is(err, mount.ErrHelperMissing) || volume.IsUncertain(err) {
		t.Fatalf("SetUp = %v", err)
	}
	for _, words := range []string{"nfs211", "ops-test/web", "10.20.172.211:/nfs", "wrong fs type", "nfs-common", "nfs-utils"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("the error lacks %q:\n%v", words, err)
		}
	}
	if _, err := os.Lstat(m.GetPath()); err == nil {
		t.Error("the directory is left")
	}
}
