// Package live shows volumes, and each change of them as it comes: for podvol status --watch.
// While nothing changes it does nothing.
package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/inotify"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Config says what is shown, and where.
type Config struct {
	RootDir  string
	Mounts   mount.Table
	Out, Err io.Writer
	// Format is one of [rows.StreamFormats]. At a terminal a table is drawn in place.
	Format string

	watch func(ctx context.Context, rootDir string, show func(map[string]nodeserver.Volume) error) error // [nodeserver.Watch]
	// soon is how long nothing is shown while the node does not answer, and later how long one that
	// refuses is not asked again.
	soon, later time.Duration
}

// display is where volumes are shown.
type display interface {
	// show shows volumes, in the order of [rows.Compare]. unanswered says why they are known by the
	// records; nil: the node has told of them.
	show(all []nodeserver.Volume, unanswered error) error
	// silent says since when the node has not answered; zero: it answers again. It may be called
	// beside show.
	silent(since time.Time)
}

// errNotYet says that a node takes its time.
var errNotYet = errors.New("podvol run-node does not answer yet")

// Show shows the volumes below a root directory until ctx ends, which is no error, or c.Out has no
// reader any more: by the podvol run-node that keeps them, or by the records and the mount table
// while none does, or it does not answer.
func Show(ctx context.Context, c Config) error {
	var shown display = newLines(c.Format, c.Out, c.Err)
	if table.TerminalWidth(c.Out) > 0 && c.Format == "table" {
		s := newScreen(c.Out)
		defer s.close()
		shown = s
	}
	c.watch, c.soon, c.later = nodeserver.Watch, time.Second, silence
	read, stop := whileRead(ctx, c.Out)
	defer stop()
	err := c.follow(read, shown)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(read)
	}
	return err
}

