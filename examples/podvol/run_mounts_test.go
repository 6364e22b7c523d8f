package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
)

const withPropagation = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: c
    image: i
    securityContext: {privileged: true}
    volumeMounts:
    - {name: host, mountPath: /podvol-private}
    - {name: host, mountPath: /podvol-slave, mountPropagation: HostToContainer}
    - {name: host, mountPath: /podvol-shared, mountPropagation: Bidirectional}
    - {name: host, mountPath: /podvol-ro, readOnly: true}
    - {name: host, mountPath: /podvol-rro, readOnly: true, recursiveReadOnly: Enabled}
  volumes: [{name: host, hostPath: {path: %s}}]
`

// Propagation and recursive read-only mounts are what the program's own mount
// table says of the volume and of a mount inside it.
func TestRunShowsWhatIsMountedInside(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, dir := t.TempDir(), filepath.Join(t.TempDir(), "host")
		must(t, os.Mkdir(dir, 0o755))
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
		must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
		inside := filepath.Join(dir, "inside")
		must(t, os.Mkdir(inside, 0o755))
		must(t, unix.Mount("tmpfs", inside, "tmpfs", 0, "size=64k"))
		out, _ := mustPodvol(t, exitOK, "run", "-f", manifestFile(t, fmt.Sprintf(withPropagation, dir)), "--root-dir", base, "--", "cat", "/proc/self/mountinfo")
		table, err := mountinfo.GetMountsFromReader(strings.NewReader(out), nil)
		must(t, err)
		for at, want := range map[string]struct{ propagation, access, insideAccess string }{
			"/podvol-private": {"", "rw", "rw"},
			"/podvol-slave":   {"master", "rw", "rw"},
			"/podvol-shared":  {"shared", "rw", "rw"},
			"/podvol-ro":      {"", "ro", "rw"},
			"/podvol-rro":     {"", "ro", "ro"},
		} {
			for path, access := range map[string]string{at: want.access, at + "/inside": want.insideAccess} {
				i := slices.IndexFunc(table, func(m *mountinfo.Info) bool { return m.Mountpoint == path })
				if i < 0 {
					t.Errorf("%s is not in the program's mount table:\n%s", path, out)
					continue
				}
				propagation, _, _ := strings.Cut(table[i].Optional, ":")
				options, _, _ := strings.Cut(table[i].Options, ",")
				if propagation != want.propagation || options != access {
					t.Errorf("%s: %q and %q, want %q and %q", path, propagation, options, want.propagation, access)
				}
			}
		}
		assertNoRuns(t, base)
	})
}

// What an ordinary user's program mounts stays in the user namespace, whatever
// its own mount table says.
func TestRunSaysThatMountsDoNotReachTheMachine(t *testing.T) {
	r := asOrdinaryUser(t)
	dir := t.TempDir()
	openUp(t, dir)
	_, errOut := r.run(t, exitOK, "run", "-f", openFile(t, fmt.Sprintf(withPropagation, dir)), "--", "true")
	if !strings.Contains(errOut, "volumeMounts[2].mountPropagation Bidirectional") || !strings.Contains(errOut, "run as root") {
		t.Errorf("stderr %s", errOut)
	}
	r.assertNothingLeft(t)
}

const withDevice = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec: {capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], volumeMode: Block, local: {path: %s},
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeMode: Block, volumeName: pv, resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: c
    image: i
    volumeDevices: [{name: disk, devicePath: %s}]
    volumeMounts: [{name: empty, mountPath: /podvol-empty}, {name: empty, mountPath: /podvol-empty/deep, readOnly: true}]
  volumes: [{name: disk, persistentVolumeClaim: {claimName: claim}}, {name: empty, emptyDir: {}}]
`

// What the program writes to its device is on the disk, wherever the device is.
// A user namespace gets no devices, and the run says so.
func TestRunGivesTheProgramItsDevice(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		if os.Getenv("PODVOL_NSTEST") == "user" {
			_, errOut := mustPodvol(t, exitRunFailed, "run", "-f", manifestFile(t, fmt.Sprintf(withDevice, "/dev/null", "/dev/podvol-disk")), "--root-dir", base, "--", "true")
			if !strings.Contains(errOut, "a block device is needed") {
				t.Errorf("stderr %s", errOut)
			}
			return
		}
		disk := loopdev.New(t, 1<<20)
		for _, at := range []string{"/dev/podvol-disk", "/podvol-empty/dev/disk", "/podvol-empty/deep/disk"} {
			out, _ := mustPodvol(t, exitOK, "run", "-f", manifestFile(t, fmt.Sprintf(withDevice, disk.Path, at)), "--root-dir", base, "--",
				"sh", "-ec", `test -b $0; echo "written to $0" | dd of=$0 conv=fsync 2> /dev/null; echo done`, at)
			if out != "done\n" {
				t.Errorf("%s: stdout %s", at, out)
			}
			if content, err := os.ReadFile(disk.Backing); err != nil || !strings.HasPrefix(string(content), "written to "+at+"\n") {
				t.Errorf("%s: the disk begins with %.40q, %v", at, content, err)
			}
		}
		assertNothingMountedBelow(t, base)
	})
}

// A volume in place of the machine's /proc takes away what podvol itself looks
// at, and the error says so.
func TestRunRefusesAnotherProc(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		_, errOut := mustPodvol(t, exitRunFailed, "run", "--root-dir", base, "-f", manifestFile(t, `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /proc}]}]
  volumes: [{name: v, emptyDir: {}}]
`), "--", "true")
		if !strings.Contains(errOut, `volume "v" at /proc`) || !strings.Contains(errOut, "mount the volume elsewhere") {
			t.Errorf("stderr %s", errOut)
		}
		assertNoRuns(t, base)
	})
}
