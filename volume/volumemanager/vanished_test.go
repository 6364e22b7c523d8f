package volumemanager_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestAMountThatVanishesIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		pod := newPod("web", nfsVolume("v", answering), emptyDirVolume("memory", v1.StorageMediumMemory), emptyDirVolume("disk", ""))
		volumes, err := manager.SetUpPod(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		before := len(w.fake.Calls())
		path, _ := volumes.Path("v")
		if err := w.fake.Unmount(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, mounted, err := w.fake.Table().At(path); err != nil || !mounted {
			t.Errorf("mounted again: %v, %v", mounted, err)
		}
		if calls := w.fake.Calls()[before:]; len(calls) != 2 || calls[1].Op != mount.OpMount || calls[1].Target != path {
			t.Errorf("calls %v", calls)
		}
		events := w.events.all()
		if len(events) != 1 || !strings.HasPrefix(events[0], "web Warning VolumeMountVanished ") || !strings.Contains(events[0], `"v"`) || !strings.Contains(events[0], path) {
			t.Errorf("events %q", events)
		}
		if row := manager.Explain(); slices.ContainsFunc(row, func(v volumemanager.VolumeStatus) bool { return v.State != volumemanager.StateMounted || v.Err != nil }) {
			t.Errorf("Explain = %+v", row)
		}

		// Of pods that nobody has declared since the start it is only told.
		stop()
		manager, _ = w.start()
		if err := w.fake.Unmount(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		rows := manager.Explain()
		i := slices.IndexFunc(rows, func(v volumemanager.VolumeStatus) bool { return v.Volume == "v" })
		if rows[i].State != volumemanager.StateFailed || !errors.Is(rows[i].Err, volumemanager.ErrVanished) {
			t.Errorf("Explain = %+v", rows[i])
		}
		if n := len(w.events.all()); n != 1 {
			t.Errorf("%d events", n)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}

// countingMounter counts the looks at its whole table.
type countingMounter struct {
	*fakemount.Mounter
	looks atomic.Int32
}

type countingTable struct {
	mount.Table
	looks *atomic.Int32
}

func (m *countingMounter) Table() mount.Table { return countingTable{m.Mounter.Table(), &m.looks} }

func (t countingTable) All() ([]mount.Entry, error) {
	t.looks.Add(1)
	return t.Table.All()
}

func TestOwnMountsDoNotHaveTheTableReadForEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		counting := &countingMounter{Mounter: w.fake}
		w.mounter = counting
		manager, _ := w.start()
		counting.looks.Store(0)
		const pods = 500
		for i := range pods {
			if err := manager.PutPod(newPod(fmt.Sprint("p", i), nfsVolume("v", answering))); err != nil {
				t.Fatal(err)
			}
		}
		for i := range pods {
			if err := manager.WaitForMounted(t.Context(), newPod(fmt.Sprint("p", i)).UID); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		if n := counting.looks.Load(); n < 1 || n > 3 {
			t.Errorf("%d looks at the table for %d mounts", n, pods)
		}
		if events := w.events.all(); len(events) > 0 {
			t.Errorf("events %q", events)
		}
	})
}

func TestAMountThatVanishesFromTheKernelsTable(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.mounter = host.New(host.Config{Via: host.ViaSystemCalls})
		manager, _ := w.start()
		pod := newPod("web", emptyDirVolume("memory", v1.StorageMediumMemory))
		volumes, err := manager.SetUpPod(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		again := make(chan struct{}, 1)
		stop := manager.Subscribe(func(v volumemanager.VolumeStatus) {
			if v.State == volumemanager.StateMounted {
				select {
				case again <- struct{}{}:
				default: // it must not block
				}
			}
		})
		defer stop()
		path, _ := volumes.Path("memory")
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
		select {
		case <-again:
		case <-time.After(time.Minute):
			t.Fatal("nobody has noticed it")
		}
		mounts := table.Of(w.mounter)
		if _, mounted, err := mounts.At(path); err != nil || !mounted {
			t.Errorf("mounted again: %v, %v", mounted, err)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}
