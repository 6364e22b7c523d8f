package mountrecord_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
)

func inlineRecord() *mountrecord.Record {
	return &mountrecord.Record{
		PodUID:       "0a1b-2c",
		Pod:          types.NamespacedName{Namespace: "ops", Name: "web"},
		Volumes:      []string{"data"},
		Plugin:       "kubernetes.io/nfs",
		Path:         "/var/lib/podvol/pods/0a1b-2c/volumes/kubernetes.io~nfs/data",
		Source:       "10.0.0.1:/export",
		InlineVolume: nfsVolume(),
	}
}

func persistentRecord() *mountrecord.Record {
	pv := nfsPV()
	pv.UID = "pv-uid"
	pv.Annotations = map[string]string{"note": "<kept> & unchanged\u2028"}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	pv.Spec.MountOptions = []string{"hard"}
	return &mountrecord.Record{
		PodUID: "0a1b-2c", Pod: types.NamespacedName{Namespace: "ops", Name: "web"}, Volumes: []string{"vol1", "again"},
		Plugin: "kubernetes.io/nfs", Path: "/r/pods/0a1b-2c/volumes/kubernetes.io~nfs/nfs211",
		PersistentVolume: pv, ReadOnly: true, SELinuxLabel: "system_u:object_r:container_file_t:s0:c1,c2",
	}
}

func nodeRecord() *mountrecord.Record {
	r := inlineRecord()
	r.NodeName = "node1"
	return r
}

func detachedRecord() *mountrecord.Record {
	r := inlineRecord()
	r.Detached = &lazyunmount.Detachment{At: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Source: r.Source, FSType: "nfs4", Target: r.Path, Superblocks: []string{"kernel boot 0:45 17"}}
	return r
}

