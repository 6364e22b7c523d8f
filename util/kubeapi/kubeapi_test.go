package kubeapi

import (
	"encoding/json"
	"reflect"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// decoded is an object as a manifest says it.
func decoded[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := json.Unmarshal([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// The digest of an image volume is where the API has it; where it has not, nothing is.
func TestSetImageRef(t *testing.T) {
	status := v1.VolumeMountStatus{Name: "site", MountPath: "/site"}
	SetImageRef(&status, "registry.test/site@sha256:00")
	want := `{"name":"site","mountPath":"/site","volumeStatus":{"image":{"imageRef":"registry.test/site@sha256:00"}}}`
	if _, has := reflect.TypeFor[v1.VolumeMountStatus]().FieldByName("VolumeStatus"); !has {
		want = `{"name":"site","mountPath":"/site"}`
	}
	if got, err := json.Marshal(status); err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

// Where the minor in use has a field, it is read; where not, it is absent, and
// nothing panics.
func TestFieldsOfEveryMinor(t *testing.T) {
	for name, test := range map[string]struct {
		object any
		field  string
		got    any
		want   any
	}{
		"bindMountOptions": {v1.VolumeMount{}, "BindMountOptions",
			BindMountOptions(decoded[v1.VolumeMount](t, `{"bindMountOptions": ["noexec"]}`)), []string{"noexec"}},
		"emptyDir.mode": {v1.EmptyDirVolumeSource{}, "Mode", EmptyDirMode(decoded[v1.EmptyDirVolumeSource](t, `{"mode": 7}`)), new(int32(7))},
		"configMap":     {v1.ConfigMapVolumeSource{}, "DefaultUser", DefaultUser(decoded[v1.ConfigMapVolumeSource](t, `{"defaultUser": 7}`)), new(int64(7))},
		"secret":        {v1.SecretVolumeSource{}, "DefaultUser", DefaultUser(decoded[v1.SecretVolumeSource](t, `{"defaultUser": 7}`)), new(int64(7))},
		"downwardAPI":   {v1.DownwardAPIVolumeSource{}, "DefaultUser", DefaultUser(decoded[v1.DownwardAPIVolumeSource](t, `{"defaultUser": 7}`)), new(int64(7))},
		"projected":     {v1.ProjectedVolumeSource{}, "DefaultUser", DefaultUser(decoded[v1.ProjectedVolumeSource](t, `{"defaultUser": 7}`)), new(int64(7))},
		"key":           {v1.KeyToPath{}, "User", User(decoded[v1.KeyToPath](t, `{"user": 7}`)), new(int64(7))},
		"downward file": {v1.DownwardAPIVolumeFile{}, "User", User(decoded[v1.DownwardAPIVolumeFile](t, `{"user": 7}`)), new(int64(7))},
		"token":         {v1.ServiceAccountTokenProjection{}, "User", User(decoded[v1.ServiceAccountTokenProjection](t, `{"user": 7}`)), new(int64(7))},
		"bundle":        {v1.ClusterTrustBundleProjection{}, "User", User(decoded[v1.ClusterTrustBundleProjection](t, `{"user": 7}`)), new(int64(7))},
		"CSIDriver": {storagev1.CSIDriverSpec{}, "ServiceAccountTokenInSecrets",
			ServiceAccountTokenInSecrets(decoded[storagev1.CSIDriverSpec](t, `{"serviceAccountTokenInSecrets": true}`)), new(true)},
	} {
		want := test.want
		if _, has := reflect.TypeOf(test.object).FieldByName(test.field); !has {
			want = reflect.Zero(reflect.TypeOf(want)).Interface()
			t.Logf("%s: absent in this minor", name)
		}
		if !reflect.DeepEqual(test.got, want) {
			t.Errorf("%s: got %v, want %v", name, test.got, want)
		}
	}
	if got := field[*int64](&struct{ Other int64 }{1}, "User"); got != nil {
		t.Errorf("a field that is not there is %v", got)
	}
}

func TestTrustBundlesOfEitherVersion(t *testing.T) {
	const text = `{"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"signerName": "s", "trustBundle": "p"}}`
	beta := decoded[certificatesv1beta1.ClusterTrustBundle](t, text)
	newest := NewTrustBundle()
	if err := json.Unmarshal([]byte(text), newest); err != nil {
		t.Fatal(err)
	}
	for _, object := range []any{beta, newest} {
		got, ok := TrustBundleOf(object)
		if !ok || got.Name != "n" || got.Labels["a"] != "b" || got.SignerName != "s" || got.PEM != "p" {
			t.Errorf("%T: %+v, %t", object, got, ok)
		}
	}
	_, isBeta := newest.(*certificatesv1beta1.ClusterTrustBundle)
	if version := TrustBundleVersion(); isBeta != (version == certificatesv1beta1.SchemeGroupVersion) || !isBeta && version != certificatesv1.SchemeGroupVersion {
		t.Errorf("%T is said to be of %s", newest, version)
	}
	for _, other := range []any{nil, &v1.Pod{}, v1.Pod{}, metav1.ObjectMeta{}} {
		if _, ok := TrustBundleOf(other); ok {
			t.Errorf("%T is a bundle", other)
		}
	}
}

func TestCompareResourceVersion(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"1", "1", 0}, {"9", "10", -1}, {"10", "9", 1}, {"19", "20", -1}, {"36893488147419103232", "36893488147419103231", 1},
	} {
		if got, err := CompareResourceVersion(test.a, test.b); err != nil || got != test.want {
			t.Errorf("%s and %s: %d, %v, want %d", test.a, test.b, got, err, test.want)
		}
	}
	for _, wrong := range []string{"", "0", "01", "-1", "1a", "a1", "1a1", " 1", "1.0"} {
		_, first := CompareResourceVersion(wrong, "1")
		_, second := CompareResourceVersion("1", wrong)
		if first == nil || second == nil {
			t.Errorf("%q is compared", wrong)
		}
	}
}
