package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// attachments reads VolumeAttachments, and counts how often.
type attachments struct {
	store *objects.Store

	mu    sync.Mutex
	asked map[string]int
}

func (a *attachments) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	a.mu.Lock()
	a.asked[name]++
	a.mu.Unlock()
	return objects.Get[*storagev1.VolumeAttachment](ctx, a.store, volume.NewObjectRef("VolumeAttachment", "", name))
}

// The figure of an attachment's way to a mount: the median of many pods, one after the other,
// from the attacher's answer to the mount, of a driver that takes no time. The node asks once
// for each attachment, if that does not let it wait.
func TestFiguresFromAttachedToMounted(t *testing.T) {
	const rounds = 20
	figures.InMemory(t)
	store := objects.NewStore()
	populate(t, store, 1, rounds)
	control(t, store, store)
	getter := &attachments{store: store, asked: make(map[string]int)}
	manager := nodeWith(t, store, getter)
	took := make([]time.Duration, rounds)
	for i := range took {
		answered := make(chan time.Time, 1)
		stop := store.Watch(attachmentRef(diskName(i), "n0"), func(ref volume.ObjectRef) {
			a, err := objects.Get[*storagev1.VolumeAttachment](t.Context(), store, ref)
			if err == nil && a.Status.Attached {
				select {
				case answered <- time.Now():
				default:
				}
			}
		})
		pod := podOn(fmt.Sprintf("p%d", i), "n0", diskName(i))
		stored, err := store.Create(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := manager.SetUpPod(t.Context(), stored.(*v1.Pod)); err != nil {
			t.Fatal(err)
		}
		mounted := time.Now()
		took[i] = mounted.Sub(<-answered)
		stop()
	}
	slices.Sort(took)
	total := 0
	for _, n := range getter.asked {
		total += n
	}
	figures.Report(t, figures.Row{What: "from attached to mounted, of a CSI driver without delay", Unit: figures.Wall, Ours: took[rounds/2].Seconds(), Limit: 50e-3},
		figures.Row{What: "requests of the node for an attachment", Unit: figures.Count, Ours: float64(total) / rounds, Limit: 1})
}

// nodeWith runs node n0: its volume manager with a driver without delay, and its reports.
func nodeWith(t *testing.T, store *objects.Store, getter volume.AttachmentGetter) *volumemanager.Manager {
	t.Helper()
	mounter := fakemount.New()
	served := csitest.New(csitest.Config{Name: driver, Dir: t.TempDir(), Mounter: mounter, CreateOnUse: true, Capabilities: csitest.AllCapabilities()})
	socket := filepath.Join(csitest.SocketDir(t), "s")
	if err := served.Start(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(served.Close(), mounter.Close()); err != nil {
			t.Error(err)
		}
	})
	plugin, err := csi.New(csi.Config{Drivers: map[string]string{driver: socket}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { plugin.Close() })
	manager, err := volumemanager.New(volumemanager.Config{RootDir: t.TempDir(), NodeName: "n0", Objects: store, Attachments: getter,
		Plugins: []volume.VolumePlugin{plugin}, Mounter: mounter})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- manager.Run(ctx) }()
	go func() { ended <- reportOf(ctx, store, manager) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	})
	return manager
}

// reportOf keeps the status of node n0, and tells the manager what it says.
func reportOf(ctx context.Context, store *objects.Store, manager *volumemanager.Manager) error {
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	defer store.Watch(nodeRef("n0"), func(volume.ObjectRef) { wake() })()
	defer manager.Subscribe(func(volumemanager.VolumeStatus) { wake() })()
	if err := manager.WaitForRecovery(ctx); err != nil {
		return unlessEnded(ctx, err)
	}
	for wake(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		node, err := objects.Get[*v1.Node](ctx, store, nodeRef("n0"))
		if err != nil {
			return unlessEnded(ctx, err)
		}
		if used := manager.VolumesInUse(); !slices.Equal(used, node.Status.VolumesInUse) {
			next := node.DeepCopy()
			next.Status.VolumesInUse = used
			stored, err := store.UpdateStatus(ctx, next)
			if errors.Is(err, objects.ErrConflict) {
				wake()
				continue
			}
			if err != nil {
				return unlessEnded(ctx, err)
			}
			node = stored.(*v1.Node)
		}
		manager.ReportedInUse(node.Status.VolumesInUse)
		manager.SetVolumesAttached(node.Status.VolumesAttached)
	}
}

// unlessEnded drops an error of what was to end.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
