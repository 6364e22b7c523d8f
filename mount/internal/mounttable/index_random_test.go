package mounttable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// poorKernel is a kernel from which single calls were taken away.
type poorKernel struct {
	statmount.Host
	list, read, watch bool
	fields            statmount.Fields
	reads             *int // counts those of single mounts
}

func (k poorKernel) List(after uint64, ids []uint64) (int, error) {
	if k.list {
		return 0, os.NewSyscallError("listmount", unix.ENOSYS)
	}
	return k.Host.List(after, ids)
}

func (k poorKernel) Read(id uint64, want statmount.Fields, buffer []byte) (statmount.Record, error) {
	if k.reads != nil {
		*k.reads++
	}
	if k.read {
		return nil, os.NewSyscallError("statmount", unix.ENOSYS)
	}
	return k.Host.Read(id, want&^k.fields, buffer)
}

func (k poorKernel) Watch() (*os.File, error) {
	if k.watch {
		return nil, os.NewSyscallError("fanotify_init", unix.EINVAL)
	}
	return k.Host.Watch()
}

// world is a random mount table: a tmpfs with directories that are mounted,
// bound, moved, remounted, renamed and removed.
type world struct {
	t    *testing.T
	rand *rand.Rand
	base string
	log  []string
	// seen counts the mounts of the tables that were compared.
	seen int
	// renames allows to rename and remove directories.
	renames bool
}

// names are such as the kernel escapes, and such as look escaped.
var worldNames = []string{"a", "b c", "d\ne", `f\g`, "h#i", "j\tk", `l\040m`, "no"}

func newWorld(t *testing.T, seed uint64, renames bool) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 4)), base: t.TempDir(), renames: renames}
	testtool.Must(t, unix.Mount("base", w.base, "tmpfs", 0, "size=4m"))
	w.fill()
	return w
}

func (w *world) pick(from []string) string { return from[w.rand.IntN(len(from))] }

// fill makes the directories that are missing, and links to some.
func (w *world) fill() {
	_ = unix.Mount("", w.base, "", unix.MS_REMOUNT, "") // a remount of a bind of it may have made it read-only
	for _, a := range worldNames {
		for _, b := range worldNames {
			if _, err := os.Lstat(filepath.Join(w.base, a, b, "same")); err != nil {
				_ = os.MkdirAll(filepath.Join(w.base, a, b, "same"), 0o755) // in a read-only mount there will be none
			}
		}
	}
	_ = os.Symlink(filepath.Join(w.base, "a"), filepath.Join(w.base, "link"))
	_ = os.Symlink("../b c/same/../d\ne", filepath.Join(w.base, "a", "up"))
}

// somewhere is a path that may or may not exist.
func (w *world) somewhere() string {
	p := w.base
	for range 1 + w.rand.IntN(3) {
		p = filepath.Join(p, w.pick(append(slices.Clone(worldNames), "same", "link", "up")))
	}
	return p
}

func (w *world) mounts() []mount.Entry {
	entries, err := Uncached{}.All()
	testtool.Must(w.t, err)
	return slices.DeleteFunc(entries, func(e mount.Entry) bool { return !pathin.In(w.base, e.Target) || e.Target == w.base })
}

func (w *world) target() string {
	if mounts := w.mounts(); len(mounts) > 0 {
		return mounts[w.rand.IntN(len(mounts))].Target
	}
	return filepath.Join(w.base, "a")
}

