package sharedirs

import (
	"errors"
	"os"
	"testing"
)

// Whoever may write in the base can put another directory in place of one that
// was just made above a volume. That one stays as it is, and is never removed.
func TestSwappedParent(t *testing.T) {
	for name, prepare := range map[string]func(victim string) error{
		"closed": func(victim string) error {
			return errors.Join(os.WriteFile(victim+"/precious", nil, 0o600), os.Chmod(victim, 0o700))
		},
		"open":   func(victim string) error { return os.Chmod(victim, 0o777) },
		"sticky": func(victim string) error { return os.Chmod(victim, 0o711|os.ModeSticky) },
	} {
		t.Run(name, func(t *testing.T) {
			b := openBase(t)
			victim := b.path("victim")
			if err := errors.Join(os.Mkdir(victim, 0o755), prepare(victim)); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(victim)
			if err != nil {
				t.Fatal(err)
			}
			b.step = func(name string) error {
				if name == "after make parent" {
					return errors.Join(os.Remove(b.path("ns")), os.Rename(victim, b.path("ns")))
				}
				return nil
			}
			mustMake(t, b, wish("ns/data", "pv1"))
			b.step = nil
			mustRemove(t, b, "ns/data", "pv1")
			after, err := os.Stat(b.path("ns"))
			if err != nil || !os.SameFile(before, after) || after.Mode() != before.Mode() {
				t.Errorf("%v became %v, %v", before.Mode(), after, err)
			}
			if name != "closed" {
				return
			}
			if _, err := os.Stat(b.path("ns/precious")); err != nil {
				t.Error(err)
			}
		})
	}
}

// What was made above volumes is remembered while it may still be there.
func TestParentThatCannotBeSeen(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("ns/data", "pv1"))
	if err := errors.Join(os.Rename(b.path("ns"), b.path("aside")), os.WriteFile(b.path("ns"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	k, err := b.openBook(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	if err := b.dropRecords(t.Context(), k, "ns"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.Remove(b.path("ns")), os.Rename(b.path("aside"), b.path("ns"))); err != nil {
		t.Fatal(err)
	}
	mustRemove(t, b, "ns/data", "pv1")
	if got := tree(t, b.root.Name()); got != "" {
		t.Errorf("left\n%s", got)
	}
}
