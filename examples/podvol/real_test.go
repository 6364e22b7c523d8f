package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestMountStatusUnmount(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		out, errOut := mustPodvol(t, exitOK, "mount", "-f", web, "--root-dir", root, "-o", "json")
		mounted := rowsOf(t, out)
		if len(mounted) < 7 || !strings.Contains(errOut, "To unmount: ") || !strings.Contains(errOut, "unmount -f "+web+" --root-dir "+root) {
			t.Errorf("%d rows, stderr %s", len(mounted), errOut)
		}
		checkWeb(t, mounted)

		out, _ = mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		status := rowsOf(t, out)
		if len(status) != len(mounted) {
			t.Errorf("status has %d rows, mount had %d", len(status), len(mounted))
		}
		for _, r := range status {
			if r.State != "mounted" || !slices.ContainsFunc(mounted, func(m rows.Row) bool { return m.Path == r.Path && m.Volume == r.Volume && m.Source == r.Source }) {
				t.Errorf("status row %+v", r)
			}
		}
		mustPodvol(t, exitOK, "mount", "-f", web, "--root-dir", root)

		mustPodvol(t, exitOK, "unmount", "-f", web, "--root-dir", root)
		assertNothingMountedBelow(t, root)
		if pods, err := os.ReadDir(filepath.Join(root, "pods")); err == nil && len(pods) > 0 {
			t.Errorf("left: %v", tree(t, filepath.Join(root, "pods")))
		}
		out, _ = mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		if len(rowsOf(t, out)) != 0 {
			t.Errorf("status after unmount: %s", out)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

// checkWeb looks at what the containers would see.
func checkWeb(t *testing.T, rows []rows.Row) {
	t.Helper()
	mounts := table.Kernel()
	for _, r := range rows {
		if _, err := os.Stat(r.Path); err != nil {
			t.Errorf("%s: %v", r.Volume, err)
		}
		onTmpfs := r.Plugin == "kubernetes.io/secret" || r.Plugin == "kubernetes.io/downward-api" || r.Plugin == "kubernetes.io/projected"
		entry, isMount, err := mounts.At(r.Path)
		if err != nil || (onTmpfs && (!isMount || entry.FSType != "tmpfs")) {
			t.Errorf("%s: mount %+v, %v, %v", r.Volume, entry, isMount, err)
		}
		if onTmpfs || r.Plugin == "kubernetes.io/configmap" {
			files, err := os.ReadDir(r.Path)
			if err != nil || len(files) < 3 { // a version, ..data, and at least one file
				t.Errorf("%s has %v, %v", r.Volume, files, err)
			}
		}
	}
}

func assertNothingMountedBelow(t *testing.T, dir string) {
	t.Helper()
	mounts := table.Kernel()
	all, err := mounts.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if strings.HasPrefix(e.Target, dir+"/") {
			t.Errorf("%s is still mounted", e.Target)
		}
	}
}

func TestUnmountSelects(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		file := manifestFile(t, `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  serviceName: web
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
      volumes: [{name: v, emptyDir: {medium: Memory}}]
`)
		root := filepath.Join(t.TempDir(), "root")
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root)
		remaining := func() (pods []string) {
			out, _ := mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
			for _, r := range rowsOf(t, out) {
				pods = append(pods, r.Pod)
			}
			return pods
		}
		mustPodvol(t, exitOK, "unmount", "--pod", "shop/web-1", "--root-dir", root)
		if got := remaining(); !slices.Equal(got, []string{"shop/web-0", "shop/web-2"}) {
			t.Errorf("after --pod: %v", got)
		}
		mustPodvol(t, exitOK, "unmount", "-f", file, "--pod", "shop/web-2", "--root-dir", root)
		if got := remaining(); !slices.Equal(got, []string{"shop/web-0"}) {
			t.Errorf("after -f and --pod: %v", got)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		if got := remaining(); len(got) != 0 {
			t.Errorf("after --all: %v", got)
		}
		assertNothingMountedBelow(t, root)
	})
}

// The kernel has no NFS, or nothing serves it: the command says which at once,
// and what to do, without a process of its own. The server is this machine, so
// that nothing leaves it.
func TestMissingNFSClient(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		text, err := os.ReadFile("../../testdata/nfs211.yaml")
		if err != nil {
			t.Fatal(err)
		}
		file := manifestFile(t, strings.ReplaceAll(string(text), "10.20.172.211", "127.0.0.1"))
		root := filepath.Join(t.TempDir(), "root")
		start := time.Now()
		out, errOut := mustPodvol(t, exitFailed, "mount", "-f", file, "--root-dir", root)
		if took := time.Since(start); took > patience {
			t.Errorf("took %v", took)
		}
		if strings.Count(out, "failed") != 2 {
			t.Errorf("stdout:\n%s", out)
		}
		for _, want := range append(missingNFS(t), "mount nfs 127.0.0.1:/nfs on "+root) {
			if !strings.Contains(errOut, want) {
				t.Errorf("stderr lacks %q:\n%s", want, errOut)
			}
		}
		if strings.Contains(errOut, "Mounting command") {
			t.Errorf("a process was started:\n%s", errOut)
		}
		assertNothingMountedBelow(t, root)
		if pods, err := os.ReadDir(filepath.Join(root, "pods")); err == nil && len(pods) > 0 {
			t.Errorf("left: %v", tree(t, filepath.Join(root, "pods")))
		}
	})
}

// missingNFS is what the command says that this machine lacks, and advises.
func missingNFS(t *testing.T) []string {
	t.Helper()
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(known), "\tnfs") {
		return []string{mount.ErrNoFilesystem.Error(), "modprobe nfs"}
	}
	return []string{mount.ErrConnectionRefused.Error(), "NFS 2049"}
}

func TestUnmountAllSaysWhatItLeavesAlone(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAlone(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		mustPodvol(t, exitOK, "mount", "-f", web, "--root-dir", root)
		if err := os.Remove(filepath.Join(root, "podvol", "records")); err != nil {
			t.Fatal(err)
		}
		_, errOut := mustPodvol(t, exitFailed, "unmount", "--all", "--root-dir", root)
		if !strings.Contains(errOut, "6 volumes below "+root+" were left alone") {
			t.Errorf("stderr: %s", errOut)
		}
		mustPodvol(t, exitFailed, "fsck", "--repair", "--adopt", "--root-dir", root)
		seeDamage(t, root)
		mustPodvol(t, exitOK, "fsck", "--root-dir", root)
		mustPodvol(t, exitOK, "mount", "-f", web, "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		assertNothingMountedBelow(t, root)
		missing := filepath.Join(root, "missing")
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", missing)
		if _, err := os.Stat(missing); !os.IsNotExist(err) {
			t.Errorf("unmount made its root directory: %v", err)
		}
	})
}
