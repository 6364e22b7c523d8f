package csi_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func wrong(status spec.VolumeHealthErrorType, reason, message string) *spec.VolumeHealth_VolumeHealthEntry {
	return &spec.VolumeHealth_VolumeHealthEntry{Status: status, Reason: reason, Message: message}
}

// Upstream's rows of a volume's health: statistics with and without a condition, and by the
// call of CSI 1.13. The condition that drivers of 1.12 tell with their statistics is read too.
func TestVolumeHealth(t *testing.T) {
	const handle = "h1"
	normal := volume.Condition{}
	for name, tc := range map[string]struct {
		stats, health, old bool
		wrong              []*spec.VolumeHealth_VolumeHealthEntry
		want               *volume.Condition // nil: none
		unsupported        bool
	}{
		"stats, healthy":             {stats: true, health: true, want: &normal},
		"stats, no health":           {stats: true},
		"health alone":               {health: true, want: &normal},
		"neither":                    {unsupported: true},
		"degraded":                   {stats: true, health: true, wrong: []*spec.VolumeHealth_VolumeHealthEntry{wrong(spec.VolumeHealthErrorType_DEGRADED, "Slow", "one path of two")}, want: &volume.Condition{Abnormal: true, Message: "Degraded (Slow): one path of two"}},
		"inaccessible, health alone": {health: true, wrong: []*spec.VolumeHealth_VolumeHealthEntry{wrong(spec.VolumeHealthErrorType_INACCESSIBLE, "Gone", "")}, want: &volume.Condition{Abnormal: true, Message: "Inaccessible (Gone)"}},
		"several": {stats: true, health: true, wrong: []*spec.VolumeHealth_VolumeHealthEntry{wrong(spec.VolumeHealthErrorType_DATA_LOSS, "Bad", "2 blocks\nlost"), wrong(spec.VolumeHealthErrorType_DEGRADED, "Slow", "")},
			want: &volume.Condition{Abnormal: true, Message: "DataLoss (Bad): 2 blocks lost; Degraded (Slow)"}},
		"of a later specification": {stats: true, health: true, wrong: []*spec.VolumeHealth_VolumeHealthEntry{wrong(99, "New", "what is not known")}, want: &normal},
		"1.12, normal":             {stats: true, old: true, want: &normal},
		"1.12, abnormal":           {stats: true, old: true, wrong: []*spec.VolumeHealth_VolumeHealthEntry{wrong(0, "", "a disk has failed")}, want: &volume.Condition{Abnormal: true, Message: "a disk has failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			dc.Capabilities.Stats, dc.Capabilities.Health, dc.Capabilities.Condition = tc.stats, tc.health, tc.old
			dc.VolumeHealth = map[string][]*spec.VolumeHealth_VolumeHealthEntry{handle: tc.wrong}
			b := newBench(t, dc, csi.Config{})
			s := pvSpec()
			b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
			m, err := b.mounter(s, pod("u1")).GetMetrics(t.Context())
			switch {
			case tc.unsupported:
				if !errors.Is(err, volume.ErrMetricsUnsupported) {
					t.Errorf("%+v, %v", m, err)
				}
			case err != nil || m.Time.IsZero() || (m.Capacity != nil) != tc.stats:
				t.Errorf("%+v, %v", m, err)
			case (m.Condition == nil) != (tc.want == nil) || m.Condition != nil && *m.Condition != *tc.want:
				t.Errorf("condition %+v, want %+v", m.Condition, tc.want)
			}
			if tc.health {
				r := lastRequest[*spec.NodeGetVolumeHealthRequest](b, "NodeGetVolumeHealth")
				if r.VolumeId != handle || r.StagingTargetPath != b.devicePath(s) || r.VolumePublishPath != b.mounter(s, pod("u1")).GetPath() {
					t.Errorf("asked with %v", r)
				}
			}
			b.must(b.tearDown(s, "u1"))
		})
	}
}

