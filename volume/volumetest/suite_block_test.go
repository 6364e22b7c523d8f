package volumetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume"
)

// TestBlockCases gives suites the wrong cases for what the plugin can do: block
// volumes, and storage that it provisions.
func TestBlockCases(t *testing.T) {
	fileSystem := func(s *Suite) {
		s.Working = slices.DeleteFunc(s.Working, func(c Case) bool { return c.Name == "block" })
	}
	noStorage := func(s *Suite) { s.Storage = nil }
	neither := func(s *Suite) {
		fileSystem(s)
		noStorage(s)
	}
	for name, tc := range map[string]struct {
		plugin volume.VolumePlugin
		change func(*Suite)
		want   string // empty: no mistake
	}{
		"both":                {newDisk(), func(*Suite) {}, ""},
		"capability unproved": {newDisk(), fileSystem, "no working case has volumeMode Block"},
		"no capability":       {newNote(), func(*Suite) {}, `case "block" has volumeMode Block, but`},
		"storage unproved":    {newDisk(), noStorage, "the suite has no Storage"},
		"nothing provisioned": {newNote(), fileSystem, `the Storage "pool", but`},
		"neither":             {newNote(), neither, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := diskSuite()
			tc.change(&s)
			s.findBlocks(t)
			err := s.check(allChecks(), tc.plugin)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want %q", err, tc.want)
			}
		})
	}
}
