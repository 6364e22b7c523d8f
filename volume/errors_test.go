package volume_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
)

func TestIsUncertain(t *testing.T) {
	plain := errors.New("timed out")
	marked := volume.NothingDone(plain)
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"nil", nil, false},
		{"a plain error", plain, true},
		{"marked", marked, false},
		{"marked twice", volume.NothingDone(marked), false},
		{"refused input", volume.Invalid("nfs.server", "is missing"), false},
		{"marked, then wrapped", fmt.Errorf("mounting: %w", marked), false},
		{"marked, then named", &volume.Error{Op: "SetUp", Err: marked}, false},
		{"wrapped, then marked", volume.NothingDone(&volume.Error{Op: "SetUp", Err: plain}), false},
		{"plain, then named", &volume.Error{Op: "SetUp", Err: plain}, true},
		{"formatted without wrapping", fmt.Errorf("mounting: %v", marked), true},
		{"both joined are marked", errors.Join(marked, volume.Invalid("a", "b")), false},
		{"one of two joined is marked", errors.Join(marked, plain), true},
		{"the other of two joined is marked", errors.Join(plain, marked), true},
		{"joined with nil", errors.Join(nil, marked, nil), false},
		{"joined plain ones, then marked", volume.NothingDone(errors.Join(plain, plain)), false},
		{"joined deep inside", &volume.Error{Op: "SetUp", Err: fmt.Errorf("a: %w", errors.Join(marked, errors.Join(marked, plain)))}, true},
		{"joined deep inside, all marked", &volume.Error{Op: "SetUp", Err: fmt.Errorf("a: %w", errors.Join(marked, errors.Join(marked, marked)))}, false},
		{"several wrapped by a format", fmt.Errorf("%w, and cleaning up failed too: %w", marked, plain), true},
		{"marked error of a mounter", &mount.Error{Op: "mount", Cause: mount.ErrBusy, Err: marked}, true},
		{"a mounter's error, marked", volume.NothingDone(&mount.Error{Op: "mount", Cause: mount.ErrBusy, Err: plain}), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := volume.IsUncertain(tc.err); got != tc.want {
				t.Errorf("IsUncertain(%v) = %v, want %v", tc.err, got, tc.want)
			}
		})
	}
}

func TestNothingDoneChangesNothingElse(t *testing.T) {
	if err := volume.NothingDone(nil); err != nil {
		t.Errorf("NothingDone(nil) = %v", err)
	}
	cause := fmt.Errorf("stat: %w", fs.ErrNotExist)
	err := volume.NothingDone(cause)
	if err.Error() != cause.Error() || !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, cause) {
		t.Errorf("the mark hides the error: %v", err)
	}
}

func TestErrorSaysWhatAndForWhom(t *testing.T) {
	cause := errors.New("the server does not answer")
	for _, tc := range []struct {
		name string
		err  volume.Error
		want string
	}{
		{"all known", volume.Error{Op: "SetUp", Plugin: "kubernetes.io/nfs", Volume: "data", PodUID: "u1",
			Pod: types.NamespacedName{Namespace: "ops", Name: "web"}, Err: cause},
			`SetUp of volume "data" (kubernetes.io/nfs) for pod "ops/web" failed: the server does not answer`},
		{"only the UID is known", volume.Error{Op: "TearDown", Plugin: "kubernetes.io/nfs", Volume: "data", PodUID: "u1", Err: cause},
			`TearDown of volume "data" (kubernetes.io/nfs) for the pod with UID "u1" failed: the server does not answer`},
		{"no pod", volume.Error{Op: "CanAttach", Plugin: "kubernetes.io/nfs", Volume: "data", Err: cause},
			`CanAttach of volume "data" (kubernetes.io/nfs) failed: the server does not answer`},
		{"nothing known", volume.Error{Op: "SetUp", Err: cause}, `SetUp failed: the server does not answer`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.err.Error(); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if !errors.Is(&tc.err, cause) {
				t.Error("the cause is hidden")
			}
		})
	}
}

func TestInvalid(t *testing.T) {
	err := volume.Invalid("spec.volumes[0].nfs.path", "%q must be absolute", "data")
	if e, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || e.Field != "spec.volumes[0].nfs.path" {
		t.Errorf("%v is no InvalidSpecError with its field", err)
	}
	if want := `invalid spec.volumes[0].nfs.path: "data" must be absolute`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestObjectNotFound(t *testing.T) {
	err := fmt.Errorf("set-up: %w", &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("ConfigMap", "ops", "app")})
	if !errors.Is(err, volume.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v does not match ErrNotFound alone", err)
	}
	if !strings.Contains(err.Error(), "ConfigMap ops/app not found") {
		t.Errorf("%q does not name the object", err)
	}
}
