package clusterhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/following"
	"github.com/podvol/podvol/volume/objects"
)

const (
	bundleKind = "ClusterTrustBundle"
	// notServedFor is how long the answer stands that bundles are not served.
	notServedFor     = 30 * time.Second
	firstBundlePause = time.Second
	lastBundlePause  = 30 * time.Second
)

// ErrNotServed says that the API server does not serve ClusterTrustBundles in a version that
// this program's k8s.io modules know.
const ErrNotServed volume.Cause = "the API server serves ClusterTrustBundles in no version that this program can ask for: certificates.k8s.io/v1 needs Kubernetes 1.37 and a program " +
	"built with k8s.io modules 0.37 or later; v1beta1 needs Kubernetes 1.33 or later with the feature gate ClusterTrustBundle and --runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true"

// bundle has the fields that count of a ClusterTrustBundle of either version.
type bundle struct {
	name, signer, pem string
	labels            map[string]string
}

func (b bundle) equal(other bundle) bool {
	return b.name == other.name && b.signer == other.signer && b.pem == other.pem && maps.Equal(b.labels, other.labels)
}

// bundleVersion is one version of the API that may be served.
type bundleVersion struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func bundleVersions(c kubernetes.Interface) []bundleVersion {
	var versions []bundleVersion
	if stable, ok := following.StableTrustBundles(c); ok {
		versions = append(versions, bundleVersion{stable.List, stable.Watch})
	}
	beta := following.BetaTrustBundles(c)
	return append(versions, bundleVersion{beta.List, beta.Watch})
}

func bundleOf(object any) (bundle, bool) {
	b, ok := kubeapi.TrustBundleOf(object)
	return bundle{name: b.Name, signer: b.SignerName, pem: b.PEM, labels: b.Labels}, ok
}

// bundleFeed keeps the bundles of the cluster, from the first question on. It is
// the store that a reflector fills.
type bundleFeed struct {
	clientset kubernetes.Interface
	logger    klog.Logger
	run       sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	end      context.CancelFunc // of what runs; nil: nothing
	refused  time.Time          // when the API server last said that it serves none
	answered chan struct{}      // closed with the first answer or failure
	synced   bool
	all      map[string]bundle
	err      error // of the last look-up, until one succeeds
	watchers map[*objects.Watcher]struct{}
}

var _ cache.ReflectorStore = (*bundleFeed)(nil)

func newBundleFeed(clientset kubernetes.Interface, logger *slog.Logger) *bundleFeed {
	return &bundleFeed{clientset: clientset, logger: logr.FromSlogHandler(logger.Handler()), answered: make(chan struct{}),
		all: make(map[string]bundle), watchers: make(map[*objects.Watcher]struct{})}
}

// get returns all bundles by name, as a map that is never changed, once there is an answer.
func (f *bundleFeed) get(ctx context.Context) (map[string]bundle, error) {
	select {
	case <-f.start():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced {
		return nil, f.err
	}
	return f.all, nil
}

// start has the bundles watched, unless they are or it makes no sense.
func (f *bundleFeed) start() (answered <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.end != nil:
	case f.closed:
		if !f.synced && f.err == nil {
			f.err = errors.New("cluster trust bundles: the getter is closed")
			f.answer()
		}
	case f.refusedFor() <= 0 || len(f.watchers) > 0:
		ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), f.logger))
		f.end = cancel
		later := f.refusedFor()
		if !f.synced && later <= 0 {
			f.answered = make(chan struct{})
		}
		f.run.Go(func() { f.follow(ctx, later) })
	}
	return f.answered
}

// refusedFor is how long the answer still stands that bundles are not served. f is
// locked.
func (f *bundleFeed) refusedFor() time.Duration { return notServedFor - time.Since(f.refused) }

func (f *bundleFeed) close() {
	f.mu.Lock()
	f.closed = true
	if f.end != nil {
		f.end()
	}
	watchers := f.watchers
	f.watchers = make(map[*objects.Watcher]struct{})
	f.mu.Unlock()
	f.run.Wait()
	for w := range watchers {
		w.Stop()
	}
}

// follow keeps the bundles up to date, from later on, until ctx ends, or the API
// server says that it serves none and there is no watcher to be told.
func (f *bundleFeed) follow(ctx context.Context, later time.Duration) {
	pause := retry.Pause{First: firstBundlePause, Last: lastBundlePause}
	for pausedFor(ctx, later) {
		served, err := f.servedVersion(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			f.reflect(ctx, served) // until that version is not served any more
			pause = retry.Pause{First: firstBundlePause, Last: lastBundlePause}
		default:
			f.fail(fmt.Errorf("cluster trust bundles: %w", err))
			if errors.Is(err, ErrNotServed) {
				if f.rests() {
					return
				}
				pause = retry.Pause{First: notServedFor, Last: lastBundlePause}
			}
		}
		later = wait.Jitter(pause.Next(), 0.2)
	}
	f.stopped()
}

