package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/validation"
)

// shareOf makes the host's fake serve 10.0.0.1:/export from a new directory.
func shareOf(t testing.TB, h *fakehost.Host) string {
	t.Helper()
	dir := t.TempDir()
	h.Fake.Serve("10.0.0.1:/export", dir)
	return dir
}

func wishes(claim string, change ...func(*volume.VolumeOptions)) volume.VolumeOptions {
	pvc := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: claim, UID: types.UID("uid-of-" + claim), ResourceVersion: "7"}}
	pvc.Spec = v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, StorageClassName: new("nfs-dynamic"),
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}},
	}
	options := volume.VolumeOptions{PVName: "pvc-" + claim, PVC: pvc, Parameters: map[string]string{"server": "10.0.0.1", "share": "/export"},
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete}
	for _, c := range change {
		c(&options)
	}
	return options
}

func parameter(name, value string) func(*volume.VolumeOptions) {
	return func(o *volume.VolumeOptions) { o.Parameters[name] = value }
}

func provision(p volume.VolumePlugin, options volume.VolumeOptions) (*v1.PersistentVolume, error) {
	able, _ := volume.AsProvisionable(p)
	provisioner, err := able.NewProvisioner(options)
	if err != nil {
		return nil, err
	}
	return provisioner.Provision(context.Background(), nil, nil)
}

func mustProvision(t *testing.T, p volume.VolumePlugin, options volume.VolumeOptions) *v1.PersistentVolume {
	t.Helper()
	pv, err := provision(p, options)
	if err != nil {
		t.Fatalf("Provision: %v", err)
	}
	return pv
}

func deletePV(p volume.VolumePlugin, pv *v1.PersistentVolume) error {
	able, _ := volume.AsDeletable(p)
	d, err := able.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return err
	}
	return d.Delete(context.Background())
}

// shown lists a share without the bookkeeping.
func shown(t testing.TB, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		if d.Name() == ".podvol" {
			return fs.SkipDir
		}
		rel, _ := filepath.Rel(dir, p)
		all = append(all, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func TestProvisionedVolume(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	options := wishes("data", parameter("subDir", "${pvc.metadata.namespace}/${pvc.metadata.name}"), parameter("mountPermissions", "2770"),
		func(o *volume.VolumeOptions) { o.MountOptions = []string{"vers=4.1", "ro"} })
	pv := mustProvision(t, p, options)
	want := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-data", Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by": "kubernetes.io/nfs", nfs.ShareAnnotation: "/export", nfs.OnDeleteAnnotation: "delete"}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:    v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")},
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, VolumeMode: new(v1.PersistentVolumeFilesystem),
			StorageClassName: "nfs-dynamic", PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete, MountOptions: []string{"vers=4.1", "ro"},
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "ops", Name: "data", UID: "uid-of-data", ResourceVersion: "7"},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{
				Server: "10.0.0.1", Path: "/export/ops/data"}},
		},
	}
	if diff := cmp.Diff(want, pv); diff != "" {
		t.Errorf("the PersistentVolume (-want +got):\n%s", diff)
	}
	if err := validation.PersistentVolume(pv); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(share, "ops/data")); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 {
		t.Errorf("the directory is %v, %v", info, err)
	}
	for _, c := range h.Fake.Calls() {
		if c.Op == mount.OpMount && (strings.Contains(" "+strings.Join(c.Options, " ")+" ", " ro ") || !strings.Contains(strings.Join(c.Options, " "), "vers=4.1")) {
			t.Errorf("the share was mounted with %q", c.Options)
		}
	}
	if err := deletePV(p, pv); err != nil {
		t.Error(err)
	}
	if got := shown(t, share); got != "" {
		t.Errorf("left: %s", got)
	}
}

func TestTopologies(t *testing.T) {
	p, h := newPlugin(t)
	shareOf(t, h)
	able, _ := volume.AsProvisionable(p)
	provisioner, err := able.NewProvisioner(wishes("data"))
	if err != nil {
		t.Fatal(err)
	}
	zones := []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a", "b"}}}}}
	node := func(zone string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": zone}}}
	}
	if _, err := provisioner.Provision(t.Context(), node("c"), zones); !errors.As(err, new(*volume.InvalidSpecError)) {
		t.Errorf("on a node of another zone: %v", err)
	}
	pv, err := provisioner.Provision(t.Context(), node("b"), zones)
	if err != nil {
		t.Fatal(err)
	}
	if err := validation.PersistentVolume(pv); err != nil {
		t.Error(err)
	}
	for zone, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if got, err := claimbinding.MatchesNode(pv, node(zone).Labels, "n"); got != want || err != nil {
			t.Errorf("zone %s: %v, %v", zone, got, err)
		}
	}
}