func encode(t *testing.T, r *mountrecord.Record) []byte {
	t.Helper()
	data, err := mountrecord.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRecordRoundTrip(t *testing.T) {
	for name, r := range map[string]*mountrecord.Record{"inline": inlineRecord(), "PersistentVolume": persistentRecord(), "detached": detachedRecord(), "of a node": nodeRecord()} {
		t.Run(name, func(t *testing.T) {
			data := encode(t, r)
			if strings.Contains(string(data), "\n") {
				t.Errorf("a record of several lines: %q", data)
			}
			got, err := mountrecord.Decode(data, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(r.Spec(), got.Spec()); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

// Nodes in the field hold records of this form; a change to what is written needs a
// new schema version and code that reads the old one.
func TestFormOfRecords(t *testing.T) {
	const golden = `{"version":2,"record":{"podUID":"0a1b-2c","pod":{"Namespace":"ops","Name":"web"},"volumes":["data"],"plugin":"kubernetes.io/nfs","path":"/var/lib/podvol/pods/0a1b-2c/volumes/kubernetes.io~nfs/data","source":"10.0.0.1:/export","inlineVolume":{"name":"data","nfs":{"server":"10.0.0.1","path":"/export"}}}}`
	if diff := cmp.Diff(golden, string(encode(t, inlineRecord()))); diff != "" {
		t.Errorf("what is written (-want +got):\n%s", diff)
	}
	got, err := mountrecord.Decode([]byte(golden), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(inlineRecord(), got); diff != "" {
		t.Errorf("what is read (-want +got):\n%s", diff)
	}
}

func TestRecordLeavesOutManagedFields(t *testing.T) {
	r := persistentRecord()
	r.PersistentVolume.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsType: "FieldsV1"}}
	data := encode(t, r)
	if strings.Contains(string(data), "managedFields") || strings.Contains(string(data), "kubectl") {
		t.Errorf("the record holds them: %s", data)
	}
	if len(r.PersistentVolume.ManagedFields) != 1 {
		t.Error("the caller's PersistentVolume was changed")
	}
	got, err := mountrecord.Decode(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(persistentRecord(), got); diff != "" {
		t.Errorf("something else was left out (-want +got):\n%s", diff)
	}
}

func TestEncodeRecordRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*mountrecord.Record){
		"no pod UID":                  func(r *mountrecord.Record) { r.PodUID = "" },
		"a pod UID that leads out":    func(r *mountrecord.Record) { r.PodUID = "../x" },
		"no volume":                   func(r *mountrecord.Record) { r.Volumes = nil },
		"a volume that leads out":     func(r *mountrecord.Record) { r.Volumes = []string{"v", "a/../b"} },
		"no path":                     func(r *mountrecord.Record) { r.Path = "" },
		"a relative path":             func(r *mountrecord.Record) { r.Path = "var/lib/data" },
		"a path with ..":              func(r *mountrecord.Record) { r.Path = "/var/lib/../data" },
		"a path that leads above /":   func(r *mountrecord.Record) { r.Path = "/../data" },
		"a path with a final slash":   func(r *mountrecord.Record) { r.Path = "/var/lib/data/" },
		"a path with a doubled slash": func(r *mountrecord.Record) { r.Path = "/var//lib" },
		"a path with a NUL":           func(r *mountrecord.Record) { r.Path = "/var/\x00" },
		"a path that is no UTF-8":     func(r *mountrecord.Record) { r.Path = "/var/\xff" },
		"no spec":                     func(r *mountrecord.Record) { r.InlineVolume = nil },
		"two specs":                   func(r *mountrecord.Record) { r.PersistentVolume = nfsPV() },
		"a spec whose name leads out": func(r *mountrecord.Record) { r.InlineVolume.Name = "../../etc" },
		"a spec without name":         func(r *mountrecord.Record) { r.InlineVolume.Name = "" },
	} {
		t.Run(name, func(t *testing.T) {
			r := inlineRecord()
			spoil(r)
			data, err := mountrecord.Encode(r)
			if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || data != nil {
				t.Errorf("got %q, %v", data, err)
			}
		})
	}
	for _, plugin := range []string{"", "nfs", "../nfs", "kubernetes.io~nfs"} {
		r := inlineRecord()
		r.Plugin = plugin
		data, err := mountrecord.Encode(r)
		if !errors.Is(err, volume.ErrPluginName) || data != nil {
			t.Errorf("plugin %q: got %q, %v", plugin, data, err)
		}
	}
	root := inlineRecord()
	root.Path = "/" // a hostPath may be just this
	encode(t, root)
}

func confirmation(t *testing.T, c mountrecord.Confirmation) string {
	t.Helper()
	line, err := mountrecord.EncodeConfirmation(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

func TestConfirmations(t *testing.T) {
	c := mountrecord.Confirmation{At: time.Date(2030, 1, 2, 3, 4, 5, 600, time.UTC), Took: 1500 * time.Millisecond, MountPoint: true}
	text := confirmation(t, c)
	if want := `{"at":"2030-01-02T03:04:05.0000006Z","took":1500000000,"mountPoint":true}`; text != want {
		t.Errorf("written %q, want %q", text, want)
	}
	for _, tc := range []struct {
		name, noted string
		want        *mountrecord.Confirmation
	}{
		{"none", "", nil},
		{"one", text, &c},
		{"with a field of a newer version", strings.Replace(text, "}", `,"x":1}`, 1), &c},
		{"truncated", text[:len(text)/2], nil},
		{"garbage", "\x00\x00\x00", nil},
		{"null", "null", nil},
		{"something else in JSON", "{}", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := mountrecord.Decode(encode(t, inlineRecord()), []byte(tc.noted))
			if err != nil {
				t.Fatal(err)
			}
			want := inlineRecord()
			want.Confirmed = tc.want
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	// It is no part of the record: writing the record again forgets it.
	confirmed := inlineRecord()
	confirmed.Confirmed = &c
	if diff := cmp.Diff(string(encode(t, inlineRecord())), string(encode(t, confirmed))); diff != "" {
		t.Errorf("the confirmation is in the record:\n%s", diff)
	}
}

// What a block volume's confirmation says comes back.
func TestConfirmationOfADevice(t *testing.T) {
	c := mountrecord.Confirmation{At: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Took: time.Second,
		Device: &mountrecord.MappedDevice{Node: "/dev/sdb", Bind: "/r/plugins/kubernetes.io~local-volume/volumeDevices/pv/0a1b-2c"}}
	line, err := mountrecord.EncodeConfirmation(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mountrecord.Decode(encode(t, persistentRecord()), line)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&c, r.Confirmed); diff != "" {
		t.Error(diff)
	}
}

func nfsVolume() *v1.Volume {
	return &v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/export"}}}
}

func nfsPV() *v1.PersistentVolume {
	pv := &v1.PersistentVolume{}
	pv.Name = "nfs211"
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "10.20.172.211", Path: "/nfs"}
	return pv
}
