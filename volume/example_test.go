package volume_test

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// memory is a role: it keeps secrets in a map.
type memory map[string]*v1.Secret

func (m memory) GetSecret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if s, ok := m[namespace+"/"+name]; ok {
		return s, nil
	}
	return nil, &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("Secret", namespace, name)}
}

// A plugin asks its host for what it needs when a pod needs it. What a host
// lacks is an error then, and everything else still works.
func ExampleRole() {
	host := &volume.Host{RootDir: "/var/lib/podvol", Secrets: memory{
		"ops/tls": {Data: map[string][]byte{"tls.crt": []byte("-----BEGIN CERTIFICATE-----")}},
	}}

	secrets, err := volume.Role[volume.SecretGetter](host)
	if err != nil {
		fmt.Println(err)
		return
	}
	tls, err := secrets.GetSecret(context.Background(), "ops", "tls")
	fmt.Println(len(tls.Data), err)
	_, err = secrets.GetSecret(context.Background(), "ops", "other")
	fmt.Println(errors.Is(err, volume.ErrNotFound), err)

	_, err = volume.Role[volume.TokenRequester](host)
	fmt.Println(err)
	// Output:
	// 1 <nil>
	// true Secret ops/other not found
	// this node has no Tokens (volume.TokenRequester); set Tokens in the configuration of the manager, in volume.Host or in podfiles.Sources, to use this kind of volume
}

// imagePlugin would mount images that were unpacked beforehand. Only what
// finding it takes is shown.
type imagePlugin struct{ host volume.VolumeHost }

func (p *imagePlugin) Init(host volume.VolumeHost) error { p.host = host; return nil }
func (p *imagePlugin) GetPluginName() string             { return "example.com/image" }
func (p *imagePlugin) CanSupport(spec *volume.Spec) bool {
	return spec != nil && spec.Volume != nil && spec.Volume.Image != nil
}
func (p *imagePlugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", volume.Invalid("volume spec", "is no image")
	}
	return spec.Volume.Image.Reference, nil
}
func (p *imagePlugin) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return nil, volume.Invalid("image", "this example mounts nothing")
}
func (p *imagePlugin) NewUnmounter(string, types.UID) (volume.Unmounter, error) {
	return nil, volume.Invalid("image", "this example mounts nothing")
}
func (p *imagePlugin) ConstructVolumeSpec(context.Context, string, string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{}, volume.Invalid("image", "this example mounts nothing")
}

// A plugin of one's own serves a volume type that podvol does not; types
// without a plugin are refused with the reason and what replaces them.
func ExampleVolumePluginMgr() {
	mgr, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{&imagePlugin{}}, &volume.Host{RootDir: "/var/lib/podvol"})
	if err != nil {
		fmt.Println(err)
		return
	}
	model := &v1.Volume{Name: "model", VolumeSource: v1.VolumeSource{
		Image: &v1.ImageVolumeSource{Reference: "example.com/model:1"},
	}}
	plugin, err := mgr.FindPluginBySpec(volume.NewSpecFromVolume(model))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(plugin.GetPluginName(), "mounts", volumesource.Describe(plugin, volume.NewSpecFromVolume(model)))

	source := &v1.Volume{Name: "source", VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{}}}
	_, err = mgr.FindPluginBySpec(volume.NewSpecFromVolume(source))
	if unsupported, ok := errors.AsType[*volume.UnsupportedError](err); ok {
		fmt.Println(unsupported.Type, "is refused:", unsupported.Replacement)
	}
	// Output:
	// example.com/image mounts example.com/model:1
	// gitRepo is refused: clone in an init container into an emptyDir
}
