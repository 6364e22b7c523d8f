package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

func withUID(uid types.UID) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.UID = uid }
}

func records(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// A store that shows another volume than the one recorded does not make a
// second record, by which the claim would have the one volume today and the
// other tomorrow.
func TestAClaimIsNeverRecordedTwice(t *testing.T) {
	dir := t.TempDir()
	if err := binder(storeOf(t, newPV("a", "1Gi"), newClaim("data", "1Gi", withUID("one"))), dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "a.json")
	isBound := func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimBound }
	for name, claim := range map[string]*v1.PersistentVolumeClaim{
		"the store shows another volume": newClaim("data", "1Gi", withUID("one"), naming("b"), isBound),
		"the claim names another volume": newClaim("data", "1Gi", withUID("one"), naming("b")),
	} {
		t.Run(name, func(t *testing.T) {
			s := storeOf(t, newPV("a", "1Gi"), newPV("b", "2Gi", forClaim("data", "one")), claim)
			err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")})
			unbound, ok := errors.AsType[*persistentvolume.UnboundError](err)
			if !ok || unbound.Claim.Name != "data" || !errors.Is(err, volume.ErrBoundElsewhere) || !strings.Contains(err.Error(), record) {
				t.Errorf("err = %v, want one that names the record %s", err, record)
			}
			if got := records(t, dir); len(got) != 1 || got[0] != record {
				t.Errorf("records %v, want %s alone", got, record)
			}
		})
	}
	t.Run("two records of one claim stop everything", func(t *testing.T) {
		text, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		second := filepath.Join(dir, "b.json")
		if err := os.WriteFile(second, []byte(strings.Replace(string(text), `"a"`, `"b"`, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		s := storeOf(t, newPV("a", "1Gi"), newPV("b", "2Gi"), newClaim("data", "1Gi", withUID("one")))
		err = binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")})
		if err == nil || !strings.Contains(err.Error(), second) || getClaim(t, s, "data").Spec.VolumeName != "" {
			t.Errorf("err = %v", err)
		}
	})
}

// What the store shows as bound is in the ledger, whoever was faster.
func TestAShownBindingIsNotWithdrawn(t *testing.T) {
	dir := t.TempDir()
	s := storeOf(t, newPV("a", "1Gi"), newClaim("data", "1Gi"))
	err := binder(changingClaims{s}, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")})
	if !errors.Is(err, objects.ErrConflict) {
		t.Fatalf("err = %v", err)
	}
	if getPV(t, s, "a").Spec.ClaimRef == nil {
		t.Fatal("the volume was not bound, so this tests nothing")
	}
	if _, err := os.Stat(filepath.Join(dir, "a.json")); err != nil {
		t.Errorf("the store shows the volume as bound, and the ledger does not: %v", err)
	}
	if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// changingClaims is a store in which somebody else changes claims all the time.
type changingClaims struct{ *objects.Store }

func (c changingClaims) Update(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	if _, ok := o.(*v1.PersistentVolumeClaim); ok {
		return nil, objects.ErrConflict
	}
	return c.Store.Update(ctx, o)
}

// endsUnseen is a context that has ended for who waits for its end, and not for
// who asks: one who asked a moment too early.
type endsUnseen struct{ context.Context }

func (endsUnseen) Done() <-chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}

func TestALockIsNeverLeftBehind(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close what was left
	dir := t.TempDir()
	other := lockedByOther(t, dir)
	b := binder(storeOf(t, newPV("a", "1Gi"), newClaim("data", "1Gi")), dir)
	if err := b.BindPods(endsUnseen{t.Context()}, []*v1.Pod{podOf("data")}); err == nil {
		t.Fatal("the lock was not waited for")
	}
	other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := b.BindPods(ctx, []*v1.Pod{podOf("data")}); err != nil {
		t.Errorf("who gave up holds the lock: %v", err)
	}
	if n := descriptorsOf(t, dir); n != 0 {
		t.Errorf("%d descriptors of the ledger are left", n)
	}
}

// lockedByOther locks the ledger until the file is closed.
func lockedByOther(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return f
}

// However often one waits in vain for the lock, one thread waits.
func TestWaitingForTheLockCostsOneThread(t *testing.T) {
	dir := t.TempDir()
	other := lockedByOther(t, dir)
	b := binder(storeOf(t, newPV("a", "1Gi"), newClaim("data", "1Gi")), dir)
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := b.BindPods(ctx, []*v1.Pod{podOf("data")})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
			t.Fatalf("err = %v", err)
		}
	}
	if n := descriptorsOf(t, dir); n != 2 { // other's, and one that waits
		t.Errorf("%d descriptors of the ledger are open, want 2", n)
	}
	other.Close()
	if err := b.BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Error(err)
	}
	if n := descriptorsOf(t, dir); n != 0 {
		t.Errorf("%d descriptors of the ledger are left", n)
	}
}

func descriptorsOf(t *testing.T, dir string) (n int) {
	t.Helper()
	want, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(descriptors) == 0 {
		t.Fatalf("no descriptors: %v", err)
	}
	for _, d := range descriptors {
		if info, err := os.Stat(d); err == nil && os.SameFile(info, want) {
			n++
		}
	}
	return n
}

func TestWhatACrashLeftIsSwept(t *testing.T) {
	dir := t.TempDir()
	leftover := filepath.Join(dir, ".durable-ABC.tmp")
	if err := os.WriteFile(leftover, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := storeOf(t, newPV("a", "1Gi"), newClaim("data", "1Gi"))
	if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(leftover); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// A volume's name may have 253 characters, and a file's 255 bytes.
func TestLongNames(t *testing.T) {
	for _, length := range []int{250, 251, 253} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			dir := t.TempDir()
			one, two := strings.Repeat("x", length-1)+"1", strings.Repeat("x", length-1)+"2"
			manifests := func() *objects.Store {
				return storeOf(t, newPV(one, "1Gi"), newPV(two, "2Gi"), newClaim("first", "1Gi", withUID("first")), newClaim("second", "1Gi", withUID("second")))
			}
			if err := binder(manifests(), dir).BindPods(t.Context(), []*v1.Pod{podOf("first", "second")}); err != nil {
				t.Fatal(err)
			}
			s := manifests() // which has forgotten, and is asked in another order
			if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("second", "first")}); err != nil {
				t.Fatal(err)
			}
			if got := getClaim(t, s, "first").Spec.VolumeName; got != one {
				t.Errorf("first has %q", got)
			}
			all := records(t, dir)
			if len(all) != 2 {
				t.Fatalf("records %v", all)
			}
			if err := os.Rename(all[0], all[1]); err != nil {
				t.Fatal(err)
			}
			if err := binder(manifests(), dir).BindPods(t.Context(), []*v1.Pod{podOf("first")}); err == nil || !strings.Contains(err.Error(), all[1]) {
				t.Errorf("a record under another volume's name: err = %v", err)
			}
		})
	}
}