func TestProvisionRefuses(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	able, _ := volume.AsProvisionable(p)
	claim := func(change func(*v1.PersistentVolumeClaim)) func(*volume.VolumeOptions) {
		return func(o *volume.VolumeOptions) { change(o.PVC) }
	}
	for name, test := range map[string]struct {
		change  func(*volume.VolumeOptions)
		because string
	}{
		"unknown parameter": {parameter("path", "x"), "parameters.path"},
		"given twice":       {parameter("Share", "/other"), "twice"},
		"no server":         {parameter("server", ""), "parameters.server"},
		"no share":          {parameter("share", ""), "parameters.share"},
		"share with ..":     {parameter("share", "/export/../etc"), ".."},
		"share with .":      {parameter("share", "/export/./x"), "parameters.share"},
		"unknown variable":  {parameter("subDir", "${pvc.metadata.uid}"), "no variable"},
		"leads out":         {parameter("subDir", "../${pv.metadata.name}"), ".."},
		"our own":           {parameter("subDir", ".podvol/marks"), "bookkeeping"},
		"an archive's":      {parameter("subDir", "archived-${pv.metadata.name}"), "archived-"},
		"mode not octal":    {parameter("mountPermissions", "rwx"), "octal"},
		"mode of nobody":    {parameter("mountPermissions", "0077"), "owner"},
		"setuid":            {parameter("mountPermissions", "4755"), "3777"},
		"onDelete":          {parameter("onDelete", "shred"), "retain"},
		"block":             {claim(func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(v1.PersistentVolumeBlock) }), "spec.volumeMode"},
		"one pod": {claim(func(c *v1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
		}), "spec.accessModes[0]"},
		"no access mode":       {claim(func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = nil }), "spec.accessModes"},
		"selector":             {claim(func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }), "spec.selector"},
		"data source":          {claim(func(c *v1.PersistentVolumeClaim) { c.Spec.DataSource = &v1.TypedLocalObjectReference{} }), "spec.dataSource"},
		"data source ref":      {claim(func(c *v1.PersistentVolumeClaim) { c.Spec.DataSourceRef = &v1.TypedObjectReference{} }), "spec.dataSource"},
		"no size":              {claim(func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil }), "storage"},
		"no UID":               {claim(func(c *v1.PersistentVolumeClaim) { c.UID = "" }), "metadata.uid"},
		"no claim":             {func(o *volume.VolumeOptions) { o.PVC = nil }, "PersistentVolumeClaim"},
		"name with a slash":    {func(o *volume.VolumeOptions) { o.PVName = "a/b" }, "slash"},
		"options of the agent": {func(o *volume.VolumeOptions) { o.MountOptions = []string{"a,b\n"} }, "mountOptions"},
	} {
		_, err := able.NewProvisioner(wishes("data", test.change))
		if err == nil || !strings.Contains(err.Error(), test.because) || volume.IsUncertain(err) {
			t.Errorf("%s: %v, want %q", name, err, test.because)
		}
	}
	if calls := h.Fake.Calls(); len(calls) > 0 || shown(t, share) != "" {
		t.Errorf("something was touched: %v", calls)
	}
}

