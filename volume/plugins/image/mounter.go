package image

import (
	"context"
	"errors"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// shown is a pod's volume, for its mounter and its unmounter.
type shown struct {
	volume.PodVolume
	volume.NoMetrics // the files are the node's, and shared
	plugin           *Plugin
}

type mounter struct {
	shown
	request Request
}

func (m *mounter) GetAttributes() volume.Attributes { return volume.Attributes{ReadOnly: true} }

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt pulls nothing for a volume that is mounted already.
func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	return m.Error("SetUp", m.setUp(ctx, dir))
}

func (m *mounter) setUp(ctx context.Context, dir string) error {
	request := mount.Request{Target: dir, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}
	readOnly := func(e mount.Entry) bool { return e.ReadOnly() }
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, readOnly)
	if err != nil || mounted {
		return err
	}
	from, _, err := m.plugin.runtime.PullImage(ctx, m.request)
	if err != nil {
		return volume.NothingDone(err)
	}
	request.Source = from
	_, err = podmount.SetUp(ctx, m.Host.GetMounter(), request, readOnly)
	if err != nil && !volume.IsUncertain(err) {
		if kept := m.plugin.runtime.ReleaseImage(context.WithoutCancel(ctx), m.PodUID, m.Name); kept != nil {
			return errors.Join(err, kept)
		}
	}
	return err
}

type unmounter struct{ shown }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt unmounts the volume, and then removes images that are over the budget.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	err := podmount.TearDown(ctx, u.Host.GetMounter(), dir, mount.UnmountOptions{})
	if err == nil {
		err = u.plugin.runtime.ReleaseImage(ctx, u.PodUID, u.Name)
	}
	return u.Error("TearDown", err)
}

// podOf returns the UID of the pod whose volume has this path.
func podOf(host volume.VolumeHost, name, path string) (podUID string, ok bool) {
	podUID = filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(path))))
	return podUID, path == host.GetPodVolumeDir(types.UID(podUID), PluginName, name)
}
