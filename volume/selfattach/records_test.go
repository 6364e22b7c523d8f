package selfattach_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume/selfattach"
)

// What an earlier owner of the root directory does after an attacher was opened, and before it
// runs, counts.
func TestRecordsAreReadOnceTheRootIsItsOwn(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		n.want("a")
		synctest.Wait()
		next, err := selfattach.OpenAt(n.config(), "this boot")
		if err != nil {
			t.Fatal(err)
		}
		n.unwant("a")
		if err := errors.Join(n.attacher.WaitForDetached(t.Context()), n.stop()); err != nil {
			t.Error(err)
		}
		n.want("a")
		n.run(next)
		if got := c.log(); !slices.Equal(got, []string{"attach a", "detach a", "attach a"}) || !n.hasMounted("a") {
			t.Errorf("calls %v, mounted: %v", got, n.hasMounted("a"))
		}
		n.unwant("a")
		if err := next.WaitForDetached(t.Context()); err != nil {
			t.Error(err)
		}
		c.assertGone()
	})
}

// What a program that was killed while it wrote a record has left is removed by the next one.
func TestAHalfWrittenRecordGoes(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		half := filepath.Join(n.dir, ".durable-ABCDEF.tmp")
		err := errors.Join(n.stop(), os.MkdirAll(n.dir, 0o700), os.WriteFile(half, []byte("{"), 0o600))
		if !durable.IsTemp(filepath.Base(half)) || err != nil {
			t.Fatal(err)
		}
		n.start()
		if _, err := os.Lstat(half); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is left: %v", err)
		}
	})
}

// A record that cannot be read stays until its volume is attached anew.
func TestADamagedRecordStays(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		n.want("a")
		synctest.Wait()
		n.unwant("a")
		c.strikes(func(context.Context, string, bool) error { return errors.New("no") })
		synctest.Wait()
		if err := n.stop(); err != nil {
			t.Error(err)
		}
		c.strikes(nil)
		path := selfattach.RecordPath(n.dir, unique("a"))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[10] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		n.start()
		if !n.hasRecord("a") {
			t.Error("the record is gone")
		}
		n.want("a")
		synctest.Wait()
		n.unwant("a")
		synctest.Wait()
		c.assertGone()
	})
}

// What a later version has recorded is neither attached anew nor detached, and is kept for it.
func TestARecordOfALaterVersionStays(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		n.want("a")
		synctest.Wait()
		path := selfattach.RecordPath(n.dir, unique("a"))
		own, err := os.ReadFile(path)
		if err := errors.Join(err, n.stop()); err != nil {
			t.Fatal(err)
		}
		line, err := seal.Open(own)
		later := seal.Add([]byte(strings.Replace(string(line), `"version":1,`, `"version":2,`, 1)))
		if err := errors.Join(err, os.WriteFile(path, later, 0o600)); err != nil {
			t.Fatal(err)
		}
		calls := len(c.log())
		n.start()
		time.Sleep(time.Hour)
		n.unwant("a")
		time.Sleep(time.Hour)
		if is, err := os.ReadFile(path); string(is) != string(later) || err != nil || len(c.log()) != calls {
			t.Errorf("the record is %q, %v, after %q", is, err, c.log())
		}
		if err := errors.Join(n.stop(), os.WriteFile(path, own, 0o600)); err != nil {
			t.Fatal(err)
		}
		n.start()
		if err := n.attacher.WaitForDetached(t.Context()); err != nil {
			t.Error(err)
		}
		c.assertGone()
	})
}
