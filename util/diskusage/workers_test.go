package diskusage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/testtool"
)

// bushy has many files in one directory, many directories in one, and depth.
func bushy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	generate(t, filepath.Join(dir, "generated"))
	if err := os.Mkdir(filepath.Join(dir, "flat"), 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range 4000 {
		name := filepath.Join(dir, "flat", fmt.Sprintf("a-rather-long-name-%d", n))
		switch {
		case n%10 == 0:
			if err := os.Mkdir(name, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(name, "file"), n)
		case n%10 == 1: // the other name may be another worker's
			if err := os.Link(filepath.Join(dir, "generated/5/10/208"), name); err != nil {
				t.Fatal(err)
			}
		default:
			if err := unix.Mknod(name, unix.S_IFREG|0o644, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestWorkersAgree(t *testing.T) {
	dir := bushy(t)
	want, err := plainWalk(dir)
	if err != nil {
		t.Fatal(err)
	}
	rounds := 20
	if testtool.Shortened() {
		rounds = 5
	}
	for _, workers := range []int{1, 2, 3, 4, 16} {
		for range rounds {
			if got, err := measure(t.Context(), dir, options{workers: workers}); err != nil || got != want {
				t.Fatalf("%d workers say %+v, %v, want %+v", workers, got, err, want)
			}
		}
	}
}

func TestBudgetOfInodes(t *testing.T) {
	dir := bushy(t)
	whole, err := Walk(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, workers := range []int{1, 4} {
		o := options{workers: workers, budget: Budget{Inodes: whole.Inodes}}
		if got, err := measure(t.Context(), dir, o); err != nil || got != whole {
			t.Errorf("a budget that suffices: %+v, %v", got, err)
		}
		for _, most := range []int64{1, 100, whole.Inodes - 1} {
			o.budget.Inodes = most
			got, err := measure(t.Context(), dir, o)
			over, ok := errors.AsType[*BudgetError](err)
			if !ok || over.Budget.Inodes != most || over.Path != dir || got.Inodes != most || got.Bytes > whole.Bytes {
				t.Errorf("%d workers with a budget of %d: %+v, %v", workers, most, got, err)
			}
		}
	}
}

func TestBudgetOfTime(t *testing.T) {
	dir := bushy(t)
	if _, err := WalkWithin(t.Context(), dir, Budget{Time: time.Hour}); err != nil {
		t.Errorf("a budget that suffices: %v", err)
	}
	got, err := WalkWithin(t.Context(), dir, Budget{Time: time.Nanosecond})
	if over, ok := errors.AsType[*BudgetError](err); !ok || over.Budget != (Budget{Time: time.Nanosecond}) || got.Inodes > 4000 {
		t.Errorf("%+v, %v, want that the time was over", got, err)
	}
}

// Deep and wide, with few descriptors to spare.
func TestFewDescriptors(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		for _, name := range []string{"directory", "beside", "beside/below", "more"} {
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
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = uint64(len(open)) + 4*36 // what four workers have open at most
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	got, err := measure(t.Context(), dir, options{workers: 4})
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); restored != nil {
		t.Fatal(restored)
	}
	if err != nil || got.Inodes != 4*300+1 {
		t.Errorf("%+v, %v", got, err)
	}
}
