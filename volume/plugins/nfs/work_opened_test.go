package nfs

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
)

// swappedMounter is a fake whose table finds what was opened in a mount of its
// own choice, as the kernel's does when the name led elsewhere in between.
type swappedMounter struct {
	*fakemount.Mounter
	opened []mount.Entry // with the ID of the mount that the fake's files lie in
}

func (s *swappedMounter) Table() mount.Table { return swappedTable{s.Mounter.Table(), s.opened} }

type swappedTable struct {
	mount.Table
	opened []mount.Entry
}

func (s swappedTable) All() ([]mount.Entry, error) {
	all, err := s.Table.All()
	return slices.Concat(s.opened, all), err
}

// kernelMountOf returns the ID of the mount that dir lies in, without the fake.
func kernelMountOf(t *testing.T, dir string) int {
	t.Helper()
	mounts := table.Kernel()
	e, err := table.Containing(mounts, dir)
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}

// What is deleted below the root is deleted where that lies, which its name says
// nothing of once it is open: f gets it only if it lies in the whole export.
func TestWithExportLooksWhatItHasOpened(t *testing.T) {
	for name, test := range map[string]struct {
		opened *mount.Entry // nil: in no mount of the table
		says   string       // empty: f is called
	}{
		"the export":             {&mount.Entry{Source: "10.0.0.1:/export", FSType: "nfs4", Root: "/"}, ""},
		"another export":         {&mount.Entry{Source: "10.0.0.1:/other", FSType: "nfs4", Root: "/"}, `"10.0.0.1:/other"`},
		"another server":         {&mount.Entry{Source: "10.0.0.2:/export", FSType: "nfs4", Root: "/"}, `"10.0.0.2:/export"`},
		"a directory of it":      {&mount.Entry{Source: "10.0.0.1:/export", FSType: "nfs4", Root: "/sub"}, "who else mounts or unmounts there?"},
		"a disk of that name":    {&mount.Entry{Source: "10.0.0.1:/export", FSType: "ext4", Root: "/"}, "who else mounts or unmounts there?"},
		"the node's own disk":    {&mount.Entry{Source: "/dev/sda1", FSType: "ext4", Root: "/"}, `"/dev/sda1"`},
		"what has been detached": {nil, "is not in the mount table"},
	} {
		t.Run(name, func(t *testing.T) {
			p, fake, served := newWorker(t, Config{})
			swapped := &swappedMounter{Mounter: fake}
			if test.opened != nil {
				test.opened.ID = kernelMountOf(t, served)
				swapped.opened = []mount.Entry{*test.opened}
			}
			if err := p.Init(hostWith(t, swapped)); err != nil {
				t.Fatal(err)
			}
			called := false
			err := p.withExport(t.Context(), workExport, nil, "job", func(context.Context, *os.File) error { called = true; return nil })
			if called != (test.says == "") || called != (err == nil) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("f was called: %t; err = %v", called, err)
			}
			workIsGone(t, p, fake)
		})
	}
}
