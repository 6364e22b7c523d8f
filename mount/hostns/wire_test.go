package hostns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func pair(t *testing.T) (a, b *wire) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testtool.Must(t, err)
	for i, w := range []**wire{&a, &b} {
		*w, err = newWire(os.NewFile(uintptr(fds[i]), "end"))
		testtool.Must(t, err)
		t.Cleanup(func() { (*w).conn.Close() })
	}
	return a, b
}

// Values arrive whole and in order, with their descriptors, whatever their size and bytes.
func TestWire(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	testtool.Must(t, err)
	defer r.Close()
	large := answer{ID: 7, Paths: slices.Repeat([]string{strings.Repeat("x", 1000)}, 5000)}
	odd := question{ID: 1, Op: opMount, Path: "/\xff\n", Request: mount.Request{Source: "\xfe", Sensitive: []string{"password=\n"}}}
	var sending sync.WaitGroup
	sending.Go(func() {
		defer w.Close()
		for _, err := range []error{a.send(odd, w), a.send(large, nil), a.send(question{Op: opAll}, nil)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	var q question
	file, err := b.receive(&q)
	testtool.Must(t, err)
	if file == nil || !cmp.Equal(q, odd) {
		t.Fatalf("%v: %s", file, cmp.Diff(odd, q))
	}
	var got answer
	if none, err := b.receive(&got); none != nil || err != nil || !cmp.Equal(got, large) {
		t.Errorf("the large one: %v, %v", none, err)
	}
	var last question
	if _, err := b.receive(&last); err != nil || last.Op != opAll {
		t.Errorf("the last one: %+v, %v", last, err)
	}
	sending.Wait()
	_, err = file.WriteString("by the descriptor")
	testtool.Must(t, err)
	file.Close()
	if text, err := io.ReadAll(r); string(text) != "by the descriptor" {
		t.Errorf("%q, %v", text, err)
	}
	a.conn.Close()
	if _, err := b.receive(&last); unlessEnded(err) != nil || err == nil {
		t.Errorf("after the end: %v", err)
	}
}

func TestWireRefusesNonsense(t *testing.T) {
	for _, text := range []string{"\xff\xff\xff\xff", "\x03\x00\x00\x00abc", "\x05\x00\x00\x00ab"} {
		a, b := pair(t)
		_, err := a.conn.Write([]byte(text))
		testtool.Must(t, err)
		a.conn.Close()
		if _, err := b.receive(&question{}); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestErrorsComeAcross(t *testing.T) {
	across := func(err error) error {
		a, b := pair(t)
		testtool.Must(t, a.send(answer{Failed: send(err)}, nil))
		var got answer
		_, failure := b.receive(&got)
		testtool.Must(t, failure)
		return got.Failed.received(t.Context())
	}
	if err := across(nil); err != nil {
		t.Errorf("no error: %v", err)
	}
	known := &mount.Error{
		Op: mount.OpMount, Source: "s", Target: "/t", FSType: "nfs", Options: []string{"ro"}, Kernel: "k", Option: "o", Capability: "c", Command: "mount x", Output: "out",
		Cause: mount.ErrBusy, Holders: []mount.Holder{{PID: 1, Command: "x", How: "y"}}, Also: []mount.Cause{mount.ErrLocked}, Distribution: []string{"debian"}, Uncertain: true,
		Err: fmt.Errorf("call: %w", unix.EBUSY),
	}
	err := across(known)
	if err.Error() != known.Error() || !errors.Is(err, unix.EBUSY) || !errors.Is(err, mount.ErrLocked) {
		t.Errorf("got\n%v\nwant\n%v", err, known)
	}
	got, _ := errors.AsType[*mount.Error](err)
	got.Err, known.Err = nil, nil
	if diff := cmp.Diff(known, got); diff != "" {
		t.Error(diff)
	}
	if err := across(&fs.PathError{Op: "open", Path: "/x", Err: unix.ENOENT}); !errors.Is(err, fs.ErrNotExist) || err.Error() != "open /x: no such file or directory" {
		t.Errorf("a missing file: %v", err)
	}
	if err := across(errors.Join(context.Canceled, unix.EIO)); !errors.Is(err, context.Canceled) || !errors.Is(err, unix.EIO) {
		t.Errorf("a joined one: %v", err)
	}
}

// The cause of the caller's context is the caller's own; the child cannot know it.
func TestCauseOfTheCaller(t *testing.T) {
	mine := errors.New("the pod was deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(mine)
	if err := send(context.Canceled).received(ctx); !errors.Is(err, mine) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := send(unix.EIO).received(ctx); errors.Is(err, mine) {
		t.Errorf("it failed before: %v", err)
	}
}

// Whatever can be configured reaches the child, but for what cannot be sent.
func TestAllSettingsAreSent(t *testing.T) {
	var c Config
	v := reflect.ValueOf(&c.Host).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int:
			f.SetInt(2)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"x"}))
		case reflect.Pointer, reflect.Interface: // the logger and the resolver
		default:
			t.Errorf("the field %s is of a kind that this test does not know", v.Type().Field(i).Name)
		}
	}
	if diff := cmp.Diff(c.Host, c.settings().config(), cmp.Comparer(func(a, b host.Resolver) bool { return true })); diff != "" {
		t.Error(diff)
	}
}

func TestHierarchyOfCgroups(t *testing.T) {
	mounts := []mount.Entry{
		{Target: "/nested", Root: "/docker/x", FSType: "cgroup2"},
		{Target: "/unified", Root: "/", FSType: "cgroup2"},
		{Target: "/cpu", Root: "/", FSType: "cgroup", SuperOptions: []string{"rw", "cpu", "cpuacct"}},
		{Target: "/systemd", Root: "/", FSType: "cgroup", SuperOptions: []string{"rw", "name=systemd"}},
	}
	for controllers, want := range map[string]string{"": "/unified", "cpu,cpuacct": "/cpu", "name=systemd": "/systemd", "memory": ""} {
		if got := hierarchy(controllers, mounts); got != want {
			t.Errorf("%q is at %q, want %q", controllers, got, want)
		}
	}
}

func TestEnvironmentOfTheChild(t *testing.T) {
	got := environment([]string{"PATH=/busybox", "A=b"})
	if want := []string{"A=b", hostPath}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