// pausedFor returns false as soon as ctx ends.
func pausedFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// rests ends the following after the API server has said that it serves no bundles,
// unless a watcher is to be told of them, or there were some, so that a proxy without
// an API server may have said it.
func (f *bundleFeed) rests() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.synced || len(f.watchers) > 0 {
		return false
	}
	f.end()
	f.end = nil
	return true
}

func (f *bundleFeed) stopped() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end()
	f.end = nil
}

// servedVersion asks which version the API server serves.
func (f *bundleFeed) servedVersion(ctx context.Context) (bundleVersion, error) {
	for _, version := range bundleVersions(f.clientset) {
		_, err := version.list(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case apierrors.IsForbidden(err) && !f.discovered(ctx):
			// A server that authorizes asks first who may, and only then what there
			// is; where bundles are off, nodes have no right to them either.
			return bundleVersion{}, ErrNotServed
		}
		return version, err
	}
	return bundleVersion{}, ErrNotServed
}

// discovered reports whether the API server names bundles among what it serves, or
// does not say.
func (f *bundleFeed) discovered(ctx context.Context) bool {
	for _, version := range []schema.GroupVersion{certificatesv1.SchemeGroupVersion, certificatesv1beta1.SchemeGroupVersion} {
		served, err := following.ServerResources(ctx, f.clientset.Discovery(), version)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return true
		case slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Kind == bundleKind }):
			return true
		}
	}
	return false
}

// reflect lists and watches one version until ctx ends or it is not served. Lists,
// watches and their pauses are the follower's.
func (f *bundleFeed) reflect(ctx context.Context, version bundleVersion) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bundles := &following.Follower{Kind: bundleKind, Clientset: f.clientset, Logger: f.logger, Store: f, Watch: version.watch,
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := version.list(ctx, options)
			if apierrors.IsNotFound(err) {
				cancel()
				f.fail(fmt.Errorf("cluster trust bundles: %w", err))
			}
			return list, err
		},
		Failed: func(err error) { f.fail(fmt.Errorf("cluster trust bundles: %w", err)) },
	}
	bundles.Run(ctx)
}

// fail keeps the error of a look-up for watchers without an answer yet. A known
// answer stands.
func (f *bundleFeed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, ErrNotServed) {
		f.refused = time.Now()
	}
	if !f.synced {
		f.err = err
		f.answer()
	}
}

// answer wakes the callers that wait for the first answer. f is locked.
func (f *bundleFeed) answer() {
	select {
	case <-f.answered:
	default:
		close(f.answered)
	}
}

// Add implements the reflector's store.
func (f *bundleFeed) Add(item any) error { return f.Update(item) }

// Update implements the reflector's store.
func (f *bundleFeed) Update(item any) error {
	f.change(func(all map[string]bundle) {
		if b, ok := bundleOf(item); ok {
			all[b.name] = b
		}
	})
	return nil
}

// Delete implements the reflector's store.
func (f *bundleFeed) Delete(item any) error {
	f.change(func(all map[string]bundle) {
		if b, ok := bundleOf(item); ok {
			delete(all, b.name)
		}
	})
	return nil
}

// Replace implements the reflector's store: the list is all there is.
func (f *bundleFeed) Replace(list []any, _ string) error {
	f.change(func(all map[string]bundle) {
		clear(all)
		for _, item := range list {
			if b, ok := bundleOf(item); ok {
				all[b.name] = b
			}
		}
	})
	return nil
}

// Resync implements the reflector's store; there is nothing behind it.
func (f *bundleFeed) Resync() error { return nil }

// change takes over what the API has said, and tells of it if it is news.
func (f *bundleFeed) change(apply func(map[string]bundle)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(f.all)
	apply(next)
	news := !f.synced || !maps.EqualFunc(f.all, next, bundle.equal)
	f.all, f.synced, f.err, f.refused = next, true, nil, time.Time{}
	f.answer()
	if !news {
		return
	}
	for w := range f.watchers {
		w.Notify(volume.ObjectRef{Kind: bundleKind})
	}
}

// watch tells f of changes, and of what becomes known.
func (f *bundleFeed) watch(call func()) (stop func()) {
	w := objects.NewWatcher(func(volume.ObjectRef) { call() })
	f.mu.Lock()
	if !f.closed {
		f.watchers[w] = struct{}{}
	}
	f.mu.Unlock()
	f.start()
	return func() {
		f.mu.Lock()
		delete(f.watchers, w)
		f.mu.Unlock()
		w.Stop()
	}
}