// step does one random thing, which may fail. It reports whether the kernel
// gives a signal of it.
func (w *world) step() (signalled bool) {
	at, other := w.somewhere(), w.somewhere()
	what := w.rand.IntN(14)
	if len(w.mounts()) > 40 {
		what = 20
	}
	var err error
	signalled = true
	switch what {
	case 0, 1:
		err = unix.Mount(w.pick([]string{"one", "two words", "#three", `fo\ur`, "five\n", "six\\040"}), at, "tmpfs", uintptr(w.pickFlag()), "size=64k,mode=0755")
	case 2, 3:
		err = unix.Mount(at, other, "", unix.MS_BIND, "")
	case 4:
		err = unix.Mount(at, other, "", unix.MS_BIND|unix.MS_REC, "")
	case 5:
		at = w.target()
		err = unix.Mount(at, other, "", unix.MS_MOVE, "")
	case 6:
		at = w.target()
		err = unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|uintptr(w.pickFlag()), "")
	case 7:
		at = w.target()
		err = unix.Mount("", at, "", unix.MS_REMOUNT|uintptr(w.pickFlag()), fmt.Sprintf("size=%dk", 64*(1+w.rand.IntN(4))))
	case 8, 9:
		at = w.target()
		kinds := []uintptr{unix.MS_SHARED, unix.MS_SLAVE, unix.MS_PRIVATE, unix.MS_UNBINDABLE}
		err = unix.Mount("", at, "", kinds[w.rand.IntN(len(kinds))]|[]uintptr{0, unix.MS_REC}[w.rand.IntN(2)], "")
		signalled = false
	case 10:
		at = w.target()
		err = unix.Unmount(at, unix.UMOUNT_NOFOLLOW|[]int{0, unix.MNT_DETACH}[w.rand.IntN(2)])
	case 11:
		if signalled = false; w.renames {
			err = os.Rename(at, other)
		} else {
			err = removeDirs(at)
		}
	case 12:
		signalled = false
		err = removeDirs(at)
	case 13:
		at = w.target()
		err = mountBeneath(at)
	default:
		w.log = nil
		w.clear()
		w.fill()
	}
	if err == nil {
		w.log = append(w.log, strings.ReplaceAll(fmt.Sprintf("%d: %q, %q", what, at, other), w.base, ""))
	}
	return signalled && err == nil
}

