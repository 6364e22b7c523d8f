package volumemanager_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
)

// TestNodeWithoutNFSClientOfOld has a node say what mount(8) of util-linux
// before 2.30 said where mount.nfs was missing, to both replicas of a claim.
// Error, status and event keep each of its words.
func TestNodeWithoutNFSClientOfOld(t *testing.T) {
	recorded, err := filepath.Abs("../../testdata/mount/mount-nfs-no-helper-old.txt")
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	const inOneLine = "mount: wrong fs type, bad option, bad superblock on 10.20.172.211:/nfs, missing codepage or helper program, or other error " +
		"(for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program)"
	if words := strings.Join(strings.Fields(string(said)), " "); !strings.HasPrefix(words, inOneLine) {
		t.Fatalf("it was recorded as %s", words)
	}
	dir := t.TempDir()
	node := host.Config{
		Via: host.ViaCommand, MountCommand: filepath.Join(dir, "mount"), HelperDirs: []string{dir},
		FilesystemsFile: filepath.Join(dir, "filesystems"), OSReleaseFile: filepath.Join(dir, "os-release"),
	}
	for file, content := range map[string]string{
		node.MountCommand:    "#!/bin/sh\ncat '" + recorded + "' >&2\nexit 32\n",
		node.FilesystemsFile: "nodev\tnfs\n",
		node.OSReleaseFile:   "ID=ubuntu\nID_LIKE=debian\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	w.mounter = host.New(node)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	manager, stop := w.start()
	defer stop()
	for _, pod := range []*v1.Pod{newPod("node1-nfs-test-1", claimVolume("vol1", "nfs-211", false)), newPod("node1-nfs-test-2", claimVolume("vol1", "nfs-211", false))} {
		_, err := manager.SetUpPod(t.Context(), pod)
		e, ok := errors.AsType[*mount.Error](err)
		if !ok || e.Cause != mount.ErrHelperMissing {
			t.Fatalf("SetUpPod = %v", err)
		}
		path := filepath.Join(w.root, "pods", string(pod.UID), "volumes/kubernetes.io~nfs/nfs211")
		want := fmt.Sprintf("mount failed: exit status 32\nMounting command: %s\nMounting arguments: -t nfs 10.20.172.211:/nfs %s\nOutput: %s\n",
			node.MountCommand, path, strings.TrimSpace(string(said)))
		t.Logf("%v", err)
		for where, text := range map[string]string{"the error": err.Error(), "the status": statusOf(t, manager, pod.Name).Err.Error()} {
			if !strings.Contains(text, want) || !strings.Contains(text, "nfs-common") {
				t.Errorf("%s does not say %q:\n%s", where, want, text)
			}
		}
		if !slices.ContainsFunc(w.events.all(), func(event string) bool {
			return strings.HasPrefix(event, pod.Name+` Warning FailedMount MountVolume.SetUp failed for volume "nfs211" : `) && strings.Contains(event, want) && strings.Contains(event, "nfs-common")
		}) {
			t.Errorf("no event says %q: %q", want, w.events.all())
		}
	}
}
