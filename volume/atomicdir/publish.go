//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// oldVersion is the version that a new one replaces, or none.
type oldVersion struct {
	version
	// fd is -1 if there is none or it cannot be read.
	fd int
}

// publish makes tree the published version and returns the version that is current then.
func (t *target) publish(ctx context.Context, current version, tree *node) (now version, changed bool, err error) {
	old := oldVersion{current, -1}
	if current.exists() {
		old.fd, err = openDirAt(t.fd, current.name)
		switch {
		case err == nil:
			defer unix.Close(old.fd)
		case !errors.Is(err, unix.EACCES): // its mode was changed: a new version puts that right
			return current, false, t.failed("open", current.name, err)
		}
	}
	// Both only read, and at a start of the agent both matter.
	var same bool
	wait := beside(old.fd >= 0 && len(tree.children) > worthAThread, func() { same = old.fd >= 0 && compare(old.fd, tree, t.created) })
	inv, err := t.takeInventory(tree)
	wait()
	if err != nil {
		return current, false, err
	}
	if same {
		changed, err := t.complete(ctx, current, inv)
		return current, changed, err
	}
	if inv.foreignNewData {
		return current, false, &ForeignEntryError{Dir: t.path, Name: newDataName}
	}
	left, err := t.findLeftovers(current, inv.versions)
	if err != nil {
		return current, false, err
	}
	// Before there is anything to write: they may fill the file system.
	leftErr := t.removeVersions(ctx, left.all(), "")
	next, err := t.replace(ctx, old, tree, inv)
	if err != nil {
		return current, false, errors.Join(err, leftErr)
	}
	whole := context.WithoutCancel(ctx)
	if current.exists() { // else they were made before
		if _, err := t.makeLinks(whole, inv.missing); err != nil {
			return next, true, t.published(err)
		}
	}
	// Not earlier, though it would make room: a reader who has just resolved
	// ..data to the version before the current one still needs it. With it goes
	// what could not be removed above.
	return next, true, t.published(t.removeVersions(whole, inv.versions, current.name))
}

// worthAThread is how many names are worth waking another thread for, which takes as long as
// several system calls.
const worthAThread = 16

// beside runs f while the caller goes on, if that is worth it, else at once. The returned function
// waits for its end.
func beside(worth bool, f func()) (wait func()) {
	if !worth {
		f()
		return func() {}
	}
	var running sync.WaitGroup
	running.Go(f)
	return running.Wait
}

// repair puts the directory right, where the version is known to be.
func (t *target) repair(ctx context.Context, current version, tree *node) (changed bool, err error) {
	inv, err := t.takeInventory(tree)
	if err != nil {
		return false, err
	}
	return t.complete(ctx, current, inv)
}

// complete puts the visible names right, which a crash or a failure after the
// rename left, or another process undid, and then tidies. Only the names count
// as a change.
func (t *target) complete(ctx context.Context, current version, inv inventory) (changed bool, err error) {
	changed = len(inv.stale)+len(inv.missing) > 0
	if err := t.removeLinks(ctx, inv.stale); err != nil {
		return changed, t.published(err)
	}
	if _, err := t.makeLinks(ctx, inv.missing); err != nil {
		return changed, t.published(err)
	}
	left, err := t.findLeftovers(current, inv.versions)
	if err != nil {
		return changed, t.published(err)
	}
	return changed, t.tidy(ctx, inv, left)
}

// replace writes a new version and makes ..data lead to it. Up to the first
// change that can be seen, the end of ctx stops it; a failure undoes
// everything.
func (t *target) replace(ctx context.Context, old oldVersion, tree *node, inv inventory) (version, error) {
	var undo undoList
	whole := context.WithoutCancel(ctx)
	next, err := t.writeVersion(ctx, old, tree, inv, &undo)
	if err == nil && !inv.data && !inv.newData { // there is nothing to replace
		if err = t.makeData(ctx, next.name); err != nil {
			return version{}, undo.run(err)
		}
		return next, nil
	}
	if err == nil {
		err = t.makeNewData(ctx, next.name, &undo)
	}
	if err == nil && old.exists() {
		undo.add(func() error { _, err := t.makeLinks(whole, inv.stale); return err })
		err = t.removeLinks(whole, inv.stale)
	}
	if err == nil {
		err = t.renameData(whole)
	}
	if err != nil {
		return version{}, undo.run(err)
	}
	return next, nil
}

// writeVersion writes the new version and, where there is no current one, the
// visible links, which lead nowhere until the rename. The two are in different
// directories, so the kernel lets them proceed in parallel.
func (t *target) writeVersion(ctx context.Context, old oldVersion, tree *node, inv inventory, undo *undoList) (version, error) {
	name, fd, err := t.makeVersion(ctx)
	if err != nil {
		return version{}, err
	}
	defer unix.Close(fd)
	whole := context.WithoutCancel(ctx)
	undo.add(func() error { return t.removeVersion(whole, name) })

	var linksErr error
	wait := beside(!old.exists() && len(inv.missing) > worthAThread, func() {
		if old.exists() {
			return
		}
		if linksErr = t.removeLinks(ctx, inv.stale); linksErr != nil {
			return
		}
		var made int
		made, linksErr = t.makeLinks(ctx, inv.missing)
		undo.add(func() error { return t.removeLinks(whole, inv.missing[:made]) })
	})
	err = t.writeDir(ctx, fd, old.fd, tree)
	wait()
	if err = errors.Join(err, linksErr); err != nil {
		return version{}, err
	}
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		return version{}, t.failed("stat", name, err)
	}
	return versionOf(name, &st), nil
}

