package projection_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

// oneOfEach is a volume of each plugin with its objects.
func oneOfEach() map[string]v1.VolumeSource {
	return map[string]v1.VolumeSource{
		"configMap": fromConfigMap("app"),
		"secret":    fromSecret("tls"),
		"downwardAPI": {DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "key", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.annotations['version']"}}}}},
		"projected": fromSources(projectConfigMap("app"), projectSecret("tls")),
	}
}

// provide makes the objects of oneOfEach, all with these contents.
func (b *bench) provide(value string) {
	b.host.Add(configMap("app", map[string]string{"key": value}), secretObject("tls", map[string]string{"key": value}))
	pod := b.pod.DeepCopy()
	pod.Annotations = map[string]string{"version": value}
	b.use(pod)
}

func TestLife(t *testing.T) {
	for name, source := range oneOfEach() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, source)
			b.provide("one")
			b.setUp()
			b.wantFiles(map[string]string{"key": "0644 one"})
			if got, want := b.mounter().GetAttributes(), (volume.Attributes{ReadOnly: true, Managed: true, SELinuxRelabel: true}); got != want {
				t.Errorf("attributes %+v", got)
			}
			if got := !volume.RefreshAfter(b.mounter()).IsZero(); got {
				t.Error("contents without tokens are due")
			}

			entry, mounted, err := b.host.Fake.Table().At(b.dir())
			if err != nil {
				t.Fatal(err)
			}
			if onDisk := source.ConfigMap != nil; mounted == onDisk || mounted && entry.FSType != "tmpfs" {
				t.Errorf("mounted: %v %+v", mounted, entry)
			}

			metrics, err := b.mounter().GetMetrics(t.Context())
			if err != nil || metrics.InodesUsed == nil || metrics.InodesUsed.Value() < 3 {
				t.Errorf("metrics %+v, %v", metrics, err)
			}

			// Unchanged: not a write.
			before := b.state()
			b.setUp()
			if diff := cmp.Diff(before, b.state()); diff != "" {
				t.Errorf("an unchanged volume was written to:\n%s", diff)
			}

			// Changed.
			b.provide("two")
			b.setUp()
			b.wantFiles(map[string]string{"key": "0644 two"})

			b.tearDown()
			b.host.AssertTornDown(t)
			b.tearDown()

			// The same again: nothing is remembered of what is gone.
			b.setUp()
			b.wantFiles(map[string]string{"key": "0644 two"})
			b.tearDown()
			b.host.AssertTornDown(t)
		})
	}
}

func TestReconstruction(t *testing.T) {
	for name, source := range oneOfEach() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, source)
			b.provide("one")
			b.setUp()

			// Another process, which knows only what is on disk.
			again := pluginOf(source)
			if err := again.Init(b.host); err != nil {
				t.Fatal(err)
			}
			r, err := again.ConstructVolumeSpec(t.Context(), "vol", b.dir())
			if err != nil || r.Complete || r.Spec.Name() != "vol" || !again.CanSupport(r.Spec) {
				t.Fatalf("%+v, %v", r, err)
			}
			if _, err := again.GetVolumeName(r.Spec); err != nil {
				t.Error(err)
			}
			u, err := again.NewUnmounter(r.Spec.Name(), b.pod.UID)
			if err != nil {
				t.Fatal(err)
			}
			if u.GetPath() != b.dir() {
				t.Errorf("the unmounter is at %s", u.GetPath())
			}
			if err := u.TearDown(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.host.AssertTornDown(t)
			if _, err := again.ConstructVolumeSpec(t.Context(), "../vol", b.dir()); err == nil {
				t.Error("a volume name with a slash was accepted")
			}
		})
	}
}

func TestNewProcessWritesNothing(t *testing.T) {
	b := newBench(t, fromConfigMap("app"))
	b.provide("one")
	b.setUp()
	before := b.state()
	b.plugin = pluginOf(fromConfigMap("app"))
	if err := b.plugin.Init(b.host); err != nil {
		t.Fatal(err)
	}
	b.setUp()
	if diff := cmp.Diff(before, b.state()); diff != "" {
		t.Errorf("the volume of an earlier process was written to:\n%s", diff)
	}
}

