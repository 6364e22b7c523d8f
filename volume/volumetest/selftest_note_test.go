package volumetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/volumesource"
)

const (
	noteName   = "example.com/note"
	noteFile   = "note"
	noteText   = "buy milk"
	noteCanary = "the-canary-sings-7f3a"
)

// note is a small plugin that keeps the whole contract; the broken plugins are
// made of it. An inline volume is a tmpfs with a file "note" of the volume's
// text and a secret; a persistent one is a directory of the node.
type note struct {
	host  volume.VolumeHost
	meter meter.Meter
}

var (
	_ volume.PersistentVolumePlugin = (*note)(nil)
	_ volume.DependentVolumePlugin  = (*note)(nil)
	_ volumesource.Describer        = (*note)(nil)
)

func newNote() volume.VolumePlugin { return &note{} }

// noteSuite names the volumes that note must mount and refuse.
func noteSuite() Suite {
	text := func(key, value string) v1.VolumeSource {
		return v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: noteName,
			SecretRef: &v1.LocalObjectReference{Name: "signature"}, Options: map[string]string{key: value}}}
	}
	return Suite{
		Working: []Case{
			{
				Name: "inline", Spec: Inline(text("text", noteText)),
				Want: Want{Mode: 0o755, Exact: true, Mount: &Mount{FSType: "tmpfs"},
					Files: map[string]File{noteFile: {Content: noteText + noteCanary, Mode: 0o640}}},
				Update:  func(n *Node) { n.Add(noteSecret(noteCanary + "!")) },
				Updated: map[string]File{noteFile: {Content: noteText + noteCanary + "!", Mode: 0o640}},
			},
			{
				Name: "persistent", Spec: noteDirectory(true), Shared: true,
				Prepare: func(n *Node) { n.Write(map[string]string{noteFile: noteText + noteCanary}) },
				Want: Want{ReadOnly: true, Mount: &Mount{Options: []string{"ro"}},
					Files: map[string]File{noteFile: {Content: noteText + noteCanary}}},
			},
		},
		Refused: []RefusedCase{
			{Name: "another option", Spec: Inline(text("words", noteText)), Because: "flexVolume.options.words"},
			{Name: "no secret", Because: "default/missing", Spec: func(n *Node) *volume.Spec {
				source := text("text", noteText)
				source.FlexVolume.SecretRef.Name = "missing"
				return Inline(source)(n)
			}},
		},
		Objects: []metav1.Object{noteSecret(noteCanary)},
		Canary:  noteCanary,
	}
}

func noteSecret(value string) *v1.Secret {
	return &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "signature"},
		Data:       map[string][]byte{"value": []byte(value)},
	}
}

// noteDirectory is the spec of a persistent volume that shows the node's Dir.
func noteDirectory(readOnly bool) func(*Node) *volume.Spec {
	return func(n *Node) *volume.Spec {
		return Persistent(v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{
			Driver: noteName, Options: map[string]string{"path": n.Dir}}}, readOnly)(n)
	}
}

func TestNotePasses(t *testing.T) { Run(t, newNote, noteSuite()) }

func (p *note) Init(host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *note) GetPluginName() string { return noteName }

func (p *note) CanSupport(spec *volume.Spec) bool {
	driver, _, _ := flexOf(spec)
	return driver == noteName
}

// flexOf returns what inline and persistent FlexVolumes have in common.
func flexOf(spec *volume.Spec) (driver string, options map[string]string, readOnly bool) {
	switch {
	case spec == nil:
	case spec.Volume != nil && spec.Volume.FlexVolume != nil:
		flex := spec.Volume.FlexVolume
		return flex.Driver, flex.Options, flex.ReadOnly
	case spec.PersistentVolume != nil && spec.PersistentVolume.Spec.FlexVolume != nil:
		flex := spec.PersistentVolume.Spec.FlexVolume
		return flex.Driver, flex.Options, flex.ReadOnly || spec.ReadOnly
	}
	return "", nil, false
}

func (p *note) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", volume.Invalid("volume", "is no note")
	}
	_, options, _ := flexOf(spec)
	if path := options["path"]; path != "" {
		return path, nil
	}
	sum := sha256.Sum256([]byte(options["text"]))
	return hex.EncodeToString(sum[:8]), nil
}

func (p *note) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
}

func (p *note) DescribeSource(spec *volume.Spec) string {
	name, _ := p.GetVolumeName(spec)
	return name
}

func (p *note) DependsOn(spec *volume.Spec, pod *v1.Pod) []volume.ObjectRef {
	if name := secretOf(spec); name != "" && pod != nil {
		return []volume.ObjectRef{volume.NewObjectRef("Secret", pod.Namespace, name)}
	}
	return nil
}

