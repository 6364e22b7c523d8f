package volume_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

func pluginNames(m *volume.VolumePluginMgr) (names []string) {
	for _, p := range m.Plugins() {
		names = append(names, p.GetPluginName())
	}
	return names
}

func newMgr(t *testing.T, plugins ...volume.VolumePlugin) *volume.VolumePluginMgr {
	t.Helper()
	m, err := volume.NewVolumePluginMgr(plugins, &volume.Host{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestInitPluginsHandsThemTheirHost(t *testing.T) {
	host := &volume.Host{RootDir: "/r"}
	first, second := &basic{name: "example.com/a"}, &basic{name: "example.com/b"}
	m, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{first, second}, host)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*basic{first, second} {
		if len(p.inits) != 1 || p.inits[0] != volume.VolumeHost(host) {
			t.Errorf("%s was initialised with %v", p.name, p.inits)
		}
	}
	later := &basic{name: "example.com/c"}
	if err := m.InitPlugins([]volume.VolumePlugin{later}, host); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"example.com/a", "example.com/b", "example.com/c"}, pluginNames(m)); diff != "" {
		t.Errorf("plugins (-want +got):\n%s", diff)
	}
	if len(first.inits) != 1 {
		t.Error("a plugin was initialised twice")
	}
}

func TestPluginNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"kubernetes.io/nfs":       true,
		"example.com/my-plugin_2": true,
		"x/y":                     true,
		"nfs":                     false,
		"":                        false,
		"/":                       false,
		"/nfs":                    false,
		"kubernetes.io/":          false,
		"kubernetes.io/a/b":       false,
		"Kubernetes.io/nfs":       false,
		"../nfs":                  false,
		"kubernetes.io/..":        false,
		"kubernetes.io~nfs":       false,
		"kubernetes.io/n~fs":      false,
		"kubernetes.io/n fs":      false,
		"kubernetes.io/nfs\n":     false,
		"kubernetes.io/" + strings.Repeat("n", 64): false,
	} {
		t.Run(name, func(t *testing.T) {
			p := &basic{name: name}
			m, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{p}, &volume.Host{})
			if valid {
				if err != nil || len(m.Plugins()) != 1 {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			refused, ok := errors.AsType[*volume.Failure](err)
			if !ok || refused.Cause != volume.ErrPluginName || refused.Subject != name || strings.HasSuffix(refused.What, ": ") || m != nil {
				t.Errorf("got %v, %v, want ErrPluginName", m, err)
			}
			if len(p.inits) != 0 {
				t.Error("a refused plugin was initialised")
			}
		})
	}
}

// Whatever is wrong with one plugin, none is added, and all faults are told.
func TestInitPluginsAddsAllOrNone(t *testing.T) {
	broken := errors.New("no such host")
	type others struct{ basic }
	for _, tc := range []struct {
		name  string
		add   []volume.VolumePlugin
		check func(error) bool
		inits bool // whether Init may have been called
	}{
		{"a name twice", []volume.VolumePlugin{&basic{name: "example.com/a"}, &others{basic{name: "example.com/a"}}},
			func(err error) bool {
				e, ok := errors.AsType[*volume.Failure](err)
				return ok && e.Cause == volume.ErrDuplicatePlugin && e.Subject == "example.com/a" && strings.HasSuffix(e.What, ": *volume_test.basic and *volume_test.others")
			}, false},
		{"a name that is taken", []volume.VolumePlugin{&basic{name: "example.com/a"}, &others{basic{name: "example.com/present"}}},
			func(err error) bool {
				e, ok := errors.AsType[*volume.Failure](err)
				return ok && e.Cause == volume.ErrDuplicatePlugin && e.Subject == "example.com/present" && strings.Contains(err.Error(), "*volume_test.others")
			}, false},
		{"nil", []volume.VolumePlugin{&basic{name: "example.com/a"}, nil},
			func(err error) bool {
				return errors.Is(err, volume.ErrPluginName) && strings.HasSuffix(err.Error(), ": the plugin is nil")
			}, false},
		{"several faults", []volume.VolumePlugin{nil, &basic{name: "a"}, &basic{name: "b"}, &basic{name: "example.com/present"}},
			func(err error) bool {
				return errors.Is(err, volume.ErrDuplicatePlugin) && strings.Contains(err.Error(), `"a"`) && strings.Contains(err.Error(), `"b"`)
			}, false},
		{"a failing Init", []volume.VolumePlugin{&basic{name: "example.com/a"}, &basic{name: "example.com/b", initErr: broken}, &basic{name: "example.com/c"}},
			func(err error) bool {
				e, ok := errors.AsType[*volume.Failure](err)
				return ok && e.Cause == volume.ErrPluginInit && e.Subject == "example.com/b" && errors.Is(err, broken)
			}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMgr(t, &basic{name: "example.com/present"})
			err := m.InitPlugins(tc.add, &volume.Host{})
			if !tc.check(err) {
				t.Errorf("err = %v", err)
			}
			if diff := cmp.Diff([]string{"example.com/present"}, pluginNames(m)); diff != "" {
				t.Errorf("plugins (-want +got):\n%s", diff)
			}
			for _, p := range tc.add {
				if b, ok := p.(*basic); ok && !tc.inits && len(b.inits) != 0 {
					t.Errorf("%s was initialised before all names were checked", b.name)
				}
			}
		})
	}
}

func TestPluginsReturnsACopy(t *testing.T) {
	m := newMgr(t, &basic{name: "example.com/a"})
	m.Plugins()[0] = nil
	if m.Plugins()[0] == nil {
		t.Error("the caller changed the manager's plugins")
	}
}

