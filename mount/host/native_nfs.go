package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/nfs"
)

// mountNFS mounts NFS without mount.nfs: it looks first whether the kernel has
// NFS at all, then whether the server answers, and then has the kernel try one
// version after the other. Its errors are *nfsError.
func (n *native) mountNFS(ctx context.Context) error {
	source, err := nfs.ParseSource(n.request.Source)
	if err != nil {
		return explainNFS(err)
	}
	options, err := nfs.ParseOptions(n.request.FSType, n.options.Data)
	if err != nil {
		return explainNFS(err)
	}
	if err := n.checkKernelHasNFS(); err != nil {
		return explainNFS(err)
	}
	if n.options.ReadOnlyAt == mountopt.BothLayers {
		// Mounts of one export share a superblock, and since Linux 6.13 also with
		// those that want it writable: read-only is a matter of this mount alone.
		n.options.ReadOnlyAt = mountopt.MountLayer
	}
	client := nfs.Client{Resolver: cmp.Or[Resolver](n.config.Resolver, net.DefaultResolver)}
	result, err := client.Negotiate(ctx, source, options, n.tryNFS)
	if err != nil {
		return explainNFS(err)
	}
	n.config.Logger.InfoContext(ctx, "mounted", "type", "nfs", "source", n.request.Source, "target", n.request.Target,
		"address", result.Attempt.Address.String(), "version", result.Attempt.Version.String(), "asked", options.Asked, "refused", refusals(result.Refused))
	return nil
}

// checkKernelHasNFS makes the kernel load its NFS client, if it has one.
func (n *native) checkKernelHasNFS() error {
	context, err := n.api.Fsopen("nfs")
	switch {
	case err == nil:
		return unix.Close(context)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPERM) && !mayMount():
		return &failure.Kernel{Call: callOpen, Err: err}
	}
	return nil // mount(2) may do what fsopen does not
}

// mayMount reports whether this thread has the capability to mount at all.
func mayMount() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return true
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// tryNFS has the kernel make and attach one file system. Only what it says of
// the server is a reason to try another.
func (n *native) tryNFS(ctx context.Context, a nfs.Attempt) error {
	err := n.mountNew(ctx, filesystem{fstype: "nfs", source: a.Source, data: a.Options})
	if err == nil {
		return nil
	}
	if about, ok := errors.AsType[*optionError](err); ok && strings.HasPrefix(about.option, "vers=") {
		return fmt.Errorf("this kernel does not know the version: %w", unix.EPROTONOSUPPORT)
	}
	if failed, ok := errors.AsType[*failure.Kernel](err); ok && asksServer(failed) && mount.KnownCause(err) == "" {
		return err
	}
	return &nfs.FinalError{Err: err}
}

// asksServer reports whether a call that failed was one of those for which the
// kernel talks to the server. All others are about this node alone.
func asksServer(failed *failure.Kernel) bool {
	return failed.Call == callCreate || failed.Call == callMount
}

func refusals(refused []nfs.Refusal) []string {
	var texts []string
	for _, r := range refused {
		texts = append(texts, r.String())
	}
	return texts
}

// nfsError is an NFS mount that failed and left nothing behind.
type nfsError struct {
	option string // that was refused, without its value
	also   []mount.Cause
	err    error
}

func (e *nfsError) Error() string { return e.err.Error() }
func (e *nfsError) Unwrap() error { return e.err }

// complete adds to an *Error what only this one knows.
func (e *nfsError) complete(to *mount.Error) {
	to.Option = cmp.Or(to.Option, e.option)
	for _, cause := range e.also {
		if cause != to.Cause && !slices.Contains(to.Also, cause) {
			to.Also = append(to.Also, cause)
		}
	}
	if _, ok := errors.AsType[*failure.HalfDone](e.err); !ok {
		to.Uncertain = false // a server that did not answer in time was only asked
	}
}

