package volume

import (
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodVolume is the identity of one volume of one pod. Most mounters and
// unmounters need it and embed it. Its methods do no I/O. It is a plain value.
type PodVolume struct {
	Host   VolumeHost
	Plugin string
	// Name is the spec's name ([Spec.Name]).
	Name   string
	PodUID types.UID
	// Pod is the pod's namespace and name; empty for an unmounter.
	Pod types.NamespacedName
}

// NewPodVolume returns the identity of a spec's volume in a pod. It refuses names
// and UIDs that could lead out of the pod's directory. The error is an *[Error]
// of NewMounter with an *[InvalidSpecError].
func NewPodVolume(host VolumeHost, plugin string, spec *Spec, pod *v1.Pod) (PodVolume, error) {
	v := PodVolume{Host: host, Plugin: plugin, Name: spec.Name()}
	if pod == nil {
		return PodVolume{}, v.Error("NewMounter", Invalid("pod", "is missing"))
	}
	v.PodUID, v.Pod = pod.UID, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if err := v.check(); err != nil {
		return PodVolume{}, v.Error("NewMounter", err)
	}
	return v, nil
}

// NewUnmountedPodVolume is NewPodVolume for an unmounter, which knows only the
// pod's UID. The error is an *[Error] of NewUnmounter.
func NewUnmountedPodVolume(host VolumeHost, plugin, volumeName string, podUID types.UID) (PodVolume, error) {
	v := PodVolume{Host: host, Plugin: plugin, Name: volumeName, PodUID: podUID}
	if err := v.check(); err != nil {
		return PodVolume{}, v.Error("NewUnmounter", err)
	}
	return v, nil
}

func (v PodVolume) check() error {
	if err := CheckPathSegment("volume name", v.Name); err != nil {
		return err
	}
	return CheckPathSegment("pod UID", string(v.PodUID))
}

// GetPath returns the volume's directory in the pod.
func (v PodVolume) GetPath() string { return v.Host.GetPodVolumeDir(v.PodUID, v.Plugin, v.Name) }

// Error wraps err in an *[Error] that names this volume. Error(op, nil) is nil.
func (v PodVolume) Error(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Plugin: v.Plugin, Volume: v.Name, Pod: v.Pod, PodUID: v.PodUID, Err: err}
}

// maxSegment is NAME_MAX of Linux's file systems, in bytes.
const maxSegment = 255

// CheckPathSegment refuses a string that cannot be the name of one directory
// entry, or cannot be stored in JSON: empty, longer than 255 bytes, "." or "..",
// no UTF-8, or with a slash or a control character. The error is an
// *[InvalidSpecError]; it names the string by the argument what.
func CheckPathSegment(what, s string) error {
	switch {
	case s == "":
		return Invalid(what, "must not be empty")
	case len(s) > maxSegment:
		return Invalid(what, "has %d bytes, at most %d are allowed", len(s), maxSegment)
	case s == "." || s == "..":
		return Invalid(what, "must not be %q", s)
	case !utf8.ValidString(s): // JSON would change it
		return Invalid(what, "must be UTF-8: %q", s)
	case strings.ContainsFunc(s, func(r rune) bool { return r == '/' || unicode.IsControl(r) }):
		return Invalid(what, "must not contain a slash or a control character: %q", s)
	}
	return nil
}
