package host

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// heldSetattr holds mount_setattr(2) up, and says what its user namespace is
// when it goes on.
type heldSetattr struct {
	mountapi.Calls
	entered, release chan struct{}
	namespace        chan string
}

func (h heldSetattr) MountSetattr(fd int, recursive bool, change unix.MountAttr) error {
	if change.Attr_set&unix.MOUNT_ATTR_IDMAP == 0 {
		return h.Calls.MountSetattr(fd, recursive, change)
	}
	h.entered <- struct{}{}
	<-h.release
	h.namespace <- linkOf(int(change.Userns_fd))
	return unix.EINVAL
}

func linkOf(fd int) string {
	link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return err.Error()
	}
	return link
}

// userNamespaces counts this process' open user namespaces.
func userNamespaces(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Error(err)
	}
	n := 0
	for _, e := range entries {
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(link, "user:[") {
			n++
		}
	}
	return n
}

// awaitUserNamespaces waits until n are open.
func awaitUserNamespaces(t *testing.T, n int) {
	for userNamespaces(t) != n && t.Context().Err() == nil {
		runtime.Gosched()
	}
}

// A call that is no longer waited for keeps its user namespace, and one that
// was never begun leaves none open.
func TestAbandonedIDMapsCloseTheirNamespaceOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		ids := IDMap{[]IDMapping{{Size: 1}}, []IDMapping{{Size: 1}}}
		source, target := t.TempDir(), t.TempDir()
		before := userNamespaces(t)
		for name, call := range map[string]func(*Mounter, context.Context) error{
			"a mount": func(m *Mounter, ctx context.Context) error {
				return m.BindIDMapped(ctx, mount.Request{Source: source, Target: target, Options: []string{"bind"}}, ids)
			},
			"a probe": func(m *Mounter, ctx context.Context) error { return m.ProbeIDMap(ctx, source) },
		} {
			held := heldSetattr{mountapi.Kernel{}, make(chan struct{}), make(chan struct{}), make(chan string, 1)}
			m := New(Config{})
			m.api = held
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-held.entered
				cancel()
			}()
			if err := call(m, ctx); err == nil {
				t.Errorf("%s was not abandoned", name)
			}
			ctx, cancel = context.WithCancel(t.Context())
			go func() {
				awaitUserNamespaces(t, before+2)
				cancel()
			}()
			if err := call(m, ctx); err == nil {
				t.Errorf("%s began beside another", name)
			}
			if n := userNamespaces(t); n != before+1 {
				t.Errorf("%s: %d user namespaces are open, and only that of the running call should be", name, n-before)
			}
			close(held.release)
			if link := <-held.namespace; !strings.HasPrefix(link, "user:[") {
				t.Errorf("%s: the call's user namespace is %s", name, link)
			}
			awaitUserNamespaces(t, before)
		}
	})
}
