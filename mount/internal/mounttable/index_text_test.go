package mounttable

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// hookedKernel calls before at a read of a single mount.
type hookedKernel struct {
	poorKernel
	before func(read int)
}

func (k hookedKernel) Read(id uint64, want statmount.Fields, buffer []byte) (statmount.Record, error) {
	k.before(*k.reads)
	return k.poorKernel.Read(id, want, buffer)
}

// A mount that comes while the table is read for the first time has the id of one that
// went: it is never taken for that one.
func TestIndexOfATableThatChangesWhileItIsReadFirst(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		first, second, later := testtool.MkdirAll(t, base, "first"), testtool.MkdirAll(t, base, "second"), testtool.MkdirAll(t, base, "later")
		listed, err := Uncached{}.All()
		testtool.Must(t, err)
		for read := range 2 * (len(listed) + 2) {
			testtool.Must(t, unix.Mount("first", first, "tmpfs", 0, "size=64k"))
			testtool.Must(t, unix.Mount("later", later, "tmpfs", 0, "size=64k"))
			reads := 0
			x := New(hookedKernel{poorKernel{reads: &reads, watch: read%2 == 0}, func(n int) {
				if n == read/2 {
					testtool.Must(t, unix.Unmount(first, 0))
					testtool.Must(t, unix.Mount("second", second, "tmpfs", 0, "size=128k"))
				}
			}})
			points, err := x.List()
			testtool.Must(t, err)
			now, err := Uncached{}.All()
			testtool.Must(t, err)
			if diff := cmp.Diff(pointsOf(nodesOf(now)), points); diff != "" {
				t.Errorf("changed at read %d (-mountinfo +index):\n%s", read/2, diff)
			}
			agree(t, x, first, second)
			for _, dir := range []string{first, second, later} {
				if _, ok, _ := x.At(dir); ok {
					testtool.Must(t, unix.Unmount(dir, 0))
				}
			}
			agree(t, x, first, second)
		}
	})
}

// reversedKernel lists mounts in another order than mountinfo.
type reversedKernel struct{ statmount.Host }

func (k reversedKernel) List(after uint64, ids []uint64) (int, error) {
	if after != 0 {
		return 0, nil
	}
	n, err := k.Host.List(0, ids)
	slices.Reverse(ids[:n])
	return n, err
}

func TestIndexOnAKernelThatListsInAnotherOrder(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		testtool.Must(t, unix.Mount("volume", dir, "tmpfs", 0, "size=64k"))
		x, usual := New(reversedKernel{}), New(statmount.Host{})
		agree(t, x, dir)
		agree(t, usual, dir)
		if x.byMountinfo != usual.byMountinfo {
			t.Errorf("by mountinfo: %v, and in the usual order %v", x.byMountinfo, usual.byMountinfo)
		}
	})
}

// countedKernel counts the reads of single mounts.
type countedKernel struct {
	statmount.Host
	reads *atomic.Int32
}

func (k countedKernel) Read(id uint64, want statmount.Fields, buffer []byte) (statmount.Record, error) {
	k.reads.Add(1)
	return k.Host.Read(id, want, buffer)
}

// Of a long table only some mounts are read one by one, and each has its own ids all the
// same: also one below a younger mount.
func TestIndexOfALongTable(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		testtool.Must(t, unix.Mount("base", base, "tmpfs", 0, ""))
		old, young := testtool.MkdirAll(t, base, "old"), testtool.MkdirAll(t, base, "young")
		testtool.Must(t, unix.Mount("old", old, "tmpfs", 0, "size=64k"))
		for i := range 600 {
			dir := testtool.MkdirAll(t, base, fmt.Sprint(i))
			testtool.Must(t, unix.Mount(fmt.Sprint(i), dir, "tmpfs", 0, "size=64k"))
		}
		testtool.Must(t, unix.Mount("young", young, "tmpfs", 0, "size=64k"))
		below := testtool.MkdirAll(t, young, "below")
		testtool.Must(t, unix.Mount("", base, "", unix.MS_PRIVATE, "")) // else it cannot be moved
		testtool.Must(t, unix.Mount(old, below, "", unix.MS_MOVE, ""))
		var reads atomic.Int32 // several at a time
		x := New(countedKernel{reads: &reads})
		points, err := x.List()
		testtool.Must(t, err)
		if x.byMountinfo {
			t.Skip("this kernel has no calls for single mounts")
		}
		if n := int(reads.Load()); n > len(points)/2 {
			t.Errorf("%d of %d mounts were read one by one", n, len(points))
		}
		for _, n := range x.graph.all() {
			r, err := statmount.Host{}.Read(n.id, changing, make([]byte, 4096))
			testtool.Must(t, err)
			if !n.isAt(r, changing) {
				t.Errorf("%s has the ids %d and %d of %s", n.entry.Target, n.id, n.parent, r.Target())
			}
		}
		agree(t, x, old, below, young, filepath.Join(base, "300"))
	})
}

// List has a remount that is hidden behind another signal.
func TestListHasARemountBesideAMount(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		old, fresh := testtool.MkdirAll(t, base, "old"), testtool.MkdirAll(t, base, "fresh")
		testtool.Must(t, unix.Mount("old", old, "tmpfs", 0, "size=64k"))
		for _, kernel := range []statmount.Kernel{statmount.Host{}, poorKernel{watch: true}, poorKernel{list: true}} {
			x := New(kernel)
			for _, size := range []string{"size=64k", "size=128k"} {
				testtool.Must(t, unix.Mount("fresh", fresh, "tmpfs", 0, ""))
				testtool.Must(t, unix.Mount("", old, "", unix.MS_REMOUNT|unix.MS_NOEXEC, size))
				points, err := x.List()
				testtool.Must(t, err)
				at := func(path string) mount.MountPoint {
					i := slices.IndexFunc(points, func(p mount.MountPoint) bool { return p.Path == path })
					if i < 0 {
						return mount.MountPoint{}
					}
					return points[i]
				}
				if shown := at(old).Opts; !slices.Contains(shown, size) || !slices.Contains(shown, "noexec") || at(fresh).Device != "fresh" {
					t.Errorf("%T: %q, and the new one is %+v", kernel, shown, at(fresh))
				}
				testtool.Must(t, unix.Unmount(fresh, 0))
			}
		}
	})
}

// Tables are read in pieces, whatever the length of lines.
func TestParseMountinfoInPieces(t *testing.T) {
	var table strings.Builder
	want := []string{}
	for i := range 3000 {
		target := fmt.Sprintf("/%d/%s", i, strings.Repeat("x", i*i%5000))
		if i == 2000 {
			target += strings.Repeat("long", 50_000)
		}
		want = append(want, target)
		fmt.Fprintf(&table, "%d 1 0:1 / %s rw - tmpfs x rw\n", i+2, target)
	}
	entries, err := ParseMountinfo(strings.NewReader(table.String()))
	testtool.Must(t, err)
	got := []string{}
	for _, e := range entries {
		got = append(got, e.Target)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d entries of %d lines, or others", len(got), len(want))
	}
}
