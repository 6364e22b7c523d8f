package nfs

import (
	"context"
	"fmt"
	"slices"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
)

// mountByOwnName mounts an export so that the mount table shows it by the name
// that was asked for.
//
// Linux lets mounts of one file system of a server share a superblock, however
// the server is spelt: by name and by address, and with NFSv4.1 by any two of its
// addresses, since it says that it is the same (RFC 8881, 2.10.5). All of them
// then show the name by which it was mounted first. That would be taken for
// somebody else's mount later, so such a mount is made again with a superblock of
// its own (nosharecache of nfs(5)): it is cached apart from the others.
func mountByOwnName(ctx context.Context, m mount.Interface, e export, request mount.Request) error {
	if err := mount.Mount(ctx, m, request); err != nil {
		return err
	}
	other, err := showsAnother(m, e, request.Target)
	if err != nil || !other {
		return err
	}
	if _, err := mount.Unmount(ctx, m, request.Target, mount.UnmountOptions{}); err != nil {
		return fmt.Errorf("%s is mounted by another name of its server, and to be mounted by its own: %w", e, err)
	}
	request.Options = append(slices.Clone(request.Options), "nosharecache")
	return mount.Mount(ctx, m, request)
}

// showsAnother reports whether what is mounted at dir has another export's name.
func showsAnother(m mount.Interface, e export, dir string) (bool, error) {
	mounts := table.Of(m)
	entry, mounted, err := mounts.At(dir)
	if err != nil || !mounted || !isNFS(entry) {
		return false, err
	}
	found, ok := parseTableSource(entry.Source)
	return ok && !found.same(e), nil
}
