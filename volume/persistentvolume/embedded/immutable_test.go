package embedded_test

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// A claim never asks for less than it has, and takes back only what it has not
// got.
func TestAClaimDoesNotShrinkBelowWhatItHas(t *testing.T) {
	m := newMachine(t)
	m.run()
	ask := func(size string) error {
		return m.Apply(t.Context(), objectsOf(t, strings.Replace(claimOfStatic, "storage: 1Gi", "storage: "+size, 1))...)
	}
	m.mustBind(static + claimOfStatic + web)
	for _, step := range []struct {
		size string
		says string // empty: it is taken
	}{
		{"3Gi", ""},
		{"2Gi", ""}, // it has got no more than 1Gi
		{"512Mi", `spec.resources.requests.storage cannot become "512Mi", it stays "2Gi", since the claim has volume "static" of 1Gi, which becomes no smaller; ` +
			"put the manifest back, or ask for 1Gi: it can not be less than status.capacity"},
		{"1Gi", ""},
		{"1023Mi", `it stays "1Gi"`},
	} {
		err := ask(step.size)
		refused, _ := errors.AsType[*volume.Failure](err)
		ok := errors.Is(err, embedded.ErrImmutable)
		if ok != (step.says != "") || !ok && err != nil || ok && (!strings.HasSuffix(refused.Subject, " spec.resources.requests.storage") || !strings.Contains(err.Error(), step.says)) {
			t.Errorf("%s: %v", step.size, err)
		}
		want := m.claim("data").Spec.Resources.Requests[v1.ResourceStorage]
		if !ok && want.String() != step.size {
			t.Errorf("it asks for %s, want %s", want.String(), step.size)
		}
	}
}
