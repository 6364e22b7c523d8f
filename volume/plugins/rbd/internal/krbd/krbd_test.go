package krbd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
)

const (
	token      = "0123456789abcdef0123456789abcdef"
	otherToken = "00000000000000000000000000000000"
)

// bus is a fake /sys/bus/rbd: what a kernel does that is asked to map and unmap.
type bus struct {
	t     *testing.T
	dir   string
	lines []string
	err   error
	hang  chan struct{} // nil: calls do not hang
	next  int
}

func newBus(t *testing.T) (*bus, *krbd.Client) {
	b := &bus{t: t, dir: t.TempDir()}
	for _, name := range []string{"add", "add_single_major", "remove", "remove_single_major"} {
		b.put(name, "")
	}
	b.put("supported_features", "0x1bf\n")
	if err := os.Mkdir(filepath.Join(b.dir, "devices"), 0o700); err != nil {
		t.Fatal(err)
	}
	return b, &krbd.Client{Bus: b.dir, Dev: "/dev", Write: b.write}
}

func (b *bus) put(name, text string) {
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
		b.t.Error(err)
	}
}

// add shows a mapping.
func (b *bus) add(line string) {
	dir := filepath.Join("devices", fmt.Sprint(b.next))
	if err := os.Mkdir(filepath.Join(b.dir, dir), 0o700); err != nil {
		b.t.Error(err)
	}
	b.put(dir+"/size", "1073741824\n")
	b.put(dir+"/major", "251\n")
	b.put(dir+"/minor", fmt.Sprintln(16*b.next))
	b.put(dir+"/config_info", line+"\n")
	b.next++
}

func (b *bus) write(file, text string) error {
	b.lines = append(b.lines, filepath.Base(file)+" "+text)
	if b.hang != nil {
		<-b.hang
	}
	switch {
	case b.err != nil:
		return b.err
	case filepath.Base(file) == "add_single_major":
		b.add(text)
	default:
		return os.RemoveAll(filepath.Join(b.dir, "devices", text))
	}
	return nil
}

func request() krbd.Request {
	return krbd.Request{Monitors: "10.0.0.1:6789,[::1]:6789", User: "web", Key: "QUJD", Pool: "p", Image: "i", Token: token}
}

// The images of others, of the same name too, are left alone.
func TestMapAndUnmap(t *testing.T) {
	b, c := newBus(t)
	b.add("10.0.0.1:6789,[::1]:6789 name=web,key=client.web p i -")
	b.add("10.0.0.1:6789 name=web,key=podvol-" + otherToken + ",exclusive p i -")
	b.add("half")
	for range 2 {
		d, err := c.Map(t.Context(), request())
		if err != nil || d.ID != "3" || d.Path != "/dev/rbd3" || d.Size != 1<<30 || d.Number != unix.Mkdev(251, 48) || d.ReadOnly {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	for range 2 {
		if err := c.Unmap(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	r := request()
	r.ReadOnly = true
	if d, err := c.Map(t.Context(), r); err != nil || !d.ReadOnly {
		t.Errorf("%+v, %v", d, err)
	}
	want := []string{
		"add_single_major 10.0.0.1:6789,[::1]:6789 name=web,key=podvol-" + token + ",exclusive p i -",
		"remove_single_major 3",
		"add_single_major 10.0.0.1:6789,[::1]:6789 name=web,key=podvol-" + token + ",ro p i -",
	}
	if got := strings.Join(b.lines, "\n"); got != strings.Join(want, "\n") || strings.Contains(got, "QUJD") {
		t.Errorf("the kernel was asked\n%s", got)
	}
	if left, err := os.ReadDir(filepath.Join(b.dir, "devices")); err != nil || len(left) != 4 {
		t.Errorf("%d mappings, %v", len(left), err)
	}
}

func TestFailures(t *testing.T) {
	for errno, want := range map[unix.Errno]struct {
		cause error
		words string
	}{
		unix.ENOENT:    {krbd.ErrNoImage, "rbd info p/i"},
		unix.EPERM:     {krbd.ErrDenied, "ceph auth get client.web"},
		unix.EACCES:    {krbd.ErrDenied, "client.web"},
		unix.ETIMEDOUT: {krbd.ErrUnreachable, "10.0.0.1:6789"},
		unix.EIO:       {krbd.ErrUnreachable, "10.0.0.1:6789"},
		unix.ENXIO:     {krbd.ErrFeatures, "rbd feature disable p/i journaling"},
		unix.EINVAL:    {krbd.ErrNoLock, "rbd feature enable p/i exclusive-lock"},
		unix.EROFS:     {volume.ErrInUse, "rbd lock list p/i"},
		unix.EBUSY:     {volume.ErrInUse, "rbd lock list p/i"},
		unix.ENOMEM:    {krbd.ErrRefused, "dmesg"},
	} {
		b, c := newBus(t)
		b.err = &os.PathError{Op: "write", Path: "add", Err: errno}
		_, err := c.Map(t.Context(), request())
		f, ok := errors.AsType[*volume.Failure](err)
		if !ok || !errors.Is(err, want.cause) || volume.IsUncertain(err) || !strings.Contains(err.Error()+f.Advice(), want.words) || strings.Contains(err.Error(), "QUJD") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	b, c := newBus(t)
	b.err = &os.PathError{Op: "open", Path: "/sys/bus/rbd/add", Err: unix.EROFS}
	if _, err := c.Map(t.Context(), request()); !errors.Is(err, krbd.ErrDenied) || errors.Is(err, volume.ErrInUse) {
		t.Errorf("a container that may not write to /sys: %v", err)
	}
	b.add("10.0.0.1:6789 name=web,key=podvol-" + token + " p i -")
	b.err = unix.EBUSY
	if err := c.Unmap(t.Context(), token); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("unmap: %v", err)
	}
}

func TestKernelWithoutTheClient(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	c := &krbd.Client{Bus: filepath.Join(t.TempDir(), "none"), Write: func(string, string) error { return unix.ENOENT }}
	if _, mapped, err := c.Find(token); mapped || err != nil {
		t.Errorf("%v, %v", mapped, err)
	}
	if err := c.Unmap(t.Context(), token); err != nil {
		t.Error(err)
	}
}

// A cluster that hangs holds a call no longer than its context, and the next call for the token
// comes after it.
func TestHungCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := newBus(t)
		b.hang = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Map(ctx, request()); !errors.Is(err, context.DeadlineExceeded) || !volume.IsUncertain(err) {
			t.Errorf("map: %v", err)
		}
		if _, err := c.Map(ctx, request()); !errors.Is(err, context.DeadlineExceeded) || volume.IsUncertain(err) {
			t.Errorf("map after the end: %v", err)
		}
		done := make(chan error)
		go func() { done <- c.Unmap(t.Context(), token) }()
		synctest.Wait()
		close(b.hang)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, mapped, err := c.Find(token); mapped || err != nil {
			t.Errorf("%v, %v", mapped, err)
		}
		if len(b.lines) != 2 {
			t.Errorf("%q", b.lines)
		}
	})
}

func FuzzConfigInfo(f *testing.F) {
	f.Add("10.0.0.1:6789 name=web,key=podvol-" + token + " p i -")
	f.Add("")
	f.Add("a key=podvol-" + token)
	f.Fuzz(func(t *testing.T, line string) {
		b, c := newBus(t)
		b.add(line)
		d, mapped, err := c.Find(token)
		if err != nil || mapped != (d.ID == "0") || mapped && !strings.Contains(line, "key=podvol-"+token) {
			t.Errorf("%q: %+v, %v, %v", line, d, mapped, err)
		}
	})
}
