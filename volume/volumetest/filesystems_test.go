package volumetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/layout"
	"github.com/podvol/podvol/volume/meter"
)

// packed is a plugin of file systems that the fake knows nothing of: "layers", an
// overlay on a directory of the node with a layer of the pod's own, and "image",
// a squashfs of a file.
type packed struct {
	host  volume.VolumeHost
	meter meter.Meter
}

const packedName = "example.com/packed"

// packedSuite has no waivers. On a kernel it would need images, and an overlay
// that an ordinary user may mount.
func packedSuite() Suite {
	const needs = "overlays of users and loop devices are not everywhere"
	option := func(key, name string, readOnly bool) func(*Node) *volume.Spec {
		return func(n *Node) *volume.Spec {
			return Inline(v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: packedName, ReadOnly: readOnly,
				Options: map[string]string{key: filepath.Join(n.Dir, name)}}})(n)
		}
	}
	// Names that a check may not stumble over.
	content := map[string]string{"a": "file", "link": "file", "old": "file", "below": "file", "written": "file", "deep": "file",
		".hidden": "file", "data": "file", "kept": "file", "private": "file"}
	files := map[string]File{}
	for name, text := range content {
		files[name] = File{Content: text}
	}
	return Suite{
		Working: []Case{{
			Name: "layers", Spec: option("lower", "", false), NoKernel: needs,
			Prepare: func(n *Node) { n.Write(content) },
			Want:    Want{Files: files, Mount: &Mount{FSType: "overlay"}},
		}, {
			Name: "image", Spec: option("image", "image.squashfs", true), Shared: true, NoKernel: needs,
			Prepare: func(n *Node) { n.Write(map[string]string{"image.squashfs": "hsqs"}) },
			Want: Want{Files: map[string]File{"packed": {Content: "hsqs"}}, Exact: true, ReadOnly: true,
				Mount: &Mount{FSType: "squashfs", Options: []string{"ro"}}},
		}},
		Refused: []RefusedCase{{Name: "no image", Spec: option("image", "missing", true), Because: "no such file", NoKernel: needs}},
		FileSystems: map[string]fakemount.Content{
			"overlay":  layers,
			"squashfs": func(r mount.Request) (string, error) { return unpacked(r.Source) },
		},
	}
}

// layers copies the lower layer's files into the upper one, where they are missing.
func layers(r mount.Request) (string, error) {
	options := map[string]string{}
	for _, o := range r.Options {
		name, value, _ := strings.Cut(o, "=")
		options[name] = value
	}
	lower, upper := options["lowerdir"], options["upperdir"]
	err := filepath.WalkDir(lower, func(path string, entry fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(lower, path)
		copied := filepath.Join(upper, rel)
		if err := errors.Join(err, relErr); err != nil || exists(copied) {
			return err
		}
		if entry.IsDir() {
			return os.Mkdir(copied, 0o755)
		}
		data, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(copied, data, 0o644))
	})
	return upper, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// unpacked is a directory beside the image's own, with a file of what the image holds.
func unpacked(image string) (string, error) {
	data, err := os.ReadFile(image)
	dir := filepath.Dir(image) + ".unpacked"
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "packed"), data, 0o644)
	}
	return dir, err
}

func TestFileSystemsThatTheFakeLacks(t *testing.T) {
	Run(t, func() volume.VolumePlugin { return &packed{} }, packedSuite())
}

func (p *packed) Init(host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *packed) GetPluginName() string { return packedName }

func (p *packed) CanSupport(spec *volume.Spec) bool {
	driver, _, _ := flexOf(spec)
	return driver == packedName && spec.Volume != nil
}

func (p *packed) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", volume.Invalid("volume", "is not packed")
	}
	_, options, _ := flexOf(spec)
	return options["lower"] + options["image"], nil
}

func (p *packed) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	pv, err := volume.NewPodVolume(p.host, packedName, spec, pod)
	if err != nil {
		return nil, err
	}
	_, options, _ := flexOf(spec)
	lower, image := options["lower"], options["image"]
	if !p.CanSupport(spec) || (lower == "") == (image == "") || len(options) > 1 {
		return nil, pv.Error("NewMounter", volume.Invalid("flexVolume.options", "must be lower or image"))
	}
	return &packedMounter{packedVolume{pv, &p.meter}, lower, image}, nil
}

func (p *packed) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.host, packedName, name, uid)
	if err != nil {
		return nil, err
	}
	return &packedVolume{pv, &p.meter}, nil
}

func (p *packed) ConstructVolumeSpec(_ context.Context, name, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{Name: name,
		VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: packedName}}})}, nil
}

type packedVolume struct {
	volume.PodVolume
	meter *meter.Meter
}

// own is the directory in which the layers of the pod's are.
func (v *packedVolume) own() (parent, name string) {
	return v.Host.GetPodPluginDir(v.PodUID, layout.EscapeQualifiedName(packedName)), v.Name
}

func (v *packedVolume) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := podmount.Metrics(ctx, v.Host.GetMounter(), v.meter, v.GetPath())
	return metrics, v.Error("GetMetrics", err)
}

func (v *packedVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.GetPath()) }

func (v *packedVolume) TearDownAt(ctx context.Context, dir string) error {
	err := podmount.TearDown(ctx, v.Host.GetMounter(), dir, mount.UnmountOptions{})
	if err == nil {
		err = v.removeOwn(ctx)
	}
	return v.Error("TearDown", err)
}

func (v *packedVolume) removeOwn(ctx context.Context) error {
	parent, name := v.own()
	return removetree.Remove(context.WithoutCancel(ctx), parent, name)
}

type packedMounter struct {
	packedVolume
	lower, image string
}

func (m *packedMounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.image != ""}
}

func (m *packedMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *packedMounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	request, err := m.request(dir)
	if err != nil {
		return m.Error("SetUp", volume.NothingDone(errors.Join(err, m.removeOwn(ctx))))
	}
	same := func(e mount.Entry) bool { return e.FSType == request.FSType }
	made, err := podmount.SetUp(ctx, m.Host.GetMounter(), request, same)
	if err != nil && !made && !exists(dir) {
		err = errors.Join(err, m.removeOwn(ctx)) // nothing uses it
	}
	return m.Error("SetUp", err)
}

func (m *packedMounter) request(dir string) (mount.Request, error) {
	if m.image != "" {
		_, err := os.Stat(m.image)
		return mount.Request{Source: m.image, Target: dir, FSType: "squashfs", Options: []string{"ro"}}, err
	}
	parent, name := m.own()
	own := filepath.Join(parent, name)
	r := mount.Request{Source: "overlay", Target: dir, FSType: "overlay"}
	for _, layer := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(own, layer), 0o755); err != nil {
			return r, err
		}
		r.Options = append(r.Options, layer+"dir="+filepath.Join(own, layer))
	}
	r.Options = append(r.Options, "lowerdir="+m.lower)
	return r, nil
}
