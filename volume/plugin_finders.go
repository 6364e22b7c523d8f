package volume

import "fmt"

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
// name.
func (m *VolumePluginMgr) FindProvisionablePluginByName(name string) (ProvisionableVolumePlugin, error) {
	return capableByName(m, name, "ProvisionableVolumePlugin", AsProvisionable)
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
func (m *VolumePluginMgr) FindAttachablePluginBySpec(spec *Spec) (AttachableVolumePlugin, error) {
	p, err := capableBySpec(m, spec, "AttachableVolumePlugin", AsAttachable)
	if err != nil {
		return nil, err
	}
	return agreed(p, "AttachableVolumePlugin", spec, "CanAttach", p.CanAttach)
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