// A reader that holds ..data open sees one version throughout.
func TestReadersSeeOneVersion(t *testing.T) {
	b := newBench(t, fromConfigMap("app"))
	publish := func(n int) {
		value := fmt.Sprint(n)
		b.host.Add(configMap("app", map[string]string{"a": value, "b": value}))
		b.setUp()
	}
	publish(0)
	dir := b.dir()
	stop := make(chan struct{})
	var reader sync.WaitGroup
	whole := 0
	reader.Go(func() {
		for {
			a, b, err := readBoth(dir)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				// Two publications while it read: that version is gone.
			case err != nil:
				t.Error(err)
			case a != b:
				t.Errorf("one open of ..data shows a=%s and b=%s", a, b)
			default:
				whole++
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for n := range 200 {
		publish(n + 1)
	}
	close(stop)
	reader.Wait()
	if whole == 0 {
		t.Error("no version was read as a whole")
	}
}

func readBoth(dir string) (a, b string, err error) {
	root, err := os.OpenRoot(filepath.Join(dir, "..data"))
	if err != nil {
		return "", "", err
	}
	defer root.Close()
	first, err := root.ReadFile("a")
	if err != nil {
		return "", "", err
	}
	second, err := root.ReadFile("b")
	return string(first), string(second), err
}

func TestPreviousVersionStaysOpen(t *testing.T) {
	b := newBench(t, fromSecret("tls"))
	b.provide("one")
	b.setUp()
	root, err := os.OpenRoot(filepath.Join(b.dir(), "..data"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	b.provide("two")
	b.setUp()
	if data, err := root.ReadFile("key"); err != nil || string(data) != "one" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestFailedFirstSetUpLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	isMount := func(c fakemount.Call) bool { return c.Op == mount.OpMount }
	tests := map[string]struct {
		sabotage func(*bench) volume.MounterArgs
		want     error
	}{
		"the object cannot be read": {func(b *bench) volume.MounterArgs {
			b.host.InjectRole(fakehost.RoleFault{Err: boom})
			return volume.MounterArgs{}
		}, boom},
		"mounting fails": {func(b *bench) volume.MounterArgs {
			b.host.Fake.Inject(fakemount.Fault{Match: isMount, Err: boom})
			return volume.MounterArgs{}
		}, boom},
		"mounting fails after it took effect": {func(b *bench) volume.MounterArgs {
			b.host.Fake.Inject(fakemount.Fault{Match: isMount, After: true, Err: boom})
			return volume.MounterArgs{}
		}, boom},
		"publishing fails": {func(*bench) volume.MounterArgs {
			return volume.MounterArgs{FsUser: ptr.To[int64](-5)} // no user id
		}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, fromSources(projectSecret("tls"), projectToken("token")))
			b.provide("one")
			err := b.trySetUp(tc.sabotage(b))
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Fatalf("%v", err)
			}
			if volume.IsUncertain(err) {
				t.Errorf("%v does not say that nothing is left", err)
			}
			b.host.AssertTornDown(t)
		})
	}
}

func TestCleaningUpFailsToo(t *testing.T) {
	b := newBench(t, fromSources(projectToken("token")))
	boom := errors.New("boom")
	remove := b.host.Fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpUnmount }, Err: boom})
	err := b.trySetUp(volume.MounterArgs{FsUser: ptr.To[int64](-5)})
	if !errors.Is(err, boom) || !volume.IsUncertain(err) {
		t.Errorf("%v must be uncertain", err)
	}
	remove()
	b.tearDown()
	b.host.AssertTornDown(t)
}

func TestCancelled(t *testing.T) {
	b := newBench(t, fromSecret("tls"))
	b.provide("one")
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	whileAsking := func(fakehost.RoleCall) bool { cancel(); return true }
	b.host.InjectRole(fakehost.RoleFault{Match: whileAsking, Release: release})
	err := b.mounter().SetUp(ctx, volume.MounterArgs{})
	if !errors.Is(err, context.Canceled) || volume.IsUncertain(err) {
		t.Errorf("%v", err)
	}
	b.host.AssertTornDown(t)
}

func TestFailedUpdateKeepsTheFiles(t *testing.T) {
	boom := errors.New("boom")
	tests := map[string]func(*bench) volume.MounterArgs{
		"the secret is gone": func(b *bench) volume.MounterArgs {
			b.host.Delete(volume.NewObjectRef("Secret", "default", "tls"))
			return volume.MounterArgs{}
		},
		"the secret cannot be read": func(b *bench) volume.MounterArgs {
			b.host.InjectRole(fakehost.RoleFault{Err: boom})
			return volume.MounterArgs{}
		},
		"publishing fails": func(b *bench) volume.MounterArgs {
			b.host.Add(secretObject("tls", map[string]string{"key": "two", "in-the-way": "two"}))
			if err := os.Mkdir(filepath.Join(b.dir(), "in-the-way"), 0o755); err != nil {
				b.Fatal(err)
			}
			return volume.MounterArgs{}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, fromSecret("tls"))
			b.provide("one")
			b.setUp()
			before := b.files()
			args := change(b)
			state := b.state()
			err := b.trySetUp(args)
			if err == nil || !volume.IsUncertain(err) {
				t.Errorf("%v: a volume that is mounted must not count as nothing", err)
			}
			b.wantFiles(before)
			if diff := cmp.Diff(names(state), names(b.state())); diff != "" {
				t.Errorf("left behind:\n%s", diff)
			}
			b.tearDown()
			b.host.AssertTornDown(t)
		})
	}
}