// explainNFS finds the cause where the kernel was not even asked, or where its
// errno means something of its own to NFS; else the errno tells.
func explainNFS(err error) error {
	failed := &nfsError{err: err}
	if tried, ok := errors.AsType[*nfs.Failure](err); ok {
		if mayBeFlavour(tried) {
			failed.also = append(failed.also, mount.ErrAccessDenied)
		}
		for _, refused := range tried.Refused {
			switch _, noStatd := errors.AsType[*nfs.StatdError](refused.Err); {
			case noStatd:
				failed.also = append(failed.also, mount.ErrNoLockDaemon)
			case errors.Is(refused.Err, unix.ENOENT) && errors.Is(tried.Err, unix.EACCES):
				// Linux servers hide forbidden exports from NFSv4, and deny missing ones to
				// NFSv3: it may be either.
				failed.also = append(failed.also, mount.ErrNoSuchExport)
			}
		}
	}
	if option, ok := errors.AsType[*nfs.OptionError](err); ok {
		failed.option = option.Option
	}
	if cause := causeOfNFS(err); cause != "" {
		return failure.Of(cause, failed)
	}
	return failed
}

// mayBeFlavour tells the failure that Linux has for NFSv3 where the server wants
// Kerberos, an EINVAL without a word, from one that it explains. It may be an
// option that the server's version rules out as well.
func mayBeFlavour(tried *nfs.Failure) bool {
	failed, ok := errors.AsType[*failure.Kernel](tried.Err)
	return ok && tried.Version.Major == 3 && asksServer(failed) && errors.Is(failed, unix.EINVAL) && len(failed.Lines) == 0
}

// causeOfNFS returns the cause, or "" where it is to be found as for any mount.
func causeOfNFS(err error) mount.Cause {
	if carried := mount.KnownCause(err); carried != "" {
		return carried
	}
	if resolve, ok := errors.AsType[*nfs.ResolveError](err); ok {
		return causeOfResolve(resolve)
	}
	if reach, ok := errors.AsType[*nfs.ReachError](err); ok {
		return causeOfReach(reach)
	}
	if _, ok := errors.AsType[*nfs.StatdError](err); ok {
		return mount.ErrNoLockDaemon
	}
	if failed, ok := errors.AsType[*failure.Kernel](err); ok {
		return causeOfNFSErrno(failed)
	}
	if _, ok := errors.AsType[*nfs.VersionError](err); ok {
		return mount.ErrVersionUnsupported
	}
	_, badOption := errors.AsType[*nfs.OptionError](err)
	_, badSource := errors.AsType[*nfs.SourceError](err)
	if badOption || badSource {
		return mount.ErrBadOption
	}
	return ""
}

func causeOfResolve(err *nfs.ResolveError) mount.Cause {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return mount.ErrTimedOut
	case errors.Is(err, context.Canceled):
		return mount.ErrCanceled
	}
	return mount.ErrNameResolution
}

func causeOfReach(err *nfs.ReachError) mount.Cause {
	switch {
	case err.Timeout():
		return mount.ErrTimedOut
	case errors.Is(err, context.Canceled):
		return mount.ErrCanceled
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return mount.ErrNotPermitted // a packet filter of this node
	}
	return mount.ErrConnectionRefused
}

// causeOfNFSErrno is for errnos that the server gave: EPERM is its word for a
// client that it does not want, and a path that leads through a file does not
// exist for it.
func causeOfNFSErrno(failed *failure.Kernel) mount.Cause {
	switch {
	case failed.Call == callOpen && errors.Is(failed, unix.ENODEV):
		return mount.ErrNoFilesystem
	case !asksServer(failed):
		return ""
	case errors.Is(failed, unix.EPERM):
		return mount.ErrAccessDenied
	case errors.Is(failed, unix.ENOTDIR), errors.Is(failed, unix.ENAMETOOLONG):
		return mount.ErrNoSuchExport
	}
	return ""
}