func (w *world) clear() {
	for len(w.mounts()) > 0 {
		for _, e := range slices.Backward(w.mounts()) {
			_ = unix.Unmount(e.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}

func (w *world) pickFlag() int {
	flags := []int{0, unix.MS_RDONLY, unix.MS_NOSUID | unix.MS_NOATIME, unix.MS_NOEXEC, unix.MS_NODIRATIME | unix.MS_NODEV, unix.MS_SYNCHRONOUS, unix.MS_LAZYTIME | unix.MS_STRICTATIME, unix.MS_DIRSYNC | unix.MS_NOSYMFOLLOW}
	return flags[w.rand.IntN(len(flags))]
}

// removeDirs removes the directories at and below p as far as they are empty of
// mounts.
func removeDirs(p string) error {
	entries, err := os.ReadDir(p)
	if err != nil {
		return err
	}
	for _, e := range entries {
		_ = os.Remove(filepath.Join(p, e.Name()))
	}
	return unix.Rmdir(p)
}

// mountBeneath mounts a tmpfs below the topmost mount at target (since 6.5).
func mountBeneath(target string) error {
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(context)
	if err := unix.FsconfigSetString(context, "source", "beneath"); err != nil {
		return err
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return err
	}
	made, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(made)
	const beneath = 0x200 // MOVE_MOUNT_BENEATH
	return unix.MoveMount(made, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH|beneath)
}

// settle gives a signal, for kernels that have no other way to notice what
// gives none.
func (w *world) settle() {
	testtool.Must(w.t, unix.Mount("settle", w.base, "tmpfs", 0, ""))
	testtool.Must(w.t, unix.Unmount(w.base, unix.MNT_DETACH))
}

// questioned is an index under test.
type questioned struct {
	name   string
	kernel statmount.Kernel
	// settled: it knows nothing that the kernel gives no signal of.
	settled bool
	// whole: it is asked for the whole table, first of all.
	whole bool
	index *Table
}

// check compares the answers with those of mountinfo.
func (w *world) check(q questioned, signalled bool) {
	t := w.t
	t.Helper()
	same := func(what string, want, got any, wantErr, err error) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" || (wantErr == nil) != (err == nil) {
			t.Fatalf("%s: %s: %v, want %v (-mountinfo +index):\n%s\nafter\n%s", q.name, what, err, wantErr, diff, strings.Join(w.log, "\n"))
		}
	}
	want, err := Uncached{}.All()
	testtool.Must(t, err)
	if q.whole {
		got, err := q.index.All()
		same("All", want, got, nil, err)
	}
	w.seen += len(w.mounts())
	paths := []string{w.somewhere(), w.somewhere(), w.somewhere(), w.somewhere()}
	for _, e := range want {
		if pathin.In(w.base, e.Target) {
			paths = append(paths, e.Target)
		}
	}
	for _, p := range paths {
		wantEntry, wantOK, _, wantErr := lookUp(lines(want), p, os.Readlink)
		entry, ok, err := q.index.At(p)
		if _, _, err := q.index.mountedAt(p); err != nil {
			t.Fatalf("%s: the index does not answer by itself: %v", q.name, err)
		}
		same(fmt.Sprintf("At(%q)", p), []any{wantEntry, wantOK}, []any{entry, ok}, wantErr, err)
		if !w.renames || q.whole {
			refs, err := q.index.Refs(p)
			same(fmt.Sprintf("refs(%q)", p), refsOf(want, p), refs, nil, err)
		}
	}
	sources, devices := make(map[string][]mount.Entry), make(map[uint64][]mount.Entry)
	for _, e := range want {
		sources[e.Source] = append(sources[e.Source], e)
		devices[e.Device] = append(devices[e.Device], e)
	}
	for source, wanted := range sources {
		got, err := q.index.BySource(source)
		same("BySource "+source, wanted, got, nil, err)
	}
	for device, wanted := range devices {
		got, err := q.index.ByDevice(device)
		same("ByDevice", wanted, got, nil, err)
	}
	if q.whole || signalled {
		points, err := q.index.List()
		same("list", pointsOf(nodesOf(want)), points, nil, err)
	}
}

// inUserMode: the tables of user namespaces are no other ones, so that some do.
func inUserMode() bool {
	uidMap, _ := os.ReadFile("/proc/self/uid_map")
	return !strings.Contains(string(uidMap), "4294967295")
}

func TestIndexAnswersAsMountinfoOnRandomTables(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		reads := 0
		_, err := statmount.Host{}.List(0, make([]uint64, 1))
		old := err != nil // this kernel lacks the calls: each index has mountinfo alone
		all := []questioned{
			{name: "all calls", kernel: poorKernel{reads: &reads}},
			{name: "all calls, whole", kernel: statmount.Host{}, whole: true},
			{name: "no events", kernel: poorKernel{watch: true}},
			{name: "no listmount", kernel: poorKernel{list: true}, settled: true},
			{name: "no statmount", kernel: poorKernel{read: true}, settled: true},
			{name: "no sources, as before 6.13", kernel: poorKernel{fields: statmount.Source}, settled: true},
		}
		for i := range all {
			all[i].index = New(all[i].kernel)
		}
		tables, worlds := 1000, 10
		if testtool.Shortened() || inUserMode() {
			tables, worlds = 200, 4
		}
		if old { // and so all of them are the same
			tables, worlds = 40, 2
		}
		for seed := range uint64(worlds) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				w := newWorld(t, seed, seed%2 == 1)
				defer func() {
					w.clear()
					testtool.Must(t, unix.Unmount(w.base, unix.MNT_DETACH))
				}()
				for n := range tables / worlds {
					if n%5 == 0 {
						w.fill()
					}
					signalled := false
					for range 1 + w.rand.IntN(3) {
						signalled = w.step()
					}
					if old {
						w.settle()
						signalled = true
					}
					q := all[w.rand.IntN(2)]
					w.check(q, signalled)
					if w.rand.IntN(3) == 0 {
						w.check(all[2], signalled)
					}
					if w.rand.IntN(3) == 0 {
						w.settle()
						w.check(all[3+w.rand.IntN(3)], true)
					}
				}
				t.Logf("%d mounts were compared", w.seen)
			})
		}
		if all[0].index.byMountinfo != (reads == 0) {
			t.Errorf("by mountinfo: %v, after %d reads of single mounts", all[0].index.byMountinfo, reads)
		}
		t.Logf("single mounts read: %d; events: %v", reads, all[0].index.events != nil)
		if all[0].index.byMountinfo && !errors.Is(err, unix.ENOSYS) {
			t.Errorf("listmount says %v, and yet mountinfo is used", err)
		}
	})
}
