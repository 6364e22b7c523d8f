package selfattach_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/selfattach"
)

// inBubble runs a test with virtual time.
func inBubble(t *testing.T, nodes int, f func(t *testing.T, c *cabinet, n []*machineNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, n := newNodes(t, nodes)
		f(t, c, n)
	})
}

func TestAVolumeIsAttachedForItsPods(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		n.want("a")
		synctest.Wait()
		if !n.hasMounted("a") || !n.hasRecord("a") {
			t.Errorf("mounted: %v, recorded: %v", n.hasMounted("a"), n.hasRecord("a"))
		}
		got, err := n.attacher.GetVolumeAttachment(t.Context(), pvapi.CSIAttachmentName("a", pluginName, "n1"))
		if err != nil || !got.Status.Attached || got.Status.AttachmentMetadata["node"] != "n1" {
			t.Errorf("GetVolumeAttachment: %+v, %v", got, err)
		}
		// A restart attaches nothing again, and detaches nothing.
		if err := n.stop(); err != nil {
			t.Error(err)
		}
		n.start()
		if got := c.log(); !slices.Equal(got, []string{"attach a"}) {
			t.Errorf("calls %v", got)
		}
		n.unwant("a")
		if err := n.attacher.WaitForDetached(t.Context()); err != nil {
			t.Error(err)
		}
		if got := c.log(); !slices.Equal(got, []string{"attach a", "detach a"}) {
			t.Errorf("calls %v", got)
		}
		if _, err := n.attacher.GetVolumeAttachment(t.Context(), pvapi.CSIAttachmentName("a", pluginName, "n1")); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("GetVolumeAttachment: %v", err)
		}
		c.assertGone()
	})
}

// What an earlier owner has left staged is not detached, and after a boot what is wanted is
// attached again, for another node may have had it.
func TestWhatIsLeftAndAfterABoot(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		n.want("a")
		n.want("b")
		synctest.Wait()
		if err := n.stop(); err != nil {
			t.Error(err)
		}
		n.mounted, n.left["b"] = make(map[string]bool), true
		delete(n.wanted, "b")
		c.calls = nil
		n.startAt("next boot")
		if got := c.log(); !slices.Equal(got, []string{"attach a"}) || !n.hasMounted("a") || !c.has("b") {
			t.Errorf("calls %v", got)
		}
		n.unwant("a")
		n.change(func() { delete(n.left, "b") })
		synctest.Wait()
		c.assertGone()
	})
}

// An attempt that has done nothing leaves no record, and its error is the VolumeAttachment's. One
// that may have attached something is undone.
func TestFailedAttempts(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		recorded bool
	}{
		"nothing done": {volume.NothingDone(&volume.Failure{Cause: volume.ErrAttachLimitExceeded, What: "the node is full"}), false},
		"uncertain":    {errors.New("the answer was lost"), true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
				n := nodes[0]
				c.strikes(func(context.Context, string, bool) error { return tc.err })
				n.want("a")
				synctest.Wait()
				if n.hasRecord("a") != tc.recorded || n.hasMounted("a") {
					t.Errorf("recorded: %v, mounted: %v", n.hasRecord("a"), n.hasMounted("a"))
				}
				got, err := n.attacher.GetVolumeAttachment(t.Context(), pvapi.CSIAttachmentName("a", pluginName, "n1"))
				if err != nil || got.Status.Attached || got.Status.AttachError == nil || !strings.Contains(tc.err.Error(), got.Status.AttachError.Message) ||
					(got.Status.AttachError.ErrorCode != nil) == tc.recorded {
					t.Errorf("GetVolumeAttachment: %+v, %v", got, err)
				}
				time.Sleep(time.Minute)
				if calls := len(c.log()); calls < 5 || calls > 9 {
					t.Errorf("%d calls in a minute", calls)
				}
				n.unwant("a")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := n.attacher.WaitForDetached(ctx); errors.Is(err, selfattach.ErrStillAttached) != tc.recorded {
					t.Errorf("WaitForDetached: %v", err)
				}
				c.strikes(nil)
				if err := n.attacher.WaitForDetached(t.Context()); err != nil {
					t.Errorf("WaitForDetached: %v", err)
				}
				c.assertGone()
			})
		})
	}
}

