package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Reason is why a claim had no volume when a [Cluster] synced it last.
type Reason struct {
	// UID is the claim's.
	UID types.UID `json:"uid"`
	// Text is the error of [Cluster.Explain], or why no pod with the claim could be
	// placed, without the claim's name.
	Text string `json:"text"`
	// Failed is why no volume could be made for it when that was tried last; empty: it was not
	// tried, or it has not failed. Text may say something else since: that the class is gone.
	Failed string `json:"failed,omitempty"`
	// Since is when it was found first.
	Since time.Time `json:"since"`
	// Ended is when the cluster ended that has said so; nil while it runs. One that
	// was killed leaves it so, too.
	Ended *time.Time `json:"-"`
}

// ReadReasons returns, by claim as "namespace/name", why claims had no volume,
// for programs that show it and run no cluster. The cluster with this
// [Config.Dir] writes it down when the answer of [Cluster.Explain] changes. It
// takes no lock. A row may be of a claim that was deleted or bound since.
func ReadReasons(dir string) (map[string]Reason, error) {
	var file reasonsFile
	data, err := os.ReadFile(filepath.Join(dir, reasonsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		return nil, fmt.Errorf("why claims are not bound: %w", err)
	}
	for name, reason := range file.Claims {
		if reason.Ended = file.Ended; reason.Ended != nil {
			file.Claims[name] = reason
		}
	}
	return file.Claims, nil
}

// reasonsName is no record's name.
const reasonsName = "reasons.json"

type reasonsFile struct {
	Ended  *time.Time        `json:"ended,omitempty"`
	Claims map[string]Reason `json:"claims"`
}

// reasons are why claims have no volumes, as far as that is written down. Losing
// some in a crash costs nothing: they are found again.
type reasons struct {
	tell func(types.NamespacedName) // Config.Explained
	news chan struct{}

	mu      sync.Mutex
	changed map[types.NamespacedName]bool
	placed  map[types.NamespacedName]placing // what keeps pods from being placed
	waiting map[chan struct{}]bool           // of heard
	before  map[string]Reason                // what was known at start; only read
	// The rest is the writer's own, after start.
	known map[string]Reason
	ended bool // as the file says
}

// placing is why a pod that has a claim cannot be placed.
type placing struct {
	pod volume.ObjectRef
	err error
}

func (r *reasons) start(config Config) {
	r.tell, r.news = config.Explained, make(chan struct{}, 1)
	r.changed, r.placed = make(map[types.NamespacedName]bool), make(map[types.NamespacedName]placing)
	r.waiting = make(map[chan struct{}]bool)
	if r.known, _ = ReadReasons(config.Dir); r.known == nil { // lost reasons are found again
		r.known = make(map[string]Reason)
	}
	for name, reason := range r.known {
		r.ended, reason.Ended = reason.Ended != nil, nil
		r.known[name] = reason
	}
	r.before = maps.Clone(r.known)
}

// explained is told of each change of what the controller says.
func (r *reasons) explained(claim types.NamespacedName) {
	r.note(claim)
	r.mu.Lock()
	for waits := range r.waiting {
		select {
		case waits <- struct{}{}:
		default:
		}
	}
	r.mu.Unlock()
	if r.tell != nil {
		r.tell(claim)
	}
}

// heard returns a channel that has a value after what the controller says has changed.
func (r *reasons) heard() (news <-chan struct{}, stop func()) {
	waits := make(chan struct{}, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[waits] = true
	return waits, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, waits)
	}
}

