package statmount

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// event is one of fanotify's, as linux/fanotify.h lays it out.
func event(mask uint64, ids ...uint64) []byte {
	e := make([]byte, eventFixedSize)
	for _, id := range ids {
		info := make([]byte, infoMountSize)
		info[0] = unix.FAN_EVENT_INFO_TYPE_MNT
		binary.NativeEndian.PutUint16(info[infoLength:], infoMountSize)
		binary.NativeEndian.PutUint64(info[infoMountID:], id)
		e = append(e, info...)
	}
	binary.NativeEndian.PutUint32(e, uint32(len(e)))
	e[4] = unix.FANOTIFY_METADATA_VERSION
	binary.NativeEndian.PutUint16(e[eventMetadata:], eventFixedSize)
	binary.NativeEndian.PutUint64(e[eventMask:], mask)
	return e
}

func TestEvents(t *testing.T) {
	other := event(unix.FAN_MNT_ATTACH, 9)
	other[eventFixedSize] = unix.FAN_EVENT_INFO_TYPE_PIDFD
	endless := event(unix.FAN_MNT_ATTACH, 9)
	binary.NativeEndian.PutUint16(endless[eventFixedSize+infoLength:], 0)
	for name, test := range map[string]struct {
		read     []byte
		ids      []uint64
		complete bool
	}{
		"nothing":            {complete: true},
		"several":            {slices.Concat(event(unix.FAN_MNT_ATTACH, 3), event(unix.FAN_MNT_DETACH|unix.FAN_MNT_ATTACH, 4), event(unix.FAN_MNT_DETACH, 3)), []uint64{3, 4, 3}, true},
		"other information":  {slices.Concat(other, event(unix.FAN_MNT_DETACH, 5)), []uint64{5}, true},
		"overflow":           {slices.Concat(event(unix.FAN_MNT_ATTACH, 3), event(unix.FAN_Q_OVERFLOW)), []uint64{3}, false},
		"cut off":            {event(unix.FAN_MNT_ATTACH, 3)[:30], nil, false},
		"without a length":   {make([]byte, 48), nil, false},
		"information of 0 B": {endless, nil, false},
	} {
		ids, complete := Events(test.read, nil)
		if !slices.Equal(ids, test.ids) || complete != test.complete {
			t.Errorf("%s: %v, %v; want %v, %v", name, ids, complete, test.ids, test.complete)
		}
	}
}

func FuzzEvents(f *testing.F) {
	f.Add(event(unix.FAN_MNT_ATTACH, 1, 2))
	f.Fuzz(func(t *testing.T, read []byte) {
		if ids, _ := Events(read, nil); len(ids)*infoMountSize > len(read) {
			t.Errorf("%d ids of %d bytes", len(ids), len(read))
		}
	})
}

// missing reports whether the kernel has no such call, as far as the error of
// the call made in the plainest way tells.
func missing(t *testing.T) bool {
	_, err := Host{}.List(0, make([]uint64, 1))
	if errors.Is(err, unix.ENOSYS) {
		t.Log("this kernel has no listmount: only that it says so is tested")
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	return false
}

func TestHost(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if missing(t) {
			return
		}
		var kernel Host
		dir := filepath.Join(t.TempDir(), "a b\nc")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		events, watchErr := kernel.Watch()
		if err := unix.Mount("the source", dir, "tmpfs", unix.MS_NOSUID|unix.MS_RDONLY, "size=64k"); err != nil {
			t.Fatal(err)
		}
		ids := listInSteps(t, 3)
		if whole := listInSteps(t, 1000); !slices.Equal(ids, whole) {
			t.Errorf("in steps %v, at once %v", ids, whole)
		}
		newest := ids[len(ids)-1]
		if _, err := kernel.Read(newest, Root|Target, make([]byte, 520)); !errors.Is(err, unix.EOVERFLOW) {
			t.Errorf("with a small buffer: %v", err)
		}
		if _, err := kernel.Read(newest, Root, make([]byte, 10)); !errors.Is(err, unix.EOVERFLOW) {
			t.Errorf("with a tiny buffer: %v", err)
		}
		want := SuperBasic | MountBasic | Root | Target | Type
		r, err := kernel.Read(newest, want, make([]byte, 4096))
		if err != nil {
			t.Fatal(err)
		}
		if !r.Has(want) || r.ID() != newest || string(r.Target()) != dir || string(r.Root()) != "/" || string(r.Type()) != "tmpfs" ||
			r.Attributes()&unix.MOUNT_ATTR_NOSUID == 0 || r.SuperFlags()&unix.MS_RDONLY == 0 || r.Source() != nil {
			t.Errorf("target %q, root %q, type %q, attributes %x, flags %x", r.Target(), r.Root(), r.Type(), r.Attributes(), r.SuperFlags())
		}
		if line := "\n" + strconv.Itoa(r.OldID()) + " " + strconv.Itoa(r.OldParent()) + " "; !strings.Contains(mountinfo(t), line) {
			t.Errorf("mountinfo has no line that begins with %q", line)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := kernel.Read(newest, want, make([]byte, 4096)); !IsGone(err) {
			t.Errorf("after the unmount: %v", err)
		}
		if watchErr != nil {
			t.Logf("no events from this kernel: %v", watchErr)
			return
		}
		defer events.Close()
		read := make([]byte, 4096)
		n, err := events.Read(read)
		if err != nil {
			t.Fatal(err)
		}
		if told, complete := Events(read[:n], nil); !complete || !slices.Contains(told, newest) {
			t.Errorf("events of %v, %v; want %d", told, complete, newest)
		}
		if _, err := unix.Read(int(events.Fd()), read); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("reading on: %v", err)
		}
	})
}

func listInSteps(t *testing.T, step int) (ids []uint64) {
	t.Helper()
	part := make([]uint64, step)
	for after := uint64(0); ; after = ids[len(ids)-1] {
		n, err := Host{}.List(after, part)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, part[:n]...)
		if n < step {
			return ids
		}
	}
}

func mountinfo(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return "\n" + string(content)
}
