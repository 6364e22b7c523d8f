package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumemanager"
)

const (
	nodeForceAfter = time.Second
	nodeLazyAfter  = 5 * time.Second
	// nodeSlack is for an emulated processor on a busy machine.
	nodeSlack = 20 * time.Second
)

// newNFSNode is a world on this machine's kernel, whose ladder is short.
func newNFSNode(t *testing.T, c host.Config) *world {
	t.Helper()
	w := newWorld(t)
	nfsserver.DetachBelow(t, w.root)
	w.plugins = func() []volume.VolumePlugin {
		return plugins.All(nfs.New(nfs.Config{ForceAfter: nodeForceAfter, LazyAfter: nodeLazyAfter}))
	}
	w.mounter = host.New(c)
	w.setUpTimeout = 8 * time.Second // the first mount loads the kernel's modules
	return w
}

// exportVolume is a volume of a server's directory.
func exportVolume(name, server, path string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: server, Path: path}}}
}

// addLoopback gives the machine an address.
func addLoopback(t *testing.T, address [4]byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := request.SetInet4Addr(address[:]); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, request); err != nil {
		t.Fatal(err)
	}
}

// TestNodeWithoutNFSClient is how this project began: two replicas of a claim
// whose node lacks mount.nfs. By mount(8) they fail, for a reason that is named;
// by system calls they need no helper.
func TestNodeWithoutNFSClient(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		addLoopback(t, [4]byte{10, 20, 172, 211})
		s := nfsserver.Start(t, packages, nfsserver.Config{Exports: []nfsserver.Export{{Path: "/nfs"}}})
		s.Put("/nfs/hello", "hello")
		replicas := []*v1.Pod{newPod("node1-nfs-test-1", claimVolume("vol1", "nfs-211", false)), newPod("node1-nfs-test-2", claimVolume("vol1", "nfs-211", false))}
		for _, pod := range replicas {
			pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "vol1", MountPath: "/tmp"}}
		}
		w := newNFSNode(t, host.Config{})
		w.setUpTimeout = time.Minute // nothing hangs here, but emulation is slow
		claim, pv := boundPair("nfs-211", "nfs211")
		w.add(claim, pv)
		for id, install := range map[string][]string{
			"debian": {"nfs-common"}, "ubuntu": {"nfs-common"}, "fedora": {"nfs-utils"}, "alpine": {"nfs-utils"}, "opensuse": {"nfs-client"},
			"unheard-of": {"nfs-common", "nfs-utils", "nfs-client"},
		} {
			osRelease := filepath.Join(t.TempDir(), "os-release")
			if err := os.WriteFile(osRelease, []byte("ID="+id+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			w.mounter = host.New(host.Config{Via: host.ViaCommand, OSReleaseFile: osRelease})
			w.events = &events{}
			manager, stop := w.start()
			for _, pod := range replicas {
				failsForLackOfAHelper(t, w, manager, pod, install)
			}
			stop()
		}

		w.mounter = host.New(host.Config{MountCommand: "no-such-command"})
		manager, _ := w.start()
		for _, pod := range replicas {
			start := time.Now()
			if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			t.Logf("| %s | by system calls | mounted | %.2f s |", pod.Name, time.Since(start).Seconds())
			mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
			if err != nil || len(mounts) != 1 || mounts[0].Destination != "/tmp" {
				t.Fatalf("ContainerMounts = %+v, %v", mounts, err)
			}
			if data, err := os.ReadFile(filepath.Join(mounts[0].Source, "hello")); err != nil || string(data) != "hello" {
				t.Errorf("read %q, %v", data, err)
			}
		}
		for _, pod := range replicas {
			if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
				t.Error(err)
			}
		}
		w.assertClean()
	})
}

// failsForLackOfAHelper expects the words of util-linux, kept, and ours beside
// them, in the error, in the status and in the event.
func failsForLackOfAHelper(t *testing.T, w *world, manager *volumemanager.Manager, pod *v1.Pod, install []string) {
	t.Helper()
	_, err := manager.SetUpPod(t.Context(), pod)
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || !errors.Is(err, mount.ErrHelperMissing) || !strings.Contains(e.Err.Error(), "exit status 32") {
		t.Fatalf("SetUpPod = %v", err)
	}
	path := filepath.Join(w.root, "pods", string(pod.UID), "volumes/kubernetes.io~nfs/nfs211")
	if e.Command != "mount -t nfs 10.20.172.211:/nfs "+path || e.Source != "10.20.172.211:/nfs" || e.Target != path {
		t.Errorf("the command was %q", e.Command)
	}
	const since230 = "bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program."
	if words := "mount: " + path + ": " + since230; !strings.HasPrefix(e.Output, words) {
		t.Errorf("mount(8) said %q, and not %q first", e.Output, words)
	}
	t.Logf("mount(8) said: %s", e.Output)
	said := map[string]string{"the error": err.Error(), "the status": statusOf(t, manager, pod.Name).Err.Error()}
	for _, event := range w.events.all() {
		if strings.HasPrefix(event, pod.Name+` Warning FailedMount MountVolume.SetUp failed for volume "nfs211" : `) {
			said["the event"] = event
		}
	}
	if len(said) != 3 {
		t.Errorf("no event: %q", w.events.all())
	}
	for where, text := range said {
		for _, words := range append([]string{
			"mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs 10.20.172.211:/nfs " + path + "\nOutput: " + strings.TrimSpace(e.Output) + "\n",
			mount.ErrHelperMissing.Error(),
		}, install...) {
			if !strings.Contains(text, words) {
				t.Errorf("%s lacks %q:\n%s", where, words, text)
			}
		}
	}
}

