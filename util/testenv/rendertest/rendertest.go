// Package rendertest compares the files that podfiles.Render gives of a volume, published
// by package atomicdir, with those that the volume's plugin shows.
package rendertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/atomicdir"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/podfiles"
	"github.com/podvol/podvol/volume/volumetest"
)

// Run compares them for every case of a plugin's suite, before and after its update, also
// with a user and a group; the plugin's refusals must be Render's. The tests of root compare
// them on ext4 and on tmpfs as well, in a mount namespace of their own.
func Run(t *testing.T, newPlugin func() volume.VolumePlugin, suite volumetest.Suite) {
	t.Helper()
	if os.Geteuid() != 0 {
		runIn(t, "", newPlugin, suite)
		return
	}
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		for name, mountOn := range map[string]func(testing.TB, string){"here": nil, "tmpfs": mounttest.MountTmpfs, "ext4": mounttest.MountExt4} {
			t.Run(name, func(t *testing.T) {
				if mountOn == nil {
					runIn(t, "", newPlugin, suite)
					return
				}
				dir := t.TempDir()
				mountOn(t, dir)
				runIn(t, dir, newPlugin, suite)
			})
		}
	})
}

// runIn publishes below a directory; empty: that of the tests.
func runIn(t *testing.T, below string, newPlugin func() volume.VolumePlugin, suite volumetest.Suite) {
	t.Helper()
	for _, c := range suite.Working {
		args := map[string]volume.MounterArgs{"as it is": c.Args}
		if os.Geteuid() == 0 { // who may give files away
			args["with a group and a user"] = volume.MounterArgs{FsGroup: new(int64(4321)), FsUser: new(int64(1234))}
		}
		for name, a := range args {
			t.Run(c.Name+"/"+name, func(t *testing.T) { compare(t, below, newPlugin(), suite, c, a) })
		}
	}
	for _, c := range suite.Refused {
		t.Run(c.Name, func(t *testing.T) {
			n := newNode(t, suite, c.Prepare)
			pod := podOf(c.Spec(n), c.Pod)
			s, err := podfiles.Render(t.Context(), pod, pod.Spec.Volumes[0].Name, sources(n), podfiles.Options{})
			if s != nil || err == nil || !strings.Contains(err.Error(), c.Because) {
				t.Errorf("%v, %v; want an error that says %q", s, err, c.Because)
			}
		})
	}
}

func compare(t *testing.T, below string, plugin volume.VolumePlugin, suite volumetest.Suite, c volumetest.Case, args volume.MounterArgs) {
	n := newNode(t, suite, c.Prepare)
	if err := plugin.Init(n.Host); err != nil {
		t.Fatal(err)
	}
	spec := c.Spec(n)
	pod := podOf(spec, c.Pod)
	mounter, err := plugin.NewMounter(spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	own := directory(t, below, args.FsGroup)
	var publisher atomicdir.Publisher
	same := func(when string, want map[string]volumetest.File) {
		if err := mounter.SetUp(t.Context(), args); err != nil {
			t.Fatal(err)
		}
		s, err := podfiles.Render(t.Context(), pod, spec.Name(), sources(n), podfiles.Options{FsUser: args.FsUser, FsGroup: args.FsGroup})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := publisher.Publish(t.Context(), own, s.Files); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tree(t, mounter.GetPath(), want), tree(t, own, want)); diff != "" {
			t.Errorf("%s, from the plugin's to the rendered files:\n%s", when, diff)
		}
	}
	same("at first", c.Want.Files)
	if c.Update != nil {
		c.Update(n)
		same("after the update", c.Updated)
	}
	unmounter, err := plugin.NewUnmounter(spec.Name(), pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	if err := unmounter.TearDown(t.Context()); err != nil {
		t.Error(err)
	}
}

// directory is one that an agent publishes into; it belongs to the pod's group, if it has one.
func directory(t *testing.T, below string, group *int64) string {
	t.Helper()
	dir := t.TempDir()
	if below != "" {
		var err error
		if dir, err = os.MkdirTemp(below, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if group == nil {
		return dir
	}
	if err := errors.Join(os.Chown(dir, -1, int(*group)), os.Chmod(dir, 0o775|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newNode(t *testing.T, suite volumetest.Suite, prepare func(*volumetest.Node)) *volumetest.Node {
	t.Helper()
	n := &volumetest.Node{Host: fakehost.New(t), Dir: t.TempDir()}
	n.Add(suite.Objects...)
	if prepare != nil {
		prepare(n)
	}
	return n
}

func podOf(spec *volume.Spec, change func(*v1.Pod)) *v1.Pod {
	pod := fakehost.Pod("web", *spec.Volume)
	if change != nil {
		change(pod)
	}
	return pod
}

// sources are the roles of a node's host.
func sources(n *volumetest.Node) podfiles.Sources {
	return podfiles.Sources{Objects: hostObjects{n.Host}, Tokens: n.Tokens, PodCertificates: n.PodCertificates, TrustBundles: n.TrustBundles, Allocatable: n.Allocatable}
}

type hostObjects struct{ host *fakehost.Host }

// Get implements objects.Getter.
func (o hostObjects) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	switch ref.Kind {
	case "Secret":
		return o.host.Secrets.GetSecret(ctx, ref.Namespace, ref.Name)
	case "ConfigMap":
		return o.host.ConfigMaps.GetConfigMap(ctx, ref.Namespace, ref.Name)
	}
	return nil, &volume.ObjectNotFoundError{Ref: ref}
}

// tree is what a directory shows: each file and directory with its mode, owners and contents,
// as one who follows the links at its top sees it. A file of the suite whose contents vary
// shows none.
func tree(t *testing.T, dir string, files map[string]volumetest.File) map[string]string {
	t.Helper()
	all := make(map[string]string)
	tops, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, top := range tops {
		if strings.HasPrefix(top.Name(), "..") {
			continue
		}
		real, err := filepath.EvalSymlinks(filepath.Join(dir, top.Name()))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(real, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := top.Name() + strings.TrimPrefix(path, real)
			all[name], err = describe(path, entry, files[name].Varies)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func describe(path string, entry fs.DirEntry, varies bool) (string, error) {
	info, err := entry.Info()
	if err != nil {
		return "", err
	}
	st := info.Sys().(*syscall.Stat_t)
	text := fmt.Sprintf("%v %d:%d", info.Mode(), st.Uid, st.Gid)
	if entry.IsDir() || varies {
		return text, nil
	}
	data, err := os.ReadFile(path)
	return fmt.Sprintf("%s %q", text, data), err
}
