package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// What a run has mounted others leave alone until it ends, and what is for one
// pod alone is for one run alone.
func TestOthersSeeWhatARunUses(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, volumes := t.TempDir(), t.TempDir()
		file := manifestFile(t, strings.Replace(madeForRuns, "ReadWriteOnce]", "ReadWriteOncePod]", 1))
		in, input := io.Pipe()
		output, out := io.Pipe()
		var said bytes.Buffer
		ended := make(chan int, 1)
		go func() {
			ended <- run(t.Context(), []string{"run", "-f", file, "--root-dir", base, "--volume-dir", volumes, "--", "sh", "-c", "echo ready; cat > /v/kept"},
				streams{in: in, out: out, err: &said})
			out.Close()
		}()
		waitFor(t, output, "ready\n")
		const inUse = "in use by podvol run (process "
		deletion := []string{"pvc", "delete", "default/data", "--root-dir", base, "--volume-dir", volumes}
		for _, args := range [][]string{
			{"run", "-f", file, "--root-dir", base, "--volume-dir", volumes, "--", "true"},
			{"mount", "-f", file, "--root-dir", base, "--volume-dir", volumes},
			deletion, append(deletion, "--dry-run"),
		} {
			code, _, errOut := podvol(t, "", args...)
			if code == 0 || !strings.Contains(errOut, inUse) || !strings.Contains(errOut, "of pod default/web") {
				t.Errorf("podvol %s: exit code %d: %s", strings.Join(args, " "), code, errOut)
			}
		}
		if _, err := input.Write([]byte("data")); err != nil {
			t.Error(err)
		}
		input.Close()
		if code := <-ended; code != 0 {
			t.Errorf("exit code %d: %s", code, &said)
		}
		kept, _ := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, "--volume-dir", volumes, "--", "cat", "/v/kept")
		if kept != "data" {
			t.Errorf("%q", kept)
		}
		mustPodvol(t, exitOK, deletion...)
		assertNothingMountedBelow(t, base)
	})
}
