package plugins_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

func TestAllFitTogether(t *testing.T) {
	manager, err := volume.NewVolumePluginMgr(plugins.All(), fakehost.New(t))
	if err != nil {
		t.Fatal(err)
	}
	inline := func(s v1.VolumeSource) *volume.Spec {
		return volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: s})
	}
	persistent := func(s v1.PersistentVolumeSource) *volume.Spec {
		pv := &v1.PersistentVolume{}
		pv.Name, pv.Spec.PersistentVolumeSource = "pv", s
		return volume.NewSpecFromPersistentVolume(pv, false)
	}
	specs := map[string][]*volume.Spec{
		"kubernetes.io/cephfs":       {inline(v1.VolumeSource{CephFS: &v1.CephFSVolumeSource{}}), persistent(v1.PersistentVolumeSource{CephFS: &v1.CephFSPersistentVolumeSource{}})},
		"kubernetes.io/configmap":    {inline(v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}})},
		"kubernetes.io/downward-api": {inline(v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}})},
		"kubernetes.io/empty-dir":    {inline(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})},
		"kubernetes.io/flexvolume":   {inline(v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{}}), persistent(v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{}})},
		"kubernetes.io/glusterfs":    {inline(v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{}}), persistent(v1.PersistentVolumeSource{Glusterfs: &v1.GlusterfsPersistentVolumeSource{}})},
		"kubernetes.io/host-path":    {inline(v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}), persistent(v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{}})},
		"kubernetes.io/iscsi":        {inline(v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}), persistent(v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{}})},
		"kubernetes.io/local-volume": {persistent(v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{}})},
		"kubernetes.io/nfs":          {inline(v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}), persistent(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}})},
		"kubernetes.io/projected":    {inline(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}})},
		"kubernetes.io/rbd":          {inline(v1.VolumeSource{RBD: &v1.RBDVolumeSource{}}), persistent(v1.PersistentVolumeSource{RBD: &v1.RBDPersistentVolumeSource{}})},
		"kubernetes.io/secret":       {inline(v1.VolumeSource{Secret: &v1.SecretVolumeSource{}})},
	}
	if len(specs) != len(plugins.All()) {
		t.Errorf("%d plugins, %d are tested", len(plugins.All()), len(specs))
	}
	for want, list := range specs {
		for _, spec := range list {
			p, err := manager.FindPluginBySpec(spec)
			if err != nil || p.GetPluginName() != want {
				t.Errorf("the plugin of %v is %v, %v; want %s", volume.SourceTypes(spec), p, err, want)
			}
		}
	}
}

func TestAllReturnsFreshPlugins(t *testing.T) {
	first, second := plugins.All(), plugins.All()
	for i := range first {
		if first[i] == second[i] {
			t.Errorf("%s is shared by two calls", first[i].GetPluginName())
		}
	}
	first[0] = nil
	if second[0] == nil {
		t.Error("the slice is shared")
	}
}

func TestReplacementsTakeThePlaceOfTheStockPlugin(t *testing.T) {
	own := nfs.New(nfs.Config{LazyAfter: time.Hour})
	foreign := other{nfs.New(nfs.Config{})}
	all := plugins.All(own, foreign)
	if len(all) != len(plugins.All())+1 || all[len(all)-1] != volume.VolumePlugin(foreign) {
		t.Errorf("%d plugins, the last is %v", len(all), all[len(all)-1])
	}
	manager, err := volume.NewVolumePluginMgr(all, fakehost.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := manager.FindPluginByName(nfs.PluginName); err != nil || p != own {
		t.Errorf("the plugin is %v, %v", p, err)
	}
	if _, err := volume.NewVolumePluginMgr(plugins.All(own, nfs.New(nfs.Config{})), fakehost.New(t)); err == nil {
		t.Error("two replacements of one name were accepted")
	}
}

// other is a plugin with a name that no stock plugin has.
type other struct{ volume.VolumePlugin }

func (other) GetPluginName() string { return "example.com/other" }
