package csitranslation_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/csitranslation"
)

func inline(source v1.VolumeSource) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: source})
}

func persistent(source v1.PersistentVolumeSource, change ...func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: source, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		ClaimRef: &v1.ObjectReference{Namespace: "shop", Name: "data"},
	}}
	pv.Name = "pv1"
	for _, c := range change {
		c(pv)
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func labelled(key, value string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{key: value} }
}

const azureURI = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d"

func TestTranslate(t *testing.T) {
	managed := new(v1.AzureManagedDisk)
	for name, tc := range map[string]struct {
		spec                     *volume.Spec
		driver, handle, specName string
	}{
		"awsElasticBlockStore":         {inline(v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1"}}), "ebs.csi.aws.com", "vol-1", "ebs.csi.aws.com-vol-1"},
		"awsElasticBlockStore, PV":     {persistent(v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}), "ebs.csi.aws.com", "vol-1", "pv1"},
		"azureDisk":                    {inline(v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: azureURI, Kind: managed}}), "disk.csi.azure.com", azureURI, strings.ReplaceAll(azureURI, "/", "~")},
		"azureDisk, PV":                {persistent(v1.PersistentVolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: azureURI, Kind: managed}}), "disk.csi.azure.com", azureURI, "pv1"},
		"azureFile":                    {inline(v1.VolumeSource{AzureFile: &v1.AzureFileVolumeSource{ShareName: "s", SecretName: "azure-storage-account-a-secret"}}), "file.csi.azure.com", "#a#s#data#shop", "#a#s#data#shop"},
		"azureFile, PV":                {persistent(v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{ShareName: "s", SecretName: "azure-storage-account-a-secret"}}), "file.csi.azure.com", "#a#s#pv1#shop", "pv1"},
		"cinder":                       {inline(v1.VolumeSource{Cinder: &v1.CinderVolumeSource{VolumeID: "c1"}}), "cinder.csi.openstack.org", "c1", "cinder.csi.openstack.org-c1"},
		"cinder, PV":                   {persistent(v1.PersistentVolumeSource{Cinder: &v1.CinderPersistentVolumeSource{VolumeID: "c1"}}), "cinder.csi.openstack.org", "c1", "pv1"},
		"gcePersistentDisk":            {inline(v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}}), "pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk", "pd.csi.storage.gke.io-disk"},
		"gcePersistentDisk, PV":        {persistent(v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, labelled(v1.LabelTopologyZone, "us-east1-b")), "pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/us-east1-b/disks/disk", "pv1"},
		"gcePersistentDisk, two zones": {persistent(v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, labelled(v1.LabelFailureDomainBetaZone, "us-east1-b__us-east1-c")), "pd.csi.storage.gke.io", "projects/UNSPECIFIED/regions/us-east1/disks/disk", "pv1"},
		"portworxVolume":               {inline(v1.VolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "p1"}}), "pxd.portworx.com", "p1", "pxd.portworx.com-p1"},
		"portworxVolume, PV":           {persistent(v1.PersistentVolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "p1"}}), "pxd.portworx.com", "p1", "pv1"},
		"vsphereVolume":                {inline(v1.VolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] kubevols/d.vmdk", StoragePolicyName: "gold"}}), "csi.vsphere.vmware.com", "[ds] kubevols/d.vmdk", "csi.vsphere.vmware.com-[ds] kubevols~d.vmdk"},
		"vsphereVolume, PV":            {persistent(v1.PersistentVolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] kubevols/d.vmdk"}}), "csi.vsphere.vmware.com", "[ds] kubevols/d.vmdk", "pv1"},
	} {
		t.Run(name, func(t *testing.T) {
			before := *tc.spec
			before.Volume, before.PersistentVolume = before.Volume.DeepCopy(), before.PersistentVolume.DeepCopy()
			got, err := csitranslation.New().Translate(tc.spec, "shop")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&before, tc.spec); diff != "" {
				t.Errorf("the argument was changed (-before +after):\n%s", diff)
			}
			translator, s := csitranslation.New(), got.PersistentVolume.Spec.CSI
			if plugin := translator.Plugin(tc.spec); translator.MigratedTo(plugin) != tc.driver {
				t.Errorf("it is a volume of plugin %q", plugin)
			}
			if s.Driver != tc.driver || s.VolumeHandle != tc.handle || got.Name() != tc.specName || !got.Migrated || got.Volume != nil ||
				got.InlineVolumeSpecForCSIMigration != (tc.spec.Volume != nil) || len(volume.SourceTypes(got)) != 1 || got.IsBlock() {
				t.Errorf("translated to %s, handle %q, of name %q: %+v", s.Driver, s.VolumeHandle, got.Name(), got)
			}
			if v := tc.spec.Volume; v != nil && v.VsphereVolume != nil && s.VolumeAttributes["storagepolicyname"] != "gold" {
				t.Errorf("attributes %v", s.VolumeAttributes)
			}
		})
	}
}

