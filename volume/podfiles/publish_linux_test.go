package podfiles_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/atomicdir"
	"github.com/podvol/podvol/volume/podfiles"
)

// A set is on disk as it was rendered, byte for byte and mode for mode, on tmpfs and ext4, as
// root with owners and as an ordinary user without; an update removes the keys that went.
func TestASetOnDisk(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		for name, mount := range map[string]func(t testing.TB, dir string){
			"tmpfs": mounttest.MountTmpfs,
			"ext4":  mounttest.MountExt4,
		} {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				mount(t, dir)
				t.Run("root", func(t *testing.T) {
					publishTwice(t, testtool.MkdirAll(t, dir, "root"), new(int64(1000)), new(int64(2000)))
				})
				t.Run("an ordinary user", func(t *testing.T) {
					own := testtool.MkdirAll(t, dir, "user")
					if err := errors.Join(os.Chown(own, 65534, 65534), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
						t.Fatal(err)
					}
					asNobody(t, func() { publishTwice(t, own, nil, nil) })
				})
			})
		}
	})
}

// asNobody runs f as an ordinary user, on a thread that ends with it.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		// Directly: the wrappers of package syscall act on all threads.
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, 65534, 65534, 65534); errno != 0 {
				t.Errorf("becoming an ordinary user: %v", errno)
				return
			}
		}
		f()
	}()
	<-done
}

// publishTwice uses no method of t that ends the test: it may run in another goroutine.
func publishTwice(t *testing.T, dir string, uid, gid *int64) {
	first := map[string]podfiles.File{
		"key":        {Data: []byte("one"), Mode: 0o400, UID: uid, GID: gid},
		"etc/a/deep": {Data: []byte{0, 0xff}, Mode: 0o644},
		"empty":      {Mode: 0o777},
	}
	second := map[string]podfiles.File{"key": {Data: []byte("two"), Mode: 0o440, GID: gid}, "etc/b": {Mode: 0o600}}
	var publisher atomicdir.Publisher
	for i, files := range []map[string]podfiles.File{first, first, second} {
		changed, err := publisher.Publish(context.Background(), dir, (&podfiles.Set{Files: files}).Files)
		if err != nil || changed != (i != 1) {
			t.Errorf("publication %d: changed %v, %v", i, changed, err)
		}
		want := make(map[string]string)
		for p, f := range files {
			want[p] = fmt.Sprintf("%04o %d:%d %q", f.Mode, orOwn(f.UID, os.Geteuid()), orOwn(f.GID, os.Getegid()), f.Data)
		}
		if got := onDisk(t, dir); !maps.Equal(got, want) {
			t.Errorf("publication %d: on disk %v\nwant %v", i, got, want)
		}
	}
}

func orOwn(id *int64, own int) int64 {
	if id == nil {
		return int64(own)
	}
	return *id
}

// onDisk are the files of the newest version.
func onDisk(t *testing.T, dir string) map[string]string {
	all := make(map[string]string)
	data, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
	if err != nil {
		t.Error(err)
		return nil
	}
	err = filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		all[rel] = fmt.Sprintf("%04o %d:%d %q", st.Mode&0o7777, st.Uid, st.Gid, content)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all
}