func TestFindPluginBySpec(t *testing.T) {
	nfs := &basic{name: "kubernetes.io/nfs", source: "nfs"}
	m := newMgr(t, &basic{name: "kubernetes.io/empty-dir", source: "emptyDir"}, nfs)
	for _, spec := range []*volume.Spec{nfsSpec(), volume.NewSpecFromPersistentVolume(nfsPV(), true)} {
		if p, err := m.FindPluginBySpec(spec); err != nil || p != volume.VolumePlugin(nfs) {
			t.Errorf("%s: got %v, %v", spec.Name(), p, err)
		}
	}
}

func TestFindPluginBySpecNamesAllCandidates(t *testing.T) {
	m := newMgr(t,
		&basic{name: "example.com/z", source: "nfs"},
		&basic{name: "example.com/no", source: "emptyDir"},
		&basic{name: "example.com/a", source: "nfs"},
		&basic{name: "example.com/m", source: "nfs"})
	p, err := m.FindPluginBySpec(nfsSpec())
	ambiguous, ok := errors.AsType[*volume.Failure](err)
	if !ok || p != nil || volume.IsUncertain(err) {
		t.Fatalf("got %v, %v", p, err)
	}
	want := &volume.Failure{Cause: volume.ErrAmbiguousPlugin, Subject: "data", Next: "register only one of them",
		What: `several volume plugins claim volume "data": example.com/a, example.com/m, example.com/z`}
	if diff := cmp.Diff(want, ambiguous); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFindPluginBySpecRefusesInvalidSpecs(t *testing.T) {
	two := nfsSpec()
	two.Volume.EmptyDir = &v1.EmptyDirVolumeSource{}
	twoPV := nfsPV()
	twoPV.Spec.Local = &v1.LocalVolumeSource{}
	both := nfsSpec()
	both.PersistentVolume = nfsPV()
	for _, tc := range []struct {
		name string
		spec *volume.Spec
		want []string // in the message
	}{
		{"nil", nil, nil},
		{"empty", &volume.Spec{}, nil},
		{"a volume and a PersistentVolume", both, nil},
		{"a volume without source", volume.NewSpecFromVolume(&v1.Volume{Name: "data"}), []string{`"data"`, "none"}},
		{"a volume with two sources", two, []string{`"data"`, "nfs", "emptyDir"}},
		{"a PersistentVolume without source", volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, false), []string{"none"}},
		{"a PersistentVolume with two sources", volume.NewSpecFromPersistentVolume(twoPV, false), []string{`"nfs211"`, "nfs", "local"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// With plugins for one and for all of the sources.
			for _, m := range []*volume.VolumePluginMgr{
				{},
				newMgr(t, &basic{name: "example.com/nfs", source: "nfs"}),
				newMgr(t, &basic{name: "example.com/nfs", source: "nfs"}, &basic{name: "example.com/too", source: "nfs"}),
			} {
				p, err := m.FindPluginBySpec(tc.spec)
				if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || p != nil || volume.IsUncertain(err) {
					t.Fatalf("got %v, %v", p, err)
				}
				for _, want := range tc.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q lacks %q", err, want)
					}
				}
			}
		})
	}
}

func TestFindPluginByName(t *testing.T) {
	nfs := &basic{name: "kubernetes.io/nfs"}
	m := newMgr(t, nfs, &basic{name: "kubernetes.io/configmap"})
	if p, err := m.FindPluginByName("kubernetes.io/nfs"); err != nil || p != volume.VolumePlugin(nfs) {
		t.Errorf("got %v, %v", p, err)
	}
	for _, name := range []string{"nfs", "kubernetes.io/NFS", "kubernetes.io~nfs", ""} {
		p, err := m.FindPluginByName(name)
		none, ok := errors.AsType[*volume.Failure](err)
		if !ok || p != nil || volume.IsUncertain(err) {
			t.Fatalf("%q: got %v, %v", name, p, err)
		}
		want := &volume.Failure{Cause: volume.ErrNoPlugin, Subject: name,
			What: fmt.Sprintf("no volume plugin is named %q; registered: kubernetes.io/configmap, kubernetes.io/nfs", name)}
		if diff := cmp.Diff(want, none); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if _, err := (&volume.VolumePluginMgr{}).FindPluginByName("x/y"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("without plugins: %v", err)
	}
}

func TestConcurrentInitAndFind(t *testing.T) {
	const workers = 8
	m := newMgr(t, &basic{name: "kubernetes.io/nfs", source: "nfs"})
	var taken atomic.Int32
	var wg sync.WaitGroup
	for n := range workers {
		wg.Go(func() {
			if err := m.InitPlugins([]volume.VolumePlugin{&basic{name: fmt.Sprintf("example.com/p%d", n)}}, &volume.Host{}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if m.InitPlugins([]volume.VolumePlugin{&basic{name: "example.com/wanted-by-all"}}, &volume.Host{}) == nil {
				taken.Add(1)
			}
		})
		wg.Go(func() {
			for range 100 {
				if _, err := m.FindPluginBySpec(nfsSpec()); err != nil {
					t.Error(err)
				}
				if _, err := m.FindPluginByName("kubernetes.io/nfs"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if taken.Load() != 1 {
		t.Errorf("%d plugins got one name", taken.Load())
	}
	if got := len(m.Plugins()); got != workers+2 {
		t.Errorf("%d plugins, want %d", got, workers+2)
	}
}
