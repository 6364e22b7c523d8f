package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
)

// VolumePluginMgr holds a node's plugins and finds the one for a spec or a
// name. Its zero value has no plugins. All methods are safe for concurrent
// use.
type VolumePluginMgr struct {
	mu      sync.RWMutex
	plugins []VolumePlugin        // in order of registration, which no answer depends on
	hosts   map[string]VolumeHost // of plugins, by name
}

// NewVolumePluginMgr returns a manager of these plugins, initialised with
// host; see InitPlugins.
func NewVolumePluginMgr(plugins []VolumePlugin, host VolumeHost) (*VolumePluginMgr, error) {
	m := &VolumePluginMgr{}
	if err := m.InitPlugins(plugins, host); err != nil {
		return nil, err
	}
	return m, nil
}

// InitPlugins initialises the plugins with host and adds them to those that
// are there. It adds all or none: a name without namespace is a
// *[PluginNameError], a name that is taken a *[DuplicatePluginError], a
// failing Init a *[PluginInitError]; several are joined.
func (m *VolumePluginMgr) InitPlugins(plugins []VolumePlugin, host VolumeHost) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Clone(m.plugins)
	var errs []error
	for _, p := range plugins {
		if err := checkNew(p, all); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, p)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, p := range plugins {
		if err := p.Init(host); err != nil {
			errs = append(errs, &PluginInitError{Plugin: p.GetPluginName(), Err: err})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	m.plugins = all
	if m.hosts == nil {
		m.hosts = make(map[string]VolumeHost)
	}
	for _, p := range plugins {
		m.hosts[p.GetPluginName()] = host
	}
	return nil
}

func checkNew(p VolumePlugin, present []VolumePlugin) error {
	if p == nil {
		return &PluginNameError{Reason: "the plugin is nil"}
	}
	name := p.GetPluginName()
	if err := checkPluginName(name); err != nil {
		return err
	}
	for _, other := range present {
		if other.GetPluginName() == name {
			return &DuplicatePluginError{Name: name, First: typeName(other), Second: typeName(p)}
		}
	}
	return nil
}

func checkPluginName(name string) error {
	if !strings.Contains(name, "/") {
		return &PluginNameError{Name: name, Reason: `it lacks a namespace, as in "example.com/` + name + `"`}
	}
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return &PluginNameError{Name: name, Reason: strings.Join(problems, "; ")}
	}
	return nil
}

func typeName(p VolumePlugin) string { return fmt.Sprintf("%T", p) }

// Plugins returns the plugins in order of registration; the slice is the
// caller's.
func (m *VolumePluginMgr) Plugins() []VolumePlugin {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.plugins)
}

// FindPluginBySpec returns the one plugin that supports the spec. None is an
// *[UnsupportedError] for the API's own volume types, which says why and what
// to use instead; several are an *[AmbiguousPluginError]. A spec with no
// source, or with several, is an *[InvalidSpecError]; a plugin that another manager
// has initialised since is a *[SharedPluginError].
func (m *VolumePluginMgr) FindPluginBySpec(spec *Spec) (VolumePlugin, error) {
	if spec == nil || (spec.Volume == nil) == (spec.PersistentVolume == nil) {
		return nil, Invalid("volume spec", "must hold either a volume or a PersistentVolume")
	}
	if types := SourceTypes(spec); len(types) > 1 {
		return nil, NothingDone(wrongSources(spec, types)) // whichever of them have plugins
	}
	var found []VolumePlugin
	for _, p := range m.Plugins() {
		if p.CanSupport(spec) {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return nil, NothingDone(unsupported(spec))
	case 1:
		return m.owned(found[0])
	}
	return nil, NothingDone(&AmbiguousPluginError{Volume: spec.Name(), Candidates: names(found)})
}

// FindPluginByName returns the plugin of this name, or a *[NoPluginError], or a
// *[SharedPluginError] as FindPluginBySpec does.
func (m *VolumePluginMgr) FindPluginByName(name string) (VolumePlugin, error) {
	plugins := m.Plugins()
	for _, p := range plugins {
		if p.GetPluginName() == name {
			return m.owned(p)
		}
	}
	return nil, NothingDone(&NoPluginError{Name: name, Registered: names(plugins)})
}

func names(plugins []VolumePlugin) []string {
	all := make([]string, len(plugins))
	for i, p := range plugins {
		all[i] = p.GetPluginName()
	}
	slices.Sort(all)
	return all
}

// DuplicatePluginError says that two plugins have one name.
type DuplicatePluginError struct {
	Name string
	// First and Second are the Go types of the two.
	First, Second string
}

func (e *DuplicatePluginError) Error() string {
	return fmt.Sprintf("two volume plugins are named %q: %s and %s; register only one of them", e.Name, e.First, e.Second)
}

// PluginNameError says that a plugin's name is no qualified name with a
// namespace.
type PluginNameError struct{ Name, Reason string }

func (e *PluginNameError) Error() string {
	return fmt.Sprintf("the volume plugin name %q is not valid: %s", e.Name, e.Reason)
}

// PluginInitError says that a plugin refused its host.
type PluginInitError struct {
	Plugin string
	Err    error
}

func (e *PluginInitError) Error() string {
	return fmt.Sprintf("volume plugin %q cannot be initialised: %v", e.Plugin, e.Err)
}

// Unwrap returns what Init returned.
func (e *PluginInitError) Unwrap() error { return e.Err }

// NoPluginError says that no plugin has this name.
type NoPluginError struct {
	Name string
	// Registered are the names that exist, sorted.
	Registered []string
}

func (e *NoPluginError) Error() string {
	return fmt.Sprintf("no volume plugin is named %q; registered: %s", e.Name, list(e.Registered))
}

// AmbiguousPluginError says that several plugins claim one spec.
type AmbiguousPluginError struct {
	Volume string
	// Candidates are the names of the plugins, sorted.
	Candidates []string
}

func (e *AmbiguousPluginError) Error() string {
	return fmt.Sprintf("several volume plugins claim volume %q: %s; register only one of them", e.Volume, list(e.Candidates))
}

// CapabilityError says that the plugin for a spec exists but cannot do what
// was asked for.
type CapabilityError struct {
	Plugin string
	// Capability is the interface's name, such as "AttachableVolumePlugin".
	Capability string
}

func (e *CapabilityError) Error() string {
	return fmt.Sprintf("volume plugin %q is no %s", e.Plugin, e.Capability)
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
