package containerenv

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// Error says which part of a container's environment could not be resolved. No
// error of this package shows a variable's value.
type Error struct {
	Pod       types.NamespacedName
	Container string
	// Field is where the manifest asks for it, such as "env[2]".
	Field string
	// Name is the variable's; empty for envFrom.
	Name string
	Err  error
}

func (e *Error) Error() string {
	what := e.Field
	if e.Name != "" {
		what = fmt.Sprintf("environment variable %q (%s)", e.Name, e.Field)
	}
	return fmt.Sprintf("%s of container %q of pod %s: %v", what, e.Container, e.Pod, e.Err)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// MissingError says that a config map, a secret or a file, or a key of it, is not there
// and is not optional. It matches [volume.ErrNotFound].
type MissingError struct {
	Ref volume.ObjectRef
	// File names the file and its volume, instead of Ref.
	File string
	// Key is empty where the object or the file itself is missing.
	Key string
}

func (e *MissingError) Error() string {
	subject, create := e.Ref.String(), "create it"
	if e.File != "" {
		subject, create = e.File, "have an init container write it"
	}
	if e.Key != "" {
		return fmt.Sprintf("%s has no key %q; add the key, or set optional: true to start without the variable", subject, e.Key)
	}
	return fmt.Sprintf("%s not found; %s, or set optional: true to start without it", subject, create)
}

// Is makes errors.Is(err, volume.ErrNotFound) true.
func (e *MissingError) Is(target error) bool { return target == volume.ErrNotFound }

// ErrEnvFile says that a variable comes from a file in a volume (fileKeyRef,
// KEP-3721), of an agent that has no such file: an init container would write it.
var ErrEnvFile = errors.New("fileKeyRef is not supported here: its file would be written by an init container, which is not run here; give the variable a value, or take it from a config map or secret")

// ErrZeroByte says that a value has a zero byte, which ends a variable for the
// kernel; execve(2).
var ErrZeroByte = errors.New("its value has a zero byte, which no environment variable can have; mount it as a file instead")
