package hostpath_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

// configured returns a plugin on a host of its own.
func configured(t *testing.T, config hostpath.Config) (volume.VolumePlugin, *fakehost.Host) {
	t.Helper()
	h := fakehost.New(t)
	h.HostFiles = nil
	p := hostpath.New(config)
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	return p, h
}

func provisioning(bases ...hostpath.Base) hostpath.Config {
	return hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: bases}}
}

func claimOf(name string, change ...func(*v1.PersistentVolumeClaim)) volume.VolumeOptions {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("5Gi")}
	claim.Spec.StorageClassName = new("class")
	for _, f := range change {
		f(claim)
	}
	return volume.VolumeOptions{PVName: "pvc-uid-" + name, PVC: claim, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete, Parameters: map[string]string{}}
}

func provision(t *testing.T, p volume.VolumePlugin, options volume.VolumeOptions, node *v1.Node, allowed ...v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	t.Helper()
	able, ok := volume.AsProvisionable(p)
	if !ok {
		t.Fatal("the plugin does not provision")
	}
	made, err := able.NewProvisioner(options)
	if err != nil {
		return nil, err
	}
	return made.Provision(t.Context(), node, allowed)
}

func mustProvision(t *testing.T, p volume.VolumePlugin, options volume.VolumeOptions) *v1.PersistentVolume {
	t.Helper()
	pv, err := provision(t, p, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	pv.UID = types.UID("uid-of-" + pv.Name)
	pv.Status.Phase = v1.VolumeReleased
	return pv
}

func remove(t *testing.T, p volume.VolumePlugin, pv *v1.PersistentVolume) error {
	t.Helper()
	able, ok := volume.AsDeletable(p)
	if !ok {
		t.Fatal("the plugin does not delete")
	}
	d, err := able.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		if volume.IsUncertain(err) {
			t.Errorf("NewDeleter leaves open whether something was done: %v", err)
		}
		return err
	}
	return d.Delete(t.Context())
}

func wantError(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s succeeds", what)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %q lacks %q", what, err, part)
		}
	}
}

