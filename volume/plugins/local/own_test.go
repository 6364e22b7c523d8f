package local_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/fsgroup"
)

// ownGroup is one that this process can give its files to.
func ownGroup() int64 {
	if os.Geteuid() == 0 {
		return 4711
	}
	return int64(os.Getegid())
}

// diskWithFile is a directory whose files no group may use.
func diskWithFile(t *testing.T) (disk, file string) {
	t.Helper()
	disk = t.TempDir()
	file = filepath.Join(disk, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return disk, file
}

func wantOwned(t *testing.T, path string, mode fs.FileMode, gid int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(info.Sys().(*syscall.Stat_t).Gid); info.Mode() != mode || got != gid {
		t.Errorf("%s is %v of group %d, want %v of %d", path, info.Mode(), got, mode, gid)
	}
}

func TestFsGroup(t *testing.T) {
	p, _ := newPlugin(t)
	disk, file := diskWithFile(t)
	gid := ownGroup()
	var told []volume.Progress
	args := volume.MounterArgs{FsGroup: &gid, Progress: func(p volume.Progress) { told = append(told, p) }}
	m := mounter(t, p, spec(disk), "u1")
	for range 2 {
		if err := m.SetUp(t.Context(), args); err != nil {
			t.Fatal(err)
		}
	}
	wantOwned(t, file, 0o660, gid)
	if want := (volume.Progress{Doing: fsgroup.Doing, Done: 2}); len(told) != 2 || told[1] != want {
		t.Errorf("told %v, want one walk that ends with %v", told, want)
	}
}

func TestFsGroupOnRootMismatch(t *testing.T) {
	p, _ := newPlugin(t)
	disk, file := diskWithFile(t)
	gid := ownGroup()
	if err := os.Chown(disk, -1, int(gid)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(disk, fs.ModeSetgid|0o770); err != nil {
		t.Fatal(err)
	}
	policy := v1.FSGroupChangeOnRootMismatch
	args := volume.MounterArgs{FsGroup: &gid, FSGroupChangePolicy: &policy}
	if err := mounter(t, p, spec(disk), "u1").SetUp(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the root was right, and yet a file is %v, %v", info.Mode(), err)
	}
}

func TestFsGroupOfReadOnlyVolumes(t *testing.T) {
	p, _ := newPlugin(t)
	disk, file := diskWithFile(t)
	gid := ownGroup()
	s := spec(disk)
	s.ReadOnly = true
	if err := mounter(t, p, s, "u1").SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("a file is %v, %v", info.Mode(), err)
	}
}

// The files of a pod that runs are not taken from it.
func TestFsGroupOfTheSecondPod(t *testing.T) {
	p, h := newPlugin(t)
	disk, file := diskWithFile(t)
	first, second := ownGroup(), ownGroup()+1
	if err := mounter(t, p, spec(disk), "u1").SetUp(t.Context(), volume.MounterArgs{FsGroup: &first}); err != nil {
		t.Fatal(err)
	}
	if err := mounter(t, p, spec(disk), "u2").SetUp(t.Context(), volume.MounterArgs{FsGroup: &first}); err != nil {
		t.Fatal(err)
	}
	if events := h.RecordedEvents(); len(events) != 0 {
		t.Errorf("for the same group: %v", events)
	}
	if err := mounter(t, p, spec(disk), "u3").SetUp(t.Context(), volume.MounterArgs{FsGroup: &second}); err != nil {
		t.Fatal(err)
	}
	wantOwned(t, file, 0o660, first)
	want := fmt.Sprintf("The requested fsGroup is %d, but the volume pv1 has GID %d, and another pod uses it. The volume may not be shareable.", second, first)
	events := h.RecordedEvents()
	if len(events) != 1 || events[0].PodUID != "u3" || events[0].Reason != "AlreadyMountedVolume" || events[0].Message != want {
		t.Errorf("events %v, want %q", events, want)
	}
}

// Of several pods that come at once, just one has its group applied, and none
// is ready before that.
func TestFsGroupOfPodsAtOnce(t *testing.T) {
	p, _ := newPlugin(t)
	disk, file := diskWithFile(t)
	gid := ownGroup()
	var mu sync.Mutex
	walks := 0
	var pods sync.WaitGroup
	for n := range 5 {
		pods.Go(func() {
			var walk sync.Once // which speaks each second
			args := volume.MounterArgs{FsGroup: &gid, Progress: func(volume.Progress) {
				walk.Do(func() {
					mu.Lock()
					defer mu.Unlock()
					walks++
				})
			}}
			m, err := p.NewMounter(spec(disk), pod(fakehost.Pod(fmt.Sprint(n)).UID))
			if err == nil {
				err = m.SetUp(t.Context(), args)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	pods.Wait()
	wantOwned(t, file, 0o660, gid)
	if walks != 1 {
		t.Errorf("%d walks", walks)
	}
}

// A volume that is not given to its group whole is not bound, so that the next
// attempt goes on.
func TestFsGroupThatFailed(t *testing.T) {
	p, h := newPlugin(t)
	disk, file := diskWithFile(t)
	gid := ownGroup()
	ctx, cancel := context.WithCancelCause(t.Context())
	args := volume.MounterArgs{FsGroup: &gid, Progress: func(volume.Progress) { cancel(errors.New("no patience")) }}
	m := mounter(t, p, spec(disk), "u1")
	if err := m.SetUp(ctx, args); err == nil || volume.IsUncertain(err) {
		t.Errorf("err = %v, want one that left nothing", err)
	}
	if calls := h.Fake.Calls(); len(calls) != 0 {
		t.Errorf("calls %v", calls)
	}
	args.Progress = nil
	if err := m.SetUp(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	wantOwned(t, file, 0o660, gid)
}

// A host whose files are elsewhere must say how they are given to groups.
func TestFsGroupOfAnotherHost(t *testing.T) {
	h := fakehost.New(t)
	h.HostFiles = struct{ volume.HostFiles }{h.HostFiles}
	p := pluginOf(t, h)
	disk, file := diskWithFile(t)
	gid := ownGroup()
	err := mounter(t, p, spec(disk), "u1").SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid})
	if missing, ok := errors.AsType[*volume.MissingRoleError](err); !ok || missing.Role != "volume.HostOwnership" {
		t.Errorf("err = %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("a file is %v, %v", info.Mode(), err)
	}
}
