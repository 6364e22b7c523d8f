package hostpath_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

func TestDiskThatIsNotMountedKeepsTheVolume(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	p, _ := configured(t, provisioning(hostpath.Base{Path: base}))
	pv := mustProvision(t, p, claimOf("data"))
	if err := errors.Join(os.Rename(base, base+"-aside"), os.Mkdir(base, 0o755)); err != nil {
		t.Fatal(err)
	}
	err := remove(t, p, pv)
	if !errors.Is(err, hostpath.ErrNoBook) {
		t.Errorf("err = %v", err)
	}
	wantError(t, "Delete", err, "mounted on this node")
	if err := os.Remove(base); err != nil {
		t.Fatal(err)
	}
	if err := remove(t, p, pv); !errors.Is(err, hostpath.ErrNoBase) {
		t.Error("what lies in a base that is not there counts as deleted")
	}
	if _, err := provision(t, p, claimOf("other"), nil); err == nil {
		t.Error("a base is made that should be a disk")
	}
}

// While a disk is not mounted on which volumes were made, its base looks new: none
// is made, deleted or mounted there, nothing is put there, and all that is said is
// which volume is missed, and what to do.
func TestNothingIsDoneWhereADiskIsNotMounted(t *testing.T) {
	class := func(path string) func(*volume.VolumeOptions) {
		return func(o *volume.VolumeOptions) { o.Parameters = map[string]string{"path": path} }
	}
	mount := func(t *testing.T, p volume.VolumePlugin, pv *v1.PersistentVolume) error {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "pod"}}
		m, err := p.NewMounter(volume.NewSpecFromPersistentVolume(pv, false), pod)
		if err != nil {
			t.Fatal(err)
		}
		return m.SetUp(t.Context(), volume.MounterArgs{})
	}
	for name, tc := range map[string]struct {
		before, now string // the class's path below the base
		lost        string // what is not there any more, of the base
		type_       v1.HostPathType
	}{
		"the base":                        {type_: v1.HostPathDirectory},
		"it would be made":                {type_: v1.HostPathDirectoryOrCreate},
		"another type":                    {type_: v1.HostPathUnset},
		"a class's directory":             {before: "class", now: "class", lost: "class", type_: v1.HostPathDirectory},
		"another class":                   {before: "class", type_: v1.HostPathDirectory},
		"another class in its first's":    {now: "class", type_: v1.HostPathDirectory},
		"a class's directory, and a base": {before: "class", lost: "class", type_: v1.HostPathDirectoryOrCreate},
	} {
		t.Run(name, func(t *testing.T) {
			base := filepath.Join(t.TempDir(), "disk")
			for _, class := range []string{tc.before, tc.now} {
				if err := os.MkdirAll(filepath.Join(base, class), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			var onRecord []*v1.PersistentVolume
			config := provisioning(hostpath.Base{Path: base})
			config.Provision.Volumes = func(context.Context) ([]*v1.PersistentVolume, error) { return onRecord, nil }
			again := func() volume.VolumePlugin { p, _ := configured(t, config); return p }
			options := func(claim, path string) volume.VolumeOptions {
				o := claimOf(claim)
				class(filepath.Join(base, path))(&o)
				return o
			}
			pv := mustProvision(t, again(), options("data", tc.before))
			pv.Spec.HostPath.Type = &tc.type_
			onRecord = []*v1.PersistentVolume{pv}
			disk := filepath.Join(base, tc.lost)
			empty := func() error {
				return errors.Join(os.MkdirAll(disk, 0o755), os.MkdirAll(filepath.Join(base, tc.now), 0o755))
			}
			if err := errors.Join(os.Rename(disk, disk+"-aside"), empty()); err != nil {
				t.Fatal(err)
			}
			_, made := provision(t, again(), options("other", tc.now), nil)
			for what, err := range map[string]error{"Provision": made, "Delete": remove(t, again(), pv), "SetUp": mount(t, again(), pv)} {
				if !errors.Is(err, hostpath.ErrNoBook) && (tc.lost != "" || tc.before == "" || what != "Delete") {
					t.Errorf("%s: err = %v", what, err)
					continue
				}
				wantError(t, what, err, "mounted on this node")
				if volume.IsUncertain(err) && what != "Delete" {
					t.Errorf("%s: it is left open whether something was done: %v", what, err)
				}
			}
			for _, dir := range []string{disk, filepath.Join(base, tc.now)} {
				if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 && dir != base {
					t.Errorf("in %s was made %v, %v", dir, entries, err)
				}
			}

			// The data are really gone, and a person has said so.
			if err := os.MkdirAll(filepath.Join(base, tc.before, ".podvol"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := mount(t, again(), pv); !errors.Is(err, hostpath.ErrLost) {
				t.Error("what is gone is mounted")
			}
			if _, err := provision(t, again(), options("other", tc.now), nil); err != nil {
				t.Errorf("a new volume: %v", err)
			}
			if err := remove(t, again(), pv); err != nil {
				t.Errorf("the volume that is gone: %v", err)
			}
		})
	}
}

// A claim that had a volume gets no new one while the directory is there and nobody
// knows whose it is; the same claim finds its own again, and others get theirs.
func TestAForgottenVolumeIsNotReplacedByAnEmptyOne(t *testing.T) {
	again := func(name, uid string) volume.VolumeOptions {
		options := claimOf(name, func(c *v1.PersistentVolumeClaim) { c.UID = types.UID(uid) })
		options.PVName = "pvc-" + uid
		return options
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		known []string
		asked error
		// The names of the records by which the directory was made, and of those now,
		// in a base that others use too.
		madeBy, records string
		prepare         func(t *testing.T, p volume.VolumePlugin, pv *v1.PersistentVolume)
		options         volume.VolumeOptions
		want            []string // of the error
	}{
		"a new claim of the name":                  {options: again("data", "new"), want: []string{"ns/data", "pvc-uid-data", "no record", "move it away"}},
		"the same claim":                           {options: claimOf("data")},
		"another claim":                            {options: claimOf("other")},
		"its volume is known":                      {options: again("data", "new"), known: []string{"pvc-uid-data"}},
		"nobody can tell":                          {options: again("data", "new"), asked: errors.New("the API does not answer"), want: []string{"does not answer", "pvc-uid-data"}},
		"the records were lost, in a shared base":  {madeBy: "a", records: "a", options: again("data", "new"), want: []string{"ns/data", "pvc-uid-data", "no record"}},
		"others' records, in a shared base":        {madeBy: "b", records: "a", options: again("data", "new")},
		"records without a name, in a shared base": {madeBy: "-", records: "a", options: again("data", "new")},
		"the same claim, in a shared base":         {madeBy: "a", records: "a", options: claimOf("data")},
		"its volume is known, in a shared base":    {madeBy: "a", records: "a", options: again("data", "new"), known: []string{"pvc-uid-data"}},
		"its volume was deleted":                   {options: again("data", "new"), prepare: func(t *testing.T, p volume.VolumePlugin, pv *v1.PersistentVolume) { must(remove(t, p, pv)) }},
		"its directory was moved away": {options: again("data", "new"), prepare: func(t *testing.T, p volume.VolumePlugin, pv *v1.PersistentVolume) {
			must(os.Rename(pv.Spec.HostPath.Path, pv.Spec.HostPath.Path+"-old"))
		}},
		"another directory took its place": {options: again("data", "new"), prepare: func(t *testing.T, p volume.VolumePlugin, pv *v1.PersistentVolume) {
			must(errors.Join(os.Rename(pv.Spec.HostPath.Path, pv.Spec.HostPath.Path+"-old"), os.Mkdir(pv.Spec.HostPath.Path, 0o700)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			base := hostpath.Base{Path: t.TempDir()}
			before := provisioning(base)
			before.Provision.Records = strings.Trim(tc.madeBy, "-")
			p, _ := configured(t, before)
			pv := mustProvision(t, p, claimOf("data"))
			if tc.prepare != nil {
				tc.prepare(t, p, pv)
			}
			base.Own = tc.madeBy == ""
			config := provisioning(base)
			config.Provision.Records = tc.records
			config.Provision.Volumes = func(context.Context) (known []*v1.PersistentVolume, err error) {
				for _, name := range tc.known {
					known = append(known, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}})
				}
				return known, tc.asked
			}
			p, _ = configured(t, config) // another process
			made, err := provision(t, p, tc.options, nil)
			if tc.want == nil {
				if err != nil || made == nil {
					t.Fatalf("err = %v", err)
				}
				return
			}
			wantError(t, "provisioning", err, tc.want...)
			if volume.IsUncertain(err) {
				t.Errorf("it is left open whether something was done: %v", err)
			}
			forgotten, ok := errors.AsType[*volume.Failure](err)
			if ok != (tc.asked == nil) || ok && (forgotten.Cause != hostpath.ErrForgotten || forgotten.Subject != pv.Spec.HostPath.Path) {
				t.Errorf("%+v, %v", forgotten, err)
			}
			if _, err := os.Stat(pv.Spec.HostPath.Path); err != nil {
				t.Error(err)
			}
		})
	}
}
