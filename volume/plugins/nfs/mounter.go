package nfs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/podmount"
)

const fsType = "nfs"

// share is what mounter and unmounter have in common.
type share struct {
	volume.PodVolume
	plugin *plugin
}

type mounter struct {
	share
	export  export
	options []string
	// mustBeReadOnly is the volume's own wish, which an existing mount must fulfil.
	// Options may say so too, but an existing mount may have older ones.
	mustBeReadOnly bool
	// directory is to be made if it is missing; nil: not.
	directory *directoryWish
	// refused is the policy's error; nil: none. An existing mount is kept.
	refused error
}

// persistent reads from a PersistentVolume how it is to be mounted.
func (m *mounter) persistent(spec *volume.Spec) (err error) {
	if m.options, err = pluginbase.Options(spec, m.mustBeReadOnly); err != nil {
		return err
	}
	m.mustBeReadOnly = m.readOnly()
	mode, err := modeIn(spec.PersistentVolume.Annotations, AnnotationMakeDirectory)
	if err != nil || mode == nil {
		return err
	}
	m.directory, m.refused = m.plugin.config.Inline.directoryFor(m.Name, m.export, *mode)
	return nil
}

// asked reads from a pod how its inline volume is to be mounted.
func (m *mounter) asked(pod *v1.Pod) {
	policy := m.plugin.config.Inline
	asked, err := askedOptions(pod, m.Name)
	if err == nil {
		m.options, err = policy.optionsFor(m.Name, m.export.server, asked, m.mustBeReadOnly)
	}
	mode, modeErr := askedMode(pod, m.Name)
	if mode != nil {
		m.directory, modeErr = policy.directoryFor(m.Name, m.export, *mode)
	}
	m.refused = errors.Join(err, modeErr)
}

// GetAttributes reports Managed false: whose files are whose is the server's
// business; supplementalGroups give a pod access.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly()}
}

func (m *mounter) readOnly() bool { return m.mustBeReadOnly || slices.Contains(m.options, "ro") }

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	request := mount.Request{Source: m.export.String(), Target: dir, FSType: fsType, Options: slices.Clone(m.options)}
	if m.refused != nil {
		return m.Error("SetUp", m.unlessMounted(request))
	}
	err := m.mount(ctx, request)
	if m.directory != nil && isMissing(err) {
		err = m.makeAndMount(ctx, request, args, err)
	}
	return m.Error("SetUp", err)
}

func (m *mounter) mount(ctx context.Context, request mount.Request) error {
	made, err := m.plugin.setUp(ctx, m.export, request, m.isMounted)
	if err != nil || !made || m.directory == nil {
		return err
	}
	return m.refuseUnfinished(ctx, request.Target)
}

// unlessMounted returns why nothing is to be mounted, unless something is: its
// pod was allowed it once, and runs.
func (m *mounter) unlessMounted(request mount.Request) error {
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, m.isMounted)
	if err != nil || mounted {
		return err
	}
	return m.refused
}

// isMounted reports whether the entry is this share. A writable mount is not
// what a read-only volume asked for.
func (m *mounter) isMounted(entry mount.Entry) bool {
	found, ok := parseTableSource(entry.Source)
	return ok && isNFS(entry) && found.same(m.export) && (entry.ReadOnly() || !m.mustBeReadOnly)
}

func isNFS(entry mount.Entry) bool { return entry.FSType == "nfs" || entry.FSType == "nfs4" }

type unmounter struct{ share }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", podmount.TearDown(ctx, u.Host.GetMounter(), dir, u.plugin.ladder()))
}

// mountByOwnName mounts an export so that the mount table shows it by the name that was
// asked for.
//
// Linux lets mounts of one file system of a server share a superblock, however the server
// is spelt: by name or address, and with NFSv4.1 by any two of its addresses (RFC 8881,
// 2.10.5). All of them then show the first one's name, and would be taken for another
// export's mount later. So such a mount is made again with a superblock of its own
// (nosharecache of nfs(5)), with a cache of its own.
func mountByOwnName(ctx context.Context, m mount.Interface, e export, request mount.Request) error {
	if err := mount.Mount(ctx, m, request); err != nil {
		return err
	}
	other, err := showsAnother(m, e, request.Target)
	if err != nil || !other {
		return err
	}
	if _, err := mount.Unmount(ctx, m, request.Target, mount.UnmountOptions{}); err != nil {
		return fmt.Errorf("%s is mounted by another name of its server, and to be mounted by its own: %w", e, err)
	}
	request.Options = append(slices.Clone(request.Options), "nosharecache")
	return mount.Mount(ctx, m, request)
}

// showsAnother reports whether the mount at dir has another export's name.
func showsAnother(m mount.Interface, e export, dir string) (bool, error) {
	mounts := table.Of(m)
	entry, mounted, err := mounts.At(dir)
	if err != nil || !mounted || !isNFS(entry) {
		return false, err
	}
	found, ok := parseTableSource(entry.Source)
	return ok && !found.same(e), nil
}
