package csi

import (
	"context"
	"errors"
	"fmt"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// CanAttach reports whether the volume must be attached before it is staged: the host knows
// attachments, and the driver's CSIDriver object does not say attachRequired: false. Without
// [volume.AttachmentGetter] nothing is attached here.
func (p *Plugin) CanAttach(ctx context.Context, spec *volume.Spec) (bool, error) {
	if s, err := p.Source(spec); err == nil && s.Inline {
		return false, nil
	}
	s, err := csivolume.Checked(&p.Kind, spec)
	if err != nil {
		return false, err
	}
	if _, err := volume.Role[volume.AttachmentGetter](p.Host); err != nil {
		return false, nil
	}
	t, err := p.driverSpecOf(ctx, s.Driver)
	if err != nil {
		return false, err
	}
	return mustAttach(ctx, p, s, t)
}

// mustAttach reports whether a volume must be attached, where the host knows attachments. Without
// a cluster one that is attached says so itself, and else its driver is asked.
func mustAttach(ctx context.Context, p *Plugin, s *source, t *driverSpec) (bool, error) {
	if !t.attach || !p.config.NoCluster {
		return t.attach, nil
	}
	getter, err := volume.Role[volume.AttachmentGetter](p.Host)
	if err != nil {
		return false, nil
	}
	if _, err := getter.GetVolumeAttachment(ctx, csivolume.AttachmentName(s, string(p.Host.GetNodeName()))); err == nil {
		return true, nil
	}
	return driverAttaches(ctx, p, s.Driver)
}

// driverAttaches asks a driver. One that does not show its controller here attaches nothing.
func driverAttaches(ctx context.Context, p *Plugin, name string) (bool, error) {
	d, err := p.drivers.Get(name)
	if err != nil {
		return false, err
	}
	session, err := p.drivers.Session(ctx, d)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.CallTimeout)
	defer cancel()
	controls, err := session.Controls(ctx)
	if err != nil {
		return false, volume.NothingDone(context.Cause(ctx)) // nil but for a driver that hangs
	}
	return controls.Has(spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME), nil
}

// NewAttacher returns an attacher that only looks whether volumes are attached: the cluster's
// attach/detach controller attaches.
func (p *Plugin) NewAttacher() (volume.Attacher, error) { return &attacher{device{p}}, nil }

// NewDetacher returns a detacher that refuses: the cluster's controller detaches.
func (p *Plugin) NewDetacher() (volume.Detacher, error) { return &attacher{device{p}}, nil }

type attacher struct{ device }

// errNotHere is the error of Attach and Detach.
var errNotHere = volume.NothingDone(errors.New("a node does not attach volumes of CSI drivers, and does not detach them: the attach/detach controller of the cluster does"))

func (a *attacher) Attach(_ context.Context, spec *volume.Spec, _ types.NodeName) (string, error) {
	return "", csivolume.Failed("Attach", spec.Name(), errNotHere)
}

func (a *attacher) Detach(_ context.Context, volumeName string, _ types.NodeName) error {
	return csivolume.Failed("Detach", volumeName, errNotHere)
}

// VolumesAreAttached reads the VolumeAttachments. One that cannot be read is an error.
func (a *attacher) VolumesAreAttached(ctx context.Context, specs []*volume.Spec, node types.NodeName) (map[*volume.Spec]bool, error) {
	attached := make(map[*volume.Spec]bool, len(specs))
	for _, spec := range specs {
		s, err := csivolume.Checked(&a.plugin.Kind, spec)
		if err == nil {
			_, err = a.plugin.attachment(ctx, s, node)
		}
		if err != nil && !errors.Is(err, ErrNotAttached) {
			return nil, csivolume.Failed("VolumesAreAttached", spec.Name(), err)
		}
		attached[spec] = err == nil
	}
	return attached, nil
}

// WaitForAttach does not wait: the node's status says that the volume is attached, and
// staging reads the VolumeAttachment again.
func (a *attacher) WaitForAttach(_ context.Context, _ *volume.Spec, devicePath string, _ *v1.Pod, _ time.Duration) (string, error) {
	return devicePath, nil
}

// CheckAttachment implements [volume.AttachmentChecker]: the error in the VolumeAttachment.
// That a driver has no room here is a reason to ask it at once how much it has.
func (p *Plugin) CheckAttachment(ctx context.Context, spec *volume.Spec) error {
	s, err := csivolume.Checked(&p.Kind, spec)
	if err != nil {
		return err
	}
	_, err = p.attachment(ctx, s, p.Host.GetNodeName())
	if _, failed := errors.AsType[attachFailed](err); failed {
		return err // it names the volume, and what has failed
	}
	return nil // attaching takes its time; an attachment that cannot be read is no failed one
}