func nodeNamed(name string, labels map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func TestStockPluginOnlyMounts(t *testing.T) {
	p, _ := configured(t, hostpath.Config{})
	_, provisions := volume.AsProvisionable(p)
	_, deletes := volume.AsDeletable(p)
	_, recycles := volume.AsRecyclable(p)
	if provisions || deletes || recycles {
		t.Errorf("without a configuration: provisions %v, deletes %v, recycles %v", provisions, deletes, recycles)
	}
	p, _ = configured(t, provisioning(hostpath.Base{Path: t.TempDir()}))
	if _, recycles = volume.AsRecyclable(p); recycles {
		t.Error("who provisions also recycles")
	}
	p, _ = configured(t, hostpath.Config{Recycle: hostpath.RecycleConfig{Below: []string{t.TempDir()}}})
	if _, deletes = volume.AsDeletable(p); deletes {
		t.Error("who recycles also deletes")
	}
}

func TestProvisionedVolume(t *testing.T) {
	setUmask(t, 0o077)
	h := fakehost.New(t)
	base := hostpath.DefaultBase(h.RootDir)
	p := hostpath.New(provisioning(base))
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	options := claimOf("data")
	options.Parameters = map[string]string{"subDir": "${pvc.metadata.namespace}/${pvc.metadata.name}", "Mode": "2770", "onDelete": "Archive"}
	pv := mustProvision(t, p, options)
	dir := filepath.Join(base.Path, "ns", "data")
	if pv.Spec.HostPath == nil || pv.Spec.HostPath.Path != dir || *pv.Spec.HostPath.Type != v1.HostPathDirectory {
		t.Errorf("source %+v", pv.Spec.HostPath)
	}
	if size := pv.Spec.Capacity[v1.ResourceStorage]; size.String() != "5Gi" {
		t.Errorf("capacity %v", &size)
	}
	for node, want := range map[string]bool{string(h.NodeName): true, "other": false} {
		if got, err := claimbinding.MatchesNode(pv, nil, node); err != nil || got != want {
			t.Errorf("reachable from %s: %v, %v", node, got, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 {
		t.Errorf("%v, %v", info, err)
	}
	if info, err := os.Stat(base.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the base is %v, %v; others must not get in", info, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remove(t, p, pv); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(base.Path, "ns", "archived-data", "file")); err != nil {
		t.Error(err)
	}
}

func TestVolumesAreMadeOnThisNodeOnly(t *testing.T) {
	rack := map[string]string{v1.LabelHostname: "rack-7", "zone": "a"}
	topology := func(key, value string) v1.TopologySelectorTerm {
		return v1.TopologySelectorTerm{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: key, Values: []string{value}}}}
	}
	own := string(fakehost.NodeName)
	for name, tc := range map[string]struct {
		node     *v1.Node
		allowed  []v1.TopologySelectorTerm
		hostname string // configured
		want     string
		refused  string
	}{
		"no node":                     {want: own},
		"no node, another host name":  {hostname: "rack-9", want: "rack-9"},
		"this node":                   {node: nodeNamed(own, nil), want: own},
		"its host name":               {node: nodeNamed(own, rack), hostname: "rack-9", want: "rack-7"},
		"another node":                {node: nodeNamed("other", rack), refused: `"other"`},
		"in an allowed zone":          {node: nodeNamed(own, rack), allowed: []v1.TopologySelectorTerm{topology("zone", "b"), topology("zone", "a")}, want: "rack-7"},
		"in no allowed zone":          {node: nodeNamed(own, rack), allowed: []v1.TopologySelectorTerm{topology("zone", "b")}, refused: "allowedTopologies"},
		"zone not known without node": {allowed: []v1.TopologySelectorTerm{topology("zone", "a")}, refused: "WaitForFirstConsumer"},
		"allowed by host name":        {allowed: []v1.TopologySelectorTerm{topology(v1.LabelHostname, own)}, want: own},
	} {
		t.Run(name, func(t *testing.T) {
			config := provisioning(hostpath.Base{Path: t.TempDir()})
			config.Provision.Hostname = tc.hostname
			p, _ := configured(t, config)
			pv, err := provision(t, p, claimOf("data"), tc.node, tc.allowed...)
			if tc.refused != "" {
				wantError(t, "Provision", err, tc.refused)
				if !errors.Is(err, hostpath.ErrOtherNode) || volume.IsUncertain(err) {
					t.Errorf("err = %#v", err)
				}
				if entries, err := os.ReadDir(config.Provision.Bases[0].Path); err != nil || len(entries) > 0 {
					t.Errorf("made: %v, %v", entries, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values; len(got) != 1 || got[0] != tc.want {
				t.Errorf("affinity to %v, want %q", got, tc.want)
			}
		})
	}
}

func TestRefusedClaimsAndClasses(t *testing.T) {
	base := t.TempDir()
	other := t.TempDir()
	if err := os.Symlink(other, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	p, _ := configured(t, provisioning(hostpath.Base{Path: base, Namespaces: []string{"ns"}}))
	for name, tc := range map[string]struct {
		change     func(*v1.PersistentVolumeClaim)
		parameters map[string]string
		want       string
	}{
		"elsewhere":       {parameters: map[string]string{"path": other}, want: "parameters.path"},
		"beside the base": {parameters: map[string]string{"path": base + "-other"}, want: "parameters.path"},
		"above the base":  {parameters: map[string]string{"path": base + "/.."}, want: "parameters.path"},
		"a relative path": {parameters: map[string]string{"path": "data"}, want: "parameters.path"},
		"the bookkeeping": {parameters: map[string]string{"path": base + "/.podvol/trash"}, want: ".podvol"},
		"a link":          {parameters: map[string]string{"path": base + "/link"}, want: "links are not followed"},
		"a missing path":  {parameters: map[string]string{"path": base + "/none"}, want: "create it"},
		"out of the base": {parameters: map[string]string{"subDir": "../${pvc.metadata.name}"}, want: "parameters.subDir"},
		"no mode":         {parameters: map[string]string{"mode": "rwx"}, want: "parameters.mode"},
		"a closed mode":   {parameters: map[string]string{"mode": "0070"}, want: "parameters.mode"},
		"setuid":          {parameters: map[string]string{"mode": "4755"}, want: "parameters.mode"},
		"onDelete":        {parameters: map[string]string{"onDelete": "burn"}, want: "parameters.onDelete"},
		"another":         {parameters: map[string]string{"server": "s"}, want: "parameters.server"},
		"twice":           {parameters: map[string]string{"path": base, "Path": base}, want: "twice"},
		"a namespace":     {change: func(c *v1.PersistentVolumeClaim) { c.Namespace = "other" }, want: "metadata.namespace"},
		"many writers":    {change: func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = v1.ReadWriteMany }, want: "spec.accessModes[0]"},
		"a device":        {change: func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(v1.PersistentVolumeBlock) }, want: "spec.volumeMode"},
		"a selector":      {change: func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }, want: "spec.selector"},
		"a source":        {change: func(c *v1.PersistentVolumeClaim) { c.Spec.DataSource = &v1.TypedLocalObjectReference{} }, want: "spec.dataSource"},
		"no size":         {change: func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil }, want: "storage"},
		"no UID":          {change: func(c *v1.PersistentVolumeClaim) { c.UID = "" }, want: "metadata.uid"},
		"a name that is a path": {parameters: map[string]string{"subDir": "${pvc.metadata.name}"},
			change: func(c *v1.PersistentVolumeClaim) { c.Name = "../../etc" }, want: "parameters.subDir"},
	} {
		t.Run(name, func(t *testing.T) {
			options := claimOf("data")
			if tc.change != nil {
				tc.change(options.PVC)
			}
			options.Parameters = tc.parameters
			_, err := provision(t, p, options, nil)
			wantError(t, "Provision", err, tc.want, "pvc-uid-data")
		})
	}
	options := claimOf("data")
	options.MountOptions = []string{"noexec"}
	_, err := provision(t, p, options, nil)
	wantError(t, "mount options", err, "mountOptions")
	for _, dir := range []string{base, other} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
}

func TestClassesNeverLieInVolumes(t *testing.T) {
	base := t.TempDir()
	p, _ := configured(t, provisioning(hostpath.Base{Path: base}))
	outer := claimOf("outer")
	outer.Parameters["subDir"] = "team/data"
	pv := mustProvision(t, p, outer)
	inside := filepath.Join(pv.Spec.HostPath.Path, "sub")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{inside, pv.Spec.HostPath.Path} {
		options := claimOf("inner")
		options.Parameters["path"] = dir
		_, err := provision(t, p, options, nil)
		if !errors.Is(err, hostpath.ErrNested) {
			t.Errorf("a class in a volume: %v", err)
		}
	}
	options := claimOf("beside")
	options.Parameters["path"] = filepath.Join(base, "team")
	if got := mustProvision(t, p, options); got.Spec.HostPath.Path != filepath.Join(base, "team", "pvc-uid-beside") {
		t.Errorf("made at %s", got.Spec.HostPath.Path)
	}
}

func TestOnlyWhatWasMadeIsDeleted(t *testing.T) {
	base := t.TempDir()
	p, h := configured(t, provisioning(hostpath.Base{Path: base}))
	pv := mustProvision(t, p, claimOf("data"))
	victim := filepath.Join(base, "victim")
	if err := os.MkdirAll(filepath.Join(victim, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*v1.PersistentVolume)
		want   string
	}{
		"another directory": {func(pv *v1.PersistentVolume) { pv.Spec.HostPath.Path = victim }, "hostPath.path"},
		"the base":          {func(pv *v1.PersistentVolume) { pv.Spec.HostPath.Path = base }, "hostPath.path"},
		"outside":           {func(pv *v1.PersistentVolume) { pv.Spec.HostPath.Path = h.RootDir }, "hostPath.path"},
		"out by dots":       {func(pv *v1.PersistentVolume) { pv.Spec.HostPath.Path = base + "/../victim" }, "hostPath.path"},
		"another base":      {func(pv *v1.PersistentVolume) { pv.Annotations[hostpath.BaseAnnotation] = h.RootDir }, hostpath.BaseAnnotation},
		"a base with dots":  {func(pv *v1.PersistentVolume) { pv.Annotations[hostpath.BaseAnnotation] = base + "/." }, hostpath.BaseAnnotation},
		"no base":           {func(pv *v1.PersistentVolume) { delete(pv.Annotations, hostpath.BaseAnnotation) }, "not provisioned by podvol"},
		"another node":      {func(pv *v1.PersistentVolume) { pv.Annotations[hostpath.NodeAnnotation] = "other" }, `"other"`},
		"another claim":     {func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "later" }, "uid-data"},
		"no claim":          {func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }, "spec.claimRef"},
		"Retain": {func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}, "kept"},
		"nonsense to be done": {func(pv *v1.PersistentVolume) { pv.Annotations[hostpath.OnDeleteAnnotation] = "burn" }, "burn"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := pv.DeepCopy()
			tc.change(changed)
			wantError(t, "Delete", remove(t, p, changed), tc.want)
			for _, dir := range []string{filepath.Join(victim, "deep"), pv.Spec.HostPath.Path} {
				if _, err := os.Stat(dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	h.Releases = nil
	p2 := hostpath.New(provisioning(hostpath.Base{Path: base}))
	if err := p2.Init(h); err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*volume.MissingRoleError](remove(t, p2, pv)); !ok {
		t.Error("something is deleted that nobody has released")
	}
	if err := remove(t, p, pv); err == nil {
		t.Error("the role is asked once and for all")
	}
	p, _ = configured(t, provisioning(hostpath.Base{Path: base}))
	if err := remove(t, p, pv); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(pv.Spec.HostPath.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Delete: %v", err)
	}
}
