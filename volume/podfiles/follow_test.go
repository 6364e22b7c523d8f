package podfiles_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/podfiles"
)

// calls notes what Follow tells.
type calls struct {
	mu  sync.Mutex
	all []string
}

func (c *calls) add(name string, s *podfiles.Set, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && errors.Is(err, volume.ErrNotFound):
		c.all = append(c.all, name+": not found")
	case err != nil:
		c.all = append(c.all, name+": "+err.Error())
	default:
		c.all = append(c.all, name+": "+strings.Join(show(s), ", "))
		clear(s.Files) // the set is the caller's
	}
}

// take returns what was told since the last time.
func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return all
}

// follow runs Follow in the background of a test with virtual time.
func follow(t *testing.T, pod *v1.Pod, from podfiles.WatchSources) (told *calls, stop func()) {
	t.Helper()
	told = &calls{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- podfiles.Follow(ctx, pod, from, told.add) }()
	return told, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Follow: %v", err)
		}
		told.take()
		time.Sleep(time.Hour)
		if late := told.take(); len(late) > 0 {
			t.Errorf("told after the end: %q", late)
		}
	}
}

func (c *calls) want(t *testing.T, when string, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := c.take(); !slices.Equal(got, want) {
		t.Errorf("%s: told %q\nwant %q", when, got, want)
	}
}

func update(t *testing.T, store *objects.Store, o metav1.Object) {
	t.Helper()
	if _, err := store.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// Each change of a file is told once, and nothing else is.
func TestFollowTellsOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := &v1.ConfigMap{ObjectMeta: meta("app"), Data: map[string]string{"a": "1"}}
		store := storeOf(t, config)
		told, stop := follow(t, podWith(configMapVolume("app"), v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}),
			podfiles.WatchSources{Objects: store})
		defer stop()
		told.want(t, "at first", `v: a 0644 "1"`)
		time.Sleep(24 * time.Hour)
		told.want(t, "while nothing changes")

		config.Data = map[string]string{"b": "2"}
		update(t, store, config)
		told.want(t, "after a change", `v: b 0644 "2"`)
		config.Labels = map[string]string{"x": "y"}
		update(t, store, config)
		told.want(t, "after a change of no file")
	})
}

// A volume that cannot be rendered is tried again with a growing pause, and at once when its
// object comes. The other volumes are told all the same.
func TestFollowTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storeOf(t, &v1.ConfigMap{ObjectMeta: meta("app"), Data: map[string]string{"a": "1"}})
		late := secretVolume("late")
		late.Name = "w"
		told, stop := follow(t, podWith(configMapVolume("app"), late), podfiles.WatchSources{Objects: store})
		defer stop()
		synctest.Wait()
		if got := told.take(); len(got) != 2 || !slices.Contains(got, `v: a 0644 "1"`) || !slices.Contains(got, "w: not found") {
			t.Errorf("at first: %q", got)
		}
		time.Sleep(10 * time.Second)
		told.want(t, "within ten seconds", slices.Repeat([]string{"w: not found"}, 4)...) // 0.5 1 2 4
		if _, err := store.Create(t.Context(), &v1.Secret{ObjectMeta: meta("late"), Data: map[string][]byte{"k": []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		told.want(t, "when it comes", `w: k 0400 "x"`)
		if err := store.Delete(t.Context(), volume.NewObjectRef("Secret", "shop", "late"), objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		told.want(t, "when it goes", "w: not found")
	})
}

// Tokens are renewed at 80 % of their life; one that cannot be stays while it is valid.
func TestFollowRenewsTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := &issuer{life: time.Hour}
		token := projectedVolume(v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}})
		var events eventLog
		told, stop := follow(t, podWith(token), podfiles.WatchSources{Objects: storeOf(t), Tokens: tokens, Events: &events})
		defer stop()
		line := func(n int) string {
			return fmt.Sprintf(`v: token 0644 "shop/default for [] to web uid-1, 3600 s, no. %d"`, n)
		}
		told.want(t, "at first", line(1))
		time.Sleep(47 * time.Minute)
		told.want(t, "before it is due")
		time.Sleep(2 * time.Minute)
		told.want(t, "when it was due", line(2))
		tokens.refuse(errors.New("no"))
		time.Sleep(58 * time.Minute)
		told.want(t, "while the old one is valid")
		if got := events.take(); len(got) == 0 || !strings.Contains(got[0], "could not be renewed") {
			t.Errorf("events while the old one is valid: %q", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := told.take(); len(got) == 0 || !strings.Contains(got[0], "cannot get a token") {
			t.Errorf("after its end: %q", got)
		}
		tokens.refuse(nil)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := told.take(); len(got) == 0 || got[len(got)-1] != line(3) {
			t.Errorf("when it can be had again: %q", got)
		}
	})
}