// An inline volume's readOnly is the translated spec's; of a PersistentVolume the pod's counts.
func TestReadOnly(t *testing.T) {
	for _, source := range []v1.VolumeSource{
		{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1", ReadOnly: true}},
		{AzureDisk: &v1.AzureDiskVolumeSource{DataDiskURI: azureURI, Kind: new(v1.AzureManagedDisk), ReadOnly: new(true)}},
		{AzureFile: &v1.AzureFileVolumeSource{ShareName: "s", SecretName: "a", ReadOnly: true}},
		{Cinder: &v1.CinderVolumeSource{VolumeID: "c1", ReadOnly: true}},
		{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk", ReadOnly: true}},
		{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "p1", ReadOnly: true}},
	} {
		got, err := csitranslation.New().Translate(inline(source), "shop")
		if err != nil || !got.ReadOnly {
			t.Errorf("%+v: %+v, %v", source, got, err)
		}
	}
	spec := persistent(v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}})
	spec.ReadOnly = true
	if got, err := csitranslation.New().Translate(spec, ""); err != nil || !got.ReadOnly {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever is no volume of a plugin that is translated stays the same spec.
func TestLeftAsItIs(t *testing.T) {
	for name, spec := range map[string]*volume.Spec{
		"nothing":       nil,
		"an empty spec": {},
		"another type":  inline(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		"CSI":           persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}),
		"two sources":   inline(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}, Cinder: &v1.CinderVolumeSource{VolumeID: "c1"}}),
	} {
		translator := csitranslation.New()
		if got, err := translator.Translate(spec, "shop"); got != spec || err != nil || translator.Plugin(spec) != "" {
			t.Errorf("%s: %+v, %v, of plugin %q", name, got, err, translator.Plugin(spec))
		}
	}
}