// TestNodeOfServersInTrouble has one pod for each trouble, all at once, and one
// for a server without any.
func TestNodeOfServersInTrouble(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		good := nfsserver.Start(t, packages, nfsserver.Config{Name: "good", Exports: []nfsserver.Export{{Path: "/data"}, {Path: "/denied", Denied: true}}})
		quiet := nfsserver.Start(t, packages, nfsserver.Config{Name: "quiet"})
		old := nfsserver.Start(t, packages, nfsserver.Config{Name: "old", Versions: []string{"3"}})
		w := newNFSNode(t, host.Config{})
		quiet.Drop()
		tests := []struct {
			name    string
			server  string
			path    string
			options []string
			cause   mount.Cause // empty: it is mounted
		}{
			{"no trouble", good.Address(), "/data", nil, ""},
			{"access denied", good.Address(), "/denied", []string{"vers=3", "nolock"}, mount.ErrAccessDenied},
			{"wrong path", good.Address(), "/data/nothing", []string{"vers=4.2"}, mount.ErrNoSuchExport},
			{"wrong version", old.Address(), "/data", []string{"vers=4.2"}, mount.ErrVersionUnsupported},
			{"silent", quiet.Address(), "/data", nil, mount.ErrTimedOut},
			{"stopped", "127.0.0.1", "/data", []string{"vers=4.2"}, mount.ErrConnectionRefused},
			{"no such name", "nowhere.test", "/data", nil, mount.ErrNameResolution},
		}
		manager, _ := w.start()
		pods := make([]*v1.Pod, len(tests))
		for i, tc := range tests {
			claim, pv := boundPair(fmt.Sprint("claim-", i), fmt.Sprint("pv-", i))
			pv.Spec.NFS = &v1.NFSVolumeSource{Server: tc.server, Path: tc.path}
			pv.Spec.MountOptions = tc.options
			w.add(claim, pv)
			pods[i] = newPod(fmt.Sprint("pod-", i), claimVolume("v", claim.Name, false))
		}
		start := time.Now()
		for _, pod := range pods {
			if err := manager.PutPod(pod); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), w.setUpTimeout+nodeSlack)
		defer cancel()
		if err := manager.WaitForMounted(ctx, pods[0].UID); err != nil {
			t.Error(err)
		}
		t.Logf("| %-15s | %-52s | %5.2f s |", tests[0].name, "mounted", time.Since(start).Seconds())
		<-ctx.Done()
		for i, tc := range tests[1:] {
			pod := pods[i+1]
			row := statusOf(t, manager, pod.Name)
			soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err := manager.WaitForMounted(soon, pod.UID)
			cancel()
			t.Logf("| %-15s | %-52s | %5.2f s |", tc.name, tc.cause, row.Duration.Seconds())
			for where, err := range map[string]error{"WaitForMounted": err, "the status": row.Err} {
				if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, tc.cause) || e.Advice() == "" {
					t.Errorf("%s: %s: %v", tc.name, where, err)
				}
			}
			if row.Failures == 0 || row.Duration > w.setUpTimeout+nodeSlack {
				t.Errorf("%s: %+v", tc.name, row)
			}
			e, _ := errors.AsType[*mount.Error](row.Err)
			if e == nil || !slices.ContainsFunc(w.events.all(), func(event string) bool {
				return strings.HasPrefix(event, pod.Name+" Warning FailedMount") && strings.Contains(event, e.Advice()) && strings.Contains(event, string(tc.cause))
			}) {
				t.Errorf("%s: no such event", tc.name)
			}
		}
		quiet.Pass()
		for _, pod := range pods {
			if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
				t.Error(err)
			}
		}
		bounded(t, "end of the calls that hung", 3*time.Minute, hungCallsEnded)
		w.assertClean()
	})
}
