package iscsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
)

// CanAttach reports whether a volume waits for a cluster's attach/detach controller, which
// keeps two nodes from writing to one disk: the host knows attachments.
func (p *plugin) CanAttach(_ context.Context, spec *volume.Spec) (bool, error) {
	if _, err := p.checked(spec); err != nil {
		return false, err
	}
	_, err := volume.Role[volume.AttachmentGetter](p.Host)
	return err == nil, nil
}

// NewAttacher returns an attacher that does nothing: the node that mounts the volume logs in.
func (p *plugin) NewAttacher() (volume.Attacher, error) { return &attacher{device{p}}, nil }

// NewDetacher returns a detacher that does nothing: UnmountDevice logs out.
func (p *plugin) NewDetacher() (volume.Detacher, error) { return &attacher{device{p}}, nil }

type attacher struct{ device }

func (a *attacher) Attach(_ context.Context, spec *volume.Spec, _ types.NodeName) (string, error) {
	_, err := a.plugin.checked(spec)
	return "", failed("Attach", spec.Name(), err)
}

func (a *attacher) Detach(context.Context, string, types.NodeName) error { return nil }

// VolumesAreAttached is true of every volume, as in Kubernetes: nothing is to be seen from
// elsewhere.
func (a *attacher) VolumesAreAttached(_ context.Context, specs []*volume.Spec, _ types.NodeName) (map[*volume.Spec]bool, error) {
	attached := make(map[*volume.Spec]bool, len(specs))
	for _, spec := range specs {
		attached[spec] = true
	}
	return attached, nil
}

// WaitForAttach does not wait: MountDevice logs in.
func (a *attacher) WaitForAttach(_ context.Context, _ *volume.Spec, devicePath string, _ *v1.Pod, _ time.Duration) (string, error) {
	return devicePath, nil
}

// AttachSpec implements [volume.SpecAttacher]; it does nothing.
func (p *plugin) AttachSpec(_ context.Context, spec *volume.Spec, _ types.NodeName) (volume.Attachment, error) {
	_, err := p.checked(spec)
	return volume.Attachment{}, failed("AttachSpec", spec.Name(), err)
}

// DetachSpec implements [volume.SpecAttacher]. It refuses while this node has the volume staged,
// as a file system or a device; of other nodes it knows nothing.
func (p *plugin) DetachSpec(_ context.Context, spec *volume.Spec, node types.NodeName) error {
	s, err := p.checked(spec)
	if err == nil && node == p.Host.GetNodeName() {
		err = p.checkUnstaged(s)
	}
	return failed("DetachSpec", spec.Name(), err)
}

func (p *plugin) checkUnstaged(s *source) error {
	_, mounted, err := table.Of(p.Host.GetMounter()).At(p.devicePath(s))
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("%s is mounted at %s: %w", s.volumeName(), p.devicePath(s), volume.ErrInUse)
	}
	for _, file := range []string{filepath.Join(p.devicePath(s), recordName), blockRecord(p.mapPath(s))} {
		_, err := os.Lstat(file)
		if err == nil {
			return fmt.Errorf("%s is staged, as %s says: %w", s.volumeName(), file, volume.ErrInUse)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