func TestHostileVolumesAreRefused(t *testing.T) {
	gce := func(name string) v1.PersistentVolumeSource {
		return v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: name}}
	}
	share := func(share, secret string) *volume.Spec {
		return inline(v1.VolumeSource{AzureFile: &v1.AzureFileVolumeSource{ShareName: share, SecretName: secret}})
	}
	for name, spec := range map[string]*volume.Spec{
		"pdName with another zone":     persistent(gce("x/../../zones/z/disks/y")),
		"pdName ..":                    inline(v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: ".."}}),
		"pdName with a newline":        persistent(gce("a\nb")),
		"pdName of 4 KiB":              persistent(gce(strings.Repeat("a", 4<<10))),
		"no pdName":                    persistent(gce("")),
		"zone with a slash":            persistent(gce("d"), labelled(v1.LabelTopologyZone, "z/disks/other")),
		"empty zone among several":     persistent(gce("d"), labelled(v1.LabelTopologyZone, "us-east1-b__")),
		"zones of two regions":         persistent(gce("d"), labelled(v1.LabelTopologyZone, "us-east1-b__us-west1-b")),
		"zone of no region":            persistent(gce("d"), labelled(v1.LabelTopologyZone, "here__there")),
		"EBS, another scheme's path":   inline(v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://z/../vol-1"}}),
		"EBS, no volume":               inline(v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://z/disk"}}),
		"EBS, bare with a slash":       persistent(v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1/../vol-2"}}),
		"EBS, bad URL":                 inline(v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://%zz/vol-1"}}),
		"azureDisk, unmanaged":         inline(v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DataDiskURI: "https://a.blob.core.windows.net/vhds/d.vhd", Kind: new(v1.AzureDedicatedBlobDisk)}}),
		"azureDisk, upwards":           inline(v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DataDiskURI: azureURI + "/../other"}}),
		"azureDisk, none":              persistent(v1.PersistentVolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{}}),
		"azureDisk, too long a name":   inline(v1.VolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DataDiskURI: "/" + strings.Repeat("d", 300)}}),
		"azureFile, share with a part": share("s#other", "azure-storage-account-a-secret"),
		"azureFile, a path":            share("../s", "a"),
		"azureFile, secret":            share("s", "a#b"),
		"azureFile, group": persistent(v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{ShareName: "s", SecretName: "a"}},
			func(pv *v1.PersistentVolume) {
				pv.Annotations = map[string]string{"kubernetes.io/azure-file-resource-group": "g#a"}
			}),
		"azureFile, no namespace": persistent(v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{ShareName: "s", SecretName: "a"}},
			func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }),
		"cinder":         persistent(v1.PersistentVolumeSource{Cinder: &v1.CinderPersistentVolumeSource{VolumeID: "a/b"}}),
		"cinder, inline": inline(v1.VolumeSource{Cinder: &v1.CinderVolumeSource{VolumeID: "a/b"}}),
		"portworx":       inline(v1.VolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "a/b"}}),
		"vsphere":        inline(v1.VolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] ../d.vmdk/.."}}),
		"vsphere, NUL":   persistent(v1.PersistentVolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] d\x00"}}),
	} {
		got, err := csitranslation.New().Translate(spec, "shop")
		if _, invalid := errors.AsType[*volume.InvalidSpecError](err); !invalid {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// No name of a disk gives its handle another disk, zone or project.
func FuzzHandleOfGCE(f *testing.F) {
	for _, seed := range []string{"disk", "a/b", "..", "a\nb", "", "ä", "x%2fy", strings.Repeat("d", 254)} {
		f.Add(seed, "us-east1-b")
		f.Add("disk", seed)
	}
	f.Fuzz(func(t *testing.T, disk, zone string) {
		spec := persistent(v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: disk}}, labelled(v1.LabelTopologyZone, zone))
		got, err := csitranslation.New().Translate(spec, "shop")
		if err != nil {
			return
		}
		parts := strings.Split(got.PersistentVolume.Spec.CSI.VolumeHandle, "/")
		if len(parts) != 6 || parts[0] != "projects" || parts[4] != "disks" || parts[5] != disk || slices.Contains(parts, "..") {
			t.Errorf("disk %q in zone %q has the handle %q", disk, zone, parts)
		}
	})
}

func TestMigratedPlugins(t *testing.T) {
	want := []string{"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder",
		"kubernetes.io/gce-pd", "kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume"}
	got := csitranslation.New()
	if names := got.MigratedPlugins(); !slices.Equal(names, want) {
		t.Errorf("migrated are %q", names)
	}
	for plugin, driver := range map[string]string{"kubernetes.io/portworx-volume": "pxd.portworx.com", "kubernetes.io/gce-pd": "pd.csi.storage.gke.io", "kubernetes.io/nfs": "", "": "", "pd.csi.storage.gke.io": ""} {
		if to := got.MigratedTo(plugin); to != driver {
			t.Errorf("%s is migrated to %q", plugin, to)
		}
	}
}

