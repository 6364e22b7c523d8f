// Package kubeapi reads what only the newer of the supported minors of k8s.io/api
// have (0.34 to 0.37 compile), by name: what the minor in use lacks is absent, as it
// is in every object that this minor can decode. It is the only place that may know
// such a name; once a minor is no longer supported, the names that only it lacked go
// from here. The gate builds all packages but examples/virtualkubelet with the oldest.
//
// Like every package below util, it carries no promise of compatibility.
package kubeapi

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// BindMountOptions returns a mount's bindMountOptions (KEP-5855, 1.37).
func BindMountOptions(m *v1.VolumeMount) []string { return field[[]string](m, "BindMountOptions") }

// EmptyDirMode returns an emptyDir's mode (KEP-5502, 1.37).
func EmptyDirMode(s *v1.EmptyDirVolumeSource) *int32 { return field[*int32](s, "Mode") }

// filesSource is a volume's source that is made of files.
type filesSource interface {
	v1.ConfigMapVolumeSource | v1.SecretVolumeSource | v1.DownwardAPIVolumeSource | v1.ProjectedVolumeSource
}

// DefaultUser returns the user who owns a source's files (1.37).
func DefaultUser[S filesSource](s *S) *int64 { return field[*int64](s, "DefaultUser") }

// ownedFile is one file of a volume, or the source of one.
type ownedFile interface {
	v1.KeyToPath | v1.DownwardAPIVolumeFile | v1.ServiceAccountTokenProjection | v1.ClusterTrustBundleProjection |
		v1.PodCertificateProjection
}

// User returns the user who owns a file (1.37).
func User[F ownedFile](f *F) *int64 { return field[*int64](f, "User") }

// UserAnnotations returns the annotations for a pod certificate's signer (1.35).
func UserAnnotations(s *v1.PodCertificateProjection) map[string]string {
	return field[map[string]string](s, "UserAnnotations")
}

// ServiceAccountTokenInSecrets says whether a driver takes tokens with its secrets
// (KEP-5538, 1.35).
func ServiceAccountTokenInSecrets(s *storagev1.CSIDriverSpec) *bool {
	return field[*bool](s, "ServiceAccountTokenInSecrets")
}

// SetImageRef notes the digest of an image volume (KEP-5365, 1.36) in a mount's status.
func SetImageRef(s *v1.VolumeMountStatus, ref string) {
	f := reflect.ValueOf(s).Elem().FieldByName("VolumeStatus")
	for _, name := range []string{"Image", "ImageRef"} {
		if !f.IsValid() {
			return
		}
		if f.IsNil() {
			f.Set(reflect.New(f.Type().Elem()))
		}
		f = f.Elem().FieldByName(name)
	}
	f.SetString(ref)
}

// Set gives a field of what object points to a value, and says whether the minor in
// use has that field. It is for tests of what only newer minors have.
func Set(object any, name string, value any) bool {
	f := reflect.ValueOf(object).Elem().FieldByName(name)
	if !f.IsValid() {
		return false
	}
	f.Set(reflect.ValueOf(value))
	return true
}

// field returns a field of what object points to, or zero where there is none.
func field[T any](object any, name string) T {
	var none T
	f := reflect.ValueOf(object).Elem().FieldByName(name)
	if !f.IsValid() {
		return none
	}
	return f.Interface().(T)
}
