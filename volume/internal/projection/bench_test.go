package projection_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/configmap"
	"github.com/podvol/podvol/volume/plugins/downwardapi"
	"github.com/podvol/podvol/volume/plugins/projected"
	"github.com/podvol/podvol/volume/plugins/secret"
)

// bench is one volume, "vol", of one pod on a fake node.
type bench struct {
	testing.TB
	host   *fakehost.Host
	plugin volume.VolumePlugin
	pod    *v1.Pod
	spec   *volume.Spec
}

func newBench(t testing.TB, source v1.VolumeSource) *bench {
	t.Helper()
	b := &bench{TB: t, host: fakehost.New(t), plugin: pluginOf(source)}
	if err := b.plugin.Init(b.host); err != nil {
		t.Fatal(err)
	}
	b.use(fakehost.Pod("web", v1.Volume{Name: "vol", VolumeSource: source}))
	before := b.pod.DeepCopy()
	t.Cleanup(func() {
		if diff := cmp.Diff(before.Spec.Volumes, b.pod.Spec.Volumes); diff != "" {
			t.Errorf("the pod was changed:\n%s", diff)
		}
	})
	return b
}

func pluginOf(source v1.VolumeSource) volume.VolumePlugin {
	switch {
	case source.ConfigMap != nil:
		return configmap.New()
	case source.Secret != nil:
		return secret.New(secret.Config{})
	case source.DownwardAPI != nil:
		return downwardapi.New(downwardapi.Config{})
	}
	return projected.New(projected.Config{})
}

// use makes pod the bench's pod; its first volume is the volume.
func (b *bench) use(pod *v1.Pod) {
	b.pod = pod
	b.spec = volume.NewSpecFromVolume(&pod.Spec.Volumes[0])
}

func (b *bench) mounter() volume.Mounter {
	b.Helper()
	m, err := b.plugin.NewMounter(b.spec, b.pod)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func (b *bench) trySetUp(args volume.MounterArgs) error {
	b.Helper()
	return b.mounter().SetUp(b.Context(), args)
}

func (b *bench) setUp() {
	b.Helper()
	if err := b.trySetUp(volume.MounterArgs{}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) tearDown() {
	b.Helper()
	u, err := b.plugin.NewUnmounter(b.spec.Name(), b.pod.UID)
	if err != nil {
		b.Fatal(err)
	}
	if err := u.TearDown(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) dir() string { return b.mounter().GetPath() }

// files returns mode and contents of every file, read by the visible names.
func (b *bench) files() map[string]string {
	b.Helper()
	found := map[string]string{}
	version, err := filepath.EvalSymlinks(filepath.Join(b.dir(), "..data"))
	if err != nil {
		b.Fatal(err)
	}
	err = filepath.WalkDir(version, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(version, path)
		if err != nil {
			return err
		}
		visible := filepath.Join(b.dir(), name)
		info, err := os.Stat(visible)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(visible)
		found[name] = fmt.Sprintf("%04o %s", info.Mode().Perm(), data)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return found
}

func (b *bench) wantFiles(want map[string]string) {
	b.Helper()
	if diff := cmp.Diff(want, b.files()); diff != "" {
		b.Errorf("files (-want +got):\n%s", diff)
	}
}

// state describes everything on disk below dir down to inodes and times of
// change, so that any write shows.
func (b *bench) state() (state []string) {
	b.Helper()
	err := filepath.WalkDir(b.dir(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		state = append(state, fmt.Sprintf("%s %v %+v", path, info.Mode(), statOf(info)))
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return state
}

func configMap(name string, data map[string]string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: data}
}

func secretObject(name string, data map[string]string) *v1.Secret {
	s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{}}
	for key, value := range data {
		s.Data[key] = []byte(value)
	}
	return s
}

func fromConfigMap(name string) v1.VolumeSource {
	return v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}}
}

func fromSecret(name string) v1.VolumeSource {
	return v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}}
}

func fromSources(sources ...v1.VolumeProjection) v1.VolumeSource {
	return v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}}
}

func projectConfigMap(name string, items ...v1.KeyToPath) v1.VolumeProjection {
	return v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items}}
}

func projectSecret(name string, items ...v1.KeyToPath) v1.VolumeProjection {
	return v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items}}
}

func projectToken(path string) v1.VolumeProjection {
	return v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: path}}
}
