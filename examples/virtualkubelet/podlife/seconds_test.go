package podlife

import (
	"math"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// More seconds than a duration can hold are many, not none.
func TestSeconds(t *testing.T) {
	for n, want := range map[int64]time.Duration{-1: 0, 0: 0, 30: 30 * time.Second, math.MaxInt64: math.MaxInt64 / time.Second * time.Second} {
		if got := secondsOf(n); got != want {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
	}
	huge := int64(math.MaxInt64)
	pod := &v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: &huge}}
	if got := gracePeriod(pod); got < 24*time.Hour {
		t.Errorf("the longest grace period is %v", got)
	}
}
