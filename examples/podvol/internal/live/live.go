// Package live shows volumes, and each change of them as it comes: for podvol status --watch.
// While nothing changes it does nothing.
package live

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
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
}

// Show shows the volumes below a root directory until ctx ends, which is no error: by the podvol
// run-node that keeps them, or by the records and the mount table while none does.
func Show(ctx context.Context, c Config) error {
	show := newLines(c.Format, c.Out, c.Err).show
	if table.TerminalWidth(c.Out) > 0 && c.Format == "table" {
		s := newScreen(c.Out)
		defer s.close()
		show = s.show
	}
	for ctx.Err() == nil {
		err := nodeserver.Watch(ctx, c.RootDir, func(all map[string]nodeserver.Volume) error {
			return show(slices.SortedFunc(maps.Values(all), rows.Compare))
		})
		if err == nil || errors.Is(err, nodeserver.ErrNoNode) || err == io.EOF {
			err = c.byRecords(ctx, show)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// pause gathers changes.
const pause = 100 * time.Millisecond

// byRecords shows what the records and the mount table say, until there is a node to ask.
func (c Config) byRecords(ctx context.Context, show func([]nodeserver.Volume) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes, err := newChanges(ctx, c.RootDir, c.Mounts, nodeserver.WatchNodes)
	if err != nil {
		return err
	}
	defer changes.close()
	for {
		changes.arm()
		if _, err := nodeserver.Volumes(ctx, c.RootDir); !errors.Is(err, nodeserver.ErrNoNode) {
			return nil // or ctx has ended
		}
		found, err := volumemanager.Inspect(c.RootDir, c.Mounts)
		if _, fatal := errors.AsType[*volumemanager.RootError](err); fatal {
			return err
		}
		volumes, err := nodeserver.VolumesOf(found)
		if err := errors.Join(err, show(volumes)); err != nil {
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
	shown  map[rows.Key]nodeserver.Volume
}

func newLines(format string, out, errOut io.Writer) *lines {
	return &lines{rows.NewStream(format, out, errOut), make(map[rows.Key]nodeserver.Volume)}
}

func (l *lines) show(all []nodeserver.Volume) error {
	there := make(map[rows.Key]nodeserver.Volume, len(all))
	for _, v := range all {
		key := l.keyOf(v, there)
		there[key] = v
		if err := l.stream.PrintRow(key, rows.OfNode(v)); err != nil {
			return err
		}
	}
	for key, v := range l.shown {
		if _, still := there[key]; !still {
			v.State, v.Error, v.Server = string(volumemanager.StateUnmounted), "", nil
			if err := l.stream.PrintRow(key, rows.OfNode(v)); err != nil {
				return err
			}
		}
	}
	l.shown = there
	return nil
}

// keyOf is the key under which a volume was shown before, or else one that is free: a volume may be
// found beside the pod's of its name.
func (l *lines) keyOf(v nodeserver.Volume, there map[rows.Key]nodeserver.Volume) (free rows.Key) {
	found := false
	for key := (rows.Key{Pod: types.UID(v.PodUID), Volume: v.Volume}); ; key.Volume += "+" {
		before, known := l.shown[key]
		_, taken := there[key]
		switch {
		case !taken && known && before.Path == v.Path:
			return key
		case !taken && !found:
			free, found = key, true
		}
		if !taken && !known {
			return free
		}
	}
}

func rowOf(v nodeserver.Volume) rows.Row {
	r := rows.Row{Pod: v.PodName(), Volume: v.Volume, Plugin: v.Plugin, Source: v.Source, State: v.State, Path: v.Path, DurationSeconds: v.DurationSeconds, Error: v.Error}
	if v.Server != nil && !v.Server.Answers {
		r.Server = v.Server.Name + " does not answer"
	}
	return r
}
