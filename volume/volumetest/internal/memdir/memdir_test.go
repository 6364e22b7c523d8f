package memdir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// complaints is a testing.TB that notes errors instead of failing.
type complaints struct {
	testing.TB
	said []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

// A broken plugin's leaked bind mount must not cost the data that it shows.
func TestRemovingACheckSparesWhatIsMounted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		data, check := filepath.Join(base, "data"), filepath.Join(base, "check")
		leaked := filepath.Join(check, "pods", "leaked")
		for _, dir := range []string{data, leaked} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		precious := filepath.Join(data, "precious")
		if err := os.WriteFile(precious, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(data, leaked, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		c := &complaints{TB: t}
		Remove(c, check)
		if _, err := os.Stat(precious); err != nil {
			t.Errorf("the data behind the leaked mount is gone: %v", err)
		}
		if len(c.said) != 1 || !strings.Contains(c.said[0], leaked) {
			t.Errorf("said %q, want the mount named", c.said)
		}
		if err := unix.Unmount(leaked, 0); err != nil {
			t.Fatal(err)
		}
		c = &complaints{TB: t}
		if Remove(c, check); len(c.said) != 0 {
			t.Errorf("without the mount: %q", c.said)
		}
		if _, err := os.Stat(check); !os.IsNotExist(err) {
			t.Errorf("the directory stays behind: %v", err)
		}
	})
}
