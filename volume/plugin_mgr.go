package volume

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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

// InitPlugins initialises the plugins with host and adds them to the manager's
// plugins. It adds all or none. The errors, several of them joined:
//
//   - [ErrPluginName]: a name has no namespace.
//   - [ErrDuplicatePlugin]: a name is taken.
//   - [ErrPluginInit]: an Init failed.
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
			errs = append(errs, &Failure{Cause: ErrPluginInit, Subject: p.GetPluginName(), Err: err,
				What: fmt.Sprintf("volume plugin %q cannot be initialised: %v", p.GetPluginName(), err)})
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
		return invalidPluginName("", "the plugin is nil")
	}
	name := p.GetPluginName()
	if err := CheckPluginName(name); err != nil {
		return err
	}
	for _, other := range present {
		if other.GetPluginName() == name {
			return &Failure{Cause: ErrDuplicatePlugin, Subject: name, Next: "register only one of them",
				What: fmt.Sprintf("two volume plugins are named %q: %T and %T", name, other, p)}
		}
	}
	return nil
}

// CheckPluginName refuses a name that is no qualified name with a namespace, such as
// "example.com/disk". The error matches [ErrPluginName].
func CheckPluginName(name string) error {
	if !strings.Contains(name, "/") {
		return invalidPluginName(name, `it lacks a namespace, as in "example.com/`+name+`"`)
	}
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return invalidPluginName(name, strings.Join(problems, "; "))
	}
	return nil
}

// Plugins returns the plugins in order of registration. The caller owns the
// slice.
func (m *VolumePluginMgr) Plugins() []VolumePlugin {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.plugins)
}

// registered is Plugins for readers: InitPlugins replaces the list and never changes it.
func (m *VolumePluginMgr) registered() []VolumePlugin {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.plugins
}

// FindPluginBySpec returns the one plugin that supports the spec. A [GeneralPlugin] counts where no
// other one does. The errors:
//
//   - An *[UnsupportedError]: no plugin supports it, and its type is one of the
//     API's own. The error says why, and what to use instead.
//   - [ErrAmbiguousPlugin]: several plugins support it.
//   - An *[InvalidSpecError]: the spec has no source, or several.
//   - [ErrSharedPlugin]: another manager has initialised the plugin since.
func (m *VolumePluginMgr) FindPluginBySpec(spec *Spec) (VolumePlugin, error) {
	if spec == nil || (spec.Volume == nil) == (spec.PersistentVolume == nil) {
		return nil, Invalid("volume spec", "must hold either a volume or a PersistentVolume")
	}
	if types := SourceTypes(spec); len(types) > 1 {
		return nil, NothingDone(wrongSources(spec, types)) // whichever of them have plugins
	}
	var found []VolumePlugin
	for _, p := range m.registered() {
		if p.CanSupport(spec) {
			found = append(found, p)
		}
	}
	if specific := slices.DeleteFunc(slices.Clone(found), IsGeneral); len(specific) > 0 {
		found = specific
	}
	switch len(found) {
	case 0:
		return nil, NothingDone(unsupported(spec))
	case 1:
		return m.owned(found[0])
	}
	return nil, NothingDone(&Failure{Cause: ErrAmbiguousPlugin, Subject: spec.Name(), Next: "register only one of them",
		What: fmt.Sprintf("several volume plugins claim volume %q: %s", spec.Name(), list(names(found)))})
}

// FindPluginByName returns the plugin of this name. The error is [ErrNoPlugin],
// or [ErrSharedPlugin] as with FindPluginBySpec.
func (m *VolumePluginMgr) FindPluginByName(name string) (VolumePlugin, error) {
	plugins := m.registered()
	for _, p := range plugins {
		if p.GetPluginName() == name {
			return m.owned(p)
		}
	}
	return nil, NothingDone(&Failure{Cause: ErrNoPlugin, Subject: name,
		What: fmt.Sprintf("no volume plugin is named %q; registered: %s", name, list(names(plugins)))})
}

func names(plugins []VolumePlugin) []string {
	all := make([]string, len(plugins))
	for i, p := range plugins {
		all[i] = p.GetPluginName()
	}
	slices.Sort(all)
	return all
}

// Causes of the errors of a [VolumePluginMgr], for [errors.Is]. The subject of
// the [Failure] is the plugin's name; for ErrAmbiguousPlugin it is the volume's
// name.
const (
	// ErrDuplicatePlugin: two plugins have one name.
	ErrDuplicatePlugin Cause = "two plugins have one name"
	// ErrPluginName: a plugin's name is no qualified name with a namespace.
	ErrPluginName Cause = "the plugin's name is not valid"
	// ErrPluginInit: a plugin's Init failed. The error wraps the error of Init.
	ErrPluginInit Cause = "the plugin cannot be initialised"
	// ErrNoPlugin: no plugin has this name.
	ErrNoPlugin Cause = "no plugin has this name"
	// ErrAmbiguousPlugin: several plugins claim one spec.
	ErrAmbiguousPlugin Cause = "several plugins claim the volume"
	// ErrLacksCapability: the plugin for a spec exists but lacks the capability.
	ErrLacksCapability Cause = "the plugin lacks the capability"
	// ErrSharedPlugin: a plugin belongs to another manager by now.
	ErrSharedPlugin Cause = "the plugin belongs to another manager"
)

