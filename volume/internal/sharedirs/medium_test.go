package sharedirs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is said of a directory of this node does not send anybody to a server,
// however deep the error lies.
func TestErrorsSuitTheMedium(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)nfs|server|share|squash|export|mountPermissions`)
	var all []error
	for _, cause := range []error{ErrOccupied, ErrRetained, ErrNested, ErrReplaced, ErrNoBook, ErrLost, ErrDamaged, ErrExposed, ErrForeign, ErrMode, ErrBusy} {
		all = append(all, &Error{Cause: cause}, &Error{Cause: cause, deleting: true})
	}
	for _, errno := range []unix.Errno{unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EACCES, unix.EPERM, unix.ENAMETOOLONG, unix.EMLINK, unix.EIO} {
		all = append(all, &Error{Op: "mkdir", Path: "/data/a", Err: errno})
	}
	for _, err := range all {
		told := Disk.named(&Error{Cause: ErrTrashed, Err: errors.Join(fs.ErrExist, err)}).Error()
		if e, ok := err.(*Error); ok && e.Cause != nil && e.Advice() == "" {
			t.Errorf("no advice: %s", told)
		}
		if found := foreign.FindString(told); found != "" {
			t.Errorf("%v speaks of %q: %s", err, found, told)
		}
	}
	if told := Share.named(&Error{Op: "mkdir", Err: unix.EROFS}).Error(); !strings.Contains(told, "export it rw") {
		t.Errorf("of a share: %s", told)
	}
}

func TestMakeAndRemoveNameTheMedium(t *testing.T) {
	b := openBase(t)
	if err := os.Mkdir(b.path("taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := wish("taken", "pv1")
	w.On = Disk
	occupied, ok := caused(Make(t.Context(), b.root, w), ErrOccupied)
	if !ok || occupied.On != Disk {
		t.Errorf("Make: %+v", occupied)
	}
	removal := Removal{Path: "taken", Owner: owner("pv1"), AtLeast: Delete, On: Disk}
	occupied, ok = caused(Remove(t.Context(), b.root, removal), ErrOccupied)
	if !ok || !strings.Contains(occupied.Error(), "hostPath.path") {
		t.Errorf("Remove: %v", occupied)
	}
}

func TestCheckOutside(t *testing.T) {
	b := openBase(t)
	for _, p := range []string{"a", "team/a"} {
		if err := CheckOutside(t.Context(), b.root, p, Disk); err != nil {
			t.Errorf("a base without volumes: %s: %v", p, err)
		}
	}
	if entries, err := os.ReadDir(b.root.Name()); err != nil || len(entries) != 0 {
		t.Errorf("asking has made %v, %v", entries, err)
	}
	mustMake(t, b, wish("team/a", "pv1"))
	for p, inside := range map[string]bool{"team": false, "team/b": false, "team/ab": false, "other/team/a": false, "team/a": true, "team/a/b/c": true} {
		err := CheckOutside(t.Context(), b.root, p, Disk)
		if nested, ok := caused(err, ErrNested); ok != inside || ok && nested.Owner != owner("pv1") || err != nil && !inside {
			t.Errorf("%s: %v", p, err)
		}
	}
	if err := CheckOutside(t.Context(), b.root, "../"+filepath.Base(b.root.Name()), Disk); err == nil {
		t.Error("a path out of the base is accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := CheckOutside(ctx, b.root, "team/a", Disk); err == nil {
		t.Error("team/a is not in a volume all of a sudden")
	}
}
