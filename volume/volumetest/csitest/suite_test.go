package csitest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// naive is a caller that makes the right calls once, and knows nothing else.
type naive struct {
	node   csi.NodeClient
	root   string
	killed atomic.Bool
}

func (n *naive) staging() string { return filepath.Join(n.root, "staging") }

func (n *naive) target(pod types.UID) string { return filepath.Join(n.root, "targets", string(pod)) }

func (n *naive) SetUp(ctx context.Context, pod *v1.Pod) (map[string]string, error) {
	claim := pod.Spec.Volumes[0].PersistentVolumeClaim
	if claim == nil || n.killed.Load() {
		return nil, errors.New("not here")
	}
	if err := errors.Join(os.MkdirAll(n.staging(), 0o750), os.MkdirAll(filepath.Join(n.root, "targets"), 0o750)); err != nil {
		return nil, err
	}
	c := mountCapability("")
	if _, err := n.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "h1", StagingTargetPath: n.staging(), VolumeCapability: c}); err != nil {
		return nil, err
	}
	target := n.target(pod.UID)
	_, err := n.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "h1", StagingTargetPath: n.staging(), TargetPath: target, VolumeCapability: c, Readonly: claim.ReadOnly})
	return map[string]string{"data": target}, err
}

func (n *naive) TearDown(ctx context.Context, pod types.UID) error {
	if n.killed.Load() {
		return errors.New("killed")
	}
	if _, err := n.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "h1", TargetPath: n.target(pod)}); err != nil {
		return err
	}
	_, err := n.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "h1", StagingTargetPath: n.staging()})
	return err
}

func (n *naive) Kill() { n.killed.Store(true) }

// The checks find what the naive caller lacks, and nothing else: a waived check that
// passes fails.
func TestSuiteFindsWhatIsWrong(t *testing.T) {
	csitest.Run(t, func(t *testing.T, n csitest.Node) csitest.Caller {
		conn, err := csitest.Dial(n.Drivers[csitest.DefaultName])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return &naive{node: csi.NewNodeClient(conn), root: n.RootDir}
	}, "shared", "inline", "read-only", "secrets", "selinux", "fsgroup", "in-doubt", "refused", "killed-driver",
		"tokens", "registration", "republish", "block", "block-republish")
}