func (r *reasons) note(claim types.NamespacedName) {
	r.mu.Lock()
	r.changed[claim] = true
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// placing is told why a pod has not got a claim, nil if it has.
func (r *reasons) placing(claim types.NamespacedName, pod volume.ObjectRef, err error) {
	r.mu.Lock()
	before, was := r.placed[claim]
	if err == nil {
		delete(r.placed, claim)
	} else {
		r.placed[claim] = placing{pod, err}
	}
	r.mu.Unlock()
	if was != (err != nil) || was && before.err.Error() != err.Error() {
		r.note(claim)
	}
}

// reasonsPause keeps many changes from being written one by one.
const reasonsPause = 200 * time.Millisecond

// recordReasons writes down changes until ctx ends.
func (c *Cluster) recordReasons(ctx context.Context) {
	c.writeReasons(ctx, false) // that are synced again
	for {
		select {
		case <-c.reasons.news:
		case <-ctx.Done():
			return
		}
		c.writeReasons(ctx, false)
		select {
		case <-time.After(reasonsPause):
		case <-ctx.Done():
			return
		}
	}
}

// writeReasons writes down the changes, also when ctx ends. One goroutine calls
// it at a time.
func (c *Cluster) writeReasons(ctx context.Context, ended bool) {
	r, ctx := &c.reasons, context.WithoutCancel(ctx)
	r.mu.Lock()
	changed := r.changed
	r.changed = make(map[types.NamespacedName]bool)
	r.mu.Unlock()
	before := maps.Clone(r.known)
	for claim := range changed {
		c.renewReason(ctx, claim)
	}
	for name, reason := range r.known {
		if !isWaiting(ctx, c.objects, name, reason.UID) {
			delete(r.known, name)
		}
	}
	if maps.Equal(before, r.known) && (ended == r.ended || len(r.known) == 0) {
		return
	}
	r.ended = ended
	file := reasonsFile{Claims: r.known}
	if ended {
		file.Ended = new(time.Now().UTC().Truncate(time.Second))
	}
	data, err := json.Marshal(file)
	if err == nil {
		err = durable.WriteFile(filepath.Join(c.dir, reasonsName), data, 0o600)
	}
	if err != nil {
		c.log.WarnContext(ctx, "not written down why claims are not bound", "error", err)
	}
}

func (c *Cluster) renewReason(ctx context.Context, name types.NamespacedName) {
	r := &c.reasons
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.objects, volume.NewObjectRef(kindClaim, name.Namespace, name.Name))
	why := c.why(ctx, name)
	switch {
	case err != nil || why == nil:
		delete(r.known, name.String())
		return
	case errors.Is(why, persistentvolume.ErrNotSynced):
		return // and told again soon
	}
	text := strings.TrimPrefix(why.Error(), fmt.Sprintf("bind PersistentVolumeClaim %q: ", name))
	known, failed := r.known[name.String()], ""
	switch {
	case errors.Is(why, persistentvolume.ErrNoClass) && known.UID == claim.UID:
		failed = known.Failed
	case errors.Is(why, persistentvolume.ErrNotProvisioned):
		failed = text
	}
	if known.Text != text || known.UID != claim.UID {
		r.known[name.String()] = Reason{UID: claim.UID, Text: text, Failed: failed, Since: time.Now().UTC().Truncate(time.Second)}
	}
}

// why returns what Explain does, unless the claim waits for a pod that there is,
// and that cannot be placed.
func (c *Cluster) why(ctx context.Context, claim types.NamespacedName) error {
	why := c.Explain(ctx, claim)
	c.reasons.mu.Lock()
	placed, is := c.reasons.placed[claim]
	c.reasons.mu.Unlock()
	if !is || !errors.Is(why, index.ErrWaitsForConsumer) {
		return why
	}
	if _, err := c.objects.Get(ctx, placed.pod); err != nil {
		return why
	}
	return placed.err
}

// isWaiting reports whether there is still this claim, without a volume.
func isWaiting(ctx context.Context, source objects.Source, name string, uid types.UID) bool {
	namespace, name, _ := strings.Cut(name, "/")
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, source, volume.NewObjectRef(kindClaim, namespace, name))
	return err == nil && claim.UID == uid && claim.Status.Phase != v1.ClaimBound
}
