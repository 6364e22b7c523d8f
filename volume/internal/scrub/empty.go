package scrub

import (
	"context"
	"os"

	"github.com/podvol/podvol/util/removetree"
)

// Empty deletes everything in root, hidden files too, but not root, whose mode
// and owner stay. It returns nil only after it has read root and found nothing.
// Root may have been opened with O_PATH.
//
// The error is an *[volume.IncompleteError]: a *[removetree.MountError] if something
// is mounted below root, which is left alone, a *[removetree.OpenError] for a file
// that NFS keeps while it is open, the cause of ctx's end, [ErrNoLonger], or a *[io/fs.PathError]. ctx is looked at between system calls.
func Empty(ctx context.Context, root *os.File, options Options) error {
	m := newMeter(options)
	return m.result(removetree.EmptyAt(ctx, root, func() error { return m.mayGoOn(ctx) }, m.step))
}
