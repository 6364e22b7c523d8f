package volume_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume"
)

// finder is one of the manager's finders, whatever it returns.
type finder struct {
	name, capability string
	find             func(*volume.VolumePluginMgr) (any, error)
	byName, asks     bool // asks: the plugin is asked about the spec
}

func bySpec[C any](name, capability string, find func(*volume.VolumePluginMgr, *volume.Spec) (C, error)) finder {
	return finder{name: name, capability: capability, find: func(m *volume.VolumePluginMgr) (any, error) {
		return find(m, nfsSpec())
	}}
}

func asking(f finder) finder { f.asks = true; return f }

func byName[C any](name, capability string, find func(*volume.VolumePluginMgr, string) (C, error)) finder {
	return finder{name: name, capability: capability, byName: true, find: func(m *volume.VolumePluginMgr) (any, error) {
		return find(m, "kubernetes.io/nfs")
	}}
}

func finders() []finder {
	type m = *volume.VolumePluginMgr
	return []finder{
		bySpec("persistent", "PersistentVolumePlugin", m.FindPersistentPluginBySpec),
		byName("persistent by name", "PersistentVolumePlugin", m.FindPersistentPluginByName),
		bySpec("recyclable", "RecyclableVolumePlugin", m.FindRecyclablePluginBySpec),
		byName("provisionable by name", "ProvisionableVolumePlugin", m.FindProvisionablePluginByName),
		bySpec("deletable", "DeletableVolumePlugin", m.FindDeletablePluginBySpec),
		byName("deletable by name", "DeletableVolumePlugin", m.FindDeletablePluginByName),
		asking(bySpec("attachable", "AttachableVolumePlugin", func(m *volume.VolumePluginMgr, s *volume.Spec) (volume.AttachableVolumePlugin, error) {
			return m.FindAttachablePluginBySpec(context.Background(), s)
		})),
		byName("attachable by name", "AttachableVolumePlugin", m.FindAttachablePluginByName),
		asking(bySpec("device mountable", "DeviceMountableVolumePlugin", m.FindDeviceMountablePluginBySpec)),
		byName("device mountable by name", "DeviceMountableVolumePlugin", m.FindDeviceMountablePluginByName),
		bySpec("expandable", "ExpandableVolumePlugin", m.FindExpandablePluginBySpec),
		byName("expandable by name", "ExpandableVolumePlugin", m.FindExpandablePluginByName),
		bySpec("node expandable", "NodeExpandableVolumePlugin", m.FindNodeExpandablePluginBySpec),
		byName("node expandable by name", "NodeExpandableVolumePlugin", m.FindNodeExpandablePluginByName),
		bySpec("mapper", "BlockVolumePlugin", m.FindMapperPluginBySpec),
		byName("mapper by name", "BlockVolumePlugin", m.FindMapperPluginByName),
	}
}

func TestFinders(t *testing.T) {
	nfs := basic{name: "kubernetes.io/nfs", source: "nfs"}
	refused := errors.New("the driver does not answer")
	for _, f := range finders() {
		t.Run(f.name, func(t *testing.T) {
			p := &capable{basic: nfs, can: true}
			if found, err := f.find(newMgr(t, p)); err != nil || found != any(p) {
				t.Errorf("a plugin that can: %v, %v", found, err)
			}
			wantLacking(t, f, &basic{name: "kubernetes.io/nfs", source: "nfs"})

			found, err := f.find(&volume.VolumePluginMgr{})
			wantFailed(t, found, err)
			if f.byName {
				if !errors.Is(err, volume.ErrNoPlugin) {
					t.Errorf("no plugin: %v", err)
				}
				if found, err := f.find(newMgr(t, &capable{basic: nfs})); err != nil || found == nil {
					t.Errorf("by name there is no spec to judge: %v", err)
				}
			} else if _, ok := errors.AsType[*volume.UnsupportedError](err); !ok {
				t.Errorf("no plugin: %v", err)
			}

			if !f.asks {
				return
			}
			wantLacking(t, f, &capable{basic: nfs, can: false})
			found, err = f.find(newMgr(t, &capable{basic: nfs, can: true, canErr: refused}))
			wantFailed(t, found, err)
			told, ok := errors.AsType[*volume.Error](err)
			if !ok || !errors.Is(err, refused) || told.Plugin != "kubernetes.io/nfs" || told.Volume != "data" || !strings.HasPrefix(told.Op, "Can") {
				t.Errorf("a plugin that cannot tell: %v", err)
			}
		})
	}
}

func wantLacking(t *testing.T, f finder, p volume.VolumePlugin) {
	t.Helper()
	found, err := f.find(newMgr(t, p))
	wantFailed(t, found, err)
	lacking, ok := errors.AsType[*volume.Failure](err)
	if !ok || lacking.Cause != volume.ErrLacksCapability || lacking.Subject != "kubernetes.io/nfs" || !strings.HasSuffix(lacking.What, " is no "+f.capability) {
		t.Errorf("%T: %v, want ErrLacksCapability for %s", p, err, f.capability)
	}
}

func wantFailed(t *testing.T, found any, err error) {
	t.Helper()
	if err == nil || found != nil || volume.IsUncertain(err) {
		t.Errorf("got %v, %v, want nil and an error that nothing was done", found, err)
	}
}

func TestCapabilities(t *testing.T) {
	with, without := &capable{takesOpts: true}, &basic{}
	for name, as := range map[string]func(volume.VolumePlugin) (any, bool){
		"PersistentVolume": has(volume.AsPersistentVolume),
		"SELinux":          has(volume.AsSELinux),
		"Recyclable":       has(volume.AsRecyclable),
		"Deletable":        has(volume.AsDeletable),
		"Provisionable":    has(volume.AsProvisionable),
		"Expandable":       has(volume.AsExpandable),
		"NodeExpandable":   has(volume.AsNodeExpandable),
		"DeviceMountable":  has(volume.AsDeviceMountable),
		"Attachable":       has(volume.AsAttachable),
		"Block":            has(volume.AsBlock),
	} {
		if c, ok := as(with); !ok || c != any(with) {
			t.Errorf("As%s of a plugin that has it: %v, %v", name, c, ok)
		}
		for _, p := range []volume.VolumePlugin{without, nil} {
			if c, ok := as(p); ok || c != nil {
				t.Errorf("As%s(%T) = %v, %v", name, p, c, ok)
			}
		}
	}
}

func has[C any](as func(volume.VolumePlugin) (C, bool)) func(volume.VolumePlugin) (any, bool) {
	return func(p volume.VolumePlugin) (any, bool) { return as(p) }
}

// A device that can be mounted need not be attached.
func TestDeviceMountableIsNotAttachable(t *testing.T) {
	p := struct {
		volume.DeviceMountableVolumePlugin
	}{}
	if _, ok := volume.AsAttachable(p); ok {
		t.Error("a device-mountable plugin counts as attachable")
	}
	if _, ok := volume.AsDeviceMountable(p); !ok {
		t.Error("a device-mountable plugin does not count as one")
	}
}