func (c Config) follow(ctx context.Context, shown display) error {
	for ctx.Err() == nil {
		unanswered, err := c.byNode(ctx, shown)
		if err == nil {
			err = c.afterNode(ctx, shown, unanswered)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// byNode shows what the node says until that ends, and what the records say until it begins.
// unanswered says why it ended; err is of what is shown.
func (c Config) byNode(ctx context.Context, shown display) (unanswered, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	asking, answered := context.WithCancel(ctx)
	meanwhile := make(chan error, 1)
	go func() {
		err := c.whileAsking(asking, shown)
		if err != nil {
			cancel()
		}
		meanwhile <- err
	}()
	first := sync.OnceValue(func() error {
		answered()
		return <-meanwhile
	})
	unanswered = c.watch(ctx, c.RootDir, func(all map[string]nodeserver.Volume) error {
		if asking.Err() == nil {
			listening.Go(func() { listen(ctx, silence, func() error { return nodeserver.Alive(ctx, c.RootDir) }, shown.silent) })
		}
		if err = first(); err == nil {
			err = shown.show(slices.SortedFunc(maps.Values(all), rows.Compare), nil)
		}
		return err
	})
	return unanswered, cmp.Or(err, first())
}

// whileAsking shows what the records say of a node that does not answer soon, until ctx ends.
func (c Config) whileAsking(ctx context.Context, shown display) error {
	timer := time.NewTimer(c.soon)
	defer timer.Stop()
	select {
	case <-timer.C:
		return c.byRecords(ctx, shown, errNotYet)
	case <-ctx.Done():
		return nil
	}
}

// afterNode shows what the records say until there is a node, or until one that refuses is to be
// asked again.
func (c Config) afterNode(ctx context.Context, shown display, unanswered error) error {
	if unanswered == io.EOF || errors.Is(unanswered, nodeserver.ErrNoNode) {
		return c.byRecords(ctx, shown, nodeserver.ErrNoNode)
	}
	ctx, cancel := context.WithTimeout(ctx, c.later)
	defer cancel()
	return c.byRecords(ctx, shown, errors.New(strings.TrimPrefix(unanswered.Error(), c.RootDir+": ")))
}

// silence is how often a node is asked whether it is alive: one that is stopped, or hangs, ends no
// connection.
const silence = 10 * time.Second

// listen tells when a node stops answering, and when it does again, until ctx ends.
func listen(ctx context.Context, every time.Duration, ask func() error, tell func(since time.Time)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for silent := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		switch err := ask(); {
		case ctx.Err() != nil:
			return
		case err != nil && !silent:
			silent = true
			tell(began)
		case err == nil && silent:
			silent = false
			tell(time.Time{})
		}
	}
}

// pause gathers changes.
const pause = 100 * time.Millisecond

// byRecords shows what the records and the mount table say until ctx ends, or until there is a node
// where there was none.
func (c Config) byRecords(ctx context.Context, shown display, unanswered error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, err := newChanges(ctx, c.RootDir, c.Mounts, nodeserver.WatchNodes)
	if err != nil {
		return err
	}
	defer changes.close()
	for {
		changes.arm()
		if ctx.Err() != nil || unanswered == nodeserver.ErrNoNode && nodeserver.Runs(ctx, c.RootDir) {
			return nil
		}
		found, err := volumemanager.Inspect(c.RootDir, c.Mounts)
		if _, fatal := errors.AsType[*volumemanager.RootError](err); fatal {
			return err
		}
		volumes, err := nodeserver.VolumesOf(found)
		slices.SortStableFunc(volumes, rows.Compare)
		if err := errors.Join(err, shown.show(volumes, unanswered)); err != nil {
			return err
		}
		if !changes.wait(ctx) {
			return nil
		}
	}
}

// changes tells of changes of records, of mounts and of nodes that begin.
type changes struct {
	stateDir string
	records  *inotify.Instance
	written  chan struct{}
	dir      *manifestdir.Watch
	nodes    *manifestdir.Watch // nil: this user may ask none
	begun    <-chan struct{}    // of nodes
	mounts   <-chan struct{}
}

func newChanges(ctx context.Context, rootDir string, mounts mount.Table, watchNodes func() (*manifestdir.Watch, error)) (*changes, error) {
	c := &changes{stateDir: volumemanager.StateDir(rootDir), written: make(chan struct{}, 1), mounts: mounts.Subscribe(ctx)}
	var err error
	if c.dir, err = manifestdir.NewWatch(c.stateDir); err != nil {
		return nil, err
	}
	switch c.nodes, err = watchNodes(); {
	case err == nil:
		c.begun = c.nodes.Changed()
	case !errors.Is(err, fs.ErrPermission):
		c.dir.Close()
		return nil, err
	}
	if c.records, err = inotify.New(); err != nil {
		c.closeWatches()
		return nil, err
	}
	go c.read(c.records)
	return c, nil
}

// read ends with the instance.
func (c *changes) read(records *inotify.Instance) {
	for {
		if _, err := records.Read(); err != nil {
			return
		}
		select {
		case c.written <- struct{}{}:
		default:
		}
	}
}

// arm watches the records, which may not be there yet: then their directory is watched for.
func (c *changes) arm() { _, _ = c.records.Add(c.stateDir, unix.IN_MODIFY) }

// wait reports whether there was a change, false once ctx has ended.
func (c *changes) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-c.written:
	case <-c.dir.Changed():
	case <-c.begun:
	case _, open := <-c.mounts:
		if !open {
			c.mounts = nil // the records tell, too
		}
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (c *changes) close() {
	c.closeWatches()
	_ = c.records.Close()
}

func (c *changes) closeWatches() {
	c.dir.Close()
	if c.nodes != nil {
		c.nodes.Close()
	}
}

// lines prints the volumes that have changed, for pipes and files.
type lines struct {
	stream *rows.Stream
	err    io.Writer
	shown  map[rows.Key]rows.Row
	source string // as told
}

func newLines(format string, out, errOut io.Writer) *lines {
	return &lines{stream: rows.NewStream(format, out, errOut), err: errOut, shown: make(map[rows.Key]rows.Row)}
}

func (l *lines) show(all []nodeserver.Volume, unanswered error) error {
	knownBy, source := nodeserver.ByNode, "podvol run-node, which runs"
	if unanswered != nil {
		knownBy, source = nodeserver.ByRecords, "the records and the mount table: "+reason(unanswered)
	}
	if source != l.source {
		l.source = source
		fmt.Fprintf(l.err, "From here on known by %s.\n", source)
	}
	there := make(map[rows.Key]rows.Row, len(all))
	for i, row := range rows.AllOf(all, time.Now()) {
		key := l.keyOf(all[i].PodUID, row, there)
		there[key], row.KnownBy = row, knownBy
		if err := l.stream.PrintRow(key, row); err != nil {
			return err
		}
	}
	for key, row := range l.shown {
		if _, still := there[key]; !still {
			if err := l.stream.Gone(key, row); err != nil {
				return err
			}
		}
	}
	l.shown = there
	return nil
}

func (l *lines) silent(since time.Time) { fmt.Fprintln(l.err, silenceText(since)) }

// keyOf is the key under which a volume was shown before, or else one that is free: a volume may be
// found beside the pod's of its name.
func (l *lines) keyOf(uid string, row rows.Row, there map[rows.Key]rows.Row) (free rows.Key) {
	found := false
	for key := (rows.Key{Pod: types.UID(uid), Volume: row.Volume}); ; key.Volume += "+" {
		before, known := l.shown[key]
		_, taken := there[key]
		switch {
		case !taken && known && before.Path == row.Path:
			return key
		case !taken && !found:
			free, found = key, true
		}
		if !taken && !known {
			return free
		}
	}
}

// reason says why the node does not tell of volumes.
func reason(unanswered error) string {
	if errors.Is(unanswered, nodeserver.ErrNoNode) {
		return "no podvol run-node answers"
	}
	return unanswered.Error()
}

func silenceText(since time.Time) string {
	if since.IsZero() {
		return "podvol run-node answers again."
	}
	return "podvol run-node has not answered since " + since.Format(time.TimeOnly) + ": all this may be old."
}