// Attempts that fail in one way are logged once, with the volume and the error.
func TestFailuresAreLoggedOnce(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		fail := func(err error) {
			c.strikes(func(context.Context, string, bool) error { return err })
			time.Sleep(10 * time.Minute)
			synctest.Wait()
		}
		n.want("a")
		n.want("b")
		fail(errors.New("no slot is free"))
		fail(errors.New("no route"))
		n.unwant("b")
		fail(errors.New("no route"))
		logged := n.lines.String()
		for _, want := range []struct{ what, lun, err string }{
			{"attaching", "a", "no slot is free"}, {"attaching", "b", "no slot is free"}, {"attaching", "a", "no route"}, {"attaching", "b", "no route"}, {"detaching", "b", "no route"},
		} {
			if line := fmt.Sprintf("msg=\"%s failed\" volume=%s error=%q\n", want.what, unique(want.lun), want.err); strings.Count(logged, line) != 1 {
				t.Errorf("not once: %s", line)
			}
		}
		if strings.Count(logged, "\n") != 5 {
			t.Errorf("logged:\n%s", logged)
		}
		fail(nil)
		n.unwant("a")
		if err := n.attacher.WaitForDetached(t.Context()); err != nil {
			t.Error(err)
		}
		c.assertGone()
	})
}

// A call that hangs delays no other volume, and ends with the attacher.
func TestACallHangs(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		c.strikes(func(ctx context.Context, call string, after bool) error {
			if strings.HasSuffix(call, "hangs") && after {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		began := time.Now()
		for i := range 100 {
			n.want(fmt.Sprint("a", i))
		}
		n.want("hangs")
		synctest.Wait()
		for i := range 100 {
			n.unwant(fmt.Sprint("a", i))
		}
		synctest.Wait()
		if err := n.stop(); err != nil || time.Since(began) > 0 {
			t.Errorf("stopped after %s, %v", time.Since(began), err)
		}
		if got := c.attached; len(got) != 1 || !n.hasRecord("hangs") {
			t.Errorf("attached: %v", got)
		}
		c.strikes(nil)
		n.unwant("hangs")
		n.start()
		c.assertGone()
	})
}

// A program that is killed before or after any call, or at any record, detaches in the end what
// it has attached.
func TestKilledAtEveryCall(t *testing.T) {
	for _, call := range []string{"attach", "detach"} {
		for _, after := range []bool{false, true} {
			for _, wanted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, after %v, wanted %v", call, after, wanted), func(t *testing.T) {
					inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
						n := nodes[0]
						var restart func()
						c.strikes(func(ctx context.Context, at string, is bool) error {
							if strings.HasPrefix(at, call) && is == after && restart == nil {
								restart = n.kill()
								<-ctx.Done()
								return ctx.Err()
							}
							return nil
						})
						n.want("a")
						synctest.Wait()
						if call == "detach" {
							n.unwant("a")
							synctest.Wait()
						}
						if wanted {
							n.want("a")
						} else {
							n.unwant("a")
						}
						restart()
						if n.hasMounted("a") != wanted {
							t.Errorf("mounted: %v", n.hasMounted("a"))
						}
						n.unwant("a")
						if err := n.attacher.WaitForDetached(t.Context()); err != nil {
							t.Error(err)
						}
						c.assertGone()
					})
				})
			}
		}
	}
}

// Of programs on one machine the last one detaches, and a record that is gone counts for nothing.
func TestSeveralProgramsHaveAVolume(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, c *cabinet, n []*machineNode) {
		n[0].want("a")
		n[1].want("a")
		time.Sleep(time.Second) // the second waits while the first attaches
		if !n[0].hasMounted("a") || !n[1].hasMounted("a") {
			t.Error("not mounted for both")
		}
		n[0].unwant("a")
		if err := n[0].attacher.WaitForDetached(t.Context()); err != nil || !c.has("a") || n[0].hasRecord("a") {
			t.Errorf("%v, attached: %v", err, c.has("a"))
		}
		n[1].unwant("a")
		if err := n[1].attacher.WaitForDetached(t.Context()); err != nil {
			t.Error(err)
		}
		c.assertGone()
		n[0].want("b")
		n[1].want("b")
		time.Sleep(time.Second)
		if err := errors.Join(n[1].stop(), os.RemoveAll(n[1].dir)); err != nil {
			t.Fatal(err)
		}
		n[1].change(func() { delete(n[1].mounted, "b") })
		n[0].unwant("b")
		if err := n[0].attacher.WaitForDetached(t.Context()); err != nil || c.has("b") {
			t.Errorf("%v, attached: %v", err, c.has("b"))
		}
	})
}

