package treewalk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func options() map[string]Options {
	return map[string]Options{
		"all":         {},
		"nothing new": {WithoutMountIDs: true, WithoutOpenat2: true},
	}
}

// counter counts how often it sees each inode.
type counter struct {
	tree *Tree
	mu   *sync.Mutex
	seen map[uint64]int
	// open is the highest number of descriptors that were open.
	open *int
	each func(dirfd int, name string) error
}

func (c counter) Visit(dirfd int, name Name, kind uint8) (bool, error) {
	info, err := c.tree.Stat(dirfd, name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	c.seen[info.Ino]++
	c.mu.Unlock()
	if c.each != nil {
		if err := c.each(dirfd, name.String()); err != nil {
			return false, err
		}
	}
	return info.IsDir(), nil
}

func (c counter) Enter(int, Info) error {
	entries, err := os.ReadDir("/proc/self/fd")
	c.mu.Lock()
	defer c.mu.Unlock()
	*c.open = max(*c.open, len(entries))
	return err
}

func walkTree(t *testing.T, root string, o Options, workers int, each func(dirfd int, name string) error) (counter, error) {
	t.Helper()
	tree, err := Open(root, o)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	c := counter{tree: tree, mu: new(sync.Mutex), seen: map[uint64]int{}, open: new(int), each: each}
	return c, tree.Walk(t.Context(), workers, func() Visitor { return c })
}

func assertOnce(t *testing.T, c counter, want int) {
	t.Helper()
	if len(c.seen) != want {
		t.Errorf("%d files were seen, want %d", len(c.seen), want)
	}
	for inode, times := range c.seen {
		if times != 1 {
			t.Errorf("inode %d was seen %d times", inode, times)
		}
	}
}

func TestEverythingIsSeenOnce(t *testing.T) {
	root := t.TempDir()
	want := 0
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		want++
	}
	for n := range 3000 { // more than getdents64 returns at once
		write(fmt.Sprintf("a-file-with-a-rather-long-name-%d", n))
	}
	for d := range 50 {
		if err := os.MkdirAll(filepath.Join(root, fmt.Sprint("d", d%7), fmt.Sprint(d)), 0o755); err != nil {
			t.Fatal(err)
		}
		for n := range 20 {
			write(filepath.Join(fmt.Sprint("d", d%7), fmt.Sprint(d), fmt.Sprint(n)))
		}
	}
	for name, o := range options() {
		for _, workers := range []int{1, 2, 8} {
			t.Run(fmt.Sprint(name, workers), func(t *testing.T) {
				c, err := walkTree(t, root, o, workers, nil)
				if err != nil {
					t.Fatal(err)
				}
				assertOnce(t, c, want+50+7)
			})
		}
	}
}

// Deeper than paths may be long, and than descriptors are kept.
func TestNeitherDepthNorWidthCostsDescriptors(t *testing.T) {
	const depth = 1000
	root := t.TempDir()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		for _, name := range []string{"directory", "beside"} {
			if err := unix.Mkdirat(fd, name, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		below, err := unix.Openat(fd, "directory", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = below
	}
	unix.Close(fd)
	for name, o := range options() {
		t.Run(name, func(t *testing.T) {
			before := openDescriptors(t)
			const workers = 4
			c, err := walkTree(t, root, o, workers, nil)
			if err != nil {
				t.Fatal(err)
			}
			assertOnce(t, c, 2*depth)
			if more, most := *c.open-before, workers*(maxOpen+4); more > most {
				t.Errorf("%d descriptors were open, more than %d", more, most)
			}
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d before", after, before)
			}
		})
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	dir, err := os.Open("/proc/self/fd") // unlike ReadDir this also has Go's poller open its own, which stay
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// What is beneath a directory that moves is found again, or the walk says that
// something may be missing.
func TestMovedDirectoriesAreNoticed(t *testing.T) {
	const depth = 3 * maxOpen
	deep := func(root string) {
		t.Helper()
		path := root
		for range depth {
			path = filepath.Join(path, "d")
			for _, dir := range []string{path, path + "-beside"} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, test := range map[string]struct {
		moves [][2]string
		want  error
	}{
		"nothing": {},
		// ".." no longer leads where we came from, but the names do.
		"out of the tree's depth": {moves: [][2]string{{"d/d/d", "away"}}},
		// Neither does.
		"and what was above it": {moves: [][2]string{{"d/d/d", "away"}, {"d", "elsewhere"}}, want: ErrMoved},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			deep(root)
			visited := 0
			c, err := walkTree(t, root, Options{}, 1, func(int, string) error {
				if visited++; visited != 2*depth-10 {
					return nil
				}
				for _, m := range test.moves {
					if err := os.Rename(filepath.Join(root, m[0]), filepath.Join(root, m[1])); err != nil {
						return err
					}
				}
				return nil
			})
			if !errors.Is(err, test.want) || (test.want == nil) != (err == nil) {
				t.Errorf("err = %v, want %v", err, test.want)
			}
			if err == nil {
				assertOnce(t, c, 2*depth)
			}
		})
	}
}

func TestErrorsNameThePath(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	_, err := Open(missing, Options{})
	if failure, ok := errors.AsType[*fs.PathError](err); !ok || failure.Path != missing || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = walkTree(t, root, Options{}, 3, func(_ int, name string) error {
		if name == "c" {
			return &fs.PathError{Op: "visit", Err: unix.EIO}
		}
		return nil
	})
	if failure, ok := errors.AsType[*fs.PathError](err); !ok || failure.Path != filepath.Join(root, "a/b/c") || !errors.Is(err, unix.EIO) {
		t.Errorf("err = %v", err)
	}
}

// split counts by worker.
type split struct{ entries int }

func (s *split) Visit(_ int, _ Name, kind uint8) (bool, error) {
	s.entries++
	return kind == unix.DT_DIR, nil
}

func (s *split) Enter(int, Info) error { return nil }

// Of many entries of one directory and of many directories, another worker
// gets some.
func TestWorkIsShared(t *testing.T) {
	for name, path := range map[string]string{
		"one directory":    "file %d",
		"many directories": "%d/below",
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for n := range 1000 {
				if err := os.MkdirAll(filepath.Join(root, fmt.Sprintf(path, n)), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			tree, err := Open(root, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			var workers []*split
			err = tree.Walk(t.Context(), 2, func() Visitor {
				workers = append(workers, new(split))
				return workers[len(workers)-1]
			})
			if err != nil || len(workers) != 2 || workers[0].entries == 0 || workers[1].entries == 0 {
				t.Errorf("%d workers, %v", len(workers), err)
			}
		})
	}
}

func TestEntriesThatAreNone(t *testing.T) {
	tree, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	w := newWorker(&walk{tree: tree, ctx: t.Context()}, new(split))
	w.path, w.stack = "/tree/a", []frame{{}, {name: "b"}}
	for _, length := range []byte{0, 19, 20, 65} {
		entries := make([]byte, 64)
		entries[direntLength] = length
		err := w.visit(entries)
		if failure, ok := errors.AsType[*fs.PathError](err); !ok || failure.Path != "/tree/a/b" || !errors.Is(err, unix.EIO) {
			t.Errorf("length %d: err = %v", length, err)
		}
	}
}