func invalidPluginName(name, reason string) error {
	return &Failure{Cause: ErrPluginName, Subject: name, What: fmt.Sprintf("the volume plugin name %q is not valid: %s", name, reason)}
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// hostedPlugin is implemented by plugins that return the host of their last Init,
// as podvol's own do. By it a [VolumePluginMgr] finds that another one has
// initialised the same plugin since. Such a plugin would put its volumes below
// the other's root directory. The method is safe for concurrent use. Absent:
// sharing is not found.
type hostedPlugin interface {
	VolumePlugin
	InitHost() VolumeHost
}

// owned refuses a plugin that another manager has initialised since m has. It
// does not refuse a restart in one process: the former manager looks nothing up
// any more.
func (m *VolumePluginMgr) owned(p VolumePlugin) (VolumePlugin, error) {
	hosted, ok := p.(hostedPlugin)
	if !ok {
		return p, nil
	}
	m.mu.RLock()
	host := m.hosts[p.GetPluginName()]
	m.mu.RUnlock()
	if sameHost(hosted.InitHost(), host) {
		return p, nil
	}
	return nil, NothingDone(&Failure{
		Cause: ErrSharedPlugin, Subject: p.GetPluginName(),
		What: fmt.Sprintf("volume plugin %q was initialised by another manager since, and would put volumes below the root directory of that one", p.GetPluginName()),
		Next: "give each manager plugins of its own, as each call of plugins.All returns them",
	})
}

// sameHost reports whether a and b are one host. Hosts that cannot be compared
// count as one.
func sameHost(a, b VolumeHost) bool {
	return a != nil && !reflect.TypeOf(a).Comparable() || a == b
}

// The finders for a capability return the error of FindPluginBySpec or
// FindPluginByName, or [ErrLacksCapability] if the plugin lacks it. They never
// return nil without an error. They do nothing to the node, so all their errors
// carry the mark of [NothingDone].

// FindPersistentPluginBySpec finds the spec's [PersistentVolumePlugin].
func (m *VolumePluginMgr) FindPersistentPluginBySpec(spec *Spec) (PersistentVolumePlugin, error) {
	return capableBySpec(m, spec, "PersistentVolumePlugin", AsPersistentVolume)
}

// FindPersistentPluginByName finds a [PersistentVolumePlugin] by its name.
func (m *VolumePluginMgr) FindPersistentPluginByName(name string) (PersistentVolumePlugin, error) {
	return capableByName(m, name, "PersistentVolumePlugin", AsPersistentVolume)
}

// FindRecyclablePluginBySpec finds the spec's [RecyclableVolumePlugin].
func (m *VolumePluginMgr) FindRecyclablePluginBySpec(spec *Spec) (RecyclableVolumePlugin, error) {
	return capableBySpec(m, spec, "RecyclableVolumePlugin", AsRecyclable)
}

// FindProvisionablePluginByName finds a [ProvisionableVolumePlugin] by its
// name, or else by another one that it provisions for ([NamedProvisionerPlugin]).
func (m *VolumePluginMgr) FindProvisionablePluginByName(name string) (ProvisionableVolumePlugin, error) {
	p, err := m.FindPluginByName(name)
	if errors.Is(err, ErrNoPlugin) {
		for _, other := range m.Plugins() {
			if ProvisionsFor(other, name) {
				p, err = m.owned(other)
				break
			}
		}
	}
	return capable(p, err, "ProvisionableVolumePlugin", AsProvisionable)
}

// FindDeletablePluginBySpec finds the spec's [DeletableVolumePlugin].
func (m *VolumePluginMgr) FindDeletablePluginBySpec(spec *Spec) (DeletableVolumePlugin, error) {
	return capableBySpec(m, spec, "DeletableVolumePlugin", AsDeletable)
}

// FindDeletablePluginByName finds a [DeletableVolumePlugin] by its name.
func (m *VolumePluginMgr) FindDeletablePluginByName(name string) (DeletableVolumePlugin, error) {
	return capableByName(m, name, "DeletableVolumePlugin", AsDeletable)
}

// FindAttachablePluginBySpec finds the spec's [AttachableVolumePlugin]; a
// plugin whose CanAttach denies this spec lacks the capability.
func (m *VolumePluginMgr) FindAttachablePluginBySpec(ctx context.Context, spec *Spec) (AttachableVolumePlugin, error) {
	p, err := capableBySpec(m, spec, "AttachableVolumePlugin", AsAttachable)
	if err != nil {
		return nil, err
	}
	return agreed(p, "AttachableVolumePlugin", spec, "CanAttach", func(s *Spec) (bool, error) { return p.CanAttach(ctx, s) })
}

// FindAttachablePluginByName finds an [AttachableVolumePlugin] by its name.
func (m *VolumePluginMgr) FindAttachablePluginByName(name string) (AttachableVolumePlugin, error) {
	return capableByName(m, name, "AttachableVolumePlugin", AsAttachable)
}

// FindDeviceMountablePluginBySpec finds the spec's
// [DeviceMountableVolumePlugin]; a plugin whose CanDeviceMount denies this
// spec lacks the capability.
func (m *VolumePluginMgr) FindDeviceMountablePluginBySpec(spec *Spec) (DeviceMountableVolumePlugin, error) {
	p, err := capableBySpec(m, spec, "DeviceMountableVolumePlugin", AsDeviceMountable)
	if err != nil {
		return nil, err
	}
	return agreed(p, "DeviceMountableVolumePlugin", spec, "CanDeviceMount", p.CanDeviceMount)
}

// FindDeviceMountablePluginByName finds a [DeviceMountableVolumePlugin] by its
// name.
func (m *VolumePluginMgr) FindDeviceMountablePluginByName(name string) (DeviceMountableVolumePlugin, error) {
	return capableByName(m, name, "DeviceMountableVolumePlugin", AsDeviceMountable)
}

// FindExpandablePluginBySpec finds the spec's [ExpandableVolumePlugin].
func (m *VolumePluginMgr) FindExpandablePluginBySpec(spec *Spec) (ExpandableVolumePlugin, error) {
	return capableBySpec(m, spec, "ExpandableVolumePlugin", AsExpandable)
}

// FindExpandablePluginByName finds an [ExpandableVolumePlugin] by its name.
func (m *VolumePluginMgr) FindExpandablePluginByName(name string) (ExpandableVolumePlugin, error) {
	return capableByName(m, name, "ExpandableVolumePlugin", AsExpandable)
}

// FindNodeExpandablePluginBySpec finds the spec's
// [NodeExpandableVolumePlugin].
func (m *VolumePluginMgr) FindNodeExpandablePluginBySpec(spec *Spec) (NodeExpandableVolumePlugin, error) {
	return capableBySpec(m, spec, "NodeExpandableVolumePlugin", AsNodeExpandable)
}

// FindNodeExpandablePluginByName finds a [NodeExpandableVolumePlugin] by its
// name.
func (m *VolumePluginMgr) FindNodeExpandablePluginByName(name string) (NodeExpandableVolumePlugin, error) {
	return capableByName(m, name, "NodeExpandableVolumePlugin", AsNodeExpandable)
}

// FindMapperPluginBySpec finds the spec's [BlockVolumePlugin].
func (m *VolumePluginMgr) FindMapperPluginBySpec(spec *Spec) (BlockVolumePlugin, error) {
	return capableBySpec(m, spec, "BlockVolumePlugin", AsBlock)
}

// FindMapperPluginByName finds a [BlockVolumePlugin] by its name.
func (m *VolumePluginMgr) FindMapperPluginByName(name string) (BlockVolumePlugin, error) {
	return capableByName(m, name, "BlockVolumePlugin", AsBlock)
}

func capableBySpec[C any](m *VolumePluginMgr, spec *Spec, capability string, as func(VolumePlugin) (C, bool)) (C, error) {
	p, err := m.FindPluginBySpec(spec)
	return capable(p, err, capability, as)
}

func capableByName[C any](m *VolumePluginMgr, name, capability string, as func(VolumePlugin) (C, bool)) (C, error) {
	p, err := m.FindPluginByName(name)
	return capable(p, err, capability, as)
}

func capable[C any](p VolumePlugin, err error, capability string, as func(VolumePlugin) (C, bool)) (C, error) {
	var none C
	if err != nil {
		return none, err
	}
	c, ok := as(p)
	if !ok {
		return none, lacksCapability(p, capability)
	}
	return c, nil
}

func agreed[C VolumePlugin](p C, capability string, spec *Spec, op string, can func(*Spec) (bool, error)) (C, error) {
	var none C
	ok, err := can(spec)
	if err != nil {
		return none, NothingDone(&Error{Op: op, Plugin: p.GetPluginName(), Volume: spec.Name(), Err: err})
	}
	if !ok {
		return none, lacksCapability(p, capability)
	}
	return p, nil
}

// lacksCapability says that a plugin does not implement the interface capability.
func lacksCapability(p VolumePlugin, capability string) error {
	return NothingDone(&Failure{Cause: ErrLacksCapability, Subject: p.GetPluginName(), What: fmt.Sprintf("volume plugin %q is no %s", p.GetPluginName(), capability)})
}