func TestTranslateClass(t *testing.T) {
	tr := csitranslation.New()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "kubernetes.io/gce-pd",
		Parameters: map[string]string{"type": "pd-ssd", "fsType": "xfs", "zones": "us-east1-b,us-east1-c"}}
	before := class.DeepCopy()
	got, err := tr.TranslateClass(class)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, class); diff != "" {
		t.Errorf("the argument was changed:\n%s", diff)
	}
	topology := []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "topology.gke.io/zone", Values: []string{"us-east1-b", "us-east1-c"}}}}}
	if got.Name != "fast" || got.Provisioner != "pd.csi.storage.gke.io" || !maps.Equal(got.Parameters, map[string]string{"type": "pd-ssd", "csi.storage.k8s.io/fstype": "xfs"}) || !cmp.Equal(got.AllowedTopologies, topology) {
		t.Errorf("translated to %+v", got)
	}
	for name, bad := range map[string]*storagev1.StorageClass{
		"a driver's":     {Provisioner: "pd.csi.storage.gke.io"},
		"nfs":            {Provisioner: "kubernetes.io/nfs"},
		"an empty zone":  {Provisioner: "kubernetes.io/aws-ebs", Parameters: map[string]string{"zones": "a,,b"}},
		"a hostile zone": {Provisioner: "kubernetes.io/azure-disk", Parameters: map[string]string{"zone": "a/b"}},
		"zone and topology": {Provisioner: "kubernetes.io/gce-pd", Parameters: map[string]string{"zone": "a"},
			AllowedTopologies: topology},
	} {
		got, err := tr.TranslateClass(bad)
		if _, invalid := errors.AsType[*volume.InvalidSpecError](err); !invalid {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestTranslateBack(t *testing.T) {
	tr := csitranslation.New()
	made := func(driver, handle string) *v1.PersistentVolume {
		return persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle, FSType: "ext4"}}, func(pv *v1.PersistentVolume) {
			pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
				{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "topology.gke.io/zone", Operator: v1.NodeSelectorOpIn, Values: []string{"us-east1-b"}}}},
				{MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"here"}}}}}}}
		}).PersistentVolume
	}
	pv := made("pd.csi.storage.gke.io", "projects/p/zones/us-east1-b/disks/disk")
	before := pv.DeepCopy()
	got, err := tr.TranslateBack(pv)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, pv); diff != "" {
		t.Errorf("the argument was changed:\n%s", diff)
	}
	if d := got.Spec.GCEPersistentDisk; got.Spec.CSI != nil || d == nil || d.PDName != "disk" || d.FSType != "ext4" || got.Labels[v1.LabelTopologyZone] != "us-east1-b" {
		t.Errorf("translated back to %+v", got)
	}
	if terms := got.Spec.NodeAffinity.Required.NodeSelectorTerms; len(terms) != 2 || terms[0].MatchExpressions[0].Key != v1.LabelTopologyZone || terms[1].MatchExpressions[0].Key != v1.LabelHostname {
		t.Errorf("the nodes that reach it are %+v", terms)
	}
	forth, err := tr.Translate(volume.NewSpecFromPersistentVolume(got, false), "")
	if err != nil || forth.PersistentVolume.Spec.CSI.VolumeHandle != "projects/UNSPECIFIED/zones/us-east1-b/disks/disk" {
		t.Errorf("and forth to %+v, %v", forth, err)
	}
	for name, bad := range map[string]*v1.PersistentVolume{
		"another driver's": made("csitest.podvol.io", "h"),
		"a short handle":   made("pd.csi.storage.gke.io", "disk"),
		"a hostile disk":   made("pd.csi.storage.gke.io", "projects/p/zones/us-east1-b/disks/.."),
		"no CSI":           persistent(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}).PersistentVolume,
		"no vSphere path":  made("csi.vsphere.vmware.com", "id"),
	} {
		got, err := tr.TranslateBack(bad)
		if _, invalid := errors.AsType[*volume.InvalidSpecError](err); !invalid {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A plugin of the user's own takes precedence, and a type without one is refused with advice.
func TestUsersOwnPluginTakesPrecedence(t *testing.T) {
	spec := inline(v1.VolumeSource{Cinder: &v1.CinderVolumeSource{VolumeID: "a/b"}})
	var none *volume.VolumePluginMgr
	if got, err := none.Translate(nil, spec, "shop"); got != spec || err != nil {
		t.Errorf("without a translator: %+v, %v", got, err)
	}
	if _, err := none.Translate(csitranslation.New(), spec, "shop"); err == nil || volume.IsUncertain(err) {
		t.Errorf("a hostile one: %v", err)
	}
	own, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{cinder{}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := own.Translate(csitranslation.New(), spec, "shop"); got != spec || err != nil {
		t.Errorf("with a plugin: %+v, %v", got, err)
	}
	if _, err := new(volume.VolumePluginMgr).FindPluginBySpec(spec); err == nil || !strings.Contains(err.Error(), "csitranslation") || !strings.Contains(err.Error(), "--csi-driver") {
		t.Errorf("without either: %v", err)
	}
}

type cinder struct{ volume.VolumePlugin }

func (cinder) Init(volume.VolumeHost) error { return nil }
func (cinder) GetPluginName() string        { return "example.com/cinder" }
func (cinder) CanSupport(spec *volume.Spec) bool {
	return spec.Volume != nil && spec.Volume.Cinder != nil
}

// Each plugin's class becomes its driver's, and a volume that the driver has made for it gets the
// in-tree source, from which the node makes the driver's volume again.
func TestClassesAndVolumesOfAllPlugins(t *testing.T) {
	zone := func(key string) map[string]string { return map[string]string{key: "us-east-1a"} }
	for plugin, tc := range map[string]struct {
		handle     string
		attributes map[string]string
		topology   map[string]string
		source     v1.PersistentVolumeSource
		zone       string            // its label; azureDisk's is not translated
		parameters map[string]string // of the class, and as the driver gets them
		translated map[string]string
	}{
		"kubernetes.io/aws-ebs": {handle: "vol-1", attributes: map[string]string{"partition": "2"}, topology: zone("topology.ebs.csi.aws.com/zone"), zone: "us-east-1a",
			source:     v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1", FSType: "ext4", Partition: 2}},
			parameters: map[string]string{"iopsPerGB": "5", "fsType": "xfs"}, translated: map[string]string{"iopsPerGB": "5", "allowautoiopspergbincrease": "true", "csi.storage.k8s.io/fstype": "xfs"}},
		"kubernetes.io/azure-disk": {handle: azureURI, attributes: map[string]string{"cachingMode": "ReadOnly"}, topology: zone("topology.disk.csi.azure.com/zone"),
			source: v1.PersistentVolumeSource{AzureDisk: &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: azureURI, FSType: new("ext4"), ReadOnly: new(false),
				Kind: new(v1.AzureManagedDisk), CachingMode: new(v1.AzureDataDiskCachingReadOnly)}},
			parameters: map[string]string{"skuName": "Premium_LRS", "fsType": "xfs"}, translated: map[string]string{"skuName": "Premium_LRS", "fsType": "xfs"}},
		"kubernetes.io/azure-file": {handle: "#account#share#pv1#default", attributes: map[string]string{"shareName": "share"},
			source:     v1.PersistentVolumeSource{AzureFile: &v1.AzureFilePersistentVolumeSource{ShareName: "share", SecretName: "azure-storage-account-account-secret", SecretNamespace: new("default")}},
			parameters: map[string]string{"skuName": "Premium_LRS"}, translated: map[string]string{"skuName": "Premium_LRS"}},
		"kubernetes.io/cinder": {handle: "c1", topology: zone("topology.cinder.csi.openstack.org/zone"), zone: "us-east-1a",
			source:     v1.PersistentVolumeSource{Cinder: &v1.CinderPersistentVolumeSource{VolumeID: "c1", FSType: "ext4"}},
			parameters: map[string]string{"type": "ssd", "availability": "nova", "fsType": "xfs"}, translated: map[string]string{"type": "ssd", "availability": "nova", "csi.storage.k8s.io/fstype": "xfs"}},
		"kubernetes.io/gce-pd": {handle: "projects/UNSPECIFIED/zones/us-east-1a/disks/d", topology: zone("topology.gke.io/zone"), zone: "us-east-1a",
			source:     v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d", FSType: "ext4"}},
			parameters: map[string]string{"replication-type": "regional-pd"}, translated: map[string]string{"replication-type": "regional-pd"}},
		"kubernetes.io/portworx-volume": {handle: "p1",
			source:     v1.PersistentVolumeSource{PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "p1", FSType: "ext4"}},
			parameters: map[string]string{"repl": "3", "shared": "true"}, translated: map[string]string{"repl": "3", "shared": "true"}},
		"kubernetes.io/vsphere-volume": {handle: "[ds] kubevols/d.vmdk", attributes: map[string]string{"initialvolumefilepath": "[ds] kubevols/d.vmdk"}, topology: zone("topology.csi.vmware.com/zone"), zone: "us-east-1a",
			source:     v1.PersistentVolumeSource{VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] kubevols/d.vmdk", FSType: "ext4"}},
			parameters: map[string]string{"storagePolicyName": "gold", "datastore": "ds"}, translated: map[string]string{"storagepolicyname": "gold", "datastore-migrationparam": "ds", "csimigration": "true"}},
	} {
		t.Run(plugin, func(t *testing.T) {
			tr := csitranslation.New()
			class, err := tr.TranslateClass(&storagev1.StorageClass{Provisioner: plugin, Parameters: tc.parameters})
			if err != nil || class.Provisioner != tr.MigratedTo(plugin) || !maps.Equal(class.Parameters, tc.translated) {
				t.Errorf("the class is %+v, %v", class, err)
			}
			made := persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: tr.MigratedTo(plugin), VolumeHandle: tc.handle, FSType: "ext4", VolumeAttributes: tc.attributes}}).PersistentVolume
			for key, value := range tc.topology {
				made.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
					{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}}}}}
			}
			back, err := tr.TranslateBack(made)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.source, back.Spec.PersistentVolumeSource); diff != "" {
				t.Errorf("the in-tree source (-want +got):\n%s", diff)
			}
			if got := back.Labels[v1.LabelTopologyZone]; got != tc.zone {
				t.Errorf("it is in zone %q", got)
			}
			forth, err := tr.Translate(volume.NewSpecFromPersistentVolume(back, false), "shop")
			if err != nil || forth.PersistentVolume.Spec.CSI.Driver != made.Spec.CSI.Driver || forth.PersistentVolume.Spec.CSI.VolumeHandle != tc.handle {
				t.Errorf("forth again it is %+v, %v", forth, err)
			}
			if len(tc.topology) > 0 {
				required := forth.PersistentVolume.Spec.NodeAffinity
				// the tables add the region of a zone
				if diff := cmp.Diff(made.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions, required.Required.NodeSelectorTerms[0].MatchExpressions[:1]); diff != "" {
					t.Errorf("the nodes that reach it:\n%s", diff)
				}
			}
		})
	}
}

// An error is a sentence, without the whole PersistentVolume that the tables print.
func TestErrorsOfTranslatingBackAreShort(t *testing.T) {
	for driver, key := range map[string]string{"ebs.csi.aws.com": "topology.ebs.csi.aws.com/zone", "pd.csi.storage.gke.io": "topology.gke.io/zone"} {
		pv := persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "projects/p/zones/z/disks/d", FSType: "ext4"}}, labelled("app", "shop")).PersistentVolume
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
			{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{"nowhere", "elsewhere"}}}}}}}
		_, err := csitranslation.New().TranslateBack(pv)
		if err == nil || !strings.Contains(err.Error(), "topology") || !strings.Contains(err.Error(), "nowhere") || strings.Contains(err.Error(), "ObjectMeta") || len(err.Error()) > 400 {
			t.Errorf("%s: %v", driver, err)
		}
	}
}