func names(state []string) (names []string) {
	for _, line := range state {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestTearDownWithStrangersContents(t *testing.T) {
	for name, source := range oneOfEach() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, source)
			b.provide("one")
			b.setUp()
			if err := os.MkdirAll(filepath.Join(b.dir(), "a/b"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(b.dir(), "a/b/c"), []byte("x"), 0o400); err != nil {
				t.Fatal(err)
			}
			b.tearDown()
			b.host.AssertTornDown(t)
		})
	}
}

func TestTearDownFailsHalfWay(t *testing.T) {
	b := newBench(t, fromSecret("tls"))
	b.provide("one")
	b.setUp()
	boom := errors.New("boom")
	remove := b.host.Fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpUnmount }, After: true, Err: boom})
	u, err := b.plugin.NewUnmounter("vol", b.pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	tearDownErr := u.TearDown(t.Context())
	remove()
	if tearDownErr != nil && !strings.Contains(tearDownErr.Error(), `"vol"`) {
		t.Errorf("%v does not name the volume", tearDownErr)
	}
	// Whatever became of it, setting it up again shows the files.
	b.setUp()
	b.wantFiles(map[string]string{"key": "0644 one"})
	b.tearDown()
	b.host.AssertTornDown(t)
}

func TestTmpfsUnmountedByAStranger(t *testing.T) {
	b := newBench(t, fromSecret("tls"))
	b.provide("one")
	b.setUp()
	if err := b.host.Fake.Unmount(b.dir()); err != nil {
		t.Fatal(err)
	}
	b.setUp()
	b.wantFiles(map[string]string{"key": "0644 one"})
}

func TestTwoPods(t *testing.T) {
	source := fromSecret("tls")
	b := newBench(t, source)
	b.provide("one")
	b.setUp()
	first := b.pod
	b.use(fakehost.Pod("db", v1.Volume{Name: "vol", VolumeSource: source}))
	b.setUp()
	second := b.dir()
	b.use(first)
	if b.dir() == second {
		t.Fatal("both are in one place")
	}
	b.tearDown()
	if _, err := os.Lstat(b.dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(second, "key")); err != nil || string(data) != "one" {
		t.Errorf("the other pod's volume: %q, %v", data, err)
	}
}

func TestConcurrentPods(t *testing.T) {
	source := fromSources(projectConfigMap("app"), projectToken("token"))
	b := newBench(t, source)
	b.provide("one")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			pod := fakehost.Pod(fmt.Sprint("web-", i), v1.Volume{Name: "vol", VolumeSource: source})
			m, err := b.plugin.NewMounter(volume.NewSpecFromVolume(&pod.Spec.Volumes[0]), pod)
			if err == nil {
				err = m.SetUp(t.Context(), volume.MounterArgs{})
			}
			if err == nil {
				err = m.SetUp(t.Context(), volume.MounterArgs{})
			}
			if err != nil || volume.RefreshAfter(m).IsZero() {
				t.Error(err)
				return
			}
			u, err := b.plugin.NewUnmounter("vol", pod.UID)
			if err == nil {
				err = u.TearDown(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	b.host.AssertTornDown(t)
}

// TestSizeInMemory looks at what limits a volume in memory when it is made.
func TestSizeInMemory(t *testing.T) {
	limited := v1.Container{Name: "c", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}}}
	for name, tc := range map[string]struct {
		containers []v1.Container
		noNode     bool
		want       string
	}{
		"the pod's limit":   {containers: []v1.Container{limited}, want: "size=67108864"},
		"the node's memory": {containers: []v1.Container{{Name: "c"}}, want: "size=8589934592"},
		"nobody knows any":  {containers: []v1.Container{{Name: "c"}}, noNode: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, fromSecret("tls"))
			b.provide("one")
			pod := b.pod.DeepCopy()
			pod.Spec.Containers = tc.containers
			b.use(pod)
			if tc.noNode {
				b.host.Allocatable = nil
			}
			b.setUp()
			options := b.host.Fake.Calls()[0].Options
			i := slices.IndexFunc(options, func(o string) bool { return strings.HasPrefix(o, "size=") })
			if tc.want == "" && i >= 0 || tc.want != "" && (i < 0 || options[i] != tc.want) {
				t.Errorf("mounted with %q, want %q", options, tc.want)
			}
		})
	}
}
