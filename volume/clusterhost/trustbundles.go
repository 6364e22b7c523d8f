package clusterhost

import (
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// TrustBundlesConfig is the configuration of [TrustBundles]; its zero value works.
type TrustBundlesConfig struct {
	// Wait is how long a question waits for the first list of bundles before it is
	// [objects.ErrNotSynced]; 0: 10 seconds.
	Wait time.Duration
	// Logger takes the words of client-go about the watch; nil: they are dropped.
	Logger *slog.Logger
}

// TrustBundles is a [volume.TrustBundleGetter] over the API's
// ClusterTrustBundles, which it lists and watches from the first question on, all
// of them: they are few. It takes certificates.k8s.io/v1 (Kubernetes 1.37), or
// v1beta1 where that is not served, or client-go is older than 0.37. All methods are safe for concurrent use.
//
// Known bundles stand through any outage of the API.
type TrustBundles struct {
	wait time.Duration
	feed *bundleFeed
}

var (
	_ volume.TrustBundleGetter  = (*TrustBundles)(nil)
	_ volume.TrustBundleWatcher = (*TrustBundles)(nil)
)

// NewTrustBundles returns a getter that makes no request yet. It must be closed.
func NewTrustBundles(clientset kubernetes.Interface, config TrustBundlesConfig) *TrustBundles {
	if config.Wait == 0 {
		config.Wait = 10 * time.Second
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	return &TrustBundles{wait: config.Wait, feed: newBundleFeed(clientset, config.Logger)}
}

// GetTrustBundle implements [volume.TrustBundleGetter]. The result is what the
// kubelet shows: the certificates of the bundle, each once, without comments, in
// an order that only depends on which they are. A bundle that is not known yet is
// [objects.ErrNotSynced]; an API server that does not serve bundles a
// [ErrNotServed].
func (t *TrustBundles) GetTrustBundle(ctx context.Context, name string) (string, error) {
	all, err := t.bundles(ctx)
	if err != nil {
		return "", err
	}
	found, ok := all[name]
	if !ok {
		return "", &volume.ObjectNotFoundError{Ref: volume.NewObjectRef(bundleKind, "", name)}
	}
	return normalized(found), nil
}

// GetTrustBundlesBySigner implements [volume.TrustBundleGetter] likewise.
func (t *TrustBundles) GetTrustBundlesBySigner(ctx context.Context, signer string, selector *metav1.LabelSelector) (string, error) {
	selects, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return "", volume.Invalid("clusterTrustBundle.labelSelector", "%v", err)
	}
	all, err := t.bundles(ctx)
	if err != nil {
		return "", err
	}
	var selected []bundle
	for _, b := range all {
		if b.signer == signer && selects.Matches(labels.Set(b.labels)) {
			selected = append(selected, b)
		}
	}
	if len(selected) == 0 {
		return "", &volume.ObjectNotFoundError{Ref: volume.NewObjectRef(bundleKind, "", "of signer "+signer)}
	}
	return normalized(selected...), nil
}

// WatchTrustBundles implements [volume.TrustBundleWatcher].
func (t *TrustBundles) WatchTrustBundles(f func()) (stop func()) { return t.feed.watch(f) }

// Close ends the watch of the bundles, and returns when no watcher runs or will
// be called again. Later questions are answered from the bundles known then, or
// fail. It may be called twice, but not by a watcher.
func (t *TrustBundles) Close() { t.feed.close() }

func (t *TrustBundles) bundles(ctx context.Context) (map[string]bundle, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.wait, fmt.Errorf("cluster trust bundles: %w: the API has not answered within %s", objects.ErrNotSynced, t.wait))
	defer cancel()
	return t.feed.get(ctx)
}

// normalized is the kubelet's normalization: the certificates as PEM, each once,
// in an order of their own. The kubelet's order changes with every start; this one
// does not, so that a restart rewrites nothing.
func normalized(all ...bundle) string {
	certificates := make(map[string]struct{})
	for _, b := range all {
		for rest := []byte(b.pem); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			certificates[string(block.Bytes)] = struct{}{}
		}
	}
	var text strings.Builder
	for _, certificate := range slices.Sorted(maps.Keys(certificates)) {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: []byte(certificate)}) // a Builder takes everything
	}
	return text.String()
}
