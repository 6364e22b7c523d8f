package volumetest

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
)

// metricsChecks are about GetMetrics.
func metricsChecks() []check {
	return []check{
		{
			name:   "metrics/sane",
			proves: "GetMetrics of a volume that is set up returns numbers that fit together, or ErrMetricsUnsupported.",
			each:   checkMetrics,
		},
		{
			name:   "metrics/not-set-up",
			proves: "GetMetrics of a volume that is not set up is an error, never the numbers of what is there instead, and changes nothing.",
			each:   checkMetricsOfNothing,
		},
		{
			name:     "metrics/bounded",
			proves:   "GetMetrics returns when its context ends.",
			fakeOnly: true,
			each:     checkMetricsBounded,
		},
	}
}

func checkMetrics(k *kit, c Case) {
	v := k.node(c).volume("a")
	v.MustSetUp()
	before := time.Now().Add(-time.Minute)
	m, err := v.GetMetrics(k.Context())
	if errors.Is(err, volume.ErrMetricsUnsupported) {
		return
	}
	if err != nil || m == nil {
		k.Fatalf("GetMetrics = %v, %v", m, err)
	}
	if m.Time.Time.Before(before) || m.Time.After(time.Now().Add(time.Minute)) {
		k.Errorf("the time of measuring is %v, now it is %v", m.Time, time.Now())
	}
	known := false
	for name, q := range map[string]*resource.Quantity{
		"Used": m.Used, "Capacity": m.Capacity, "Available": m.Available,
		"InodesUsed": m.InodesUsed, "Inodes": m.Inodes, "InodesFree": m.InodesFree,
	} {
		if q == nil {
			continue
		}
		known = true
		if q.Sign() < 0 {
			k.Errorf("%s is %v", name, q)
		}
	}
	if !known {
		k.Errorf("no number is known; return ErrMetricsUnsupported where there is none")
	}
	if m.Available != nil && m.Capacity != nil && m.Available.Cmp(*m.Capacity) > 0 {
		k.Errorf("more is available (%v) than there is (%v)", m.Available, m.Capacity)
	}
	if m.InodesFree != nil && m.Inodes != nil && m.InodesFree.Cmp(*m.Inodes) > 0 {
		k.Errorf("more inodes are free (%v) than there are (%v)", m.InodesFree, m.Inodes)
	}
}

func checkMetricsOfNothing(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	if v.Owned() {
		if m, err := v.GetMetrics(k.Context()); err == nil {
			k.Errorf("before SetUp: GetMetrics = %+v without an error", m)
		}
	}
	v.MustSetUp()
	v.MustTearDown()
	if v.Owned() {
		if m, err := v.GetMetrics(k.Context()); err == nil {
			k.Errorf("after TearDown: GetMetrics = %+v without an error", m)
		}
	}
	n.AssertTornDown(k)
}

func checkMetricsBounded(k *kit, c Case) {
	checkHang(k, c, operation{
		name:    "GetMetrics",
		prepare: (*podVolume).MustSetUp,
		run: func(ctx context.Context, v *podVolume) error {
			_, err := v.GetMetrics(ctx)
			if errors.Is(err, volume.ErrMetricsUnsupported) {
				return nil
			}
			return err
		},
	}, false)
	k.bubble(func(k *kit) {
		v := k.node(c).volume("a")
		v.MustSetUp()
		ctx, cancel := context.WithCancel(k.Context())
		cancel()
		m, err := v.GetMetrics(ctx)
		if m == nil && err == nil {
			k.Errorf("with a context that has ended, GetMetrics returns nothing")
		}
		if m != nil && m.Time.IsZero() { // also what is returned beside an error
			k.Errorf("with a context that has ended, GetMetrics = %+v, %v, without a time", m, err)
		}
	})
}