// A volume whose size cannot be told has its condition all the same, and a condition that
// cannot be told stays the last.
func TestConditionOutlivesFailures(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	m := b.mounter(s, pod("u1"))
	if told, err := m.GetMetrics(t.Context()); err != nil || told.Condition == nil || told.Condition.Abnormal {
		t.Fatalf("%+v, %v", told, err)
	}
	b.driver.Configure(func(c *csitest.Config) {
		c.VolumeHealth = map[string][]*spec.VolumeHealth_VolumeHealthEntry{s.PersistentVolume.Spec.CSI.VolumeHandle: {wrong(spec.VolumeHealthErrorType_INACCESSIBLE, "Gone", "")}}
	})
	mended := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeGetVolumeStats"), Err: status.Error(codes.Internal, "input/output error")})
	told, err := m.GetMetrics(t.Context())
	if err == nil || told == nil || told.Condition == nil || !told.Condition.Abnormal || told.Capacity == nil {
		t.Errorf("without a size: %+v, %v", told, err)
	}
	mended()
	mended = b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeGetVolumeHealth"), Err: status.Error(codes.Internal, "input/output error")})
	told, err = m.GetMetrics(t.Context())
	if err != nil || told.Condition == nil || !told.Condition.Abnormal {
		t.Errorf("without a new condition: %+v, %v", told, err)
	}
	mended()
	b.must(b.tearDown(s, "u1"))
}

func backend(status spec.StorageHealthErrorType, reason string, c *spec.VolumeCapability) *spec.NodeGetStorageHealthResponse_StorageBackendHealth {
	return &spec.NodeGetStorageHealthResponse_StorageBackendHealth{Status: status, Reason: reason, VolumeCapability: c}
}

// Upstream's rows of the storage's health. It is asked for at the occasion of a measurement, and
// not with each.
func TestStorageHealth(t *testing.T) {
	block := &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	type backends = []*spec.NodeGetStorageHealthResponse_StorageBackendHealth
	for name, tc := range map[string]struct {
		tells bool
		wrong backends
		want  *volume.Condition
	}{
		"not offered": {},
		"healthy":     {tells: true, want: &volume.Condition{}},
		"degraded":    {tells: true, wrong: backends{backend(spec.StorageHealthErrorType_STORAGE_DEGRADED, "Slow", nil)}, want: &volume.Condition{Abnormal: true, Message: "StorageDegraded (Slow)"}},
		"unreachable for block volumes": {tells: true, wrong: backends{backend(spec.StorageHealthErrorType_STORAGE_UNREACHABLE, "Gone", block), backend(99, "New", nil)},
			want: &volume.Condition{Abnormal: true, Message: "StorageUnreachable (Gone) [block volumes of access mode SINGLE_NODE_WRITER]"}},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			dc.Capabilities.Health, dc.StorageHealth = tc.tells, tc.wrong
			b := newBench(t, dc, csi.Config{})
			s := pvSpec()
			b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
			for range 2 {
				if _, err := b.mounter(s, pod("u1")).GetMetrics(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			got := b.plugin.Drivers()[0].Storage
			if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
				t.Errorf("storage %+v, want %+v", got, tc.want)
			}
			if n := strings.Count(strings.Join(b.methods(), " "), "NodeGetStorageHealth"); tc.tells != (n == 1) {
				t.Errorf("asked %d times", n)
			}
			b.must(b.tearDown(s, "u1"))
		})
	}
}

// A driver that does not answer about health costs the measurement nothing but the time that its
// caller gives it.
func TestHealthThatHangs(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	released := make(chan struct{})
	mended := b.driver.Inject(csitest.Fault{Release: released, Match: func(c csitest.Call) bool {
		if c.Method != "NodeGetVolumeHealth" {
			return false
		}
		cancel() // the caller's patience ends once the driver has the call
		return true
	}})
	m, err := b.mounter(s, pod("u1")).GetMetrics(ctx)
	if err != nil || m.Capacity == nil || m.Condition != nil {
		t.Errorf("%+v, %v", m, err)
	}
	close(released)
	mended()
	b.must(b.tearDown(s, "u1"))
}