func secretOf(spec *volume.Spec) string {
	if spec == nil || spec.Volume == nil || spec.Volume.FlexVolume == nil || spec.Volume.FlexVolume.SecretRef == nil {
		return ""
	}
	return spec.Volume.FlexVolume.SecretRef.Name
}

func (p *note) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m, err := p.newMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (p *note) newMounter(spec *volume.Spec, pod *v1.Pod) (*noteMounter, error) {
	pv, err := volume.NewPodVolume(p.host, noteName, spec, pod)
	if err != nil {
		return nil, err
	}
	m := &noteMounter{noteVolume: noteVolume{pv, &p.meter}, secret: secretOf(spec)}
	if err := m.read(p, spec); err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	return m, nil
}

func (m *noteMounter) read(p *note, spec *volume.Spec) error {
	if !p.CanSupport(spec) {
		return volume.Invalid("volume", "is no note")
	}
	if spec.PersistentVolume != nil {
		if mode := spec.PersistentVolume.Spec.VolumeMode; mode != nil && *mode == v1.PersistentVolumeBlock {
			return volume.Invalid("spec.volumeMode", "Block is not supported")
		}
	}
	_, options, readOnly := flexOf(spec)
	m.text, m.path, m.readOnly = options["text"], options["path"], readOnly
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if key != "text" && key != "path" {
			return volume.Invalid("flexVolume.options."+key, "is not known; use text or path")
		}
	}
	if (m.text == "") == (m.path == "") {
		return volume.Invalid("flexVolume.options", "must have either text or path")
	}
	if m.path != "" && !filepath.IsAbs(m.path) {
		return volume.Invalid("flexVolume.options.path", "must be absolute")
	}
	return nil
}

func (p *note) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	u, err := p.newUnmounter(name, uid)
	if err != nil {
		return nil, err
	}
	return u, nil
}

func (p *note) newUnmounter(name string, uid types.UID) (*noteUnmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.host, noteName, name, uid)
	if err != nil {
		return nil, err
	}
	return &noteUnmounter{noteVolume{pv, &p.meter}}, nil
}

func (p *note) ConstructVolumeSpec(_ context.Context, name, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{Name: name,
		VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: noteName}}})}, nil
}

type noteVolume struct {
	volume.PodVolume
	meter *meter.Meter
}

func (v *noteVolume) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := podmount.Metrics(ctx, v.Host.GetMounter(), v.meter, v.GetPath())
	return metrics, v.Error("GetMetrics", err)
}

type noteMounter struct {
	noteVolume
	text, path, secret string
	readOnly           bool
}

func (m *noteMounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly}
}

func (m *noteMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *noteMounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if m.path != "" {
		return m.Error("SetUp", m.bind(ctx, dir))
	}
	return m.Error("SetUp", m.write(ctx, dir))
}

func (m *noteMounter) bind(ctx context.Context, dir string) error {
	request := mount.Request{Source: m.path, Target: dir, Options: []string{"bind"}}
	if m.readOnly {
		request.Options = append(request.Options, "ro")
	}
	_, err := podmount.SetUp(ctx, m.Host.GetMounter(), request, func(e mount.Entry) bool { return e.ReadOnly() || !m.readOnly })
	return err
}

func (m *noteMounter) write(ctx context.Context, dir string) error {
	signature, err := m.signature(ctx)
	if err != nil {
		return volume.NothingDone(err)
	}
	request := mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: []string{"mode=0755"}}
	made, err := podmount.SetUp(ctx, m.Host.GetMounter(), request, func(e mount.Entry) bool { return e.FSType == "tmpfs" })
	if err != nil {
		return err
	}
	err = writeBelow(dir, noteFile, append([]byte(m.text), signature...))
	if err != nil && made {
		return errors.Join(err, podmount.Undo(ctx, m.Host.GetMounter(), dir))
	}
	return err
}

// writeBelow does not follow a link in the place of dir that leads elsewhere.
func writeBelow(dir, name string, data []byte) error {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	root, err := parent.OpenRoot(filepath.Base(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.WriteFile(name+".new", data, 0o640); err != nil {
		return err
	}
	return root.Rename(name+".new", name)
}

func (m *noteMounter) signature(ctx context.Context) ([]byte, error) {
	if m.secret == "" {
		return nil, nil
	}
	secrets, err := volume.Role[volume.SecretGetter](m.Host)
	if err != nil {
		return nil, err
	}
	secret, err := secrets.GetSecret(ctx, m.Pod.Namespace, m.secret)
	if err != nil {
		return nil, err
	}
	return secret.Data["value"], nil
}

type noteUnmounter struct{ noteVolume }

func (u *noteUnmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

func (u *noteUnmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", podmount.TearDown(ctx, u.Host.GetMounter(), dir, mount.UnmountOptions{}))
}
