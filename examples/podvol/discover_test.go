package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// podOfADisk has a claim for a disk that discover offers.
const podOfADisk = "\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: db}\nspec:\n  nodeName: node1\n  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]\n" +
	"  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n" +
	"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n" +
	"spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 4Mi}}}\n"

// mountedDisk mounts a disk that is none.
func mountedDisk(t *testing.T, m mount.Interface, path string, options ...string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mount.Mount(t.Context(), m, mount.Request{Source: "tmpfs", Target: path, FSType: "tmpfs", Options: append(options, "size=8m")}); err != nil {
		t.Fatal(err)
	}
}

func fakeDisks(t *testing.T) (string, *fakemount.Mounter) {
	t.Helper()
	fake := fakemount.New()
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	return t.TempDir(), fake
}

// What discover prints is a manifest that podvol itself takes: a pod with a
// claim of that class mounts the disk.
func TestDiscoveredDisksAreManifests(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mounter := host.New(host.Config{})
		for _, disk := range []string{"ssd1", "ssd0"} {
			path := filepath.Join(dir, disk)
			mountedDisk(t, mounter, path)
			t.Cleanup(func() {
				if err := mounter.Unmount(path); err != nil {
					t.Error(err)
				}
			})
		}
		link := filepath.Join(t.TempDir(), "disks")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		out, errOut := mustPodvol(t, exitOK, "discover", "--dir", link, "--class", "local", "--node", "node1")
		first, second := strings.Index(out, "path: "+dir+"/ssd0"), strings.Index(out, "path: "+dir+"/ssd1")
		if first < 0 || second < first || strings.Contains(out, "status:") || strings.Contains(out, " uid:") || errOut != "" {
			t.Errorf("stdout:\n%s\nstderr:\n%s", out, errOut)
		}
		root := filepath.Join(t.TempDir(), "root")
		code, rows, errOut := podvol(t, out+podOfADisk, "mount", "-f", "-", "--root-dir", root)
		if code != exitOK || !strings.Contains(rows, dir+"/ssd") || !strings.Contains(rows, "mounted") {
			t.Errorf("exit code %d\nstdout:\n%s\nstderr:\n%s", code, rows, errOut)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

func TestDiscoverWithoutDisks(t *testing.T) {
	dir := t.TempDir()
	out, errOut := mustPodvol(t, exitOK, "discover", "--dir", dir, "--class", "local")
	if out != "" || !strings.Contains(errOut, "No disk to offer is directly below "+dir) {
		t.Errorf("stdout: %s\nstderr: %s", out, errOut)
	}
	for says, args := range map[string][]string{
		"--dir":     {"--class", "local"},
		"--class":   {"--dir", dir},
		"no such":   {"--dir", filepath.Join(dir, "missing"), "--class", "local"},
		"yaml":      {"--dir", dir, "--class", "local", "-o", "table"},
		"--mode":    {"--dir", dir, "--class", "local", "--mode", "raw"},
		"--fstype":  {"--dir", dir, "--class", "local", "--fstype", "xfs"},
		"arguments": {"--dir", dir, "--class", "local", "/mnt"},
	} {
		if _, errOut := mustPodvol(t, exitUsage, append([]string{"discover"}, args...)...); !strings.Contains(errOut, says) {
			t.Errorf("%v: stderr says no %q: %s", args, says, errOut)
		}
	}
}

func TestDiscoverWatches(t *testing.T) {
	dir, fake := fakeDisks(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	var errOut bytes.Buffer
	ended := make(chan error, 1)
	go func() {
		ended <- discoverIn(ctx, streams{out: writer, err: &errOut}, discoverOptions{dir: dir, class: "local", nodeName: "node1", output: "json", watch: true}, fake.Table())
	}()
	lines := bufio.NewReader(reader)
	for _, disk := range []string{"a", "b"} {
		mountedDisk(t, fake, filepath.Join(dir, disk))
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var pv v1.PersistentVolume
		if err := json.Unmarshal(line, &pv); err != nil || pv.Kind != "PersistentVolume" || pv.Spec.Local.Path != filepath.Join(dir, disk) || pv.Spec.StorageClassName != "local" {
			t.Errorf("%v: %s", err, line)
		}
	}
	cancel()
	if err := <-ended; err != nil || errOut.Len() > 0 {
		t.Errorf("%v, stderr: %s", err, &errOut)
	}
}

// A reader that goes away ends it.
func TestDiscoverEndsWithItsReader(t *testing.T) {
	dir, fake := fakeDisks(t)
	mountedDisk(t, fake, filepath.Join(dir, "a"))
	reader, writer := io.Pipe()
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	err := discoverIn(t.Context(), streams{out: writer, err: io.Discard}, discoverOptions{dir: dir, class: "local", nodeName: "node1", output: "yaml", watch: true}, fake.Table())
	if err == nil {
		t.Error("it ended without an error")
	}
}

// What lies beside the disks is told with the reason why it is not offered.
func TestDiscoverSaysWhatIsNotOffered(t *testing.T) {
	dir, fake := fakeDisks(t)
	mountedDisk(t, fake, filepath.Join(dir, "disk"))
	plain := filepath.Join(dir, "plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string]struct {
		offered bool
		says    string
	}{
		"":           {true, "  " + plain + ": not offered: it is neither a mount point nor a block device"},
		"filesystem": {true, "  " + plain + ": not offered: "},
		"block":      {false, "disk: not offered: the class offers block devices only"},
	} {
		var out, errOut bytes.Buffer
		o := discoverOptions{dir: dir, class: "local", nodeName: "node1", output: "json", mode: mode}
		if err := discoverIn(t.Context(), streams{out: &out, err: &errOut}, o, fake.Table()); err != nil {
			t.Error(err)
		}
		if strings.Contains(out.String(), `"path":"`+dir+`/disk"`) != want.offered || !strings.Contains(errOut.String(), want.says) {
			t.Errorf("mode %q: stdout: %s\nstderr: %s", mode, &out, &errOut)
		}
	}
}

// A volume that says which disk it is can be rehearsed, also where the disk is not.
func TestDiscoveredDisksAreRehearsed(t *testing.T) {
	dir, fake := fakeDisks(t)
	mountedDisk(t, fake, filepath.Join(dir, "disk"))
	var out bytes.Buffer
	o := discoverOptions{dir: dir, class: "local", nodeName: "node1", output: "yaml"}
	if err := discoverIn(t.Context(), streams{out: &out, err: io.Discard}, o, fake.Table()); err != nil {
		t.Fatal(err)
	}
	code, rows, errOut := podvol(t, out.String()+podOfADisk, "mount", "--fake", "-f", "-")
	if code != exitOK || !strings.Contains(rows, "would mount") || !strings.Contains(errOut, "mount -o bind "+filepath.Join(dir, "disk")) {
		t.Errorf("exit code %d\nstdout:\n%s\nstderr:\n%s", code, rows, errOut)
	}
}
