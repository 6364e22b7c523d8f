package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// withoutClaimsError says why pods with claims are not served.
type withoutClaimsError struct {
	damaged *persistentvolume.DamagedRecordError
}

func (e *withoutClaimsError) Error() string {
	return fmt.Sprintf("claims are not served: %v; then start run-node again", e.damaged)
}

func (e *withoutClaimsError) Unwrap() error { return e.damaged }

// openWithout opens no claims, since a record of them is damaged, so that pods
// without claims are served all the same. What there is, is empty, and goes with
// the command; what is on disk nobody touches.
func (s *storage) openWithout(ctx context.Context, c clusterConfig, damaged *persistentvolume.DamagedRecordError) error {
	dir, err := os.MkdirTemp("", "podvol-without-claims-")
	if err != nil {
		return err
	}
	s.removeDir = func() error { return removetree.Remove(context.Background(), filepath.Dir(dir), filepath.Base(dir)) }
	c.claimsDir = filepath.Join(dir, "claims")
	s.without = &withoutClaimsError{damaged}
	s.Cluster, err = openCluster(ctx, c)
	return err
}

// Apply is the cluster's, for what is no claim and no volume where these are not
// served.
func (s *storage) Apply(ctx context.Context, declared ...metav1.Object) error {
	if s.without == nil {
		return s.Cluster.Apply(ctx, declared...)
	}
	var others []metav1.Object
	for _, object := range declared {
		switch object.(type) {
		case *v1.PersistentVolumeClaim, *v1.PersistentVolume:
		default:
			others = append(others, object)
		}
	}
	return s.Cluster.Apply(ctx, others...)
}

// Place is the cluster's, for pods without claims where these are not served.
func (s *storage) Place(ctx context.Context, pod *v1.Pod) error {
	if s.without != nil && usesClaims([]*v1.Pod{pod}) {
		return s.without
	}
	return s.Cluster.Place(ctx, pod)
}

// Explain is the cluster's, unless claims are not served.
func (s *storage) Explain(ctx context.Context, claim types.NamespacedName) error {
	if s.without != nil {
		return s.without
	}
	return s.Cluster.Explain(ctx, claim)
}

// PodsComplete is the cluster's, unless claims are not served.
func (s *storage) PodsComplete() {
	if s.without == nil {
		s.Cluster.PodsComplete()
	}
}

// Prune is the cluster's, unless claims are not served.
func (s *storage) Prune(ctx context.Context, declared embedded.Declared) error {
	if s.without == nil {
		return s.Cluster.Prune(ctx, declared)
	}
	return nil
}
