package flexvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// attachesElsewhere reports whether the host knows attachments, so that others attach.
func (p *plugin) attachesElsewhere() bool {
	_, err := volume.Role[volume.AttachmentGetter](p.Host)
	return err == nil
}

// CanAttach reports whether a volume waits until it is attached: its driver attaches, and the
// host knows attachments.
func (p *plugin) CanAttach(ctx context.Context, spec *volume.Spec) (bool, error) {
	s, err := p.checked(spec)
	if err != nil || !p.attachesElsewhere() {
		return false, err
	}
	d, err := p.drivers.Open(ctx, s.Driver)
	if err != nil {
		return false, err
	}
	return d.Capabilities.Attach, nil
}

func (p *plugin) NewAttacher() (volume.Attacher, error) { return &attacher{device{p}}, nil }

func (p *plugin) NewDetacher() (volume.Detacher, error) { return &attacher{device{p}}, nil }

type attacher struct{ device }

func (a *attacher) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	attached, err := a.plugin.AttachSpec(ctx, spec, node)
	return attached.DevicePath, err
}

// Detach detaches a volume that this process has attached: a name does not tell the driver.
// Others are detached by DetachSpec.
func (a *attacher) Detach(ctx context.Context, volumeName string, node types.NodeName) error {
	of, ok := a.plugin.attached.Load(volumeName)
	if !ok {
		return failed("Detach", volumeName, volume.NothingDone(errors.New("its driver is not known: detach it by its spec (DetachSpec)")))
	}
	return failed("Detach", volumeName, a.plugin.detach(ctx, of.(string), volumeName, node))
}

// VolumesAreAttached asks the drivers. A volume whose driver does not know counts as attached.
func (a *attacher) VolumesAreAttached(ctx context.Context, specs []*volume.Spec, node types.NodeName) (map[*volume.Spec]bool, error) {
	attached := make(map[*volume.Spec]bool, len(specs))
	for _, spec := range specs {
		answer, err := a.plugin.callAbout(ctx, spec, "isattached", func(options string) []string { return []string{options, string(node)} })
		if err != nil && !errors.Is(err, driver.ErrNotSupported) {
			return nil, failed("VolumesAreAttached", spec.Name(), err)
		}
		attached[spec] = err != nil || answer.Attached
	}
	return attached, nil
}

// WaitForAttach has the driver wait until the device is there.
func (a *attacher) WaitForAttach(ctx context.Context, spec *volume.Spec, devicePath string, _ *v1.Pod, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := a.plugin.callAbout(ctx, spec, "waitforattach", func(options string) []string { return []string{devicePath, options} })
	if errors.Is(err, driver.ErrNotSupported) {
		return devicePath, nil
	}
	return cmp.Or(answer.Device, devicePath), failed("WaitForAttach", spec.Name(), err)
}

// callAbout calls the driver of a spec.
func (p *plugin) callAbout(ctx context.Context, spec *volume.Spec, verb string, args func(options string) []string) (driver.Answer, error) {
	s, err := p.checked(spec)
	if err != nil {
		return driver.Answer{}, err
	}
	d, err := p.drivers.Open(ctx, s.Driver)
	if err != nil {
		return driver.Answer{}, err
	}
	options, err := s.options(nil)
	if err != nil {
		return driver.Answer{}, err
	}
	return d.Call(ctx, s.call(verb, s.name, args(options)...))
}

// AttachSpec implements [volume.SpecAttacher] by the driver's attach. A driver that does not
// attach has the zero Attachment.
func (p *plugin) AttachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	answer, err := p.callAbout(ctx, spec, "attach", func(options string) []string { return []string{options, string(node)} })
	if errors.Is(err, driver.ErrNotSupported) {
		err = nil
	}
	if s, bad := p.checked(spec); bad == nil && err == nil {
		p.attached.Store(s.name, s.Driver)
	}
	return volume.Attachment{DevicePath: answer.Device}, failed("AttachSpec", spec.Name(), err)
}

// DetachSpec implements [volume.SpecAttacher] by the driver's detach. It refuses while this node
// has the volume mounted; of other nodes it knows nothing.
func (p *plugin) DetachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) error {
	s, err := p.checked(spec)
	if err == nil && node == p.Host.GetNodeName() {
		err = p.checkUnstaged(s)
	}
	if err == nil {
		err = p.detach(ctx, s.Driver, s.name, node)
	}
	return failed("DetachSpec", spec.Name(), err)
}

func (p *plugin) checkUnstaged(s *source) error {
	at := p.devicePlace(s)
	_, known, err := at.read()
	if err == nil && known {
		err = fmt.Errorf("%s is staged, as %s says: %w", s.name, at.file(), volume.ErrInUse)
	}
	return volume.NothingDone(err)
}

// detach calls a driver's detach with the name that its attach had as an option.
func (p *plugin) detach(ctx context.Context, of, name string, node types.NodeName) error {
	d, err := p.drivers.Open(ctx, of)
	if err != nil {
		return err
	}
	_, err = d.Call(ctx, driver.Call{Verb: "detach", Args: []string{name, string(node)}, Key: name})
	if errors.Is(err, driver.ErrNotSupported) {
		return nil
	}
	return err
}

// attachHere attaches a volume to this node, and waits for its device. That it may be attached
// is recorded before.
func (p *plugin) attachHere(ctx context.Context, s *source, at place, d *driver.Driver, r *record) (string, error) {
	options, err := s.options(nil)
	if err != nil {
		return "", err
	}
	r.Attached = s.name
	if err := at.write(r); err != nil {
		return "", err
	}
	answer, err := d.Call(ctx, s.call("attach", s.name, options, string(p.Host.GetNodeName())))
	if errors.Is(err, driver.ErrNotSupported) {
		r.Attached = ""
		return "", at.write(r)
	}
	if err != nil {
		return "", err
	}
	waited, err := d.Call(ctx, s.call("waitforattach", s.name, answer.Device, options))
	if errors.Is(err, driver.ErrNotSupported) {
		return answer.Device, nil
	}
	return cmp.Or(waited.Device, answer.Device), err
}