// writeDir fills the directory fd. Files that the current version, open as
// old, is known to hold just so are linked, not written: no version is ever
// changed, so they may share them.
func (t *target) writeDir(ctx context.Context, fd, old int, n *node) error {
	for i := range n.children {
		child := &n.children[i]
		if err := t.step(ctx, "write", child.name); err != nil {
			return err
		}
		if child.file == nil {
			if err := t.writeSubdir(ctx, fd, old, child); err != nil {
				return err
			}
			continue
		}
		if child.same && link(old, fd, child.name) == nil {
			continue
		}
		if err := makeFile(fd, child.name, child.file); err != nil {
			return t.failed("write", child.name, err)
		}
	}
	return nil
}

func (t *target) writeSubdir(ctx context.Context, fd, old int, n *node) error {
	below, err := makeDir(fd, n.name)
	if err != nil {
		return t.failed("make directory", n.name, err)
	}
	defer unix.Close(below)
	oldBelow := -1
	if old >= 0 {
		if oldBelow, err = openDirAt(old, n.name); err == nil {
			defer unix.Close(oldBelow)
		}
	}
	return t.writeDir(ctx, below, oldBelow, n)
}

// makeData makes the first link to a version, which one call does as a whole.
func (t *target) makeData(ctx context.Context, version string) error {
	if err := t.step(ctx, "replace", dataName); err != nil {
		return err
	}
	if err := symlink(version, t.fd, dataName); err != nil {
		return t.failed("replace", dataName, err)
	}
	return nil
}

// makeNewData makes the link that renameData puts in its place.
func (t *target) makeNewData(ctx context.Context, version string, undo *undoList) error {
	if err := t.step(ctx, "link", newDataName); err != nil {
		return err
	}
	err := symlink(version, t.fd, newDataName)
	if errors.Is(err, unix.EEXIST) { // left by a crash
		if err := t.removeNewData(); err != nil {
			return err
		}
		err = symlink(version, t.fd, newDataName)
	}
	if err != nil {
		return t.failed("link", newDataName, err)
	}
	undo.add(t.removeNewData)
	return t.step(ctx, "replace", dataName) // last chance to stop
}

func (t *target) removeNewData() error {
	if err := unlink(t.fd, newDataName); err != nil {
		return t.failed("remove", newDataName, err)
	}
	return nil
}

func (t *target) renameData(ctx context.Context) error {
	if err := t.step(ctx, "replace", dataName); err != nil {
		return err
	}
	if err := rename(t.fd, newDataName, dataName); err != nil {
		return t.failed("replace", dataName, err)
	}
	return nil
}

// makeLinks makes visible links and returns how many of them are there, from
// the first.
func (t *target) makeLinks(ctx context.Context, names []string) (made int, err error) {
	for made, name := range names {
		if err := t.step(ctx, "link", name); err != nil {
			return made, err
		}
		err := symlink(linkTo(name), t.fd, name)
		if errors.Is(err, unix.EEXIST) {
			if link, _ := readlink(t.fd, name); link == linkTo(name) {
				continue
			}
			return made, &ForeignEntryError{Dir: t.path, Name: name}
		}
		if err != nil {
			return made, t.failed("link", name, err)
		}
	}
	return len(names), nil
}

func (t *target) removeLinks(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := t.step(ctx, "remove", name); err != nil {
			return err
		}
		if err := unlink(t.fd, name); err != nil {
			return t.failed("remove", name, err)
		}
	}
	return nil
}

func (t *target) removeVersions(ctx context.Context, names []string, keep string) error {
	for _, name := range names {
		if name == keep {
			continue
		}
		if err := t.removeVersion(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) removeVersion(ctx context.Context, name string) error {
	if err := t.step(ctx, "remove version", name); err != nil {
		return err
	}
	if err := removeTree(ctx, t.file(), name); err != nil {
		return t.failed("remove version", name, err)
	}
	return nil
}

// published marks an error that came after the rename.
func (t *target) published(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		e.Published = true
		return err
	}
	return &Error{Op: "complete", Dir: t.path, Published: true, Err: err}
}

// undoList is what has to be done after a failure, in reverse order.
type undoList struct {
	mu    sync.Mutex
	steps []func() error
}

func (u *undoList) add(step func() error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.steps = append(u.steps, step)
}

// run undoes and returns err with what else failed.
func (u *undoList) run(err error) error {
	errs := []error{err}
	for _, step := range slices.Backward(u.steps) {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}
