package volumetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/harness"
)

// environment is what a plugin mounts with.
type environment string

const (
	onFake   environment = "fake"
	onKernel environment = "kernel"
)

// check is one check of the contract. Exactly one of once, each, refused and
// storage is set.
type check struct {
	// name is "group/what".
	name string
	// proves is the sentence of the contract that a failure would break.
	proves string
	// fakeOnly: there is nothing that a kernel could do otherwise.
	fakeOnly bool
	// block: it runs for cases of volumeMode Block, the others for file systems.
	block bool
	// needs is the capability that the plugin must have; nil: none.
	needs *capability
	// once runs once for a suite, each for every working case, refused for
	// every refused one, storage for each that is to be provisioned.
	once    func(*kit)
	each    func(*kit, Case)
	refused func(*kit, RefusedCase)
	storage func(*kit, StorageCase)
}

// capability is an optional interface of plugins.
type capability struct {
	name string
	has  func(volume.VolumePlugin) bool
}

func capable[C any](name string, as func(volume.VolumePlugin) (C, bool)) *capability {
	return &capability{name: name, has: func(p volume.VolumePlugin) bool {
		_, ok := as(p)
		return ok
	}}
}

// allChecks lists every check, in the order in which they run.
func allChecks() []check {
	return slices.Concat(
		contractChecks(), answerChecks(),
		lifecycleChecks(), tearDownChecks(),
		restartChecks(),
		faultChecks(), tearDownFaultChecks(),
		retryChecks(),
		crashChecks(),
		cancelChecks(),
		concurrencyChecks(),
		hostilityChecks(),
		ownershipChecks(),
		metricsChecks(),
		deviceChecks(),
		storageChecks(),
		recycleChecks(),
		provisionChecks(), deleteChecks(),
	)
}

func (c check) group() string {
	group, _, _ := strings.Cut(c.name, "/")
	return group
}

func (c check) short() string {
	_, short, _ := strings.Cut(c.name, "/")
	return short
}

func (c check) runsOn(e environment) bool { return e == onFake || !c.fakeOnly }

func (c check) String() string { return fmt.Sprintf("%s: %s", c.name, c.proves) }

// kit is what a check works with. It is a testing.TB whose failures carry the
// check's sentence.
type kit struct {
	*harness.T
	runner runner
	on     environment
}

// do is [harness.T.Do] of a check, or of a part of it.
func (k *kit) do(f func(*kit)) (complete bool) { return k.Do(func() { f(k) }) }

// bubble runs f with virtual time, see [harness.T.Bubble].
func (k *kit) bubble(f func(*kit)) {
	k.Helper()
	k.Bubble(func(t *harness.T) { f(&kit{T: t, runner: k.runner, on: k.on}) })
}
