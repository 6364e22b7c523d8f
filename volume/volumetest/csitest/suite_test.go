package csitest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
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
	faults
}

// faults are what a caller may do wrong besides.
type faults struct {
	keepsStaged, trustsDirectories, ignoresStage bool
	// life is part of the staging path.
	life string
}

func (n *naive) staging() string { return filepath.Join(n.root, "staging"+n.life) }

func (n *naive) target(pod types.UID) string { return filepath.Join(n.root, "targets", string(pod)) }

func (n *naive) SetUp(ctx context.Context, pod *v1.Pod) (map[string]string, error) {
	claim := pod.Spec.Volumes[0].PersistentVolumeClaim
	if claim == nil || n.killed.Load() {
		return nil, errors.New("not here")
	}
	if err := errors.Join(os.MkdirAll(n.staging(), 0o750), os.MkdirAll(filepath.Join(n.root, "targets"), 0o750)); err != nil {
		return nil, err
	}
	c, target := mountCapability(""), n.target(pod.UID)
	if _, err := os.Stat(target); err == nil && n.trustsDirectories {
		return map[string]string{"data": target}, nil
	}
	if n.ignoresStage {
		ctx = context.WithoutCancel(ctx)
	}
	if _, err := n.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "h1", StagingTargetPath: n.staging(), VolumeCapability: c}); err != nil && !n.ignoresStage {
		return nil, err
	}
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
	if n.keepsStaged {
		return nil
	}
	_, err := n.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "h1", StagingTargetPath: n.staging()})
	return err
}

// VolumeStats asks nobody.
func (n *naive) VolumeStats(context.Context, types.UID, string) error { return nil }

func (n *naive) Kill() { n.killed.Store(true) }

// The checks find what the naive caller lacks, and nothing else: a waived check that
// passes fails.
func TestSuiteFindsWhatIsWrong(t *testing.T) {
	csitest.Run(t, starting(func() faults { return faults{} }), "shared", "inline", "read-only", "secrets", "selinux", "fsgroup", "in-doubt", "refused", "unstaging", "killed-driver",
		"killed-caller-inline", "killed-driver-inline", "killed-caller-block", "killed-driver-block", "killed-caller-republish", "killed-driver-republish",
		"killed-caller-expand", "killed-driver-expand", "killed-caller-stats", "killed-driver-stats",
		"tokens", "registration", "republish", "block", "block-republish", "expansion", "expansion-refused")
}

// starting starts naive callers with faults.
func starting(wrong func() faults) func(*testing.T, csitest.Node) csitest.Caller {
	return func(t *testing.T, n csitest.Node) csitest.Caller {
		conn, err := csitest.Dial(n.Drivers[csitest.DefaultName])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return &naive{node: csi.NewNodeClient(conn), root: n.RootDir, faults: wrong()}
	}
}

// The checks that the naive caller passes find callers that break just their rule.
func TestSuiteFindsEachFault(t *testing.T) {
	lives := 0
	for name, wrong := range map[string]func() faults{
		"order":  func() faults { return faults{keepsStaged: true} },
		"limits": func() faults { return faults{ignoresStage: true} },
		"reboot": func() faults { return faults{trustsDirectories: true} },
		"killed-caller": func() faults { // each life stages elsewhere
			lives++
			return faults{life: strconv.Itoa(lives)}
		},
	} {
		t.Run(name, func(t *testing.T) { csitest.RunWaived(t, name, starting(wrong)) })
	}
}