// eventLog keeps the messages of events.
type eventLog struct {
	mu       sync.Mutex
	messages []string
}

func (l *eventLog) Event(_ *v1.Pod, _, _, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = append(l.messages, message)
}

func (l *eventLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.messages = nil }()
	return l.messages
}

// Labels come from the pod as it is now, but not from another pod of its name.
func TestFollowReadsThePodAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		labels := v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "app", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}}}}}
		pod := podWith(labels)
		stored := pod.DeepCopy()
		store := storeOf(t, stored)
		told, stop := follow(t, pod, podfiles.WatchSources{Objects: store})
		defer stop()
		told.want(t, "at first", `v: app 0644 "web"`)
		stored.Labels = map[string]string{"app": "shop"}
		update(t, store, stored)
		told.want(t, "after a change", `v: app 0644 "shop"`)
		ref := volume.NewObjectRef("Pod", "shop", "web")
		if err := store.Delete(t.Context(), ref, objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		told.want(t, "after its end")
		other := podWith(labels)
		other.UID, other.Labels = "uid-2", map[string]string{"app": "other"}
		if _, err := store.Create(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		told.want(t, "after another pod came")
		if pod.Labels["app"] != "web" {
			t.Error("the caller's pod was changed")
		}
	})
}

// A manifest that cannot be is refused as a whole before anything is told.
func TestFollowRefuses(t *testing.T) {
	bad := secretVolume("tls")
	bad.Name, bad.Secret.Items = "w", []v1.KeyToPath{{Key: "k", Path: "/k"}}
	store := storeOf(t, &v1.ConfigMap{ObjectMeta: meta("app")})
	never := func(string, *podfiles.Set, error) { t.Error("it was told something") }
	err := podfiles.Follow(t.Context(), podWith(configMapVolume("app"), bad), podfiles.WatchSources{Objects: store}, never)
	if !isType[*volume.InvalidSpecError](err) || !strings.Contains(err.Error(), `volume "w"`) {
		t.Errorf("a bad path: %v", err)
	}
	if err := podfiles.Follow(t.Context(), podWith(), podfiles.WatchSources{}, never); !isType[*volume.InvalidSpecError](err) {
		t.Errorf("no objects: %v", err)
	}
	if err := podfiles.Follow(t.Context(), nil, podfiles.WatchSources{Objects: store}, never); !isType[*volume.InvalidSpecError](err) {
		t.Errorf("no pod: %v", err)
	}
}

// However a source hangs for one volume, the others are told, and the end is not delayed by
// more than the source's answer to the end of its context.
func TestFollowIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storeOf(t, &v1.ConfigMap{ObjectMeta: meta("app"), Data: map[string]string{"a": "1"}})
		hanging := secretVolume("dead")
		hanging.Name = "w"
		told, stop := follow(t, podWith(hanging, configMapVolume("app")), podfiles.WatchSources{Objects: hangs{store, "dead"}})
		told.want(t, "while one hangs", `v: a 0644 "1"`)
		stop()
	})
}

// hangs is a source that never answers for one name.
type hangs struct {
	*objects.Store
	name string
}

func (h hangs) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ref.Name == h.name {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return h.Store.Get(ctx, ref)
}