// CVE-2026-3864, through the plugin: whatever a claim or a PersistentVolume
// says, nothing outside of the share's own volumes is made or deleted.
func TestCVE20263864(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	if err := errors.Join(os.MkdirAll(filepath.Join(share, "precious/deep"), 0o755), os.MkdirAll(filepath.Join(share, "base"), 0o755)); err != nil {
		t.Fatal(err)
	}
	mustProvision(t, p, wishes("neighbour"))
	pv := mustProvision(t, p, wishes("data", parameter("subDir", "base/${pvc.metadata.name}")))
	before := shown(t, share)
	for _, name := range []string{"..", "../precious", "../../etc", ".", "a/../../precious"} {
		if made, err := provision(p, wishes(name, parameter("subDir", "base/${pvc.metadata.name}"))); err == nil {
			t.Errorf("claim %q got %v", name, made)
		}
	}
	for _, path := range []string{"/export/../precious", "/export/base/../precious", "/export/base/data/..", "/export", "/export/", "/export/.", "/exports/x", "/", "/etc",
		"/export/precious", "/export/precious/deep", "/export/.podvol", "/export/.podvol/marks", "/export/pvc-neighbour", "/export/base"} {
		for _, base := range []string{"/export", "/export/base", "/", "/export/..", "/export/base/.."} {
			crafted := pv.DeepCopy()
			crafted.Spec.NFS.Path, crafted.Annotations[nfs.ShareAnnotation] = path, base
			err := deletePV(p, crafted)
			if shown(t, share) != before {
				t.Fatalf("%s below %s was deleted: %v", path, base, err)
			}
		}
	}
	for _, name := range []string{"pvc-neighbour", "pvc-other"} { // whose own are gone, if another's is there
		crafted := pv.DeepCopy()
		crafted.Name = name
		if err := deletePV(p, crafted); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if after := shown(t, share); after != before {
		t.Errorf("from %s\nto %s", before, after)
	}
}

func TestOnDelete(t *testing.T) {
	for _, test := range []struct{ class, annotation, config, want string }{
		{want: ""}, {config: "retain", want: "pvc-data pvc-data/file"}, {class: "delete", config: "retain", want: ""},
		{class: "archive", want: "archived-pvc-data archived-pvc-data/file"}, {class: "Retain", want: "pvc-data pvc-data/file"},
		{annotation: "retain", want: "pvc-data pvc-data/file"}, {annotation: "archive", want: "archived-pvc-data archived-pvc-data/file"},
		{class: "retain", annotation: "delete", want: "pvc-data pvc-data/file"},
	} {
		h := fakehost.New(t)
		p := nfs.New(nfs.Config{Provision: nfs.ProvisionConfig{OnDelete: test.config}})
		if err := p.Init(h); err != nil {
			t.Fatal(err)
		}
		share := shareOf(t, h)
		pv := mustProvision(t, p, wishes("data", parameter("onDelete", test.class)))
		if err := os.WriteFile(filepath.Join(share, "pvc-data/file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if test.annotation != "" {
			pv.Annotations[nfs.OnDeleteAnnotation] = test.annotation
		}
		if err := deletePV(p, pv); err != nil {
			t.Errorf("%+v: %v", test, err)
		}
		if got := shown(t, share); got != test.want {
			t.Errorf("%+v: left %s", test, got)
		}
	}
}

func TestProvisionConfig(t *testing.T) {
	for _, wrong := range []nfs.ProvisionConfig{{MountPermissions: 0o4755}, {MountPermissions: 0o070}, {OnDelete: "shred"}} {
		if err := nfs.New(nfs.Config{Provision: wrong}).Init(fakehost.New(t)); !errors.As(err, new(*volume.InvalidSpecError)) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	h := fakehost.New(t)
	p := nfs.New(nfs.Config{Provision: nfs.ProvisionConfig{MountPermissions: 0o2770}})
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	share := shareOf(t, h)
	for given, want := range map[string]fs.FileMode{"": fs.ModeSetgid | 0o770, "0": fs.ModeSetgid | 0o770, "0755": 0o755, "1777": fs.ModeSticky | 0o777} {
		name := "data" + given
		mustProvision(t, p, wishes(name, parameter("mountPermissions", given)))
		if info, err := os.Stat(filepath.Join(share, "pvc-"+name)); err != nil || info.Mode() != fs.ModeDir|want {
			t.Errorf("%q: %v, %v", given, info, err)
		}
	}
}

func TestDeleteRefusesWhatItDidNotMake(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	pv := mustProvision(t, p, wishes("data"))
	for name, change := range map[string]func(*v1.PersistentVolume){
		"no annotations":      func(pv *v1.PersistentVolume) { pv.Annotations = nil },
		"another provisioner": func(pv *v1.PersistentVolume) { pv.Annotations["pv.kubernetes.io/provisioned-by"] = "nfs.csi.k8s.io" },
		"no claim":            func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil },
		"a claim without UID": func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" },
		"another claim":       func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "later" },
		"another share":       func(pv *v1.PersistentVolume) { pv.Annotations[nfs.ShareAnnotation] = "/other" },
		"no such onDelete":    func(pv *v1.PersistentVolume) { pv.Annotations[nfs.OnDeleteAnnotation] = "shred" },
	} {
		other := pv.DeepCopy()
		change(other)
		if err := deletePV(p, other); err == nil {
			t.Errorf("%s: deleted", name)
		}
	}
	inline, _ := volume.AsDeletable(p)
	if _, err := inline.NewDeleter(volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/p"}}})); err == nil {
		t.Error("a pod's own volume has a deleter")
	}
	if got := shown(t, share); got != "pvc-data" {
		t.Errorf("left: %s", got)
	}
}

// Two controllers on one share, and many claims that get the same path: one
// volume has it, and no other volume's data is ever touched.
func TestProvisionersRace(t *testing.T) {
	first, h := newPlugin(t)
	share := shareOf(t, h)
	second, other := newPlugin(t)
	other.Fake.Serve("10.0.0.1:/export", share)
	plugins := []volume.VolumePlugin{first, second}
	pvs := make([]*v1.PersistentVolume, 24)
	errs := make([]error, len(pvs))
	var all sync.WaitGroup
	for i := range pvs {
		all.Go(func() {
			pvs[i], errs[i] = provision(plugins[i%2], wishes(fmt.Sprint("claim", i/2), parameter("subDir", fmt.Sprint("path", i/4))))
		})
	}
	all.Wait()
	owners := map[string]string{}
	for i, pv := range pvs {
		if errs[i] != nil {
			if occupied, ok := errors.AsType[*nfs.ShareError](errs[i]); !ok || occupied.Cause != nfs.ErrOccupied || occupied.Owner.Volume == "" {
				t.Error(errs[i])
			}
			continue
		}
		if owner, taken := owners[pv.Spec.NFS.Path]; taken && owner != pv.Name {
			t.Errorf("%s is %s's and %s's", pv.Spec.NFS.Path, owner, pv.Name)
		}
		owners[pv.Spec.NFS.Path] = pv.Name
	}
	if len(owners) != 6 {
		t.Errorf("of 6 paths, given were %v", owners)
	}
	for i, pv := range pvs {
		if pv != nil {
			all.Go(func() {
				if err := deletePV(plugins[(i+1)%2], pv); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if got := shown(t, share); got != "" {
		t.Errorf("left: %s", got)
	}
}

func BenchmarkProvisionAndDelete(b *testing.B) {
	h := fakehost.New(b)
	p := nfs.New(nfs.Config{})
	if err := p.Init(h); err != nil {
		b.Fatal(err)
	}
	shareOf(b, h)
	options := wishes("data", parameter("subDir", "${pvc.metadata.namespace}/${pvc.metadata.name}"))
	for b.Loop() {
		pv, err := provision(p, options)
		if err != nil {
			b.Fatal(err)
		}
		if err := deletePV(p, pv); err != nil {
			b.Fatal(err)
		}
	}
}

// Whoever could write in the bookkeeping could make others' volumes his own.
func TestBookkeepingIsNoVolume(t *testing.T) {
	const inBook = "/export/.podvol/marks"
	p, h := newPluginWith(t, nfs.ServerPolicy{Server: "10.0.0.1", MakeBelow: []string{"/export"}})
	share := shareOf(t, h)
	mustProvision(t, p, wishes("data"))
	before := len(h.Fake.Calls())
	for name, spec := range map[string]*volume.Spec{
		"inline": inline("10.0.0.1", inBook), "in another case": inline("10.0.0.1", "/export/.PODVOL/new"), "PersistentVolume": persistent("10.0.0.1", inBook),
	} {
		invalid, ok := errors.AsType[*volume.InvalidSpecError](setUpError(p, spec, annotated(makeVol1, "0777")))
		if !ok || !strings.Contains(invalid.Error(), ".podvol") {
			t.Errorf("%s: %v", name, invalid)
		}
	}
	if _, err := provision(p, wishes("other", parameter("share", "/export/.podvol"))); !errors.As(err, new(*volume.InvalidSpecError)) {
		t.Errorf("a share: %v", err)
	}
	if calls := h.Fake.Calls()[before:]; len(calls) > 0 || shown(t, share) != "pvc-data" {
		t.Errorf("calls %v, the share has %s", calls, shown(t, share))
	}
}

func setUpError(p volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod) error {
	m, err := p.NewMounter(spec, pod)
	if err != nil {
		return err
	}
	return m.SetUp(context.Background(), volume.MounterArgs{})
}
