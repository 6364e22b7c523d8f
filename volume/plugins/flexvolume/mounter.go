package flexvolume

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// bound is what mounter and unmounter have in common.
type bound struct {
	volume.PodVolume
	plugin *plugin
}

func (b *bound) place(dir string) place { return b.plugin.podPlace(dir, b.PodUID, b.Name) }

// capabilities are those of the volume's record, or the usual ones.
func (b *bound) capabilities() driver.Capabilities {
	if r, ok, err := b.place(b.GetPath()).read(); err == nil && ok {
		return r.Capabilities
	}
	return driver.DefaultCapabilities()
}

// GetMetrics returns the metrics of the mounted file system, of a driver with supportsMetrics.
func (b *bound) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	if !b.capabilities().SupportsMetrics {
		return nil, b.Error("GetMetrics", volume.ErrMetricsUnsupported)
	}
	metrics, err := podmount.Metrics(ctx, b.Host.GetMounter(), &b.plugin.meter, b.GetPath())
	return metrics, b.Error("GetMetrics", err)
}

type mounter struct {
	bound
	source         *source
	serviceAccount string // the pod's
}

// GetAttributes reports what the driver's capabilities let be done.
func (m *mounter) GetAttributes() volume.Attributes {
	c, ok := m.plugin.drivers.Capabilities(m.source.Driver)
	if !ok {
		c = m.capabilities()
	}
	return volume.Attributes{ReadOnly: m.source.readOnly, Managed: !m.source.readOnly && c.FSGroup, SELinuxRelabel: c.SELinuxRelabel}
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt has the driver mount the volume, or binds what MountDevice has mounted, and then gives
// the files to the pod's fsGroup.
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	return m.Error("SetUp", m.setUp(ctx, m.place(dir), args))
}

func (m *mounter) setUp(ctx context.Context, at place, args volume.MounterArgs) error {
	r, mounted, err := m.plugin.isMounted(at)
	if err != nil {
		return volume.NothingDone(err)
	}
	if mounted && r.Ready {
		return nil
	}
	d, err := m.plugin.drivers.Open(ctx, m.source.Driver)
	if err != nil {
		return err
	}
	if !mounted {
		options, secrets, err := m.podOptions(ctx, args)
		if err != nil {
			return err
		}
		r = *m.source.record(d)
		call := m.source.call(podVerbs.mount, at.dir, at.dir, options)
		call.Secrets = append(call.Secrets, secrets...)
		if err := m.plugin.mount(ctx, at, podVerbs, &r, func() error { return m.mount(ctx, at, d, call) }); err != nil {
			return err
		}
	}
	if err := m.plugin.owner.Set(ctx, at.dir, m.GetAttributes(), args); err != nil {
		return err
	}
	r.Ready = true
	return at.write(&r)
}

// mount calls the driver. Of one without mount, the device is bound.
func (m *mounter) mount(ctx context.Context, at place, d *driver.Driver, call driver.Call) error {
	device := m.plugin.devicePlace(m.source)
	staged, mounted, err := m.plugin.isMounted(device)
	if err == nil && mounted {
		err = m.source.checkShared(&staged)
	}
	if err != nil {
		return err
	}
	if _, err = d.Call(ctx, call); !errors.Is(err, driver.ErrNotSupported) {
		return err
	}
	if !mounted {
		return &volume.Failure{Cause: ErrDriver, Subject: d.Name, What: fmt.Sprintf("driver %s does not support mount, and has nothing mounted at %s", d.Name, device.dir),
			Next: "see whether the driver is right for this node"}
	}
	request := mount.Request{Source: device.dir, Target: at.dir, Options: []string{"bind"}}
	if m.source.readOnly {
		request.Options = append(request.Options, "ro")
	}
	return mount.Mount(ctx, m.Host.GetMounter(), request)
}

type unmounter struct{ bound }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt has the driver unmount the volume. It never forces and never detaches lazily.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", u.plugin.tearDown(ctx, u.place(dir), podVerbs))
}