// attachPatience is after how long a volume that is being attached is late: most storage needs
// less.
const attachPatience = 30 * time.Second

// attachFailed is the error of a volume that could not be attached, or is late.
type attachFailed struct{ error }

func (e attachFailed) Unwrap() error { return e.error }

// publishContext returns the metadata of the attachment of a volume that is staged at a
// place; nil: the driver does not attach, or the host knows no attachments. It is read
// when the volume is to be staged (anew), and kept until it is unstaged: as long as a node
// reports the volume in use, it stays attached.
func (p *Plugin) publishContext(ctx context.Context, w *volumeRequest, place string, anew bool) (map[string]string, error) {
	if w.source.Inline || !w.driverSpec.attach {
		return nil, nil
	}
	if _, err := volume.Role[volume.AttachmentGetter](p.Host); err != nil {
		return nil, p.checkUnattached(ctx, w.source)
	}
	if metadata, known := p.known.attachedAs(place); known && !anew {
		return metadata, nil
	}
	if must, err := mustAttach(ctx, p, w.source, w.driverSpec); err != nil || !must {
		return nil, err
	}
	metadata, err := p.attachment(ctx, w.source, p.Host.GetNodeName())
	if err != nil {
		return nil, err
	}
	p.known.attach(place, metadata)
	return metadata, nil
}

// checkUnattached refuses a volume of a driver that attaches, where nobody attaches. A driver that
// does not show its controller here fails later, if it attaches.
func (p *Plugin) checkUnattached(ctx context.Context, s *source) error {
	if !p.config.NoCluster {
		return nil
	}
	if attaches, err := driverAttaches(ctx, p, s.Driver); err != nil || !attaches {
		return err
	}
	return volume.NothingDone(&volume.Failure{Cause: ErrNotAttached, Subject: s.Handle,
		What: fmt.Sprintf("driver %s attaches its volumes to nodes before they are mounted, and nobody does so here for volume %.128q", s.Driver, s.Handle),
		Next: "attaching is the work of a cluster's attach/detach controller: run the node in a cluster, or use a driver whose volumes are not attached, such as a file server's"})
}

// attachment returns the metadata of a volume's attachment to a node. A failure has done
// nothing.
func (p *Plugin) attachment(ctx context.Context, s *source, node types.NodeName) (map[string]string, error) {
	getter, err := volume.Role[volume.AttachmentGetter](p.Host)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	name := csivolume.AttachmentName(s, string(node))
	a, err := getter.GetVolumeAttachment(ctx, name)
	why, full := "", false
	late := err == nil && a.DeletionTimestamp == nil && !a.Status.Attached && !a.CreationTimestamp.IsZero() && time.Since(a.CreationTimestamp.Time) >= attachPatience
	switch {
	case errors.Is(err, volume.ErrNotFound):
		why = "there is no VolumeAttachment " + name
	case err != nil:
		return nil, volume.NothingDone(fmt.Errorf("VolumeAttachment %s cannot be read: %w", name, err))
	case a.DeletionTimestamp != nil:
		why = "it is being detached (VolumeAttachment " + name + ")"
	case a.Status.AttachError != nil && !a.Status.Attached:
		why = "attaching it failed: " + drivers.Redact(a.Status.AttachError.Message, nil)
		if code := a.Status.AttachError.ErrorCode; code != nil && codes.Code(*code) == codes.ResourceExhausted {
			full = true
			p.cluster.again(s.Driver) // the limit that the cluster knows is wrong
		}
	case !a.Status.Attached && late:
		why = fmt.Sprintf("it is being attached since %s, and its attacher has not answered (VolumeAttachment %s)", a.CreationTimestamp.UTC().Format(time.RFC3339), name)
	case !a.Status.Attached:
		why = "it is being attached (VolumeAttachment " + name + ")"
	default:
		return a.Status.AttachmentMetadata, nil
	}
	failure := &volume.Failure{Cause: ErrNotAttached, Subject: s.Handle,
		What: fmt.Sprintf("volume %.128q of driver %s is not attached to node %s: %s", s.Handle, s.Driver, node, why),
		Next: "see the driver's controller and the attach/detach controller; drivers that do not attach say attachRequired: false in their CSIDriver object"}
	if full {
		failure.Cause, failure.Err, failure.Next = volume.ErrAttachLimitExceeded, ErrNotAttached, "the node has no room for another volume of this driver: run the pod on another node, or end one here"
	}
	err = volume.NothingDone(failure)
	if a != nil && (a.Status.AttachError != nil || late) {
		err = attachFailed{err}
	}
	return nil, err
}