// A program in another mount namespace has a record at a path that is not to be seen here, or at
// the same path as the one here. It does not lose the volume.
func TestAProgramInAnotherMountNamespace(t *testing.T) {
	t.Run("another path", func(t *testing.T) {
		besideAnother(t, func(*machineNode) string { return "/container/record" })
	})
	t.Run("the same path", func(t *testing.T) {
		besideAnother(t, func(n *machineNode) string { return selfattach.RecordPath(n.dir, unique("a")) })
	})
}

func besideAnother(t *testing.T, recordOf func(*machineNode) string) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, n []*machineNode) {
		record := recordOf(n[0])
		n[0].want("a")
		time.Sleep(time.Second)
		dirs, err := filepath.Glob(filepath.Join(n[0].config().SharedDir, "*"))
		if err != nil || len(dirs) != 1 {
			t.Fatal(dirs, err)
		}
		entry := filepath.Join(dirs[0], "another")
		if err := errors.Join(os.Symlink(record, entry), os.Symlink("another-view 1:2 "+record, entry+".in")); err != nil {
			t.Fatal(err)
		}
		n[0].unwant("a")
		if err := n[0].attacher.WaitForDetached(t.Context()); err != nil || !c.has("a") || n[0].hasRecord("a") {
			t.Errorf("%v, attached: %v", err, c.has("a"))
		}
		n[0].want("a")
		time.Sleep(time.Second)
		if err := errors.Join(os.Remove(entry), os.Remove(entry+".in")); err != nil {
			t.Fatal(err)
		}
		n[0].unwant("a")
		if err := n[0].attacher.WaitForDetached(t.Context()); err != nil {
			t.Error(err)
		}
		c.assertGone()
	})
}

// The same program in a new mount namespace, as of a container that begins again: its entry is its
// own, and is not of another program.
func TestAnotherMountNamespaceOfTheSameProgram(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, n []*machineNode) {
		n[0].want("a")
		time.Sleep(time.Second)
		beside, err := filepath.Glob(filepath.Join(n[0].config().SharedDir, "*", "*.in"))
		if err != nil || len(beside) != 1 {
			t.Fatal(beside, err)
		}
		is, err := os.Readlink(beside[0])
		_, rest, _ := strings.Cut(is, " ")
		if err := errors.Join(err, os.Remove(beside[0]), os.Symlink("another-view "+rest, beside[0])); err != nil {
			t.Fatal(err)
		}
		n[0].unwant("a")
		if err := n[0].attacher.WaitForDetached(t.Context()); err != nil || c.has("a") {
			t.Errorf("%v, attached: %v", err, c.has("a"))
		}
		c.assertGone()
	})
}

// Whatever comes in whatever order: never detached while mounted, never attached without a
// record, and nothing is left in the end.
func TestModel(t *testing.T) {
	for seed := range uint64(25) {
		inBubble(t, 2, func(t *testing.T, c *cabinet, nodes []*machineNode) {
			random, faults := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
			broken := 0
			c.strikes(func(ctx context.Context, _ string, after bool) error {
				c.mu.Lock()
				what := faults.IntN(8)
				broken++
				c.mu.Unlock()
				switch {
				case what == 0:
					time.Sleep(time.Duration(what+1) * time.Second)
				case what == 1 && after:
					return errors.New("the answer was lost")
				case what == 2 && !after:
					return volume.NothingDone(errors.New("refused"))
				}
				return nil
			})
			for range 60 {
				n, lun := nodes[random.IntN(2)], string(rune('a'+random.IntN(3)))
				switch random.IntN(6) {
				case 0, 1:
					n.want(lun)
				case 2, 3:
					n.unwant(lun)
				case 4:
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
				case 5:
					if err := n.stop(); err != nil {
						t.Error(err)
					}
					n.start()
				}
				if random.IntN(2) == 0 {
					synctest.Wait()
				}
			}
			c.strikes(nil)
			for _, n := range nodes {
				for lun := range n.wanted {
					n.unwant(lun)
				}
			}
			for _, n := range nodes {
				if err := n.attacher.WaitForDetached(t.Context()); err != nil {
					t.Error(err)
				}
			}
			c.assertGone()
			if broken == 0 {
				t.Error("nothing was called")
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
